"""Greedy answers of transformers, without a cache."""

import torch


@torch.inference_mode()
def greedy(model: torch.nn.Module, prompt: list[int], num: int) -> list[int]:
    ids = list(prompt)
    for _ in range(num):
        ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]
