"""The blocks whose content is of no interest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush


class BlankBlocks:
    """A set of block ids that gives out a chosen one, or the highest (else lowest) it has.

    What it gives depends on what it holds alone, not on the order in which that came: an engine's past
    moves no bit. O(log n) each; an id that was taken by choice stays in the heap until it comes up.
    """

    def __init__(self, is_highest_first: bool) -> None:
        self._sign = -1 if is_highest_first else 1
        self._blocks: set[int] = set()
        self._heap: list[int] = []
        self._in_heap: set[int] = set()  # so that an id is there only once

    def __contains__(self, block: int) -> bool:
        return block in self._blocks

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._blocks.add(block)
            if block not in self._in_heap:
                self._in_heap.add(block)
                heappush(self._heap, self._sign * block)

    def remove(self, block: int) -> None:
        self._blocks.remove(block)

    def pop(self) -> int:
        """Raises `IndexError` if there is none."""
        while True:
            block = self._sign * heappop(self._heap)
            self._in_heap.remove(block)
            if block in self._blocks:
                self._blocks.remove(block)
                return block
