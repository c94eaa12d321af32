"""A tiny Qwen3-Next with random weights in the `folder` of `setup_vllm`, and vLLM's engine on it."""

import torch
from setup_vllm import folder
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM
from vllm import LLM

torch.manual_seed(0)
config = Qwen3NextConfig(
    vocab_size=256,
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=64,
    linear_num_key_heads=2,
    linear_num_value_heads=2,
    num_experts=2,
    num_experts_per_tok=2,  # all, so that rounding sends no token to another
    moe_intermediate_size=64,
    shared_expert_intermediate_size=64,
    max_position_embeddings=512,
    initializer_range=0.2,
    eos_token_id=None,
)
model = Qwen3NextForCausalLM(config).bfloat16().eval()
model.save_pretrained(folder)
drafts = {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1, "num_speculative_tokens": 3}


def engine(**options):
    limits = {"kv_cache_memory_bytes": 1 << 27, "max_num_seqs": 4, "max_model_len": 256}
    return LLM(folder, dtype="bfloat16", enforce_eager=True, skip_tokenizer_init=True, **limits | options)
