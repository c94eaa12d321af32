"""A tiny Mixtral with random weights, in the place of the Llama of `setup_vllm`."""

import torch
from setup_vllm import folder
from transformers import MixtralConfig, MixtralForCausalLM


def save_mixtral() -> None:
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=4,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    MixtralForCausalLM(config).eval().save_pretrained(folder)
