"""Who runs in the next step: the paged engine's policy, without a tensor.

    waiting --admit--> running --last token--> gone
       ^                  |
       +---- preempt -----+

First come first served. Running sequences go before newcomers, so that every decode gets its token in
every step; what is left of the token budget goes to prompts, in chunks if need be. A step that would
overrun the block pool takes the youngest sequence out again (preemption by recompute: it keeps its
outputs, waits first in line, and is fed again from the start, or from what the prefix cache kept).

The oldest sequence is never preempted for a younger one, so every step brings a request closer to its
end. A request that could never fit is refused when it is added. Nothing here costs more for requests
that wait or are gone.

Iteration-level scheduling: Yu et al., "Orca", OSDI 2022. Chunked prefill: Agrawal et al.,
"Sarathi-Serve", OSDI 2024.
"""

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from heapq import heappop, heappush

from batchproof.api import EngineConfig, FinishReason, Limits, Request, duplicate_id
from batchproof_engines.stopping import may_have_drafts
from batchproof_paged.block_manager import BlockManager, Key
from batchproof_paged.rows import Rows, Scheduled
from batchproof_paged.sequence import Sequence


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The plan of one step."""

    scheduled: Rows  # of the running ones, oldest first, and of those admitted
    admitted: tuple[str, ...]
    preempted: tuple[str, ...]


class Scheduler:
    """Owns the two queues, the lanes and the blocks."""

    def __init__(
        self, limits: Limits, config: EngineConfig, has_lanes: bool = True, num_host_blocks: int = 0
    ) -> None:
        self.blocks = BlockManager(
            config.num_blocks,
            config.block_size,
            config.max_num_seqs,
            config.prefix_caching,
            has_lanes,
            num_host_blocks,
        )
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # oldest first
        self._limits = limits
        self._config = config
        self._live: dict[str, Sequence] = {}
        self._free_lanes = list(range(config.max_num_seqs))
        self._stopped: list[Sequence] = []  # by an EOS read late, and not booked yet
        self._preempted: list[str] = []  # between two steps
        self._waiting_ids: tuple[str, ...] | None = ()  # None: the queue has changed since

    @property
    def waiting_ids(self) -> tuple[str, ...]:
        """Listed again only after the queue has changed: it may be long."""
        if self._waiting_ids is None:
            self._waiting_ids = tuple(sequence.request_id for sequence in self.waiting)
        return self._waiting_ids

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def queued(self) -> list[Sequence]:
        return [*self.waiting, *self.running]

    def is_live(self, request_id: str) -> bool:
        return request_id in self._live

    def refusal(self, request: Request) -> str | None:
        """Why the request cannot be served, now or ever."""
        if self.is_live(request.request_id):
            return duplicate_id(request.request_id)
        return self._limits.refusal(request) or self._pool_refusal(request)

    def add(self, request: Request, root: int = 0) -> Sequence:
        sequence = Sequence(request, list(request.prompt_token_ids), root=root, content_id=root)
        self._live[request.request_id] = sequence
        self.waiting.append(sequence)
        self._waiting_ids = None
        return sequence

    def abort(self, request_id: str) -> bool:
        """End the request wherever it is; False if there is no such one."""
        sequence = self._live.pop(request_id, None)
        if sequence is None:
            return False
        sequence.finish_reason = FinishReason.ABORTED
        self._preempted = [each for each in self._preempted if each != request_id]
        if sequence.lane < 0:
            self.waiting.remove(sequence)
            self._waiting_ids = None
        else:
            self.running.remove(sequence)
            self._release(sequence)
        return True

    def schedule(self) -> SchedulerOutput:
        """Plan the next step: move the queues and hand out lanes and blocks accordingly."""
        admitted: list[str] = []
        preempted: list[str] = []
        rows = self._decodes_alone()
        if rows is None:
            plan: list[Scheduled] = []
            budget, preempted = self._continue_running(plan, self._config.max_num_batched_tokens)
            # None is admitted in a step that took blocks away: the victim would come straight back.
            admitted = [] if preempted else self._admit(plan, budget)
            rows = Rows.of(plan)
        before, self._preempted = self._preempted, []
        return SchedulerOutput(rows, tuple(admitted), (*before, *preempted))

    def _decodes_alone(self) -> Rows | None:
        """Fast path: returns the plan if every running sequence decodes one token and none is admitted,
        else None. (Sequences that have got a block by then keep it: they are the oldest, which would
        get theirs first in any case.)"""
        running, block_size = self.running, self._config.block_size
        if (self.waiting and self._free_lanes) or len(running) > self._config.max_num_batched_tokens:
            return None
        context_lens = [sequence.num_computed_tokens for sequence in running]
        if context_lens != [len(sequence.token_ids) - 1 for sequence in running]:
            return None
        for sequence, context_len in zip(running, context_lens, strict=True):
            if context_len % block_size == 0:
                if not self.blocks.can_hold(sequence, context_len + 1):
                    return None
                self.blocks.allocate(sequence, context_len + 1)
        return Rows.decodes(running.copy(), context_lens)

    def _continue_running(self, plan: list[Scheduled], budget: int) -> tuple[int, list[str]]:
        """What is left of the budget, and who had to give way."""
        preempted: list[str] = []
        while len(plan) < len(self.running) and budget:
            sequence = self.running[len(plan)]
            num_new = min(sequence.num_uncomputed_tokens, budget)
            if not self.blocks.can_hold(sequence, sequence.num_computed_tokens + num_new):
                preempted.append(self._preempt_youngest())  # perhaps this very sequence
                continue
            plan.append(self._feed(sequence, num_new))
            budget -= num_new
        return budget, preempted

    def _admit(self, plan: list[Scheduled], budget: int) -> list[str]:
        admitted: list[str] = []
        while self.waiting and self._free_lanes and budget:
            sequence = self.waiting[0]
            if not self._has_adapter_slot(sequence):
                break
            hits = self._usable(sequence, self.blocks.match(sequence))
            # Admit only what fits whole, even if the budget cuts it into chunks.
            if not self.blocks.can_hold(sequence, sequence.num_tokens, hits):
                break
            self.running.append(self.waiting.popleft())
            self._waiting_ids = None
            sequence.lane = heappop(self._free_lanes)
            self.begin(sequence, hits)
            admitted.append(sequence.request_id)
            num_new = min(sequence.num_uncomputed_tokens, budget)
            plan.append(self._feed(sequence, num_new))
            budget -= num_new
        return admitted

    def begin(self, sequence: Sequence, hits: tuple[Key, ...]) -> None:
        """Gives a newcomer the blocks whose content is known."""
        self.blocks.adopt(sequence, hits)

    def _has_adapter_slot(self, sequence: Sequence) -> bool:
        """Whether its adapter may run beside those that run."""
        most = self._config.max_loras
        if most is None or sequence.request.adapter is None:
            return True
        names = {each.request.adapter for each in (*self.running, sequence)} - {None}
        return len(names) <= most

    def _usable(self, sequence: Sequence, known: tuple[Key, ...]) -> tuple[Key, ...]:
        """The first of these blocks, whose keys are known, that it may start behind: of a prompt only
        what is fed is scored."""
        if not sequence.is_scored:
            return known
        return known[: max(len(sequence.prompt_logprobs) - 1, 0) // self._config.block_size]

    def _feed(self, sequence: Sequence, num_new: int) -> Scheduled:
        context_len = sequence.num_computed_tokens
        self.blocks.allocate(sequence, context_len + num_new)
        return Scheduled(sequence, context_len, num_new, num_new == sequence.num_uncomputed_tokens)

    def room_for_drafts(self, rows: Rows, most: int) -> list[int]:
        """For how many drafts, up to `most`, each row has room: decodes alone, and only what is left of
        the budget, the pool and the cap once all are served. The blocks are theirs then."""
        budget = self._config.max_num_batched_tokens - sum(rows.query_lens)
        room: list[int] = []
        for sequence, context_len, query_len, is_sampled in rows:
            is_drafted = is_sampled and query_len == 1 and may_have_drafts(sequence.request)
            num = min(most, budget, sequence.max_num_tokens - sequence.num_tokens - 1)
            num = max(num, 0) if is_drafted else 0
            while num and not self.blocks.can_hold(sequence, context_len + 1 + num):
                num -= 1
            self.blocks.allocate(sequence, context_len + query_len + num)
            budget -= num
            room.append(num)
        return room

    def update(self, scheduled: Rows, token_ids: Seq[int]) -> list[Sequence]:
        """Book what the step has done. `token_ids`: one for each sampled row, `PENDING` for those not
        known yet. Returns the sequences that are done, those stopped since the last step among them."""
        tokens = iter(token_ids)
        done, self._stopped = self._stopped, []
        is_published = self._config.prefix_caching
        for sequence, context_len, query_len, is_sampled in zip(*scheduled.columns, strict=True):
            token_id = next(tokens) if is_sampled else None
            if sequence.finish_reason is not None:  # its row was fed before its EOS was read
                continue
            sequence.num_computed_tokens = context_len + query_len
            if is_published:
                self.blocks.publish(sequence)
            if token_id is not None and sequence.append(token_id):
                done.append(sequence)
        for sequence in done:
            del self._live[sequence.request_id]
            if sequence.lane >= 0:
                self._release(sequence)
        if done:
            self.running = [seq for seq in self.running if seq.finish_reason is None]
        return done

    def stop(self, sequence: Sequence) -> None:
        """Its EOS was read a step late: the next `update` books its end. It runs still, or waits, if it
        was preempted in the step under way."""
        if sequence.lane < 0:
            self.waiting.remove(sequence)
            self._waiting_ids = None
        self._stopped.append(sequence)

    def preempt_all(self) -> None:
        """Restart all that run, between two steps; the record of the next one names them. Those whose
        EOS was read late are booked by that, and stay."""
        ended = [sequence for sequence in self.running if sequence.finish_reason is not None]
        self.running = [sequence for sequence in self.running if sequence.finish_reason is None]
        while self.running:
            self._preempted.append(self._preempt_youngest())
        self.running = ended

    def _preempt_youngest(self) -> str:
        victim = self.running.pop()
        self._release(victim)
        self.waiting.appendleft(victim)
        self._waiting_ids = None
        return victim.request_id

    def _release(self, sequence: Sequence) -> None:
        self.blocks.release(sequence)
        heappush(self._free_lanes, sequence.lane)
        sequence.lane = -1

    def _pool_refusal(self, request: Request) -> str | None:
        # The last token is never fed, so it needs no room.
        num_tokens = len(request.prompt_token_ids) + request.max_new_tokens - 1
        needed = self.blocks.num_blocks_for(num_tokens)
        if self._config.num_blocks is None or needed <= self._config.num_blocks:
            return None
        return f"it needs {needed} blocks of KV cache, but the pool has {self._config.num_blocks}"

    def check_integrity(self) -> None:
        self.blocks.check_integrity(self.running)
        lanes = [sequence.lane for sequence in self.running]
        assert sorted(lanes + self._free_lanes) == list(range(self._config.max_num_seqs)), "lanes"
        queued = [*self.waiting, *self.running]
        assert {seq.request_id for seq in queued} == set(self._live), "queues"
        assert len(queued) == len(self._live), "a sequence is queued twice"
        assert all(seq.lane < 0 and not seq.block_table for seq in self.waiting), "a waiting one owns"
