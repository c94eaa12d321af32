"""The plan of a first run on a GPU: two parts, each a list of steps, the most informative first.

Each part begins with the ladder, unless it has been climbed before: engines that do the same with ever
less machinery. A part goes on with the first that passes, so that a fault of one option does not cost
it. Without the ladder, the limits of a part add up to less than `PART_S`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from batchproof.records.provenance import num_cores

PART_S = 540
CONFORMANCE = "conformance.json"
MAX_PROCESSES = 16  # each has a CUDA context of its own
ENGINE = "{engine}"  # in arguments: the rung of the ladder that has passed
UNPREPARED = "{unprepared engine}"  # the same, capturing steps when they are needed
IN_16_BIT = "parity or isolation or reuse"
PROMISES = "parity or mask or determinism or side_effects or isolation or reuse"
DECODE = "cases/benchmarks/decode"
KERNEL_TESTS = tuple(f"tests/selftest/paged/test_{each}.py" for each in ("triton_kernels", "blocks"))
Variables = tuple[tuple[str, str], ...]
Options = Mapping[str, str]

WITHOUT_COMPILER = {"compile": "false"}
WITHOUT_GRAPHS = {"graphs": "false"}
# Relative to the defaults on CUDA, the fastest first: which of the compiler and the graphs is at fault,
# then both; the last leaves out Triton as well, and all that is asynchronous.
RUNGS: tuple[Options, ...] = (
    {},
    WITHOUT_COMPILER,
    WITHOUT_GRAPHS,
    {**WITHOUT_GRAPHS, **WITHOUT_COMPILER},
    {**WITHOUT_GRAPHS, **WITHOUT_COMPILER, "backend": "blocks", "overlap": "false", "prepare": "false"},
)
# What is closest on a CPU to the defaults on CUDA.
DRY: Options = {"backend": "blocks", "compile": "eager"} | dict.fromkeys(
    ("graphs", "overlap", "prepare"), "true"
)


def engine_of(rung: Options) -> str:
    """Returns the engine of a rung, as it is written after `--engine`."""
    return "?".join(filter(None, ("paged", "&".join(map("=".join, rung.items())))))


@dataclass(frozen=True, slots=True)
class Step:
    """A command for the Python under test, with a time limit."""

    name: str
    limit_s: int
    arguments: tuple[str, ...]
    variables: Variables = ()  # of its environment
    is_ladder: bool = False  # it is run on one rung after the other, until it passes

    @property
    def has_rungs(self) -> bool:
        return ENGINE in self.arguments or UNPREPARED in self.arguments

    def on(self, rung: Options) -> Self:
        """Returns the step with the engine of a rung."""
        unprepared = {**rung, "prepare": "false"}
        named = {ENGINE: engine_of(rung), UNPREPARED: engine_of(unprepared)}
        return replace(self, arguments=tuple(named.get(each, each) for each in self.arguments))


Plan = dict[str, tuple[Step, ...]]


@dataclass(frozen=True, slots=True)
class Setting:
    """Where the plan runs, and how much of it."""

    out: Path
    is_dry: bool = False  # on a CPU, with small models and few cases
    num_processes: int = min(MAX_PROCESSES, num_cores())

    @classmethod
    def of(cls, is_dry: bool) -> Self:
        return cls(Path(os.environ.get("OUT") or "results/gpu").resolve(), is_dry)

    @property
    def device(self) -> str:
        return "cpu" if self.is_dry else "cuda"

    @property
    def rungs(self) -> tuple[Options, ...]:
        """Returns the options of the engines of the ladder, the fastest first."""
        return tuple({**(DRY if self.is_dry else {}), **each} for each in RUNGS)

    def plan(self) -> Plan:
        return {"correct": self._correct(), "figures": self._figures()}

    def _correct(self) -> tuple[Step, ...]:
        processes = () if self.is_dry else ("-n", str(self.num_processes))
        # On a CPU, Triton's interpreter; and torch's kernels, as pytest fails if it runs no test.
        tested = KERNEL_TESTS if self.is_dry else KERNEL_TESTS[:1]
        interpreted: Variables = (("TRITON_INTERPRET", "1"),) if self.is_dry else ()
        kernels = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *tested, *processes)
        own, small = ("--engine", ENGINE), ("--model", "llama-hash")
        models = small if self.is_dry else (*small, "--model", "gpt2-hash", "--model", "llama-random")
        others = ("--engine", "ragged", "--engine", "static", "--engine", "reference")
        table = ("--table", str(self.out / CONFORMANCE), *(small if self.is_dry else ()))
        # Hundreds of engines are built, and most steps that `prepare` captures never run in a test.
        on_demand = ("--engine", UNPREPARED)
        tried = ("-m", "tests.gpu.versions", self.device)
        return (
            Step("versions", 40, tried),
            self._ladder,
            Step("kernels", 65, kernels, interpreted),
            self._conformance("float32", 145, PROMISES, *on_demand, *table),
            self._conformance("bfloat16", 130, IN_16_BIT, *own, *models, "--dtype", "bfloat16"),
            self._conformance("other engines", 65, "smoke or (parity and generated)", *others, *small),
            self._conformance("float16", 75, IN_16_BIT, *own, *small, "--dtype", "float16"),
        )

    @property
    def _ladder(self) -> Step:
        return Step("smoke", 75, ("-m", "tests.gpu.smoke", self.device, ENGINE), is_ladder=True)

    def _conformance(self, name: str, limit_s: int, tests: str, *more: str) -> Step:
        variables: Variables = ()
        if name == "float32" or not self.is_dry:
            more = (*more, "-n", str(self.num_processes))
            # Otherwise each worker would start as many compile processes as there are cores.
            variables = (("TORCHINDUCTOR_COMPILE_THREADS", "1"),)
        arguments = (
            *("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/conformance"),
            *("-k", "smoke" if self.is_dry else tests, "--device", self.device),
            *("--hypothesis-profile", "quick", "--engine-time-limit", "150", "--durations", "8", *more),
        )
        return Step(name, limit_s, arguments, variables)

    def _figures(self) -> tuple[Step, ...]:
        own = ("--engine", ENGINE)
        less = ("--num-requests", "8") if self.is_dry else ("--num-requests", "96", "--slots", "32")
        short = less if self.is_dry else (*less, "--cap", "16:128")
        peer = ("--engine", "transformers-cb", *own, *short)
        return (
            self._ladder,
            self._rows("llama-8b", 170, 2, "llama-8b", own, "decode_64", "ragged"),
            self._rows("llama-1b", 110, 3, "llama-1b", own, "decode_64", "decode_1", "ragged"),
            self._rows("transformers-cb", 65, 3, "llama-1b", peer, "uniform"),
            self._rows("qwen3-0.6b", 85, 2, "qwen3-0.6b", own, "decode_64", "ragged"),
        )

    def _rows(
        self, name: str, limit_s: int, num_laps: int, shape: str, more: tuple[str, ...], *workloads: str
    ) -> Step:
        """Returns a step that runs benchmarks into a result file of its own."""
        start = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/benchmarks", "--benchmark-only")
        named = [f"{DECODE}/{each}.yaml" if each.startswith("decode") else each for each in workloads]
        arguments = (
            *(*start, "--device", self.device, "--shape", "tiny" if self.is_dry else shape),
            *("--laps", "1" if self.is_dry else str(num_laps), "--verify", "2"),
            *(part for each in named for part in ("--workload", each)),
            *(*more, "--results", str(self.out / f"{name}.json")),
        )
        return Step(name, limit_s, arguments)
