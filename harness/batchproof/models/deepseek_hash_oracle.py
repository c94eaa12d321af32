"""The answers of `deepseek-hash` in integers.

The function: the first state of a position is its token, 8 bits. In each layer four heads fetch the
state of a position each. Two read at a fixed distance. Two choose: they read the position that is a
fixed distance away, but the own one where only there a bit of the state is the bit that is asked for. A
new bit is the XOR of an own bit and the four that are fetched. In layers with experts the majorities in
two of these sums of five bits choose a group of experts and one in it, which negates some new bits.
"""

from collections.abc import Iterator
from functools import cache, partial

from batchproof.models.hash_tables import (
    NUM_SHARED,
    TOKEN_BITS,
    Bits,
    Step,
    flips_of,
    nearest,
    of_bytes,
    reordered,
    shuffled,
)

OFFSETS = ((12, 16), (-1, 5), (2, 5))
"""How far back the first heads of each layer read; near the start position 0. -1 is the future, which a
causal mask hides, so that the own position is read."""
CHOICES = (1, 6)
"""How far back the other heads of each layer read, or the own position, also near the start."""
NUM_LAYERS = len(OFFSETS)
NUM_DENSE = 1  # layers without experts, the first ones
NUM_GROUPS, NUM_EXPERTS = 2, 4

SERIES = "deepseek 60"
"""Of the first 300 series, of those whose experts differ, the one in which a bit that is changed in the
last 32 tokens changes the next one most often (91 %)."""
flips = partial(flips_of, SERIES, num_shared=NUM_SHARED)


@cache
def asked(layer: int, head: int) -> tuple[int, int]:
    """Returns the own bit that a head that chooses asks for, and the bit of a key that it compares."""
    own, key, *_ = shuffled(f"{SERIES} / layer {layer} / head {head} / asked", TOKEN_BITS)
    return own, key


def _reads(layer: int, position: int, states: Step) -> Iterator[tuple[int, int]]:
    for head, offset in enumerate(OFFSETS[layer]):
        yield head, nearest(position, offset)
    for head, distance in enumerate(CHOICES, start=len(OFFSETS[layer])):
        own, key = asked(layer, head)
        wanted, far = states(position) >> own & 1, position - distance
        is_near = states(position) >> key & 1 == wanted
        if far < 0 or (is_near and states(far) >> key & 1 != wanted):
            far = position
        yield head, far


def _chosen_flips(layer: int, majorities: int) -> Bits:
    """Bit 0 of the majorities chooses the group, and bit 1 the expert in it."""
    second, group = divmod(majorities, 2)
    return () if layer < NUM_DENSE else flips(layer, 2 * group + second)


generate = of_bytes(NUM_LAYERS, partial(reordered, SERIES), _reads, _chosen_flips)
