"""What a run is about, resolved from the command line: engines, models, device, dtype."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import NoReturn

import pytest
import torch
from hypothesis import settings

from batchproof.errors import (
    EngineHang,
    OracleError,
    UnsupportedModelError,
    UsageError,
)
from batchproof.models.catalogue import DEFAULT_MODELS, EMBEDDED, resolve_device, resolve_dtype
from batchproof.oracle.precision import Precision, resolve_precision
from batchproof.plugin.bench_options import BenchOptions, bench_options
from batchproof.plugin.isolation import has_workers
from batchproof.plugin.profiles import PROFILES
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import (
    BY_DEFAULT,
    REFERENCE,
    EngineSpec,
    resolve_engine,
)

LONGEST_TIME_LIMIT_S = 86_400


@dataclass(frozen=True, slots=True)
class Selection:
    """The command line, resolved."""

    engines: tuple[EngineSpec, ...]
    yardsticks: frozenset[str]  # engines that run along where that is quick
    model_names: tuple[str, ...]
    device: torch.device
    dtype: torch.dtype
    precision: Precision
    time_limit_s: float
    bench: BenchOptions | None  # None in a run that is no benchmark


SELECTION = pytest.StashKey[Selection]()
LAB = pytest.StashKey[Laboratory]()


def select(config: pytest.Config) -> Selection:
    """Returns the selection. Raises `UsageError` for any unknown name or value out of range."""
    time_limit_s = config.getoption("--engine-time-limit")
    if not 0 < time_limit_s <= LONGEST_TIME_LIMIT_S:
        raise UsageError(
            f"--engine-time-limit is {time_limit_s:g}, but must be above 0 and at most "
            f"{LONGEST_TIME_LIMIT_S} seconds"
        )
    profile = config.getoption("--hypothesis-profile")
    if profile and profile not in settings._profiles:
        raise UsageError(f"--hypothesis-profile {profile!r} is unknown; choose {', '.join(PROFILES)}")
    names = config.getoption("--engine") or BY_DEFAULT
    if len(set(names)) < len(names):
        raise UsageError(f"--engine names the same engine twice: {', '.join(names)}")
    device = resolve_device(config.getoption("--device"))
    # Conformance is exact in float32; speed is asked for in the dtype people serve in.
    is_gpu_benchmark = device.type == "cuda" and config.getoption("--benchmark-only")
    bench = bench_options(config, device)
    models = bench.model_names if bench else _models_asked_for(config)
    default_dtype = "bfloat16" if is_gpu_benchmark else "float32"
    return Selection(
        engines=tuple(
            EngineSpec(name, _elsewhere) if has_workers(config) else resolve_engine(name)
            for name in names
        ),
        yardsticks=frozenset(() if config.getoption("--engine") else {REFERENCE}),
        model_names=tuple(dict.fromkeys(models)),
        device=device,
        dtype=resolve_dtype(config.getoption("--dtype") or default_dtype),
        precision=resolve_precision(
            config.getoption("--compute-dtype"), config.getoption("--kv-cache-dtype")
        ),
        time_limit_s=time_limit_s,
        bench=bench,
    )


def _elsewhere(_model: object, _config: object) -> NoReturn:
    raise AssertionError("engines live in the workers")


def _models_asked_for(config: pytest.Config) -> Iterable[str]:
    """Returns the models of `--model`, in which "all" stands for every embedded one."""
    is_thorough = config.getoption("--hypothesis-profile") == "thorough"
    names = config.getoption("--model") or (["all"] if is_thorough else DEFAULT_MODELS)
    return chain.from_iterable(EMBEDDED if name == "all" else (name,) for name in names)


def try_what_was_named(config: pytest.Config, selection: Selection, lab: Laboratory) -> None:
    """Loads the models and builds the engines that the user named, so that a broken one is reported
    in a sentence and not as many failures. The laboratory keeps what is loaded.
    """
    if has_workers(config) or not (config.getoption("--engine") or config.getoption("--model")):
        return
    lab.subject(selection.model_names[0])  # before it is needed, for its errors
    for name in selection.model_names:
        if name not in EMBEDDED:
            _require_answers(lab, name)
    for spec in selection.engines:
        try:
            lab.capabilities(spec, lab.subject(selection.model_names[0]))  # anew, if one damaged it
        except (UnsupportedModelError, EngineHang):
            continue  # an answer of the engine; the tests show it
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(
                f"--engine {spec.name!r}: its factory raised {type(error).__name__}: {error}"
            ) from error


def _require_answers(lab: Laboratory, model_name: str) -> None:
    """Raises `UsageError` for a model on which the reference gives no answer: without one no engine
    can be judged.
    """
    try:
        lab.oracle(model_name).right_tokens((0,), 1)
    except (UnsupportedModelError, OracleError) as error:
        raise UsageError(f"--model {model_name!r} has no right answers: {error}") from error
