"""How long a step takes: decodes alone, in three ways, and decodes beside a newcomer's prompt.

    python -m tests.gpu.steps cuda measures.jsonl llama-1b

The engine is driven as anybody would, by `add` and `step`; what a step holds is read from its trace.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any, cast

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import PreTrainedModel

from harness.api import EngineConfig, Request, SteppingEngine
from harness.bench.ceilings import Ceilings, measure_ceilings
from harness.bench.drive import synchronise
from harness.bench.roofline import ModelCosts, least_time
from harness.models.shapes import SHAPES, build_model
from harness.registry import resolve_engine
from tests.gpu.measures import Measures, asked

# The first is what runs by default on CUDA; then what each switch of it is worth.
WAYS = {
    "default": "",
    "no overlap": "overlap=false",
    "graphs": "compile=false",
    "eager": "graphs=false&compile=false",
}
ON_CPU = "backend=blocks&overlap=true&trace=false&"
NUM_TOP_KERNELS = 14


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of what is measured, in tokens, sequences and steps."""

    prompt_len: int = 960
    newcomer_len: int = 512
    num_seqs: tuple[int, ...] = (64, 8, 1)  # the first in all ways, the others by default and as graphs
    num_timed: int = 48
    num_newcomers: int = 5
    num_profiled: int = 8

    @property
    def cap(self) -> int:
        """More than all steps together take."""
        return 2 * (self.num_timed + self.num_profiled) + 8 * self.num_newcomers + 64


FULL, SMALL = Sizes(), Sizes(24, 16, (4, 1), 4, 2, 2)


@dataclass
class Crowd:
    """An engine with sequences that decode together."""

    engine: Any
    device: torch.device
    vocab_size: int
    cap: int
    _numbers: Any = field(default_factory=count)
    live: list[str] = field(default_factory=list)

    def add(self, prompt_len: int) -> None:
        number = next(self._numbers)
        prompt = tuple((7 * number + 3 * place) % self.vocab_size for place in range(prompt_len))
        cast(SteppingEngine, self.engine).add(Request(f"r{number}", prompt, self.cap))
        self.live.append(f"r{number}")

    def settle(self) -> None:
        """Step until all decode, and a little more: what is made once is made by then."""
        self.engine.step()
        while any(row.query_len > 1 for row in self.engine.trace[-1].rows):
            self.engine.step()
        for _ in range(4):
            self.engine.step()

    def step_s(self, num_steps: int) -> float:
        synchronise(self.device)
        began = perf_counter()
        for _ in range(num_steps):
            self.engine.step()
        synchronise(self.device)
        return (perf_counter() - began) / num_steps

    def newcomer_s(self, prompt_len: int) -> tuple[float, float]:
        """Seconds of a step with a prompt in it, and of those the host's; someone leaves for it."""
        self.engine.abort(self.live.pop(0))
        self.add(prompt_len)
        synchronise(self.device)
        began = perf_counter()
        self.engine.step()
        host_s = perf_counter() - began
        synchronise(self.device)
        seconds = perf_counter() - began
        assert max(row.query_len for row in self.engine.trace[-1].rows) == prompt_len, "not fed at once"
        self.settle()
        return seconds, host_s


def measure(shape: str, device: torch.device, measures: Measures) -> None:
    is_cuda = device.type == "cuda"
    sizes, dtype = (FULL, torch.bfloat16) if is_cuda else (SMALL, torch.float32)
    began = perf_counter()
    model = build_model(SHAPES[shape].config(), device, dtype)
    ceilings = measure_ceilings(device, dtype)
    measures.add(f"{shape} load", f"{perf_counter() - began:.1f} s")
    for way, options in WAYS.items():
        if measures.left_s < 15:
            measures.add(f"{shape} {way}", "no time left")
            continue
        with measures.piece(f"{shape} {way}"):
            _measure_way(shape, way, options, model, ceilings, sizes, measures)
        gc.collect()
        if is_cuda:
            torch.cuda.empty_cache()


