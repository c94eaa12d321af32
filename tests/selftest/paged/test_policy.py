"""The paged engine's policy: what every plan keeps in thousands of random schedules."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from batchproof.api import EngineConfig, FinishReason, Limits, Request
from batchproof_paged.block_manager import RESTORED
from batchproof_paged.rows import Rows, Scheduled
from batchproof_paged.scheduler import Scheduler, SchedulerOutput
from batchproof_paged.sequence import PENDING, Sequence

VOCAB_SIZE = 3  # so few that prompts share prefixes and answers meet their EOS
MAX_MODEL_LEN, LONGEST_PROMPT, MAX_CAP = 40, 12, 8


@dataclass(eq=False)
class Client:
    """Drives a scheduler as an engine would, and checks what every plan must keep, and that none leaves
    room unused. What blocks hold is for the conformance suite to see.

    With `is_overlapped`, tokens are reported a step late: behind an EOS a sequence is fed once more.
    """

    config: EngineConfig
    is_overlapped: bool
    has_lanes: bool
    num_host_blocks: int = 0
    num_schedules: int = 0
    num_hits: int = 0  # requests that began behind a prefix taken over
    num_preemptions: int = 0
    num_restored: int = 0  # blocks
    right: dict[Sequence, list[int]] = field(default_factory=dict)  # tokens, as if there were no EOS
    flight: list[Scheduled] = field(default_factory=list)  # rows whose tokens are not reported yet

    def __post_init__(self) -> None:
        limits = Limits(VOCAB_SIZE, MAX_MODEL_LEN)
        self.scheduler = Scheduler(limits, self.config, self.has_lanes, self.num_host_blocks)

    def add(self, request: Request) -> None:
        """Queues the request unless it is refused, which it is exactly if it must be."""
        length = len(request.prompt_token_ids) + request.max_new_tokens
        pool = (self.config.num_blocks or MAX_MODEL_LEN) * self.config.block_size
        is_bad = self.scheduler.is_live(request.request_id) or length > min(MAX_MODEL_LEN, pool + 1)
        assert (self.scheduler.refusal(request) is not None) == is_bad, request
        if is_bad:
            return
        tokens = list(request.prompt_token_ids)
        while len(tokens) < length:
            tokens.append(hash(tuple(tokens)) // 7 % VOCAB_SIZE)
        self.right[self.scheduler.add(request)] = tokens

    def step(self) -> None:
        running, waiting = names(self.scheduler.running), self.scheduler.waiting_ids
        most_blocks = sum(
            self.scheduler.blocks.num_blocks_for(each.max_num_tokens) for each in self.scheduler.running
        )
        plan = self.scheduler.schedule()
        self.num_schedules += 1
        self.num_preemptions += len(plan.preempted)
        victims = plan.preempted[::-1]
        survivors = running[: len(running) - len(victims)]
        assert running == (*survivors, *victims), "the youngest give way"
        assert names(self.scheduler.running) == (*survivors, *plan.admitted)
        assert (*plan.admitted, *self.scheduler.waiting_ids) == (*victims, *waiting), "in order"
        if victims:
            assert survivors, "the oldest gave way"
            assert not plan.admitted, "a newcomer came in a step that took blocks away"
            limit = self.config.num_blocks
            assert limit is not None, "an endless pool was too small"
            assert most_blocks > limit, "there was room for all of them"
        self._check_rows(plan)
        moves = self.scheduler.blocks.moves
        self.num_restored += sum(each.kind == RESTORED for each in moves)
        moves.clear()
        self._finish(plan)
        self.scheduler.check_integrity()

    def _check_rows(self, plan: SchedulerOutput) -> None:
        rows, scheduler = plan.scheduled, self.scheduler
        assert rows.sequences == scheduler.running[: len(rows)], "oldest first"
        left = self.config.max_num_batched_tokens - sum(rows.query_lens)
        assert left >= 0, "the budget is overrun"
        for sequence, context_len, query_len, is_sampled in rows:
            is_whole = context_len + query_len == sequence.num_tokens
            assert context_len == sequence.num_computed_tokens
            assert query_len > 0
            assert is_sampled == is_whole
            assert is_whole or not left, "a chunk ended before the budget did"
            if sequence.request_id in plan.admitted:
                self.num_hits += bool(context_len)
        assert not left or len(rows) == len(scheduler.running), "one of the running was left out"
        has_slot = len(scheduler.running) < self.config.max_num_seqs
        if scheduler.waiting and has_slot and left and not plan.preempted:
            head, free = scheduler.waiting[0], scheduler.blocks.num_free_blocks
            assert free is not None, "it waits beside an endless pool"
            known = len(scheduler.blocks.match(head))
            assert scheduler.blocks.num_blocks_for(head.num_tokens) > free - known, "it waits, but fits"

    def _finish(self, plan: SchedulerOutput) -> None:
        rows = sorted(plan.scheduled, key=lambda each: each.query_len > 1)  # as an engine packs them
        landing, self.flight = self.flight, [each for each in rows if each.is_sampled]
        if not self.is_overlapped:
            token_ids = [self._token_of(each) for each in self.flight]
            self.flight = []
        else:
            self._land(landing)
            token_ids = [PENDING] * len(self.flight)
        for sequence in self.scheduler.update(Rows.of(rows), token_ids):
            assert sequence.finish_reason is not None
            assert not sequence.block_table, "what is done owns nothing"

    def _token_of(self, row: Scheduled) -> int:
        return self.right[row.sequence][row.context_len + row.query_len]

    def _land(self, rows: list[Scheduled]) -> None:
        """Reports the tokens of the step before."""
        for row in rows:
            sequence, index = row.sequence, row.context_len + row.query_len
            was_running = sequence.finish_reason is None
            if sequence.awaits(index) and sequence.reveal(index, self._token_of(row)) and was_running:
                self.scheduler.stop(sequence)

    def run_to_end(self) -> None:
        """Checks that every request ends within so many steps, with its own answer, and gives all
        blocks back."""
        for _ in range(8 * MAX_MODEL_LEN * (1 + len(self.scheduler.waiting_ids))):
            if not (self.scheduler.waiting or self.scheduler.running):
                break
            self.step()
        self._land(self.flight)
        assert self.scheduler.blocks.num_free_blocks == self.config.num_blocks
        for sequence, tokens in self.right.items():
            request, reason = sequence.request, sequence.finish_reason
            assert reason is not None, f"{request} is unfinished"
            if reason is not FinishReason.ABORTED:
                first = len(request.prompt_token_ids)
                ends = [i + 1 for i in range(first, len(tokens)) if tokens[i] in request.eos_token_ids]
                assert sequence.token_ids == tokens[: min(ends, default=len(tokens))], request
                assert reason is (FinishReason.STOP if ends else FinishReason.LENGTH), request


def names(sequences: Iterable[Sequence]) -> tuple[str, ...]:
    return tuple(each.request_id for each in sequences)


def played(seed: int) -> Client:
    """Returns a client that has added requests (twins, shared prefixes, ids again, what never fits),
    stepped and aborted in any order."""
    rng = random.Random(seed)
    config = EngineConfig(
        max_num_seqs=rng.randint(1, 4),
        max_num_batched_tokens=rng.choice([4, 5, 7, 64]),
        block_size=rng.randint(1, 4),
        num_blocks=rng.choice([None, *range(3, 12)]),
        prefix_caching=rng.random() < 0.75,
    )
    client = Client(config, rng.random() < 0.5, rng.random() < 0.5, rng.choice([0, 0, 1, 3, 8]))
    texts = [[rng.randrange(VOCAB_SIZE) for _ in range(LONGEST_PROMPT)] for _ in range(2)]
    asked: list[Request] = []
    for turn in range(40):
        if rng.random() < 0.6:
            prompt = tuple(rng.choice(texts)[: rng.randint(1, LONGEST_PROMPT)])
            eos = frozenset({rng.randrange(VOCAB_SIZE)} if rng.random() < 0.2 else ())
            request = Request(f"r{turn}", prompt, rng.randint(1, MAX_CAP), eos)
            for twin in range(rng.choice([1, 1, 1, 2])):
                asked.append(replace(request, request_id=f"r{turn}-{twin}"))
                client.add(asked[-1])
        if asked and rng.random() < 0.1:
            client.add(rng.choice(asked))  # refused where its id is live, else served
            client.add(Request("never fits", (0,) * MAX_MODEL_LEN, 1))
        if asked and rng.random() < 0.1:
            client.scheduler.abort(rng.choice([*asked, Request("unknown", (0,), 1)]).request_id)
        client.step()
    client.run_to_end()
    return client


def test_thousands_of_schedules_keep_every_rule() -> None:
    clients = [played(seed) for seed in range(100)]
    assert sum(each.num_schedules for each in clients) > 2_500
    # What it is about has happened, and often.
    assert sum(each.num_preemptions for each in clients) > 100
    assert sum(each.num_hits for each in clients) > 250
    assert sum(each.num_restored for each in clients) > 100
