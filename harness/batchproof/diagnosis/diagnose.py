"""Names the most likely cause of a failure, with the evidence. It never changes a verdict.

Three sources, the strongest first:

1. the broken rule itself, where it names the cause (a cap, an EOS, an order, a lost block, a hang);
2. counterfactual references: the mistake whose computation gives the engine's very answer;
3. reruns: alone, fresh, with other neighbours, other limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from batchproof.api import EngineConfig, FinishReason, Request
from batchproof.checks.answers import structure_findings
from batchproof.diagnosis.explain import evidence_of, explain, rounding_of
from batchproof.diagnosis.reruns import (
    Call,
    OutOfTimeError,
    Rerunner,
    Reruns,
    Symptom,
    Without,
    is_bad,
    only,
    symptoms_of,
)
from batchproof.findings.causes import Cause, Diagnosis
from batchproof.findings.finding import Failure, Scene
from batchproof.findings.finding_text import headline
from batchproof.findings.rules import CAUSE_OF_PROMISE, Replay, Rule
from batchproof.oracle.oracle import Oracle
from batchproof.requirements.promises import Promise
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

TIME_LIMIT_S = 20.0
HANG_TIME_LIMIT_S = 1.0
# Rules about the form of what comes back, which shows no mistake of the computation.
ABOUT_FORM = {
    *(Rule.RETURN_TYPE, Rule.COMPLETION_TYPE, Rule.COMPLETION_FIELD),
    *(Rule.STEP_TYPE, Rule.EVENT_TYPE, Rule.EVENT_FIELD, Rule.TRACE_TYPE),
}
# Causes that a rerun can show of an answer with right tokens and a wrong end.
BESIDE_ENDS = (Cause.PREEMPTION, Cause.STALE, Cause.RACE, Cause.CANCEL, Cause.INPUT)


def diagnose(trial: Trial, failure: Failure, limit_s: float = TIME_LIMIT_S) -> Diagnosis:
    """Returns the most likely cause of the failure, found within about `limit_s` seconds.

    An engine call that has begun is not cut short, so the limit may be exceeded by one call.
    """
    rerunner = Rerunner(trial, limit_s)
    try:
        if failure.rule is Rule.HANG:
            return explain_hang(rerunner, failure)
        if failure.rule.replay is Replay.CRASH:
            return cause_of_exception(rerunner, failure)
        return _by_the_rule(failure) or _investigate(rerunner, failure)
    except OutOfTimeError:
        if failure.rule is Rule.HANG:
            return Diagnosis(Cause.LIVENESS, Cause.LIVENESS.value)
        return Diagnosis(Cause.UNKNOWN, f"no cause was found within {limit_s:g} s")


def _by_the_rule(failure: Failure) -> Diagnosis | None:
    if failure.rule in ABOUT_FORM:
        return Diagnosis(Cause.UNKNOWN, headline(failure.finding))
    own = failure.rule.own_cause(failure.promise)
    return Diagnosis(own, own.value) if own else None  # the headline says the rest


def _investigate(rerunner: Rerunner, failure: Failure) -> Diagnosis:
    found = _wrong_answer(rerunner, failure)
    if found is None:
        if failure.rule is Rule.GOOD_REFUSED:
            return cause_of_refusal(rerunner, failure)
        return _without_a_wrong_answer(failure, rerunner.trial.promise)
    calls, symptom = found
    reruns = Reruns(rerunner, calls, symptom)
    if reruns.is_right_without_drafts():
        text = f"the answer to {symptom.request.request_id!r} is right without speculation"
        return Diagnosis(Cause.SPECULATION, text)
    call = calls[symptom.call]
    right, _ = rerunner.trial.oracle.expected(symptom.request)
    delay = rerunner.trial.scheduling_delay
    at_once = streamed_wrongly(call, symptom, right, delay) or fed_too_early(call, symptom)
    if at_once is not None:
        return at_once
    if not symptom.is_content or failure.promise in (Promise.P3, Promise.P14):
        return _wrong_end(failure, reruns)
    return _wrong_content(failure, reruns)


def _wrong_content(failure: Failure, reruns: Reruns) -> Diagnosis:
    """Names a mistake under which the reference gives the wrong tokens or logits, else what the reruns
    show."""
    reruns.run()
    shown = reruns.cause()
    if reruns.is_repeatable is False or failure.rule is Rule.LOGITS_FINITE:
        cause, text = shown or (Cause.UNKNOWN, headline(failure.finding))
        return Diagnosis(cause, text, tuple(reruns.facts))
    evidence = evidence_of(reruns)
    explanation = evidence and explain(reruns, *evidence)
    if explanation:
        text = f"{explanation.text} (request {reruns.symptom.request.request_id!r})"
        cause = _narrowed(explanation.cause, reruns)
        return Diagnosis(cause, text, (explanation.words(), *reruns.facts))
    rounding = evidence and rounding_of(reruns.rerunner.trial.subject, *evidence)
    # Unlike rounding, it may still be an error that comes with the length.
    if rounding and (rounding.is_alike or reruns.shows_with_half() is not False):
        largest = 0.05 if reruns.is_right.get(Without.NEIGHBOURS) else 3.0
        if 1e-3 < rounding.size < largest:
            text = "the logits are off by no more than rounding to bfloat16 would make them"
            facts = (f"{rounding.size:.2g} times as much", *reruns.facts)
            return Diagnosis(Cause.PRECISION, text, facts)
    none = "no mistake of the list gives this answer"
    likely = failure.rule.likely_cause(failure.promise)
    if shown is None and likely in (Cause.CAP, Cause.INPUT, Cause.CANCEL):
        shown = likely, likely.value
    if shown is None:
        return Diagnosis(Cause.UNKNOWN, none, tuple(reruns.facts))
    return Diagnosis(*shown, (none, *reruns.facts))


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
    what, likely = headline(failure.finding), failure.rule.likely_cause(failure.promise)
    if tested is Promise.P15:
        text = "it answers rightly while no other engine is alive"
        return Diagnosis(Cause.SIDE_EFFECT, text, (what,))
    if failure.rule is Rule.NEAR_TIES:
        return Diagnosis(Cause.NEAR_TIE, what)
    right = "rerun on fresh engines, every answer is right"
    if likely in (None, Cause.RACE) and failure.rule not in (Rule.STATED, Rule.LOGITS_MISSING):
        return Diagnosis(Cause.RACE, right)
    return Diagnosis(likely or Cause.UNKNOWN, what, (right,))


def _wrong_end(failure: Failure, reruns: Reruns) -> Diagnosis:
    """Names a cause for right tokens that are too many or too few, or have the wrong finish reason."""
    symptom, completion = reruns.symptom, reruns.answer_in(reruns.calls)
    assert completion is not None, "a symptom is that of an answer"
    call, request, num_tokens = reruns.calls[symptom.call], symptom.request, len(completion.token_ids)
    slip = next(structure_findings(request, completion), None)
    cause = CAUSE_OF_PROMISE.get(slip.rule.promise, Cause.CAP) if slip else Cause.CAP
    evidence = []
    others = (each for each in call.workload.requests if each is not request)
    sharing = [repr(each.request_id) for each in others if each.max_new_tokens == num_tokens]
    if sharing and num_tokens != request.max_new_tokens:
        evidence.append(f"{num_tokens} is the cap of {', '.join(sharing)}")
    if completion.finish_reason is FinishReason.STOP and cause is Cause.CAP:
        cause = Cause.EOS
        evidence += whose_eos(call, request, completion.token_ids[-1:])
    if failure.promise is Promise.P14 and call.workload.needs_stepping and not call.workload.aborts:
        cause = Cause.STREAM
        # Otherwise `symptoms_of` would have reported the `generate` call.
        evidence.append("asked through generate: right")
    reruns.run()
    reruns.movers.clear()  # the end depends on the tokens: a change of those says nothing about it
    shown = reruns.cause()
    if shown is None or shown[0] not in BESIDE_ENDS:
        shown = cause, cause.value  # the headline is above it
    return Diagnosis(*shown, (*evidence, *reruns.facts))


def _narrowed(cause: Cause, reruns: Reruns) -> Cause:
    """Replaces a general cause by chunks or preemption if the answer is wrong only with those."""
    if cause not in (Cause.ADDRESSING, Cause.FEED):
        return cause
    if reruns.is_right.get(Without.PREEMPTIONS):
        return Cause.PREEMPTION
    return Cause.CHUNK if reruns.is_right.get(Without.CHUNKS) else cause


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


def cause_of_refusal(rerunner: Rerunner, failure: Failure) -> Diagnosis:
    """Returns INPUT if the engine answers the refused request alone, or a smaller one: it takes a good
    request for a bad one. An engine that refuses everything shows no more than that.

    Raises `OutOfTimeError`.
    """
    workload, name = failure.scene.workload, failure.finding.request_id
    of_this_id = (r for r in workload.requests if r.request_id == name)
    refused = next(r for r in of_this_id if not is_bad(r, rerunner.trial.oracle))
    smallest = replace(
        refused, prompt_token_ids=refused.prompt_token_ids[:1], max_new_tokens=1, sampling=None
    )
    cause, facts = Cause.UNKNOWN, []
    for words, request in (("alone", refused), ("a prompt of one token with a cap of 1", smallest)):
        calls = rerunner.run([only(workload, request)])
        if calls is None:
            continue
        is_refused = any(each.finish_reason is FinishReason.ERROR for each in calls[0].completions)
        facts.append(f"{words}, on a fresh engine: {'refused as well' if is_refused else 'answered'}")
        cause = cause if is_refused else Cause.INPUT
    return Diagnosis(cause, headline(failure.finding), tuple(facts))


def _good(workload: Workload, oracle: Oracle) -> Workload:
    """Returns the workload without bad requests and without the later ones of a live id."""
    first = {each.request_id: each for each in reversed(workload.requests)}.values()
    kept = [r for r in workload.requests if any(r is each for each in first) and not is_bad(r, oracle)]
    return workload if len(kept) == len(workload.requests) else workload.with_requests(kept)


def explain_hang(rerunner: Rerunner, hang: Failure) -> Diagnosis:
    """Returns the cause of a hang: an abort, or the limits.

    Raises `OutOfTimeError`.
    """
    text = headline(hang.finding)
    runs = [run.workload for run in hang.scene.runs]
    if any(each.aborts for each in runs):
        calls = rerunner.run([replace(each, aborts=()) for each in runs])
        if calls is not None:
            facts = (text, "with nothing aborted it ends")
            return Diagnosis(Cause.CANCEL, "after an abort it does not end", facts)
    return Diagnosis(Cause.LIVENESS, text, tuple(_who_waits(rerunner, runs[-1])))


def _who_waits(rerunner: Rerunner, workload: Workload) -> list[str]:
    """Returns lines that name the requests that hang alone, and the limits without which they end."""
    facts: list[str] = []
    alone = [workload.together().with_requests([request]) for request in workload.requests]
    stuck = [each for each in alone if rerunner.run([each], HANG_TIME_LIMIT_S) is None]
    if not stuck:
        return ["each of its requests alone ends"]
    names = ", ".join(repr(each.requests[0].request_id) for each in stuck)
    facts.append(f"alone on a fresh engine these do not end either: {names}")
    given, roomy = workload.config, EngineConfig()
    for limit in ("max_num_seqs", "max_num_batched_tokens", "num_blocks", "max_model_len"):
        was, value = getattr(given, limit), getattr(roomy, limit)
        changes = {limit: value}
        if limit == "max_num_seqs":  # a step holds a token of each
            changes["max_num_batched_tokens"] = max(given.max_num_batched_tokens, value)
        if was != value and rerunner.run([stuck[0].with_config(**changes)], HANG_TIME_LIMIT_S):
            facts.append(f"with {limit} {value} instead of {was} it ends")
    return facts


def fed_too_early(call: Call, symptom: Symptom) -> Diagnosis | None:
    """Returns a diagnosis if the trace shows a token sampled before all known tokens were fed, else
    None."""
    own, num_prompt = symptom.request.request_id, len(symptom.request.prompt_token_ids)
    rows = [row for record in call.trace for row in record.rows if row.request_id == own]
    num_outputs = 0
    for number, row in enumerate(rows):
        num_fed = row.context_len + row.query_len - row.num_drafted
        if row.is_sampled and num_fed < num_prompt + num_outputs:
            later = rows[number + 1 :]
            break
        num_outputs += row.num_sampled
    else:
        return None
    if num_outputs:
        what = "only the prompt was" if num_fed == num_prompt else f"only {num_fed} tokens were"
        text = f"after a preemption {what} fed again of {own!r}, not its {num_outputs} outputs"
        return Diagnosis(Cause.PREEMPTION, text)
    text = f"a token was taken when {num_fed} of the {num_prompt} prompt tokens of {own!r} were fed"
    if any(each.context_len >= num_fed and each.query_len > 1 for each in later):
        return Diagnosis(Cause.CHUNK, text)
    return Diagnosis(Cause.FEED if num_prompt - num_fed == 1 else Cause.INPUT, f"{text}, and no more")


def streamed_wrongly(
    call: Call, symptom: Symptom, right: Sequence[int], delay: int
) -> Diagnosis | None:
    """Returns a diagnosis if the events of a request are too many, too few, or in the wrong order. A
    call of `generate` may consist of events as well: more tokens than were sampled show it.

    `delay` is the number of samples behind its last token that the engine may discard.
    """
    completion = call.completion(symptom.request.request_id)
    if completion is None or call.workload.aborts:
        return None
    name, tokens = completion.request_id, completion.token_ids
    is_stepped = call.workload.needs_stepping
    if is_stepped and tuple(tokens) != tuple(right) and sorted(tokens) == sorted(right):
        return Diagnosis(Cause.STREAM, f"the right tokens of {name!r} are delivered in the wrong order")
    rows = [row for record in call.trace for row in record.rows]
    num_sampled = sum(row.num_sampled for row in rows if row.request_id == name)
    if not call.trace or len(tokens) <= num_sampled <= len(tokens) + delay:
        return None
    if not is_stepped and len(tokens) < num_sampled:
        return None  # what is cut from an answer need not be an event that was lost
    text = f"{num_sampled} tokens were sampled, but {len(tokens)} were delivered"
    return Diagnosis(Cause.STREAM, f"{text} (request {name!r})")


def whose_eos(call: Call, request: Request, last: Sequence[int]) -> list[str]:
    """Returns lines that name the requests whose EOS stopped this one; none if the EOS is its own."""
    if not last or last[0] in request.eos_token_ids:
        return []
    words = [f"it stopped at token {last[0]}, which is no EOS of its own"]
    owners = [r.request_id for r in call.workload.requests if last[0] in r.eos_token_ids]
    if owners:
        words.append(f"but one of {', '.join(map(repr, owners))}")
    return words
