"""The rows of a step as columns: hundreds of them are a handful of lists, and no object each."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from operator import add
from typing import Any, NamedTuple, Self, overload

from batchproof.api import RowRecord, StepRecord
from batchproof_paged.sequence import Sequence

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


class Scheduled(NamedTuple):
    """One sequence's share of a step."""

    sequence: Sequence
    context_len: int  # tokens cached before the step
    query_len: int  # tokens to feed
    is_sampled: bool  # they are its last: a token is to be chosen


@dataclass(frozen=True, slots=True)
class Rows(Seq[Scheduled]):
    """R of `Scheduled`, each made when it is read. All columns are (R,), and are not altered."""

    sequences: list[Sequence]
    context_lens: list[int]
    query_lens: list[int]
    are_sampled: list[bool]

    @classmethod
    def of(cls, rows: Seq[Scheduled]) -> Self:
        return cls(*map(list, zip(*rows, strict=True))) if rows else cls([], [], [], [])

    @classmethod
    def decodes(cls, sequences: list[Sequence], context_lens: list[int]) -> Self:
        """One token each, behind which another is to be chosen."""
        num_rows = len(sequences)
        return cls(sequences, context_lens, [1] * num_rows, [True] * num_rows)

    @property
    def seq_lens(self) -> list[int]:
        """(R,) what is cached after the step."""
        return list(map(add, self.context_lens, self.query_lens))

    @property
    def are_decodes(self) -> bool:
        """Has each row one token, behind which another is to be chosen?"""
        return self.query_lens.count(1) == self.are_sampled.count(True) == len(self.sequences)

    def picked(self, places: Seq[int]) -> "Rows":
        return Rows(
            [self.sequences[place] for place in places],
            [self.context_lens[place] for place in places],
            [self.query_lens[place] for place in places],
            [self.are_sampled[place] for place in places],
        )

    @property
    def columns(self) -> tuple[list[Sequence], list[int], list[int], list[bool]]:
        """In the order of `Scheduled`."""
        return self.sequences, self.context_lens, self.query_lens, self.are_sampled

    def __len__(self) -> int:
        return len(self.sequences)

    @overload
    def __getitem__(self, index: int) -> Scheduled: ...
    @overload
    def __getitem__(self, index: slice) -> "Rows": ...
    def __getitem__(self, index: int | slice) -> "Scheduled | Rows":
        if isinstance(index, slice):
            return self.picked(range(len(self))[index])
        return Scheduled(
            self.sequences[index],
            self.context_lens[index],
            self.query_lens[index],
            self.are_sampled[index],
        )
