"""`llama-hash-deep`: `llama-hash` at a cost of 300 MB of weights, for benchmarks of speculation.

Layers that write nothing follow those of `llama-hash`, and the MLPs are as wide as theirs, so that it
chooses the same tokens and takes much longer. Drafts for it are made of `llama-hash`.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from batchproof.decoding.speculation import register_smaller
from batchproof.models.llama_hash import build_llama_hash

NUM_LAYERS, INNER = 12, 16_384


def build_llama_hash_deep() -> LlamaForCausalLM:
    """Returns the model: float32, on the CPU, eval mode, gradients off, global RNG untouched."""
    small = build_llama_hash()
    sizes = {"num_hidden_layers": NUM_LAYERS, "intermediate_size": INNER}
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**{**small.config.to_dict(), **sizes}))
    model.float().eval().requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    large = dict(model.named_parameters())
    for name, values in small.named_parameters():
        corner = large[name]
        if corner.shape != values.shape:  # of an MLP: the other units write nothing
            corner.zero_()
            corner = corner[tuple(slice(size) for size in values.shape)]
        corner.copy_(values)
    register_smaller(model, small)
    return model
