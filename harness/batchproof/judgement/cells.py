"""Judges the cells of a matrix."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

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
# Takes a judged cell, the outcomes of its requirements, and what its page is made of, if it has any.
Keep = Callable[[CellRecord, Outcomes, EngineVerdict | None], None]


def judge_cell(cell: Cell, session: Session, issues: Sequence[KnownIssue], keep: Keep) -> None:
    """Runs the suite on one configuration and keeps what was found, of a run that is stopped as well.
    Where an axis was not met, what held proves nothing: only what broke is left."""
    start = time.monotonic()
    asked = partial(CellRecord, cell.settings, cell.folder, cell.engine, tuple(session.options))

    def conclude(verdict: EngineVerdict, found: Sequence[JournalEntry], has_ended: bool) -> None:
        promises, outcomes = verdict.promises, outcomes_in(cell, verdict)
        unmet = cell.unmet(verdict.totals.counters)
        if has_ended and unmet:
            promises = {name: each for name, each in promises.items() if each.failed or each.known}
            outcomes = {name: each for name, each in outcomes.items() if each in BREAKS}
        known = [each for each in issues if each.is_of(verdict.release, cell.engine)]
        failed = [each.record for each in found if each.outcome == "failed" and each.record is not None]
        record = asked(
            minutes=(time.monotonic() - start) / 60,
            num_requests=verdict.totals.num_requests,
            promises=promises,
            failed={cell.without_model(each.requirement): _what(each, known) for each in failed},
            why_not=unmet if has_ended else "the run did not come to its end",
        )
        keep(record, outcomes, verdict)

    if not session.judge(issues, conclude):
        keep(asked(minutes=(time.monotonic() - start) / 60, why_not=UNASKED), {}, None)


def _what(record: TrialRecord, known: Sequence[KnownIssue]) -> str:
    """Returns what is known of a failure, or which promise it broke."""
    if issue := issue_of(record, known):
        return issue.title
    return f"{Promise[record.failure.promise]} is broken" if record.failure else "the harness failed"


def outcomes_in(cell: Cell, verdict: EngineVerdict) -> Outcomes:
    """Returns the outcomes of a cell by requirement, as they are compared to those on other models."""
    return {cell.without_model(name): outcome for name, outcome in verdict.outcomes.items()}
