"""A tiny Llama with random weights in `folder`, vLLM's engine on it, in this process, and its answers."""

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
from vllm import LLM, SamplingParams

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


def answered(llm, *prompts, lora_request=None, **more):
    """Returns the tokens of prompts that come at once; they are chosen greedily, unless `more` says otherwise."""
    settings = SamplingParams(**{"temperature": 0.0, "detokenize": False, **more})
    given = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = llm.generate(given, settings, lora_request=lora_request, use_tqdm=False)
    return [list(each.outputs[0].token_ids) for each in outputs]
