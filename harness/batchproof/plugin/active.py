"""The plugin at work: options in, trials to the tests, a table engine x promise out.

`batchproof.plugin` registers it in the runs that need it; the conftest.py of a checkout in all. It
imports no torch, so that a wrong option is reported at once: `batchproof.plugin.testing` joins it in
the processes that run tests.
"""

import gc
import sys
from argparse import BooleanOptionalAction
from importlib import import_module
from importlib.metadata import version

import pytest

from batchproof.cli.config_file import DEST, NONE, OWN
from batchproof.cli.option_names import CONFIG, NO_CONFIG
from batchproof.errors import UsageError
from batchproof.models.embedded import DEFAULT_MODELS, DEVICES, DTYPES, EMBEDDED, THREE_MODELS
from batchproof.oracle.precision import KV_CACHES
from batchproof.plugin import (
    bench_options,
    declared,
    deselection,
    isolation,
    outputs,
    problems,
    recorder,
)
from batchproof.plugin.configuring import CONFIGURED, configure_late
from batchproof.plugin.selection import SELECTION, Selection, select
from batchproof.plugin.xfails import KnownFailures, read_known_failures
from batchproof.run.engine_names import BY_DEFAULT, FORMS
from batchproof.workload.workloads import DEFAULT_TIME_LIMIT_S

pytest_cmdline_main = isolation.pytest_cmdline_main
DIAGNOSE_FOR_S = 20.0
TESTING = "batchproof.plugin.testing"  # imports torch


def pytest_addoption(parser: pytest.Parser) -> None:
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
        f"{len(DEFAULT_MODELS)}, {len(THREE_MODELS)} of them without --engine, or all with the profile "
        "thorough), all, or a causal-LM checkpoint by path or hub name (owner/name)",
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
        help="take [[expected_failures]] (test, reason, link) from FILE. They are run; one that passes "
        "fails the run. A test must be there, before -k and -m, unless its file, or its engine, "
        "model and parameters, were not asked for",
    )
    group.addoption(
        "--diagnose-for",
        type=float,
        default=DIAGNOSE_FOR_S,
        metavar="S",
        help="seconds to look for the cause of a failure; 0: not at all (default: %(default)g)",
    )
    group.addoption(declared.SERVES, action="append", metavar="MODEL", help=declared.HELP)
    group.addoption(isolation.OPTION, action=BooleanOptionalAction, default=None, help=isolation.HELP)
    outputs.add_options(group)
    group.addoption(deselection.ONE, action="append", default=[], metavar="ID", help=deselection.HELP)
    text = f"the configuration (default: {OWN}, here or above)"
    group.addoption(CONFIG, dest=DEST, metavar="FILE", help=text)
    group.addoption(
        NO_CONFIG, dest=DEST, action="store_const", const=NONE, help="read no configuration"
    )
    group.addoption(
        "--engine-time-limit",
        type=float,
        metavar="S",
        help="seconds after which one call of an engine counts as hung (default: "
        f"{DEFAULT_TIME_LIMIT_S:g}; of a round of a benchmark {bench_options.ROUND_LIMIT_S:g})",
    )
    bench_options.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Resolves the options and registers the plugins that they ask for. Raises `pytest.UsageError`."""
    configure_late(config)
    isolation.begin(config)
    config.pluginmanager.register(problems.Problems(), "batchproof-problems")
    try:
        _configure(config)
    except (UsageError, pytest.UsageError) as error:
        problems.report(config, str(error))


def _configure(config: pytest.Config) -> None:
    asked = outputs.resolve_outputs(config)
    limit_s = config.getoption("--diagnose-for")
    if not 0 <= limit_s <= 3600:
        raise UsageError(f"--diagnose-for is {limit_s:g}, but must be 0 to 3600 seconds")
    if profile := config.getoption("--hypothesis-profile"):  # Hypothesis loads it after this
        import_module("batchproof.plugin.profiles").require_profile(profile)
    if not isolation.has_workers(config) and TESTING not in sys.modules:  # the first in this process
        gc.disable()  # what is imported and collected stays; `testing` enables it afterwards
    config.stash[SELECTION] = selection = select(config)
    declared.declare(config, selection, asked.verdict)
    known_failures = read_known_failures(config.getoption("--xfails"))
    if not isolation.has_workers(config):
        import_module(TESTING).begin(config, selection)
        if selection.bench is not None:
            import_module("batchproof.plugin.benchmarks").register(config, selection.bench)
    config.pluginmanager.register(KnownFailures(known_failures), "batchproof-xfails")
    recorder.register(config, asked)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Returns the lines that name engines, models, device, dtype and known failures; none in a worker
    that found a problem before it knew them."""
    selection = config.stash.get(SELECTION, None)
    if selection is None:
        return []
    xfails, configured = config.getoption("--xfails"), config.stash.get(CONFIGURED, None)
    return [
        *([f"batchproof: configured in {configured}"] if configured else []),
        "batchproof: engines " + ", ".join(spec.name for spec in selection.engines),
        "batchproof: models " + ", ".join(selection.model_names),
        f"batchproof: device {selection.device}, dtype {selection.dtype}, torch {version('torch')}, "
        f"{_threads(selection)}",
        *([f"batchproof: computed in {selection.precision}"] if str(selection.precision) else []),
        *([f"batchproof: known failures from {xfails}"] if xfails else []),
    ]


def _threads(selection: Selection) -> str:
    """Returns the threads of torch; a controller has none, and its workers choose for themselves."""
    torch = sys.modules.get("torch")
    number = selection.num_threads if torch is None else torch.get_num_threads()
    return "torch's own number of threads" if number is None else f"{number} thread(s)"
