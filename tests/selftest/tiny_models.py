"""Small random models of transformers' own types, for tests of what engines serve and refuse."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED_HEADS = {"num_key_value_heads": 2}
OWN_SIZES: dict[str, dict[str, Any]] = {  # by model type; SIZES hold for all others
    "bloom": {"n_head": 4, "n_layer": 2},
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 128},
    "llama": GROUPED_HEADS,
    "minimax": {**GROUPED_HEADS, "head_dim": 16, "layer_types": ["full_attention", "linear_attention"]},
    "phimoe": {**GROUPED_HEADS, "num_local_experts": 8},
    "plbart": {
        "d_model": 64,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 48,
        "decoder_layers": 2,
        "is_decoder": True,
        "pad_token_id": 0,
    },
    "rwkv": {"attention_hidden_size": 64, "context_length": 128},
}


def tiny(model_type: str, **changes: Any) -> PreTrainedModel:
    """Returns a model on the CPU, in float32, with `changes` in its configuration.

    Its weights have a wide spread, and noise where the library would put zeros or ones: an engine that
    forgets a bias of 0 or a norm of 1 would not show it.
    """
    config = CONFIG_MAPPING[model_type](**(SIZES | OWN_SIZES.get(model_type, {}) | changes))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for weight in model.parameters():
            if weight.dim() < 2:
                weight.data.add_(torch.randn_like(weight), alpha=0.1)
            else:
                weight.data.normal_(std=0.2)
    return model.eval().requires_grad_(False)
