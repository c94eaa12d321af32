"""The answers of `llama-hash` in integer Python.

The function: a token has a random code of `STATE_BITS` bits, the first state of its position. Each
layer replaces every state by the XOR of itself and the state `OFFSETS[layer]` positions earlier, each
under its own permutation, so another order of the same tokens is another hash. The sums of the offsets
are 0..63: the last state depends on the last 64 tokens.
"""

from collections.abc import Callable, Sequence
from functools import cache

from batchproof.models.hash_tables import Bits, layered_tokens, random_bits, shuffled, token_of

STATE_BITS = 32
OFFSETS = (-1, 1, 2, 4, 8, 16, 16, 16)
"""How far back each layer reads. -1 is the future: no honest mask shows it (see `source`)."""

_SERIES = "llama 22"
"""The first series of tables in which a changed token is never lost by construction: from every
position of the window, in contexts of every length, the map to the next token has full rank."""


@cache
def token_code(token_id: int) -> Bits:
    """Returns the state that stands for a token."""
    return random_bits(f"{_SERIES} / token / {token_id}", STATE_BITS)


@cache
def gate_inputs(layer: int) -> tuple[tuple[int, int], ...]:
    """Return, for every new state bit, which own bit and which fetched bit it is the XOR of."""
    own = shuffled(f"{_SERIES} / layer {layer} / own", STATE_BITS)
    fetched = shuffled(f"{_SERIES} / layer {layer} / fetched", STATE_BITS)
    return tuple(zip(own, fetched, strict=True))


def source(layer: int, position: int) -> int:
    """Returns the position whose state `position` reads in `layer`.

    An offset that points outside the visible keys reads the visible key next to it: position 0
    near the start, and for the offset -1, which a causal mask hides, the position itself.
    """
    return min(max(position - OFFSETS[layer], 0), position)


def generate(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """Returns the `max_new_tokens` tokens that greedy decoding appends to `prompt`. Raises `ValueError`
    as `greedy_tokens` does."""

    def mixed(layer: int, position: int, states: Callable[[int], Bits]) -> Bits:
        own, fetched = states(position), states(source(layer, position))
        return tuple(own[i] ^ fetched[j] for i, j in gate_inputs(layer))

    return layered_tokens(prompt, max_new_tokens, len(OFFSETS), token_code, mixed, token_of)
