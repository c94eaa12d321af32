"""What a run is about, resolved from the command line: engines, models, device, dtype.

This module imports no torch, unless the device is one that torch alone knows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from batchproof.errors import UsageError
from batchproof.models.embedded import DEFAULT_MODELS, DTYPES, EMBEDDED, THREE_MODELS
from batchproof.oracle.precision import Precision, resolve_precision
from batchproof.plugin import bench_options
from batchproof.plugin.isolation import has_workers
from batchproof.run.engine_names import BY_DEFAULT, REFERENCE
from batchproof.run.registry import EngineSpec, resolve_engine
from batchproof.validation.values import one_of
from batchproof.workload.workloads import DEFAULT_TIME_LIMIT_S

if TYPE_CHECKING:
    from batchproof.plugin.bench_selection import BenchSelection
    from batchproof.run.laboratory import Laboratory

LONGEST_TIME_LIMIT_S = 86_400
DRIVERS = ("nvidia*", "nvmap", "kfd", "dxg")  # in /dev: CUDA, CUDA on Tegra, ROCm, either in WSL


@dataclass(frozen=True, slots=True)
class Selection:
    """The command line, resolved. `device` and `dtype` are torch's names."""

    engines: tuple[EngineSpec, ...]
    yardsticks: frozenset[str]  # engines that run along where that is quick
    model_names: tuple[str, ...]
    device: str
    dtype: str
    precision: Precision
    time_limit_s: float
    bench: BenchSelection | None  # None in a run that is no benchmark

    @property
    def num_threads(self) -> int | None:
        """The threads of torch; None: its own choice. Embedded models are too small to share out."""
        if self.bench is not None:
            return self.bench.num_threads
        return 1 if all(name in EMBEDDED for name in self.model_names) else None


SELECTION = pytest.StashKey[Selection]()
LAB: pytest.StashKey[Laboratory] = pytest.StashKey()


def select(config: pytest.Config) -> Selection:
    """Returns the selection. Raises `UsageError` for any unknown name or value out of range."""
    time_limit_s = config.getoption("--engine-time-limit")
    if time_limit_s is None:
        time_limit_s = DEFAULT_TIME_LIMIT_S
    if not 0 < time_limit_s <= LONGEST_TIME_LIMIT_S:
        raise UsageError(
            f"--engine-time-limit is {time_limit_s:g}, but must be above 0 and at most "
            f"{LONGEST_TIME_LIMIT_S} seconds"
        )
    names = config.getoption("--engine") or BY_DEFAULT
    if len(set(names)) < len(names):
        raise UsageError(f"--engine names the same engine twice: {', '.join(names)}")
    dtype = config.getoption("--dtype")
    if dtype is not None:
        one_of("--dtype", dtype, DTYPES)
    precision = resolve_precision(
        config.getoption("--compute-dtype"), config.getoption("--kv-cache-dtype")
    )
    device = _device(config.getoption("--device"))
    bench = _bench(config, device)
    models = bench.model_names if bench else _models_asked_for(config)
    # Conformance is exact in float32; speed is asked for in the dtype people serve in.
    is_gpu_benchmark = bench is not None and device.startswith("cuda")
    return Selection(
        engines=tuple(
            EngineSpec(name, _elsewhere) if has_workers(config) else resolve_engine(name)
            for name in names
        ),
        yardsticks=frozenset(() if config.getoption("--engine") else {REFERENCE}),
        model_names=tuple(dict.fromkeys(models)),
        device=device,
        dtype=dtype or ("bfloat16" if is_gpu_benchmark else "float32"),
        precision=precision,
        time_limit_s=time_limit_s,
        bench=bench,
    )


def _device(name: str) -> str:
    """Returns the device; torch is asked unless its answer is certain."""
    if name == "cpu" or (name == "auto" and not _may_have_gpu()):
        return "cpu"
    return str(import_module("batchproof.models.catalogue").resolve_device(name))


def _may_have_gpu() -> bool:
    """Returns False only if torch would find none: then the answer needs no import of it."""
    is_known = sys.platform == "linux" and "torch" not in sys.modules
    return not is_known or any(any(Path("/dev").glob(each)) for each in DRIVERS)


def _bench(config: pytest.Config, device: str) -> BenchSelection | None:
    if not config.getoption("--benchmark-only", default=False):
        bench_options.require_none(config)
        return None
    return import_module("batchproof.plugin.bench_selection").bench_selection(
        config, device.partition(":")[0]
    )


def _elsewhere(_model: object, _config: object) -> NoReturn:
    raise AssertionError("engines live in the workers")


def _models_asked_for(config: pytest.Config) -> Iterable[str]:
    """Returns the models of `--model`, in which "all" stands for every embedded one. Without it the
    built-in engines, which are known, get fewer than an engine that is named."""
    is_thorough = config.getoption("--hypothesis-profile") == "thorough"
    usual = DEFAULT_MODELS if config.getoption("--engine") else THREE_MODELS
    names = config.getoption("--model") or (["all"] if is_thorough else usual)
    return chain.from_iterable(EMBEDDED if name == "all" else (name,) for name in names)
