"""Tiny models with random weights: the controls beside the constructed ones.

Weights with a standard deviation of 0.2 and an untied head make the next token depend on the whole
context; with the libraries' default of 0.02 a model repeats itself and hides nearly every fault. Their
margins are ordinary, so near-ties occur, and a fault of one key shows in their tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    BambaConfig,
    BambaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

VOCAB_SIZE = 256  # bytes are the tokens
CONTEXT_LEN = 256
WINDOW = 6  # small, so that one key too many or too few matters

_NO_SPECIAL_TOKENS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def build_gpt2_random() -> PreTrainedModel:
    """Returns a GPT-2 with learned absolute positions, 2 layers of width 64, 4 heads."""
    config = GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_positions=CONTEXT_LEN,
        n_embd=64,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=0.2,
        tie_word_embeddings=False,
        **_NO_SPECIAL_TOKENS,
    )
    return _build(GPT2LMHeadModel, config)


def build_llama_random() -> PreTrainedModel:
    """Returns a Llama with RoPE and grouped KV heads (4 over 2), 2 layers of width 64."""
    return _build(LlamaForCausalLM, LlamaConfig(**_rope_shape()))


def build_mistral_window() -> PreTrainedModel:
    """Returns `llama-random` with a sliding window of `WINDOW` keys in every layer."""
    return _build(MistralForCausalLM, MistralConfig(sliding_window=WINDOW, **_rope_shape()))


def build_qwen2_mixed() -> PreTrainedModel:
    """Returns `llama-random` with biases, a window of `WINDOW` keys in one layer and none in the
    other."""
    kinds = ["sliding_attention", "full_attention"]
    config = Qwen2Config(
        layer_types=kinds, use_sliding_window=True, sliding_window=WINDOW, **_rope_shape()
    )
    return _build(Qwen2ForCausalLM, config)


def _rope_shape() -> dict[str, Any]:
    return {
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": CONTEXT_LEN,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
        **_NO_SPECIAL_TOKENS,
    }


def build_bamba_random() -> PreTrainedModel:
    """Returns a Bamba of width 64: a layer of Mamba 2 with 4 heads of 32 channels and 16 states, and
    one of attention."""
    shape = _rope_shape() | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    config = BambaConfig(
        **shape,
        attn_layer_indices=[1],
        mamba_n_heads=4,
        mamba_d_head=32,
        mamba_d_state=16,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_chunk_size=16,
        time_step_limit=(0.0, 16.0),  # no limit, but the default, infinity, is not JSON
    )
    return _build(BambaForCausalLM, config)


def _build(kind: Callable[..., PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind(config)
    return model.eval().requires_grad_(False)
