"""What `gpt2-hash` answers, in integer Python: no tensors, no cache, no batch, no rounding.

It shares the tables with the model and nothing else, so it has no error in common with torch,
transformers or any engine.
"""

from collections.abc import Sequence

from harness.models.hash_tables import (
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
    """Return the greedy next token after `token_ids`, which stand at positions 0, 1, ...

    Raises ValueError for an empty context, one longer than the model's, or an unknown token id.
    """
    _check(token_ids)
    positions = range(len(token_ids))
    states = [_mix(0, token_code(token_ids[t]), position_code(t)) for t in positions]
    for layer in range(1, NUM_LAYERS):
        states = [_mix(layer, states[t], states[fetched_position(layer, t)]) for t in positions]
    return int("".join(map(str, states[-1][-TOKEN_BITS:])), base=2)


def generate(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """Return the `max_new_tokens` tokens that greedy decoding appends to `prompt`."""
    token_ids = list(prompt)
    for _ in range(max_new_tokens):
        token_ids.append(next_token(token_ids))
    return token_ids[len(prompt) :]


def _mix(layer: int, own: Bits, fetched: Bits) -> Bits:
    """Return the state after a layer: every bit the XOR of one own and one fetched bit."""
    return tuple(own[i] ^ fetched[j] for i, j in gate_inputs(layer))


def _check(token_ids: Sequence[int]) -> None:
    if not 1 <= len(token_ids) <= NUM_POSITIONS:
        raise ValueError(f"context of {len(token_ids)} tokens; must be 1 to {NUM_POSITIONS}")
    for token_id in token_ids:
        if not 0 <= token_id < VOCAB_SIZE:
            raise ValueError(f"token id {token_id}; must be 0 to {VOCAB_SIZE - 1}")
