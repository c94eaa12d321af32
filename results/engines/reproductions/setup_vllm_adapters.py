"""Adapters with random weights for the tiny Llama of `setup_vllm`, as PEFT writes them."""

import json
import os

import torch
from safetensors.torch import save_file
from setup_vllm import config, scratch

RANK = 8


def written(name: str, seed: int) -> str:
    """Writes an adapter of both layers' values to a folder of that name, and returns its path."""
    folder = f"{scratch.name}-{name}"
    os.makedirs(folder, exist_ok=True)
    drawn, width, tensors = torch.Generator().manual_seed(seed), config.hidden_size, {}
    for layer in range(config.num_hidden_layers):
        place = f"base_model.model.model.layers.{layer}.self_attn.v_proj"
        for part, shape in {"A": (RANK, width), "B": (width, RANK)}.items():
            tensors[f"{place}.lora_{part}.weight"] = torch.randn(shape, generator=drawn)
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK, "bias": "none"}
    with open(f"{folder}/adapter_config.json", "w") as file:
        json.dump({**settings, "target_modules": ["v_proj"]}, file)
    save_file(tensors, f"{folder}/adapter_model.safetensors")
    return folder
