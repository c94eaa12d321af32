"""What can be done to the states of a sequence around its passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from batchproof.diagnosis.state_replay import (
    CONVOLUTION,
    KINDS,
    RECURRENCE,
    Change,
    Pass,
    StateReplay,
    layers_with_states,
    states,
    with_states_of,
)

Edit = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class StateMistake:
    """A mistake, in words an engineer can act on, and what it does to the states."""

    text: str
    change: Change
    is_rounding: bool = False


@dataclass(frozen=True)
class Before(Change):
    """Edits the cache that these passes start from."""

    numbers: Sequence[int]
    edit: Edit

    def before(self, number: int, cache: Any) -> Any:
        return self.edit(cache) if number in self.numbers else cache


@dataclass(frozen=True)
class Lost(Change):
    """Keeps the states from before these passes."""

    numbers: Sequence[int]

    def after(self, number: int, old: Any, cache: Any) -> Any:
        if number not in self.numbers:
            return cache
        return cleared(cache, KINDS) if old is None else with_states_of(cache, old)


@dataclass(frozen=True)
class Doubled(Change):
    """Adds what these passes add to the recurrence a second time."""

    numbers: Sequence[int]

    def after(self, number: int, old: Any, cache: Any) -> Any:
        if number in self.numbers and old is None:
            for new in states(cache, RECURRENCE):
                new.mul_(2)
        elif number in self.numbers:
            for new, was in zip(states(cache, RECURRENCE), states(old, RECURRENCE), strict=True):
                new.add_(new - was)
        return cache


@dataclass(frozen=True)
class FedAgain(Change):
    """Feeds the last token of a pass to the states again."""

    replay: StateReplay
    number: int
    last: Pass

    def after(self, number: int, old: Any, cache: Any) -> Any:  # noqa: ARG002
        if number != self.number:
            return cache
        tokens = self.last.token_ids[-1:]
        again = replace(self.last, context_len=self.last.end - 1, token_ids=tokens)
        fed, _ = self.replay.fed(again, cache)
        return with_states_of(cache, fed)


@dataclass(frozen=True)
class PushedOut(Change):
    """Shifts zeros into the convolution's window behind the first pass."""

    num_pads: int

    def after(self, number: int, old: Any, cache: Any) -> Any:  # noqa: ARG002
        return shifted(cache, -self.num_pads) if number == 0 else cache


def cleared(cache: Any, kinds: Sequence[str]) -> Any:
    """Returns the cache with its states of these kinds set to zero."""
    for each in states(cache, *kinds):
        each.zero_()
    return cache


def shifted(cache: Any, num_tokens: int) -> Any:
    """Returns the cache with its convolutions' windows moved; zeros come in from behind if they move
    to earlier tokens, as with `num_tokens` below 0."""
    for each in states(cache, CONVOLUTION):
        each.copy_(each.roll(num_tokens, dims=-1))
        if num_tokens < 0:
            each[..., num_tokens:] = 0
    return cache


def narrowed(cache: Any, width: int) -> Any:
    for each in states(cache, CONVOLUTION):
        each[..., : 2 - width or None] = 0
    return cache


def rounded(cache: Any, dtype: torch.dtype) -> Any:
    if cache is not None:
        for each in states(cache, RECURRENCE):
            each.copy_(each.to(dtype).to(each.dtype))
    return cache


def with_swapped_layers(cache: Any) -> Any:
    layers = layers_with_states(cache)[:2]
    if len(layers) == 2:
        first, second = (layer.recurrent_states for layer in layers)
        layers[0].recurrent_states, layers[1].recurrent_states = second, first
    return cache
