"""Two engines in one process: one computes prompts, the other goes on (disaggregated serving).

    add -> the first engine feeds the prompt but for its last token, in chunks if need be
        -> it keeps the blocks, without a lane, until the second has room
        -> the second admits the request, copies the blocks to its own pool, and feeds the last token

Each has a pool and a budget of the whole config; slots are shared. A request is computed in the second
engine alone if that knows all of its prompt but the last token, if its prompt is to be scored, and from
a preemption there on.

A step is one of each, and its record tells of both: rows that do not end a prompt, and all others.

Zhong et al., "DistServe", OSDI 2024.
"""

from collections.abc import Sequence as Seq
from dataclasses import replace
from heapq import heappush
from typing import Any

from transformers import PreTrainedModel

from batchproof.api import EngineConfig, Request, StepRecord
from batchproof_paged.block_manager import TRANSFERRED, Key, Move
from batchproof_paged.blocks import BlockPool
from batchproof_paged.engine import Landed, MakeBackend, PagedEngine
from batchproof_paged.moving import BlockMover
from batchproof_paged.options import PagedOptions
from batchproof_paged.rows import Rows, TraceLog
from batchproof_paged.scheduler import Scheduler, SchedulerOutput
from batchproof_paged.sequence import Sequence


class PromptScheduler(Scheduler):
    """Lets sequences go once their prompts are computed; they keep their blocks."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.computed: list[Sequence] = []

    def share_slots(self, other: Scheduler) -> None:
        self._free_lanes = other._free_lanes

    def update(self, scheduled: Rows, token_ids: Seq[int]) -> list[Sequence]:
        super().update(scheduled, token_ids)
        for sequence in [each for each in self.running if each.num_tokens > each.num_prompt_tokens]:
            self.running.remove(sequence)
            del self._live[sequence.request_id]
            heappush(self._free_lanes, sequence.lane)
            self.computed.append(sequence)
        return []


class DecodeScheduler(Scheduler):
    """Admits sequences whose prompts another scheduler has had computed."""

    def __init__(self, prompts: PromptScheduler, *given: Any) -> None:
        super().__init__(*given)
        self.prompts = prompts
        self._ahead: dict[str, Sequence] = {}  # whose prompts are not computed yet
        # Of those that wait for the first time: as it was in the other engine, where its blocks are.
        self._twins: dict[Sequence, Sequence] = {}
        self.taken_over: set[str] = set()  # ids of those that the step under way begins so
        prompts.share_slots(self)

    @property
    def has_unfinished(self) -> bool:
        return bool(self._ahead) or super().has_unfinished

    @property
    def queued(self) -> list[Sequence]:
        return [*self._ahead.values(), *super().queued]

    @property
    def under_way(self) -> set[str]:
        """Ids of the requests between the two engines."""
        return {each.request_id for each in self._twins}

    def schedule(self) -> SchedulerOutput:
        self.taken_over.clear()
        return super().schedule()

    def add(self, request: Request, root: int = 0) -> Sequence:
        sequence = super().add(request, root)
        num_known = len(self.blocks.match(sequence)) * self.blocks.block_size
        if sequence.num_tokens - 1 > num_known and not sequence.is_scored:
            self.waiting.pop()
            self._ahead[request.request_id] = sequence
            # One token is chosen behind what is computed, and dropped; the cap lets it go on.
            prompt = request.prompt_token_ids[:-1]
            twin = replace(request, prompt_token_ids=prompt, max_new_tokens=2, sampling=None)
            self.prompts.add(replace(twin, eos_token_ids=frozenset()), root)
        return sequence

    def abort(self, request_id: str) -> bool:
        sequence = self._ahead.pop(request_id, None)
        if sequence is not None:
            self.prompts.abort(request_id)
            self.waiting.append(sequence)
        elif (sequence := self._live.get(request_id)) in self._twins:
            self.prompts.blocks.release(self._twins.pop(sequence))
        return super().abort(request_id)

    def receive(self) -> None:
        """Queues the sequences whose prompts are computed by now."""
        for twin in self.prompts.computed:
            sequence = self._ahead.pop(twin.request_id)
            self._twins[sequence] = twin
            self.waiting.append(sequence)
            self._waiting_ids = None
        self.prompts.computed.clear()

    def begin(self, sequence: Sequence, hits: tuple[Key, ...]) -> None:
        super().begin(sequence, hits)
        twin = self._twins.pop(sequence, None)
        if twin is not None:
            self.taken_over.add(sequence.request_id)
            self.blocks.allocate(sequence, twin.num_computed_tokens)
            pairs = zip(sequence.block_table, twin.block_table, strict=True)
            moves = [Move(TRANSFERRED, *pair) for pair in pairs]
            self.blocks.moves += moves[len(hits) :]
            sequence.num_computed_tokens = twin.num_computed_tokens
            self.prompts.blocks.release(twin)  # the copy is made before they are written again


class PromptEngine(PagedEngine):
    """The first engine."""

    def _scheduler_of(self, *given: Any) -> Scheduler:
        return PromptScheduler(*given)


class TransferEngine(PagedEngine):
    """The second engine, which clients call, with the first behind it."""

    _scheduler: DecodeScheduler

    def __init__(
        self,
        model: PreTrainedModel,
        config: EngineConfig,
        make_backend: MakeBackend,
        options: PagedOptions,
    ) -> None:
        alone = replace(config, return_logits=False)
        self._prompts = PromptEngine(model, alone, make_backend, options)
        super().__init__(model, config, make_backend, options)
        pool, source = self._backend, self._prompts._backend
        assert isinstance(pool, BlockPool), "the options exclude it"
        assert isinstance(source, BlockPool), "the options exclude it"
        self._movers = [BlockMover(pool, options.offload, source)]
        self._num_moved[TRANSFERRED] = 0
        self._told = list[StepRecord]()

    def _scheduler_of(self, *given: Any) -> Scheduler:
        assert isinstance(self._prompts._scheduler, PromptScheduler), "it makes one"
        return DecodeScheduler(self._prompts._scheduler, *given)

    @property
    def trace(self) -> Seq[StepRecord]:
        return self._told

    @property
    def counters(self) -> dict[str, int]:
        others = self._prompts.counters
        return {name: number + others.get(name, 0) for name, number in self._num_moved.items()}

    def load_adapter(self, name: str, path: str) -> None:
        super().load_adapter(name, path)
        self._prompts.load_adapter(name, path)

    def unload_adapter(self, name: str) -> None:
        super().unload_adapter(name)
        self._prompts.unload_adapter(name)

    def _carry_out(self, plan: SchedulerOutput) -> Landed:
        """Does what both have planned: a slot that one frees by then is filled in the next step. Blocks
        are copied first: they may have been given to others."""
        prompts = self._prompts._scheduler.schedule()
        landed = super()._carry_out(plan)
        self._prompts._carry_out(prompts)
        self._tell()
        self._scheduler.receive()
        return landed

    def _tell(self) -> None:
        """Makes one record of what both engines have told of this step. A request that goes from one to
        the other keeps its slot."""
        both = self._prompts._scheduler, self._scheduler
        under_way, taken_over = self._scheduler.under_way, self._scheduler.taken_over
        first, second = [*self._prompts._trace], [*self._trace]
        self._trace, self._prompts._trace = TraceLog(), TraceLog()
        if not first + second:
            return
        rows = [replace(row, is_sampled=False) for each in first for row in each.rows]
        rows += [row for each in second for row in each.rows]
        waiting = [name for each in both for name in each.waiting_ids]
        admitted = [name for each in first + second for name in each.admitted]
        total = self._config.num_blocks
        record = StepRecord(
            tuple(rows),
            tuple(each for each in waiting if each not in under_way),
            tuple(each for each in admitted if each not in taken_over),
            tuple(name for each in second for name in each.finished),
            tuple(name for each in first + second for name in each.preempted),
            None if total is None else sum(each.blocks.num_free_blocks or 0 for each in both),
            None if total is None else 2 * total,
        )
        self._told.append(record)
