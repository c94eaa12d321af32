"""A tiny Llama with random weights in `folder`, and vLLM's engine on it, in this process."""

import os
import tempfile

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "HF_HUB_OFFLINE": "1",
}

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=512,
    initializer_range=0.2,
    eos_token_id=None,
)
scratch = tempfile.TemporaryDirectory()
folder = scratch.name
LlamaForCausalLM(config).eval().save_pretrained(folder)


def engine(**options):
    limits = {"kv_cache_memory_bytes": 1 << 26, "max_num_seqs": 4}
    return LLM(folder, dtype="float32", enforce_eager=True, skip_tokenizer_init=True, **limits | options)
