"""Where a decode step of `paged` spends its time on this CPU, and what each of its options gains.

python -m tests.selftest.paged.step_profile [SHAPE ...] [--slots N] [--engine ENGINE ...]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from statistics import median, quantiles
from time import thread_time
from typing import cast

import torch
from torch.profiler import ProfilerActivity, profile

from batchproof.api import EngineConfig, Request, SteppingEngine
from batchproof.models.catalogue import load_model
from batchproof.models.shapes import SHAPES
from batchproof.records.provenance import command_line, made_now
from batchproof.run.registry import resolve_engine

PROMPT_LEN, NUM_WARM, NUM_STEPS, NUM_PROFILED = 48, 10, 40, 10
SHARES = ("linear layers", "attention", "other operators of the model", "around it")
PRODUCTS = ("aten::mm", "aten::addmm", "batchproof::multiply_packed", "mkldnn::_linear_pointwise")
ATTENTION = "batchproof::attend"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.selftest.paged.step_profile", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--slots", type=int, default=16, help="sequences that decode (16)")
    parser.add_argument(
        "--engine", action="append", help="paged, with options (paged); repeatable, to be compared"
    )
    asked = parser.parse_args(arguments)
    for shape in asked.shapes:
        if shape not in SHAPES:
            parser.error(f"{shape!r} is no shape; there are {', '.join(SHAPES)}")
    if asked.slots < 1:
        parser.error(f"--slots is {asked.slots}, but must be at least 1")
    torch.set_num_threads(1)
    for line in page(asked.shapes or ["tiny", "gpt2"], asked.engine or ["paged"], asked.slots):
        print(line, flush=True)


def page(shapes: list[str], names: list[str], slots: int) -> Iterator[str]:
    """Yields the lines of a page in Markdown."""
    yield "# Where a decode step spends its time"
    yield ""
    yield from made_now(command_line("python", "-m", "tests.selftest.paged.step_profile")).lines()
    yield ""
    yield (
        f"{slots} sequences, one thread, float32; {NUM_STEPS} steps, in which the engines take turns. "
        "An engine is so many times as fast as the first one in the same step, median and quartiles. "
        "Shares are those of profiled steps."
    )
    yield ""
    titles = ("shape", "engine", "ms a step", "over the first", *SHARES)
    yield "| " + " | ".join(titles) + " |"
    yield "| --- " * len(titles) + "|"
    for shape in shapes:
        engines = {name: decoding(shape, name, slots) for name in names}
        times: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(NUM_STEPS):
            for name, engine in engines.items():
                times[name].append(_time_of(engine))
        for name, engine in engines.items():
            pairs = zip(times[names[0]], times[name], strict=True)
            low, middle, high = quantiles([first / each for first, each in pairs], n=4)
            ratio = "" if name == names[0] else f"{middle:.2f}x [{low:.2f}, {high:.2f}]"
            cells = (shape, f"`{name}`", f"{1000 * median(times[name]):.2f}", ratio, *_shares(engine))
            yield "| " + " | ".join(cells) + " |"


def decoding(shape: str, engine: str, slots: int) -> SteppingEngine:
    """Returns an engine on a model of this shape, with all its slots in the middle of their answers."""
    model = load_model(shape, torch.device("cpu"), torch.float32).model
    cap = NUM_WARM + NUM_STEPS + 2 * NUM_PROFILED
    config = EngineConfig(max_num_seqs=slots, max_model_len=PROMPT_LEN + cap)
    built = cast(SteppingEngine, resolve_engine(engine).factory(model, config))
    for slot in range(slots):
        built.add(Request(f"r{slot}", tuple(range(slot, slot + PROMPT_LEN)), cap))
    for _ in range(NUM_WARM):
        built.step()
    return built


def _time_of(engine: SteppingEngine) -> float:
    began = thread_time()
    engine.step()
    return thread_time() - began


def _shares(engine: SteppingEngine) -> Iterator[str]:
    """Yields what share of the time of profiled steps each of `SHARES` takes."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        whole = 1e6 * sum(_time_of(engine) for _ in range(NUM_PROFILED))
    totals = {each.key: each for each in profiled.key_averages()}
    products = sum(totals[name].self_cpu_time_total for name in PRODUCTS if name in totals)
    attention = totals[ATTENTION].cpu_time_total
    inside = sum(each.self_cpu_time_total for each in totals.values())
    for share in (products, attention, inside - products - attention, whole - inside):
        yield f"{max(0.0, share / whole):.0%}"


if __name__ == "__main__":
    main()
