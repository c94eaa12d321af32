"""The cause that a broken rule shows by itself: not the test, which may be about something else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from batchproof.api import Completion, Request
from batchproof.checks.answers import check_structure
from batchproof.checks.broken import BrokenPromise
from batchproof.diagnosis.rerunner import Rerunner
from batchproof.diagnosis.symptoms import is_bad
from batchproof.findings.causes import Cause, Diagnosis
from batchproof.findings.failure import Failure
from batchproof.findings.finding import Rule
from batchproof.findings.finding_text import headline
from batchproof.oracle.oracle import Oracle
from batchproof.requirements.promises import Promise
from batchproof.workload.workloads import Workload

# The cause that goes with a broken promise, where nothing more is known.
BY_PROMISE: Mapping[Promise, Cause] = {
    Promise.P2: Cause.CAP,
    Promise.P3: Cause.EOS,
    Promise.P4: Cause.ORDER,
    Promise.P6: Cause.MASK,
    Promise.P7: Cause.POSITION,
    Promise.P9: Cause.SCHEDULING,
    Promise.P10: Cause.LIVENESS,
    Promise.P11: Cause.ACCOUNTING,
    Promise.P12: Cause.INPUT,
    Promise.P13: Cause.CANCEL,
    Promise.P14: Cause.STREAM,
    Promise.P15: Cause.SIDE_EFFECT,
    Promise.P16: Cause.RACE,
    Promise.P17: Cause.SPECULATION,
    Promise.P18: Cause.LOGPROBS,
    Promise.P19: Cause.SAMPLING,
    Promise.P20: Cause.SHAPES,
}
# Promises about behaviour, which wrong tokens cannot break.
ABOUT_BEHAVIOUR = {
    Promise.P3,
    Promise.P4,
    Promise.P9,
    Promise.P10,
    Promise.P11,
    Promise.P14,
    Promise.P15,
}
COMPARED = {Rule.RELATION, Rule.RELATION_LOGITS}


def by_rule(failure: Failure) -> Diagnosis | None:
    """Returns the cause where the broken rule names it without a rerun, else None.

    A rule that is counted for another promise was met by a test of that: reruns look further.
    """
    cause, is_own = failure.finding.cause, failure.promise is failure.rule.promise
    if cause is None and is_own and failure.promise in ABOUT_BEHAVIOUR:
        cause = BY_PROMISE[failure.promise]
    return None if cause is None else Diagnosis(cause, cause.value)  # the headline says the rest


def cause_shown(failure: Failure) -> Cause | None:
    """Returns the cause that goes with the rule or, where two runs were compared, with what differs
    between them."""
    return BY_PROMISE.get(failure.promise if failure.rule in COMPARED else failure.rule.promise)


def cause_of_end(request: Request, completion: Completion) -> Cause:
    """Returns CAP or EOS: the rule that the end of the answer breaks."""
    try:
        check_structure(request, completion)
    except BrokenPromise as error:
        return BY_PROMISE.get(error.finding.rule.promise, Cause.CAP)
    return Cause.CAP


def cause_of_exception(rerunner: Rerunner, failure: Failure) -> Diagnosis:
    """Returns CANCEL or INPUT if the engine raises nothing without aborts or bad requests, else CRASH.

    Raises `OutOfTimeError`.
    """
    text = headline(failure.finding)
    runs = [run.workload for run in failure.scene.runs]
    oracle = rerunner.trial.oracle
    changes = (
        (Cause.CANCEL, "with nothing aborted", [replace(each, aborts=()) for each in runs]),
        (Cause.INPUT, "without the bad request", [_good(each, oracle) for each in runs]),
    )
    for cause, words, changed in changes:
        asked = [each for each in changed if each.requests]
        if changed != runs and (not asked or rerunner.run(asked) is not None):
            return Diagnosis(cause, text, (f"{words} it raises nothing",))
    frames = failure.finding.facts.get("frames")  # innermost last; the headline says what was raised
    where = frames[-1] if isinstance(frames, tuple) and frames else "an unknown place"
    return Diagnosis(Cause.CRASH, f"it was raised at {where}")


def _good(workload: Workload, oracle: Oracle) -> Workload:
    """Returns the workload without bad requests and without the later ones of a live id."""
    first = {each.request_id: each for each in reversed(workload.requests)}.values()
    kept = [r for r in workload.requests if any(r is each for each in first) and not is_bad(r, oracle)]
    return workload if len(kept) == len(workload.requests) else workload.with_requests(kept)
