"""Command line, Hypothesis profiles, markers, and the header that echoes what is under test."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

from harness.errors import EngineHang, OracleError, UnsupportedModelError, UsageError
from harness.models.catalogue import (
    DEVICES,
    DTYPES,
    EMBEDDED,
    resolve_device,
    resolve_dtype,
)
from harness.plugin import diagnosing, repro
from harness.plugin.xfails import FORM, KnownFailures, read_known_failures
from harness.registry import BUILT_IN, FORMS, EngineSpec, resolve_engine
from harness.trial import Laboratory
from harness.workloads import DEFAULT_TIME_LIMIT_S

# Examples of a property test; parity gets twice as many.
LONGEST_TIME_LIMIT_S = 86_400
PROFILES = {"quick": 4, "default": 10, "thorough": 400}
for _name, _max_examples in PROFILES.items():
    settings.register_profile(
        _name,
        max_examples=_max_examples,
        deadline=None,  # speed is measured by benchmarks, never asserted in tests
        report_multiple_bugs=False,
        # No explain phase: it reruns an engine for minutes, and a failure explains itself.
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
        # A trial is made for one test and holds no state of an example.
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@dataclass(frozen=True, slots=True)
class Selection:
    """What was asked for on the command line, resolved."""

    engines: tuple[EngineSpec, ...]
    yardsticks: frozenset[str]  # engines that run along on one quick model only
    model_names: tuple[str, ...]
    device: torch.device
    dtype: torch.dtype
    time_limit_s: float


SELECTION = pytest.StashKey[Selection]()
LAB = pytest.StashKey[Laboratory]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("batchproof", "Batchproof: what is under test")
    group.addoption(
        "--engine",
        action="append",
        metavar="ENGINE",
        help=f"engine to test, repeatable: {FORMS} (default: {', '.join(BUILT_IN)})",
    )
    group.addoption(
        "--model",
        action="append",
        metavar="MODEL",
        help=f"model to test on, repeatable: {', '.join(EMBEDDED)} (default: all of these), or a "
        "causal-LM checkpoint by hub id or path",
    )
    group.addoption(
        "--device", default="auto", help=f"{DEVICES} (default: auto, which is CUDA, else MPS, else CPU)"
    )
    group.addoption(
        "--dtype",
        default=None,
        help=f"{', '.join(DTYPES)} (default: float32; benchmarks on a GPU: bfloat16)",
    )
    group.addoption(
        "--xfails",
        metavar="FILE",
        help=f"known failures of an engine, a line each: {FORM!r}. They are run; one that passes fails "
        "the run. An id must be that of a test, before -k and -m, unless its file, or its engine and "
        "model, were not asked for",
    )
    diagnosing.add_option(group)
    group.addoption(repro.OPTION, metavar="DIR", help=repro.HELP)
    group.addoption(
        "--engine-time-limit",
        type=float,
        default=DEFAULT_TIME_LIMIT_S,
        metavar="S",
        help="seconds after which one call of an engine counts as hung (default: %(default)g)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "promise(id): the promise a conformance test checks, P1 to P16")
    config.addinivalue_line(
        "markers", "needs(*capabilities): skipped, by name, for engines without them"
    )
    config.addinivalue_line("markers", "one_model: the first model is enough for this test")
    try:
        selection = select(config)
        diagnosing.check_option(config)
        own = Laboratory(selection.device, selection.dtype, selection.time_limit_s)
        lab = config.stash.get(LAB, own)  # a hunt may bring one that it shares
        known_failures = read_known_failures(config.getoption("--xfails"))
        _try_what_was_named(config, selection, lab)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[SELECTION] = selection
    config.stash[LAB] = lab
    config.pluginmanager.register(KnownFailures(known_failures), "batchproof-xfails")
    repro.register(config)
    if not config.getoption("--hypothesis-profile"):
        settings.load_profile("default")  # where CI is set, Hypothesis has chosen one of its own
    # Comparisons are made in the dtype that was asked for, not in TF32.
    torch.set_float32_matmul_precision("highest")
    if torch.backends.cudnn.is_available():
        torch.backends.cudnn.allow_tf32 = False
    if all(name in EMBEDDED for name in selection.model_names):
        torch.set_num_threads(1)  # the embedded models are too small to share out


def select(config: pytest.Config) -> Selection:
    """Raises `UsageError` for anything unknown."""
    time_limit_s = config.getoption("--engine-time-limit")
    if not 0 < time_limit_s <= LONGEST_TIME_LIMIT_S:
        raise UsageError(
            f"--engine-time-limit is {time_limit_s:g}, but must be above 0 and at most "
            f"{LONGEST_TIME_LIMIT_S} seconds"
        )
    profile = config.getoption("--hypothesis-profile")
    if profile and profile not in settings._profiles:
        raise UsageError(f"--hypothesis-profile {profile!r} is unknown; choose {', '.join(PROFILES)}")
    names = config.getoption("--engine") or list(BUILT_IN)
    if len(set(names)) < len(names):
        raise UsageError(f"--engine names the same engine twice: {', '.join(names)}")
    device = resolve_device(config.getoption("--device"))
    # Conformance is exact in float32; speed is asked for in the dtype people serve in.
    is_gpu_benchmark = device.type == "cuda" and config.getoption("--benchmark-only")
    is_default_run = not (config.getoption("--engine") or config.getoption("--benchmark-only"))
    default_dtype = "bfloat16" if is_gpu_benchmark else "float32"
    return Selection(
        engines=tuple(resolve_engine(name) for name in names),
        yardsticks=frozenset({"reference"} if is_default_run else ()),
        model_names=tuple(dict.fromkeys(config.getoption("--model") or EMBEDDED)),
        device=device,
        dtype=resolve_dtype(config.getoption("--dtype") or default_dtype),
        time_limit_s=time_limit_s,
    )


def _try_what_was_named(config: pytest.Config, selection: Selection, lab: Laboratory) -> None:
    """Load the models and build the engines that the user named, so that a broken one is a sentence,
    not a wall of failures. The laboratory keeps what it has learned."""
    if not (config.getoption("--engine") or config.getoption("--model")):
        return
    subject = lab.subject(selection.model_names[0])
    for name in selection.model_names:
        if name not in EMBEDDED:
            _require_answers(lab, name)
    for spec in selection.engines:
        try:
            lab.capabilities(spec, subject)
        except (UnsupportedModelError, EngineHang):
            continue  # an answer of the engine; the tests show it
        except UsageError:
            raise
        except (Exception, SystemExit) as error:
            raise UsageError(
                f"--engine {spec.name!r}: its factory raised {type(error).__name__}: {error}"
            ) from error


def _require_answers(lab: Laboratory, model_name: str) -> None:
    """Raises `UsageError` for a model on which the reference answers nothing: it can judge nobody."""
    try:
        lab.oracle(model_name).right_tokens((0,), 1)
    except (UnsupportedModelError, OracleError) as error:
        raise UsageError(f"--model {model_name!r} has no right answers: {error}") from error


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Benchmarks run when they are asked for, and then alone; plain pytest spends no time on them."""
    wants_benchmarks = bool(config.getoption("--benchmark-only"))
    is_benchmark = {item: "benchmark" in getattr(item, "fixturenames", ()) for item in items}
    others = [item for item in items if is_benchmark[item] != wants_benchmarks]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if is_benchmark[item] == wants_benchmarks]


def pytest_report_header(config: pytest.Config) -> list[str]:
    selection = config.stash[SELECTION]
    xfails = config.getoption("--xfails")
    return [
        "batchproof: engines " + ", ".join(spec.name for spec in selection.engines),
        "batchproof: models " + ", ".join(selection.model_names),
        f"batchproof: device {selection.device}, dtype {str(selection.dtype).removeprefix('torch.')}, "
        f"torch {torch.__version__}, {torch.get_num_threads()} thread(s)",
        *([f"batchproof: known failures from {xfails}"] if xfails else []),
    ]