def _measure_way(
    shape: str,
    way: str,
    options: str,
    model: PreTrainedModel,
    ceilings: Ceilings,
    sizes: Sizes,
    measures: Measures,
) -> None:
    device = model.device
    prefix = "" if device.type == "cuda" else ON_CPU
    if prefix and "graphs" not in options:
        prefix += "graphs=true&"
    if prefix and options.startswith("overlap"):
        prefix = prefix.replace("overlap=true&", "")
    text = f"paged?{prefix}{options}".rstrip("?&")
    costs = ModelCosts.of(model)
    assert isinstance(costs, ModelCosts), costs
    for num_seqs in sizes.num_seqs if way in ("default", "graphs") else sizes.num_seqs[:1]:
        if measures.left_s < 10:
            return
        name = f"{shape} {num_seqs} decodes, {way}"
        began = perf_counter()
        longest = sizes.prompt_len + sizes.newcomer_len + sizes.cap
        config = EngineConfig(
            max_num_seqs=num_seqs,
            max_num_batched_tokens=max(8192, num_seqs),
            num_blocks=num_seqs * (-(-longest // 16) + 1),
            max_model_len=longest,
        )
        vocab_size = model.config.get_text_config().vocab_size
        crowd = Crowd(resolve_engine(text).factory(model, config), device, vocab_size, sizes.cap)
        for _ in range(num_seqs):
            crowd.add(sizes.prompt_len)
        crowd.settle()
        ready_s = perf_counter() - began
        step_s = crowd.step_s(sizes.num_timed)
        timed = crowd.engine.trace[-sizes.num_timed :]
        least_s = least_time(timed, costs, ceilings).least_s / sizes.num_timed
        told = f"{step_s * 1e3:.2f} ms a step, {least_s / step_s:.0%} of the roofline"
        figures = {"engine": text, "num_seqs": num_seqs, "ready_s": ready_s, "step_s": step_s}
        measures.add(name, f"{told}, ready in {ready_s:.1f} s", **figures, least_s=least_s)
        _profile(name, crowd, step_s, sizes.num_profiled, measures)
        if num_seqs == sizes.num_seqs[0]:
            _measure_newcomers(f"{name}, beside a prompt", crowd, sizes, measures)


def _measure_newcomers(name: str, crowd: Crowd, sizes: Sizes, measures: Measures) -> None:
    pairs = [crowd.newcomer_s(sizes.newcomer_len) for _ in range(sizes.num_newcomers)]
    step_s, host_s = (median(each) for each in zip(*pairs, strict=True))
    figures = {"step_s": step_s, "host_s": host_s, "prompt_len": sizes.newcomer_len}
    measures.add(name, f"{step_s * 1e3:.2f} ms, the host {host_s * 1e3:.2f}", **figures)


def _profile(name: str, crowd: Crowd, step_s: float, num_steps: int, measures: Measures) -> None:
    """What the device is busy with, and what the host does but wait; the profiler slows the host."""
    activities = [ProfilerActivity.CPU]
    if crowd.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        watched_s = crowd.step_s(num_steps)
    rows = profiler.key_averages()
    per_step: Callable[[float], float] = lambda total_us: total_us / 1e6 / num_steps  # noqa: E731
    kernels = [row for row in rows if row.device_type == DeviceType.CUDA]
    waits_s = per_step(sum(row.self_cpu_time_total for row in rows if "Synchronize" in row.key))
    busy_s = per_step(sum(row.self_device_time_total for row in kernels))
    by_time = sorted(kernels, key=lambda row: -row.self_device_time_total)
    top = [
        {
            "kernel": row.key[:120],
            "calls": row.count / num_steps,
            "seconds": per_step(row.self_device_time_total),
        }
        for row in by_time[:NUM_TOP_KERNELS]
    ]
    num_launched = sum(row.count for row in kernels) / num_steps
    told = f"{num_launched:.0f} kernels busy for {busy_s * 1e3:.2f} ms of {step_s * 1e3:.2f}, "
    told += f"the host for {(watched_s - waits_s) * 1e3:.2f} under the profiler"
    first = "; ".join(f"{each['kernel'][:40]} {each['seconds'] * 1e6:.0f} us" for each in top[:3])
    figures = {"busy_s": busy_s, "host_s": watched_s - waits_s, "num_kernels": num_launched}
    measures.add(f"{name}, profile", f"{told}; {first}".rstrip("; "), **figures, top=top)


def main() -> int:
    arguments, device = asked(__doc__, "shape")
    shape = arguments.shape if device.type == "cuda" else "tiny"
    section = f"steps {arguments.shape}"
    measures = Measures(arguments.path, section, device, arguments.for_s)
    measure(shape, device, measures)
    return int(measures.has_failed)


if __name__ == "__main__":
    sys.exit(main())
