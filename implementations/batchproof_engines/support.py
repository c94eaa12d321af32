"""When an engine must refuse a model, so that nothing is ever silently wrong.

Two nets: what the config says, and a probe that runs the engine once when it is built.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchproof.api import (
    Completion,
    Engine,
    EngineConfig,
    Limits,
    Request,
)
from batchproof.errors import UnsupportedModelError

KNOWN_LAYERS = {"full_attention", "sliding_attention"}
# RoPE whose frequencies follow the longest sequence of the batch: a neighbour changes everyone.
BATCH_DEPENDENT_ROPE = {"dynamic", "longrope"}
# Longer than a block of the cache; of one token; with a chunk of its own.
PROBE_LENS = (21, 1, 6)
PROBE_NEW_TOKENS = 4
PROBE_BUDGET = 8  # tokens of a step

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
    for kind in _rope_types(model):
        if kind in BATCH_DEPENDENT_ROPE:
            raise _unsupported(engine_name, model, f"its RoPE type {kind!r} depends on the whole batch")
    if getattr(model.config.get_text_config(), "attention_chunk_size", None):
        raise _unsupported(engine_name, model, "it attends within chunks of attention_chunk_size")


def _rope_types(model: PreTrainedModel) -> Iterator[str]:
    """Of all parts of the model; a configuration may have one for each type of layer."""
    for config in {id(each): each for each in _configs(model)}.values():
        rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
        for each in (rope, *rope.values()):
            if isinstance(each, dict):
                yield str(each.get("rope_type", "default"))


def _configs(model: PreTrainedModel) -> Iterator[object]:
    yield model.config.get_text_config()
    yield from (module.config for module in model.modules() if hasattr(module, "config"))


def probe(
    engine_name: str,
    model: PreTrainedModel,
    build: Callable[[PreTrainedModel, EngineConfig], Engine],
    options: object = None,
) -> None:
    """Run three unequal prompts together and compare each with itself alone, one pass without cache.

    Raises `UnsupportedModelError` if they differ by more than rounding: a fiftieth of the spread of the
    logits in float32, a fifth in 16 bit. A mask, position or ALiBi bias that the model does not take
    from us moves them by a multiple of that. `options`: what else of the engine may matter.
    """
    facts = (engine_name, options, model.config._attn_implementation, model.dtype, model.device)
    if facts in _SERVED.setdefault(model, set()):
        return
    requests = _probing_requests(model)
    config = EngineConfig(max_num_seqs=3, max_num_batched_tokens=PROBE_BUDGET, return_logits=True)
    try:
        completions = build(model, config).generate(requests)
        pairs = [_logits_of(model, *each) for each in zip(requests, completions, strict=True)]
    except Exception as error:
        raise _unsupported(engine_name, model, f"a trial batch failed: {_last_line(error)}") from error
    share = 0.02 if model.dtype in (torch.float32, torch.float64) else 0.2
    for got, expected in pairs:
        difference = (got - expected).abs().max().item()
        spread = (expected.max() - expected.min()).item()
        if not difference <= share * spread:
            raise _unsupported(
                engine_name, model, f"in a batch its logits differ by {difference:.2g} from alone"
            )
    _SERVED[model].add(facts)


def _probing_requests(model: PreTrainedModel) -> list[Request]:
    """The first is fed in chunks, if the engine makes any, the last of them beside the second's prompt
    and a chunk of the third's; then come steps that mix decodes with a chunk, and decodes alone."""
    limits = Limits.of(model, EngineConfig())
    longest = max(1, limits.max_model_len - PROBE_NEW_TOKENS)
    lengths = [min(length, longest) for length in PROBE_LENS]
    rng = random.Random(0)
    return [
        Request(f"probe-{i}", tuple(rng.choices(range(limits.vocab_size), k=length)), PROBE_NEW_TOKENS)
        for i, length in enumerate(lengths)
    ]


def _logits_of(
    model: PreTrainedModel, request: Request, completion: Completion
) -> tuple[Tensor, Tensor]:
    """What the completion's tokens were chosen from, and should have been by a pass without cache."""
    if completion.logits is None:
        raise ValueError(completion.error or "there are no logits")
    fed = torch.tensor([request.prompt_token_ids + completion.token_ids[:-1]], device=model.device)
    with torch.inference_mode():
        logits: Tensor = model(input_ids=fed, use_cache=False).logits
    return completion.logits, logits[0, -len(completion.token_ids) :].float()


def _last_line(error: Exception) -> str:
    """Of a report of many lines, such as TorchScript's, the one that says what happened."""
    told, _, _ = str(error).partition("\n\nAt:\n")  # then come Python's frames
    return next((line for line in reversed(told.splitlines()) if line.strip()), repr(error))


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
