"""openvino-genai 2026.4.1: with prefix caching, keys and values of another adapter are reused."""

import openvino_genai as genai
import torch
from safetensors.torch import save_file
from setup_openvino import F32, asking, config, drawn, folder, ids, pipeline

PROMPT = drawn(0, 70)


def written(seed: int) -> genai.Adapter:
    """An adapter of rank 8 with random weights, as PEFT writes it."""
    width, random, tensors = config.n_embd, torch.Generator().manual_seed(seed), {}
    for layer in range(config.n_layer):
        place = f"base_model.model.transformer.h.{layer}.attn.c_attn"
        for part, shape in {"A": (8, width), "B": (3 * width, 8)}.items():
            tensors[f"{place}.lora_{part}.weight"] = torch.randn(shape, generator=random)
    save_file(tensors, f"{folder}/adapter-{seed}.safetensors")
    return genai.Adapter(f"{folder}/adapter-{seed}.safetensors")


adapters = {"adapter 1": written(1), "adapter 2": written(2), "no adapter": None}
known = genai.AdapterConfig([(each, 0.5) for each in adapters.values() if each])


def answers(prefix_caching: bool) -> dict[str, list[int]]:
    """One call of generate after another, on one pipeline."""
    pipe = pipeline(F32 | {"adapters": known}, num_kv_blocks=40, enable_prefix_caching=prefix_caching)
    told = {}
    for name, adapter in adapters.items():
        chosen = genai.AdapterConfig([(adapter, 0.5)] if adapter else [])
        (result,) = pipe.generate([ids(PROMPT)], [asking(6, adapters=chosen)])
        told[name] = result.m_generation_ids[0]
    return told


got, right = answers(True), answers(False)
for name in adapters:
    print(f"{name}: got {got[name]}, should be {right[name]}")
raise SystemExit(got != right)
