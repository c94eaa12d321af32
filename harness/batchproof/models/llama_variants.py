"""Low-rank adapters (LoRA) that turn `llama-hash` into another hash.

An adapter acts on five layers of each block
(`llama_hash_oracle.variant`), so that each that an engine leaves out changes what follows:

    q_proj     the hard head looks for another distance: one column of its weights
    k_proj     in every other layer the hard head's keys, and its queries, have the opposite sign, which
               changes no score; a key of the model alone, or of another adapter, does
    v_proj     bits of what is stored are flipped: -2 times a row, added
    o_proj     bits of what arrives are flipped
    gate_proj  bits of the new state are flipped: the XOR takes the opposite of its own input

So keys and values differ from the first layer on, and a prefix computed under one adapter is of no use
under another. Merged into the weights, an adapter gives a model with exact margins like the original.
"""

import torch
from torch import Tensor

from batchproof.decoding.adapters import SCALE, Layers, LowRank
from batchproof.models.constructed import HARD_KEY, distance_query
from batchproof.models.llama_hash import (
    _AMPLITUDES,
    CONSTANT,
    CONSTANT_VALUE,
    FETCHED,
    HEAD_DIM,
    INNER,
    NUM_HEADS,
    NUM_KV_HEADS,
    RELU_GAIN,
    STATE,
    WIDTH,
)
from batchproof.models.llama_hash_oracle import (
    OFFSETS,
    STATE_BITS,
    gate_inputs,
    variant,
)


def low_rank(_: object, number: int) -> Layers:
    """Yields the name of each linear layer that adapter `number` acts on, and what it adds."""
    changed, rank = variant(number), 8 if number % 2 else 4  # ranks differ
    for layer, offset in enumerate(changed.offsets):
        sign = -1.0 if layer % 2 else 1.0
        query = sign * _hard_query(offset) - _hard_query(OFFSETS[layer])
        key = (sign - 1) * HARD_KEY * torch.ones(HEAD_DIM // 2)
        column = _unit(CONSTANT, WIDTH)
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        heads, kv_heads = NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM
        pairs = [(column, _first(query / CONSTANT_VALUE, heads))]
        yield f"{attention}.q_proj", _stacked(pairs, rank, WIDTH, heads)
        pairs = [(column, _first(key / CONSTANT_VALUE, kv_heads))]
        yield f"{attention}.k_proj", _stacked(pairs, rank, WIDTH, kv_heads)
        pairs = [
            (_unit(STATE.start + b, WIDTH), -2 * _unit(b, kv_heads)) for b in changed.stored[layer]
        ]
        yield f"{attention}.v_proj", _stacked(pairs, rank, WIDTH, kv_heads)
        pairs = [
            (_unit(b, heads), -2 * _unit(FETCHED.start + b, WIDTH)) for b in changed.arriving[layer]
        ]
        yield f"{attention}.o_proj", _stacked(pairs, rank, heads, WIDTH)
        pairs = [
            (_unit(STATE.start + gate_inputs(layer)[b][0], WIDTH), _gates(b))
            for b in changed.new[layer]
        ]
        yield f"{mlp}.gate_proj", _stacked(pairs, rank, WIDTH, INNER)


def _hard_query(offset: int) -> Tensor:
    return distance_query(offset, _AMPLITUDES[offset].items(), HEAD_DIM, HEAD_DIM)


def _gates(bit: int) -> Tensor:
    """Returns what takes the sign of a new bit's own input in its four units: (INNER,)."""
    units = torch.zeros(INNER)
    for index in range(4):
        units[index * STATE_BITS + bit] = -2 * RELU_GAIN * (1.0 if index < 2 else -1.0)
    return units


def _unit(place: int, size: int) -> Tensor:
    return _first(torch.ones(1), size, place)


def _first(values: Tensor, size: int, start: int = 0) -> Tensor:
    """Returns the values among zeros, from `start` on: (size,)."""
    row = torch.zeros(size)
    row[start : start + len(values)] = values
    return row


def _stacked(pairs: list[tuple[Tensor, Tensor]], rank: int, num_in: int, num_out: int) -> LowRank:
    """Returns the pairs of a row (in,) and a column (out,) as one product, filled up with zeros."""
    added = LowRank(torch.zeros(rank, num_in), torch.zeros(num_out, rank))
    for place, (row, column) in enumerate(pairs):
        added.a[place], added.b[:, place] = row, column / SCALE
    return added
