"""The command line, Hypothesis profiles, markers, and the header that shows what is under test."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

from batchproof.checks.switches import compute_exactly
from batchproof.errors import UsageError
from batchproof.models.catalogue import DEFAULT_MODELS, DEVICES, DTYPES, EMBEDDED
from batchproof.oracle.precision import KV_CACHES
from batchproof.plugin import (
    WOKEN_LATE,
    bench_options,
    benchmarks,
    diagnosing,
    isolation,
    journal_file,
    problems,
    repro,
    spread,
    table_file,
)
from batchproof.plugin.numbers import seconds
from batchproof.plugin.profiles import register_profiles
from batchproof.plugin.selection import (
    LAB,
    SELECTION,
    Selection,
    select,
    try_what_was_named,
)
from batchproof.plugin.xfails import FORM, KnownFailures, read_known_failures
from batchproof.run.devices import make_current
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import BY_DEFAULT, FORMS
from batchproof.workload.workloads import DEFAULT_TIME_LIMIT_S

register_profiles()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds Batchproof's options to pytest's parser."""
    group = parser.getgroup("batchproof", "Batchproof: what is under test")
    group.addoption(
        "--engine",
        action="append",
        metavar="ENGINE",
        help=f"engine to test, repeatable: {FORMS} (default: {', '.join(BY_DEFAULT)})",
    )
    group.addoption(
        "--model",
        action="append",
        metavar="MODEL",
        help=f"model to test on, repeatable: {', '.join(EMBEDDED)} (default: the first "
        f"{len(DEFAULT_MODELS)}, or all of these with the profile thorough), all, or a causal-LM "
        "checkpoint by path or hub name (owner/name)",
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
        "--compute-dtype",
        default=None,
        metavar="DTYPE",
        help="what the engine computes in, if not in --dtype: rounding is then measured in this",
    )
    group.addoption(
        "--kv-cache-dtype",
        default="auto",
        help=f"{' or '.join(KV_CACHES)} (default: auto, which is what the engine computes in)",
    )
    group.addoption(
        "--xfails",
        metavar="FILE",
        help=f"known failures of an engine, a line each: {FORM!r}. They are run; one that passes fails "
        "the run. An id must be that of a test, before -k and -m, unless its file, or its engine and "
        "model, were not asked for",
    )
    diagnosing.add_option(group)
    isolation.add_option(group)
    group.addoption(repro.OPTION, metavar="DIR", help=repro.HELP)
    group.addoption(table_file.OPTION, metavar="FILE", help=table_file.HELP)
    group.addoption(journal_file.OPTION, metavar="FILE", help=journal_file.HELP)
    group.addoption(
        "--engine-time-limit",
        type=seconds("--engine-time-limit"),
        default=DEFAULT_TIME_LIMIT_S,
        metavar="S",
        help="seconds after which one call of an engine counts as hung (default: %(default)g)",
    )
    bench_options.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Resolves the options and registers the plugins that they ask for. Raises `pytest.UsageError`."""
    isolation.begin(config)
    config.pluginmanager.register(problems.Problems(), "batchproof-problems")
    try:
        _configure(config)
    except UsageError as error:
        problems.report(config, str(error))


def _configure(config: pytest.Config) -> None:
    selection = select(config)
    make_current(selection.device)
    compute_exactly()  # before any engine is built
    _choose_threads(selection)
    diagnosing.check_option(config)
    terms = (selection.device, selection.dtype, selection.time_limit_s, selection.precision)
    lab = config.stash.get(LAB, Laboratory(*terms))  # a suite run may bring a shared one
    isolation.tell(config, lab)
    known_failures = read_known_failures(config.getoption("--xfails"))
    try_what_was_named(config, selection, lab)
    benchmarks.register(config, selection.bench, selection.device)
    config.stash[SELECTION] = selection
    config.stash[LAB] = lab
    config.pluginmanager.register(KnownFailures(known_failures), "batchproof-xfails")
    repro.check_option(config)
    table_file.register(config)
    journal_file.register(config)
    if not (config.getoption("--hypothesis-profile") or WOKEN_LATE in config.stash):
        settings.load_profile("default")  # where CI is set, Hypothesis has chosen one of its own


def _choose_threads(selection: Selection) -> None:
    """Sets the threads of torch, before any engine can change them."""
    if selection.bench is not None and selection.bench.num_threads is not None:
        torch.set_num_threads(selection.bench.num_threads)
    elif all(name in EMBEDDED for name in selection.model_names):
        torch.set_num_threads(1)  # the embedded models are too small to share out


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves benchmarks out unless they are asked for, in which case only they run."""
    wants_benchmarks = bool(config.getoption("--benchmark-only"))
    is_left_out = {item: _is_left_out(item, wants_benchmarks) for item in items}
    if any(is_left_out.values()):
        config.hook.pytest_deselected(items=[item for item in items if is_left_out[item]])
        items[:] = [item for item in items if not is_left_out[item]]


def _is_left_out(item: pytest.Item, wants_benchmarks: bool) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    if wants_benchmarks:
        return "benchmark" not in fixtures
    return "measured" in fixtures or "growth" in fixtures


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Returns the lines that name engines, models, device, dtype and known failures."""
    selection = config.stash[SELECTION]
    xfails = config.getoption("--xfails")
    return [
        *spread.header(config),
        "batchproof: engines " + ", ".join(spec.name for spec in selection.engines),
        "batchproof: models " + ", ".join(selection.model_names),
        f"batchproof: device {selection.device}, dtype {str(selection.dtype).removeprefix('torch.')}, "
        f"torch {torch.__version__}, {torch.get_num_threads()} thread(s)",
        *([f"batchproof: computed in {selection.precision}"] if str(selection.precision) else []),
        *([f"batchproof: known failures from {xfails}"] if xfails else []),
    ]
