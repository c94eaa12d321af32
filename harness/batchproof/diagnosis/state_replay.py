"""Feeds a sequence as an engine fed it, pass by pass, and lets a mistake change its states meanwhile.

A recurrent state has no keys that a mask could hide or show: it depends on every pass before. So the
passes of the engine's schedule are repeated with a cache of transformers, in float64, each sequence by
itself.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from batchproof.diagnosis.counterfactual import CellTable
from batchproof.models.catalogue import ModelUnderTest

CONVOLUTION, RECURRENCE = KINDS = ("conv_states", "recurrent_states")
CACHE_PARAMETERS = ("past_key_values", "cache_params")


@dataclass(frozen=True, slots=True)
class Pass:
    """One row of a sequence: the tokens fed in a step, behind `context_len` others."""

    step: int
    epoch: int  # how often the sequence was preempted before
    context_len: int
    token_ids: tuple[int, ...]
    last_cell: int

    @property
    def end(self) -> int:
        """The number of tokens that are cached after it."""
        return self.context_len + len(self.token_ids)

    @property
    def is_later_chunk(self) -> bool:
        """Whether it is several tokens behind others."""
        return self.context_len > 0 and len(self.token_ids) > 1


class Change:
    """What is done to the states of a sequence around a pass; by default nothing.

    `number` counts the passes since the sequence was last admitted.
    """

    def before(self, number: int, cache: Any) -> Any:  # noqa: ARG002
        """Returns the cache that the pass starts from; None: nothing has been fed."""
        return cache

    def after(self, number: int, old: Any, cache: Any) -> Any:  # noqa: ARG002
        """Returns the cache that is kept; `old` is the one the pass started from, as it was."""
        return cache


def carries_states(subject: ModelUnderTest) -> bool:
    """Returns whether transformers keeps a recurrent or a convolution's state for some layer."""
    try:
        layers = DynamicCache(config=subject.model.config).layers
    except (AttributeError, KeyError):  # a configuration without layers, or with unknown ones
        return False
    return any(isinstance(each, LinearAttentionCacheLayerMixin) for each in layers)


def passes_of(table: CellTable, seq: int) -> list[Pass]:
    """Returns the passes over a sequence, in order."""
    own = (table.seq == seq).nonzero()[:, 0]
    found: list[Pass] = []
    for step in table.step[own].unique().tolist():
        cells = own[table.step[own] == step]
        first, last = int(cells[0]), int(cells[-1])
        tokens = tuple(table.token[cells].tolist())
        found.append(Pass(step, int(table.epoch[first]), int(table.index[first]), tokens, last))
    return found


def _of_last_epoch(passes: Sequence[Pass]) -> list[Pass]:
    return [each for each in passes if each.epoch == passes[-1].epoch]


class StateReplay:
    """Repeats passes over sequences of one table."""

    def __init__(self, subject: ModelUnderTest, table: CellTable) -> None:
        self._model: PreTrainedModel = subject.exact
        taken = inspect.signature(self._model.forward).parameters
        self._cache_name = next(name for name in CACHE_PARAMETERS if name in taken)
        self._has_positions = "position_ids" in taken
        self._table = table
        self.kept = cache(self._kept)
        self.behind = cache(self._behind)

    def passes(self, seq: int) -> list[Pass]:
        """Returns the passes since the sequence was last admitted."""
        return _of_last_epoch(passes_of(self._table, seq))

    @torch.inference_mode()
    def _kept(self, seq: int, step: int) -> Any:
        """Returns the cache of an honestly served sequence behind its passes before a step; None if
        there are none."""
        earlier = [each for each in passes_of(self._table, seq) if each.step < step]
        kept: Any = None
        for each in _of_last_epoch(earlier):
            kept, _ = self.fed(each, kept)
        return kept

    @torch.inference_mode()
    def logits(self, passes: Sequence[Pass], change: Change) -> dict[int, Tensor]:
        """Returns float64 logits (vocab,) by the last cell of each pass, given a change."""
        found: dict[int, Tensor] = {}
        kept: Any = None
        for number, each in enumerate(passes):
            old = change.before(number, kept)
            after, found[each.last_cell] = self.fed(each, old)
            kept = change.after(number, old, after)
        return found

    @torch.inference_mode()
    def fed(self, each: Pass, kept: Any) -> tuple[Any, Tensor]:
        """Runs a pass upon a copy of a cache. Returns that copy and the logits (vocab,) of its last
        token."""
        tokens = torch.tensor([each.token_ids], device=self._model.device)
        given: dict[str, Any] = {"input_ids": tokens, "use_cache": True}
        if self._has_positions:
            positions = torch.arange(each.context_len, each.end, device=self._model.device)
            given["position_ids"] = positions[None]
        given[self._cache_name] = self.empty() if kept is None else copy.deepcopy(kept)
        output = self._model(**given)
        return output[self._cache_name], output.logits[0, -1].cpu().double()

    @torch.inference_mode()
    def _behind(self, token_ids: tuple[int, ...]) -> Any:
        """Returns the cache of a sequence that was fed these tokens at once, alone."""
        return self.fed(Pass(0, 0, 0, token_ids, 0), None)[0]

    def empty(self) -> DynamicCache:
        """Returns a cache of nothing."""
        return DynamicCache(config=self._model.config)


def layers_with_states(cache: Any) -> list[Any]:
    """Returns the layers of a cache that keep states."""
    return [each for each in cache.layers if isinstance(each, LinearAttentionCacheLayerMixin)]


def states(cache: Any, *kinds: str) -> Iterator[Tensor]:
    """Yields the states of these kinds, of all layers."""
    for layer in layers_with_states(cache):
        for kind in kinds:
            yield from (each for each in getattr(layer, kind).values() if each is not None)


def with_states_of(cache: Any, other: Any, kinds: Sequence[str] = KINDS) -> Any:
    """Returns the cache with states of these kinds of another one, and with none of the other kinds if
    it had none itself."""
    for mine, theirs in zip(layers_with_states(cache), layers_with_states(other), strict=True):
        is_empty = not any(mine.has_previous_state.values())
        for name, value in vars(theirs).items():
            is_other = name in KINDS and name not in kinds
            if name in _ABOUT_STATES and not (is_other and not is_empty):
                setattr(mine, name, copy.deepcopy(value))
        if is_empty:
            for kind in set(KINDS) - set(kinds):
                for each in getattr(mine, kind).values():
                    if each is not None:
                        each.zero_()
    return cache


_ABOUT_STATES = {
    *KINDS,
    "is_conv_states_initialized",
    "is_recurrent_states_initialized",
    "has_previous_state",
    "conv_kernel_size",
    "device",
    "dtype",
}
