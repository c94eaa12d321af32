"""The answers of `gemma2-hash` in integers: no tensors, no cache, no rounding.

It holds the tables of the function, and the model is built from the same tables; they share nothing
else, so it has no error in common with torch, transformers or any engine.

The function: the first state of a position is its token, 8 bits. Layers with a window and layers
without one take turns. In each, a new bit is the XOR of an own bit and of bits that four heads fetch: a
head of `PAIR` those of this position and of the one before, every other those of one position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from batchproof.models.hash_tables import permuted, shuffled, xor_tokens

VOCAB_SIZE = 256
NUM_POSITIONS = 4096
WINDOW = 8
STATE_BITS = 8
PAIR = "pair"
BEYOND = WINDOW + 1
HEADS: tuple[tuple[int | str, ...], ...] = (
    (BEYOND, PAIR, -1, PAIR),
    (12, 2, 16, 5),
    (3, PAIR, BEYOND, PAIR),
    (5, 16, 2, 12),
)
"""How far back each head of each layer reads; even layers have a window. -1 is the future, which a
causal mask hides; `BEYOND` is outside of the window, as some offsets of the layers without one are. Of
the visible keys the one next to the offset is read, so each end of the window counts."""

_SERIES = "gemma2 265"
"""Of the first 400 series the one whose map from each token within reach to the next has the greatest
least rank: 6 of 8, so that of 85 changes of one token one may be lost."""


def has_window(layer: int) -> bool:
    return layer % 2 == 0


@cache
def bit_order(layer: int, head: int) -> tuple[int, ...]:
    """Returns, for every new state bit, which bit of the state that the head fetched enters it."""
    return tuple(shuffled(f"{_SERIES} / layer {layer} / head {head}", STATE_BITS))


def sources(layer: int, head: int, position: int) -> list[int]:
    """Returns the positions that the head reads at `position`."""
    offset = HEADS[layer][head]
    if isinstance(offset, str):
        return [position, max(position - 1, 0)]
    reach = WINDOW - 1 if has_window(layer) else NUM_POSITIONS
    return [position - min(max(offset, 0), position, reach)]


@cache
def _permuted(layer: int, head: int) -> tuple[int, ...]:
    return permuted(bit_order(layer, head))


def generate(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """Returns the `max_new_tokens` tokens that greedy decoding appends to `prompt`. Raises `ValueError`
    as `greedy_tokens` does."""

    def fetched(layer: int, position: int) -> Iterator[tuple[tuple[int, ...], int]]:
        for head in range(len(HEADS[layer])):
            for source in sources(layer, head, position):
                yield _permuted(layer, head), source

    return xor_tokens(prompt, max_new_tokens, len(HEADS), fetched, NUM_POSITIONS)
