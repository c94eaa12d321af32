"""Finds causes that the trace and the completions show by themselves, without a counterfactual
reference."""

from __future__ import annotations

from collections.abc import Sequence

from batchproof.api import Request
from batchproof.diagnosis.rerunner import Call
from batchproof.diagnosis.symptoms import Symptom
from batchproof.findings.causes import Cause, Diagnosis


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
