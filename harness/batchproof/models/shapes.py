"""Models with random weights, as `shapes.yaml` describes them: by shape for benchmarks, and small ones
as controls beside the constructed models."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from batchproof.validation.yaml_nodes import package_yaml

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True, slots=True)
class Shape:
    """A configuration class of transformers, by name, and its arguments."""

    kind: str
    values: dict[str, Any]

    def config(self, **changes: Any) -> PreTrainedConfig:
        """Returns a new configuration without special tokens; `changes` override its values."""
        special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
        return getattr(import_module("transformers"), self.kind)(
            **{**self.values, **special, **changes}
        )


_FILE = package_yaml("models/shapes.yaml")
SHAPES, RANDOM = (
    {name: Shape(values.pop("kind"), values) for name, values in _FILE[part].items()}
    for part in ("shapes", "random")
)
