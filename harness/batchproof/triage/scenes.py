"""Scenes: calls to one engine in which requests meet neighbours, queues, chunks, preemption and cached
prefixes. Every field of `EngineConfig` and of a greedy `Request` is varied."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import ceil

from batchproof.api import Capability, EngineConfig, Request
from batchproof.oracle.oracle import Prompt
from batchproof.triage.probes import CAP, Probes
from batchproof.workload.workloads import Workload

Scene = tuple[Workload, ...]  # of one fresh engine, in order

NUM_DRAWN = 10
CROWD = 720  # requests of one call
MOST_KEPT = 16  # near-ties
KEPT_AT_ONCE = 4  # near-ties beside as many neighbours


def scenes(
    probes: Probes,
    answers: Mapping[Prompt, Sequence[int]],
    capabilities: AbstractSet[Capability],
    seed: int,
) -> Iterator[Scene]:
    """Yields seeded scenes: everything at once, then drawn ones, with a crowd among them.

    `answers` holds what the engine answers alone: of it, EOS ids are made that occur.
    """
    rng = random.Random(seed)
    everything = tuple(probes.alone)
    yield (Workload(everything, EngineConfig(max_num_seqs=8)),)
    yield (Workload(everything[::-1], EngineConfig(max_num_seqs=33)),)
    drawing = _Drawing(rng, probes, answers, capabilities)
    for number in range(NUM_DRAWN):
        yield drawing.scene()
        if number == NUM_DRAWN // 3:
            yield drawing.crowd()


class _Drawing:
    def __init__(
        self,
        rng: random.Random,
        probes: Probes,
        answers: Mapping[Prompt, Sequence[int]],
        capabilities: AbstractSet[Capability],
    ) -> None:
        self._rng = rng
        self._prompts = [*probes.prompts, *(each.prompt_token_ids for each in probes.ladder)]
        self._answers = {prompt: tokens for prompt, tokens in answers.items() if tokens}
        self._capabilities = capabilities

    def scene(self) -> Scene:
        """Returns one to three calls under limits that all of them fit in."""
        rng = self._rng
        longest = rng.choice((20, 40, 300, 10**6))
        sizes = rng.choices((1, 2, 3, 5, 8, 16, 33), k=rng.choice((1, 1, 2, 3)))
        calls = [tuple(self._request(_name(i), longest) for i in range(size)) for size in sizes]
        config = self._limits([request for call in calls for request in call])
        return tuple(Workload(call, config) for call in calls)

    def crowd(self) -> Scene:
        """Returns many short requests in one call."""
        requests = [self._request(f"r{i}", 20, most=2) for i in range(CROWD)]
        return (Workload(tuple(requests), EngineConfig(max_num_seqs=33)),)

    def _request(self, name: str, longest: int, most: int = CAP) -> Request:
        rng = self._rng
        prompt = rng.choice([each for each in self._prompts if len(each) <= longest])
        eos: set[int] = set()
        known = self._answers.get(prompt, ())
        if known and rng.random() < 0.5:
            eos = {rng.choice(known), rng.choice(rng.choice([*self._answers.values()]))}
        cap = rng.choice((most, rng.randint(1, most)))
        return Request(name, prompt, cap, frozenset(eos))

    def _limits(self, requests: Sequence[Request]) -> EngineConfig:
        rng, can = self._rng, self._capabilities
        slots = rng.choice((1, 2, 3, 4, 8, 17, 33))
        block = rng.choice((1, 2, 4, 8, 16))
        budget, pool = 2048, None
        if Capability.CHUNKED_PREFILL in can and rng.random() < 0.5:
            budget = rng.choice((slots, slots + 1, slots + 5, max(slots, 16)))
        if Capability.PREEMPTION in can and rng.random() < 0.5:
            needs = [ceil((len(r.prompt_token_ids) + r.max_new_tokens) / block) for r in requests]
            pool = max(needs) + rng.randint(0, max(needs))
        has_cache = Capability.PREFIX_CACHING in can and rng.random() < 0.5
        longest = max(len(r.prompt_token_ids) + r.max_new_tokens for r in requests)
        context = rng.choice((None, longest))  # which the longest then fills to its end
        return EngineConfig(slots, budget, block, pool, context, prefix_caching=has_cache)


def _name(place: int) -> str:
    """Returns ids of which four at a time differ in a blank or a case alone."""
    return ("r{}", " r{}", "r{} ", "R{}")[place % 4].format(place // 4)


def rewritten(probes: Probes, seed: int) -> Iterator[tuple[Workload, Workload]]:
    """Yields pairs of calls with the same near-ties in the same shapes, and other contents of all
    neighbours."""
    rng = random.Random(seed)
    alphabet = sorted({token for each in probes.prompts for token in each})
    kept = [*probes.ladder]
    rng.shuffle(kept)
    kept = kept[:MOST_KEPT]
    for start in range(0, len(kept), KEPT_AT_ONCE):
        some = kept[start : start + KEPT_AT_ONCE]
        lengths = [rng.randint(3, 40) for _ in some]
        first, second = (_beside(some, lengths, rng, alphabet) for _ in range(2))
        yield first, second


def _beside(
    kept: Sequence[Request], lengths: Sequence[int], rng: random.Random, alphabet: Sequence[int]
) -> Workload:
    others = [
        Request(f"neighbour-{i}", tuple(rng.choices(alphabet, k=length)), CAP)
        for i, length in enumerate(lengths)
    ]
    mixed = [each for pair in zip(others, kept, strict=True) for each in pair]
    return Workload(tuple(mixed), EngineConfig(max_num_seqs=8))
