"""Whether a trace shows what a test is about: a test of preemption proves nothing if there was none."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil

from batchproof.api import RowRecord, StepRecord
from batchproof.workload.workloads import Outcome, Workload

# What an engine may leave undone although it has the capability (C-7.7, C-9.10, C-17.6): where no trace
# shows it, the summary says so, and nothing fails.
OWN_CHOICE = frozenset(
    {"block that two use at once", "prefix that was given up and computed again"}
    | {"preemption in a case", "prefix_hit in a case", "acceptance in a case", "rejection in a case"}
)


HITS, PREEMPTED, CHUNKS, ACCEPTED, REJECTED = COUNTERS = (
    *("prefix hits", "preemptions", "chunks of prompts", "drafts accepted", "drafts rejected"),
)


def happened_in(trace: Sequence[StepRecord]) -> Mapping[str, int]:
    """Returns how often each of `COUNTERS` happened. A hit is an admission whose first row begins
    behind keys that were not computed for it."""
    counts = Counter(dict.fromkeys(COUNTERS, 0))
    begun: set[str] = set()
    for record in trace:
        begun -= {*record.admitted, *record.preempted}
        counts[PREEMPTED] += len(record.preempted)
        for row in record.rows:
            counts[HITS] += row.request_id not in begun and row.context_len > 0
            counts[CHUNKS] += not row.is_sampled
            counts[ACCEPTED] += row.num_accepted
            counts[REJECTED] += row.num_drafted - row.num_accepted
            begun.add(row.request_id)
    return counts


def is_decode(row: RowRecord) -> bool:
    """Returns whether the row feeds the last token, and drafts behind it, to get the next."""
    return row.is_sampled and row.context_len > 0 and row.query_len - row.num_drafted == 1


def has_mixed_step(trace: Sequence[StepRecord]) -> bool:
    """Returns whether a prompt was fed in one step with a decode."""
    return any(
        any(row.context_len == 0 for row in record.rows) and any(is_decode(row) for row in record.rows)
        for record in trace
    )


def has_mixed_adapters(trace: Sequence[StepRecord], workload: Workload) -> bool:
    """Returns whether rows of different adapters, or of one and of the model alone, shared a step."""
    adapter = {each.request_id: each.adapter for each in workload.requests}
    return any(len({adapter.get(row.request_id) for row in record.rows}) > 1 for record in trace)


def has_request_across(trace: Sequence[StepRecord], outcome: Outcome, step: int) -> bool:
    """Returns whether a request had rows before a step and from that on. The trace may begin with the
    records of earlier workloads, with other requests."""
    place = outcome.trace_lens[step]
    parts = (trace[outcome.trace_lens[0] : place], trace[place:])
    before, after = ({row.request_id for each in part for row in each.rows} for part in parts)
    return bool(before & after)


def has_shared_block(trace: Sequence[StepRecord], block_size: int) -> bool:
    """Returns whether fewer blocks were used than all sequences filled. Not for runs with aborts."""
    cached: dict[str, int] = {}
    for record in trace:
        gone = {*record.preempted, *record.finished}
        cached = {name: length for name, length in cached.items() if name not in record.preempted}
        cached |= {row.request_id: row.cached_len for row in record.rows}
        cached = {name: length for name, length in cached.items() if name not in gone}
        filled = sum(ceil(length / block_size) for length in cached.values())
        free, total = record.num_free_blocks, record.num_total_blocks
        if free is not None and total is not None and total - free < filled:
            return True
    return False


def has_slot_reuse(trace: Sequence[StepRecord], max_num_seqs: int) -> bool:
    """Returns whether more requests were admitted than there are slots."""
    return len({each for record in trace for each in record.admitted}) > max_num_seqs


def has_newcomer(trace: Sequence[StepRecord]) -> bool:
    """Returns whether a request came when others had begun."""
    queues = [{*record.waiting, *record.admitted} for record in trace]
    return any(later - earlier for earlier, later in pairwise(queues))
