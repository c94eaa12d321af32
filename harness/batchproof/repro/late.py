"""Functions that scripts are made of: what a trace must show of decodes and ends (P9, P10, P14).

As in `rules.py`. An EOS before the cap may take effect `delay` steps late, as the engine declares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from batchproof.api import (
    Completion,
    EngineConfig,
    FinishReason,
    Request,
    StepRecord,
)
from batchproof.repro.rules import replay


def last_steps(
    trace: Sequence[StepRecord],
    requests: Sequence[Request],
    completions: Sequence[Completion],
    delay: int,
) -> dict[str, tuple[int, int]]:
    """The step that sampled the last token of each, and the one by which it finishes: later only after
    an EOS before the cap."""
    caps = {request.request_id: request.max_new_tokens for request in requests}
    got = {completion.request_id: completion for completion in completions}
    steps = {}
    for step, record, _, _, given in replay(trace):
        for row in record.rows:
            tokens = got[row.request_id].token_ids
            if row.is_sampled and given.get(row.request_id, 0) + 1 == len(tokens):
                is_stop = got[row.request_id].finish_reason is FinishReason.STOP
                is_unforeseen = is_stop and len(tokens) < caps[row.request_id]
                steps[row.request_id] = (step, step + delay * is_unforeseen)
    return steps


def wrong_late_ends(
    trace: Sequence[StepRecord],
    requests: Sequence[Request],
    completions: Sequence[Completion],
    config: EngineConfig,
    delay: int,
) -> Iterator[str]:
    """Who has ended finishes in time, and until then has its slot and only decodes."""
    ends = last_steps(trace, requests, completions, delay)
    for step, record, running, _, _ in replay(trace):
        ended = [each for each, (last, _) in ends.items() if last < step]
        for each in record.finished:
            first, latest = ends.get(each, (step, step))
            if not first <= step <= latest:
                yield f"step {step}: {each!r} finishes, but its last token was sampled in step {first}"
        for each in {*ended} & {*record.admitted}:
            yield f"step {step}: {each!r} is admitted after its last token"
        for row in record.rows:
            if row.request_id in ended and (row.query_len, row.is_sampled) != (1, True):
                yield f"step {step}: {row} after its last token"
        late = [each for each in running if each in ended and step <= ends[each][1]]
        if late and len(running) > config.max_num_seqs:
            yield f"step {step}: {running} hold {config.max_num_seqs} slots"


def wrong_decodes(
    trace: Sequence[StepRecord],
    requests: Sequence[Request],
    completions: Sequence[Completion],
    delay: int,
) -> Iterator[str]:
    """Everybody who decodes gets a token in each step, but for those who may end late."""
    prompts = {request.request_id: len(request.prompt_token_ids) for request in requests}
    ends = last_steps(trace, requests, completions, delay)
    for step, record, running, cached, given in replay(trace):
        fed = [row.request_id for row in record.rows]
        for each in running:
            is_decoding = cached.get(each, 0) == prompts[each] + given.get(each, 0) - 1
            last, latest = ends.get(each, (step, step))
            if is_decoding and each not in fed and not last < step <= latest:
                yield f"step {step}: running request {each!r} got no token"


def wrong_ends(
    trace: Sequence[StepRecord],
    requests: Sequence[Request],
    completions: Sequence[Completion],
    max_steps: int,
    delay: int,
) -> Iterator[str]:
    """Each step feeds something; each request finishes once, and was sampled once a token, or more
    often in the steps from its EOS to its late end."""
    if len(trace) > max_steps:
        yield f"{len(trace)} steps, but {max_steps} are enough"
    yield from (f"step {step} fed nothing" for step, each in enumerate(trace) if not each.rows)
    ends = last_steps(trace, requests, completions, delay)
    finished = [each for record in trace for each in record.finished]
    sampled = [row.request_id for record in trace for row in record.rows if row.is_sampled]
    surplus = [
        row.request_id
        for step, record, running, _, _ in replay(trace)
        for row in record.rows
        for last, latest in [ends.get(row.request_id, (step, step))]
        if row.request_id in running and last < step <= latest
    ]
    for got in completions:
        times, tokens = finished.count(got.request_id), sampled.count(got.request_id)
        if times != 1 or tokens != len(got.token_ids) + surplus.count(got.request_id):
            answer = list(got.token_ids)
            yield f"{got.request_id!r} finished {times} times, sampled {tokens} times, got {answer}"
