"""From an engine's trace to who sat in which slot: pure functions, no tensors.

A trace names no slots. They follow from it: who is admitted takes the lowest free slot, and who
finishes or is preempted frees it. Slots and steps count from 0 here and from 1 wherever a person
reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from batchproof.api import RowRecord, StepRecord

IDLE = "."


@dataclass(frozen=True, slots=True)
class Cell:
    """What one slot did in one step: it fed `num_tokens` tokens of a request."""

    request_id: str
    num_tokens: int
    is_prefill: bool
    is_last: bool  # the request finished in this step

    @property
    def text(self) -> str:
        kind = "PREFILL" if self.is_prefill else "decode"
        return f"{self.request_id} {kind}({self.num_tokens})"

    @property
    def letter(self) -> str:
        """Upper case while the prompt is fed, lower case afterwards."""
        return self.request_id.upper() if self.is_prefill else self.request_id.lower()


@dataclass(frozen=True, slots=True)
class Timeline:
    """`cells[step][slot]`; None: the slot brought no token of any request forward."""

    cells: tuple[tuple[Cell | None, ...], ...]
    barriers: tuple[int, ...] = ()  # the steps after which a whole wave had to be over

    @property
    def num_steps(self) -> int:
        return len(self.cells)

    @property
    def num_slot_steps(self) -> int:
        return sum(len(step) for step in self.cells)

    @property
    def num_busy(self) -> int:
        return sum(cell is not None for step in self.cells for cell in step)

    @property
    def occupancy(self) -> float:
        """Busy slot-steps among all slot-steps."""
        return self.num_busy / self.num_slot_steps if self.cells else 0.0

    def row(self, slot: int) -> list[Cell | None]:
        """One slot through all steps."""
        return [step[slot] for step in self.cells]


def assign_slots(trace: Sequence[StepRecord], num_slots: int) -> list[dict[str, int]]:
    """For each step, the slot of each request that holds one during it.

    The trace must begin with all slots free. Raises `ValueError` if more are admitted than fit.
    """
    held: dict[str, int] = {}
    steps: list[dict[str, int]] = []
    for step, record in enumerate(trace):
        for request_id in record.preempted:
            held.pop(request_id, None)
        for request_id in record.admitted:
            free = set(range(num_slots)) - set(held.values())
            if not free:
                raise ValueError(
                    f"step {step} admits {request_id!r}, but all {num_slots} slots are taken"
                )
            held[request_id] = min(free)
        steps.append(dict(held))
        for request_id in record.finished:
            held.pop(request_id, None)
    return steps


def build_timeline(
    trace: Sequence[StepRecord],
    num_slots: int,
    prompt_lens: Mapping[str, int],
    barriers: Sequence[int] = (),
) -> Timeline:
    """What each slot did in each step of the trace."""
    steps = []
    for record, slots in zip(trace, assign_slots(trace, num_slots), strict=True):
        cells: list[Cell | None] = [None] * num_slots
        for row in record.rows:
            cells[slots[row.request_id]] = Cell(
                row.request_id,
                row.query_len,
                is_prefill(row, prompt_lens[row.request_id]),
                row.request_id in record.finished,
            )
        steps.append(tuple(cells))
    return Timeline(tuple(steps), tuple(barriers))


def is_prefill(row: RowRecord, prompt_len: int) -> bool:
    """True if prompt tokens are fed, or fed again after a preemption."""
    return row.context_len < prompt_len or row.query_len > 1


def waves(trace: Sequence[StepRecord]) -> list[range]:
    """The steps of each wave of a static engine: from one admission to the next."""
    starts = [step for step, record in enumerate(trace) if record.admitted]
    return [range(a, b) for a, b in zip(starts, [*starts[1:], len(trace)], strict=True)]


def num_refills(trace: Sequence[StepRecord]) -> tuple[int, int]:
    """(freed slots somebody was waiting for, how many of them the very next step filled)."""
    num_wanted = num_filled = 0
    for record, following in pairwise(trace):
        wanted = min(len(record.finished), len(record.waiting))
        num_wanted += wanted
        num_filled += min(wanted, len(following.admitted))
    return num_wanted, num_filled


def letters(row: Sequence[Cell | None], steps_per_column: int = 1) -> str:
    """One slot as text, one letter a column.

    A column of several steps shows what fills most of them (the earlier on a tie), in upper case if
    a prefill of that request is among them.
    """
    columns = []
    for start in range(0, len(row), steps_per_column):
        part = row[start : start + steps_per_column]
        owners = Counter(cell.request_id if cell else IDLE for cell in part)
        owner = owners.most_common(1)[0][0]  # of equals, the first met
        has_prefill = any(cell and cell.request_id == owner and cell.is_prefill for cell in part)
        columns.append(owner.upper() if has_prefill else owner.lower())
    return "".join(columns)
