"""The answers of `gpt2-long` in integer Python.

The function: the first state of a position is its token, 8 bits. Each of two layers replaces every
state by the XOR of itself and the states of four positions up to its own, each under a permutation of
its bits. A token takes a few dozen table look-ups, whatever the length of its context.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache

from batchproof.models.hash_tables import TOKEN_BITS, byte_tokens, digest, permuted, shuffled

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
    """Returns, for every new state bit, which bit of the fetched state enters it; layers from 1 on."""
    return shuffled(f"long / layer {layer} / source {source}", TOKEN_BITS)


@cache
def _reordered(layer: int, source: int) -> tuple[int, ...]:
    return permuted(bit_order(layer, source))


def generate(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """Returns the `max_new_tokens` tokens that greedy decoding appends to `prompt`. Raises `ValueError`
    as `greedy_tokens` does."""

    def fetched(layer: int, position: int, states: Callable[[int], int]) -> Iterator[int]:
        for source, at in enumerate(sources(position)):
            yield _reordered(layer + 1, source)[states(at)]

    return byte_tokens(prompt, max_new_tokens, NUM_LAYERS, fetched)
