"""Whether a verdict file says what its own outcomes add up to: others may have changed it."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from batchproof.errors import UsageError
from batchproof.records.table import PromiseCell
from batchproof.records.verdict import VERDICT, EngineVerdict, PromiseResult, RequirementOutcome
from batchproof.requirements import sets
from batchproof.requirements.verdict_of_journal import conclusion_of, result_of, undocumented_promises

LISTS = ("held", "broken", "differing", "untested")
# The field of `PromiseResult` that counts an outcome. Others it does not hold.
FIELDS: Mapping[RequirementOutcome, str] = {
    "held": "passed",
    "failed": "failed",
    "known": "known",
    "no capability": "no_cap",
    "not run": "not_run",
}


def consistent_verdict(path: Path) -> EngineVerdict:
    """Returns the verdict in the file. Raises `UsageError` if it contradicts its outcomes, or names
    a set that is not the released one."""
    verdict = VERDICT.read(path)
    problem = contradiction(verdict)
    if problem is not None:
        raise UsageError(f"{str(path)!r} contradicts itself: {problem}")
    return verdict


def contradiction(verdict: EngineVerdict) -> str | None:
    """Returns what is stated that cannot be, or None. Raises `UsageError` for an unknown set."""
    stamp = verdict.requirement_set
    asked = sets.load(stamp.name) if stamp else None
    if stamp and asked and asked.stamp != stamp:
        return (
            f"its requirement set {asked.name} has the digest {stamp.digest[:12]}, "
            f"but the released one {asked.digest[:12]}"
        )
    if asked and verdict.outcomes.keys() != asked.by_id.keys():
        return f"its outcomes are not those of the requirements of {asked.name}"
    if verdict.is_complete and "not run" in verdict.outcomes.values():
        return "it is stated to be complete, but requirements were not run"
    return _wrong_number(verdict, asked) or _wrong_conclusion(verdict)


def _wrong_number(verdict: EngineVerdict, asked: sets.RequirementSet | None) -> str | None:
    """Returns where the numbers of the promises are not those of the outcomes. Only a set states which
    promise a requirement decides: without one, the sums over all are compared."""
    broke = {each.requirement: each.failure.promise for each in verdict.failures if each.failure}
    stated, counted = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for name, outcome in verdict.outcomes.items():
        if outcome in FIELDS:
            is_failure = outcome in ("failed", "known")
            promise = broke.get(name) if is_failure else None
            decided = (promise or asked.by_id[name].promise) if asked else "all"
            counted[decided, FIELDS[outcome]] += 1
    for name, result in verdict.promises.items():
        for each in FIELDS.values():
            stated[name if asked else "all", each] += getattr(result, each)
    for key in sorted(stated.keys() | counted.keys()):
        if stated[key] != counted[key]:
            promise, what = key
            where = f"of {promise}" if asked else "of all promises"
            return f"{stated[key]} tests {where} are stated as {what}, but {counted[key]} outcomes are"
    return None


def _wrong_conclusion(verdict: EngineVerdict) -> str | None:
    """Returns which list or verdict is not what the promises add up to."""
    promises = _results_again(verdict)
    for name, each in verdict.promises.items():
        if each.verdict != promises[name].verdict:
            return f"{name} is stated as {each.verdict!r}, but is {promises[name].verdict!r}"
    conclusion = conclusion_of(promises, verdict.groups, verdict.is_complete)
    for field in LISTS:
        lists = getattr(verdict, field), getattr(conclusion, field)
        if lists[0] != lists[1]:
            stated, right = (", ".join(each) or "empty" for each in lists)
            return f"its list {field!r} is {stated}, but must be {right}"
    if verdict.verdict != conclusion.verdict:
        return f"its verdict is stated as {verdict.verdict!r}, but is {conclusion.verdict!r}"
    return None


def _results_again(verdict: EngineVerdict) -> Mapping[str, PromiseResult]:
    """Returns the results that the stated numbers and groups of failures lead to."""
    undocumented = undocumented_promises(verdict.groups)
    return {
        name: result_of(
            PromiseCell(each.verdict, each.passed, each.failed, known=each.known, no_cap=each.no_cap),
            name in undocumented,
            each.undecided,
            each.not_run,
        )
        for name, each in verdict.promises.items()
    }
