"""A cache of tensors by weight: logits of a real vocabulary are large."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

NUM_KEPT_LOGITS = 1 << 26  # floats
K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A mapping that drops the least recently used values once all together weigh more than
    `NUM_KEPT_LOGITS`: logits of a real vocabulary are large. The newest value always stays."""

    def __init__(self, weigh: Callable[[V], int]) -> None:
        self._weigh = weigh
        self._weight = 0
        self._items: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Returns the value, which counts as a use, or None."""
        if key in self._items:
            self._items.move_to_end(key)
        return self._items.get(key)

    def put(self, key: K, value: V) -> None:
        """Keeps a value, and drops others as needed."""
        if key in self._items:
            self._weight -= self._weigh(self._items.pop(key))
        self._items[key] = value
        self._weight += self._weigh(value)
        while self._weight > NUM_KEPT_LOGITS and len(self._items) > 1:
            self._weight -= self._weigh(self._items.popitem(last=False)[1])
