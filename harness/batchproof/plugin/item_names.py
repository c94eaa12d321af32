"""Names a test as a person types it on pytest's command line, which `again:` prints, and without its
engine, as requirements have it. A list of expected failures may use both.
"""

from __future__ import annotations

from shlex import quote

import pytest

from batchproof.places import CHECKOUT, SUITE
from batchproof.workload.workloads import DEFAULT_TIME_LIMIT_S

INSTALLED_SUITE = "batchproof.suite."
AGAIN_OPTIONS = (
    "--config",
    "--engine",
    "--model",
    "--device",
    "--dtype",
    "--compute-dtype",
    "--kv-cache-dtype",
    "--engine-time-limit",
)


def name_of(item: pytest.Item) -> str:
    """Returns the node id, if it is a path from the root of the run.

    The installed suite is outside that root: its tests are named by module, for `--pyargs`. Tests of
    a checkout that is used from another folder are named by absolute path.
    """
    _, separator, function = item.nodeid.partition("::")
    if CHECKOUT is None and item.path.is_relative_to(SUITE):
        return f"{INSTALLED_SUITE}{item.path.stem}{separator}{function}"
    if not item.path.is_relative_to(item.config.rootpath):
        return f"{item.path}{separator}{function}"
    return item.nodeid


def trial_of(item: pytest.Item) -> tuple[str, str] | None:
    """Returns engine and model of a conformance test; None if it is another test."""
    trial = getattr(getattr(item, "callspec", None), "params", {}).get("trial")
    return (trial[0].name, trial[1]) if isinstance(trial, tuple) else None


def requirement_id(item: pytest.Item) -> str:
    """Returns `module::function[model-...]`, which is the same for all engines; of a test that is no
    conformance test, the name."""
    trial = trial_of(item)
    if trial is None:
        return name_of(item)
    _, separator, function = item.nodeid.partition("::")
    return f"{item.path.stem}{separator}{function.replace('-'.join(trial), trial[1], 1)}"


def again(item: pytest.Item) -> str:
    """Returns the line with the command that runs the test again."""
    options = []
    for name in AGAIN_OPTIONS:
        value = item.config.getoption(name)
        values = value if isinstance(value, list) else [value]
        options += [
            f"{name}={quote(str(each))}"
            for each in values
            if each not in (None, "auto", DEFAULT_TIME_LIMIT_S)
        ]
    name = name_of(item)
    pyargs = ["--pyargs"] if name.startswith(INSTALLED_SUITE) else []
    return " ".join(["again: pytest", *pyargs, quote(name), *options])
