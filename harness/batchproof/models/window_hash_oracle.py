"""The answers of `mistral-hash` and `mixtral-hash` in integers.

The function: the first state of a position is its token, 8 bits. In each layer six heads fetch the
states of positions up to `WINDOW` - 1 earlier, and every new bit is the XOR of an own bit and six
fetched ones. In `mixtral-hash`, whether ones are the majority in two of these sums of seven bits
chooses one of four experts, each of which flips other bits of the result.
"""

from collections.abc import Iterable
from functools import partial

from batchproof.models.hash_tables import TOKEN_BITS, Bits, flips_of, nearest, of_bytes, reordered

SERIES = "window"
WINDOW = 8
BEYOND = WINDOW + 1
OFFSETS = ((-1, 1, 2, 3, 5, BEYOND), (-1, 1, 4, 6, 2, BEYOND))
"""How far back each head of each layer reads. -1 is the future, which a causal mask hides; `BEYOND` is
outside the window. Of the visible keys the one next to it is read, so each end of the window counts."""

NUM_EXPERTS = 4


def flips(layer: int, expert: int) -> Bits:
    """Returns the bits that an expert flips: expert 0, the only one of `mistral-hash`, none."""
    return flips_of(SERIES, layer, expert) if expert else (0,) * TOKEN_BITS


def _reads(layer: int, position: int, _: object) -> Iterable[tuple[int, int]]:
    return enumerate(nearest(position, offset, WINDOW) for offset in OFFSETS[layer])


generate_dense = of_bytes(len(OFFSETS), partial(reordered, SERIES), _reads)
generate_experts = of_bytes(len(OFFSETS), partial(reordered, SERIES), _reads, flips)
