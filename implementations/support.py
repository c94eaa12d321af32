"""When an engine must refuse a model, so that nothing is ever silently wrong.

Two nets: what the config says, and a probe that runs the engine once when it is built.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from harness.api import Engine, EngineConfig, Request
from harness.errors import UnsupportedModelError

KNOWN_LAYERS = {"full_attention", "sliding_attention"}
# RoPE whose frequencies follow the longest sequence of the batch: a neighbour changes everyone.
BATCH_DEPENDENT_ROPE = {"dynamic", "longrope"}

# What a probe has found good, for as long as the model lives: engines are built often.
_SERVED: WeakKeyDictionary[PreTrainedModel, set[tuple[object, ...]]] = WeakKeyDictionary()


def refuse_stateful(engine_name: str, model: PreTrainedModel) -> None:
    """Raises `UnsupportedModelError` if the model carries a state other than a KV cache."""
    config = model.config.get_text_config()
    other = sorted(set(getattr(config, "layer_types", None) or ()) - KNOWN_LAYERS)
    if getattr(model, "_is_stateful", False) or other:
        what = f"layers of type {', '.join(other)}" if other else "a recurrent state"
        raise _unsupported(engine_name, model, f"it has {what}, not only a KV cache")


def refuse_unbatchable(engine_name: str, model: PreTrainedModel) -> None:
    """Raises `UnsupportedModelError` if sequences of a batch would change each other by design."""
    refuse_stateful(engine_name, model)
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type", "default")
    if kind in BATCH_DEPENDENT_ROPE:
        raise _unsupported(engine_name, model, f"its RoPE type {kind!r} depends on the whole batch")
    if getattr(config, "attention_chunk_size", None):
        raise _unsupported(engine_name, model, "it attends within chunks of attention_chunk_size")


def probe(
    engine_name: str,
    model: PreTrainedModel,
    build: Callable[[PreTrainedModel, EngineConfig], Engine],
) -> None:
    """Run two unequal prompts together and compare each with itself alone, one pass without cache.

    Raises `UnsupportedModelError` if they differ by more than rounding: a fiftieth of the spread of
    the logits in float32, a fifth in 16 bit. A mask, position or ALiBi bias that the model does not
    take from us moves them by a multiple of that.
    """
    facts = (engine_name, model.config._attn_implementation, model.dtype, model.device)
    if facts in _SERVED.setdefault(model, set()):
        return
    prompts = ((3, 1, 4, 1, 5, 2), (2, 7))
    requests = [Request(f"probe-{i}", prompt, 2) for i, prompt in enumerate(prompts)]
    try:
        engine = build(model, EngineConfig(max_num_seqs=2, return_logits=True))
        completions = engine.generate(requests)
    except Exception as error:
        raise _unsupported(engine_name, model, f"a trial batch failed: {error}") from error
    share = 0.02 if model.dtype in (torch.float32, torch.float64) else 0.2
    for request, completion in zip(requests, completions, strict=True):
        fed = request.prompt_token_ids + completion.token_ids[:-1]
        with torch.inference_mode():
            alone = model(input_ids=torch.tensor([fed], device=model.device), use_cache=False).logits
        expected = alone[0, -len(completion.token_ids) :].float()
        assert completion.logits is not None, "the probe asked for logits"
        difference = (completion.logits - expected).abs().max().item()
        spread = (expected.max() - expected.min()).item()
        if not difference <= share * spread:
            raise _unsupported(
                engine_name, model, f"in a batch its logits differ by {difference:.2g} from alone"
            )
    _SERVED[model].add(facts)


def _unsupported(engine_name: str, model: PreTrainedModel, why: str) -> UnsupportedModelError:
    kind = type(model).__name__
    return UnsupportedModelError(f"engine {engine_name!r} cannot serve {kind}: {why}")


def sliding_window(model: PreTrainedModel) -> int | None:
    """The window of the model's sliding layers, if it has any."""
    config = model.config.get_text_config()
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None and "sliding_attention" not in layer_types:
        return None
    return getattr(config, "sliding_window", None)
