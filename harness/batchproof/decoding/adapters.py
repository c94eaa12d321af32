"""Low-rank adapters (LoRA) of a model under test: part of the contract (`batchproof.api`).

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021: a linear layer adds
alpha / rank * B A x to its output W x. An adapter is known by its number, from 1 on. Merged into the
weights it gives another model, whose answers are right for requests that name it; on disk it has the
form of PEFT.

This module imports no torch at run time before an adapter is made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, dtype
    from transformers import PreTrainedModel

ADAPTERS = "adapters"  # the folder of them, beside the weights of a checkpoint
SCALE = 2.0  # alpha / rank, so that an engine that leaves it out is wrong


class LowRank(NamedTuple):
    """What an adapter adds to a linear layer: `SCALE` * b @ a, of weights (out, in), float32."""

    a: Tensor  # (rank, in)
    b: Tensor  # (out, rank)


Layers = Iterator[tuple[str, LowRank]]  # with the names of the linear layers
Maker = Callable[["PreTrainedModel", int], Layers]
_KNOWN: WeakKeyDictionary[PreTrainedModel, tuple[int, Maker]] = WeakKeyDictionary()


def register_adapters(model: PreTrainedModel, count: int, low_rank_of: Maker) -> None:
    """Lets a model have adapters 1 to `count`; `low_rank_of` makes that of a number."""
    _KNOWN[model] = count, low_rank_of


def low_rank(model: PreTrainedModel, number: int) -> Layers:
    """Yields the name of each linear layer that the adapter acts on, and what it adds."""
    return _KNOWN[model][1](model, number)


def merge(model: Any, number: int, dtype: dtype) -> None:
    """Adds what an adapter that is saved in a dtype adds to the weights of a model."""
    for name, (a, b) in low_rank(model, number):
        weight = model.get_submodule(name).weight
        weight += SCALE * b.to(dtype).to(weight) @ a.to(dtype).to(weight)


def save_adapter(model: PreTrainedModel, folder: Path, number: int) -> None:
    """Writes an adapter to a folder as PEFT does, in the dtype of the model."""
    from safetensors.torch import save_file  # noqa: PLC0415 - see above

    layers = dict(low_rank(model, number))
    rank = next(iter(layers.values())).a.shape[0]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": SCALE * rank,
        "lora_dropout": 0.0,
        "r": rank,
        "target_modules": sorted({name.rpartition(".")[2] for name in layers}),
    }
    weights = {
        f"base_model.model.{name}.lora_{part.upper()}.weight": values.to(model.dtype).contiguous()
        for name, added in layers.items()
        for part, values in added._asdict().items()
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})


def save_adapters(model: PreTrainedModel, folder: Path) -> int:
    """Writes each adapter of a model to a folder of its number in `folder`. Returns how many there
    are."""
    count = _KNOWN[model][0] if model in _KNOWN else 0
    for number in range(1, count + 1):
        one = folder / str(number)
        one.mkdir(parents=True)
        save_adapter(model, one, number)
    return count
