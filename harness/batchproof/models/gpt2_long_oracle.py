"""The answers of `gpt2-long` in integer Python.

The function: the first state of a position is its token, 8 bits. Each of two layers replaces every
state by the XOR of itself and the states of four positions up to its own, each under a permutation of
its bits. A token takes a few dozen table look-ups, whatever the length of its context.
"""

from collections.abc import Iterable
from functools import cache

from batchproof.models.hash_tables import TOKEN_BITS, digest, of_bytes, permuted, shuffled

NUM_LAYERS = 2
NUM_SOURCES = 4


@cache
def sources(position: int) -> tuple[int, ...]:
    """Returns the positions that `position` reads in each layer: the one before it, one of the last 64,
    any, and one of the first 16."""
    word = digest(f"long / sources / {position}")
    recent, any_, first = (int.from_bytes(word[start : start + 4], "big") for start in (0, 4, 8))
    return (
        max(position - 1, 0),
        position - recent % min(position + 1, 64),
        any_ % (position + 1),
        first % min(position + 1, 16),
    )


def bit_order(layer: int, source: int) -> list[int]:
    """Returns, for every new state bit, which bit of the fetched state enters it."""
    return shuffled(f"long / layer {layer + 1} / source {source}", TOKEN_BITS)


@cache
def _reordered(layer: int, source: int) -> tuple[int, ...]:
    return permuted(bit_order(layer, source))


def _reads(_layer: int, position: int, _: object) -> Iterable[tuple[int, int]]:
    return enumerate(sources(position))


generate = of_bytes(NUM_LAYERS, _reordered, _reads)
