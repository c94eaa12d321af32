"""The answers of `gpt-oss-hash` in integers.

The function: the first state of a position is its token, 8 bits. Layers with a window and layers
without one take turns. A new bit is the XOR of an own bit and of those that heads fetch. In a layer
without a window four heads fetch one position each. In a layer with one the four are two pairs: an own
bit says which of a pair fetches, the other finds its sink and fetches nothing. Whether ones are the
majority in two of the sums chooses one of four experts, each of which flips other bits of the result.
"""

from collections.abc import Iterator
from functools import partial

from batchproof.models.gemma2_hash_oracle import has_window, source
from batchproof.models.hash_tables import Step, flips_of, of_bytes, reordered
from batchproof.models.window_hash_oracle import BEYOND

HEADS = ((BEYOND, 1, -1, 3), (12, 2, 16, 5), (5, BEYOND, 1, 2), (5, 16, 2, 12))
"""How far back each head of each layer reads, as in `gemma2_hash_oracle`; even layers have a window,
and there heads 0 and 1 are a pair, and 2 and 3."""
NUM_EXPERTS = 4
SERIES = "gpt-oss 0"
flips = partial(flips_of, SERIES)


def asks(layer: int, head: int) -> tuple[int, int] | None:
    """Returns which own bit a head of a pair asks for, and the value with which it fetches."""
    return divmod(head, 2) if has_window(layer) else None


def num_summed(layer: int) -> int:
    """Returns how many bits a sum has: an own one, and one of each head that fetches."""
    return 3 if has_window(layer) else 5


def _reads(layer: int, position: int, states: Step) -> Iterator[tuple[int, int]]:
    for head, offset in enumerate(HEADS[layer]):
        asked = asks(layer, head)
        if asked is None or states(position) >> asked[0] & 1 == asked[1]:
            yield head, source(layer, offset, position)


generate = of_bytes(len(HEADS), partial(reordered, SERIES), _reads, flips)
