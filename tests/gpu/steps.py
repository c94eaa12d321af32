"""The duration of a step: decodes alone, with several options, and decodes beside a prompt.

python -m tests.gpu.steps cuda measures.jsonl llama-1b 'paged?compile=false'

The engine is driven through its public methods, `add` and `step`; what a step holds is read from the
trace.
"""

import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any, Self

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import PreTrainedModel

from batchproof.api import EngineConfig, Request, StepRecord
from batchproof.bench.hardware import Ceilings
from batchproof.bench.roofline import ModelCosts, least_time
from batchproof.models.catalogue import build_model
from batchproof.models.shapes import SHAPES
from batchproof.run.devices import synchronise
from batchproof.run.registry import resolve_engine
from tests.gpu.measures import Measures, asked
from tests.gpu.plan import Options, engine_with, options_of


@dataclass
class Crowd:
    """An engine with sequences that decode together."""

    engine: Any  # it has both, STEPPING and TRACING
    device: torch.device
    vocab_size: int
    cap: int  # tokens that each may still produce
    num_added: int = 0
    live: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, engine: str, model: PreTrainedModel, num_seqs: int, prompt_len: int, cap: int) -> Self:
        """Builds the engine and runs it until all sequences decode; newcomers may have prompts of
        that length."""
        longest = prompt_len + cap
        config = EngineConfig(
            max_num_seqs=num_seqs,
            max_num_batched_tokens=max(8192, num_seqs),
            num_blocks=num_seqs * (-(-longest // EngineConfig().block_size) + 1),
            max_model_len=longest,
        )
        vocab_size = model.config.get_text_config().vocab_size
        crowd = cls(resolve_engine(engine).factory(model, config), model.device, vocab_size, cap)
        for _ in range(num_seqs):
            crowd.add(prompt_len)
        crowd.settle()
        return crowd

    def add(self, prompt_len: int) -> None:
        number, self.num_added = self.num_added, self.num_added + 1
        prompt = tuple((7 * number + 3 * place) % self.vocab_size for place in range(prompt_len))
        self.engine.add(Request(f"r{number}", prompt, self.cap))
        self.live.append(f"r{number}")

    def settle(self) -> None:
        """Steps until all sequences decode, and a little longer, so that one-time work is done."""
        self.engine.step()
        while any(row.query_len > 1 for row in self.engine.trace[-1].rows):
            self.engine.step()
        for _ in range(4):
            self.engine.step()

    def step_s(self, num_steps: int) -> float:
        """Returns the mean duration of so many steps in seconds."""
        synchronise(self.device)
        began = perf_counter()
        for _ in range(num_steps):
            self.engine.step()
        synchronise(self.device)
        return (perf_counter() - began) / num_steps

    def newcomer_s(self, prompt_len: int) -> float:
        """Returns the seconds of a step with a prompt; the oldest leaves first."""
        self.engine.abort(self.live.pop(0))
        self.add(prompt_len)
        seconds = self.step_s(1)
        assert max(row.query_len for row in self.engine.trace[-1].rows) == prompt_len, "not fed whole"
        self.settle()
        return seconds


# The first is the engine that was asked for; the others show what each of its options is worth.
WAYS: dict[str, Options] = {
    "chosen": {},
    "uncompiled": {"compile": "false"},
    "unoverlapped": {"overlap": "false"},
    "eager": {"graphs": "false", "compile": "false"},
}
NUM_TOP_KERNELS = 14
OWN_KERNELS = ("_decode_kernel", "_merge_kernel")  # of decode attention in Triton


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a measurement, in tokens, sequences and steps."""

    prompt_len: int = 960
    newcomer_len: int = 512
    num_seqs: tuple[int, ...] = (64, 8, 1)  # in ways other than the first two only the first
    num_timed: int = 48
    num_newcomers: int = 5
    num_profiled: int = 8

    @property
    def cap(self) -> int:
        """Returns a cap that all steps together do not reach."""
        return 2 * (self.num_timed + self.num_profiled) + 8 * self.num_newcomers + 64


FULL, SMALL = Sizes(), Sizes(24, 16, (4, 1), 4, 2, 2)


@dataclass(frozen=True, slots=True)
class Stand:
    """What all options are measured on."""

    shape: str
    model: PreTrainedModel
    costs: ModelCosts
    ceilings: Ceilings
    sizes: Sizes
    measures: Measures


def measure(shape: str, engine: str, device: torch.device, measures: Measures) -> None:
    is_cuda = device.type == "cuda"
    dtype = torch.bfloat16 if is_cuda else torch.float32
    began = perf_counter()
    model = build_model(SHAPES[shape].config(), device, dtype)
    costs = ModelCosts.of(model)
    assert costs is not None, "the work of the shapes is counted"
    ceilings = measures.ceilings(device, dtype)
    measures.add(f"{shape} load", f"{perf_counter() - began:.1f} s")
    stand = Stand(shape, model, costs, ceilings, FULL if is_cuda else SMALL, measures)
    for number, (way, engine_so) in enumerate(ways(engine).items()):
        for num_seqs in stand.sizes.num_seqs if number < 2 else stand.sizes.num_seqs[:1]:
            name = f"{shape} {num_seqs} decodes, {way}"
            if measures.left_s < 12:
                measures.add(name, "no time left")
                continue
            with measures.piece(name):
                _measure_decodes(name, engine_so, num_seqs, stand)
            gc.collect()
            if is_cuda:
                torch.cuda.empty_cache()


def ways(engine: str) -> dict[str, str]:
    """Returns the engines to measure by the names of `WAYS`, each of them once."""
    found: dict[str, str] = {}
    for way, options in WAYS.items():
        so = engine_with(engine, options)
        if options_of(so) not in map(options_of, found.values()):
            found[way] = so
    return found


def _measure_decodes(name: str, engine: str, num_seqs: int, stand: Stand) -> None:
    sizes, began = stand.sizes, perf_counter()
    crowd = Crowd.of(engine, stand.model, num_seqs, sizes.prompt_len, sizes.cap)
    ready_s = perf_counter() - began
    step_s = crowd.step_s(sizes.num_timed)
    trace = crowd.engine.trace[-sizes.num_timed :]
    least_s = least_time(trace, stand.costs, stand.ceilings).least_s / sizes.num_timed
    share = least_s / step_s
    summary = f"{step_s * 1e3:.2f} ms a step, {share:.0%} of the roofline, ready in {ready_s:.1f} s"
    notes = list(crowd.engine.notes)  # of what it does without
    figures = {"engine": engine, "notes": notes, "num_seqs": num_seqs, "ready_s": ready_s}
    stand.measures.add(name, summary, **figures, step_s=step_s, least_s=least_s)
    with stand.measures.piece(f"{name}, profile"):
        _profile(f"{name}, profile", crowd, step_s, stand)
    if num_seqs == sizes.num_seqs[0]:
        step_s = median(crowd.newcomer_s(sizes.newcomer_len) for _ in range(sizes.num_newcomers))
        figures = {"step_s": step_s, "prompt_len": sizes.newcomer_len}
        name = f"{name}, one of them a prompt of {sizes.newcomer_len}"
        stand.measures.add(name, f"{step_s * 1e3:.2f} ms", **figures)


def _profile(name: str, crowd: Crowd, step_s: float, stand: Stand) -> None:
    """Reports what the device executes, if the profiler can see it."""
    num_steps = stand.sizes.num_profiled
    is_cuda = crowd.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU]) as profiler:
        crowd.step_s(num_steps)
    kernels = [row for row in profiler.key_averages() if row.device_type.name == "CUDA"]
    kernels.sort(key=lambda row: -row.self_device_time_total)
    busy_s = sum(row.self_device_time_total for row in kernels) / 1e6 / num_steps
    num_kernels = sum(row.count for row in kernels) / num_steps
    top = {
        row.key[:120]: {"calls": row.count / num_steps, "us": row.self_device_time_total / num_steps}
        for row in kernels[:NUM_TOP_KERNELS]
    }
    summary = f"{num_kernels:.0f} kernels, busy for {busy_s * 1e3:.2f} of {step_s * 1e3:.2f} ms"
    share = _attention_share(kernels, crowd.engine.trace[-num_steps:], stand)
    if share is not None:
        summary += f", attention at {share:.0%} of the memory ceiling"
    for kernel, each in list(top.items())[:3]:
        summary += f"; {kernel[:40]} {each['us']:.0f} us"
    summary = summary if kernels else "the profiler sees no kernels here"
    figures = {"busy_s": busy_s, "num_kernels": num_kernels, "attention_share_of_memory": share}
    stand.measures.add(name, summary, **figures, top=top)


def _attention_share(kernels: list[Any], trace: Sequence[StepRecord], stand: Stand) -> float | None:
    """Returns the share of the memory ceiling at which the Triton kernels read keys and values in these
    steps of decodes, or None if they did not run. The models have no windows."""
    seconds = (
        sum(row.self_device_time_total for row in kernels if row.key.startswith(OWN_KERNELS)) / 1e6
    )
    num_keys = sum(row.context_len + row.query_len for step in trace for row in step.rows)
    num_bytes = stand.costs.kv_bytes_per_token * num_keys
    return num_bytes / seconds / stand.ceilings.bytes_per_s if seconds else None


def main() -> int:
    arguments, device = asked(__doc__, "shape", "engine")
    shape = arguments.shape if device.type == "cuda" else "tiny"
    measures = Measures(arguments.path, f"steps {arguments.shape}", device, arguments.for_s)
    measure(shape, arguments.engine, device, measures)
    return int(measures.has_failed)


if __name__ == "__main__":
    sys.exit(main())
