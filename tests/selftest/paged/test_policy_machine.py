"""The paged engine's scheduler and block manager against a model of them, in every order of events."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batchproof.api import EngineConfig, Request
from tests.selftest.paged.policy_model import MAX_MODEL_LEN, VOCAB_SIZE, PolicyModel

LONGEST_PROMPT = 12
MAX_CAP = 8

token_ids = st.integers(0, VOCAB_SIZE - 1)
caps = st.integers(1, MAX_CAP)
eos_sets = st.one_of(st.just(frozenset()), st.frozensets(token_ids, min_size=1, max_size=1))


class PolicyMachine(RuleBasedStateMachine):
    """A client that adds, steps and aborts as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.num_requests = 0
        self.asked: list[Request] = []  # also those that are gone

    @initialize(
        max_num_seqs=st.integers(1, 4),
        budget=st.sampled_from([4, 5, 7, 64]),
        block_size=st.integers(1, 4),
        num_blocks=st.one_of(st.none(), st.integers(3, 12)),
        has_prefix_cache=st.booleans(),
        is_overlapped=st.booleans(),
        has_lanes=st.booleans(),
    )
    def build(
        self,
        max_num_seqs: int,
        budget: int,
        block_size: int,
        num_blocks: int | None,
        has_prefix_cache: bool,
        is_overlapped: bool,
        has_lanes: bool,
    ) -> None:
        config = EngineConfig(
            max_num_seqs, budget, block_size, num_blocks, prefix_caching=has_prefix_cache
        )
        self.model = PolicyModel(config, is_overlapped, has_lanes)

    def add(self, prompt: tuple[int, ...], cap: int, eos: frozenset[int]) -> None:
        request = Request(f"r{self.num_requests}", prompt, cap, eos)
        self.num_requests += 1
        self.asked.append(request)
        self.model.add(request)

    @rule(prompt=st.lists(token_ids, min_size=1, max_size=LONGEST_PROMPT), cap=caps, eos=eos_sets)
    def add_any(self, prompt: list[int], cap: int, eos: frozenset[int]) -> None:
        self.add(tuple(prompt), cap, eos)

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), tail=st.lists(token_ids, max_size=4), cap=caps)
    def add_one_that_begins_alike(self, data: st.DataObject, tail: list[int], cap: int) -> None:
        """A beginning of an earlier prompt, also all of it, and something else behind it."""
        earlier = data.draw(st.sampled_from(self.asked)).prompt_token_ids
        shared = data.draw(st.integers(1, len(earlier)))
        self.add((*earlier[:shared], *tail), cap, frozenset())

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), count=st.integers(2, 3))
    def add_twins(self, data: st.DataObject, count: int) -> None:
        earlier = data.draw(st.sampled_from(self.asked))
        for _ in range(count):
            self.add(earlier.prompt_token_ids, earlier.max_new_tokens, earlier.eos_token_ids)

    @rule(token_id=token_ids)
    def add_one_that_never_fits(self, token_id: int) -> None:
        self.add((token_id,) * MAX_MODEL_LEN, 1, frozenset())

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def add_an_id_that_is_live(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.model.live)))
        assert not self.model.add(Request(request_id, (0,), 1))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def add_an_id_again(self, data: st.DataObject) -> None:
        """Refused where it is live, served where it has finished or was aborted."""
        self.model.add(data.draw(st.sampled_from(self.asked)))

    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.model.step()

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        """Waiting, half fed, decoding, preempted, finished."""
        self.model.abort(data.draw(st.sampled_from(self.asked)).request_id)

    @rule()
    def abort_nobody(self) -> None:
        self.model.abort("nobody")

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "model"):
            self.model.check()

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.model.run_to_end()


TestPolicyMachine = PolicyMachine.TestCase
TestPolicyMachine.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


Model = TypeVar("Model", bound=PolicyModel)


def play(seed: int, model_class: type[Model]) -> Model:
    """A client that throws dice: no shrinking, but many more schedules a second."""
    rng = random.Random(seed)
    config = EngineConfig(
        max_num_seqs=rng.randint(1, 4),
        max_num_batched_tokens=rng.choice([4, 6, 64]),
        block_size=rng.randint(1, 4),
        num_blocks=rng.choice([None, *range(4, 12)]),
        prefix_caching=rng.random() < 0.75,
    )
    model = model_class(config, rng.random() < 0.5, rng.random() < 0.5)
    texts = [[rng.randrange(VOCAB_SIZE) for _ in range(LONGEST_PROMPT)] for _ in range(2)]
    asked: list[Request] = []
    for turn in range(40):
        if rng.random() < 0.6:
            prompt = tuple(rng.choice(texts)[: rng.randint(1, LONGEST_PROMPT)])
            eos = frozenset({rng.randrange(VOCAB_SIZE)} if rng.random() < 0.2 else ())
            asked.append(Request(f"r{turn}", prompt, rng.randint(1, MAX_CAP), eos))
            for twin in range(rng.choice([1, 1, 1, 2])):
                model.add(replace(asked[-1], request_id=f"r{turn}-{twin}"))
        if asked and rng.random() < 0.05:
            model.abort(f"{rng.choice(asked).request_id}-0")
        model.step()
    model.run_to_end()
    return model


def test_thousands_of_schedules_keep_every_rule() -> None:
    """`pytest -s` shows how many a second; nothing depends on it."""
    played = [play(seed, PolicyModel) for seed in range(150)]
    num_schedules = sum(each.num_schedules for each in played)
    policy_s = sum(each.policy_s for each in played)
    print(f"\n{num_schedules} schedules, {num_schedules / policy_s:,.0f} a second without the model")
    assert num_schedules > 5_000
    # What it is about has happened, and often.
    assert sum(each.num_preemptions for each in played) > 200
    assert sum(each.num_hits for each in played) > 500
    assert sum(each.num_evictions for each in played) > 500
