"""Who runs in the next step: the policy of the ragged engine, without a tensor.

First come first served. Running sequences go before newcomers, so every decode gets its token in
every step; what is left of the token budget goes to prompts, in chunks if need be. With a block pool
a step that would overrun it takes the youngest sequence out again (preemption by recompute: it keeps
its outputs, waits first in line, and is fed again from the start).

    waiting --admit--> running --last token--> gone
       ^                  |
       +---- preempt -----+

The oldest sequence is never preempted for a younger one, so every step brings somebody closer to the
end. A request that could never fit is refused when it is added.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import ceil

from batchproof.api import (
    EngineConfig,
    FinishReason,
    Limits,
    Request,
    RowRecord,
    StepRecord,
    TokenEvent,
    duplicate_id,
)


@dataclass(slots=True, eq=False)
class Sequence:
    """A request in the engine: its tokens so far, and how many of them are in its cache."""

    request: Request
    token_ids: list[int]  # prompt and outputs
    num_computed_tokens: int = 0
    finish_reason: FinishReason | None = None

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[len(self.request.prompt_token_ids) :]

    def append(self, token_id: int) -> None:
        """Take the next token, and see whether it is the last."""
        self.token_ids.append(token_id)
        if token_id in self.request.eos_token_ids:
            self.finish_reason = FinishReason.STOP
        elif len(self.output_token_ids) == self.request.max_new_tokens:
            self.finish_reason = FinishReason.LENGTH


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The plan of one step."""

    scheduled: tuple[tuple[Sequence, int], ...]  # and how many tokens of each to feed
    rows: tuple[RowRecord, ...]  # the same, as the trace shows it
    admitted: tuple[str, ...]
    preempted: tuple[str, ...]


class Scheduler:
    """Owns the two queues."""

    sequence_class = Sequence

    def __init__(self, limits: Limits, config: EngineConfig) -> None:
        self._limits = limits
        self._config = config
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def refusal(self, request: Request) -> str | None:
        """Why the request cannot be served, now or ever."""
        if self.is_live(request.request_id):
            return duplicate_id(request.request_id)
        return self._limits.refusal(request) or self._pool_refusal(request)

    def is_live(self, request_id: str) -> bool:
        return any(seq.request_id == request_id for seq in (*self.waiting, *self.running))

    def add(self, request: Request) -> Sequence:
        """Queue a request that is not refused."""
        sequence = self.sequence_class(request, list(request.prompt_token_ids))
        self.waiting.append(sequence)
        return sequence

    def abort(self, request_id: str) -> bool:
        """Forget the request; False if there is no such one."""
        was_live = self.is_live(request_id)
        self.waiting = deque(seq for seq in self.waiting if seq.request_id != request_id)
        self.running = [seq for seq in self.running if seq.request_id != request_id]
        return was_live

    def schedule(self) -> SchedulerOutput:
        """Plan the next step and move the queues accordingly."""
        budget = self._config.max_num_batched_tokens
        plan: dict[Sequence, int] = {}
        preempted: list[str] = []
        while len(plan) < len(self.running) and budget:
            sequence = self.running[len(plan)]
            num_new = min(sequence.num_uncomputed_tokens, budget)
            if not self._fits({**plan, sequence: num_new}):
                preempted.append(self._preempt_youngest())  # perhaps this very sequence
                continue
            plan[sequence] = num_new
            budget -= num_new

        admitted: list[str] = []
        # Nobody is admitted in a step that took blocks away: the victim would come straight back.
        while self.waiting and self._has_free_slot() and budget and not preempted:
            sequence = self.waiting[0]
            # Admit only what fits whole, even if the budget cuts it into chunks.
            if not self._fits({**plan, sequence: sequence.num_uncomputed_tokens}):
                break
            self.running.append(self.waiting.popleft())
            admitted.append(sequence.request_id)
            plan[sequence] = min(sequence.num_uncomputed_tokens, budget)
            budget -= plan[sequence]

        rows = tuple(
            RowRecord(seq.request_id, seq.num_computed_tokens, n, n == seq.num_uncomputed_tokens)
            for seq, n in plan.items()
        )
        return SchedulerOutput(tuple(plan.items()), rows, tuple(admitted), tuple(preempted))

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        """Book what the step has done; `token_ids`: the token chosen in each row of the plan."""
        events: list[TokenEvent] = []
        for (seq, num_new), row, token_id in zip(plan.scheduled, plan.rows, token_ids, strict=True):
            seq.num_computed_tokens += num_new
            if row.is_sampled:
                seq.append(token_id)
                events.append(TokenEvent(seq.request_id, token_id, seq.finish_reason))
        self.running = [seq for seq in self.running if seq.finish_reason is None]
        return events, StepRecord(
            rows=plan.rows,
            waiting=tuple(seq.request_id for seq in self.waiting),
            admitted=plan.admitted,
            finished=tuple(seq.request_id for seq, _ in plan.scheduled if seq.finish_reason),
            preempted=plan.preempted,
            num_free_blocks=self._num_free_blocks(),
            num_total_blocks=self._config.num_blocks,
        )

    def _has_free_slot(self) -> bool:
        return len(self.running) < self._config.max_num_seqs

    def _preempt_youngest(self) -> str:
        victim = self.running.pop()
        victim.num_computed_tokens = 0
        self.waiting.appendleft(victim)
        return victim.request_id

    def _num_blocks(self, num_tokens: int) -> int:
        return ceil(num_tokens / self._config.block_size)

    def _num_free_blocks(self) -> int | None:
        if self._config.num_blocks is None:
            return None
        used = sum(self._num_blocks(seq.num_computed_tokens) for seq in self.running)
        return self._config.num_blocks - used

    def _fits(self, plan: dict[Sequence, int]) -> bool:
        """Would the pool hold what is running after this plan?"""
        if self._config.num_blocks is None:
            return True
        owners = {*self.running, *plan}
        used = sum(self._num_blocks(s.num_computed_tokens + plan.get(s, 0)) for s in owners)
        return used <= self._config.num_blocks

    def _pool_refusal(self, request: Request) -> str | None:
        # The last token is never fed, so it needs no room.
        needed = self._num_blocks(len(request.prompt_token_ids) + request.max_new_tokens - 1)
        if self._config.num_blocks is None or needed <= self._config.num_blocks:
            return None
        return f"it needs {needed} blocks of KV cache, but the pool has {self._config.num_blocks}"
