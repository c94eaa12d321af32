"""Functions that scripts are made of: what a trace must show of decodes and ends (P9, P10, P14).

As in `rules.py`. An EOS may take effect as late as the engine declares; `delay`: how many steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.api import Completion, EngineConfig, FinishReason, Request, StepRecord
from harness.repro.rules import replay


def eos_steps(
    trace: Sequence[StepRecord], requests: Sequence[Request], completions: Sequence[Completion]
) -> dict[str, int]:
    """The step that sampled the EOS, of those who had one before their cap."""
    caps = {request.request_id: request.max_new_tokens for request in requests}
    lens = {c.request_id: len(c.token_ids) for c in completions if c.finish_reason is FinishReason.STOP}
    return {
        row.request_id: step
        for step, record, _, _, given in replay(trace)
        for row in record.rows
        if given.get(row.request_id, 0) + row.is_sampled == lens.get(row.request_id, 0)
        and row.is_sampled
        and lens[row.request_id] < caps[row.request_id]
    }


def wrong_late_ends(
    trace: Sequence[StepRecord],
    requests: Sequence[Request],
    completions: Sequence[Completion],
    config: EngineConfig,
    delay: int,
) -> Iterator[str]:
    """Who had an EOS finishes by the declared delay, and until then has its slot and only decodes."""
    ends = eos_steps(trace, requests, completions)
    for step, record, running, _, _ in replay(trace):
        ended = {each: end for each, end in ends.items() if end < step}
        for each in record.finished:
            if not ends.get(each, step) <= step <= ends.get(each, step) + delay:
                yield f"step {step}: {each!r} finishes, but its EOS was sampled in step {ends[each]}"
        for each in ended.keys() & {*record.admitted}:
            yield f"step {step}: {each!r} is admitted after its EOS"
        for row in record.rows:
            if row.request_id in ended and (row.query_len, row.is_sampled) != (1, True):
                yield f"step {step}: {row} after its EOS"
        if len(running) > config.max_num_seqs and any(
            step <= ended.get(each, step - delay - 1) + delay for each in running
        ):
            yield f"step {step}: {running} hold {config.max_num_seqs} slots"


def wrong_decodes(
    trace: Sequence[StepRecord],
    requests: Sequence[Request],
    completions: Sequence[Completion],
    delay: int,
) -> Iterator[str]:
    """Everybody who decodes gets a token in each step, but for those who may end late."""
    prompts = {request.request_id: len(request.prompt_token_ids) for request in requests}
    ends = eos_steps(trace, requests, completions)
    for step, record, running, cached, given in replay(trace):
        fed = [row.request_id for row in record.rows]
        for each in running:
            is_decoding = cached.get(each, 0) == prompts[each] + given.get(each, 0) - 1
            is_late = each in ends and ends[each] < step <= ends[each] + delay
            if is_decoding and each not in fed and not is_late:
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
    ends = eos_steps(trace, requests, completions)
    finished = [each for record in trace for each in record.finished]
    sampled = [row.request_id for record in trace for row in record.rows if row.is_sampled]
    surplus = [
        row.request_id
        for step, record, running, _, _ in replay(trace)
        for row in record.rows
        if row.request_id in running and 0 < step - ends.get(row.request_id, step) <= delay
    ]
    for got in completions:
        times, tokens = finished.count(got.request_id), sampled.count(got.request_id)
        if times != 1 or tokens != len(got.token_ids) + surplus.count(got.request_id):
            answer = list(got.token_ids)
            yield f"{got.request_id!r} finished {times} times, sampled {tokens} times, got {answer}"
