"""From a failure to its most likely cause, with the evidence. Never changes a verdict.

Three sources, the strongest first:

1. the broken rule itself, where it names the cause (a cap, an EOS, an order, a lost block, a hang);
2. counterfactual references: the mistake whose computation gives the engine's very answer;
3. reruns: alone, fresh, with other neighbours, other limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from harness.api import EngineConfig, FinishReason, Request
from harness.causes import Cause
from harness.diagnosis.explain import Explanation, explain, rounding_explains
from harness.diagnosis.reruns import Reruns, cause_by_reruns, rerun
from harness.diagnosis.stage import HANG_TIME_LIMIT_S, Call, OutOfTimeError, Stage, Symptom
from harness.errors import EngineHang
from harness.promises import Promise
from harness.trial import Trial
from harness.verdict import ConformanceFailure, EngineRaised, Scene
from harness.workloads import Workload

TIME_LIMIT_S = 20.0

BY_PROMISE = {
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
}
# What no wrong token can explain away.
ABOUT_BEHAVIOUR = {
    Promise.P3,
    Promise.P4,
    Promise.P9,
    Promise.P10,
    Promise.P11,
    Promise.P14,
    Promise.P15,
}


@dataclass
class Diagnosis:
    """`text`: the cause in a sentence; `evidence`: a few lines that led there."""

    cause: Cause
    text: str
    evidence: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For a report."""
        return [
            f"most likely cause: {self.cause.word}: {self.text}",
            *(f"  {e}" for e in self.evidence),
        ]


def diagnose(
    trial: Trial, failure: ConformanceFailure | EngineHang, seconds: float = TIME_LIMIT_S
) -> Diagnosis:
    """Within `seconds`, give or take one engine call."""
    stage = Stage(trial, seconds)
    try:
        if isinstance(failure, EngineHang):
            return _hang(stage, failure)
        return _by_rule(failure) or _investigate(stage, failure)
    except OutOfTimeError:
        return Diagnosis(Cause.UNKNOWN, f"no cause was found within {seconds:g} s")


def _by_rule(failure: ConformanceFailure) -> Diagnosis | None:
    """The cause, where the broken rule tells it without a rerun."""
    if failure.cause is not None:
        return Diagnosis(failure.cause, failure.finding)
    if failure.promise in ABOUT_BEHAVIOUR or failure.rule == "refused":
        return Diagnosis(BY_PROMISE[failure.promise], failure.finding)
    if isinstance(failure, EngineRaised):
        is_about = failure.promise in (Promise.P12, Promise.P13)
        return Diagnosis(BY_PROMISE[failure.promise] if is_about else Cause.CRASH, failure.finding)
    return None


def _hang(stage: Stage, hang: EngineHang) -> Diagnosis:
    """Does it end without the aborts? Was a rule of the trace broken on the way?"""
    text = str(hang).splitlines()[0]
    runs = [run.workload for run in hang.scene.runs] if hang.scene else []
    if any(each.aborts for each in runs):
        calls = stage.play([replace(each, aborts=()) for each in runs])
        if calls is not None:
            return Diagnosis(
                Cause.CANCEL,
                "after an abort it comes to no end",
                [text, "with nothing aborted it ends"],
            )
    broken = stage.conduct_up_to_hang(runs) if runs else None
    if broken is not None and broken.promise in BY_PROMISE:
        before = f"before that: {broken.finding}"
        return Diagnosis(BY_PROMISE[broken.promise], broken.finding, [text, before])
    return Diagnosis(Cause.LIVENESS, text, _who_waits(stage, runs[-1]) if runs else [])


def _who_waits(stage: Stage, workload: Workload) -> list[str]:
    """Which requests hang alone, and under which limits."""
    facts: list[str] = []
    alone = [workload.together().with_requests([request]) for request in workload.requests]
    stuck = [each for each in alone if stage.play([each], HANG_TIME_LIMIT_S) is None]
    if not stuck:
        return ["each of its requests alone comes to an end"]
    names = ", ".join(repr(each.requests[0].request_id) for each in stuck)
    facts.append(f"alone on a fresh engine these come to no end either: {names}")
    roomy = {
        "max_num_seqs": EngineConfig().max_num_seqs,
        "max_num_batched_tokens": EngineConfig().max_num_batched_tokens,
        "num_blocks": None,
        "max_model_len": None,
    }
    for limit, value in roomy.items():
        given = getattr(workload.config, limit)
        if given != value and stage.play([stuck[0].with_config(**{limit: value})], HANG_TIME_LIMIT_S):
            facts.append(f"with {limit} {value} instead of {given} it ends")
    return facts


