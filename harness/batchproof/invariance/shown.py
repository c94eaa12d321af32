"""What the traces of the base and the changed setting must show, or an axis proves nothing."""

from collections.abc import Callable, Iterator, Sequence

from batchproof.api import RowRecord, StepRecord
from batchproof.checks.happened import is_decode

KEPT = "kept"  # the ids of what is compared begin with it; the answers are joined in order

Trace = Sequence[StepRecord]
Shown = Callable[[Trace, Trace], bool]  # of the base and of the changed setting


def in_changed_alone(happens: Callable[[Trace], bool]) -> Shown:
    # It must happen in the changed setting, and not in the base.
    return lambda base, changed: happens(changed) and not happens(base)


def is_kept(row: RowRecord) -> bool:
    return row.request_id.startswith(KEPT)


def steps_of_kept(trace: Trace) -> Iterator[tuple[RowRecord, list[RowRecord]]]:
    # The kept request's row of each of its steps, and the rows of others in that step.
    for record in trace:
        for row in filter(is_kept, record.rows):
            yield row, [each for each in record.rows if not is_kept(each)]


def largest_batch(trace: Trace) -> int:
    # Rows in the widest step of the kept request; 0 without one.
    return max((1 + len(others) for _, others in steps_of_kept(trace)), default=0)


def shares_steps(base: Trace, changed: Trace) -> bool:
    return min(largest_batch(base), largest_batch(changed)) > 1


def joins(trace: Trace) -> bool:
    first = next((others for row, others in steps_of_kept(trace) if row.context_len == 0), [])
    return any(map(is_decode, first))


def is_chunked(trace: Trace) -> bool:
    return any(not row.is_sampled for row, _ in steps_of_kept(trace))


def hits(trace: Trace) -> bool:
    return any(row.context_len > 0 for row, _ in list(steps_of_kept(trace))[:1])


def returns(trace: Trace) -> bool:
    # The kept request begins behind cached keys although the pool was full before.
    ids = [[row.request_id for row in record.rows] for record in trace]
    before = trace[: next((i for i, each in enumerate(ids) if KEPT in each), 0)]
    return hits(trace) and any(each.preempted or each.num_free_blocks == 0 for each in before)


def is_prefilled(base: Trace, changed: Trace) -> bool:
    has_decoded = any(is_decode(row) for row, _ in steps_of_kept(base))
    return has_decoded and all(row.context_len == 0 for row, _ in steps_of_kept(changed))


def verifies(trace: Trace) -> bool:
    return any(row.num_drafted for row, _ in steps_of_kept(trace))


def is_preempted(trace: Trace) -> bool:
    return any(KEPT in record.preempted for record in trace)


def has_larger_batch(base: Trace, changed: Trace) -> bool:
    return largest_batch(base) < largest_batch(changed)
