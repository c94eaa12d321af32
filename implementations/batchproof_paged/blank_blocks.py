"""The set of blocks whose content is not needed any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush


class BlankBlocks:
    """A set of block ids from which one can be taken by choice, or the highest (else the lowest).

    The result depends only on the content of the set, not on the order of insertion, so an engine's
    past cannot affect its output. Each operation is O(log n); an id that was removed by choice stays in
    the heap until it reaches the top.
    """

    def __init__(self, is_highest_first: bool) -> None:
        self._sign = -1 if is_highest_first else 1
        self._blocks: set[int] = set()
        self._heap: list[int] = []
        self._in_heap: set[int] = set()  # so that an id is in the heap only once

    def __contains__(self, block: int) -> bool:
        return block in self._blocks

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, blocks: Iterable[int]) -> None:
        """Adds these blocks to the set."""
        for block in blocks:
            self._blocks.add(block)
            if block not in self._in_heap:
                self._in_heap.add(block)
                heappush(self._heap, self._sign * block)

    def remove(self, block: int) -> None:
        """Removes a block. Raises `KeyError` if it is not in the set."""
        self._blocks.remove(block)

    def pop(self) -> int:
        """Removes and returns the highest (else the lowest) block. Raises `IndexError` if the set is
        empty."""
        while True:
            block = self._sign * heappop(self._heap)
            self._in_heap.remove(block)
            if block in self._blocks:
                self._blocks.remove(block)
                return block