def _investigate(stage: Stage, failure: ConformanceFailure) -> Diagnosis:
    found = _wrong_answer(stage, failure)
    if found is None:
        return _without_a_wrong_answer(failure, stage.trial.promise)
    calls, symptom = found
    at_once = _streamed_wrongly(calls[symptom.call], symptom) or _cut_short(
        calls[symptom.call], symptom
    )
    if at_once is not None:
        return at_once
    if not symptom.is_content or failure.promise in (Promise.P3, Promise.P14):
        return _wrong_end(stage, failure, calls, symptom)
    reruns = rerun(stage, calls, symptom)
    if reruns.is_repeatable is False:
        return Diagnosis(Cause.RACE, "the same calls give different answers", reruns.facts)
    explanation = explain(stage, calls, symptom, bool(reruns.is_right_alone))
    rounding = None if explanation else rounding_explains(stage, calls, symptom)
    return _named(failure, calls, symptom, reruns, explanation, rounding)


def _wrong_answer(stage: Stage, failure: ConformanceFailure) -> tuple[Sequence[Call], Symptom] | None:
    """The scene played again, and the wrong answer in it: of the failed request, if it has one."""
    scene = failure.scene
    for runs in _plays(scene):
        calls = stage.play(runs)
        if calls is None:
            continue
        symptoms = stage.symptoms(calls)
        symptoms.sort(key=lambda s: (not s.is_content, s.request.request_id != failure.request_id))
        if symptoms:
            return calls, symptoms[0]
    return None


def _plays(scene: Scene | None) -> Iterator[list[Workload]]:
    """The failed runs, first through `generate`, which can show logits; then what they were held
    against."""
    if scene is None:
        return
    for runs in (scene.runs, scene.other):
        workloads = [run.workload for run in runs]
        if not workloads:
            continue
        if any(each.needs_stepping for each in workloads) and not any(
            each.aborts for each in workloads
        ):
            yield [each.together() for each in workloads]
        yield workloads


def _cut_short(call: Call, symptom: Symptom) -> Diagnosis | None:
    """Does the trace show that a token was taken before all that was there had been fed?"""
    own, num_prompt = symptom.request.request_id, len(symptom.request.prompt_token_ids)
    rows = [row for record in call.trace for row in record.rows if row.request_id == own]
    num_outputs = 0
    for number, row in enumerate(rows):
        num_fed = row.context_len + row.query_len
        if row.is_sampled and num_fed < num_prompt + num_outputs:
            rest = [each for each in rows[number + 1 :] if each.context_len >= num_fed]
            is_chunk = any(each.query_len > 1 for each in rest)
            return _fed_too_little(own, num_fed, num_prompt, num_outputs, is_chunk)
        num_outputs += row.is_sampled
    return None


def _fed_too_little(
    name: str, num_fed: int, num_prompt: int, num_outputs: int, is_chunk: bool
) -> Diagnosis:
    if num_outputs:
        what = "only the prompt was" if num_fed == num_prompt else f"only {num_fed} tokens were"
        text = f"after a preemption {what} fed again of {name!r}, which had {num_outputs} outputs as well"
        return Diagnosis(Cause.PREEMPTION, text)
    text = f"a token was taken when {num_fed} of the {num_prompt} prompt tokens of {name!r} were fed"
    if is_chunk:
        return Diagnosis(Cause.CHUNK, text)
    return Diagnosis(Cause.FEED if num_prompt - num_fed == 1 else Cause.INPUT, f"{text}, and no more")


