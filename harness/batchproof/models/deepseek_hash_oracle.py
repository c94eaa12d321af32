"""The answers of `deepseek-hash` in integers.

The function: the first state of a position is its token, 8 bits. In each layer four heads fetch the
state of a position each. Two read at a fixed distance. Two choose: they read the position that is a
fixed distance away, but the own one where only there a bit of the state is the bit that is asked for. A
new bit is the XOR of an own bit and the four that are fetched. In layers with experts the majorities in
two of these sums of five bits choose a group of experts and one in it, which negates some new bits.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

from batchproof.models.hash_tables import (
    TOKEN_BITS,
    Bits,
    byte_tokens,
    random_bits,
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
ROUTED = (4, 5, 6, 7)
"""The bits that the chosen expert makes; the shared one makes the others."""

SERIES = "deepseek 60"
"""Of the first 300 series, of those whose experts differ, the one in which a bit that is changed in the
last 32 tokens changes the next one most often (91 %)."""


@cache
def asked(layer: int, head: int) -> tuple[int, int]:
    """Returns the own bit that a head that chooses asks for, and the bit of a key that it compares."""
    own, key, *_ = shuffled(f"{SERIES} / layer {layer} / head {head} / asked", TOKEN_BITS)
    return own, key


@cache
def flips(layer: int, expert: int) -> Bits:
    """Returns 1 for each bit of `ROUTED` that the expert negates."""
    return random_bits(f"{SERIES} / layer {layer} / expert {expert}", len(ROUTED))


def generate(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """Returns the `max_new_tokens` tokens that greedy decoding appends to `prompt`. Raises `ValueError`
    as `greedy_tokens` does."""

    def fetched(layer: int, position: int, states: Callable[[int], int]) -> Iterator[int]:
        for head, source in enumerate(_sources(layer, position, states)):
            yield reordered(SERIES, layer, head)[states(source)]

    def flipped(layer: int, group: bool, second: bool) -> Iterable[tuple[int, int]]:
        expert = 2 * group + second
        return () if layer < NUM_DENSE else zip(ROUTED, flips(layer, expert), strict=True)

    return byte_tokens(prompt, max_new_tokens, NUM_LAYERS, fetched, flipped)


def _sources(layer: int, position: int, states: Callable[[int], int]) -> Iterator[int]:
    """Yields the position that each head reads."""
    for offset in OFFSETS[layer]:
        yield position - min(max(offset, 0), position)
    for head, distance in enumerate(CHOICES, start=len(OFFSETS[layer])):
        own, key = asked(layer, head)
        wanted, far = states(position) >> own & 1, position - distance
        is_near = states(position) >> key & 1 == wanted
        if far < 0 or (is_near and states(far) >> key & 1 != wanted):
            far = position
        yield far
