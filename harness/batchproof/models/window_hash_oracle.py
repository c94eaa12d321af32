"""The answers of `mistral-hash` and `mixtral-hash` in integers: no tensors, no cache, no rounding.

It holds the tables of the functions, and the models are built from the same tables; they share nothing
else, so they have no error in common with torch, transformers or any engine.

The function: the first state of a position is its token, 8 bits. In each layer six heads fetch the
states of positions up to `WINDOW` - 1 earlier, and every new bit is the XOR of an own bit and six
fetched ones. In `mixtral-hash`, whether ones are the majority in two of these sums of seven bits
chooses one of four experts, each of which flips other bits of the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from batchproof.models.hash_tables import Bits, counted_tokens, random_bits, shuffled

VOCAB_SIZE = 256
NUM_POSITIONS = 4096
WINDOW = 8
STATE_BITS = 8
BEYOND = WINDOW + 1
OFFSETS = ((-1, 1, 2, 3, 5, BEYOND), (-1, 1, 4, 6, 2, BEYOND))
"""How far back each head of each layer reads. -1 is the future, which a causal mask hides; `BEYOND` is
outside the window. Of the visible keys the one next to it is read, so each end of the window counts."""

NUM_EXPERTS = 4


@cache
def bit_order(layer: int, head: int) -> tuple[int, ...]:
    """Returns, for every new state bit, which bit of the state that the head fetched enters it."""
    return tuple(shuffled(f"window / layer {layer} / head {head}", STATE_BITS))


@cache
def flips(layer: int, expert: int) -> Bits:
    """Returns the bits that an expert flips: expert 0, the only one of `mistral-hash`, none."""
    return random_bits(f"window / layer {layer} / expert {expert}", STATE_BITS) if expert else (0,) * 8


def source(offset: int, position: int) -> int:
    """Returns the position that `position` reads: the visible one nearest to `offset` earlier."""
    return position - min(max(offset, 0), position, WINDOW - 1)


def generate_dense(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """Returns the `max_new_tokens` tokens that `mistral-hash` appends to `prompt`. Raises `ValueError`
    as `greedy_tokens` does."""
    return _generate(prompt, max_new_tokens, has_experts=False)


def generate_experts(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """Returns the same for `mixtral-hash`."""
    return _generate(prompt, max_new_tokens, has_experts=True)


def _generate(prompt: Sequence[int], max_new_tokens: int, *, has_experts: bool) -> list[int]:
    def fetched(layer: int, position: int, _own: Bits) -> Iterator[tuple[tuple[int, ...], int]]:
        for head, offset in enumerate(OFFSETS[layer]):
            yield bit_order(layer, head), source(offset, position)

    def flipped(layer: int, expert: int) -> Bits:
        return flips(layer, expert if has_experts else 0)

    return counted_tokens(prompt, max_new_tokens, len(OFFSETS), fetched, flipped, NUM_POSITIONS)
