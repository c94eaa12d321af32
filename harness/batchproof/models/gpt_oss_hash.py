"""`gpt-oss-hash`: heads with sinks, windows on every other layer, clamped experts; exact in each dtype.

Its weights are written down, not trained. A sink that is missing, a window on a layer that has none,
one that is a key too wide or too narrow, the wrong expert, a gate that is not clamped or a bias that is
dropped changes the next token. The best logit leads by 3.5 or more, so no rounding hides that.
`gpt_oss_hash_oracle` defines the function and computes the same tokens in integers.

How it works, along the residual stream (width 64; a bit b is one channel v = 1 - 2b):

    state      8    what this position knows, at first its token
    constant   1    512, so large that the norms are nearly constant scales

Queries and keys are biases, so a score depends on the distance of two positions, as in `gemma2-hash`
and `mistral-hash`, whose tables these are. The heads of a layer with a window form pairs. A bit of the
query's own state moves all scores of such a head up or down by more than they differ, past its sink:
either the nearest visible key takes all of the weight, or the sink does. So exactly one of a pair adds
its sign; without sinks both do. On the other layers the sinks are far below.

The experts replace the sum of signs by their product, which is the XOR. A gate that is clamped at 7
makes a unit a step: it is 7 above its threshold and 0 below.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import GptOssForCausalLM
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssExperts

from batchproof.models import gpt_oss_hash_oracle as tables
from batchproof.models.constructed import (
    BIT_LOGIT,
    HARD_KEY,
    constructed_rope,
    distance_query,
    signs_of_numbers,
)
from batchproof.models.gemma2_hash import AMPLITUDES, HEAD_DIM, LAYER_TYPES, ROPE_THETA, WIDTH
from batchproof.models.gpt_oss_hash_oracle import STATE_BITS
from batchproof.models.window_hash import AMPLITUDES as WINDOW_AMPLITUDES

NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS = len(tables.HEADS), len(tables.HEADS[0]), 2
INNER = 64

# YaRN by a factor of 1 changes no frequency; vLLM knows a gpt-oss with no other.
_ROPE = {"rope_type": "yarn", "rope_theta": ROPE_THETA, "factor": 1.0, "truncate": False}
_ROPE |= {"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": tables.NUM_POSITIONS}

_STATE = slice(0, STATE_BITS)
_CONSTANT = STATE_BITS
_SIZE = 512.0  # of the constant
_SINK, _FAR_BELOW = 64.0, -1000.0
_SHIFT = 320.0  # by which a bit moves the scores of a head of a pair: they lie between -220 and 350
_SLOWEST = HEAD_DIM // 2 - 1  # frequency: 1/1290 radian per position, nearly constant within a window
_OPEN = 7.0  # the clamp of a gate, and of what it multiplies
_STEEP = 16.0
_ROUTER_GAIN = 16.0  # the second expert gets exp(-32) of the weight, or less
_STEPS = (-4, -2, 0, 2, 4)  # at which the product of signs changes, by their sum
_UNITS = 1 + len(_STEPS)  # of a bit


def build_gpt_oss_hash() -> GptOssForCausalLM:
    """Returns the model: float32, on the CPU, eval mode, no gradients. Leaves every RNG untouched."""
    model: GptOssForCausalLM = constructed_rope(
        GptOssForCausalLM,
        _fill,
        rope_parameters=_ROPE,
        vocab_size=tables.VOCAB_SIZE,
        max_position_embeddings=tables.NUM_POSITIONS,
        sliding_window=tables.WINDOW,
        layer_types=LAYER_TYPES,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        num_local_experts=tables.NUM_EXPERTS,
        num_experts_per_tok=2,
    )
    return model


def _fill(model: GptOssForCausalLM) -> None:
    signs = signs_of_numbers(tables.VOCAB_SIZE, STATE_BITS)
    model.model.embed_tokens.weight[:, _STATE] = signs
    model.model.embed_tokens.weight[:, _CONSTANT] = _SIZE
    model.lm_head.weight[:, _STATE] = BIT_LOGIT * signs
    _fill_norm(model.model.norm.weight, 1)
    for layer, block in enumerate(model.model.layers):
        _fill_norm(block.input_layernorm.weight, 1)
        _fill_attention(block.self_attn, layer)
        _fill_norm(block.post_attention_layernorm.weight, tables.num_summed(layer))
        for expert, row in enumerate(block.mlp.router.weight):
            row[0] = _ROUTER_GAIN * (1 if expert & 1 == 0 else -1)
            row[1] = _ROUTER_GAIN * (1 if expert & 2 == 0 else -1)
            _fill_expert(block.mlp.experts, expert, layer)


def _fill_norm(weight: Tensor, square: int) -> None:
    """Lets a norm leave its input as it is, where the square of a channel of the state is typically
    `square`."""
    weight.fill_(math.sqrt((STATE_BITS * square + _SIZE**2) / WIDTH))


def _fill_attention(attention: GptOssAttention, layer: int) -> None:
    """Fills the projections; both KV heads hold the state, the second in reverse."""
    identity = torch.eye(STATE_BITS, device="cpu")
    for number, order in enumerate((identity, identity.flip(0))):
        start = number * HEAD_DIM
        attention.k_proj.bias[start : start + HEAD_DIM // 2] = HARD_KEY
        attention.v_proj.weight[start : start + STATE_BITS, _STATE] = order
    for head, offset in enumerate(tables.HEADS[layer]):
        start = head * HEAD_DIM
        amplitudes = {**WINDOW_AMPLITUDES, **AMPLITUDES}[offset].items()
        asked = distance_query(offset, amplitudes, HEAD_DIM, HEAD_DIM, ROPE_THETA)
        attention.q_proj.bias[start : start + HEAD_DIM] = asked
        attention.sinks[head] = _FAR_BELOW
        own = tables.asks(layer, head)
        if own is not None:
            bit, value = own
            shift = _SHIFT * math.sqrt(HEAD_DIM) / HARD_KEY
            attention.q_proj.weight[start + _SLOWEST, bit] = -shift if value else shift
            attention.sinks[head] = _SINK
        is_reversed = head * NUM_KV_HEADS // NUM_HEADS == 1
        for new, old in enumerate(tables.bit_order(layer, head)):
            place = start + (STATE_BITS - 1 - old if is_reversed else old)
            attention.o_proj.weight[new, place] = 1.0


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
