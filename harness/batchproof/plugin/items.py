"""Names a test as a person types it on pytest's command line. `again:` prints it, and a list of
expected failures may use it."""

from collections.abc import Iterable, Iterator
from shlex import quote

import pytest

from batchproof.places import CHECKOUT, SUITE
from batchproof.records.decode import decode, encode
from batchproof.records.trial_record import TrialRecord

INSTALLED_SUITE = "batchproof.suite."
ANY_MODEL = "any"  # in a requirement id
AGAIN_OPTIONS = (
    *("--config", "--engine", "--model", "--device", "--dtype", "--compute-dtype"),
    *("--kv-cache-dtype", "--engine-time-limit", "--serves"),
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
    """Returns the line with the command that runs the test again, in the folder of this run."""
    options = [f"{name}={quote(value)}" for name, value in options_given(item.config, AGAIN_OPTIONS)]
    name = name_of(item)
    if CHECKOUT and name.startswith(str(SUITE)):  # a path that pages of verdicts leave out
        requirement = f"--requirement={quote(requirement_id(item))}"
        return " ".join(["again: python -m batchproof test", *options, requirement])
    pyargs = ["--pyargs"] if name.startswith(INSTALLED_SUITE) else []
    return " ".join(["again: pytest", *pyargs, quote(name), *options])


def options_given(config: pytest.Config, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields each of the options that has a value other than its default, once for each value."""
    for name in names:
        value = config.getoption(name)
        for each in value if isinstance(value, list) else [value]:
            if each not in (None, "auto"):
                yield name, str(each)


ATTRIBUTE = "batchproof"  # of a report; xdist passes JSON values on
IDENTITY = pytest.StashKey[TrialRecord]()  # the record as far as it is known before the test's body


def attach_record(report: pytest.TestReport, record: TrialRecord) -> None:
    vars(report)[ATTRIBUTE] = encode(record)


def record_of(report: pytest.TestReport) -> TrialRecord | None:
    """Returns the record that the report carries; None for a test that is no conformance test, and for
    a phase that does not end its test."""
    carried = getattr(report, ATTRIBUTE, None)
    return None if carried is None else decode(TrialRecord, carried)


def is_conformance_test(item: pytest.Item) -> bool:
    """Returns whether the test asks for a `trial`."""
    return trial_of(item) is not None


def requirement_id(item: pytest.Item) -> str:
    """Returns the requirement id of a conformance test: that of the test without the engine. The model
    is `any` if the first that is served is enough."""
    assert isinstance(item, pytest.Function), "conformance tests are functions"
    trial = trial_of(item)
    assert trial is not None, "a conformance test asks for a trial"
    model = ANY_MODEL if item.get_closest_marker("first_served") else trial[1]
    pair = "-".join(trial).encode("unicode_escape").decode("ascii")  # as pytest does
    parameters = item.callspec.id.replace(pair, "", 1).removeprefix("-")
    function = item.nodeid.partition("[")[0].partition("::")[2]
    return f"{item.path.stem}::{function}[{'-'.join(filter(None, (model, parameters)))}]"
