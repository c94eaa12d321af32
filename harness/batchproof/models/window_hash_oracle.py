"""The answers of `mistral-hash` and `mixtral-hash` in integers.

The function: the first state of a position is its token, 8 bits. In each layer six heads fetch the
states of positions up to `WINDOW` - 1 earlier, and every new bit is the XOR of an own bit and six
fetched ones. In `mixtral-hash`, whether ones are the majority in two of these sums of seven bits
chooses one of four experts, each of which flips other bits of the result.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache

from batchproof.models.hash_tables import TOKEN_BITS, Bits, byte_tokens, random_bits, reordered

SERIES = "window"
WINDOW = 8
BEYOND = WINDOW + 1
OFFSETS = ((-1, 1, 2, 3, 5, BEYOND), (-1, 1, 4, 6, 2, BEYOND))
"""How far back each head of each layer reads. -1 is the future, which a causal mask hides; `BEYOND` is
outside the window. Of the visible keys the one next to it is read, so each end of the window counts."""

NUM_EXPERTS = 4


@cache
def flips(layer: int, expert: int) -> Bits:
    """Returns the bits that an expert flips: expert 0, the only one of `mistral-hash`, none."""
    label = f"{SERIES} / layer {layer} / expert {expert}"
    return random_bits(label, TOKEN_BITS) if expert else (0,) * TOKEN_BITS


def generate_dense(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """Returns the `max_new_tokens` tokens that `mistral-hash` appends to `prompt`. Raises `ValueError`
    as `greedy_tokens` does."""
    return byte_tokens(prompt, max_new_tokens, len(OFFSETS), _fetched)


def generate_experts(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """Returns the same for `mixtral-hash`."""

    def flipped(layer: int, first: bool, second: bool) -> Iterator[tuple[int, int]]:
        return enumerate(flips(layer, first + 2 * second))

    return byte_tokens(prompt, max_new_tokens, len(OFFSETS), _fetched, flipped)


def _fetched(layer: int, position: int, states: Callable[[int], int]) -> Iterator[int]:
    for head, offset in enumerate(OFFSETS[layer]):
        source = position - min(max(offset, 0), position, WINDOW - 1)
        yield reordered(SERIES, layer, head)[states(source)]
