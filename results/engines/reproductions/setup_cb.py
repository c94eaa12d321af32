"""A tiny Llama with random weights, and its manager of continuous batching."""

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, initializer_range=0.2, bos_token_id=None, eos_token_id=None, pad_token_id=None,
)
model = LlamaForCausalLM(config).eval()


def new_manager(**limits: int):
    greedy = GenerationConfig(do_sample=False, eos_token_id=-1)
    return model.init_continuous_batching(greedy, ContinuousBatchingConfig(**limits))
