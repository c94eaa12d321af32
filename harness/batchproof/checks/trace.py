"""What a scheduler's trace must show, whatever the tokens say (promises P7, P9, P10, P11).

Two fifths of the real bugs we know never change a greedy token: lost steps, leaks, starved requests.
Invariants are stated over tokens whose keys are written, so blocks reserved early offend nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from batchproof.api import Completion, RowRecord, StepRecord
from batchproof.checks.broken import broken
from batchproof.checks.late_ends import LateEnds, check_late_ends
from batchproof.checks.prefixes import ComputedPrefixes
from batchproof.findings.finding import Facts, Rule
from batchproof.workload.workloads import Workload

IN_TIME = LateEnds()  # every end takes effect at once


@dataclass
class _Replay:
    """Follows a trace step by step: what each sequence has cached and produced."""

    workload: Workload
    num_cached: dict[str, int] = field(default_factory=dict)
    num_outputs: dict[str, int] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)
    ever_admitted: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.requests = {request.request_id: request for request in self.workload.requests}

    def num_known(self, request_id: str) -> int:
        """Tokens that exist: prompt and outputs so far."""
        return len(self.requests[request_id].prompt_token_ids) + self.num_outputs.get(request_id, 0)

    def is_decoding(self, request_id: str) -> bool:
        return self.num_cached.get(request_id, 0) == self.num_known(request_id) - 1

    def begin(self, step: int, record: StepRecord) -> None:
        ids = [row.request_id for row in record.rows]
        for request_id in (
            *ids,
            *record.waiting,
            *record.admitted,
            *record.finished,
            *record.preempted,
        ):
            if request_id not in self.requests:
                raise broken(Rule.NAMES, step=step, name=request_id)
        for request_id in record.preempted:
            self.num_cached[request_id] = 0
            self.running = [each for each in self.running if each != request_id]
        for request_id in record.admitted:
            self.running.append(request_id)
            if request_id not in self.ever_admitted:
                self.ever_admitted.append(request_id)

    def end(self, record: StepRecord) -> None:
        for row in record.rows:
            self.num_cached[row.request_id] = row.context_len + row.query_len
            self.num_outputs[row.request_id] = self.num_outputs.get(row.request_id, 0) + row.is_sampled
        self.running = [each for each in self.running if each not in record.finished]


def check_positions(
    trace: Sequence[StepRecord], workload: Workload, prefixes: ComputedPrefixes | None = None
) -> None:
    """P7: each row continues where its cache ends; a token is sampled exactly when all are fed.

    `prefixes`: what a request may begin behind; None: nothing.
    """
    replay = _Replay(workload)
    for step, record in enumerate(trace):
        replay.begin(step, record)
        rows = record.rows
        if prefixes is not None:  # a row may begin behind what a shorter one of its own step computes
            rows = tuple(sorted(rows, key=lambda row: row.context_len))
        for row in rows:
            _check_row(step, row, replay, prefixes)
        replay.end(record)


def _check_row(step: int, row: RowRecord, replay: _Replay, prefixes: ComputedPrefixes | None) -> None:
    name = row.request_id
    cached, known = replay.num_cached.get(name, 0), replay.num_known(name)
    if prefixes is not None:
        if not cached and row.context_len > 0:
            _check_hit(step, row, prefixes)
            cached = row.context_len
        prefixes.note(row)
    if row.context_len != cached:
        raise broken(Rule.POSITIONS, name, step, context_len=row.context_len, num_fed=cached)
    if not 1 <= row.query_len <= known - cached:
        raise broken(Rule.QUERY_LEN, name, step, query_len=row.query_len, num_due=known - cached)
    num_fed = row.context_len + row.query_len
    if row.is_sampled != (num_fed == known):
        facts: Facts = {"is_sampled": row.is_sampled, "num_fed": num_fed, "num_known": known}
        raise broken(Rule.SAMPLED, name, step, **facts)


def _check_hit(step: int, row: RowRecord, prefixes: ComputedPrefixes) -> None:
    """The first row after an admission may begin behind a prefix that was computed before."""
    if not prefixes.hold(row.request_id, row.context_len):
        raise broken(Rule.PREFIX, row.request_id, step, num_tokens=row.context_len)


def check_limits(trace: Sequence[StepRecord], workload: Workload, has_token_budget: bool) -> None:
    """P9: slots, and the token budget of engines that schedule by it, are never exceeded."""
    config = workload.config
    for step, record in enumerate(trace):
        ids = [row.request_id for row in record.rows]
        if len(set(ids)) < len(ids):
            raise broken(Rule.TWO_ROWS, step=step, ids=ids)
        if len(ids) > config.max_num_seqs:
            facts: Facts = {"num_rows": len(ids), "max_num_seqs": config.max_num_seqs}
            raise broken(Rule.SLOTS, step=step, **facts)
        fed = sum(row.query_len for row in record.rows)
        if has_token_budget and fed > config.max_num_batched_tokens:
            limit = config.max_num_batched_tokens
            raise broken(Rule.TOKEN_BUDGET, step=step, num_fed=fed, max_num_batched_tokens=limit)


def check_scheduling(
    trace: Sequence[StepRecord], workload: Workload, can_chunk: bool, ends: LateEnds = IN_TIME
) -> None:
    """P9: continuous batching. Not for workloads with aborts, which leave no mark in a trace."""
    check_late_ends(trace, ends)
    replay = _Replay(workload)
    arrival_order = _arrival_order(workload)
    previous: StepRecord | None = None
    for step, record in enumerate(trace):
        replay.begin(step, record)
        _check_slots(step, replay, ends)
        _check_first_come(step, record, replay, arrival_order)
        _check_decodes(step, record, replay, ends)
        _check_refill(step, record, replay, previous, can_chunk)
        replay.end(record)
        previous = record


def _arrival_order(workload: Workload) -> list[str]:
    arrivals = workload.arrivals or (0,) * len(workload.requests)
    ordered = sorted(zip(arrivals, range(len(arrivals)), strict=True))
    return [workload.requests[index].request_id for _, index in ordered]


def _check_first_come(step: int, record: StepRecord, replay: _Replay, arrival_order: list[str]) -> None:
    """Nobody is admitted before somebody who came earlier and waits, be it as a preempted one."""
    for waiting in record.waiting:
        for admitted in record.admitted:
            if arrival_order.index(admitted) > arrival_order.index(waiting):
                raise broken(Rule.FIRST_COME, admitted, step, waiting=waiting)
    firsts = [arrival_order.index(each) for each in replay.ever_admitted]
    if firsts != sorted(firsts):
        should_be = arrival_order[: len(firsts)]
        raise broken(Rule.ARRIVAL_ORDER, step=step, got=replay.ever_admitted, should_be=should_be)


def _check_slots(step: int, replay: _Replay, ends: LateEnds) -> None:
    """Whoever ends late keeps its slot until then, with a row or without."""
    num_slots = replay.workload.config.max_num_seqs
    is_late = any(ends.is_late(each, step) for each in replay.running)
    if is_late and len(replay.running) > num_slots:
        facts: Facts = {"num_running": len(replay.running), "num_slots": num_slots}
        raise broken(Rule.LATE_SLOTS, step=step, running=replay.running, **facts)


def _check_decodes(step: int, record: StepRecord, replay: _Replay, ends: LateEnds) -> None:
    """Every running decode gets its token, also in a step that prefills others."""
    fed = {row.request_id for row in record.rows}
    for request_id in replay.running:
        is_due = replay.is_decoding(request_id) and not ends.is_late(request_id, step)
        if request_id not in fed and is_due:
            raise broken(Rule.DECODES, request_id, step, rows=sorted(fed))


def _check_refill(
    step: int, record: StepRecord, replay: _Replay, previous: StepRecord | None, can_chunk: bool
) -> None:
    """A free slot is filled if a request waits and fits."""
    config = replay.workload.config
    if not record.waiting or record.preempted or len(replay.running) >= config.max_num_seqs:
        return
    head = record.waiting[0]
    fed = sum(row.query_len for row in record.rows)
    room = config.max_num_batched_tokens - fed
    if room < (1 if can_chunk else replay.num_known(head)):
        return
    if not _surely_fits_pool(head, record, replay, previous):
        return
    raise broken(
        Rule.REFILL,
        head,
        step,
        num_running=len(replay.running),
        max_num_seqs=config.max_num_seqs,
        running=replay.running,
        room=room,
    )


def _surely_fits_pool(
    head: str, record: StepRecord, replay: _Replay, previous: StepRecord | None
) -> bool:
    """In the engine's favour: room for all that the step fed, or took over from the free blocks that a
    prefix cache remembers, and for the head's whole life."""
    if record.num_total_blocks is None:
        return True
    free = record.num_total_blocks if previous is None else previous.num_free_blocks
    size = replay.workload.config.block_size
    request = replay.requests[head]
    ends = {row.request_id: row.context_len + row.query_len for row in record.rows}
    fed = sum(ceil((end - replay.num_cached.get(each, 0)) / size) + 1 for each, end in ends.items())
    needed = ceil((len(request.prompt_token_ids) + request.max_new_tokens) / size)
    return free is not None and free >= fed + needed