def _streamed_wrongly(call: Call, symptom: Symptom) -> Diagnosis | None:
    """Were as many tokens delivered as events as the trace says were sampled?"""
    completion = call.completion(symptom.request.request_id)
    if not (call.workload.needs_stepping and call.trace) or completion is None or call.workload.aborts:
        return None
    rows = [row for record in call.trace for row in record.rows]
    mine = [row for row in rows if row.request_id == completion.request_id and row.is_sampled]
    if len(mine) == len(completion.token_ids):
        return None
    text = f"{len(mine)} tokens were sampled, but {len(completion.token_ids)} were delivered as events"
    return Diagnosis(Cause.STREAM, f"{text} (request {completion.request_id!r})")


def _without_a_wrong_answer(failure: ConformanceFailure, tested: Promise) -> Diagnosis:
    """All answers are within rounding of the right one, or nothing could be played again."""
    if tested is Promise.P15:
        text = "it answers rightly while no other engine is alive"
        return Diagnosis(Cause.SIDE_EFFECT, text, [failure.finding])
    cause = BY_PROMISE.get(failure.promise, Cause.UNKNOWN)
    scene = failure.scene
    if failure.promise in (Promise.P1, Promise.P5, Promise.P8) and "near-ties" in failure.finding:
        return Diagnosis(Cause.NEAR_TIE, failure.finding)
    if scene is not None and failure.promise in (Promise.P1, Promise.P5, Promise.P8, Promise.P16):
        return Diagnosis(Cause.RACE, "played again on fresh engines, every answer is right")
    return Diagnosis(cause, failure.finding)


def _wrong_end(
    stage: Stage, failure: ConformanceFailure, calls: Sequence[Call], symptom: Symptom
) -> Diagnosis:
    """Right tokens, but too many, too few, or the wrong reason."""
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
            evidence += _whose_eos(calls[symptom.call], symptom.request, completion.token_ids[-1:])
    found = rerun(stage, calls, symptom)
    found.movers.clear()  # an end moves with the tokens, whoever moves those
    by_reruns = cause_by_reruns(found, symptom, calls)
    if by_reruns is not None and by_reruns[0] in (Cause.PREEMPTION, Cause.STALE, Cause.RACE):
        return Diagnosis(*by_reruns, evidence + found.facts)
    return Diagnosis(cause, failure.finding, evidence + found.facts)


def _narrowed(cause: Cause, reruns: Reruns) -> Cause:
    """What goes wrong only with chunks, or after preemptions, is to be looked for there."""
    if cause not in (Cause.ADDRESSING, Cause.FEED):
        return cause
    if reruns.is_right_with_large_pool:
        return Cause.PREEMPTION
    return Cause.CHUNK if reruns.is_right_with_whole_prompts else cause


def _whose_eos(call: Call, request: Request, last: Sequence[int]) -> list[str]:
    """Who knows the token that stopped it, if not the request itself?"""
    if not last or last[0] in request.eos_token_ids:
        return []
    words = [f"it stopped at token {last[0]}, which is no EOS of its own"]
    owners = [r.request_id for r in call.workload.requests if last[0] in r.eos_token_ids]
    if owners:
        words.append(f"but one of {', '.join(map(repr, owners))}")
    return words


def _named(
    failure: ConformanceFailure,
    calls: Sequence[Call],
    symptom: Symptom,
    reruns: Reruns,
    explanation: Explanation | None,
    rounding: float | None,
) -> Diagnosis:
    if explanation is not None:
        words = f"{explanation.mistake.text} (request {symptom.request.request_id!r})"
        cause = _narrowed(explanation.mistake.cause, reruns)
        return Diagnosis(cause, words, [explanation.words(), *reruns.facts])
    by_reruns = cause_by_reruns(reruns, symptom, calls)
    none = "no mistake of the list gives this answer"
    if rounding is not None and 1e-3 < rounding < (0.05 if reruns.is_right_alone else 3.0):
        text = "the logits are off by no more than rounding to bfloat16 would make them"
        return Diagnosis(Cause.PRECISION, text, [f"{rounding:.2g} times as much", *reruns.facts])
    if by_reruns is not None:
        return Diagnosis(*by_reruns, [none, *reruns.facts])
    if failure.promise in (Promise.P2, Promise.P12, Promise.P13):
        return Diagnosis(BY_PROMISE[failure.promise], failure.finding, [none, *reruns.facts])
    return Diagnosis(Cause.UNKNOWN, none, reruns.facts)
