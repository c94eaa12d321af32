"""Which models an engine must refuse, judged by their configuration, so that no answer is silently
wrong.

What a configuration does not show, a trial batch does (`trial_batch.py`).
"""

import inspect
from collections.abc import Iterator
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from batchproof.errors import UnsupportedModelError

KNOWN_LAYERS = {"full_attention", "sliding_attention"}
# The frequencies of these RoPE types follow the longest sequence of the batch, so a neighbour
# changes every other sequence.
BATCH_DEPENDENT_ROPE = {"dynamic", "longrope"}


PLAIN = int, float, bool, str
FEW_TOKENS = 3
ORDINARY_TOKEN = 4  # the first ids are often those of padding, beginning and end

# By model: where it was, and what `counts_from_zero` found.
_COUNTS: WeakKeyDictionary[PreTrainedModel, tuple[object, bool]] = WeakKeyDictionary()

# Names under which models take their cache, and give it back in their output.
CACHE_PARAMETERS = ("past_key_values", "cache_params", "state", "past_buckets_states")


def state_of(model: PreTrainedModel) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Returns what a pass of the model depends on besides tensors and configuration, as far as it can
    be compared: first its modules, functions that replace their forward pass, and hooks; then the
    numbers and words that the modules hold."""
    modules = [*model.modules()]
    structure = tuple(
        (
            id(each),
            type(each),
            id(each.__dict__.get("forward")),
            *(*each._forward_hooks, None, *each._forward_pre_hooks),  # whose keys are used once
        )
        for each in modules
    )
    held = (item for each in modules for item in vars(each).items())
    return structure, tuple((name, value) for name, value in held if type(value) in PLAIN)


def cache_parameter(model: PreTrainedModel) -> str | None:
    """Returns the name under which the model takes its cache and gives it back; None: it has none."""
    taken = inspect.signature(model.forward).parameters
    return next((name for name in CACHE_PARAMETERS if name in taken), None)


def counts_from_zero(model: PreTrainedModel) -> bool:
    """Returns whether the model takes `position_ids`, and by itself gives a first pass 0, 1, 2, ...

    Such a model is to be given them in later passes as well: not every one counts on from its cache.
    """
    facts = (model.device, model.dtype)
    if model not in _COUNTS or _COUNTS[model][0] != facts:
        _COUNTS[model] = facts, _answers_alike(model)
    return _COUNTS[model][1]


def _answers_alike(model: PreTrainedModel) -> bool:
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    tokens = torch.full((1, FEW_TOKENS), ORDINARY_TOKEN, device=model.device)
    positions = torch.arange(FEW_TOKENS, device=model.device)[None]
    with torch.inference_mode():
        implied = model(input_ids=tokens, use_cache=False).logits
        given = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
    return torch.equal(implied, given)


def refuse_unbatchable(engine_name: str, model: PreTrainedModel) -> None:
    """Raises `UnsupportedModelError` if a row of several sequences would need more than a causal mask
    within each, perhaps with a window."""
    config = model.config.get_text_config()
    other = sorted(set(getattr(config, "layer_types", None) or ()) - KNOWN_LAYERS)
    if getattr(model, "_is_stateful", False) or other:
        what = f"layers of type {', '.join(other)}" if other else "a recurrent state"
        raise unsupported(engine_name, model, f"it has {what}, not only a KV cache")
    if getattr(config, "attention_chunk_size", None):
        raise unsupported(engine_name, model, "it attends within chunks of attention_chunk_size")
    refuse_batch_dependent(engine_name, model)


def refuse_other_attention(engine_name: str, model: PreTrainedModel) -> None:
    """Raises `UnsupportedModelError` if the model's attention takes no mask of an engine's own."""
    implementation = model.config._attn_implementation
    if implementation not in ("eager", "sdpa"):
        why = f"it needs attention 'eager' or 'sdpa', which take a mask, not {implementation!r}"
        raise unsupported(engine_name, model, why)


def refuse_batch_dependent(engine_name: str, model: PreTrainedModel) -> None:
    """Raises `UnsupportedModelError` if the sequences of a batch change each other by design."""
    for kind in _rope_types(model):
        if kind in BATCH_DEPENDENT_ROPE:
            raise unsupported(engine_name, model, f"its RoPE type {kind!r} depends on the whole batch")


def sliding_window(model: PreTrainedModel) -> int | None:
    """Returns the window of the model's sliding layers in tokens, or None if no layer slides."""
    config = model.config.get_text_config()
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None and "sliding_attention" not in layer_types:
        return None
    return getattr(config, "sliding_window", None)


def unsupported(engine_name: str, model: PreTrainedModel, why: str) -> UnsupportedModelError:
    """Returns the error that says why the engine cannot serve the model."""
    kind = type(model).__name__
    return UnsupportedModelError(f"engine {engine_name!r} cannot serve {kind}: {why}")


def _rope_types(model: PreTrainedModel) -> Iterator[str]:
    """Yields the RoPE types of all parts of the model; layer types may each have their own."""
    for config in {id(each): each for each in _configs(model)}.values():
        rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
        for each in (rope, *rope.values()):
            if isinstance(each, dict):
                yield str(each.get("rope_type", "default"))


def _configs(model: PreTrainedModel) -> Iterator[object]:
    yield model.config.get_text_config()
    yield from (module.config for module in model.modules() if hasattr(module, "config"))
