"""The outcome of each requirement, and the promises that outcomes leave open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from batchproof.records.journal import JournalEntry
from batchproof.records.trial_record import TrialRecord
from batchproof.records.verdict import RequirementOutcome
from batchproof.requirements.sets import RequirementSet


@dataclass(frozen=True)
class Outcomes:
    """Outcomes by requirement id. By promise: how many of its requirements were not run, and how many
    others say nothing of it."""

    scored: Mapping[str, RequirementOutcome]
    unscored: Mapping[str, RequirementOutcome]
    not_run: Mapping[str, int]
    undecided: Mapping[str, int]


def outcomes_of(entries: Iterable[JournalEntry], asked: RequirementSet | None) -> Outcomes:
    """Returns the outcomes of the set's requirements, none left out, and of what it lacks. Without a
    set all that were met are scored."""
    found = [(each.record, _outcome(each.outcome, each.record)) for each in entries if each.record]
    met = {record.requirement: (record, outcome) for record, outcome in found if outcome}
    counted = {name for name, (record, _) in met.items() if record.is_scored}
    scored: dict[str, RequirementOutcome] = dict.fromkeys(asked.by_id if asked else met, "not run")
    not_run, undecided = Counter[str](), Counter[str]()
    for name in asked.by_id if asked else met:
        if name in counted:
            record, scored[name] = met[name]
            promises = (asked.by_id[name].promise,) if asked else record.promises
            undecided.update(each for each in promises if _says_nothing(each, scored[name], record))
        elif asked:
            not_run[asked.by_id[name].promise] += 1
    unscored = {name: outcome for name, (_, outcome) in met.items() if name not in counted}
    return Outcomes(scored, unscored, not_run, undecided)


def _outcome(outcome: str, record: TrialRecord) -> RequirementOutcome | None:
    """Returns the outcome of a test; None if it was skipped since a curated case is about other
    models."""
    if outcome == "passed" or record.is_stale:
        return "inadequate" if record.is_inadequate else "held"
    if outcome == "skipped":
        return "no capability" if record.lacks else "refused" if record.refused else None
    if record.is_own_failure:
        return "error"
    return "known" if outcome == "known" else "failed"


def _says_nothing(promise: str, outcome: RequirementOutcome, record: TrialRecord) -> bool:
    """Returns whether the test of a promise was ended by the harness, or by another promise that
    broke."""
    return outcome == "error" or (record.failure is not None and record.failure.promise != promise)
