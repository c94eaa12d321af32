"""Faults of recurrent states: how they are planted, and reach the states in a cache of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch import Tensor
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from batchproof.findings.causes import Cause
from batchproof.models.embedded import STATE_MODEL
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_paged.row_caches import RowCaches, joined
from batchproof_paged.rows import Rows

Component = TypeVar("Component", bound=type)


def planted_in_states(
    promise: Promise, thread: str, shows_on: str = STATE_MODEL
) -> Callable[[Component], Component]:
    """Returns a decorator that registers a component of the engine that carries states as a fault."""
    return planted(promise, Cause.STATE, thread, shows_on=shows_on, feed="stacked")


CONVOLUTION, RECURRENCE = "conv_states", "recurrent_states"
BOTH = (CONVOLUTION, RECURRENCE)


def states(cache: Any, *kinds: str) -> Iterator[Tensor]:
    """Yields the states of these kinds of all layers, each (B, ...)."""
    for layer in cache.layers:
        if isinstance(layer, LinearAttentionCacheLayerMixin):
            for kind in kinds:
                yield from (each for each in getattr(layer, kind).values() if each is not None)


def cleared(cache: Any, *kinds: str) -> Any:
    """Returns the cache after its states of these kinds were set to zero."""
    for each in states(cache, *kinds):
        each.zero_()
    return cache


def copied(cache: Any, num_rows: int) -> Any:
    """Returns a copy that shares no tensor."""
    return joined([(cache, list(range(num_rows)))])


class LeftBehind(RowCaches):
    """Keeps what ended sequences leave in their lanes."""

    def forget_ended(self) -> None:
        """Forgets nothing."""

    def left_to(self, rows: Rows) -> Any:
        """Returns copies of what former tenants left in the lanes of these rows; None if any of them
        is new."""
        lanes = [sequence.lane for sequence in rows.sequences]
        if any(lane not in self._groups for lane in lanes):
            return None
        found = [self._groups[lane] for lane in lanes]
        return joined([(group.cache, [row]) for group, row in found])
