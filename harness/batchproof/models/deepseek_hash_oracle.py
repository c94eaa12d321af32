"""The answers of `deepseek-hash` in integers: no tensors, no cache, no rounding.

It holds the tables of the function, and the model is built from the same tables; they share nothing
else, so it has no error in common with torch, transformers or any engine.

The function: the first state of a position is its token, 8 bits. In each layer four heads fetch the
state of a position each. Two read at a fixed distance. Two choose: they read the position that is a
fixed distance away, but the own one where only there a bit of the state is the bit that is asked for. A
new bit is the XOR of an own bit and the four that are fetched. In layers with experts the majorities in
two of these sums of five bits choose a group of experts and one in it, which negates some new bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from batchproof.models.hash_tables import Bits, greedy_tokens, permuted, random_bits, shuffled, xor_of

VOCAB_SIZE = 256
NUM_POSITIONS = 4096
STATE_BITS = 8
OFFSETS = ((12, 16), (-1, 5), (2, 5))
"""How far back the first heads of each layer read; near the start position 0. -1 is the future, which a
causal mask hides, so that the own position is read."""
CHOICES = (1, 6)
"""How far back the other heads of each layer read, or the own position, also near the start."""
NUM_LAYERS, NUM_HEADS = len(OFFSETS), 4
NUM_DENSE = 1  # layers without experts, the first ones
NUM_GROUPS, NUM_EXPERTS = 2, 4
ROUTED = (4, 5, 6, 7)
"""The bits that the chosen expert makes; the shared one makes the others."""

_SERIES = "deepseek 60"
"""Of the first 300 series, of those whose experts differ, the one in which a bit that is changed in the
last 32 tokens changes the next one most often (91 %)."""


@cache
def bit_order(layer: int, head: int) -> tuple[int, ...]:
    """Returns, for every new state bit, which bit of the state that the head fetched enters it."""
    return tuple(shuffled(f"{_SERIES} / layer {layer} / head {head}", STATE_BITS))


@cache
def asked(layer: int, head: int) -> tuple[int, int]:
    """Returns the own bit that a head that chooses asks for, and the bit of a key that it compares."""
    own, key, *_ = shuffled(f"{_SERIES} / layer {layer} / head {head} / asked", STATE_BITS)
    return own, key


@cache
def flips(layer: int, expert: int) -> Bits:
    """Returns 1 for each bit of `ROUTED` that the expert negates."""
    return random_bits(f"{_SERIES} / layer {layer} / expert {expert}", len(ROUTED))


@cache
def _moved(layer: int, head: int) -> tuple[int, ...]:
    return permuted(bit_order(layer, head))


def generate(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """Returns the `max_new_tokens` tokens that greedy decoding appends to `prompt`. Raises `ValueError`
    as `greedy_tokens` does."""
    token_ids = list(prompt)

    @cache
    def state(num_done: int, position: int) -> int:
        """Returns the state of `position` after the first layers."""
        if num_done == 0:
            return token_ids[position]
        layer = num_done - 1
        sums = [state(layer, position)]
        for head, source in enumerate(sources(layer, position)):
            sums.append(_moved(layer, head)[state(layer, source)])
        if layer < NUM_DENSE:
            return xor_of(sums)
        group, second = (sum(each >> bit & 1 for each in sums) >= 3 for bit in (0, 1))
        return xor_of(sums, zip(ROUTED, flips(layer, 2 * group + second), strict=True))

    def sources(layer: int, position: int) -> Iterator[int]:
        """Yields the position that each head reads."""
        for offset in OFFSETS[layer]:
            yield position - min(max(offset, 0), position)
        for head, distance in enumerate(CHOICES, start=len(OFFSETS[layer])):
            own, key = asked(layer, head)
            wanted, far = state(layer, position) >> own & 1, position - distance
            is_near = state(layer, position) >> key & 1 == wanted
            if far < 0 or (is_near and state(layer, far) >> key & 1 != wanted):
                far = position
            yield far

    return greedy_tokens(token_ids, max_new_tokens, lambda last: state(NUM_LAYERS, last), NUM_POSITIONS)
