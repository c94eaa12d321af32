"""The tables that `gpt2-hash` and its integer oracle share. No torch.

Everything is derived from sha256 of fixed strings, so both sides, and every platform, see the
same function. A *state* is a tuple of `STATE_BITS` bits (0 or 1), one per position and layer.
"""

from collections.abc import Callable
from functools import cache
from hashlib import sha256

VOCAB_SIZE = 256
NUM_POSITIONS = 256
TOKEN_BITS = 8
"""The last `TOKEN_BITS` bits of the last state, high bit first, are the next token's id."""

STATE_BITS = 17
"""Odd on purpose. A gate whose two inputs are the same state forgets that state's parity; with an
odd width the even states keep their differences through any number of such gates, so one bit is
the most that can be lost (with an even width, one per layer)."""

HOPS = (1, 2, 4, 8, 16, 32, 64)
"""How far back layers 2, 3, ... reach. Their sums are 0..127: the last 128 tokens count."""

NUM_LAYERS = 2 + len(HOPS)
"""Layer 0 mixes in the position, layer 1 probes position t + 1, the rest hop back."""

POSITION_BITS = 12

Bits = tuple[int, ...]

_SEED = "batchproof gpt2-hash"


def digest(label: str) -> bytes:
    """Returns 32 bytes fixed by `label`."""
    return sha256(f"{_SEED} / {label}".encode()).digest()


def shuffled(label: str, count: int) -> list[int]:
    """Returns a permutation of range(count) fixed by `label`."""
    return sorted(range(count), key=lambda index: digest(f"{label} / {index}"))


def random_bits(label: str, count: int) -> Bits:
    """Returns `count` <= 256 bits fixed by `label`."""
    word = int.from_bytes(digest(label), "big")
    return tuple(word >> index & 1 for index in range(count))


@cache
def token_code(token_id: int) -> Bits:
    """Returns the state that stands for a token."""
    return random_bits(f"token / {token_id}", STATE_BITS)


@cache
def position_code(position: int) -> Bits:
    """Returns the bits that layer 0 mixes into the token at `position`."""
    return random_bits(f"position / {position}", STATE_BITS)


@cache
def gate_inputs(layer: int) -> tuple[tuple[int, int], ...]:
    """Return, for every new state bit, which own bit and which fetched bit it is the XOR of.

    Both are permutations, so no bit is lost. Where a position fetches itself, bit and partner are
    neighbours on one single cycle through all bits: only the parity cancels (see `STATE_BITS`).
    """
    own = shuffled(f"layer {layer} / own", STATE_BITS)
    cycle = shuffled(f"layer {layer} / cycle", STATE_BITS)
    partner = {bit: cycle[(index + 1) % STATE_BITS] for index, bit in enumerate(cycle)}
    return tuple((bit, partner[bit]) for bit in own)


def fetched_position(layer: int, position: int) -> int:
    """Returns the position whose state `position` reads in layer 1, 2, ...

    Layer 1 reads itself (it asks for t + 1 first, which a causal mask hides). A hop beyond the
    start of the context reads another earlier token instead; those of different layers are spread
    evenly, so that in a short context nearly every key is read by some query.
    """
    if layer == 1:
        return position
    exponent = layer - 2
    if position >= HOPS[exponent]:
        return position - HOPS[exponent]
    return position * exponent // len(HOPS)


def _revolving_door(length: int, weight: int) -> list[Bits]:
    """Returns all words of `length` bits with `weight` ones, each one swap away from the last.

    The order is the classical revolving-door recursion (Knuth, TAOCP 7.2.1.3).
    """
    if weight in (0, length):
        return [(1 if weight else 0,) * length]
    without = [(*word, 0) for word in _revolving_door(length - 1, weight)]
    having = [(*word, 1) for word in _revolving_door(length - 1, weight - 1)]
    return without + having[::-1]


@cache
def addresses() -> tuple[Bits, ...]:
    """Returns the words by which attention finds positions 0..`NUM_POSITIONS` (one beyond the end).

    Half the bits are ones, so as +-1 vectors they have mean 0 and one norm. Two different words
    agree in at most 10 of 12 bits, and consecutive words in exactly 10.
    """
    words = _revolving_door(POSITION_BITS, POSITION_BITS // 2)
    # From the middle: near the start of the list the last bits hardly ever change.
    start = (len(words) - NUM_POSITIONS) // 2
    return tuple(words[start : start + NUM_POSITIONS + 1])


def token_of(state: Bits) -> int:
    """Returns the token of a last state: its last bits, high bit first."""
    return int("".join(map(str, state[-TOKEN_BITS:])), base=2)


def greedy_tokens(
    token_ids: list[int],
    count: int,
    next_token: Callable[[int], int],
    num_positions: int = NUM_POSITIONS,
) -> list[int]:
    """Appends `count` tokens to `token_ids` and returns them; `next_token` gets the last position.

    Raises `ValueError` for an empty context, one too long for the model, or an unknown token id.
    """
    longest = len(token_ids) + count - 1
    if not token_ids or longest > num_positions:
        raise ValueError(f"context of {longest} tokens; must be 1 to {num_positions}")
    unknown = [token_id for token_id in token_ids if not 0 <= token_id < VOCAB_SIZE]
    if unknown:
        raise ValueError(f"token id {unknown[0]}; must be 0 to {VOCAB_SIZE - 1}")
    for _ in range(count):
        token_ids.append(next_token(len(token_ids) - 1))
    return token_ids[len(token_ids) - count :]
