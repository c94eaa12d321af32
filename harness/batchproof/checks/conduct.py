"""How an engine behaved, whatever it answered: its trace and its events (P7, P9-P11, P14).

Every judged workload goes through here, so a lost step or a leaked block shows in whichever test
makes it happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from batchproof.api import (
    Capability,
    Completion,
    FinishReason,
    StepRecord,
)
from batchproof.checks.broken import broken
from batchproof.checks.late_ends import LateEnds
from batchproof.checks.prefixes import Computed, ComputedPrefixes, may_share
from batchproof.checks.trace import (
    check_accounting,
    check_ends,
    check_limits,
    check_positions,
    check_scheduling,
)
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
    """`records`: what this workload added to the trace; `earlier`: what workloads before it have
    computed on the same engine; `delay`: the `scheduling_delay` that it declares, in steps. Aborts
    leave no mark in a trace, so workloads with aborts are judged by the tests of P13."""
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
    """All rules of `batchproof.checks.trace` that the engine's capabilities call for."""
    has_scheduling = Capability.SCHEDULING in capabilities
    can_share = may_share(workload.config, capabilities)
    prefixes = ComputedPrefixes(workload, completions, earlier) if can_share else None
    ends = LateEnds.of(records, workload, completions, delay)
    check_positions(records, workload, prefixes)
    check_limits(records, workload, has_scheduling)
    if has_scheduling:
        check_scheduling(records, workload, Capability.CHUNKED_PREFILL in capabilities, ends)
    check_accounting(records, workload)
    check_ends(records, workload, completions, ends)


def check_stream(workload: Workload, outcome: Outcome) -> None:
    """P14: the finish reason on the last event and nowhere else; a token in each, none too many."""
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
    """Without the refused requests, which no trace shows."""
    kept = [i for i, each in enumerate(completions) if each.finish_reason is not FinishReason.ERROR]
    arrivals = workload.arrivals and tuple(workload.arrivals[i] for i in kept)
    requests = tuple(workload.requests[i] for i in kept)
    return replace(workload, requests=requests, arrivals=arrivals), [completions[i] for i in kept]
