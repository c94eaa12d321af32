"""`deepseek-hash`: multi-head latent attention and grouped experts, exact in every dtype.

DeepSeek V3 (https://arxiv.org/abs/2412.19437), whose cache holds for each position a normed latent and
one rotated key for all heads; a matrix makes the keys and values of each head from the latent. Sizes
are those of the published model where kernels know no others: 512 and 64.

It works as `byte_models` says; the best logit leads by 3.9 or more. The latent is the state, 64 times
over. All of its channels are as large, so the norm is a constant scale; half of its weights are
negative, at random, so that a latent that is not normed once has other signs. Each head reads a quarter
of the channels, all of them. The latent of a query likewise holds the own state, twice, and the
constant.

Rotated queries and keys are constant. A head with two peaks has the product of an own sign and of one
of a key in the other part of its score: it reads the farther peak, unless only the nearer one has the
sign that it asks for.

The router's first expert of a group asks for the group, the second for itself in either, and prevails,
since a bias takes one half from the first.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DeepseekV3ForCausalLM

from batchproof.models import deepseek_hash_oracle as tables
from batchproof.models.byte_models import (
    AMPLITUDES,
    CONSTANT,
    NUM_HEADS,
    ROPE_THETA,
    SIZE,
    STATE,
    WIDTH,
    built,
    fill_frame,
    fill_mlp,
    fill_shared_and_routed,
)
from batchproof.models.constructed import AMPLITUDES_OF, HARD_KEY, distance_query, signs
from batchproof.models.hash_tables import TOKEN_BITS, bit_order, random_bits

LATENT, QUERY_LATENT = 512, 32
ROPE_DIM, NOPE_DIM, VALUE_DIM = 64, 32, 32
SCALING = 2.0  # of what an expert makes

_LARGE = 4.0  # a channel of a latent, before its norm
_MATCH = 14.0  # what a key that is asked for has more in its score, and another one less
_ROUTER_GAIN = 32.0  # sigmoid of it is 1, and of its negative 0
_FUTURE: Mapping[int, int] = AMPLITUDES_OF["deepseek_future"]
_PEAKS: Mapping[int, Sequence[Mapping[int, int]]] = AMPLITUDES_OF["deepseek_peaks"]


def build_deepseek_hash() -> DeepseekV3ForCausalLM:
    return built(
        DeepseekV3ForCausalLM,
        _fill,
        intermediate_size=2 * WIDTH,
        moe_intermediate_size=WIDTH,
        num_hidden_layers=tables.NUM_LAYERS,
        num_key_value_heads=NUM_HEADS,
        q_lora_rank=QUERY_LATENT,
        kv_lora_rank=LATENT,
        qk_rope_head_dim=ROPE_DIM,
        qk_nope_head_dim=NOPE_DIM,
        v_head_dim=VALUE_DIM,
        first_k_dense_replace=tables.NUM_DENSE,
        n_routed_experts=tables.NUM_EXPERTS,
        n_shared_experts=1,
        num_experts_per_tok=1,
        n_group=tables.NUM_GROUPS,
        topk_group=1,
        norm_topk_prob=False,
        routed_scaling_factor=SCALING,
        num_mtp_layers=0,
        # What transformers takes for granted, and other libraries read.
        scoring_func="sigmoid",
        topk_method="noaux_tc",
    )


def _fill(model: DeepseekV3ForCausalLM) -> None:
    fill_frame(model, lambda _: NUM_HEADS + 1)
    for layer, block in enumerate(model.model.layers):
        _fill_queries(block.self_attn, layer)
        _fill_latents(block.self_attn, layer)
        # Of five signs an MLP makes minus their product.
        if layer < tables.NUM_DENSE:
            fill_mlp(block.mlp, [(bit, 1) for bit in range(TOKEN_BITS)])
        else:
            _fill_experts(block.mlp, layer)


def _random_signs(label: str, count: int) -> Tensor:
    parts = (random_bits(f"deepseek / {label} / {start}", TOKEN_BITS) for start in range(count // 8))
    return torch.cat([signs(each) for each in parts])


def _fill_queries(attention: Any, layer: int) -> None:
    """Fills what makes the queries: their latent is the state, twice, and as many constants."""
    half, head_dim = QUERY_LATENT // 2, NOPE_DIM + ROPE_DIM
    latent, norm = attention.q_a_proj.weight, attention.q_a_layernorm.weight
    latent[:half, STATE] = _LARGE * torch.eye(TOKEN_BITS).repeat(2, 1)
    latent[half:, CONSTANT] = _LARGE / SIZE
    norm.copy_(_random_signs(f"layer {layer} / query", QUERY_LATENT))
    query = attention.q_b_proj.weight.view(NUM_HEADS, head_dim, QUERY_LATENT)
    for head, offset in enumerate(tables.OFFSETS[layer]):
        amplitudes = _FUTURE if offset < 0 else AMPLITUDES[offset]
        _fill_rotated(query[head], offset, amplitudes)
    for head, distance in enumerate(tables.CHOICES, start=len(tables.OFFSETS[layer])):
        own, _ = tables.asked(layer, head)
        query[head, :NOPE_DIM, [own, own + TOKEN_BITS]] = _MATCH * math.sqrt(head_dim) / NOPE_DIM / 2
        for offset, amplitudes in zip((0, distance), _PEAKS[distance], strict=True):
            _fill_rotated(query[head], offset, amplitudes)
    query *= norm


def _fill_rotated(query: Tensor, offset: int, amplitudes: Mapping[int, int]) -> None:
    """Adds the queries of a distance; the two of a rotated pair lie side by side."""
    head_dim, half = NOPE_DIM + ROPE_DIM, QUERY_LATENT // 2
    asked = distance_query(offset, amplitudes.items(), head_dim, ROPE_DIM, ROPE_THETA)
    query[NOPE_DIM:, half:] += asked.view(2, -1).T.reshape(-1, 1) / half


def _fill_latents(attention: Any, layer: int) -> None:
    """Fills what makes and reads the latents: channel c is bit c % 8, for head c // 128."""
    latent, norm = attention.kv_a_proj_with_mqa.weight, attention.kv_a_layernorm.weight
    latent[:LATENT, STATE] = _LARGE * torch.eye(TOKEN_BITS).repeat(LATENT // TOKEN_BITS, 1)
    latent[LATENT::2, CONSTANT] = HARD_KEY / SIZE
    norm.copy_(_random_signs(f"layer {layer} / latent", LATENT))
    share = LATENT // NUM_HEADS
    # What cancels for a whole latent, and no longer for one that is cut at its end.
    weights = torch.tensor([2.0, 2.0, -2.0, -2.0]).repeat_interleave(TOKEN_BITS)
    read = attention.kv_b_proj.weight.view(NUM_HEADS, NOPE_DIM + VALUE_DIM, LATENT)
    out = attention.o_proj.weight.view(WIDTH, NUM_HEADS, VALUE_DIM)
    for head in range(NUM_HEADS):
        part = read[head, :, head * share : (head + 1) * share]
        part[NOPE_DIM:] = torch.diag(weights).repeat(1, share // VALUE_DIM)
        part[:, -TOKEN_BITS:] /= 2.0  # so that the sum is 1
        if head >= len(tables.OFFSETS[layer]):
            _, key = tables.asked(layer, head)
            for dim in range(NOPE_DIM):
                part[dim, key + dim * TOKEN_BITS % share] = 1.0
        for new, old in enumerate(bit_order(tables.SERIES, layer, head)):
            out[new, head, old::TOKEN_BITS] = 1.0
    read *= norm


def _fill_experts(mlp: Any, layer: int) -> None:
    for expert in range(tables.NUM_EXPERTS):
        group, is_second = divmod(expert, 2)
        is_many = is_second or group  # ones, which make the sum of signs negative
        mlp.gate.weight[expert, is_second] = -_ROUTER_GAIN if is_many else _ROUTER_GAIN
        mlp.gate.e_score_correction_bias[expert] = 0.0 if is_second else -0.5
    fill_shared_and_routed(mlp, mlp.shared_experts, partial(tables.flips, layer))
    mlp.experts.down_proj /= SCALING
