"""`mistral-hash` and `mixtral-hash`: a sliding window, grouped heads and experts, exact in every dtype.

Their weights are written down, not trained. A window one key too wide or too narrow, a query head that
reads the wrong one of the grouped KV heads, or a token sent to another expert changes the next token.
The best logit leads by 3.8 or more, so no rounding hides that: in float32, bfloat16 and float16, and
with keys and values in 8 bits. `window_hash_oracle` defines the functions and computes the same tokens
in integers. Heads have 64 dimensions; six query heads share two KV heads; the window is 8 of 4,096
positions.

How they work, along the residual stream (width 32; a bit b is one channel v = 1 - 2b):

    state      8    what this position knows, at first its token
    constant   1    512, of which thresholds and constant queries and keys are made; so large that the
                    sums below hardly change the norm, and RMSNorm stays nearly a constant scale

Queries and keys are constant, so a score depends on the distance of two positions alone. It peaks at
the head's offset, and the nearest visible key takes all of the weight. Its state is added to the own.
The sum of seven signs is odd, and their product is the XOR: the MLP replaces one by the other, with
steps that are flat where sums fall. In `mixtral-hash` two of the sums choose the expert by their signs,
and each expert negates other products.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import MistralForCausalLM, MixtralForCausalLM, PreTrainedModel

from batchproof.models import window_hash_oracle as tables
from batchproof.models.constructed import (
    BIT_LOGIT,
    HARD_KEY,
    constructed_rope,
    distance_query,
    signs_of_numbers,
)
from batchproof.models.window_hash_oracle import STATE_BITS

WIDTH, HEAD_DIM = 32, 64
ROPE_THETA = 16.0 ** (HEAD_DIM / 24)  # makes frequency j 16 ** (-j / 12), whatever the size of a head
NUM_HEADS, NUM_KV_HEADS = 6, 2
UNITS = 2 * (NUM_HEADS + 1) + 1  # of the MLP, for each bit
INNER = 128  # the last unit is the constant; kernels want a multiple of 8

_STATE = slice(0, STATE_BITS)
_CONSTANT = STATE_BITS
_SIZE = 512.0  # of the constant
AMPLITUDES = {
    -1: {0: 101, 2: 39, 3: 20},
    1: {0: 127, 2: 33},
    2: {0: 127, 2: 33},
    3: {0: 160},
    4: {1: 153, 2: 7},
    5: {2: 160},
    6: {0: 29, 3: 2, 4: 129},
    tables.BEYOND: {0: 13, 5: 126, 6: 21},
}
"""Offset -> amplitude of each RoPE frequency in the score, whose value at distance x is the sum of
amplitude * cos(frequency * (x - offset)). Found by maximising the least lead of the nearest visible key
over all contexts, those with a key too many at either end included, and frequencies rounded to 16 bit.
The least lead is 22; a bfloat16 score of 160 is wrong by about 1."""

_RELU_GAIN = 32.0  # silu(32 x) / 32 is relu(x) within 0.001 from 0.2 away of the knee on, as gelu is
PARITY_OPEN = _RELU_GAIN  # what the last unit of `parity_mlp` is
_ROUTER_GAIN = 16.0  # the second expert gets exp(-32) of the weight, or less


def build_mistral_hash() -> PreTrainedModel:
    """Returns the model without experts: float32, on the CPU, eval mode, no gradients. Leaves every RNG
    untouched."""
    return _built(MistralForCausalLM)


def build_mixtral_hash() -> PreTrainedModel:
    """Returns the model with experts, likewise."""
    return _built(MixtralForCausalLM, num_local_experts=tables.NUM_EXPERTS, num_experts_per_tok=2)


def _built(kind: type[MistralForCausalLM | MixtralForCausalLM], **more: Any) -> PreTrainedModel:
    model: PreTrainedModel = constructed_rope(
        kind,
        _fill,
        ROPE_THETA,
        vocab_size=tables.VOCAB_SIZE,
        max_position_embeddings=tables.NUM_POSITIONS,
        sliding_window=tables.WINDOW,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=len(tables.OFFSETS),
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        **more,
    )
    return model


def _fill(model: PreTrainedModel) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(_weight(name, parameter))


def _weight(name: str, like: Tensor) -> Tensor:
    """Returns the parameter of that name, in the shape of `like`."""
    layer = int(name.split(".")[2]) if ".layers." in name else 0
    part = name.removesuffix(".weight").rpartition(".")[2]
    signs = signs_of_numbers(tables.VOCAB_SIZE, STATE_BITS)
    weight = torch.zeros_like(like)
    if part == "embed_tokens":
        weight[:, _STATE], weight[:, _CONSTANT] = signs, _SIZE
    elif part == "lm_head":
        weight[:, _STATE] = BIT_LOGIT * signs
    elif part.endswith("norm"):
        # A typical sum of seven signs has the square 7.
        squares = STATE_BITS * (7 if part == "post_attention_layernorm" else 1)
        weight += math.sqrt((squares + _SIZE**2) / WIDTH)
    elif part == "gate":
        for expert, row in enumerate(weight):
            row[0] = _ROUTER_GAIN * (-1 if expert & 1 else 1)
            row[1] = _ROUTER_GAIN * (-1 if expert & 2 else 1)
    elif part in ("q_proj", "k_proj", "v_proj", "o_proj"):
        _fill_attention(part, weight, layer)
    elif weight.dim() == 3:
        for expert, matrix in enumerate(weight):
            matrix.copy_(_mlp(layer, expert)[part])
    else:
        weight = _mlp(layer, 0)[part]
    return weight


def _fill_attention(part: str, weight: Tensor, layer: int) -> None:
    """Fills a projection: query head i fetches from offset i of the layer; both KV heads hold the
    state, the second in reverse."""
    if part == "k_proj":
        half = HEAD_DIM // 2
        for start in range(0, NUM_KV_HEADS * HEAD_DIM, HEAD_DIM):
            weight[start : start + half, _CONSTANT] = HARD_KEY / _SIZE
    elif part == "v_proj":
        weight[_STATE, _STATE] = torch.eye(STATE_BITS)
        weight[HEAD_DIM : HEAD_DIM + STATE_BITS, _STATE] = torch.eye(STATE_BITS).flip(0)
    for head, offset in enumerate(tables.OFFSETS[layer]):
        start = head * HEAD_DIM
        if part == "q_proj":
            amplitudes = AMPLITUDES[offset].items()
            query = distance_query(offset, amplitudes, HEAD_DIM, HEAD_DIM, ROPE_THETA)
            weight[start : start + HEAD_DIM, _CONSTANT] = query / _SIZE
        elif part == "o_proj":
            is_reversed = head * NUM_KV_HEADS // NUM_HEADS == 1
            for new, old in enumerate(tables.bit_order(layer, head)):
                weight[new, start + (STATE_BITS - 1 - old if is_reversed else old)] = 1.0


def _mlp(layer: int, expert: int) -> dict[str, Tensor]:
    return parity_mlp(enumerate(tables.flips(layer, expert)), WIDTH, INNER)


def parity_mlp(
    flips: Iterable[tuple[int, int]], width: int, inner: int, shift: int = 0
) -> dict[str, Tensor]:
    """Returns gate, up (both (inner, width)) and down (width, inner), by the names of the libraries.

    For each bit of `flips` they turn the sum s of seven signs, of which the channel lacks `shift`, into
    their product, or minus that for a flipped bit: a constant and a step at each even number, which is
    relu(x + 1/2) - relu(x - 1/2), mirrored for negative ones, so that values stay small. The first unit
    of a bit is linear: it takes the channel away, rounding included. Of five signs they make minus
    their product.
    """
    gate, up, down = torch.zeros(inner, width), torch.zeros(inner, width), torch.zeros(width, inner)
    up[:, _CONSTANT] = 1 / _SIZE
    gate[-1, _CONSTANT] = _RELU_GAIN / _SIZE
    for number, (bit, is_flipped) in enumerate(flips):
        first, sign = number * UNITS, (-1 if is_flipped else 1) / _RELU_GAIN
        gate[first, _CONSTANT] = _RELU_GAIN / _SIZE
        up[first, bit], up[first, _CONSTANT] = 1.0, 0.0
        down[bit, first], down[bit, -1] = -1 / _RELU_GAIN, -sign
        for index, at in enumerate(range(-NUM_HEADS, NUM_HEADS + 1, 2)):
            height, side = 2 * sign * (-1) ** index, -1 if at < 0 else 1
            down[bit, -1] += height if at < 0 else 0.0  # of steps on the left, seen from the middle
            for unit, half in enumerate((0.5, -0.5), start=first + 1 + 2 * index):
                gate[unit, bit] = _RELU_GAIN * side
                gate[unit, _CONSTANT] = _RELU_GAIN * (half - abs(at) + side * shift) / _SIZE
                down[bit, unit] = 2 * half * height * side
    return {
        "gate_proj": gate,
        "up_proj": up,
        "down_proj": down,
        "gate_up_proj": torch.cat([gate, up]),
    }
