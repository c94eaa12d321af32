"""What the paged engine's policy must do, in plain Python, beside what it does.

Blocks hold no keys here but names of contents: the content of position p is a hash of all tokens up to
p, as a key and a value depend on them all. So a hit on other content, a block written while another
holds it, or one read after it was given away shows at once, and the next "token" is made of what
was read.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import TypeVar

from batchproof.api import EngineConfig, FinishReason, Limits, Request
from batchproof_paged.rows import Rows, Scheduled
from batchproof_paged.scheduler import Scheduler, SchedulerOutput
from batchproof_paged.sequence import PENDING, Sequence

VOCAB_SIZE = 3  # so few that prompts share prefixes and answers meet their EOS
MAX_MODEL_LEN = 40
LIMITS = Limits(VOCAB_SIZE, MAX_MODEL_LEN)


def chain(before: int, token_id: int) -> int:
    """Returns the content id of a position, given that of the one before it (0: there is none)."""
    return hash((before, token_id))


def next_token(content: int) -> int:
    return content // 7 % VOCAB_SIZE


@dataclass(eq=False)
class Asked:
    """One request: what it must get, and its progress."""

    request: Request
    sequence: Sequence
    token_ids: list[int] = field(default_factory=list)  # prompt and outputs
    contents: list[int] = field(default_factory=list)  # of their positions
    num_computed: int = 0

    def __post_init__(self) -> None:
        for token_id in self.request.prompt_token_ids:
            self.take(token_id)

    def take(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        self.contents.append(chain(self.contents[-1] if self.contents else 0, token_id))

    @property
    def num_outputs(self) -> int:
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    @property
    def finish_reason(self) -> FinishReason | None:
        if self.num_outputs and self.token_ids[-1] in self.request.eos_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.is_full else None

    @property
    def is_full(self) -> bool:
        """Returns whether it has reached its cap."""
        return self.num_outputs == self.request.max_new_tokens


@dataclass(eq=False)
class PolicyModel:
    """Drives a scheduler as an engine would, and holds each of its plans against what it must be.

     `is_overlapped`: tokens are reported one step late, so that behind an EOS a sequence is fed
    once more.
    """

    config: EngineConfig
    is_overlapped: bool = False
    has_lanes: bool = True
    num_schedules: int = 0
    num_hits: int = 0  # requests that began behind a prefix taken over
    num_evictions: int = 0
    num_preemptions: int = 0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(LIMITS, self.config, self.has_lanes)
        self.live: dict[str, Asked] = {}
        self.waiting: deque[Asked] = deque()
        self.running: list[Asked] = []  # oldest first
        self.cells: dict[tuple[int, int], int] = {}  # block and offset -> content last written
        # Published contents: the content of a block's last position names its whole prefix.
        self.block_of: dict[int, int] = {}
        self.content_of: dict[int, int] = {}  # the other way round
        self.ever_evicted: set[int] = set()
        self._in_flight: list[tuple[Scheduled, Asked, int]] = []  # row and the token it chose

    # ---- what a client does ---------------------------------------------------------------------

    def add(self, request: Request) -> bool:
        """Returns whether it was queued; checks that it is refused exactly if it must be."""
        refusal = self.scheduler.refusal(request)
        assert (refusal is not None) == self._is_bad(request), f"{request}: {refusal}"
        if refusal is not None:
            return False
        asked = Asked(request, self.scheduler.add(request))
        self.live[request.request_id] = asked
        self.waiting.append(asked)
        return True

    def _is_bad(self, request: Request) -> bool:
        length = len(request.prompt_token_ids) + request.max_new_tokens
        pool = (
            inf if self.config.num_blocks is None else self.config.num_blocks * self.config.block_size
        )
        return request.request_id in self.live or length > MAX_MODEL_LEN or length - 1 > pool

    def abort(self, request_id: str) -> None:
        asked = self.live.pop(request_id, None)
        assert self.scheduler.abort(request_id) == (asked is not None), request_id
        if asked is not None:
            (self.waiting if asked in self.waiting else self.running).remove(asked)
            assert asked.sequence.finish_reason is FinishReason.ABORTED, "its holder can see that"

    def step(self) -> None:
        rows, victims = self._foreseen()
        plan = self.scheduler.schedule()
        self.num_schedules += 1
        assert bool(plan.scheduled) == bool(self.live), (
            "a step does something if there is something to do"
        )
        self._check_running(plan, rows, victims)
        self._check_admitted(plan, num_running=len(rows), num_victims=len(victims))
        for each in plan.scheduled:
            self._check_reads(each)
        for each in plan.scheduled:
            self._write(each)
        self._finish_step(plan)
        self.check()

    def run_to_end(self) -> None:
        """Checks that every request gets its answer within so many steps."""
        most = 16 + 8 * sum(
            len(each.token_ids) + each.request.max_new_tokens for each in self.live.values()
        )
        for _ in range(most):
            if not self.live:
                break
            self.step()
        assert not self.live, f"after {most} steps {list(self.live)} are unfinished"
        self._land()
        free, total = self.scheduler.blocks.num_free_blocks, self.config.num_blocks
        assert free == total, f"{free} of {total} blocks are free at the end"

    # ---- what must come of it -------------------------------------------------------------------

    def _num_blocks(self, num_tokens: int) -> int:
        return ceil(num_tokens / self.config.block_size)

    @property
    def _limit(self) -> float:
        return inf if self.config.num_blocks is None else self.config.num_blocks

    def _foreseen(self) -> tuple[list[tuple[Asked, int]], list[Asked]]:
        """Returns the tokens to feed to running requests, oldest first, and the requests to preempt."""
        survivors, rows, victims = list(self.running), [], []
        tables = {each: list(each.sequence.block_table) for each in survivors}
        users = Counter(block for table in tables.values() for block in table)
        num_used, budget = len(users), self.config.max_num_batched_tokens
        while len(rows) < len(survivors) and budget:
            asked = survivors[len(rows)]
            num_new = min(len(asked.token_ids) - asked.num_computed, budget)
            lacking = self._num_blocks(asked.num_computed + num_new) - len(tables[asked])
            if num_used + lacking <= self._limit:
                rows.append((asked, num_new))
                num_used, budget = num_used + lacking, budget - num_new
                continue
            victims.append(survivors.pop())
            for block in tables[victims[-1]]:
                users[block] -= 1
                num_used -= not users[block]
        return rows, victims

    def _check_running(
        self, plan: SchedulerOutput, rows: list[tuple[Asked, int]], victims: list[Asked]
    ) -> None:
        assert list(plan.preempted) == [each.request.request_id for each in victims]
        assert not victims or self.running[0] not in victims, "the oldest gave way"
        planned = plan.scheduled[: len(rows)]
        assert [each.sequence for each in planned] == [asked.sequence for asked, _ in rows]
        for each, (asked, num_new) in zip(planned, rows, strict=True):
            assert (each.context_len, each.query_len) == (asked.num_computed, num_new), each
            self._note_new_blocks(each, self._num_blocks(each.context_len))
        for victim in victims:
            self.running.remove(victim)
            self.waiting.appendleft(victim)
            victim.num_computed = 0
        self.num_preemptions += len(victims)

    def _check_admitted(self, plan: SchedulerOutput, num_running: int, num_victims: int) -> None:
        newcomers = plan.scheduled[num_running:]
        budget = self.config.max_num_batched_tokens
        budget -= sum(each.query_len for each in plan.scheduled[:num_running])
        assert not (num_victims and newcomers), "a newcomer came in a step that took blocks away"
        users = Counter(block for each in self.running for block in each.sequence.block_table)
        for each in newcomers:
            asked = self.waiting.popleft()
            assert each.sequence is asked.sequence, "first come, first served"
            num_hits, rest = divmod(each.context_len, self.config.block_size)
            assert not rest, "only full blocks are taken over"
            assert num_hits >= len(self._known_prefix(asked)), (
                "a prefix in the cache was not taken over"
            )
            assert each.query_len == min(len(asked.token_ids) - each.context_len, budget) > 0, each
            hits = asked.sequence.block_table[:num_hits]
            needed = self._num_blocks(len(asked.token_ids)) - sum(block in users for block in hits)
            assert len(users) + needed <= self._limit, "admitted, but it does not fit whole"
            assert asked.sequence.num_cached_tokens == each.context_len, each
            self.num_hits += bool(num_hits)
            asked.num_computed = each.context_len
            self.running.append(asked)
            users.update(asked.sequence.block_table)
            self._note_new_blocks(each, num_hits)
            budget -= each.query_len
        assert list(plan.admitted) == [each.sequence.request_id for each in newcomers]
        if self.waiting and budget and not num_victims and len(self.running) < self.config.max_num_seqs:
            self._check_left_out(self.waiting[0], users)

    def _check_left_out(self, asked: Asked, users: Counter[int]) -> None:
        """Checks P9: a free slot is filled, unless the pool is too full for the head of the queue."""
        known = self._known_prefix(asked)
        needed = self._num_blocks(len(asked.token_ids)) - sum(block in users for block in known)
        assert len(users) + needed > self._limit, f"{asked.request.request_id} waits beside a free slot"

    def _known_prefix(self, asked: Asked) -> list[int]:
        """Returns the blocks it must find: published, with no earlier one ever evicted.

        (Blocks after an evicted one may still exist, but they cannot be reached.)
        """
        found: list[int] = []
        size = self.config.block_size
        for end in range(size, len(asked.token_ids), size):
            content = asked.contents[end - 1]
            if content not in self.block_of or content in self.ever_evicted:
                break
            found.append(self.block_of[content])
        return found

    def _note_new_blocks(self, each: Scheduled, num_old: int) -> None:
        """Forgets what was known of blocks that are allocated as blank ones."""
        for block in each.sequence.block_table[num_old:]:
            content = self.content_of.pop(block, None)
            if content is not None:
                del self.block_of[content]
                self.ever_evicted.add(content)
                self.num_evictions += 1

    def _place(self, sequence: Sequence, position: int) -> tuple[int, int]:
        column, offset = divmod(position, self.config.block_size)
        return sequence.block_table[column], offset

    def _check_reads(self, each: Scheduled) -> None:
        asked = self.live[each.sequence.request_id]
        assert each.is_sampled == (each.context_len + each.query_len == len(asked.token_ids)), each
        for position in range(each.context_len):
            read = self.cells.get(self._place(each.sequence, position))
            assert read == asked.contents[position], f"{each}: position {position} holds other content"

    def _write(self, each: Scheduled) -> None:
        asked = self.live[each.sequence.request_id]
        for position in range(each.context_len, each.context_len + each.query_len):
            place = self._place(each.sequence, position)
            for other in self.running:
                if other is not asked:
                    assert place[0] not in other.sequence.block_table, (
                        f"{each} writes to a shared block"
                    )
            self.cells[place] = asked.contents[position]

    def _finish_step(self, plan: SchedulerOutput) -> None:
        rows = sorted(plan.scheduled, key=lambda each: each.query_len > 1)  # as an engine packs them
        askeds = [self.live[each.sequence.request_id] for each in rows]
        chosen = [next_token(asked.contents[-1]) for asked in askeds]
        flight = [each for each in zip(rows, askeds, chosen, strict=True) if each[0].is_sampled]
        stopped = self._land()
        tokens = [PENDING if self.is_overlapped else token for _, _, token in flight]
        fed = [pair for pair in zip(rows, askeds, strict=True) if pair[1] not in stopped]
        flight = [each for each in flight if each[1] not in stopped]
        for each, asked in fed:
            asked.num_computed += each.query_len
            self._publish(asked)
        done = self.scheduler.update(Rows.of(rows), tokens)
        for _, asked, token in flight:
            asked.take(token)
        self._in_flight = flight
        if self.is_overlapped:
            self._check_done(done, stopped + [asked for _, asked, _ in flight if asked.is_full])
        else:
            self._land()
            self._check_done(done, [asked for _, asked, _ in flight if asked.finish_reason])

    def _publish(self, asked: Asked) -> None:
        if self.config.prefix_caching:
            for column in range(asked.num_computed // self.config.block_size):
                content = asked.contents[(column + 1) * self.config.block_size - 1]
                block = asked.sequence.block_table[column]
                if content not in self.block_of and block not in self.content_of:
                    self.block_of[content], self.content_of[block] = block, content

    def _land(self) -> list[Asked]:
        """Delivers the tokens of the step before and checks what its requests got so far.

        Returns the requests that turn out to have ended.
        """
        flight, self._in_flight = self._in_flight, []
        stopped = []
        for row, asked, token in flight:
            sequence = row.sequence
            if sequence.finish_reason is FinishReason.ABORTED:
                continue
            index, was_running = row.context_len + row.query_len, sequence.finish_reason is None
            assert sequence.token_ids[index] in (PENDING, token)
            if sequence.reveal(index, token) and was_running:
                self.scheduler.stop(sequence)
                stopped.append(asked)
            assert sequence.token_ids == asked.token_ids[: sequence.num_tokens], row
            assert sequence.finish_reason is asked.finish_reason, asked.request
        return stopped

    def _check_done(self, done: list[Sequence], wanted: list[Asked]) -> None:
        assert done == [asked.sequence for asked in wanted]
        for asked in wanted:
            assert asked.sequence.finish_reason is not None, asked.request
            assert asked.sequence.num_tokens == len(asked.token_ids), asked.request
            assert not asked.sequence.block_table, "what is done owns nothing"
            (self.waiting if asked in self.waiting else self.running).remove(asked)
            del self.live[asked.request.request_id]

    def check(self) -> None:
        """Checks that the scheduler agrees with itself and with this model; may be called any time."""
        self.scheduler.check_integrity()
        assert [each.request.request_id for each in self.waiting] == list(self.scheduler.waiting_ids)
        assert [each.sequence for each in self.running] == self.scheduler.running
        assert all(self.scheduler.is_live(each) for each in self.live)
        for asked in self.running:
            assert asked.sequence.num_computed_tokens == asked.num_computed, asked.request
        if self.config.num_blocks is not None:
            used = {block for each in self.running for block in each.sequence.block_table}
            free = self.config.num_blocks - len(used)
            assert self.scheduler.blocks.num_free_blocks == free, f"should be {free}"


LONGEST_PROMPT, MAX_CAP = 12, 8
Model = TypeVar("Model", bound=PolicyModel)


def play(seed: int, model_class: type[Model]) -> Model:
    """A client with a random generator: adds (twins, shared prefixes, ids again, what never fits),
    steps and aborts in any order."""
    rng = random.Random(seed)
    config = EngineConfig(
        max_num_seqs=rng.randint(1, 4),
        max_num_batched_tokens=rng.choice([4, 5, 7, 64]),
        block_size=rng.randint(1, 4),
        num_blocks=rng.choice([None, *range(3, 12)]),
        prefix_caching=rng.random() < 0.75,
    )
    model = model_class(config, rng.random() < 0.5, rng.random() < 0.5)
    texts = [[rng.randrange(VOCAB_SIZE) for _ in range(LONGEST_PROMPT)] for _ in range(2)]
    asked: list[Request] = []
    for turn in range(40):
        if rng.random() < 0.6:
            prompt = tuple(rng.choice(texts)[: rng.randint(1, LONGEST_PROMPT)])
            eos = frozenset({rng.randrange(VOCAB_SIZE)} if rng.random() < 0.2 else ())
            request = Request(f"r{turn}", prompt, rng.randint(1, MAX_CAP), eos)
            for twin in range(rng.choice([1, 1, 1, 2])):
                asked.append(replace(request, request_id=f"r{turn}-{twin}"))
                model.add(asked[-1])
        if asked and rng.random() < 0.1:
            model.add(rng.choice(asked))  # refused where its id is live, else served
            model.add(Request("never fits", (0,) * MAX_MODEL_LEN, 1))
        if asked and rng.random() < 0.1:
            model.abort(rng.choice([*asked, Request("unknown", (0,), 1)]).request_id)
        model.step()
    model.run_to_end()
    return model
