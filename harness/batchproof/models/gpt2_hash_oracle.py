"""The answers of `gpt2-hash` in integer Python: no tensors, no cache, no batch, no rounding.

It shares the tables with the model and nothing else, so it has no error in common with torch,
transformers or any engine.
"""

from collections.abc import Sequence
from functools import cache

from batchproof.models.hash_tables import (
    NUM_LAYERS,
    NUM_POSITIONS,
    TOKEN_BITS,
    VOCAB_SIZE,
    Bits,
    fetched_position,
    gate_inputs,
    position_code,
    token_code,
)


def next_token(token_ids: Sequence[int]) -> int:
    """Returns the greedy next token after `token_ids`, which stand at positions 0, 1, ...

    Raises `ValueError` for an empty context, one longer than the model's, or an unknown token id.
    """
    return generate(token_ids, 1)[0]


def generate(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """Returns the `max_new_tokens` tokens that greedy decoding appends to `prompt`. Raises `ValueError`
    as `next_token` does."""
    token_ids = list(prompt)

    @cache
    def state(layer: int, position: int) -> Bits:
        """Returns the state of `position` after `layer`."""
        if layer == 0:
            return _mix(0, token_code(token_ids[position]), position_code(position))
        fetched = state(layer - 1, fetched_position(layer, position))
        return _mix(layer, state(layer - 1, position), fetched)

    for _ in range(max_new_tokens):
        _check(token_ids)
        last = state(NUM_LAYERS - 1, len(token_ids) - 1)
        token_ids.append(int("".join(map(str, last[-TOKEN_BITS:])), base=2))
    return token_ids[len(prompt) :]


def _mix(layer: int, own: Bits, fetched: Bits) -> Bits:
    """Returns the state after a layer: every bit the XOR of one own and one fetched bit."""
    return tuple(own[i] ^ fetched[j] for i, j in gate_inputs(layer))


def _check(token_ids: Sequence[int]) -> None:
    if not 1 <= len(token_ids) <= NUM_POSITIONS:
        raise ValueError(f"context of {len(token_ids)} tokens; must be 1 to {NUM_POSITIONS}")
    for token_id in token_ids:
        if not 0 <= token_id < VOCAB_SIZE:
            raise ValueError(f"token id {token_id}; must be 0 to {VOCAB_SIZE - 1}")
