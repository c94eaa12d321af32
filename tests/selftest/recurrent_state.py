"""What `bamba-hash` keeps between two calls, and what an engine may do to it by mistake."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from batchproof.models.bamba_hash import build_bamba_hash
from batchproof.models.catalogue import moved


@cache
def model(dtype: torch.dtype = torch.float32) -> Any:
    return moved(build_bamba_hash(), "cpu", dtype)


def empty_cache() -> DynamicCache:
    return DynamicCache(config=model().config)


def feed(state: DynamicCache, tokens: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns the logits (rows, n, vocab) of `tokens` (rows, n) behind those that `state` has seen."""
    positions = state.get_seq_length() + torch.arange(tokens.shape[1])[None]
    given = {"past_key_values": state, "use_cache": True, "position_ids": positions}
    found: Tensor = model(dtype)(tokens, **given).logits.double()
    return found


Fault = Callable[[DynamicCache, Tensor, tuple[int, ...]], None]
"""Spoils what the chosen layers keep of the tokens (rows, n) seen so far."""


def layers_of(state: DynamicCache, chosen: tuple[int, ...]) -> list[Any]:
    """Returns the chosen layers of a cache, with what each keeps of the tokens."""
    return [state.layers[layer] for layer in chosen]


def state_behind(tokens: Tensor) -> DynamicCache:
    """Returns what the model keeps of `tokens` (rows, n)."""
    state = empty_cache()
    feed(state, tokens)
    return state


def _copy(state: DynamicCache, source: DynamicCache, layers: tuple[int, ...], what: str) -> None:
    for to, origin in zip(layers_of(state, layers), layers_of(source, layers), strict=True):
        getattr(to, what)[0].copy_(getattr(origin, what)[0])


def state_lost(state: DynamicCache, _seen: Tensor, layers: tuple[int, ...]) -> None:
    for layer in layers_of(state, layers):
        layer.recurrent_states[0].zero_()


def state_of_a_neighbour(state: DynamicCache, _seen: Tensor, layers: tuple[int, ...]) -> None:
    for layer in layers_of(state, layers):
        layer.recurrent_states[0].copy_(layer.recurrent_states[0].roll(1, 0))


def state_stale_by_a_token(state: DynamicCache, seen: Tensor, layers: tuple[int, ...]) -> None:
    _copy(state, state_behind(seen[:, :-1]), layers, "recurrent_states")


def state_fed_a_chunk_twice(state: DynamicCache, seen: Tensor, layers: tuple[int, ...]) -> None:
    twice = copy.deepcopy(state)
    feed(twice, seen[:, -5:])
    _copy(state, twice, layers, "recurrent_states")


def state_doubled(state: DynamicCache, _seen: Tensor, layers: tuple[int, ...]) -> None:
    for layer in layers_of(state, layers):
        layer.recurrent_states[0].mul_(2)


def state_fed_a_pad(state: DynamicCache, seen: Tensor, layers: tuple[int, ...]) -> None:
    padded = copy.deepcopy(state)
    feed(padded, torch.zeros_like(seen[:, :1]))
    for what in ("recurrent_states", "conv_states"):
        _copy(state, padded, layers, what)


def tally_lost(state: DynamicCache, _seen: Tensor, layers: tuple[int, ...]) -> None:
    for layer in layers_of(state, layers):
        layer.recurrent_states[0][:, 0].zero_()


def window_lost(state: DynamicCache, _seen: Tensor, layers: tuple[int, ...]) -> None:
    for layer in layers_of(state, layers):
        layer.conv_states[0].zero_()


def window_not_shifted(state: DynamicCache, seen: Tensor, layers: tuple[int, ...]) -> None:
    _copy(state, state_behind(seen[:, :-1]), layers, "conv_states")


def keys_lost(state: DynamicCache, _seen: Tensor, layers: tuple[int, ...]) -> None:
    for layer in layers_of(state, layers):
        layer.keys.zero_()
        layer.values.zero_()


RECURRENT_FAULTS = (
    state_lost,
    state_of_a_neighbour,
    state_stale_by_a_token,
    state_fed_a_chunk_twice,
    state_doubled,
    state_fed_a_pad,
    tally_lost,
    window_lost,
    window_not_shifted,
)
