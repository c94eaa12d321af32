"""The answers of `gemma2-hash` in integers.

The function: the first state of a position is its token, 8 bits. Layers with a window and layers
without one take turns. In each, a new bit is the XOR of an own bit and of bits that four heads fetch: a
head of `PAIR` those of this position and of the one before, every other those of one position.
"""

from collections.abc import Iterator
from functools import partial

from batchproof.models.hash_tables import LONG_CONTEXT, nearest, of_bytes, reordered
from batchproof.models.window_hash_oracle import BEYOND, WINDOW

PAIR = "pair"
HEADS: tuple[tuple[int | str, ...], ...] = (
    (BEYOND, PAIR, -1, PAIR),
    (12, 2, 16, 5),
    (3, PAIR, BEYOND, PAIR),
    (5, 16, 2, 12),
)
"""How far back each head of each layer reads; even layers have a window. -1 is the future, which a
causal mask hides; `BEYOND` is outside of the window, as some offsets of the layers without one are. Of
the visible keys the one next to the offset is read, so each end of the window counts."""

SERIES = "gemma2 265"
"""Of the first 400 series the one whose map from each token within reach to the next has the greatest
least rank: 6 of 8, so that of 85 changes of one token one may be lost."""


def has_window(layer: int) -> bool:
    return layer % 2 == 0


def source(layer: int, offset: int, position: int) -> int:
    """Returns the position that a head with this offset reads: the visible one nearest to it."""
    return nearest(position, offset, WINDOW if has_window(layer) else LONG_CONTEXT)


def _reads(layer: int, position: int, _: object) -> Iterator[tuple[int, int]]:
    for head, offset in enumerate(HEADS[layer]):
        for each in (0, 1) if isinstance(offset, str) else (offset,):
            yield head, source(layer, each, position)


generate = of_bytes(len(HEADS), partial(reordered, SERIES), _reads)
