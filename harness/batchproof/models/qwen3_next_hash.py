"""`qwen3-next-hash`: gated delta nets beside attention, and experts, exact in every dtype.

The delta rule makes a state S into S exp(g) + k (beta (v - S exp(g) k))^T, for a key k of length 1
(https://arxiv.org/abs/2412.06464). With keys of one 1 that is a table whose cell number k becomes v:
beta of 0 leaves it, g of -32 clears the table, and a query of one 1 reads a cell.

It works as `byte_models` says; the best logit leads by 3.8 or more. Queries, keys and values leave the
convolution with one tap per channel, at ages from 0 to 3, and SiLU, which leaves a 16 as it is and
makes a 0 of -16 and less. A key is a conjunction of bits, so one channel is 16 and all others are 0. A
value has each bit twice, as b and 1 - b: eight channels are 16 where a cell was written, so the norm
behind a head is a constant scale, and a cell that was not gives 0.

The dimensions of a head of attention that RoPE leaves alone make all queries equally long, since they
are normalized. Both kinds of layers take 2 from a channel for a 1 that is read. The MLP makes the
parity of the sum: a shared expert for four bits, and for the others the one of four that the sums
choose. The gate of a head, behind its norm or its attention, masks what it reads by the own state.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3NextForCausalLM

from batchproof.models import qwen3_next_hash_oracle as tables
from batchproof.models.byte_models import (
    AMPLITUDES,
    CONSTANT,
    NUM_HEADS,
    NUM_KV_HEADS,
    ROPE_THETA,
    SIZE,
    STATE,
    WIDTH,
    built,
    fill_frame,
    fill_router,
    fill_shared_and_routed,
    fill_values,
    places,
)
from batchproof.models.constructed import HARD_KEY, distance_query
from batchproof.models.hash_tables import TOKEN_BITS, bit_order

HEAD_DIM, ROTARY_DIM = 256, 64
LINEAR_DIM = 128  # of keys and values of the delta nets, of which only the first are used
KEY_HEADS = len(tables.ADDRESS_BITS)

_ON = 16.0  # SiLU of it is it, and of its negative 0
_HARD = 32.0  # sigmoid of it is 1, softplus of it is it, and exp of its negative is 0
_QUERY_LENGTH = 1024.0
_SHIFT = 4  # what sum of five signs is 4 where four bits are read as 0


def build_qwen3_next_hash() -> Qwen3NextForCausalLM:
    return built(
        Qwen3NextForCausalLM,
        _fill,
        num_hidden_layers=tables.NUM_LAYERS,
        layer_types=["linear_attention", "full_attention"] * (tables.NUM_LAYERS // 2),
        full_attention_interval=2,  # the same, for libraries that read this
        head_dim=HEAD_DIM,
        linear_conv_kernel_dim=tables.REACH,
        linear_num_key_heads=KEY_HEADS,
        linear_num_value_heads=tables.MEMORIES,
        linear_key_head_dim=LINEAR_DIM,
        linear_value_head_dim=LINEAR_DIM,
        num_experts=tables.NUM_EXPERTS,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        moe_intermediate_size=WIDTH,
        shared_expert_intermediate_size=WIDTH,
    )


def _fill(model: Qwen3NextForCausalLM) -> None:
    fill_frame(model, lambda _: 9, added=1.0)  # a typical sum of a sign and twice two bits squared
    for layer, block in enumerate(model.model.layers):
        if layer % 2:
            _fill_attention(block.self_attn, layer)
        else:
            _fill_projections(block.linear_attn, layer)
            _fill_convolution(block.linear_attn, layer)
        _fill_experts(block.mlp, layer)


def _all_ones(rows: Tensor, bits: Sequence[int], pattern: int, gain: float) -> None:
    """Makes a row `(width,)` give `gain` where the bits are those of `pattern`, low bit first, and
    minus that or less elsewhere."""
    for index, bit in enumerate(bits):
        rows[bit] = -gain if pattern >> index & 1 else gain
    rows[CONSTANT] = gain * (1 - len(bits)) / SIZE


def _fill_projections(net: Any, layer: int) -> None:
    """Fills what enters and leaves the recurrence, but the taps of the convolution."""
    group = tables.MEMORIES // KEY_HEADS
    parts = [LINEAR_DIM, LINEAR_DIM, group * LINEAR_DIM, group * LINEAR_DIM]
    halves = torch.eye(TOKEN_BITS) / 2
    for key_head in range(KEY_HEADS):
        rows = net.in_proj_qkvz.weight.chunk(KEY_HEADS)[key_head].split(parts)
        for part, address in zip(rows[:2], tables.addresses(layer, key_head), strict=True):
            for cell in range(1 << len(address.bits)):
                _all_ones(part[cell], address.bits, cell, _ON)
        write, clear = net.in_proj_ba.weight.chunk(KEY_HEADS)[key_head].split(group)
        for index in range(group):
            memory = key_head * group + index
            value, gate = (part[index * LINEAR_DIM : (index + 1) * LINEAR_DIM] for part in rows[2:])
            for start, sign in ((0, -1), (TOKEN_BITS, 1)):  # the bits, and what they are not
                each = value[start : start + TOKEN_BITS]
                each[:, STATE], each[:, CONSTANT] = sign * _ON * halves, _ON / 2 / SIZE
            order = tables.mask_order(layer, memory)
            gate[:TOKEN_BITS, CONSTANT] = _ON / SIZE if order is None else _ON / 2 / SIZE
            if order is not None:
                gate[range(TOKEN_BITS), list(order)] = -_ON / 2
            writes, clears = tables.gates(layer, memory)
            _all_ones(write[index], writes, 0, -_HARD)  # but where both are 0
            _all_ones(clear[index], clears, (1 << len(clears)) - 1, _HARD)
            out = net.out_proj.weight[:, memory * LINEAR_DIM : (memory + 1) * LINEAR_DIM]
            out[range(TOKEN_BITS), list(bit_order(tables.SERIES, layer, memory))] = -2.0
    # Eight values of 16 among so many have this root mean square; the gate multiplies by 16.
    net.norm.weight.fill_(math.sqrt(TOKEN_BITS / LINEAR_DIM) / _ON)


def _fill_convolution(net: Any, layer: int) -> None:
    """Lets each channel pass as it was so many positions ago."""
    ages = [tables.addresses(layer, head)[part].age for part in (0, 1) for head in range(KEY_HEADS)] + [
        tables.age(layer, memory) for memory in range(tables.MEMORIES)
    ]
    for number, age in enumerate(ages):
        net.conv1d.weight[number * LINEAR_DIM : (number + 1) * LINEAR_DIM, 0, -1 - age] = 1.0


def _fill_attention(attention: Any, layer: int) -> None:
    """Fills a layer of attention, whose queries and gates lie head by head."""
    query = attention.q_proj.weight.view(NUM_HEADS, 2, HEAD_DIM, WIDTH)
    key = attention.k_proj.weight.view(NUM_KV_HEADS, HEAD_DIM, WIDTH)
    value = attention.v_proj.weight.view(NUM_KV_HEADS, HEAD_DIM, WIDTH)
    out = attention.o_proj.weight.view(WIDTH, NUM_HEADS, HEAD_DIM)
    key[:, : ROTARY_DIM // 2, CONSTANT] = HARD_KEY / SIZE
    fill_values(value, -0.5)  # (1 - v) / 2 is the bit
    value[:, :TOKEN_BITS, CONSTANT] = 0.5 / SIZE
    for head, offset in enumerate(tables.OFFSETS[layer // 2]):
        asked = distance_query(offset, AMPLITUDES[offset].items(), HEAD_DIM, ROTARY_DIM, ROPE_THETA)
        query[head, 0, :ROTARY_DIM, CONSTANT] = asked / SIZE
        rest = math.sqrt(_QUERY_LENGTH**2 - float(asked.square().sum()))
        query[head, 0, ROTARY_DIM, CONSTANT] = rest / SIZE
        place = places(head, NUM_HEADS, range(TOKEN_BITS))
        masks = tables.mask_order(layer, head)
        query[head, 1, :, CONSTANT] = _HARD / SIZE if masks is None else 0.0
        if masks is not None:
            query[head, 1, place, list(masks)] = -_HARD
        for new, old in enumerate(bit_order(tables.SERIES, layer, head)):
            out[new, head, place[old]] = -2.0
    attention.q_norm.weight.fill_(_QUERY_LENGTH / math.sqrt(HEAD_DIM) - 1.0)
    attention.k_norm.weight.fill_(HARD_KEY * math.sqrt(ROTARY_DIM / 2 / HEAD_DIM) - 1.0)


def _fill_experts(mlp: Any, layer: int) -> None:
    """Fills the router and the experts, also the gate of the shared one."""
    fill_router(mlp.gate.weight, threshold=2 * (tables.MANY - 1))  # a sum is 1, and 2 less for each 1
    fill_shared_and_routed(mlp, mlp.shared_expert, partial(tables.flips, layer), _SHIFT)
    mlp.shared_expert_gate.weight[0, CONSTANT] = _HARD / SIZE
