"""What a trace must show whatever the tokens are: positions, blocks, ends (promises P7, P10, P11).

Two fifths of the known real bugs never change a greedy token: lost steps, leaks, starved requests.
The invariants count tokens whose keys are written, so an engine may reserve blocks early. Promise P9
is in `scheduling.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import ceil

from batchproof.api import Completion, RowRecord, StepRecord
from batchproof.checks.late_ends import IN_TIME, LateEnds
from batchproof.checks.prefixes import ComputedPrefixes
from batchproof.checks.trace_replay import TraceReplay
from batchproof.findings.finding import Facts, Finding, Rule, found
from batchproof.workload.workloads import Workload


def position_findings(
    trace: Sequence[StepRecord], workload: Workload, prefixes: ComputedPrefixes | None = None
) -> Iterator[Finding]:
    """Yields breaks of P7: each row continues where its cache ends; a token is sampled exactly when
    all are fed.

    A request may begin behind what `prefixes` holds; None: only at 0. Raises `BrokenPromise` for an id
    that no request has, as all checks of a trace do.
    """
    replay = TraceReplay(workload)
    for step, record in enumerate(trace):
        replay.begin(step, record)
        rows = record.rows
        if prefixes is not None:  # a row may begin behind what a shorter one of its own step computes
            rows = tuple(sorted(rows, key=lambda row: row.context_len))
        for row in rows:
            yield from _of_row(step, row, replay, prefixes)
        replay.end(record)


def _of_row(
    step: int, row: RowRecord, replay: TraceReplay, prefixes: ComputedPrefixes | None
) -> Iterator[Finding]:
    name = row.request_id
    cached, known = replay.num_cached.get(name, 0), replay.num_known(name)
    if prefixes is not None:
        if not cached and row.context_len > 0:
            if not prefixes.hold(name, row.context_len):
                yield found(Rule.PREFIX, name, step, num_tokens=row.context_len)
            cached = row.context_len
        prefixes.note(row)
    if row.context_len != cached:
        yield found(Rule.POSITIONS, name, step, context_len=row.context_len, num_fed=cached)
    asked = replay.workload.config.num_speculative_tokens
    most = max(0, row.query_len - 1) if asked is None else asked  # an engine may speculate unasked
    most = most if row.is_sampled else 0
    if not 0 <= row.num_accepted <= row.num_drafted <= most:
        drafts: Facts = {"num_drafted": row.num_drafted, "num_accepted": row.num_accepted}
        yield found(Rule.DRAFTS, name, step, **drafts, most=most)
    num_due, query_len = known - cached, row.query_len - row.num_drafted
    if not 1 <= query_len <= num_due:
        yield found(Rule.QUERY_LEN, name, step, query_len=query_len, num_due=num_due)
    num_fed = row.context_len + query_len
    if row.is_sampled != (num_fed == known):
        facts: Facts = {"is_sampled": row.is_sampled, "num_fed": num_fed, "num_known": known}
        yield found(Rule.SAMPLED, name, step, **facts)


def accounting_findings(
    trace: Sequence[StepRecord], workload: Workload, is_idle_at_end: bool = True
) -> Iterator[Finding]:
    """Yields breaks of P11: free blocks stay within the pool, used ones have an owner, and none is
    left over.

    `is_idle_at_end`: whether all blocks must be free after the last record.
    """
    replay = TraceReplay(workload)
    size = workload.config.block_size
    for step, record in enumerate(trace):
        replay.begin(step, record)
        replay.end(record)
        free, total = record.num_free_blocks, record.num_total_blocks
        if free is None or total is None:
            continue
        if total != trace[0].num_total_blocks or not 0 <= free <= total:
            yield found(Rule.POOL, step=step, num_free=free, num_total=total)
        used = total - free
        least = max((ceil(replay.num_cached[each] / size) for each in replay.running), default=0)
        most = sum(_whole_life_blocks(each, replay) for each in replay.running)
        if not least <= used <= most:
            blocks: Facts = {"num_used": used, "num_free": free, "num_total": total, "block_size": size}
            facts: Facts = {"least": least, "most": most, "running": replay.running, **blocks}
            yield found(Rule.ACCOUNTING, step=step, **facts)
    last = trace[-1] if trace else None
    if is_idle_at_end and last is not None and last.num_free_blocks != last.num_total_blocks:
        free, total = last.num_free_blocks, last.num_total_blocks
        yield found(Rule.LEFTOVER_BLOCKS, num_free=free, num_total=total)


def _whole_life_blocks(request_id: str, replay: TraceReplay) -> int:
    """Returns the blocks that a request can own at most."""
    request = replay.requests[request_id]
    config = replay.workload.config
    num_tokens = len(request.prompt_token_ids) + request.max_new_tokens
    return ceil((num_tokens + (config.num_speculative_tokens or 0)) / config.block_size)


def end_findings(
    trace: Sequence[StepRecord],
    workload: Workload,
    completions: Sequence[Completion],
    ends: LateEnds = IN_TIME,
) -> Iterator[Finding]:
    """Yields breaks of P10: every step feeds something, the step bound holds, and every request
    finishes once.

    And of P14: each request is sampled once for each token, surplus rows excepted.
    """
    if len(trace) > workload.step_bound:
        yield found(Rule.STEP_BOUND, num_steps=len(trace), bound=workload.step_bound)
    finished = [each for record in trace for each in record.finished]
    sampled: Counter[str] = Counter()
    for step, record in enumerate(trace):
        if not record.rows:
            yield found(Rule.IDLE_STEP, step=step)
        for row in record.rows:
            sampled[row.request_id] += row.num_sampled
    for completion in completions:
        name, num_tokens = completion.request_id, len(completion.token_ids)
        if finished.count(name) != 1:
            yield found(Rule.FINISHED_ONCE, name, num_times=finished.count(name))
        surplus = ends.num_surplus.get(name, 0)
        if sampled[name] != num_tokens + surplus:
            facts: Facts = {"num_sampled": sampled[name], "num_tokens": num_tokens}
            yield found(Rule.NUM_SAMPLED, name, num_surplus=surplus, **facts)
