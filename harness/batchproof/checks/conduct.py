"""How an engine behaved, whatever it answered: its trace and its events (P7, P9-P11, P14).

Every judged workload is checked here, so a lost step or a leaked block shows in every test that
causes it.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import islice

from batchproof.api import Capability, Completion, FinishReason, StepRecord
from batchproof.checks.lifecycle import Cuts, standing_findings
from batchproof.checks.prefixes import Computed, ComputedPrefixes, may_share
from batchproof.checks.scheduling import limit_findings, queue_findings, scheduling_findings
from batchproof.checks.trace import LateEnds, accounting_findings, end_findings, position_findings
from batchproof.findings.finding import Finding, Rule, found
from batchproof.workload.workloads import Outcome, Workload


def conduct_findings(
    workload: Workload,
    outcome: Outcome,
    records: Sequence[StepRecord],
    capabilities: AbstractSet[Capability],
    earlier: Sequence[Computed] = (),
    delay: int = 0,
    reach: int | None = None,
) -> Iterator[Finding]:
    """Yields what is wrong with trace and events of one workload.

    `records` is what this workload added to the trace; `earlier` what workloads before it have
    computed on the same engine; `delay` the declared `scheduling_delay`, in steps; `reach` the
    model's (`ModelUnderTest.reach`). Workloads with aborts are not checked: aborts leave no mark in
    a trace, so the tests of P13 judge them. Of each check of the trace only the first finding: what it
    follows is wrong from there.
    """
    if workload.aborts:
        return
    served, answers = _served(workload, outcome.completions)
    if workload.needs_stepping:
        yield from stream_findings(served, outcome)
        has_trace = Capability.TRACING in capabilities
        yield from islice(standing_findings(workload, outcome, has_trace), 1)
    if Capability.TRACING not in capabilities:
        return
    has_scheduling = Capability.SCHEDULING in capabilities
    can_share = may_share(workload.config, capabilities)
    prefixes = ComputedPrefixes(served, answers, earlier) if can_share else None
    ends = LateEnds.of(records, served, answers, delay)
    cuts = Cuts.of(workload, outcome)
    can_chunk = Capability.CHUNKED_PREFILL in capabilities
    for findings in (
        position_findings(records, served, prefixes, cuts, ends),
        limit_findings(records, served, has_scheduling),
        queue_findings(records, served),
        scheduling_findings(records, served, can_chunk, ends, cuts) if has_scheduling else iter(()),
        accounting_findings(records, served, reach=reach, cuts=cuts),
        end_findings(records, served, answers, ends),
    ):
        yield from islice(findings, 1)


def stream_findings(workload: Workload, outcome: Outcome) -> Iterator[Finding]:
    """Yields breaks of P14: the finish reason is on the last event only, each event has a token, none
    is surplus."""
    for request in workload.requests:
        own = [event for _, event in outcome.events if event.request_id == request.request_id]
        name, reasons = request.request_id, [event.finish_reason for event in own]
        if not own or reasons[-1] is None or any(reasons[:-1]):
            given = [reason and reason.value for reason in reasons]
            yield found(Rule.LAST_EVENT, name, reasons=given)
        if any(event.token_id is None for event in own):
            yield found(Rule.EMPTY_EVENT, name)
        if len(own) > request.max_new_tokens:
            yield found(Rule.NUM_EVENTS, name, num_events=len(own), cap=request.max_new_tokens)


def _served(workload: Workload, completions: Sequence[Completion]) -> tuple[Workload, list[Completion]]:
    """Returns workload and completions without the refused requests, which no trace shows."""
    kept = [i for i, each in enumerate(completions) if each.finish_reason is not FinishReason.ERROR]
    arrivals = workload.arrivals and tuple(workload.arrivals[i] for i in kept)
    requests = tuple(workload.requests[i] for i in kept)
    return replace(workload, requests=requests, arrivals=arrivals), [completions[i] for i in kept]
