"""Tells what had happened to a request when something about it went wrong: what its calls ask, and what
their traces or events show."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from batchproof.diagnosis.reruns import Call

MOST = 8  # moments of one request


class Moment(NamedTuple):
    step: float  # an abort before step n comes at n - 0.5
    words: str


def story_of(calls: Sequence[Call], request_id: str) -> str | None:
    """Returns a line, such as "'r1': admitted in step 0, preempted in step 4 with 2 tokens"; None if
    nothing is known of it."""
    told = []
    for number, call in enumerate(calls, 1):
        moments = sorted(_moments(call, request_id))
        if moments:
            words = ", ".join(each.words for each in moments[-MOST:])
            told.append(f"in call {number} {words}" if len(calls) > 1 else words)
    return f"{request_id!r}: {'; '.join(told)}" if told else None


def just_before(call: Call, request_id: str, output: int) -> str | None:
    """Returns what happened between this output's step and that of the one before, as far as it may
    matter: its own preemption, another row, and who else came or left."""
    records = call.schedule()
    steps = [
        (number, place, row)
        for number, record in enumerate(records)
        for place, row in enumerate(record.rows)
        if row.request_id == request_id
    ]
    outputs = [place for place, (*_, row) in enumerate(steps) for _ in range(row.num_sampled)]
    if output >= len(outputs):
        return None
    at, last = outputs[output], outputs[output - 1] if output else 0
    if output and at == last:
        return f"token {output}, the first wrong one, is not the first of its step"
    (then, was_in, before), (now, is_in, _) = steps[last], steps[at]
    if then == now:
        return None
    gone = {name for record in records[then:now] for name in record.finished} - {request_id}
    gone |= {name for name, step in call.workload.aborts if then < step <= now}
    old, new = ({row.request_id for row in records[step].rows} for step in (then, now))
    what = [
        "it was preempted" if any(request_id in r.preempted for r in records[then : now + 1]) else "",
        f"its row went from place {was_in} to {is_in} of its step" if was_in != is_in else "",
        "a draft of its own was rejected" if before.num_drafted > before.num_accepted else "",
        "drafts of its own were accepted" if before.num_accepted else "",
        f"{_names(gone)} had left" if gone else "",
        f"{_names(new - old)} came" if new - old else "",
    ]
    happened = ", ".join(filter(None, what))
    return happened and f"just before token {output}, the first wrong one: {happened}"


def step_line(call: Call, step: int) -> str | None:
    """Returns who came, went on and left in a step of the trace, such as "in step 2: fed 'r0', 'r1',
    finished 'r1'"."""
    if step >= len(call.trace):
        return None
    record = call.trace[step]
    groups = {
        "admitted": record.admitted,
        "fed": [each.request_id for each in record.rows],
        "preempted": record.preempted,
        "finished": record.finished,
        "waiting": record.waiting,
    }
    told = [f"{words} {_names({*ids})}" for words, ids in groups.items() if ids]
    drafts = [f"{row.num_accepted} of {row.num_drafted}" for row in record.rows if row.num_drafted]
    told += [f"drafts accepted {', '.join(drafts[:4])}"] if drafts else []
    return f"in step {step}: {', '.join(told)}"


def _names(ids: set[str]) -> str:
    shown = sorted(ids)[:4]
    return ", ".join(map(repr, shown)) + (f" and {len(ids) - 4} more" if len(ids) > 4 else "")


def _moments(call: Call, request_id: str) -> Iterator[Moment]:
    yield from _of_trace(call, request_id) if call.trace else _of_events(call, request_id)
    ends = {event.request_id for _, event in call.events if event.finish_reason is not None}
    is_asked = any(each.request_id == request_id for each in call.workload.requests)
    if is_asked and call.workload.needs_stepping and request_id not in ends:
        yield Moment(inf, "and no event has ended it when nothing is unfinished any more")
    for name, step in call.workload.aborts:
        if name == request_id:
            yield Moment(step - 0.5, f"aborted before step {step}")


def _of_trace(call: Call, request_id: str) -> Iterator[Moment]:
    num_tokens, has_begun = 0, False
    for step, record in enumerate(call.trace):
        if request_id in record.admitted:
            yield Moment(step, f"admitted in step {step}")
        for row in record.rows:
            if row.request_id == request_id:
                if not has_begun and row.context_len:
                    yield Moment(step, f"which takes over {row.context_len} cached tokens")
                if not has_begun and not row.is_sampled:
                    yield Moment(step, "fed in parts from there on")
                has_begun = True
                num_tokens += row.num_sampled
        if request_id in record.preempted:
            has_begun = False
            yield Moment(step, f"preempted in step {step} with {num_tokens} tokens")
        if request_id in record.finished:
            yield Moment(step, f"finished in step {step} with {num_tokens} tokens")


def _of_events(call: Call, request_id: str) -> Iterator[Moment]:
    own = [(step, event) for step, event in call.events if event.request_id == request_id]
    if own and own[0][1].token_id is not None:
        yield Moment(own[0][0], f"first token in step {own[0][0]}")
    for (before, _), (step, _) in pairwise(own):
        if step > before + 1:
            yield Moment(before, f"no token between step {before} and step {step}")
    for step, event in own:
        if event.finish_reason is not None:
            yield Moment(step, f"{event.finish_reason.value} in step {step}")
