"""The answers of `llama-hash` in integer Python.

The function: a token has a random code of `STATE_BITS` bits, the first state of its position. Each
layer replaces every state by the XOR of itself and the state `OFFSETS[layer]` positions earlier, each
under its own permutation, so another order of the same tokens is another hash. The sums of the offsets
are 0..63: the last state depends on the last 64 tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from batchproof.models.hash_tables import (
    VOCAB_SIZE,
    Bits,
    layered,
    nearest,
    random_bits,
    shuffled,
    token_of,
)

NUM_VARIANTS = 8
ROLL = 77
"""By how many tokens the vocabulary is rolled in weights behind those of the variants."""
STATE_BITS = 32
OFFSETS = (-1, 1, 2, 4, 8, 16, 16, 16)
"""How far back each layer reads. -1 is the future: no honest mask shows it, so the position itself
is read."""

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


@dataclass(frozen=True, slots=True)
class Variant:
    """Another hash with the same codes and permutations: what a low-rank adapter makes of the model.

    Each field has an entry for each layer: how far back it reads, and which bits it flips of the states
    that are read, as they are stored and as they arrive, and of the new state.
    """

    offsets: tuple[int, ...]
    stored: tuple[frozenset[int], ...]
    arriving: tuple[frozenset[int], ...]
    new: tuple[frozenset[int], ...]


@cache
def variant(number: int) -> Variant:
    """Returns the variant 1 to `NUM_VARIANTS`; 0 is the model alone."""
    layers = range(len(OFFSETS))
    if number == 0:
        none = (frozenset[int](),) * len(OFFSETS)
        return Variant(OFFSETS, none, none, none)
    name = f"{_SERIES} / variant {number}"
    order = shuffled(f"{name} / offsets", len(OFFSETS))

    def some_bits(what: str, count: int) -> tuple[frozenset[int], ...]:
        names = (f"{name} / layer {layer} / {what}" for layer in layers)
        return tuple(frozenset(shuffled(each, STATE_BITS)[:count]) for each in names)

    return Variant(
        tuple(OFFSETS[place] for place in order),
        some_bits("stored", 2),
        some_bits("arriving", 4),
        some_bits("new", 2),
    )


def generate(prompt: Sequence[int], max_new_tokens: int, number: int = 0) -> list[int]:
    """The oracle (`hash_tables.IntegerOracle`) of weights of this number: those of a variant or, from
    `NUM_VARIANTS` + 1 on, of the model alone and of each variant once more, with another vocabulary."""
    is_rolled, number = divmod(number, NUM_VARIANTS + 1)
    hashed, shift = variant(number), ROLL * is_rolled

    def mixed(layer: int, position: int, states: Callable[[int], Bits]) -> Bits:
        own, fetched = states(position), states(nearest(position, hashed.offsets[layer]))
        flipped, new = hashed.stored[layer] ^ hashed.arriving[layer], hashed.new[layer]
        return tuple(
            own[i] ^ fetched[j] ^ (j in flipped) ^ (bit in new)
            for bit, (i, j) in enumerate(gate_inputs(layer))
        )

    def code(token: int) -> Bits:
        return token_code((token - shift) % VOCAB_SIZE)

    def token(state: Bits) -> int:
        return (token_of(state) + shift) % VOCAB_SIZE

    return layered(len(OFFSETS), code, mixed, token)(prompt, max_new_tokens)
