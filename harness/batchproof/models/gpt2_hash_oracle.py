"""The answers of `gpt2-hash` in integer Python. A *state* is a tuple of `STATE_BITS` bits (0 or 1), one
per position and layer."""

from collections.abc import Callable
from functools import cache

from batchproof.models.hash_tables import NUM_POSITIONS, Bits, layered, random_bits, shuffled, token_of

STATE_BITS = 17
"""Odd on purpose. A gate whose two inputs are the same state forgets that state's parity; with an
odd width the even states keep their differences through any number of such gates, so one bit is
the most that can be lost (with an even width, one per layer)."""

HOPS = (1, 2, 4, 8, 16, 32, 64)
"""How far back layers 2, 3, ... reach. Their sums are 0..127: the last 128 tokens count."""

NUM_LAYERS = 2 + len(HOPS)
"""Layer 0 mixes in the position, layer 1 probes position t + 1, the rest hop back."""

POSITION_BITS = 12


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
    """Returns all words of `length` bits with `weight` ones, each one swap away from the last. The
    order is the classical revolving-door recursion (Knuth, TAOCP 7.2.1.3)."""
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


def _mixed(layer: int, position: int, states: Callable[[int], Bits]) -> Bits:
    own = states(position)
    other = states(fetched_position(layer, position)) if layer else position_code(position)
    return tuple(own[i] ^ other[j] for i, j in gate_inputs(layer))


generate = layered(NUM_LAYERS, token_code, _mixed, token_of)
