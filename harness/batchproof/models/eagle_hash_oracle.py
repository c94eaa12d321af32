"""The answers of `eagle-hash` in integer Python.

The function: the state of a position is that of the position before, moved down by one bit, XOR the
code of its token, of 31 bits. So the next token, the last 8 bits, depends on the last 31 tokens, and a
state follows from the state before it and one token: what a draft head is given. Before its first token
a sequence is as if that had been repeated for ever.
"""

from functools import cache

from batchproof.models.hash_tables import (
    TOKEN_BITS,
    Bits,
    Step,
    number_of,
    random_bits,
    read_on,
    shuffled,
)
from batchproof.models.llama_hash_oracle import STATE_BITS

OFFSETS = (-1, 1, 2, 4, 8, 16)
"""How far back each layer reads: -1, the future, reads the position itself under an honest mask."""
CODE_BITS = STATE_BITS - 1  # bit 0 of a state is 0, and fills the bits that a move leaves
_SERIES = "eagle 0"


@cache
def token_code(token_id: int) -> Bits:
    """Returns the bits that stand for a token in the embedding."""
    return (0, *random_bits(f"{_SERIES} / token / {token_id}", CODE_BITS))


def gate_inputs(layer: int) -> tuple[tuple[int, int], ...]:
    """Returns, for every new state bit, which own bit and which fetched bit it is the XOR of."""
    own = range(STATE_BITS)
    if OFFSETS[layer] < 0:
        return tuple(zip(own, (0, *(1 + bit for bit in shuffled(_SERIES, CODE_BITS))), strict=True))
    return tuple(zip(own, (max(bit - OFFSETS[layer], 0) for bit in own), strict=True))


@cache
def mixed_code(token_id: int) -> Bits:
    """Returns the code of a token behind the first layer, which mixes it with itself."""
    code = token_code(token_id)
    return tuple(code[own] ^ code[fetched] for own, fetched in gate_inputs(0))


def _reader() -> Step:
    state: int | None = None

    def read(token_id: int) -> int:
        nonlocal state
        code = number_of(reversed(mixed_code(token_id)))
        if state is None:
            state = 0
            for _ in range(CODE_BITS):
                state = state >> 1 ^ code
        state = state >> 1 ^ code
        return state % (1 << TOKEN_BITS)

    return read


generate = read_on(_reader)
