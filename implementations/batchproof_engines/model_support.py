"""Which models an engine must refuse, judged by their configuration, so that no answer is silently
wrong.

What a configuration does not show, a trial batch does (`trial_batch.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from transformers import PreTrainedModel

from batchproof.errors import UnsupportedModelError

KNOWN_LAYERS = {"full_attention", "sliding_attention"}
# The frequencies of these RoPE types follow the longest sequence of the batch, so a neighbour
# changes every other sequence.
BATCH_DEPENDENT_ROPE = {"dynamic", "longrope"}


def refuse_stateful(engine_name: str, model: PreTrainedModel) -> None:
    """Raises `UnsupportedModelError` if the model carries state other than a KV cache."""
    config = model.config.get_text_config()
    other = sorted(set(getattr(config, "layer_types", None) or ()) - KNOWN_LAYERS)
    if getattr(model, "_is_stateful", False) or other:
        what = f"layers of type {', '.join(other)}" if other else "a recurrent state"
        raise unsupported(engine_name, model, f"it has {what}, not only a KV cache")


def refuse_unbatchable(engine_name: str, model: PreTrainedModel) -> None:
    """Raises `UnsupportedModelError` if the sequences of a batch change each other by design.

    Also raises it for the models that `refuse_stateful` refuses.
    """
    refuse_stateful(engine_name, model)
    for kind in _rope_types(model):
        if kind in BATCH_DEPENDENT_ROPE:
            raise unsupported(engine_name, model, f"its RoPE type {kind!r} depends on the whole batch")
    if getattr(model.config.get_text_config(), "attention_chunk_size", None):
        raise unsupported(engine_name, model, "it attends within chunks of attention_chunk_size")


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