def check_accounting(
    trace: Sequence[StepRecord], workload: Workload, is_idle_at_end: bool = True
) -> None:
    """P11: free blocks stay within the pool, what is used has an owner, and nothing is left over."""
    replay = _Replay(workload)
    size = workload.config.block_size
    for step, record in enumerate(trace):
        replay.begin(step, record)
        replay.end(record)
        free, total = record.num_free_blocks, record.num_total_blocks
        if free is None or total is None:
            continue
        if total != trace[0].num_total_blocks or not 0 <= free <= total:
            raise broken(Rule.POOL, step=step, num_free=free, num_total=total)
        used = total - free
        least = max((ceil(replay.num_cached[each] / size) for each in replay.running), default=0)
        most = sum(_whole_life_blocks(each, replay) for each in replay.running)
        if not least <= used <= most:
            blocks: Facts = {"num_used": used, "num_free": free, "num_total": total, "block_size": size}
            facts: Facts = {"least": least, "most": most, "running": replay.running, **blocks}
            raise broken(Rule.ACCOUNTING, step=step, **facts)
    last = trace[-1] if trace else None
    if is_idle_at_end and last is not None and last.num_free_blocks != last.num_total_blocks:
        free, total = last.num_free_blocks, last.num_total_blocks
        raise broken(Rule.LEFTOVER_BLOCKS, num_free=free, num_total=total)


