"""Causes that show without a counterfactual reference: by the trace, the completions, the hang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from batchproof.api import Completion, EngineConfig, Request
from batchproof.checks.answers import structure_findings
from batchproof.diagnosis.reruns import HANG_TIME_LIMIT_S, Call, Rerunner, Symptom, is_bad
from batchproof.findings.causes import Cause, Diagnosis
from batchproof.findings.failure import Failure
from batchproof.findings.finding_text import headline
from batchproof.findings.rules import CAUSE_OF_PROMISE
from batchproof.oracle.oracle import Oracle
from batchproof.workload.workloads import Workload


def cause_of_end(request: Request, completion: Completion) -> Cause:
    """Returns CAP or EOS: the rule that the end of the answer breaks."""
    slip = next(structure_findings(request, completion), None)
    return CAUSE_OF_PROMISE.get(slip.rule.promise, Cause.CAP) if slip else Cause.CAP


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


def explain_hang(rerunner: Rerunner, hang: Failure) -> Diagnosis:
    """Returns the cause of a hang: an abort, a rule of the trace broken before it, or the limits.

    Raises `OutOfTimeError`.
    """
    text = headline(hang.finding)
    runs = [run.workload for run in hang.scene.runs]
    if any(each.aborts for each in runs):
        calls = rerunner.run([replace(each, aborts=()) for each in runs])
        if calls is not None:
            facts = (text, "with nothing aborted it ends")
            return Diagnosis(Cause.CANCEL, "after an abort it does not end", facts)
    broken = rerunner.conduct_up_to_hang(runs)
    if broken is not None and broken.promise in CAUSE_OF_PROMISE:
        first = headline(broken)
        return Diagnosis(CAUSE_OF_PROMISE[broken.promise], first, (text, f"before that: {first}"))
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
    limits: dict[str, dict[str, int | None]] = {
        "max_num_seqs": {
            "max_num_seqs": roomy.max_num_seqs,
            "max_num_batched_tokens": max(given.max_num_batched_tokens, roomy.max_num_seqs),
        },
        "max_num_batched_tokens": {"max_num_batched_tokens": roomy.max_num_batched_tokens},
        "num_blocks": {"num_blocks": None},
        "max_model_len": {"max_model_len": None},
    }
    for limit, changes in limits.items():
        was, value = getattr(given, limit), changes[limit]
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
            rest = [each for each in rows[number + 1 :] if each.context_len >= num_fed]
            is_chunk = any(each.query_len > 1 for each in rest)
            return _fed_too_little(own, num_fed, num_prompt, num_outputs, is_chunk)
        num_outputs += row.num_sampled
    return None


def _fed_too_little(
    name: str, num_fed: int, num_prompt: int, num_outputs: int, is_chunk: bool
) -> Diagnosis:
    if num_outputs:
        what = "only the prompt was" if num_fed == num_prompt else f"only {num_fed} tokens were"
        text = f"after a preemption {what} fed again of {name!r}, not its {num_outputs} outputs"
        return Diagnosis(Cause.PREEMPTION, text)
    text = f"a token was taken when {num_fed} of the {num_prompt} prompt tokens of {name!r} were fed"
    if is_chunk:
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
