"""Which request held which slot in which steps, derived from an engine's trace without tensors.

A trace names no slots. They follow from it: an admitted request takes the lowest free slot, and a
request that finishes or is preempted frees its slot. Slots and steps count from 0 here and from 1 in
everything that is printed or drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from batchproof.api import RowRecord, StepRecord

IDLE = "."


@dataclass(frozen=True, slots=True)
class Cell:
    """What one slot did in one step: it fed `num_tokens` tokens of a request."""

    request: str
    num_tokens: int
    is_prefill: bool

    @property
    def text(self) -> str:
        """Returns the request with the kind and number of its tokens."""
        kind = "PREFILL" if self.is_prefill else "decode"
        return f"{self.request} {kind}({self.num_tokens})"


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive steps in which one slot serves one request: prefill steps, then decode steps."""

    slot: int
    start: int
    request: str
    prefill: tuple[tuple[int, int], ...]  # of each step: prompt tokens, and tokens computed with pads
    num_decodes: int

    @property
    def num_steps(self) -> int:
        """Returns the number of steps."""
        return len(self.prefill) + self.num_decodes

    @property
    def end(self) -> int:
        """Returns the step after the last one."""
        return self.start + self.num_steps

    def cells(self) -> list[Cell]:
        """Returns the cell of each step."""
        prefill = [Cell(self.request, num_tokens, True) for num_tokens, _ in self.prefill]
        return prefill + [Cell(self.request, 1, False)] * self.num_decodes

    def extended(self, row: RowRecord, *, by_prefill: bool) -> Span:
        """Returns the span with one more step."""
        if by_prefill:
            return replace(self, prefill=(*self.prefill, (row.query_len, row.query_len)))
        return replace(self, num_decodes=self.num_decodes + 1)


@dataclass(frozen=True, slots=True)
class Timeline:
    """All spans of a run. `barriers` are the steps after which a whole wave had to be over."""

    num_slots: int
    num_steps: int
    spans: tuple[Span, ...]
    barriers: tuple[int, ...] = ()

    @property
    def num_slot_steps(self) -> int:
        """Returns the number of slots times the number of steps."""
        return self.num_slots * self.num_steps

    @property
    def num_busy(self) -> int:
        """Returns the number of slot-steps that fed a token of a request."""
        return sum(span.num_steps for span in self.spans)

    @property
    def occupancy(self) -> float:
        """Returns the share of busy slot-steps among all slot-steps."""
        return self.num_busy / self.num_slot_steps if self.num_steps else 0.0

    def row(self, slot: int) -> list[Cell | None]:
        """Returns one slot through all steps; None where it is idle."""
        cells: list[Cell | None] = [None] * self.num_steps
        for span in self.spans:
            if span.slot == slot:
                cells[span.start : span.end] = span.cells()
        return cells

    def steps(self) -> list[tuple[Cell | None, ...]]:
        """Returns all slots, step by step."""
        return list(zip(*map(self.row, range(self.num_slots)), strict=True))


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
    """Returns the timeline of a trace. A pause, or a prompt fed again, begins another span."""
    done: list[Span] = []
    current: dict[int, Span] = {}
    for step, (record, slots) in enumerate(zip(trace, assign_slots(trace, num_slots), strict=True)):
        for row in record.rows:
            slot = slots[row.request_id]
            by_prefill = is_prefill(row, prompt_lens[row.request_id])
            span = current.get(slot)
            if (
                span is None
                or (span.request, span.end) != (row.request_id, step)
                or (by_prefill and span.num_decodes)
            ):
                done += [span] if span else []
                span = Span(slot, step, row.request_id, (), 0)
            current[slot] = span.extended(row, by_prefill=by_prefill)
    return Timeline(num_slots, len(trace), (*done, *current.values()), tuple(barriers))


def is_prefill(row: RowRecord, prompt_len: int) -> bool:
    """Returns whether prompt tokens are fed, or tokens fed again after a preemption."""
    return row.context_len < prompt_len or row.query_len > 1


def waves(trace: Sequence[StepRecord]) -> list[range]:
    """Returns the steps of each wave of a static engine: from one admission to the next."""
    starts = [step for step, record in enumerate(trace) if record.admitted]
    return [range(a, b) for a, b in zip(starts, [*starts[1:], len(trace)], strict=True)]


def num_refills(trace: Sequence[StepRecord]) -> tuple[int, int]:
    """Returns the number of slots freed while a request waited, and how many of them the very next
    step filled.
    """
    num_wanted = num_filled = 0
    for record, following in pairwise(trace):
        wanted = min(len(record.finished), len(record.waiting))
        num_wanted += wanted
        num_filled += min(wanted, len(following.admitted))
    return num_wanted, num_filled
