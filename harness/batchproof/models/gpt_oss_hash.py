"""`gpt-oss-hash`: heads with sinks, windows on every other layer, clamped experts; exact in each dtype.

It works as `byte_models` says; queries and keys are biases. The best logit leads by 3.5 or more. The
heads of a layer with a window form pairs. A bit of the query's own state moves all scores of such a
head up or down by more than they differ, past its sink: either the nearest visible key takes all of the
weight, or the sink does. So exactly one of a pair adds its sign; without sinks both do. On the other
layers the sinks are far below.

The experts replace the sum of signs by their product. A gate that is clamped at 7 makes a unit a step:
it is 7 above its threshold and 0 below.
"""

import math
from functools import partial

from transformers import GptOssForCausalLM
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssExperts

from batchproof.models import gpt_oss_hash_oracle as tables
from batchproof.models.byte_models import (
    AMPLITUDES,
    HEAD_DIM,
    NUM_HEADS,
    ROPE_THETA,
    WINDOW_AMPLITUDES,
    built,
    fill_attention,
    fill_frame,
    fill_router,
    query_at,
)
from batchproof.models.constructed import HARD_KEY
from batchproof.models.gemma2_hash import LAYER_TYPES, NUM_LAYERS
from batchproof.models.hash_tables import LONG_CONTEXT, bit_order
from batchproof.models.window_hash_oracle import WINDOW

# YaRN by a factor of 1 changes no frequency; vLLM knows a gpt-oss with no other.
_ROPE = {"rope_type": "yarn", "rope_theta": ROPE_THETA, "factor": 1.0, "truncate": False}
_ROPE |= {"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": LONG_CONTEXT}

_SINK, _FAR_BELOW = 64.0, -1000.0
_SHIFT = 320.0  # by which a bit moves the scores of a head of a pair: they lie between -220 and 350
_SLOWEST = HEAD_DIM // 2 - 1  # frequency: 1/1290 radian per position, nearly constant within a window
_OPEN = 7.0  # the clamp of a gate, and of what it multiplies
_STEEP = 16.0
_STEPS = (-4, -2, 0, 2, 4)  # at which the product of signs changes, by their sum
_UNITS = 1 + len(_STEPS)  # of a bit


def build_gpt_oss_hash() -> GptOssForCausalLM:
    return built(
        GptOssForCausalLM,
        _fill,
        rope_parameters=_ROPE,
        sliding_window=WINDOW,
        layer_types=LAYER_TYPES,
        num_hidden_layers=NUM_LAYERS,
        num_local_experts=tables.NUM_EXPERTS,
        num_experts_per_tok=2,
    )


def _fill(model: GptOssForCausalLM) -> None:
    fill_frame(model, tables.num_summed)
    for layer, block in enumerate(model.model.layers):
        queries = [
            query_at(offset, (AMPLITUDES.get(offset) or WINDOW_AMPLITUDES[offset]))
            for offset in tables.HEADS[layer]
        ]
        fill_attention(block.self_attn, queries, partial(bit_order, tables.SERIES, layer))
        _fill_sinks(block.self_attn, layer)
        fill_router(block.mlp.router.weight)
        for expert in range(tables.NUM_EXPERTS):
            _fill_expert(block.mlp.experts, expert, layer)


def _fill_sinks(attention: GptOssAttention, layer: int) -> None:
    for head in range(NUM_HEADS):
        attention.sinks[head] = _FAR_BELOW
        asked = tables.asks(layer, head)
        if asked is not None:
            bit, value = asked
            shift = _SHIFT * math.sqrt(HEAD_DIM) / HARD_KEY
            attention.q_proj.weight[head * HEAD_DIM + _SLOWEST, bit] = -shift if value else shift
            attention.sinks[head] = _SINK


def _fill_expert(experts: GptOssExperts, expert: int, layer: int) -> None:
    """Lets an expert turn each sum of signs into their product, or minus that: a first unit of a bit
    takes the sum away, the others are steps. A unit is gate * (up + 1)."""
    gate, up = (experts.gate_up_proj[expert, :, part::2] for part in (0, 1))
    gate_bias, up_bias = (experts.gate_up_proj_bias[expert, part::2] for part in (0, 1))
    down, constant = experts.down_proj[expert], experts.down_proj_bias[expert]
    for bit, is_flipped in enumerate(tables.flips(layer, expert)):
        sign = (-1) ** (is_flipped + (tables.num_summed(layer) == 3))
        first = bit * _UNITS
        gate_bias[first] = 2 * _OPEN
        up[bit, first], up_bias[first] = 0.5, -1.0
        down[first, bit] = -2 / _OPEN
        constant[bit] = -sign  # five signs of -1
        for number, at in enumerate(_STEPS):
            unit = first + 1 + number
            gate[bit, unit], gate_bias[unit] = _STEEP, -_STEEP * at
            down[unit, bit] = 2 * sign * (-1) ** number / _OPEN
