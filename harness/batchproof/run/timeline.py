"""Which request held which slot in which steps, derived from an engine's trace without tensors.

A trace names no slots. They follow from it: an admitted request takes the lowest free slot, and a
request that finishes or is preempted frees its slot. Slots and steps count from 0 here and from 1 in
everything that is printed or drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from batchproof.api import RowRecord, StepRecord


@dataclass(frozen=True, slots=True)
class Cell:
    """What one slot did in one step: it fed `num_tokens` tokens of a request."""

    request: str
    num_tokens: int
    is_prefill: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """All slots, step by step; None where a slot is idle. `barriers` are the steps after which a whole
    wave had to be over."""

    num_slots: int
    steps: tuple[tuple[Cell | None, ...], ...]
    barriers: tuple[int, ...] = ()

    @property
    def num_slot_steps(self) -> int:
        return self.num_slots * len(self.steps)

    @property
    def num_busy(self) -> int:
        return sum(cell is not None for cells in self.steps for cell in cells)

    @property
    def occupancy(self) -> float:
        return self.num_busy / self.num_slot_steps if self.steps else 0.0

    def row(self, slot: int) -> list[Cell | None]:
        return [cells[slot] for cells in self.steps]


def assign_slots(trace: Sequence[StepRecord], num_slots: int) -> list[dict[str, int]]:
    """Returns for each step the slot of each request that holds one during it.

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
    steps = []
    for record, slots in zip(trace, assign_slots(trace, num_slots), strict=True):
        cells: list[Cell | None] = [None] * num_slots
        for row in record.rows:
            by_prefill = is_prefill(row, prompt_lens[row.request_id])
            cells[slots[row.request_id]] = Cell(row.request_id, row.query_len, by_prefill)
        steps.append(tuple(cells))
    return Timeline(num_slots, tuple(steps), tuple(barriers))


def is_prefill(row: RowRecord, prompt_len: int) -> bool:
    """Returns whether prompt tokens are fed, or tokens fed again after a preemption."""
    return row.context_len < prompt_len or row.query_len > 1


def waves(trace: Sequence[StepRecord]) -> list[range]:
    """Returns the steps of each wave of a static engine: from one admission to the next."""
    starts = [step for step, record in enumerate(trace) if record.admitted]
    return [range(a, b) for a, b in zip(starts, [*starts[1:], len(trace)], strict=True)]


def num_refills(trace: Sequence[StepRecord]) -> tuple[int, int]:
    """Returns the number of slots freed while a request waited, and how many of them the very next
    step filled."""
    num_wanted = num_filled = 0
    for record, following in pairwise(trace):
        wanted = min(len(record.finished), len(record.waiting))
        num_wanted += wanted
        num_filled += min(wanted, len(following.admitted))
    return num_wanted, num_filled
