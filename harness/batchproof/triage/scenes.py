"""In which company probes are asked: alone, then beside others, in queues, in chunks, after preemption,
on cached prefixes, after answers that were cut off."""

import random
from collections.abc import Iterator, Sequence
from math import ceil

from batchproof.api import Capability, EngineConfig
from batchproof.records.probe_packs import ProbePack
from batchproof.triage.asking import Asked, Door, Scene
from batchproof.triage.hypotheses import ALONE

CALLS_AT_ONCE = 4  # single requests, after which one looks at the evidence
NUM_ALONE = 24  # at first
NUM_CUT = 6  # answers that are cut off at once
BLOCK_SIZES = (1, 2, 4, 8, 16)  # tokens
TOGETHER, QUEUED, AGAIN = "together", "in a queue", "again, with cached prefixes"
CHUNKED, PREEMPTED, AFTER_CUT = "in chunks", "under preemption", "after answers cut off"


def names_of(door: Door) -> list[str]:
    """Returns the scenes that a door allows, but `ALONE`."""
    can = door.capabilities
    found = [TOGETHER, AGAIN]
    if can:
        found.append(QUEUED)
    if Capability.CHUNKED_PREFILL in can:
        found.append(CHUNKED)
    if Capability.PREEMPTION in can:
        found.append(PREEMPTED)
    if door.can_cut:
        found.append(AFTER_CUT)
    return found


def alone(probes: Sequence[int]) -> Scene:
    return Scene(ALONE, tuple((Asked(each),) for each in probes))


def schedule(pack: ProbePack, door: Door, most_at_once: int, seed: int) -> Iterator[Scene]:
    """Yields scenes without end: single requests at first, then all others in turn."""
    rng, num = random.Random(seed), len(pack.probes)
    order = alternately(num)
    for start in range(0, min(NUM_ALONE, num), CALLS_AT_ONCE):
        yield alone(order[start : min(start + CALLS_AT_ONCE, NUM_ALONE)])
    names, has_eos = names_of(door), bool(door.capabilities)
    waiting: list[int] = []
    while True:
        for name in names:
            while len(waiting) < most_at_once:
                waiting += rng.sample(range(num), num)
            probes, waiting = waiting[:most_at_once], waiting[most_at_once:]
            asked = [_asked(pack, each, rng, has_eos) for each in probes]
            yield _scene(name, pack, asked, door, rng)
        yield alone(rng.sample(range(num), min(CALLS_AT_ONCE, num)))


def alternately(num: int) -> list[int]:
    """Returns numbers from the first half, near-ties, and from the second, wide margins, in turn."""
    half = (num + 1) // 2
    pairs = [(i, half + i) for i in range(half)]
    return [each for pair in pairs for each in pair if each < num]


def _asked(pack: ProbePack, probe: int, rng: random.Random, has_eos: bool) -> Asked:
    steps = pack.probes[probe].steps
    return Asked(probe, rng.randrange(len(steps)) if has_eos and rng.random() < 0.5 else None)


def _scene(name: str, pack: ProbePack, asked: Sequence[Asked], door: Door, rng: random.Random) -> Scene:
    calls: tuple[tuple[Asked, ...], ...] = (tuple(asked),)
    if name == AFTER_CUT:
        return Scene(name, calls, cut=tuple(each.probe for each in asked[:NUM_CUT]))
    if name == AGAIN:
        half = tuple(asked[: (len(asked) + 1) // 2])
        calls = (half, half)
    if not door.capabilities:
        return Scene(name, calls)
    probes = [pack.probes[each.probe] for each in asked]
    lengths = [len(each.prompt) + len(each.steps) for each in probes]
    block, slots = rng.choice(BLOCK_SIZES), rng.choice((4, 8, len(asked)))
    budget, pool = 2048, None
    if name == QUEUED:
        slots = rng.choice((1, 2, 3))
    if name == CHUNKED:
        budget = rng.choice((slots, slots + 1, slots + 5, max(slots, 16)))
    if name == PREEMPTED:
        most = ceil(max(lengths) / block)
        pool = most + rng.randint(0, most)
    is_cached = name == AGAIN and Capability.PREFIX_CACHING in door.capabilities
    context = rng.choice((None, max(lengths)))  # which the longest then fills to its end
    config = EngineConfig(slots, budget, block, pool, context, prefix_caching=is_cached)
    return Scene(name, calls, config)
