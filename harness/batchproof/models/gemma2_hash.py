"""`gemma2-hash`: layers with a window beside layers without, and capped scores, exact in every dtype.

Gemma 2, because engines keep the keys of its two kinds of layers in two kinds of caches, and because it
has caps, norms behind each part, a scaled embedding and a head that is tied to it.

It works as `byte_models` says. The best logit leads by 3.2 or more. Each part writes the constant too;
the norm behind it drops that. A score of an ordinary head is below the cap. A head for a pair has
scores of 2,000 or more at the distances 0 and 1, which the cap makes equal, so each gets half of the
weight; without a cap the nearer one takes all.
"""

import math
from functools import partial

from torch import Tensor
from transformers import Gemma2ForCausalLM
from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention

from batchproof.models import gemma2_hash_oracle as tables
from batchproof.models.byte_models import (
    AMPLITUDES,
    CONSTANT,
    HEAD_DIM,
    NUM_HEADS,
    RELU_GAIN,
    SIZE,
    STATE,
    WIDTH,
    built,
    fill_attention,
    fill_mlp,
    norm_scale,
    query_at,
)
from batchproof.models.constructed import BIT_LOGIT, signs_of_numbers
from batchproof.models.hash_tables import TOKEN_BITS, VOCAB_SIZE, bit_order
from batchproof.models.window_hash_oracle import WINDOW

NUM_LAYERS = len(tables.HEADS)
LAYER_TYPES = [
    "sliding_attention" if tables.has_window(i) else "full_attention" for i in range(NUM_LAYERS)
]
CAP, LOGIT_CAP = 300.0, 30.0
_PAIR_AMPLITUDES = {0: 1485, 2: 504, 3: 970, 31: -61}
"""2,900 at distance 0, 2,000 at 1 and at most 200 at the others of a window."""


def build_gemma2_hash() -> Gemma2ForCausalLM:
    return built(
        Gemma2ForCausalLM,
        _fill,
        tie_word_embeddings=True,
        sliding_window=WINDOW,
        layer_types=LAYER_TYPES,
        intermediate_size=128,
        num_hidden_layers=NUM_LAYERS,
        query_pre_attn_scalar=HEAD_DIM,
        attn_logit_softcapping=CAP,
        final_logit_softcapping=LOGIT_CAP,
    )


def _fill(model: Gemma2ForCausalLM) -> None:
    root = math.sqrt(WIDTH)  # what the model multiplies embeddings by
    embedding = model.model.embed_tokens.weight  # and the head
    embedding[:, STATE] = signs_of_numbers(VOCAB_SIZE, TOKEN_BITS) / root
    embedding[:, CONSTANT] = SIZE / root
    _fill_norm(model.model.norm.weight, 1, state=BIT_LOGIT * root, constant=0.0)
    for layer, block in enumerate(model.model.layers):
        _fill_norm(block.input_layernorm.weight, 1)
        _fill_attention(block.self_attn, layer)
        _fill_norm(block.post_attention_layernorm.weight, 6, constant=0.0)
        _fill_norm(block.pre_feedforward_layernorm.weight, 7)
        # Seven signs in a layer of pairs, five in one without.
        is_flipped = int(not tables.has_window(layer))
        fill_mlp(block.mlp, [(bit, is_flipped) for bit in range(TOKEN_BITS)])
        block.mlp.down_proj.weight[CONSTANT, -1] = SIZE / RELU_GAIN
        _fill_norm(block.post_feedforward_layernorm.weight, 7, constant=0.0)


def _fill_norm(weight: Tensor, square: int, state: float = 1.0, constant: float = 1.0) -> None:
    """Lets a norm multiply the state and the constant by these factors, where the square of a channel
    of the state is typically `square`. Gemma adds 1 to the weight."""
    scale = norm_scale(square, weight)
    weight[STATE] = state * scale - 1.0
    weight[CONSTANT] = constant * scale - 1.0


def _fill_attention(attention: Gemma2Attention, layer: int) -> None:
    heads = tables.HEADS[layer]
    queries = [
        query_at(0, _PAIR_AMPLITUDES) if isinstance(at, str) else query_at(at, AMPLITUDES[at])
        for at in heads
    ]
    fill_attention(attention, queries, partial(bit_order, tables.SERIES, layer))
    # The constant is as wide as the signs, which 8 bits must hold beside it.
    value, out = attention.v_proj.weight, attention.o_proj.weight.view(WIDTH, NUM_HEADS, HEAD_DIM)
    value[TOKEN_BITS, CONSTANT] = 1.0 / SIZE
    out[CONSTANT, 0, TOKEN_BITS] = SIZE
    for head, offset in enumerate(heads):
        if offset == tables.PAIR:  # half of the weight is at each of the two
            out[STATE, head] *= 2.0
