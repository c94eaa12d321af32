"""What a trace must show of continuous batching: limits, order of arrival, filled slots (promise
P9)."""

from collections.abc import Iterator, Mapping, Sequence

from batchproof.api import StepRecord
from batchproof.checks.lifecycle import NO_CUTS, Cuts
from batchproof.checks.trace import IN_TIME, LateEnds, TraceReplay, late_end_findings
from batchproof.findings.finding import Facts, Finding, Rule, found
from batchproof.workload.workloads import Workload


def limit_findings(
    trace: Sequence[StepRecord], workload: Workload, has_token_budget: bool
) -> Iterator[Finding]:
    """Yields steps in which the slots, the token budget or the slots of adapters are exceeded.
    `has_token_budget`: whether the engine schedules by `max_num_batched_tokens` and `max_loras`."""
    config = workload.config
    adapters = {each.request_id: each.adapter for each in workload.requests if each.adapter is not None}
    max_loras = config.max_loras or 0
    for step, record in enumerate(trace):
        ids = [row.request_id for row in record.rows]
        if len(set(ids)) < len(ids):
            yield found(Rule.TWO_ROWS, step=step, ids=ids)
        if len(ids) > config.max_num_seqs:
            facts: Facts = {"num_rows": len(ids), "max_num_seqs": config.max_num_seqs}
            yield found(Rule.SLOTS, step=step, **facts)
        fed = sum(row.query_len for row in record.rows)
        if has_token_budget and fed > config.max_num_batched_tokens:
            limit = config.max_num_batched_tokens
            yield found(Rule.TOKEN_BUDGET, step=step, num_fed=fed, max_num_batched_tokens=limit)
        used = {adapters[each] for each in ids if each in adapters}
        if has_token_budget and len(used) > max_loras:
            yield found(Rule.MAX_LORAS, step=step, adapters=sorted(used), max_loras=max_loras)


def queue_findings(trace: Sequence[StepRecord], workload: Workload) -> Iterator[Finding]:
    """Yields breaks of P9: a request waits, runs or is gone, and only one that waits is admitted."""
    replay = TraceReplay(workload)
    gone: set[str] = set()
    for step, record in enumerate(trace):
        for name in record.admitted:
            if name in gone or (name in replay.running and name not in record.preempted):
                what = f"was admitted, but {'has ended' if name in gone else 'runs'} already"
                yield found(Rule.QUEUES, name, step, what=what)
        replay.begin(step, record)
        for name in record.waiting:
            if name in gone or name in replay.running:
                what = f"waits, but {'has ended' if name in gone else 'has a slot'}"
                yield found(Rule.QUEUES, name, step, what=what)
        replay.end(record)
        gone.update(record.finished)


def scheduling_findings(
    trace: Sequence[StepRecord],
    workload: Workload,
    can_chunk: bool,
    ends: LateEnds = IN_TIME,
    cuts: Cuts = NO_CUTS,
) -> Iterator[Finding]:
    """Yields breaks of: freed slots are filled, in order of arrival, and every running decode is fed.

    `can_chunk`: whether the engine feeds prompts in parts. Not for workloads with aborts, which
    leave no mark in a trace.
    """
    yield from late_end_findings(trace, ends)
    replay, is_in_order = TraceReplay(workload, cuts), not workload.may_overtake
    place = {name: index for index, name in enumerate(_arrival_order(workload))}
    for step, record in enumerate(trace):
        num_before = len(replay.ever_admitted)
        replay.begin(step, record)
        yield from _of_slots(step, replay, ends)
        if record.admitted and is_in_order:
            yield from _of_first_come(step, record, place)
            yield from _of_arrival_order(step, list(replay.ever_admitted), num_before, place)
        yield from _of_decodes(step, record, replay, ends)
        if record.waiting and is_in_order:
            yield from _of_refill(step, record, replay, _first(record.waiting, place), can_chunk)
        replay.end(record)


def _arrival_order(workload: Workload) -> list[str]:
    arrivals = workload.arrivals or (0,) * len(workload.requests)
    ordered = sorted(zip(arrivals, range(len(arrivals)), strict=True))
    return [workload.requests[index].request_id for _, index in ordered]


def _of_first_come(step: int, record: StepRecord, place: Mapping[str, int]) -> Iterator[Finding]:
    """Requires that no request is admitted before an earlier one that waits, a preempted one included.
    `place`: of each request in the order of arrival."""
    if not record.waiting:
        return
    waiting = _first(record.waiting, place)
    admitted = max(record.admitted, key=place.__getitem__)
    if place[admitted] > place[waiting]:
        yield found(Rule.FIRST_COME, admitted, step, waiting=waiting)


def _first(names: Sequence[str], place: Mapping[str, int]) -> str:
    """Returns the first to arrive: an engine may hold, and so list, them in any order."""
    return min(names, key=place.__getitem__)


def _of_arrival_order(
    step: int, got: Sequence[str], num_before: int, place: Mapping[str, int]
) -> Iterator[Finding]:
    """Requires that no request is admitted after a later one was, `num_before` in earlier steps; those
    of one step may stand in any order."""
    new, before = got[num_before:], got[:num_before]
    if new and before and place[_first(new, place)] < max(place[each] for each in before):
        yield found(Rule.ARRIVAL_ORDER, step=step, got=got, should_be=[*place][: len(got)])


def _of_slots(step: int, replay: TraceReplay, ends: LateEnds) -> Iterator[Finding]:
    """Requires that a request that ends late keeps its slot until then, with a row or without."""
    num_slots = replay.workload.config.max_num_seqs
    is_late = any(ends.is_late(each, step) for each in replay.running)
    if is_late and len(replay.running) > num_slots:
        facts: Facts = {"num_running": len(replay.running), "num_slots": num_slots}
        yield found(Rule.LATE_SLOTS, step=step, running=replay.running, **facts)


def _of_decodes(
    step: int, record: StepRecord, replay: TraceReplay, ends: LateEnds
) -> Iterator[Finding]:
    """Requires that every running decode gets its token, also in a step that prefills others, unless
    drafts fill the step."""
    num_fed = sum(row.query_len for row in record.rows)
    is_full = num_fed >= replay.workload.config.max_num_batched_tokens
    if is_full and any(row.num_drafted for row in record.rows):
        return
    fed = {row.request_id for row in record.rows}
    for request_id in replay.running:
        is_due = replay.is_decoding(request_id) and not ends.is_late(request_id, step)
        if request_id not in fed and is_due:
            yield found(Rule.DECODES, request_id, step, rows=sorted(fed))


def _of_refill(
    step: int, record: StepRecord, replay: TraceReplay, head: str, can_chunk: bool
) -> Iterator[Finding]:
    """Requires that a free slot is filled if `head`, the first request that waits, fits."""
    config = replay.workload.config
    if record.preempted or len(replay.running) >= config.max_num_seqs:
        return
    room = config.max_num_batched_tokens - sum(row.query_len for row in record.rows)
    if room < (1 if can_chunk else replay.num_known(head)):
        return
    # An engine may reserve the blocks of whole lives, drafts included.
    lives = record.num_cache_groups * sum(map(replay.whole_life, (head, *replay.running)))
    pool = config.num_blocks if record.num_total_blocks is None else record.num_total_blocks
    if pool is not None and lives > pool:
        return
    yield found(
        Rule.REFILL,
        head,
        step,
        num_running=len(replay.running),
        max_num_seqs=config.max_num_seqs,
        running=replay.running,
        room=room,
    )
