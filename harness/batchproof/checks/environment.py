"""What an engine may use while it works and must leave as it was (promise P15)."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from copy import deepcopy
from itertools import chain
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from batchproof.checks.broken import broken
from batchproof.checks.switches import positions, set_back
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
    """Returns what belongs to the model, sums over all weights included. It is looked at after each
    test, so one walk has to do."""
    weights, num_hooks = dict[int, tuple[str, torch.Tensor]](), 0
    for prefix, module in model.named_modules():
        num_hooks += len(module._forward_hooks)
        for name, tensor in chain(module._parameters.items(), module._buffers.items()):
            if tensor is not None:  # one that several modules share counts once
                weights.setdefault(id(tensor), (f"{prefix}.{name}".lstrip("."), tensor))
    return {
        "weights and buffers": {name: _print_of(tensor) for name, tensor in weights.values()},
        "model config": model.config.to_dict(),
        "generation config": model.generation_config.to_dict(),
        "forward hooks": num_hooks,
    }


def _print_of(tensor: torch.Tensor) -> tuple[object, ...]:
    shape = tuple(tensor.shape)
    return tensor.dtype, tensor.device, shape, _sum_of_bits(tensor), tensor._version


def _sum_of_bits(tensor: torch.Tensor) -> int:
    """Returns an exact sum: one of large floats would depend on the number of threads."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = tensor.detach().contiguous().view(integers[tensor.element_size()])
    return int(bits.sum(dtype=torch.int64))


def process_of(before: World | None = None) -> dict[str, Any]:
    """Returns what belongs to the process: its directory, and the environment variables that are set.

    Of the variables, those that were set `before`: a library may add some of its own.
    """
    names = os.environ if before is None else before["environment variables"]
    return {
        "working directory": _directory(),
        "environment variables": {name: os.environ.get(name) for name in names},
    }


def _directory() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed
        return None


def shared_of(model: PreTrainedModel) -> dict[str, Any]:
    """Returns what all engines on one model share, except the number of threads, which a run chooses
    after it has loaded the model."""
    found = deepcopy(model_of(model)) | settings_of(model)  # a config may hand out parts of itself
    del found["number of threads"]
    return found


def world_of(model: PreTrainedModel) -> dict[str, Any]:
    """Returns the model, the settings, and the states of all random generators."""
    return (
        deepcopy(model_of(model))
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
    """Raises `BrokenPromise` at the first thing of `after` that differs; `before` may hold more.

    `when` is part of the message.
    """
    for name, value in after.items():
        if before[name] != value:
            changes = _difference(before[name], value)
            raise broken(Rule.WORLD, thing=name, when=when, changes=changes)


def put_back(model: PreTrainedModel, before: World) -> None:
    """Restores settings and process: not weights and config, and not an inference mode."""
    model.config._attn_implementation = before["attention implementation"]
    model.train(before["training mode"])
    if settings_of(model)["forward method"] is not before["forward method"]:
        vars(model).pop("forward", None)
        type(model).forward = before["forward method"]
    set_back(before)
    if before["working directory"] is not None:
        os.chdir(before["working directory"])
    os.environ.update(before["environment variables"])


def _difference(old: Any, new: Any) -> list[str]:
    if isinstance(old, dict):
        keys = [key for key in old.keys() | new.keys() if old.get(key) != new.get(key)]
        return [f"{key}: {old.get(key)!r} -> {new.get(key)!r}" for key in sorted(keys)[:3]]
    return [f"{str(old)[:60]} -> {str(new)[:60]}"]
