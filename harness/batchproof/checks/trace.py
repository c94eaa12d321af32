"""What a trace must show whatever the tokens are: positions, blocks, ends (promises P7, P10, P11).

Two fifths of the known real bugs never change a greedy token: lost steps, leaks, starved requests.
The invariants count tokens whose keys are written, so an engine may reserve blocks early. Promise P9
is in `scheduling.py`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any, Self

from batchproof.api import Completion, FinishReason, Request, RowRecord, StepRecord
from batchproof.checks.broken import broken
from batchproof.checks.lifecycle import NO_CUTS, Cuts
from batchproof.checks.prefixes import ComputedPrefixes
from batchproof.findings.finding import Facts, Finding, Rule, found
from batchproof.workload.workloads import Workload


@dataclass
class TraceReplay:
    """The state that a trace implies: call `begin` and `end` for each record, in order."""

    workload: Workload
    cuts: Cuts = NO_CUTS
    num_cached: dict[str, int] = field(default_factory=dict)
    num_kept: dict[str, int] = field(default_factory=dict)  # that it may go on behind, or not
    num_outputs: dict[str, int] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)
    ever_admitted: dict[str, None] = field(default_factory=dict)  # an ordered set

    def __post_init__(self) -> None:
        self.requests = {request.request_id: request for request in self.workload.requests}

    def num_known(self, request_id: str) -> int:
        """Returns the number of tokens that exist: the prompt and the outputs so far."""
        return len(self.requests[request_id].prompt_token_ids) + self.num_outputs.get(request_id, 0)

    def is_decoding(self, request_id: str) -> bool:
        """Returns whether all tokens but the last are cached."""
        return self.num_cached.get(request_id, 0) == self.num_known(request_id) - 1

    def whole_life(self, request_id: str) -> int:
        """Returns the blocks that a request can own at most: with room for drafts that are proven and
        for those that a draft model writes meanwhile."""
        request, config = self.requests[request_id], self.workload.config
        num_tokens = len(request.prompt_token_ids) + request.max_new_tokens
        return ceil((num_tokens + 2 * (config.num_speculative_tokens or 0)) / config.block_size)

    def begin(self, step: int, record: StepRecord) -> None:
        """Applies preemptions and admissions. Raises `BrokenPromise` for an id that no request has."""
        fed = [row.request_id for row in record.rows]
        names = (*fed, *record.waiting, *record.admitted, *record.finished, *record.preempted)
        for name in names:
            if name not in self.requests:
                raise broken(Rule.NAMES, step=step, name=name)
        if step in self.cuts.all:  # an engine that slept may have its keys still
            self.num_kept |= self.num_cached
            self.num_cached.clear()
        if step in self.cuts.updates:  # keys of other weights are none
            self.num_kept.clear()
        for request_id in record.preempted:
            self.num_cached[request_id] = self.num_kept[request_id] = 0
            self.running = [each for each in self.running if each != request_id]
        for request_id in record.admitted:
            self.running.append(request_id)
            self.ever_admitted.setdefault(request_id)

    def end(self, record: StepRecord) -> None:
        """Applies what the rows fed and sampled, and removes finished requests."""
        for row in record.rows:
            self.num_cached[row.request_id] = row.cached_len
            self.num_kept.pop(row.request_id, None)
            self.num_outputs[row.request_id] = self.num_outputs.get(row.request_id, 0) + row.num_sampled
        self.running = [each for each in self.running if each not in record.finished]


NONE_GRANTED = "no delay is granted: only an EOS before the cap may be late, if the engine declares so"


def is_unforeseen(request: Request, completion: Completion) -> bool:
    """Returns whether an EOS ended the request before its cap."""
    is_short = len(completion.token_ids) < request.max_new_tokens
    return is_short and completion.finish_reason is FinishReason.STOP


@dataclass(frozen=True, slots=True)
class LateEnds:
    """When each request's last token was sampled in a trace, and how late that may take effect.

    `sampled_in`: request id -> the step that sampled its last token. `granted`: request id -> steps
    by which it may finish later, which is the declared delay for an unforeseen end; others have no
    entry. `num_surplus`: request id -> later samples that may be discarded.
    """

    sampled_in: Mapping[str, int] = field(default_factory=dict)
    granted: Mapping[str, int] = field(default_factory=dict)
    num_surplus: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        trace: Sequence[StepRecord],
        workload: Workload,
        completions: Sequence[Completion],
        delay: int,
    ) -> Self:
        """Returns the ends in this trace; `delay` is the declared one, in steps. A request with
        fewer samples than tokens has no entry: other rules judge it."""
        requests = {request.request_id: request for request in workload.requests}
        due = {each.request_id: len(each.token_ids) for each in completions}  # samples to come
        granted = {
            each.request_id: delay
            for each in completions
            if delay and is_unforeseen(requests[each.request_id], each)
        }
        sampled_in: dict[str, int] = {}
        num_surplus: Counter[str] = Counter()
        finished: set[str] = set()
        for step, record in enumerate(trace):
            for row in record.rows:
                if not row.is_sampled:
                    continue
                name = row.request_id
                was_due = due.get(name, 0)
                due[name] = was_due - row.num_sampled
                if was_due > 0 and due[name] <= 0:
                    sampled_in[name] = step
                elif name in sampled_in and name not in finished:
                    num_surplus[name] += step <= sampled_in[name] + granted.get(name, 0)
            finished.update(record.finished)
        return cls(sampled_in, granted, num_surplus)

    def is_late(self, request_id: str, step: int) -> bool:
        """Returns whether the request has ended before this step, and the engine need not know yet."""
        return self.has_ended(request_id, step) and step <= self._latest(request_id)

    def has_ended(self, request_id: str, step: int) -> bool:
        """Returns whether its last token was sampled before this step."""
        return self.sampled_in.get(request_id, step) < step

    def finishes_in_time(self, request_id: str, step: int) -> bool:
        """Returns whether it may finish in this step; True for a request without an entry."""
        sampled_in = self.sampled_in.get(request_id)
        return sampled_in is None or sampled_in <= step <= self._latest(request_id)

    def _latest(self, request_id: str) -> int:
        return self.sampled_in[request_id] + self.granted.get(request_id, 0)


IN_TIME = LateEnds()  # every end takes effect at once


def late_end_findings(trace: Sequence[StepRecord], ends: LateEnds) -> Iterator[Finding]:
    """Yields ends that take effect in another step than their own, or an EOS before the cap later than
    declared (P9)."""
    for step, record in enumerate(trace):
        for each in record.finished:
            if not ends.finishes_in_time(each, step):
                yield _late(Rule.LATE_FINISH, each, step, ends)
        for each in record.admitted:
            if ends.has_ended(each, step):
                yield _late(Rule.LATE_ADMISSION, each, step, ends)
        for row in record.rows:
            is_decode = row.query_len == 1 and row.is_sampled
            if ends.has_ended(row.request_id, step) and not is_decode:
                num_tokens = row.query_len
                yield _late(Rule.LATE_ROWS, row.request_id, step, ends, num_tokens=num_tokens)


def _late(rule: Rule, request_id: str, step: int, ends: LateEnds, **facts: Any) -> Finding:
    delay = ends.granted.get(request_id, 0)
    granted = f"scheduling_delay: {delay} steps, as declared" if delay else NONE_GRANTED
    sampled_in = ends.sampled_in[request_id]
    return found(rule, request_id, step, sampled_in=sampled_in, granted=granted, **facts)


def position_findings(
    trace: Sequence[StepRecord],
    workload: Workload,
    prefixes: ComputedPrefixes | None = None,
    cuts: Cuts = NO_CUTS,
    ends: LateEnds = IN_TIME,
) -> Iterator[Finding]:
    """Yields breaks of P7: each row continues where its cache ends; a token is sampled exactly when
    all are fed.

    A request may begin behind what `prefixes` holds; None: only at 0. Raises `BrokenPromise` for an id
    that no request has, as all checks of a trace do.
    """
    replay = TraceReplay(workload, cuts)
    for step, record in enumerate(trace):
        replay.begin(step, record)
        if prefixes is not None and step in cuts.clearings:
            prefixes.forget()
        rows = record.rows
        if step in cuts.updates:  # what is behind the end of a request is discarded
            rows = tuple(row for row in rows if not ends.is_late(row.request_id, step))
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
    if not cached and row.context_len <= replay.num_kept.get(name, 0):
        cached = row.context_len
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
        yield found(Rule.DRAFTS, name, step, **_drafts_of(row), most=most)
    num_due, query_len = known - cached, row.query_len - row.num_drafted
    if not 1 <= query_len <= num_due:
        yield found(Rule.QUERY_LEN, name, step, query_len=query_len, num_due=num_due)
    num_fed = row.context_len + query_len
    if row.is_sampled != (num_fed == known):
        facts: Facts = {"is_sampled": row.is_sampled, "num_fed": num_fed, "num_known": known}
        yield found(Rule.SAMPLED, name, step, **facts)


def lost_drafts(trace: Sequence[StepRecord]) -> Iterator[Finding]:
    """Yields rows that lose a draft where every draft is right: none does but the last of a request,
    which an EOS or the cap ends."""
    rows = [(step, row) for step, record in enumerate(trace) for row in record.rows]
    last = {row.request_id: step for step, row in rows}
    for step, row in rows:
        if row.num_accepted < row.num_drafted and step < last[row.request_id]:
            yield found(Rule.RIGHT_DRAFT, row.request_id, step, **_drafts_of(row))


def _drafts_of(row: RowRecord) -> Facts:
    return {"num_drafted": row.num_drafted, "num_accepted": row.num_accepted}


def accounting_findings(
    trace: Sequence[StepRecord],
    workload: Workload,
    is_idle_at_end: bool = True,
    reach: int | None = None,
    cuts: Cuts = NO_CUTS,
) -> Iterator[Finding]:
    """Yields breaks of P11: free blocks stay within the pool, used ones have an owner, and none is
    left over.

    `is_idle_at_end`: whether all blocks must be free after the last record. What lies before the
    `reach` of a token, None without one, needs no block.
    """
    replay = TraceReplay(workload, cuts)
    size = workload.config.block_size
    for step, record in enumerate(trace):
        replay.begin(step, record)
        replay.end(record)
        free, total = record.num_free_blocks, record.num_total_blocks
        if free is None or total is None:
            continue
        has_changed = total != trace[0].num_total_blocks  # a pool without a limit may grow
        if (has_changed and workload.config.num_blocks) or not 0 <= free <= total:
            yield found(Rule.POOL, step=step, num_free=free, num_total=total)
        used = total - free
        held = [min(replay.num_cached.get(each, 0), reach or inf) for each in replay.running]
        least = ceil(max(held, default=0) / size)
        most = record.num_cache_groups * sum(map(replay.whole_life, replay.running))
        if not least <= used <= most:
            blocks: Facts = {"num_used": used, "num_free": free, "num_total": total, "block_size": size}
            facts: Facts = {"least": least, "most": most, "running": replay.running, **blocks}
            yield found(Rule.ACCOUNTING, step=step, **facts)
    last = trace[-1] if trace else None
    if is_idle_at_end and last is not None and last.num_free_blocks != last.num_total_blocks:
        free, total = last.num_free_blocks, last.num_total_blocks
        yield found(Rule.LEFTOVER_BLOCKS, num_free=free, num_total=total)


def end_findings(
    trace: Sequence[StepRecord], workload: Workload, completions: Sequence[Completion], ends: LateEnds
) -> Iterator[Finding]:
    """Yields breaks of P10: every step feeds something, the step bound holds, and every request
    finishes once. And of P14: each request is sampled once for each token, surplus rows excepted."""
    if len(trace) > workload.step_bound:
        yield found(Rule.STEP_BOUND, num_steps=len(trace), bound=workload.step_bound)
    finished = Counter(each for record in trace for each in record.finished)
    sampled: Counter[str] = Counter()
    for step, record in enumerate(trace):
        if not record.rows:
            yield found(Rule.IDLE_STEP, step=step)
        for row in record.rows:
            sampled[row.request_id] += row.num_sampled
    for completion in completions:
        name, num_tokens = completion.request_id, len(completion.token_ids)
        if finished[name] != 1:
            yield found(Rule.FINISHED_ONCE, name, num_times=finished[name])
        surplus = ends.num_surplus.get(name, 0)
        if sampled[name] != num_tokens + surplus:
            facts: Facts = {"num_sampled": sampled[name], "num_tokens": num_tokens}
            yield found(Rule.NUM_SAMPLED, name, num_surplus=surplus, **facts)
