"""The policy of the ragged engine: which sequences run in the next step. It uses no tensors.

First come, first served. Running sequences go before newcomers, so every decode gets its token in
every step; the rest of the token budget goes to prompts, in chunks if necessary. If a step would
overrun the block pool, the youngest sequence is preempted (by recompute: it keeps its outputs, waits
first in line, and is fed again from the start).

    waiting --admit--> running --last token--> gone
       ^                  |
       +---- preempt -----+

The oldest sequence is never preempted for a younger one, so every step brings some sequence closer to
its end. A request that could never fit into the pool is refused when it is added.
"""

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from math import ceil

from batchproof.api import (
    EngineConfig,
    FinishReason,
    Limits,
    Request,
    RowRecord,
    StepRecord,
    TokenEvent,
    TokenLogprobs,
    duplicate_id,
)
from batchproof_engines.grammars import Matcher
from batchproof_engines.stopping import finish_reason


@dataclass(slots=True, eq=False)
class Sequence:
    """A request inside the engine: its tokens so far, and how many of them are in its cache."""

    request: Request
    token_ids: list[int]  # prompt and outputs
    num_computed_tokens: int = 0
    root: int = 0  # of its adapter: `Adapters.root`
    matcher: Matcher | None = None  # of its grammar; stays through preemptions
    finish_reason: FinishReason | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # one a token, if it asks for them
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)  # likewise

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
        """Appends the next token and sets `finish_reason` if it is the last."""
        self.token_ids.append(token_id)
        self.finish_reason = finish_reason(self.request, self.output_token_ids)


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The plan of one step."""

    scheduled: tuple[tuple[Sequence, int], ...]  # with the number of tokens to feed
    rows: tuple[RowRecord, ...]  # the same, as they appear in the trace
    admitted: tuple[str, ...]
    preempted: tuple[str, ...]

    def row_by_row(self) -> list["SchedulerOutput"]:
        """Returns a plan for each row alone, without admissions and preemptions."""
        rows = zip(self.scheduled, self.rows, strict=True)
        return [SchedulerOutput((each,), (row,), (), ()) for each, row in rows]


class Scheduler:
    """Owns the queues of waiting and running sequences."""

    sequence_class = Sequence

    def __init__(self, limits: Limits, config: EngineConfig) -> None:
        self._limits = limits
        self._config = config
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._preempted: list[str] = []  # between two steps

    def refusal(self, request: Request) -> str | None:
        """Returns why the request can never be served or has a live id, or None if it can be added."""
        if self.is_live(request.request_id):
            return duplicate_id(request.request_id)
        return self._limits.refusal(request) or self._pool_refusal(request)

    def is_live(self, request_id: str) -> bool:
        return any(seq.request_id == request_id for seq in (*self.waiting, *self.running))

    def add(self, request: Request) -> Sequence:
        """Queues a request that `refusal` has accepted."""
        sequence = self.sequence_class(request, list(request.prompt_token_ids))
        self.waiting.append(sequence)
        return sequence

    def abort(self, request_id: str) -> bool:
        """Removes the request from the queues; returns False if there is none of this id."""
        was_live = self.is_live(request_id)
        self._preempted = [each for each in self._preempted if each != request_id]
        self.waiting = deque(seq for seq in self.waiting if seq.request_id != request_id)
        self.running = [seq for seq in self.running if seq.request_id != request_id]
        return was_live

    def schedule(self) -> SchedulerOutput:
        """Plans the next step and moves sequences between the queues accordingly."""
        budget = self._config.max_num_batched_tokens
        plan: dict[Sequence, int] = {}
        preempted: list[str] = []
        while len(plan) < len(self.running) and budget:
            sequence = self.running[len(plan)]
            num_new = self._num_new(sequence, budget)
            if not self._fits({**plan, sequence: num_new}):
                preempted.append(self._preempt_youngest())  # this sequence, if it is the youngest
                continue
            plan[sequence] = num_new
            self._take_blocks(sequence, num_new)
            budget -= num_new

        admitted: list[str] = []
        # A step that preempts admits no one: the victim would come straight back.
        while self.waiting and self._has_free_slot() and budget and not preempted:
            if not self._admit_first(plan):
                break
            sequence = self.running[-1]
            admitted.append(sequence.request_id)
            plan[sequence] = self._num_new(sequence, budget)
            self._take_blocks(sequence, plan[sequence])
            budget -= plan[sequence]

        rows = tuple(
            RowRecord(seq.request_id, seq.num_computed_tokens, n, n == seq.num_uncomputed_tokens)
            for seq, n in plan.items()
        )
        before, self._preempted = self._preempted, []
        return SchedulerOutput(tuple(plan.items()), rows, tuple(admitted), (*before, *preempted))

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        """Records the outcome of a step, and returns its events and its record. `token_ids` has one
        chosen token per row of the plan; those of rows that are not sampled are ignored."""
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

    def _num_new(self, sequence: Sequence, budget: int) -> int:
        """Returns how many tokens a sequence is fed in a step that has room for `budget`."""
        return min(sequence.num_uncomputed_tokens, budget)

    def _admit_first(self, plan: dict[Sequence, int]) -> bool:
        """Moves the first waiting sequence into a slot, unless the pool lacks room for all of it: it
        must hold the whole sequence, even if the budget cuts it into chunks."""
        sequence = self.waiting[0]
        if not self._has_adapter_slot(sequence):
            return False
        if not self._fits({**plan, sequence: sequence.num_uncomputed_tokens}):
            return False
        self.running.append(self.waiting.popleft())
        return True

    def _has_adapter_slot(self, sequence: Sequence) -> bool:
        """Returns whether its adapter may run beside those that run."""
        names = {each.request.adapter for each in (*self.running, sequence)} - {None}
        return self._config.max_loras is None or len(names) <= self._config.max_loras

    def _take_blocks(self, sequence: Sequence, num_new: int) -> None:
        """Gives a sequence the blocks of the tokens to feed. Here blocks are just counted."""

    def _has_free_slot(self) -> bool:
        return len(self.running) < self._config.max_num_seqs

    def preempt_all(self) -> None:
        """Takes all out between two steps; the record of the next step names them."""
        while self.running:
            self._preempted.append(self._preempt_youngest())

    def _preempt_youngest(self) -> str:
        victim = self.running.pop()
        victim.num_computed_tokens = 0
        self.waiting.appendleft(victim)
        return victim.request_id

    def _num_blocks(self, num_tokens: int) -> int:
        return ceil(num_tokens / self._config.block_size)

    def _whole_life(self, request: Request) -> int:
        """Returns how many blocks a request needs at its end; its last token is never fed."""
        return self._num_blocks(len(request.prompt_token_ids) + request.max_new_tokens - 1)

    def _owned(self, sequence: Sequence, num_new: int) -> int:
        """Returns how many blocks a sequence owns after feeding `num_new` more tokens."""
        return self._num_blocks(sequence.num_computed_tokens + num_new)

    def _num_used(self, plan: dict[Sequence, int]) -> int:
        return sum(self._owned(each, plan.get(each, 0)) for each in {*self.running, *plan})

    def _num_free_blocks(self) -> int | None:
        total = self._config.num_blocks
        return None if total is None else total - self._num_used({})

    def _fits(self, plan: dict[Sequence, int]) -> bool:
        """Returns whether the pool can hold all running sequences after this plan, whose last entry is
        not settled yet."""
        total = self._config.num_blocks
        return total is None or self._num_used(plan) <= total

    def _pool_refusal(self, request: Request) -> str | None:
        needed = self._whole_life(request)
        if self._config.num_blocks is None or needed <= self._config.num_blocks:
            return None
        return f"it needs {needed} blocks of KV cache, but the pool has {self._config.num_blocks}"
