"""Low-rank adapters (LoRA) that turn `llama-hash` into another hash.

An adapter acts on five layers of each block (`llama_hash_oracle.variant`), so that each that an engine
leaves out changes what follows:

    q_proj     the hard head looks for another distance: one column of its weights
    k_proj     in every other layer the hard head's keys, and its queries, have the opposite sign, which
               changes no score; a key of the model alone, or of another adapter, does
    v_proj     bits of what is stored are flipped: -2 times a row, added
    o_proj     bits of what arrives are flipped
    gate_proj  bits of the new state are flipped: the XOR takes the opposite of its own input
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchproof.decoding.adapters import SCALE, Layers, LowRank
from batchproof.models.constructed import HARD_KEY, distance_query
from batchproof.models.llama_hash import (
    _AMPLITUDES,
    CONSTANT,
    CONSTANT_VALUE,
    FETCHED,
    HEAD_DIM,
    INNER,
    RELU_GAIN,
    STATE,
)
from batchproof.models.llama_hash_oracle import OFFSETS, STATE_BITS, gate_inputs, variant


def low_rank(model: PreTrainedModel, number: int) -> Layers:
    """Yields the name of each linear layer that adapter `number` acts on, and what it adds."""
    changed, rank = variant(number), 8 if number % 2 else 4  # ranks differ
    for layer, offset in enumerate(changed.offsets):
        sign = -1.0 if layer % 2 else 1.0
        query = sign * _hard_query(offset) - _hard_query(OFFSETS[layer])
        key = (sign - 1) * HARD_KEY * torch.ones(HEAD_DIM // 2)
        turned, own = torch.tensor([-2.0]), [bits[0] for bits in gate_inputs(layer)]
        # From which output channel on which values times which input channel are added.
        added: dict[str, list[tuple[int, Tensor, int]]] = {
            "self_attn.q_proj": [(0, query / CONSTANT_VALUE, CONSTANT)],
            "self_attn.k_proj": [(0, key / CONSTANT_VALUE, CONSTANT)],
            "self_attn.v_proj": [(b, turned, STATE.start + b) for b in changed.stored[layer]],
            "self_attn.o_proj": [(FETCHED.start + b, turned, b) for b in changed.arriving[layer]],
            "mlp.gate_proj": [(0, _gates(b), STATE.start + own[b]) for b in changed.new[layer]],
        }
        for part, products in added.items():
            name = f"model.layers.{layer}.{part}"
            num_out, num_in = model.get_submodule(name).weight.shape
            pair = LowRank(torch.zeros(rank, num_in), torch.zeros(num_out, rank))
            for place, (first, values, channel) in enumerate(products):
                pair.a[place, channel] = 1.0
                pair.b[first : first + len(values), place] = values / SCALE
            yield name, pair


def _hard_query(offset: int) -> Tensor:
    return distance_query(offset, _AMPLITUDES[offset].items(), HEAD_DIM, HEAD_DIM)


def _gates(bit: int) -> Tensor:
    """Returns what takes the sign of a new bit's own input in its four units: (INNER,)."""
    units = torch.zeros(INNER)
    for index in range(4):
        units[index * STATE_BITS + bit] = -2 * RELU_GAIN * (1.0 if index < 2 else -1.0)
    return units
