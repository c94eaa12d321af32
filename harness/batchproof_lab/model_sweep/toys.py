"""A tiny random model for each causal-LM type of transformers, and for other forms of some types.

Any configuration is made small by the names of its fields. A toy keeps one layer of each kind: layers
are picked so that each combination of values in the per-layer lists occurs, and those lists are cut to
the layers picked.
"""

import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

FULL, SLIDING = "full_attention", "sliding_attention"

TABLES = yaml.safe_load(Path(__file__).with_name("toys.yaml").read_text(encoding="utf-8"))
FIXES: dict[str, dict[str, Any]] = TABLES["fixes"]  # by model type, parts of a model included
FORMS: dict[str, dict[str, dict[str, Any]]] = TABLES["forms"]  # by model type and name of the form
SIZES: dict[str, int] = TABLES["sizes"]  # by pattern of a field's name

WINDOW = 5  # keys; prompts are far longer
VOCAB_SIZE = 96
HEAD_DIM = 16
NUM_KV_HEADS = 2  # of 4
SPREAD = 0.2  # of weights, as in `batchproof.models.random_models`
MOST_LAYERS = 6

DEPTHS = (
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "n_layers",
    "decoder_layers",
    "num_decoder_layers",
)
DEPTH = re.compile(rf"{'|'.join(DEPTHS)}|encoder_layers|num_encoder_layers|num_blocks|depth")
LAYER_INDICES = re.compile(r"\w+_layers|\w*layer_ids|\w+_idxs|\w+_layers?_indices")
DRAWN_WITH = re.compile(r"\w*initializer_range|\w*init_std")
SPECIAL = re.compile(r"(\w+_)?(bos|eos|pad|sep|cls|mask|unk|start)_token_id")
SPECIAL_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # all others 3
PLACEHOLDER = re.compile(r"\w+_token_(id|index)")  # of images and the like
SWITCHED_ON = {"is_decoder", "causal"}
GIVEN = {"head_dim": HEAD_DIM, "num_key_value_heads": NUM_KV_HEADS}  # where None would be derived
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
        return kind(**merged(small(kind()), self.changes))

    def build(self, seed: int) -> PreTrainedModel:
        """Returns the model on the CPU, in float32 and eval mode. All weights are random: with a
        wide spread, and with noise where the library would put zeros or ones."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(self.config(), dtype=torch.float32)
            for weight in model.parameters():
                _draw(weight.data)
        return model.eval().requires_grad_(False)


def model_types() -> tuple[str, ...]:
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


def small(config: PreTrainedConfig) -> dict[str, Any]:
    """Returns keyword arguments for the configuration's class, nested configurations included. The
    fixes of its type override all else."""
    picked = picked_layers(config)
    values = dict(_changed(config, picked))
    if isinstance(vars(config).get("kv_lora_rank"), int):  # one latent for all heads
        values["num_key_value_heads"] = values.get("num_attention_heads", 4)
        values["head_dim"] = values.get("qk_rope_head_dim", 8)
    return merged(values, FIXES.get(config.model_type, {}))


def merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Merges tables: later ones win, and nested tables are merged likewise."""
    result: dict[str, Any] = {}
    for table in tables:
        for name, new in table.items():
            old = result.get(name)
            is_table = isinstance(old, dict) and isinstance(new, dict)
            result[name] = merged(old or {}, new) if is_table else new
    return result


def picked_layers(config: PreTrainedConfig) -> tuple[int, ...]:
    """Returns which layers of the default configuration the toy has, ascending; two at least."""
    depth = _depth(config)
    lists = [value for value in vars(config).values() if _is_per_layer(value, depth)]
    first: dict[str, int] = {}
    for layer in range(depth):
        first.setdefault(repr([each[layer] for each in lists]), layer)
    picked = list(first.values())[:MOST_LAYERS]
    return tuple(sorted({*picked, *range(min(depth, 2 if len(picked) < 2 else 0))}))


def _changed(config: PreTrainedConfig, picked: Sequence[int]) -> Iterator[tuple[str, Any]]:
    depth = _depth(config)
    new: object
    for name, value in vars(config).items():
        if name.startswith("_"):
            continue
        if isinstance(value, PreTrainedConfig):
            kind = {"model_type": value.model_type} if value.model_type else {}
            yield name, small(value) | kind
            continue
        if _is_per_layer(value, depth):
            new = [_small(name, value[layer]) for layer in picked]
        elif LAYER_INDICES.fullmatch(name) and isinstance(value, list):
            new = [place for place, layer in enumerate(picked) if layer in value]
        elif DEPTH.fullmatch(name) and type(value) is int:
            new = len(picked) if name in DEPTHS else 2
        elif name == "rope_parameters" and value:
            new = _small_rope(value)
        else:
            new = _small(name, value)
        if new != value:
            yield name, new


def _small(name: str, value: Any) -> Any:
    """Returns the value of one field, or of one layer's entry."""
    if value is None:
        return GIVEN.get(name)
    if SPECIAL.fullmatch(name) and isinstance(value, int | list):
        return SPECIAL_IDS.get(name, 3)
    if type(value) is bool:
        return value or name in SWITCHED_ON
    if type(value) is int:
        return min(value, VOCAB_SIZE - 1 if PLACEHOLDER.fullmatch(name) else _most(name, value))
    if type(value) is float and DRAWN_WITH.fullmatch(name):
        return SPREAD
    return value


def _most(name: str, value: int) -> int:
    return next((size for pattern, size in SIZES.items() if re.fullmatch(pattern, name)), value)


def _small_rope(rope: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _small_rope(each) if isinstance(each, dict) else _small(name, each)
        for name, each in rope.items()
    }


def _depth(config: PreTrainedConfig) -> int:
    """Returns the number of layers; 0 if the configuration does not say."""
    values = vars(config)
    return next((values[name] for name in DEPTHS if type(values.get(name)) is int), 0)


def _is_per_layer(value: Any, depth: int) -> bool:
    return isinstance(value, list | tuple) and depth > 1 and len(value) == depth
