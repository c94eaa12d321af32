"""What an engine may use while it works and must leave as it was (promise P15)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from batchproof.checks.broken import broken
from batchproof.checks.switches import positions
from batchproof.findings.finding import Rule

World = Mapping[str, Any]  # name of a thing -> a value that compares


def settings_of(model: PreTrainedModel) -> dict[str, Any]:
    """Returns what is cheap to read: switches of the model and of torch."""
    return {
        "attention implementation": model.config._attn_implementation,
        "training mode": model.training,
        "forward method": getattr(model.forward, "__func__", model.forward),
        "inference mode": torch.is_inference_mode_enabled(),
    } | positions()


def model_of(model: PreTrainedModel) -> dict[str, Any]:
    """Returns what belongs to the model, sums over all weights included."""
    return {
        "weights and buffers": {
            name: (
                tensor.dtype,
                tensor.device,
                tuple(tensor.shape),
                _sum_of_bits(tensor),
                tensor._version,
            )
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
        },
        "model config": deepcopy(model.config.to_dict()),
        "generation config": deepcopy(model.generation_config.to_dict()),
        "forward hooks": sum(len(module._forward_hooks) for module in model.modules()),
    }


def _sum_of_bits(tensor: torch.Tensor) -> int:
    """Returns an exact sum: one of large floats would depend on the number of threads."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = tensor.detach().contiguous().view(integers[tensor.element_size()])
    return int(bits.sum(dtype=torch.int64))


def shared_of(model: PreTrainedModel) -> dict[str, Any]:
    """Returns what all engines on one model share, except the number of threads, which a run chooses
    after it has loaded the model."""
    found = model_of(model) | settings_of(model)
    del found["number of threads"]
    return found


def world_of(model: PreTrainedModel) -> dict[str, Any]:
    """Returns the model, the settings, and the states of all random generators."""
    return (
        model_of(model)
        | {
            "torch RNG": torch.get_rng_state().tolist(),
            "CUDA RNG": [state.tolist() for state in torch.cuda.get_rng_state_all()]
            if torch.cuda.is_available()
            else [],
            "Python RNG": random.getstate(),
            "numpy RNG": [str(part) for part in np.random.get_state()],
        }
        | settings_of(model)
    )


def require_same(before: World, after: World, when: str) -> None:
    """Raises `BrokenPromise` at the first thing that differs; `when` is part of the message."""
    for name, value in before.items():
        if after[name] != value:
            changes = _difference(value, after[name])
            raise broken(Rule.WORLD, thing=name, when=when, changes=changes)


def _difference(old: Any, new: Any) -> list[str]:
    if isinstance(old, dict):
        keys = [key for key in old.keys() | new.keys() if old.get(key) != new.get(key)]
        return [f"{key}: {old.get(key)!r} -> {new.get(key)!r}" for key in sorted(keys)[:3]]
    return [f"{str(old)[:60]} -> {str(new)[:60]}"]
