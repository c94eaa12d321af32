"""How an engine behaved, whatever it answered: its trace and its events (P7, P9-P11, P14).

Every judged workload is checked here, so a lost step or a leaked block shows in every test that
causes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from batchproof.api import Capability, Completion, FinishReason, StepRecord
from batchproof.checks.broken import broken
from batchproof.checks.late_ends import LateEnds
from batchproof.checks.prefixes import Computed, ComputedPrefixes, may_share
from batchproof.checks.scheduling import check_limits, check_queues, check_scheduling
from batchproof.checks.trace import check_accounting, check_ends, check_positions
from batchproof.findings.finding import Rule
from batchproof.workload.workloads import Outcome, Workload


def check_conduct(
    workload: Workload,
    outcome: Outcome,
    records: Sequence[StepRecord],
    capabilities: AbstractSet[Capability],
    earlier: Sequence[Computed] = (),
    delay: int = 0,
) -> None:
    """Checks trace and events of one workload. Raises `BrokenPromise`.

    `records` is what this workload added to the trace; `earlier` what workloads before it have
    computed on the same engine; `delay` the declared `scheduling_delay`, in steps. Workloads with
    aborts are not checked: aborts leave no mark in a trace, so the tests of P13 judge them.
    """
    if workload.aborts:
        return
    served, answers = _served(workload, outcome.completions)
    if workload.needs_stepping:
        check_stream(served, outcome)
    if Capability.TRACING in capabilities:
        check_trace(served, answers, records, capabilities, earlier, delay)


def check_trace(
    workload: Workload,
    completions: Sequence[Completion],
    records: Sequence[StepRecord],
    capabilities: AbstractSet[Capability],
    earlier: Sequence[Computed] = (),
    delay: int = 0,
) -> None:
    """Checks the rules of a trace that the capabilities call for. Raises `BrokenPromise`; arguments
    as for `check_conduct`."""
    has_scheduling = Capability.SCHEDULING in capabilities
    can_share = may_share(workload.config, capabilities)
    prefixes = ComputedPrefixes(workload, completions, earlier) if can_share else None
    ends = LateEnds.of(records, workload, completions, delay)
    check_positions(records, workload, prefixes)
    check_limits(records, workload, has_scheduling)
    check_queues(records, workload)
    if has_scheduling:
        check_scheduling(records, workload, Capability.CHUNKED_PREFILL in capabilities, ends)
    check_accounting(records, workload)
    check_ends(records, workload, completions, ends)


def check_stream(workload: Workload, outcome: Outcome) -> None:
    """Checks P14: the finish reason is on the last event only, each event has a token, none is
    surplus.

    Raises `BrokenPromise`.
    """
    for request in workload.requests:
        own = [event for _, event in outcome.events if event.request_id == request.request_id]
        name, reasons = request.request_id, [event.finish_reason for event in own]
        if not own or reasons[-1] is None or any(reasons[:-1]):
            given = [reason and reason.value for reason in reasons]
            raise broken(Rule.LAST_EVENT, name, reasons=given)
        if any(event.token_id is None for event in own):
            raise broken(Rule.EMPTY_EVENT, name)
        if len(own) > request.max_new_tokens:
            raise broken(Rule.NUM_EVENTS, name, num_events=len(own), cap=request.max_new_tokens)


def _served(workload: Workload, completions: Sequence[Completion]) -> tuple[Workload, list[Completion]]:
    """Returns workload and completions without the refused requests, which no trace shows."""
    kept = [i for i, each in enumerate(completions) if each.finish_reason is not FinishReason.ERROR]
    arrivals = workload.arrivals and tuple(workload.arrivals[i] for i in kept)
    requests = tuple(workload.requests[i] for i in kept)
    return replace(workload, requests=requests, arrivals=arrivals), [completions[i] for i in kept]
