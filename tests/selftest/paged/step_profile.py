"""Where a decode step of `paged` spends its time on this CPU.

python -m tests.selftest.paged.step_profile [SHAPE ...] [--slots N] [--engine ENGINE]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from statistics import median
from time import thread_time
from typing import cast

import torch
from torch.profiler import ProfilerActivity, profile

from batchproof.api import EngineConfig, Request, SteppingEngine
from batchproof.models.catalogue import load_model
from batchproof.models.shapes import SHAPES
from batchproof.records.made import command_line, made_now
from batchproof.run.registry import resolve_engine

PROMPT_LEN, NUM_STEPS, NUM_WARM = 48, 20, 10
PRODUCTS = ("aten::mm", "aten::addmm", "batchproof::multiply_packed", "mkldnn::_linear_pointwise")
ATTENTION = "batchproof::attend"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.selftest.paged.step_profile", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--slots", type=int, default=16, help="sequences that decode (16)")
    parser.add_argument("--engine", default="paged", help="paged, with options (paged)")
    asked = parser.parse_args(arguments)
    for shape in asked.shapes:
        if shape not in SHAPES:
            parser.error(f"{shape!r} is no shape; there are {', '.join(SHAPES)}")
    if asked.slots < 1:
        parser.error(f"--slots is {asked.slots}, but must be at least 1")
    torch.set_num_threads(1)
    for line in page(asked.shapes or ["tiny", "gpt2"], asked.engine, asked.slots):
        print(line, flush=True)


def page(shapes: list[str], engine: str, slots: int) -> Iterator[str]:
    """Yields the lines of a page in Markdown."""
    yield "# Where a decode step spends its time"
    yield ""
    yield from made_now(command_line("python", "-m", "tests.selftest.paged.step_profile")).lines()
    yield ""
    yield f"`{engine}`, {slots} sequences, one thread, float32. Shares are those of a profiled step."
    yield ""
    yield "| shape | ms a step | linear layers | attention | other operators of the model | around it |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for shape in shapes:
        yield _row(shape, decoding(shape, engine, slots))


def decoding(shape: str, engine: str, slots: int) -> SteppingEngine:
    """Returns an engine on a model of this shape, with all its slots in the middle of their answers."""
    model = load_model(shape, torch.device("cpu"), torch.float32).model
    cap = NUM_WARM + 3 * NUM_STEPS
    config = EngineConfig(max_num_seqs=slots, max_model_len=PROMPT_LEN + cap)
    built = cast(SteppingEngine, resolve_engine(engine).factory(model, config))
    for slot in range(slots):
        built.add(Request(f"r{slot}", tuple(range(slot, slot + PROMPT_LEN)), cap))
    for _ in range(NUM_WARM):
        built.step()
    return built


def _row(shape: str, engine: SteppingEngine) -> str:
    times = []
    for _ in range(NUM_STEPS):
        began = thread_time()
        engine.step()
        times.append(thread_time() - began)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        began = thread_time()
        for _ in range(NUM_STEPS):
            engine.step()
        whole = 1e6 * (thread_time() - began)
    totals = {each.key: each for each in profiled.key_averages()}
    products = sum(totals[name].self_cpu_time_total for name in PRODUCTS if name in totals)
    attention = totals[ATTENTION].cpu_time_total
    inside = sum(each.self_cpu_time_total for each in totals.values())
    shares = (products, attention, inside - products - attention, whole - inside)
    cells = (f"{1000 * median(times):.1f}", *(f"{max(0.0, each / whole):.0%}" for each in shares))
    return f"| {shape} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
