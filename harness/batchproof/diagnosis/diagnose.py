"""Names the most likely cause of a failure, with the evidence. It never changes a verdict.

Three sources, the strongest first:

1. the broken rule itself, where it names the cause (a cap, an EOS, an order, a lost block, a hang);
2. counterfactual references: the mistake whose computation gives the engine's very answer;
3. reruns: alone, fresh, with other neighbours, other limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from batchproof.api import FinishReason
from batchproof.diagnosis.by_promise import BY_PROMISE
from batchproof.diagnosis.explain import explain, rounding_explains
from batchproof.diagnosis.explanation import Explanation
from batchproof.diagnosis.hangs import explain_hang
from batchproof.diagnosis.rerunner import Call, OutOfTimeError, Rerunner
from batchproof.diagnosis.reruns import Reruns, cause_by_reruns, rerun
from batchproof.diagnosis.symptoms import Symptom, symptoms_of
from batchproof.diagnosis.trace_evidence import fed_too_early, streamed_wrongly, whose_eos
from batchproof.findings.causes import Cause, Diagnosis
from batchproof.findings.failure import Failure, Scene
from batchproof.findings.finding import Rule
from batchproof.findings.finding_text import headline
from batchproof.promises import Promise
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

TIME_LIMIT_S = 20.0

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


def diagnose(trial: Trial, failure: Failure, seconds: float = TIME_LIMIT_S) -> Diagnosis:
    """Returns the most likely cause of the failure, found within about `seconds`.

    An engine call that has begun is not cut short, so the limit may be exceeded by one call.
    """
    rerunner = Rerunner(trial, seconds)
    is_hang = failure.rule is Rule.HANG
    try:
        if is_hang:
            return explain_hang(rerunner, failure)
        return _by_rule(failure) or _investigate(rerunner, failure)
    except OutOfTimeError:
        if is_hang:
            return Diagnosis(Cause.LIVENESS, headline(failure.finding))
        return Diagnosis(Cause.UNKNOWN, f"no cause was found within {seconds:g} s")


def _by_rule(failure: Failure) -> Diagnosis | None:
    """Returns the cause where the broken rule names it without a rerun, else None."""
    cause = failure.finding.cause
    if cause is None and failure.promise in ABOUT_BEHAVIOUR:
        cause = BY_PROMISE[failure.promise]
    if cause is None and failure.rule in (Rule.RAISED, Rule.UNREADABLE):
        is_about = failure.promise in (Promise.P12, Promise.P13)
        cause = BY_PROMISE[failure.promise] if is_about else Cause.CRASH
    if cause is Cause.CRASH:  # the headline says what was raised; the frames, innermost last, where
        frames = failure.finding.facts.get("frames")
        where = frames[-1] if isinstance(frames, tuple) and frames else "an unknown place"
        return Diagnosis(cause, f"it was raised at {where}")
    return None if cause is None else Diagnosis(cause, headline(failure.finding))


def _investigate(rerunner: Rerunner, failure: Failure) -> Diagnosis:
    found = _wrong_answer(rerunner, failure)
    if found is None:
        return _without_a_wrong_answer(failure, rerunner.trial.promise)
    calls, symptom = found
    call = calls[symptom.call]
    right, _ = rerunner.trial.oracle.expected(symptom.request)
    delay = rerunner.trial.scheduling_delay
    at_once = streamed_wrongly(call, symptom, right, delay) or fed_too_early(call, symptom)
    if at_once is not None:
        return at_once
    if not symptom.is_content or failure.promise in (Promise.P3, Promise.P14):
        return _wrong_end(rerunner, failure, calls, symptom)
    reruns = rerun(rerunner, calls, symptom)
    if reruns.is_repeatable is False:
        return Diagnosis(Cause.RACE, "the same calls give different answers", tuple(reruns.facts))
    explanation = explain(rerunner, calls, symptom, bool(reruns.is_right_alone))
    rounding = None if explanation else rounding_explains(rerunner, calls, symptom)
    return _named(failure, calls, symptom, reruns, explanation, rounding)


def _wrong_answer(rerunner: Rerunner, failure: Failure) -> tuple[Sequence[Call], Symptom] | None:
    """Reruns the failure. Returns the calls and a wrong answer, preferably one of the failed request;
    None if every answer is right."""
    for runs in _workloads_to_rerun(failure.scene):
        calls = rerunner.run(runs)
        if calls is None:
            continue
        symptoms = symptoms_of(calls, rerunner.trial.oracle)
        symptoms.sort(
            key=lambda s: (not s.is_content, s.request.request_id != failure.finding.request_id)
        )
        if symptoms:
            return calls, symptoms[0]
    return None


def _workloads_to_rerun(scene: Scene) -> Iterator[list[Workload]]:
    """Yields the failed runs, first through `generate`, which can return logits, then the runs that
    they were compared with."""
    for runs in (scene.runs, scene.other):
        workloads = [run.workload for run in runs]
        if not workloads:
            continue
        if any(each.needs_stepping for each in workloads) and not any(
            each.aborts for each in workloads
        ):
            yield [each.together() for each in workloads]
        yield workloads


def _without_a_wrong_answer(failure: Failure, tested: Promise) -> Diagnosis:
    """Names a cause when all answers are within rounding of the right one, or no rerun succeeded."""
    what = headline(failure.finding)
    if tested is Promise.P15:
        text = "it answers rightly while no other engine is alive"
        return Diagnosis(Cause.SIDE_EFFECT, text, (what,))
    if failure.promise in (Promise.P1, Promise.P5, Promise.P8) and failure.rule is Rule.NEAR_TIES:
        return Diagnosis(Cause.NEAR_TIE, what)
    if failure.promise in (Promise.P1, Promise.P5, Promise.P8, Promise.P16):
        return Diagnosis(Cause.RACE, "rerun on fresh engines, every answer is right")
    return Diagnosis(BY_PROMISE.get(failure.promise, Cause.UNKNOWN), what)


def _wrong_end(
    rerunner: Rerunner, failure: Failure, calls: Sequence[Call], symptom: Symptom
) -> Diagnosis:
    """Names a cause for right tokens that are too many or too few, or have the wrong finish reason."""
    cause = BY_PROMISE.get(failure.promise, Cause.CAP)
    if failure.promise in (Promise.P1, Promise.P5, Promise.P8):
        cause = Cause.CAP
    evidence = []
    completion = calls[symptom.call].completion(symptom.request.request_id)
    if completion is not None:
        sharing = [
            r.request_id
            for r in calls[symptom.call].workload.requests
            if r.max_new_tokens == len(completion.token_ids) and r is not symptom.request
        ]
        if sharing and len(completion.token_ids) != symptom.request.max_new_tokens:
            evidence.append(
                f"{len(completion.token_ids)} is the cap of {', '.join(map(repr, sharing))}"
            )
        if completion.finish_reason is FinishReason.STOP and cause is Cause.CAP:
            cause = Cause.EOS
            evidence += whose_eos(calls[symptom.call], symptom.request, completion.token_ids[-1:])
    found = rerun(rerunner, calls, symptom)
    found.movers.clear()  # the end depends on the tokens: a change of those says nothing about it
    by_reruns = cause_by_reruns(found, symptom, calls)
    if by_reruns is not None and by_reruns[0] in (Cause.PREEMPTION, Cause.STALE, Cause.RACE):
        return Diagnosis(*by_reruns, (*evidence, *found.facts))
    return Diagnosis(cause, headline(failure.finding), (*evidence, *found.facts))


def _narrowed(cause: Cause, reruns: Reruns) -> Cause:
    """Replaces a general cause by chunks or preemption if the answer is wrong only with those."""
    if cause not in (Cause.ADDRESSING, Cause.FEED):
        return cause
    if reruns.is_right_with_large_pool:
        return Cause.PREEMPTION
    return Cause.CHUNK if reruns.is_right_with_whole_prompts else cause


def _named(
    failure: Failure,
    calls: Sequence[Call],
    symptom: Symptom,
    reruns: Reruns,
    explanation: Explanation | None,
    rounding: float | None,
) -> Diagnosis:
    if explanation is not None:
        words = f"{explanation.mistake.text} (request {symptom.request.request_id!r})"
        cause = _narrowed(explanation.mistake.cause, reruns)
        return Diagnosis(cause, words, (explanation.words(), *reruns.facts))
    by_reruns = cause_by_reruns(reruns, symptom, calls)
    none = "no mistake of the list gives this answer"
    if rounding is not None and 1e-3 < rounding < (0.05 if reruns.is_right_alone else 3.0):
        text = "the logits are off by no more than rounding to bfloat16 would make them"
        return Diagnosis(Cause.PRECISION, text, (f"{rounding:.2g} times as much", *reruns.facts))
    if by_reruns is not None:
        return Diagnosis(*by_reruns, (none, *reruns.facts))
    if failure.promise in (Promise.P2, Promise.P12, Promise.P13):
        text = headline(failure.finding)
        return Diagnosis(BY_PROMISE[failure.promise], text, (none, *reruns.facts))
    return Diagnosis(Cause.UNKNOWN, none, tuple(reruns.facts))
