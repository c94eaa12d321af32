"""`--requirements SET`: what the set lacks is run unscored, and fails nothing."""

import pytest

from batchproof.errors import UsageError
from batchproof.places import SUITE
from batchproof.plugin.items import requirement_id
from batchproof.records.trial_record import TrialRecord
from batchproof.requirements.sets import CURRENT, RequirementSet, load, names

SET, ONE = "--requirements", "--requirement"
ASKED = pytest.StashKey[RequirementSet | None]()


def add_options(group: pytest.OptionGroup) -> None:
    """Adds `--requirements` and `--requirement`."""
    group.addoption(
        SET,
        metavar="SET",
        help=f"judge by a dated set of requirements, {' or '.join(names())}: tests that it lacks run "
        "unscored, and a requirement that is not run fails the run as incomplete (default: current, "
        "which is no set)",
    )
    group.addoption(
        ONE,
        action="append",
        default=[],
        metavar="ID",
        help="run this requirement alone, repeatable: module::function[model-...]",
    )


def load_requirements(config: pytest.Config) -> None:
    """Loads the set that the run is scored by. Raises `UsageError`."""
    name = config.getoption(SET)
    config.stash[ASKED] = asked = load(name) if name not in (None, CURRENT) else None
    if asked is not None and not config.getoption("--engine"):
        raise UsageError(f"{SET} {name} needs an engine: name one with --engine")


def is_scored(item: pytest.Item) -> bool:
    """Returns whether the outcome of a conformance test counts."""
    asked = item.config.stash.get(ASKED, None)
    is_ours = item.path.is_relative_to(SUITE)
    return asked is None or (is_ours and requirement_id(item) in asked.by_id)


def forgive(report: pytest.TestReport, record: TrialRecord, asked: RequirementSet | None) -> None:
    """Lets a failed test that is not scored fail nothing."""
    if asked is not None and not record.is_scored:
        headline = str(report.longrepr).partition("\n")[0]
        report.outcome = "skipped"
        report.wasxfail = f"unscored, not in {asked.name}: {headline}"
