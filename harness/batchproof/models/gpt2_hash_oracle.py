"""The answers of `gpt2-hash` in integer Python: no tensors, no cache, no batch, no rounding.

It shares the tables with the model and nothing else, so it has no error in common with torch,
transformers or any engine.
"""

from collections.abc import Sequence
from functools import cache

from batchproof.models.hash_tables import (
    NUM_LAYERS,
    Bits,
    fetched_position,
    gate_inputs,
    greedy_tokens,
    position_code,
    token_code,
    token_of,
)


def generate(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """Returns the `max_new_tokens` tokens that greedy decoding appends to `prompt`. Raises `ValueError`
    as `greedy_tokens` does."""
    token_ids = list(prompt)

    @cache
    def state(layer: int, position: int) -> Bits:
        if layer == 0:
            return _mix(0, token_code(token_ids[position]), position_code(position))
        fetched = state(layer - 1, fetched_position(layer, position))
        return _mix(layer, state(layer - 1, position), fetched)

    return greedy_tokens(token_ids, max_new_tokens, lambda last: token_of(state(NUM_LAYERS - 1, last)))


def _mix(layer: int, own: Bits, fetched: Bits) -> Bits:
    """Returns the state after a layer: every bit the XOR of one own and one fetched bit."""
    return tuple(own[i] ^ fetched[j] for i, j in gate_inputs(layer))
