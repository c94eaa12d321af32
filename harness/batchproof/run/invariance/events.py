"""Whether traces show that the engine did what an axis is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from batchproof.api import RowRecord, StepRecord
from batchproof.checks.happened import is_decode
from batchproof.run.invariance.settings import KEPT

Trace = Sequence[StepRecord]
Shown = Callable[[Trace, Trace], bool]
"""Takes the traces of the base and of the changed setting."""


def in_changed_alone(happens: Callable[[Trace], bool]) -> Shown:
    """Decorates what a trace may show: it must happen in the changed setting, and not in the base."""
    return lambda base, changed: happens(changed) and not happens(base)


def is_kept(row: RowRecord) -> bool:
    """Returns whether the row is of the kept request."""
    return row.request_id.startswith(KEPT)


def steps_of_kept(trace: Trace) -> Iterator[tuple[RowRecord, list[RowRecord]]]:
    """Yields the kept request's row of each of its steps, and the rows of others in that step."""
    for record in trace:
        for row in filter(is_kept, record.rows):
            yield row, [each for each in record.rows if not is_kept(each)]


def largest_batch(trace: Trace) -> int:
    """Returns the number of rows in the widest step of the kept request; 0 without one."""
    return max((1 + len(others) for _, others in steps_of_kept(trace)), default=0)


def shares_larger_steps(base: Trace, changed: Trace) -> bool:
    """Returns whether more requests share a step in the changed setting than in the base."""
    return largest_batch(base) < largest_batch(changed)


def shares_steps(base: Trace, changed: Trace) -> bool:
    """Returns whether others share a step with the kept request in both settings."""
    return min(largest_batch(base), largest_batch(changed)) > 1


@in_changed_alone
def joins(trace: Trace) -> bool:
    """Returns whether the kept request begins in a step in which another decodes."""
    for row, others in steps_of_kept(trace):
        if row.context_len == 0:
            return any(map(is_decode, others))
    return False


@in_changed_alone
def is_chunked(trace: Trace) -> bool:
    """Returns whether the kept request's prompt is fed in parts."""
    return any(not row.is_sampled for row, _ in steps_of_kept(trace))


@in_changed_alone
def hits(trace: Trace) -> bool:
    """Returns whether the kept request's first row has keys that it did not compute."""
    return any(row.context_len > 0 for row, _ in list(steps_of_kept(trace))[:1])


def is_prefilled(base: Trace, changed: Trace) -> bool:
    """Returns whether its tokens come from decodes in the base and all from prefills in the other."""
    has_decoded = any(is_decode(row) for row, _ in steps_of_kept(base))
    return has_decoded and all(row.context_len == 0 for row, _ in steps_of_kept(changed))


@in_changed_alone
def verifies(trace: Trace) -> bool:
    """Returns whether drafts of the kept request are verified."""
    return any(row.num_drafted for row, _ in steps_of_kept(trace))


@in_changed_alone
def is_preempted(trace: Trace) -> bool:
    """Returns whether the kept request loses its cache."""
    return any(KEPT in record.preempted for record in trace)
