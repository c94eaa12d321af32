"""The trace, made when it is read: a step of hundreds of rows leaves a few lists behind."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, overload

from batchproof.api import RowRecord, StepRecord

Columns = tuple[Seq[str] | Seq[int] | Seq[bool], ...]  # the fields of RowRecords, (R,) each


class TraceLog(Seq[StepRecord]):
    """A sequence of `StepRecord`s."""

    def __init__(self) -> None:
        self._steps: list[StepRecord | tuple[Any, ...]] = []

    def append(self, rows: Columns, *rest: Any) -> None:
        """`rest`: the other fields of a `StepRecord`, in their order."""
        self._steps.append((rows, *rest))

    def __len__(self) -> int:
        return len(self._steps)

    @overload
    def __getitem__(self, index: int) -> StepRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[StepRecord]: ...
    def __getitem__(self, index: int | slice) -> StepRecord | list[StepRecord]:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        step = self._steps[index]
        if not isinstance(step, StepRecord):
            rows, *rest = step
            step = self._steps[index] = StepRecord(tuple(map(RowRecord, *rows)), *rest)
        return step
