"""Judges the cells of a matrix, and asks requirements alone."""

import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from batchproof.errors import Interrupt
from batchproof.judgement.axes import MODEL, Cell
from batchproof.judgement.output import write_verdict
from batchproof.judgement.suite_session import ENDED, Session, suite_options
from batchproof.plugin.deselection import ONE
from batchproof.records.journal import entries
from batchproof.records.matrix import BREAKS, CellRecord
from batchproof.records.trial_record import TrialRecord
from batchproof.records.verdict import VERDICT, EngineVerdict, RequirementOutcome
from batchproof.requirements.issues import KnownIssue
from batchproof.requirements.promises import Promise
from batchproof.requirements.verdict_of_journal import group_by_issue

DEPTH = 3  # of a cell's page below the folder of all verdicts: matrices, the matrix, the cell
UNDIAGNOSED = "--diagnose-for=0"
DEFAULT_OPTIONS = f"{MODEL}=llama-hash --hypothesis-profile=quick"


@dataclass(frozen=True)
class CellTask:
    """A cell to judge."""

    cell: Cell
    folder: str
    given: str  # of --pytest
    jobs: int
    issues: tuple[KnownIssue, ...]

    def session(self, folder: Path, *more: str) -> Session:
        options = suite_options(self.cell.engine, self.given or DEFAULT_OPTIONS)
        if self.cell.model is not None:
            options = [each for each in options if not each.startswith(MODEL)]
        return Session(self.cell.engine, [*options, *self.cell.options, *more], self.jobs, folder)


@dataclass(frozen=True)
class CellResult:
    """A judged cell: its line, and the outcomes of its requirements. `stopped`: by what, in the
    middle."""

    record: CellRecord
    outcomes: Mapping[str, RequirementOutcome]
    stopped: Interrupt | None = None


def judge_cell(task: CellTask, folder: Path) -> CellResult:
    """Runs the suite on one configuration, and writes its pages into the folder. Where an axis was not
    met, nothing is judged that held. Of a run that is stopped, the result holds what was found. Raises
    `Interrupt` if that is nothing."""
    with TemporaryDirectory(prefix="batchproof-") as scratch:
        start = time.monotonic()
        session = task.session(Path(scratch))
        has_ended, stopped = False, None
        try:
            has_ended = session.run() in ENDED
        except Interrupt as interrupt:
            stopped = interrupt
        minutes = (time.monotonic() - start) / 60
        cell = task.cell
        record = CellRecord(cell.settings, task.folder, cell.engine, tuple(session.options), minutes)
        found = entries(session.journal)
        if not found:
            if stopped is not None:
                raise stopped
            why = "no test was run: the engine could not be asked in this configuration"
            return CellResult(replace(record, why_not=why), {})
        verdict = session.verdict_of(found, has_ended, task.issues)
        known = [each for each in task.issues if each.is_of(verdict.release, cell.engine)]
        failed = {
            cell.without_model(each.record.requirement): issue.title if issue else _promise(each.record)
            for issue, members in group_by_issue(found, known)
            for each in members
            if each.record is not None
        }
        record = replace(
            record,
            num_requests=verdict.totals.num_requests,
            promises=verdict.promises,
            failed=failed,
            why_not="" if has_ended else "the run did not come to its end",
        )
        shutil.rmtree(folder, ignore_errors=True)
        write_verdict(verdict, folder, DEPTH)
        result = CellResult(record, outcomes_in(cell, verdict), stopped)
        unmet = cell.unmet(verdict.totals.counters)
        return as_unmet(result, unmet) if has_ended and unmet else result


def as_unmet(result: CellResult, why_not: str) -> CellResult:
    """Returns what is left of a cell in which an axis was not met: what broke. What held proves
    nothing."""
    record, outcomes = result.record, result.outcomes
    promises = {name: each for name, each in record.promises.items() if each.failed or each.known}
    record = replace(record, promises=promises, why_not=why_not)
    broken = {name: outcome for name, outcome in outcomes.items() if outcome in BREAKS}
    return CellResult(record, broken)


def _promise(record: TrialRecord) -> str:
    """Returns what is said of a failure that nothing is known of."""
    return f"{Promise[record.failure.promise]} is broken" if record.failure else "the harness failed"


def asked_alone(task: CellTask, requirements: Collection[str]) -> dict[str, RequirementOutcome]:
    """Asks some requirements in one configuration, without any other test, and returns their outcomes;
    none if the engine could not be asked."""
    with TemporaryDirectory(prefix="batchproof-") as name:
        named = [f"{ONE}={task.cell.on_model(each)}" for each in requirements]
        session = task.session(Path(name), *named, UNDIAGNOSED)
        session.run()
        if not session.verdict.is_file():
            return {}
        outcomes = outcomes_in(task.cell, VERDICT.read(session.verdict))
        return {each: outcomes[each] for each in requirements if each in outcomes}


def outcomes_in(cell: Cell, verdict: EngineVerdict) -> dict[str, RequirementOutcome]:
    return {cell.without_model(name): outcome for name, outcome in verdict.outcomes.items()}
