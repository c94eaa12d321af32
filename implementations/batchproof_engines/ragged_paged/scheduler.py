"""The policy of the paged teaching engine: that of the ragged one, over blocks and lanes."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace

from batchproof.api import EngineConfig, Limits, StepRecord, TokenEvent
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence
from batchproof_engines.ragged_paged.blocks import BlockManager
from batchproof_engines.sampler import GREEDY
from batchproof_engines.stopping import may_have_drafts


class PagedScheduler(Scheduler):
    """Owns the queues, the blocks, and the lanes: rows of what an engine keeps for each slot."""

    block_manager_class = BlockManager

    def __init__(self, limits: Limits, config: EngineConfig) -> None:
        super().__init__(limits, config)
        self.blocks = self.block_manager_class(
            config.num_blocks, config.block_size, config.prefix_caching
        )
        self.lanes: dict[str, int] = {}  # of the running sequences, by request
        # Behind how many of these blocks, whose keys are known, a sequence can start.
        self.num_resumable: Callable[[Sequence, list[int]], int] = lambda _, blocks: len(blocks)

    def usable(self, sequence: Sequence, known: list[int]) -> list[int]:
        """Returns the first of these blocks, whose keys are known, that the sequence may start behind:
        of a prompt only what is fed is scored."""
        asked = (sequence.request.sampling or GREEDY).prompt_logprobs
        num_scored = len(sequence.prompt_logprobs)
        if asked is not None and num_scored < len(sequence.request.prompt_token_ids):
            known = known[: max(num_scored - 1, 0) // self._config.block_size]
        return known[: self.num_resumable(sequence, known)]

    def _admit_first(self, plan: dict[Sequence, int]) -> bool:  # noqa: ARG002
        """Admits it behind the prefix that is known of it, and gives it the lowest free lane."""
        sequence = self.waiting[0]
        if not self._has_adapter_slot(sequence):
            return False
        known = self.blocks.match(sequence)
        hits = self.usable(sequence, known)
        if not self.blocks.can_hold(sequence, len(sequence.token_ids), hits):
            return False
        self.running.append(self.waiting.popleft())
        lanes = range(self._config.max_num_seqs)
        self.lanes[sequence.request_id] = min({*lanes} - {*self.lanes.values()})
        self.blocks.adopt(sequence, hits)
        self.blocks.tables[sequence.request_id].num_known_blocks = len(known)
        return True

    def _fits(self, plan: dict[Sequence, int]) -> bool:
        sequence, num_new = next(reversed(plan.items()))  # the others own their blocks
        return self.blocks.can_hold(sequence, sequence.num_computed_tokens + num_new, [])

    def _take_blocks(self, sequence: Sequence, num_new: int) -> None:
        self.blocks.allocate(sequence, sequence.num_computed_tokens + num_new)

    def room_for_drafts(self, plan: SchedulerOutput, most: int) -> list[int]:
        """Returns for how many drafts, up to `most`, each row has room: decodes alone, and only what is
        left of the budget, the pool and the cap once all are served. Allocates their blocks."""
        budget = self._config.max_num_batched_tokens - sum(row.query_len for row in plan.rows)
        room: list[int] = []
        for (sequence, num_new), row in zip(plan.scheduled, plan.rows, strict=True):
            num_tokens = len(sequence.token_ids)
            is_drafted = row.is_sampled and num_new == 1 and may_have_drafts(sequence.request)
            left = sequence.request.max_new_tokens - len(sequence.output_token_ids) - 1
            num = max(min(most, budget, left), 0) if is_drafted else 0
            while num and not self.blocks.can_hold(sequence, num_tokens + num, []):
                num -= 1
            if num:
                self.blocks.allocate(sequence, num_tokens + num)
            budget -= num
            room.append(num)
        return room

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        events, record = super().update(plan, token_ids)
        for sequence, _ in plan.scheduled:
            self.blocks.publish(sequence)
            if sequence.finish_reason is not None:
                self.release(sequence)
        return events, replace(record, num_free_blocks=self._num_free_blocks())

    def abort(self, request_id: str) -> bool:
        for sequence in self.running:
            if sequence.request_id == request_id:
                self.release(sequence)
        return super().abort(request_id)

    def release(self, sequence: Sequence) -> None:
        """Takes back the blocks and the lane of a running sequence."""
        self.blocks.release(sequence)
        del self.lanes[sequence.request_id]

    def _preempt_youngest(self) -> str:
        self.release(self.running[-1])
        return super()._preempt_youngest()

    def _num_free_blocks(self) -> int | None:
        return self.blocks.num_free_blocks
