"""Low-rank adapters (LoRA) of several requests in one packed step.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021: a linear layer adds
alpha / rank * B A x to its output W x. In a step that packs rows of several adapters W is applied to
all tokens at once, and each B A to the tokens of its own rows (Chen et al., "Punica: Multi-Tenant LoRA
Serving", 2023).
"""

import copy
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

PREFIX, SUFFIXES = "base_model.model.", {".lora_A.weight": "a", ".lora_B.weight": "b"}
PLAIN: dict[str, Any] = {"bias": "none", "use_dora": False, "use_rslora": False, "rank_pattern": {}}


@dataclass(frozen=True, slots=True)
class Adapter:
    """What a loaded adapter adds, by the name of a linear layer: a (rank, in), and b (out, rank), which
    is scaled. `root` is a number of this load alone, behind which its prefixes are cached."""

    root: int
    a: dict[str, Tensor]
    b: dict[str, Tensor]


def refusal_of(name: str | None, adapters: "Adapters | None") -> str | None:
    """Returns why a request that names this adapter cannot be served; None if it can."""
    loaded = [] if adapters is None else adapters.names
    if name is None or name in loaded:
        return None
    return f"adapter {name!r} is not loaded; loaded are: {', '.join(loaded) or 'none'}"


class AdaptedLinear(nn.Module):
    """A linear layer that adds what the adapters of the step under way do."""

    def __init__(self, name: str, base: nn.Linear, step: list[tuple[Adapter, Tensor]]) -> None:
        super().__init__()
        self._name, self._step = name, step
        self.base = base

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    @property
    def bias(self) -> Tensor | None:
        return self.base.bias

    def forward(self, states: Tensor) -> Tensor:
        """Returns (..., T, out) of the T packed tokens (..., T, in)."""
        out: Tensor = self.base(states)
        for adapter, places in self._step:
            if self._name in adapter.a:
                inner = states[..., places, :] @ adapter.a[self._name].T
                out[..., places, :] += inner @ adapter.b[self._name].T
        return out


class Adapters:
    """The loaded adapters of a model, and a copy of it that shares its weights and applies them."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._loaded: dict[str, Adapter] = {}
        self._num_loads = 0
        self._step: list[tuple[Adapter, Tensor]] = []
        self.rebase(model)

    def rebase(self, model: PreTrainedModel) -> None:
        """Goes on with another model of the same configuration, and the same adapters."""
        shared = {id(each): each for each in (*model.parameters(), *model.buffers())}
        self.model: PreTrainedModel = copy.deepcopy(model, shared)
        for name, adapter in self._loaded.items():
            for layer in adapter.a:
                self.adapt(name, layer)

    @property
    def names(self) -> list[str]:
        return [*self._loaded]

    def load(self, name: str, path: str) -> None:
        """Loads an adapter as PEFT writes it. Raises `ValueError` for one of another kind."""
        folder = Path(path)
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        for field, plain in PLAIN.items():
            if config.get(field, plain) != plain:
                raise ValueError(
                    f"adapter {name!r}: {field} is {config[field]!r}, but must be {plain!r}"
                )
        parts: dict[str, dict[str, Tensor]] = {"a": {}, "b": {}}
        scale = self.scale(config)
        for key, values in load_file(folder / "adapter_model.safetensors").items():
            suffix = next((each for each in SUFFIXES if key.endswith(each)), None)
            if suffix is None or not key.startswith(PREFIX):
                raise ValueError(f"adapter {name!r}: {key} is no matrix of a linear layer")
            layer, part = key.removeprefix(PREFIX).removesuffix(suffix), SUFFIXES[suffix]
            self.adapt(name, layer)
            scaled = values.to(self.model.device, self.model.dtype)
            parts[part][layer] = scaled * scale if part == "b" else scaled
        self._num_loads += 1
        self._loaded[name] = Adapter(self._num_loads, **parts)

    def scale(self, config: dict[str, Any]) -> float:
        return float(config["lora_alpha"] / config["r"])

    def unload(self, name: str) -> None:
        self._loaded.pop(name, None)

    def root(self, name: str | None) -> int:
        """Returns behind which number prefixes under this adapter are cached; 0 without one."""
        return 0 if name is None else self._loaded[name].root

    def begin(self, rows: Iterable[tuple[str | None, int]]) -> None:
        """Prepares for a step that packs rows one behind the other: of each its adapter, and its number
        of tokens."""
        places: dict[str, list[int]] = {}
        start = 0
        for name, num_tokens in rows:
            if name is not None:
                places.setdefault(name, []).extend(range(start, start + num_tokens))
            start += num_tokens
        device = self.model.device
        self._step[:] = [
            (self._loaded[name], torch.tensor(each, device=device)) for name, each in places.items()
        ]

    def adapt(self, name: str, layer: str) -> None:
        """Puts a layer that adds in the place of a linear one. Raises `ValueError` for any other."""
        parent, _, child = layer.rpartition(".")
        known = self.model.get_submodule(layer)
        if isinstance(known, AdaptedLinear):
            return
        if not isinstance(known, nn.Linear) or known is self.model.get_output_embeddings():
            kind = type(known).__name__
            raise ValueError(
                f"adapter {name!r}: {layer} is a {kind}, but must be a linear layer of a block"
            )
        setattr(self.model.get_submodule(parent), child, AdaptedLinear(layer, known, self._step))
