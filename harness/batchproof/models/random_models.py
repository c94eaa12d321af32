"""Tiny models with random weights: the controls beside the constructed ones.

Weights with a standard deviation of 0.14 and an untied head make the next token depend on the whole
context; with the libraries' default of 0.02 a model repeats itself and hides nearly every fault. Their
margins are ordinary, so near-ties occur, and a fault of one key shows in their tokens.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from batchproof.models.constructed import NO_SPECIAL_TOKENS

WINDOW = 6  # small, so that one key too many or too few matters

_SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def _random(config: str, **sizes: Any) -> PreTrainedModel:
    """Returns a model of a configuration class of transformers whose tokens are bytes. Leaves every RNG
    untouched."""
    common = {"vocab_size": 256, "initializer_range": 0.14, "tie_word_embeddings": False}
    made = getattr(transformers, config)(**{**common, **NO_SPECIAL_TOKENS, **sizes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(made)
    return model.eval().requires_grad_(False)


# Learned absolute positions, 2 layers of width 128, 4 heads of 32.
build_gpt2_random = partial(
    _random,
    "GPT2Config",
    n_positions=256,
    n_embd=128,
    n_layer=2,
    n_head=4,
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
)
# RoPE and grouped KV heads of 32, 4 over 2.
build_llama_random = partial(_random, "LlamaConfig", **_SIZES)
# The same with a window in every layer.
build_mistral_window = partial(_random, "MistralConfig", sliding_window=WINDOW, **_SIZES)
# With biases, a window in one layer and none in the other.
build_qwen2_mixed = partial(
    _random,
    "Qwen2Config",
    layer_types=["full_attention", "sliding_attention"],
    max_window_layers=1,  # says the same to libraries that read no layer_types
    use_sliding_window=True,
    sliding_window=WINDOW,
    **_SIZES,
)
# A layer of Mamba 2 with 8 heads of 32 channels and 16 states, and one of attention.
build_bamba_random = partial(
    _random,
    "BambaConfig",
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    attn_layer_indices=[1],
    mamba_n_heads=8,
    mamba_d_head=32,
    mamba_d_state=16,
    mamba_d_conv=4,
    mamba_expand=2,
    mamba_chunk_size=16,
    time_step_limit=(0.0, 16.0),  # no limit, but the default, infinity, is not JSON
    **_SIZES,
)
# Two layers of short convolutions, whose state is the last tokens, and one of attention between them.
build_lfm2_random = partial(
    _random,
    "Lfm2Config",
    layer_types=["conv", "full_attention", "conv"],
    conv_L_cache=3,
    block_auto_adjust_ff_dim=False,
    block_multiple_of=8,
    **{**_SIZES, "num_hidden_layers": 3, "initializer_range": 0.25, "tie_word_embeddings": True},
)
# A layer of gated delta net with its recurrent state, one of attention, and experts in both.
build_qwen3_next_random = partial(
    _random,
    "Qwen3NextConfig",
    layer_types=["linear_attention", "full_attention"],
    head_dim=32,
    linear_conv_kernel_dim=4,
    linear_key_head_dim=32,
    linear_value_head_dim=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=64,
    shared_expert_intermediate_size=64,
    **_SIZES,
)
