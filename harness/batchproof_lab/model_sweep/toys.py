"""A tiny random model for each causal-LM type of transformers, and for other forms of some types."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from batchproof_lab.model_sweep.config_fixes import FIXES, FORMS, FULL, SLIDING
from batchproof_lab.model_sweep.shrink import SPREAD, WINDOW, merged, small

NOISE = 0.1  # on vectors: an engine that forgets biases of 0 or norms of 1 would not show it


@dataclass(frozen=True, slots=True)
class Toy:
    """A type in one form; an empty `form` is the type as its default configuration has it."""

    model_type: str
    form: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        return f"{self.model_type}, {self.form}" if self.form else self.model_type

    def config(self) -> PreTrainedConfig:
        kind = CONFIG_MAPPING[self.model_type]
        return kind(**merged(small(kind(), FIXES), self.changes))

    def build(self, seed: int) -> PreTrainedModel:
        """Returns the model on the CPU, in float32 and eval mode. All weights are drawn anew: with a
        wide spread, and with noise where the library would put zeros or ones."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(self.config(), dtype=torch.float32)
            for weight in model.parameters():
                _draw(weight.data)
        return model.eval().requires_grad_(False)


def model_types() -> tuple[str, ...]:
    """Returns the causal-LM types of this version of transformers."""
    return tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def toys_of(model_type: str) -> list[Toy]:
    """Returns the toys of a type, its default form first."""
    with quiet():
        forms = {"": {}, **dict(_window_forms(model_type)), **FORMS.get(model_type, {})}
    return [Toy(model_type, form, changes) for form, changes in forms.items()]


def _window_forms(model_type: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the form with the window switched the other way, if the type has such a switch."""
    kind: Any = CONFIG_MAPPING[model_type]
    try:
        config = kind()
    except Exception:  # building the toy reports why
        return
    kinds = set(getattr(config, "layer_types", None) or ())
    if "sliding_window" not in vars(config) or not kinds <= {FULL, SLIDING}:
        return
    if config.sliding_window and not kinds:
        with suppress(Exception):  # the type requires a window
            kind(sliding_window=None)
            yield "without a window", {"sliding_window": None}
    elif SLIDING not in kinds:
        layer_types = {"layer_types": [FULL, SLIDING]} if kinds else {}
        switch = {"use_sliding_window": True} if hasattr(config, "use_sliding_window") else {}
        yield "with a window", {"sliding_window": WINDOW, **layer_types, **switch}


@contextmanager
def quiet() -> Iterator[None]:
    """Silences transformers' warnings about default configurations."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)


def _draw(weight: Tensor) -> None:
    if weight.dim() < 2:
        weight.add_(torch.randn_like(weight), alpha=NOISE)
    else:
        weight.normal_(std=SPREAD)
