"""Judges the cells of a matrix."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from batchproof.judgement.axes import Cell
from batchproof.judgement.suite_session import Session
from batchproof.records.journal import JournalEntry
from batchproof.records.matrix import BREAKS, CellRecord
from batchproof.records.trial_record import TrialRecord
from batchproof.records.verdict import EngineVerdict, RequirementOutcome
from batchproof.requirements.issues import KnownIssue, issue_of
from batchproof.requirements.promises import Promise

UNASKED = "no test was run: the engine could not be asked in this configuration"
Outcomes = Mapping[str, RequirementOutcome]  # by requirement


@dataclass(frozen=True)
class CellResult:
    """A judged cell: its line, the outcomes of its requirements, and the verdict that its page is made
    of, which an earlier run may have written."""

    record: CellRecord
    outcomes: Outcomes
    verdict: EngineVerdict | None = None


def judge_cell(
    cell: Cell, session: Session, issues: Sequence[KnownIssue], keep: Callable[[CellResult], None]
) -> None:
    """Runs the suite on one configuration and keeps what was found, of a run that is stopped as well.
    Where an axis was not met, what held proves nothing: only what broke is left."""
    start = time.monotonic()

    def conclude(verdict: EngineVerdict, found: Sequence[JournalEntry], has_ended: bool) -> None:
        promises, outcomes = verdict.promises, outcomes_in(cell, verdict)
        unmet = cell.unmet(verdict.totals.counters)
        if has_ended and unmet:
            promises = {name: each for name, each in promises.items() if each.failed or each.known}
            outcomes = {name: each for name, each in outcomes.items() if each in BREAKS}
        known = [each for each in issues if each.is_of(verdict.release, cell.engine)]
        failed = [each.record for each in found if each.outcome == "failed" and each.record is not None]
        record = CellRecord(
            settings=cell.settings,
            folder=cell.folder,
            engine=cell.engine,
            options=tuple(session.options),
            minutes=(time.monotonic() - start) / 60,
            num_requests=verdict.totals.num_requests,
            promises=promises,
            failed={cell.without_model(each.requirement): _what(each, known) for each in failed},
            why_not=unmet if has_ended else "the run did not come to its end",
        )
        keep(CellResult(record, outcomes, verdict))

    if not session.judge(issues, conclude):
        minutes = (time.monotonic() - start) / 60
        options = tuple(session.options)
        record = CellRecord(cell.settings, cell.folder, cell.engine, options, minutes, why_not=UNASKED)
        keep(CellResult(record, {}))


def _what(record: TrialRecord, known: Sequence[KnownIssue]) -> str:
    """Returns what is known of a failure, or which promise it broke."""
    if issue := issue_of(record, known):
        return issue.title
    return f"{Promise[record.failure.promise]} is broken" if record.failure else "the harness failed"


def outcomes_in(cell: Cell, verdict: EngineVerdict) -> Outcomes:
    """Returns the outcomes of a cell by requirement, as they are compared to those on other models."""
    return {cell.without_model(name): outcome for name, outcome in verdict.outcomes.items()}
