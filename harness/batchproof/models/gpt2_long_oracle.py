"""The answers of `gpt2-long` in integer Python: no tensors, no cache, no batch, no rounding.

It holds the tables of the function, and the model is built from the same tables; they share nothing
else, so it has no error in common with torch, transformers or any engine.

The function: the first state of a position is its token, 8 bits. Each of two layers replaces every
state by the XOR of itself and the states of four positions up to its own, each under a permutation of
its bits. A token takes a few dozen table look-ups, whatever the length of its context.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from batchproof.models.hash_tables import digest, greedy_tokens, shuffled

VOCAB_SIZE = 256
NUM_POSITIONS = 4096
STATE_BITS = 8
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


@cache
def bit_order(layer: int, source: int) -> tuple[int, ...]:
    """Returns, for every new state bit, which bit of the fetched state enters it."""
    return tuple(shuffled(f"long / layer {layer} / source {source}", STATE_BITS))


@cache
def _permuted(layer: int, source: int) -> tuple[int, ...]:
    """Returns the permuted state for every state; bit i of a state has the value 1 << i."""
    order = bit_order(layer, source)
    return tuple(
        sum((state >> old & 1) << new for new, old in enumerate(order)) for state in range(VOCAB_SIZE)
    )


def generate(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """Returns the `max_new_tokens` tokens that greedy decoding appends to `prompt`. Raises `ValueError`
    as `greedy_tokens` does."""
    token_ids = list(prompt)

    @cache
    def state(num_layers: int, position: int) -> int:
        """Returns the state of `position` after the first `num_layers` layers."""
        if num_layers == 0:
            return token_ids[position]
        mixed = state(num_layers - 1, position)
        for source, fetched in enumerate(sources(position)):
            mixed ^= _permuted(num_layers, source)[state(num_layers - 1, fetched)]
        return mixed

    return greedy_tokens(token_ids, max_new_tokens, lambda last: state(NUM_LAYERS, last), NUM_POSITIONS)
