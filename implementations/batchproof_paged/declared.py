"""Compares a model's attention masks with what its layers tell the attention function.

Our attention gets no mask: all it knows about the keys a query may see is the `sliding_window` that a
layer passes. A model may mean more than that: it may leave its window to the mask (phimoe, qwen2_moe),
attend within chunks (llama4), in both directions, or to keys that another argument selects. Short
sequences do not show it, and long ones are expensive with real weights. So the model is run once over a
few tokens with an attention function and a mask builder that only record their arguments: transformers
gives a mask builder a *function* of query and key positions, which can be evaluated at any position.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from batchproof_engines.model_support import unsupported
from batchproof_paged.attention import Attached

NAME = "batchproof_declared"
# Arguments that do not affect which keys are visible: queries are already rotated by position.
HARMLESS = {
    "position_ids",
    "logits_to_keep",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
}
FEW_TOKENS = 3
MOST_TOKENS = 1 << 24  # longer than any context

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # batch, head, query, key -> visible


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call of the attention function."""

    layer: int | None
    window: int | None  # as the layer passes it
    mask: MaskFunction | None  # what the model's own attention would get; None: plainly causal
    extra: str | None  # another argument, which some attention functions ignore
    objection: str | None  # to any other argument


_CALLS: ContextVar[list[AttentionCall]] = ContextVar("attention calls of the current pass")


def refuse_undeclared(engine_name: str, model: PreTrainedModel) -> None:
    """Raises `UnsupportedModelError` if queries of some layer see other keys than the layer
    declares."""
    why = next(_objections(model), None)
    if why is not None:
        raise unsupported(engine_name, model, why)


def _objections(model: PreTrainedModel) -> Iterator[str]:
    try:
        calls, positions = _recorded(model)
    except Exception as error:
        yield f"a trial pass failed: {error}"
        return
    if not calls and _attends(model):
        yield "its attention is not behind AttentionInterface"
    if len({each.layer for each in calls}) < len(calls):
        yield "a layer attends more than once"
    cached_keys, own = _cached_keys(model), model.config.get_text_config()._attn_implementation
    for call in calls:
        where = f"layer {call.layer}"
        if call.layer is None:
            yield "an attention layer does not say which it is"
        if call.objection is not None:
            yield f"{where}: {call.objection}"
        if call.extra is not None and own == "sdpa":  # transformers before 5.23
            yield f"{where}: its own attention, sdpa, ignores the {call.extra}; eager does not"
        if call.mask is not None and not _is_causal_mask(call.mask, call.window, positions):
            window = "" if call.window is None else f" with a window of {call.window}"
            yield f"{where}: its mask differs from what the attention function is told, causal{window}"
        kept = cached_keys.get(call.layer)
        if kept is not None and (call.window is None or kept < call.window):
            yield f"{where}: its cache keeps {kept} keys, but its mask shows more"


def _attends(model: PreTrainedModel) -> bool:
    """Returns whether transformers would cache keys and values for the model, as far as it says."""
    layers = _cache_layers(model)
    return layers is None or any(isinstance(each, CacheLayerMixin) for each in layers)


def _recorded(model: PreTrainedModel) -> tuple[list[AttentionCall], Tensor]:
    """Returns the attention calls of a pass, and the positions at which to evaluate their masks."""
    calls, positions = _calls(model, FEW_TOKENS), _critical_positions(model)
    if any(call.mask is not None and _looks_up(call.mask) for call in calls):
        # The mask has data for the tokens of the pass only (which image they belong to, say).
        num_tokens = FEW_TOKENS + max(call.window or 0 for call in calls)
        calls, positions = _calls(model, num_tokens), positions[positions < num_tokens]
    return calls, positions


def _calls(model: PreTrainedModel, num_tokens: int) -> list[AttentionCall]:
    tokens = torch.ones(1, num_tokens, dtype=torch.int64, device=model.device)
    inputs = {"input_ids": tokens, "position_ids": tokens.cumsum(1) - 1}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        inputs["logits_to_keep"] = tokens.new_zeros(1)
    calls: list[AttentionCall] = []
    token = _CALLS.set(calls)
    try:
        with torch.inference_mode(), Attached(model, NAME):
            model(**inputs, use_cache=False)
    finally:
        _CALLS.reset(token)
    return calls


def _looks_up(function: Callable[..., Any]) -> bool:
    """Returns whether the function's closure holds a tensor with a value for each position."""
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    held = [each for cell in cells for each in (cell if isinstance(cell, Sequence) else (cell,))]
    return any(
        each.numel() > 1 if isinstance(each, Tensor) else callable(each) and _looks_up(each)
        for each in held
    )


def _critical_positions(model: PreTrainedModel) -> Tensor:
    """Returns positions (N,) at which a mask may change: around every number in the configuration."""
    config = model.config.get_text_config()
    numbers = [each for each in vars(config).values() if type(each) is int and 0 < each <= MOST_TOKENS]
    positions = {0, 1, *(each + more for each in numbers for more in (-1, 0, 1, each))}
    return torch.tensor(sorted(positions), device=model.device)


def _is_causal_mask(mask: MaskFunction, window: int | None, positions: Tensor) -> bool:
    """Returns whether the mask is causal within the window at all pairs of these positions."""
    queries, keys = positions[:, None], positions[None]
    expected = keys <= queries
    if window is not None:
        expected &= queries - keys < window
    first = positions.new_zeros(())
    return torch.equal(mask(first, first, queries, keys).expand_as(expected), expected)


def _cached_keys(model: PreTrainedModel) -> dict[int | None, int]:
    """Returns, by layer, how many keys transformers' own cache keeps where it does not keep all."""
    windows = [getattr(each, "sliding_window", None) for each in _cache_layers(model) or ()]
    return {layer: window for layer, window in enumerate(windows) if window is not None}


def _cache_layers(model: PreTrainedModel) -> list[Any] | None:
    """Returns the layers of transformers' own cache; None if the configuration has no layers, or
    unknown ones."""
    try:
        layers: list[Any] = DynamicCache(config=model.config).layers
    except (AttributeError, KeyError):
        return None
    return layers


def _mask(
    *, batch_size: int, q_length: int, kv_length: int, mask_function: MaskFunction, **_: Any
) -> Tensor:
    """Returns the mask that transformers asks for, with its function attached; its elements are never
    read."""
    mask = torch.ones(1, dtype=torch.bool).expand(batch_size, 1, q_length, kv_length)
    mask.function = mask_function  # type: ignore[attr-defined]  # lost if the model alters the mask
    return mask


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,  # noqa: ARG001 - only recorded
    dropout: float = 0.0,  # noqa: ARG001
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Records the call; `query` (1, num_heads, T, qk_dim), `value` with v_dim -> zeros (1, T,
    num_heads, v_dim)."""
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    mask = getattr(attention_mask, "function", None)
    unknown = [name for name, each in others.items() if name not in HARMLESS and each is not None]
    objection = None
    if query.shape[2] != key.shape[2]:
        objection = "not all tokens have both a query and a key"
    elif attention_mask is not None and mask is None:
        objection = "it alters its attention mask"
    elif attention_mask is None and not is_causal:
        objection = "it attends both ways"
    elif unknown:
        objection = f"it gives attention an argument that we do not know, {unknown[0]!r}"
    extra = "softcap" if softcap is not None else "sinks" if s_aux is not None else None
    layer = getattr(module, "layer_idx", None)
    _CALLS.get().append(AttentionCall(layer, sliding_window, mask, extra, objection))
    return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
