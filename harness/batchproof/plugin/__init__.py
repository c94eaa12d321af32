"""pytest as the interface. Asleep until a run has something to do with it.

pytest imports this module in every run on a machine where the package is installed. It imports neither
torch nor the rest of the package, adds no option and prints nothing. `batchproof.plugin.active`
is registered, and with it everything else, when one of its options is given that no other plugin or
conftest.py has taken, or when the suite or its benchmarks are among the arguments.

The entry point has the module's name, so that a run that names the plugin as well registers it once.
"""

from argparse import ArgumentError
from collections.abc import Generator
from importlib import import_module
from pathlib import Path

import pytest

from batchproof.cli.option_names import OPTIONS
from batchproof.places import BENCHMARKS, SUITE

ACTIVE, CONFIGURING = "batchproof.plugin.active", "batchproof.plugin.configuring"
MARKERS = (
    "promise(id): the promise a conformance test checks, P1 to P23",
    "needs(*capabilities): skipped, by name, for engines without them",
    "shows(*capabilities): as needs, but an engine without a trace runs the test as well, and the "
    "summary says that they are not shown to have happened",
    "one_model: the first model that the engine serves is enough for this test",
    "three_models: three models that differ are enough, unless --model names others",
    "quick_models: two models that are quick to compute are enough, one of which has a window, unless "
    "--model names others",
    "long_model: a model with thousands of positions and answers in integers, unless --model names "
    "others or the engine refuses it",
    "also_on(name): on this embedded model as well, unless --model names others",
    "on_model(name): this embedded model alone, and none if --model names others",
    "first_served: put here by the plugin, where one_model or long_model has chosen the model",
)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers: a module that uses them is imported before its tests are seen."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    """Activates the plugin if the command line concerns it, once every conftest.py has added its
    options, and adds what the configuration file says."""
    result = yield
    known, unknown = parser.parse_known_and_unknown_args(args)
    is_asked = any(each.partition("=")[0] in OPTIONS for each in unknown)
    # A worker of xdist is given the controller's options as values, not as arguments.
    is_worker = hasattr(early_config.option, "engine_time_limit")
    if is_asked or is_worker or any(map(_is_of_suite, known.file_or_dir)):
        _awaken(early_config, parser)
        if not is_worker:
            import_module(CONFIGURING).configure(early_config, parser, args)
    return result


def _is_of_suite(argument: str) -> bool:
    name = argument.partition("::")[0]
    is_module = f"{name}.".startswith(("batchproof.suite.", "batchproof.benchmarks."))
    return is_module or any(map(Path(name).resolve().is_relative_to, (SUITE, BENCHMARKS)))


def _awaken(config: pytest.Config, parser: pytest.Parser) -> None:
    """Registers the plugin. Raises `pytest.UsageError` if a conftest.py has taken an option's name."""
    import_module(ACTIVE)  # what goes wrong here is no clash
    try:
        config.pluginmanager.import_plugin(ACTIVE)
        parser.parse_known_and_unknown_args([])  # older releases of pytest see a clash only now
    except (ValueError, ArgumentError) as error:
        raise pytest.UsageError(
            f"Batchproof's options clash with those of this project's conftest.py ({error}): "
            f"use `batchproof test`, which reads no conftest.py"
        ) from None
