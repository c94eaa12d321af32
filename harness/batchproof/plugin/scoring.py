"""`--requirements SET`: what the set lacks is run unscored, and fails nothing. `--requirement ID`: this
requirement alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from batchproof.errors import UsageError
from batchproof.places import SUITE
from batchproof.plugin import problems
from batchproof.plugin.left_out import keep
from batchproof.plugin.promise_table import record_of
from batchproof.plugin.requirement_ids import is_conformance_test, requirement_id
from batchproof.plugin.xfails import known_failure_of
from batchproof.requirements.sets import CURRENT, RequirementSet, load, names
from batchproof.validation.values import near

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


def register(config: pytest.Config) -> None:
    """Loads the set and registers the plugin that scores by it. Raises `UsageError`."""
    name = config.getoption(SET)
    config.stash[ASKED] = asked = load(name) if name not in (None, CURRENT) else None
    if asked is not None and not config.getoption("--engine"):
        raise UsageError(f"{SET} {name} needs an engine: name one with --engine")
    config.pluginmanager.register(Scoring(asked, config.getoption(ONE)), "batchproof-scoring")


def is_scored(item: pytest.Item) -> bool:
    """Returns whether the outcome of a conformance test counts."""
    asked = item.config.stash.get(ASKED, None)
    is_ours = item.path.is_relative_to(SUITE)
    return asked is None or (is_ours and requirement_id(item) in asked.by_id)


class Scoring:
    """The plugin in all processes of a run."""

    def __init__(self, asked: RequirementSet | None, chosen: Sequence[str]) -> None:
        self._asked = asked
        self._chosen = chosen

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselects all but the chosen requirements."""
        if not self._chosen:
            return
        by_id: dict[str, list[pytest.Item]] = {}
        for item in filter(is_conformance_test, items):
            by_id.setdefault(requirement_id(item), []).append(item)
        for each in self._chosen:
            if each not in by_id:
                hint = near(each, by_id, "`batchproof judge requirements show current`")
                problems.report(config, f"{ONE} {each!r} is none of this run; {hint}")
        kept = {item for each in self._chosen for item in by_id.get(each, ())}
        keep(config, items, kept.__contains__)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost: the report is complete
    def pytest_runtest_makereport(self, item: pytest.Item):  # type: ignore[no-untyped-def]
        """Lets a test that is not scored fail nothing, unless it was expected to fail."""
        report = yield
        if report.failed and is_conformance_test(item) and known_failure_of(item) is None:
            self._forgive(report)
        return report

    @pytest.hookimpl(optionalhook=True, trylast=True)  # its record is put there before
    def pytest_handlecrashitem(self, report: pytest.TestReport) -> None:
        """Lets one fail nothing whose worker is gone."""
        self._forgive(report)

    def _forgive(self, report: pytest.TestReport) -> None:
        record = record_of(report)
        if self._asked is not None and record is not None and not record.is_scored:
            headline = str(report.longrepr).partition("\n")[0]
            report.outcome = "skipped"
            report.wasxfail = f"unscored, not in {self._asked.name}: {headline}"