def _whole_life_blocks(request_id: str, replay: _Replay) -> int:
    request = replay.requests[request_id]
    num_tokens = len(request.prompt_token_ids) + request.max_new_tokens
    return ceil(num_tokens / replay.workload.config.block_size)


def check_ends(
    trace: Sequence[StepRecord],
    workload: Workload,
    completions: Sequence[Completion],
    ends: LateEnds = IN_TIME,
) -> None:
    """P10: every step feeds something, within the bound, and every request finishes once, in time."""
    if len(trace) > workload.step_bound:
        raise broken(Rule.STEP_BOUND, num_steps=len(trace), bound=workload.step_bound)
    finished = [each for record in trace for each in record.finished]
    sampled = [row.request_id for record in trace for row in record.rows if row.is_sampled]
    for step, record in enumerate(trace):
        if not record.rows:
            raise broken(Rule.IDLE_STEP, step=step)
    for completion in completions:
        name, num_tokens = completion.request_id, len(completion.token_ids)
        if finished.count(name) != 1:
            raise broken(Rule.FINISHED_ONCE, name, num_times=finished.count(name))
        surplus = ends.num_surplus.get(name, 0)
        if sampled.count(name) != num_tokens + surplus:
            facts: Facts = {"num_sampled": sampled.count(name), "num_tokens": num_tokens}
            raise broken(Rule.NUM_SAMPLED, name, num_surplus=surplus, **facts)
