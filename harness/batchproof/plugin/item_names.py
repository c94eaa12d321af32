"""Names a test as a person types it on pytest's command line. `again:` prints it, and a list of
expected failures may use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


def again(item: pytest.Item) -> str:
    """Returns the line with the command that runs the test again."""
    options = [f"{name}={quote(value)}" for name, value in options_given(item.config, AGAIN_OPTIONS)]
    name = name_of(item)
    pyargs = ["--pyargs"] if name.startswith(INSTALLED_SUITE) else []
    return " ".join(["again: pytest", *pyargs, quote(name), *options])


def options_given(config: pytest.Config, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields each of the options that has a value other than its default, once for each value."""
    for name in names:
        value = config.getoption(name)
        for each in value if isinstance(value, list) else [value]:
            if each not in (None, "auto", DEFAULT_TIME_LIMIT_S):
                yield name, str(each)
