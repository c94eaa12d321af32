"""Causes of conduct: of a broken rule of trace or events, a refusal, an exception, a hang."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from batchproof.api import EngineConfig, FinishReason
from batchproof.diagnosis.reruns import (
    Call,
    OutOfTimeError,
    Rerunner,
    Symptom,
    Without,
    good_requests,
    is_bad,
    only,
    wrong_again,
)
from batchproof.diagnosis.sizes import size_words
from batchproof.findings.causes import Cause, Diagnosis
from batchproof.findings.finding import Failure, Finding
from batchproof.findings.finding_text import headline
from batchproof.findings.rules import Rule
from batchproof.oracle.oracle import Oracle
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Outcome, Workload

HANG_TIME_LIMIT_S = 1.0


def of_conduct(rerunner: Rerunner, failure: Failure, own: Diagnosis) -> Diagnosis:
    """Adds what the break of a rule needs, if it is one of trace or events: without that it is kept."""
    trial, workloads = rerunner.trial, [run.workload for run in failure.scene.runs]

    def symptoms(calls: Sequence[Call], _: Oracle) -> list[Symptom]:
        return [
            Symptom(number, call.workload.requests[0], 0, is_content=False)
            for number, call in enumerate(calls)
            if any(each.rule is failure.rule for each in _conduct_of(call, trial))
        ]

    calls = None if failure.rule is Rule.PREFIX else rerunner.run(workloads)
    reruns = wrong_again(rerunner, failure, [calls] if calls else [], symptoms)
    if reruns is None:
        return own
    with suppress(OutOfTimeError):
        reruns.change()
        reruns.is_right[Without.NEIGHBOURS] = True  # so that it is their number that is less
        size = size_words(reruns) if reruns.has_many else None
        needs = reruns.needs()
        more = [f"it does not occur {' or '.join(needs)}"] if needs else []
        more += [size] if size else []
        facts = (*own.evidence, *reruns.facts)
        return replace(own, text="; ".join((own.text, *more)), evidence=facts)
    return own


def _conduct_of(call: Call, trial: Trial) -> Iterator[Finding]:
    outcome = Outcome(call.completions, call.events)
    return trial.conduct_findings(call.workload, outcome, call.trace)


def cause_of_exception(rerunner: Rerunner, failure: Failure) -> Diagnosis:
    """Returns CANCEL or INPUT if the engine raises nothing without aborts or bad requests, else CRASH.
    Raises `OutOfTimeError`."""
    text = headline(failure.finding)
    runs = [run.workload for run in failure.scene.runs]
    good = [each.with_requests(good_requests(each, rerunner.trial.oracle)) for each in runs]
    changes = (
        (Cause.CANCEL, "with nothing aborted", [replace(each, aborts=()) for each in runs]),
        (Cause.INPUT, "without the bad request", good),
    )
    for cause, words, changed in changes:
        asked = [each for each in changed if each.requests]
        if changed != runs and (not asked or rerunner.run(asked) is not None):
            return Diagnosis(cause, text, (f"{words} it raises nothing",))
    if failure.finding.facts.get("notes"):
        return Diagnosis(
            Cause.CRASH, "it was raised in the engine's program; see what that has written"
        )
    frames = failure.finding.facts.get("frames")  # innermost last; the headline says what was raised
    where = frames[-1] if isinstance(frames, tuple) and frames else "an unknown place"
    return Diagnosis(Cause.CRASH, f"it was raised at {where}")


def cause_of_refusal(rerunner: Rerunner, failure: Failure) -> Diagnosis:
    """Returns INPUT if the engine answers the refused request alone, or a smaller one: it takes a good
    request for a bad one. An engine that refuses everything shows no more than that. Raises
    `OutOfTimeError`."""
    workload, name = failure.scene.workload, failure.finding.request_id
    of_this_id = (r for r in workload.requests if r.request_id == name)
    under = rerunner.trial.oracle.under(workload.adapters)
    # Of one id the good one; a test may also have asked for an answer where there is none.
    refused = min(of_this_id, key=lambda each: is_bad(each, under))
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


def explain_hang(rerunner: Rerunner, hang: Failure) -> Diagnosis:
    """Returns the cause of a hang: an abort, or the limits. Raises `OutOfTimeError`."""
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
