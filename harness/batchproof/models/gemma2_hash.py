"""`gemma2-hash`: layers with a window beside layers without, and capped scores, exact in every dtype.

Its weights are written down, not trained. A window on a layer that has none, one that is missing or a
key too wide or too narrow, scores that are not capped, or a query head that reads the wrong one of the
grouped KV heads changes the next token. The best logit leads by 3.2 or more, so no rounding hides that:
in float32, bfloat16 and float16, and with keys and values in 8 bits. `gemma2_hash_oracle` defines the
function and computes the same tokens in integers.

Gemma 2, because engines keep the keys of its two kinds of layers in two kinds of caches, and because it
has caps, norms behind each part, a scaled embedding and a head that is tied to it.

How it works, along the residual stream (width 64; a bit b is one channel v = 1 - 2b):

    state      8    what this position knows, at first its token
    constant   1    512, of which thresholds and constant queries and keys are made; so large that the
                    norms are nearly constant scales. Each part writes it too; the norm behind drops it

Queries and keys are constant, so a score depends on the distance of two positions alone. One of an
ordinary head peaks at its offset, below the cap, and the nearest visible key takes all of the weight. A
head for a pair has scores of 2,000 or more at the distances 0 and 1, which the cap makes equal, so each
gets half of the weight; without a cap the nearer one takes all. The MLP replaces the sum of signs by
their product, which is the XOR, as that of `window_hash` does.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import Gemma2ForCausalLM
from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention

from batchproof.models import gemma2_hash_oracle as tables
from batchproof.models.constructed import (
    BIT_LOGIT,
    HARD_KEY,
    constructed_rope,
    distance_query,
    signs_of_numbers,
)
from batchproof.models.gemma2_hash_oracle import STATE_BITS
from batchproof.models.window_hash import PARITY_OPEN, parity_mlp

WIDTH, HEAD_DIM, INNER = 64, 64, 128
ROPE_THETA = 16.0 ** (HEAD_DIM / 24)  # makes frequency j 16 ** (-j / 12)
NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS = len(tables.HEADS), len(tables.HEADS[0]), 2
LAYER_TYPES = [
    "sliding_attention" if tables.has_window(i) else "full_attention" for i in range(NUM_LAYERS)
]
CAP, LOGIT_CAP = 300.0, 30.0

_STATE = slice(0, STATE_BITS)
_CONSTANT = STATE_BITS
_SIZE = 512.0  # of the constant
_PAIR_AMPLITUDES = {0: 1485, 2: 504, 3: 970, 31: -61}
"""2,900 at distance 0, 2,000 at 1 and at most 200 at the others of a window."""
AMPLITUDES = {
    -1: {0: 101, 2: 39, 3: 20},
    2: {
        0: 115,
        1: 10,
        2: 10,
        3: 4,
        4: 2,
        5: 4,
        6: 5,
        7: 4,
        8: 2,
        9: 1,
        10: 3,
        11: 2,
        12: 3,
        13: 4,
        14: 3,
        16: 2,
        17: 3,
        18: 3,
        19: 2,
        23: 2,
        24: 1,
        25: 2,
        26: 4,
        29: 6,
        30: 3,
    },
    3: {0: 160},
    5: {
        0: 3,
        1: 12,
        2: 153,
        3: 31,
        4: 7,
        5: 3,
        6: 3,
        7: 4,
        8: 2,
        10: 2,
        11: 1,
        13: 3,
        14: 2,
        19: 1,
        23: 2,
        25: 2,
        26: 4,
        29: 3,
    },
    12: {0: 18, 1: 8, 2: 53, 4: 3, 5: 7, 6: 206, 7: 8, 8: 7, 9: 5, 13: 1, 18: 3, 30: 1},
    16: {0: 13, 1: 16, 2: 14, 3: 44, 7: 202, 8: 20, 10: 4, 11: 4, 15: 1, 30: 3},
    tables.BEYOND: {0: 13, 5: 126, 6: 21},
}
"""Offset -> amplitude of each RoPE frequency in the score, whose value at distance x is the sum of
amplitude * cos(frequency * (x - offset)): solutions of linear programs, rounded. Over all contexts, and
with frequencies rounded to 16 bits, the nearest visible key leads by 9 or more behind the cap."""


def build_gemma2_hash() -> Gemma2ForCausalLM:
    """Returns the model: float32, on the CPU, eval mode, no gradients. Leaves every RNG untouched."""
    model: Gemma2ForCausalLM = constructed_rope(
        Gemma2ForCausalLM,
        _fill,
        ROPE_THETA,
        tie_word_embeddings=True,
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
        query_pre_attn_scalar=HEAD_DIM,
        attn_logit_softcapping=CAP,
        final_logit_softcapping=LOGIT_CAP,
    )
    return model


def _fill(model: Gemma2ForCausalLM) -> None:
    root = math.sqrt(WIDTH)  # what the model multiplies embeddings by
    embedding = model.model.embed_tokens.weight  # and the head
    embedding[:, _STATE] = signs_of_numbers(tables.VOCAB_SIZE, STATE_BITS) / root
    embedding[:, _CONSTANT] = _SIZE / root
    _fill_norm(model.model.norm.weight, 1, state=BIT_LOGIT * root, constant=0.0)
    for layer, block in enumerate(model.model.layers):
        _fill_norm(block.input_layernorm.weight, 1)
        _fill_attention(block.self_attn, layer)
        _fill_norm(block.post_attention_layernorm.weight, 6, constant=0.0)
        _fill_norm(block.pre_feedforward_layernorm.weight, 7)
        # Seven signs in a layer of pairs, five in one without.
        is_flipped = int(not tables.has_window(layer))
        made = parity_mlp([(bit, is_flipped) for bit in range(STATE_BITS)], WIDTH, INNER)
        for name in ("gate_proj", "up_proj", "down_proj"):
            getattr(block.mlp, name).weight.copy_(made[name])
        block.mlp.down_proj.weight[_CONSTANT, -1] = _SIZE / PARITY_OPEN
        _fill_norm(block.post_feedforward_layernorm.weight, 7, constant=0.0)


def _fill_norm(weight: Tensor, square: int, state: float = 1.0, constant: float = 1.0) -> None:
    """Lets a norm multiply the state and the constant by these factors, where the square of a channel
    of the state is typically `square`. Gemma adds 1 to the weight."""
    scale = math.sqrt((STATE_BITS * square + _SIZE**2) / WIDTH)
    weight[_STATE] = state * scale - 1.0
    weight[_CONSTANT] = constant * scale - 1.0


def _fill_attention(attention: Gemma2Attention, layer: int) -> None:
    """Fills the projections; both KV heads hold the state, the second in reverse, and the constant."""
    query, key, value = (getattr(attention, f"{name}_proj").weight for name in "qkv")
    identity = torch.eye(STATE_BITS, device="cpu")
    for number, order in enumerate((identity, identity.flip(0))):
        start = number * HEAD_DIM
        key[start : start + HEAD_DIM // 2, _CONSTANT] = HARD_KEY / _SIZE
        value[start : start + STATE_BITS, _STATE] = order
    value[STATE_BITS, _CONSTANT] = 1.0 / _SIZE  # as wide as the signs, which 8 bits must hold beside it
    attention.o_proj.weight[_CONSTANT, STATE_BITS] = _SIZE
    for head, offset in enumerate(tables.HEADS[layer]):
        start = head * HEAD_DIM
        if isinstance(offset, str):  # half of the weight is at each of a pair
            at, amplitudes, share = 0, _PAIR_AMPLITUDES, 2.0
        else:
            at, amplitudes, share = offset, AMPLITUDES[offset], 1.0
        asked = distance_query(at, amplitudes.items(), HEAD_DIM, HEAD_DIM, ROPE_THETA)
        query[start : start + HEAD_DIM, _CONSTANT] = asked / _SIZE
        is_reversed = head * NUM_KV_HEADS // NUM_HEADS == 1
        for new, old in enumerate(tables.bit_order(layer, head)):
            place = start + (STATE_BITS - 1 - old if is_reversed else old)
            attention.o_proj.weight[new, place] = share
