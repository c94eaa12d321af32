"""A run in which requests are cancelled, judged (promise P13)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from batchproof.api import Completion, Engine, FinishReason, Request, StepRecord
from batchproof.checks.broken import require
from batchproof.findings.finding import Facts, Finding, Rule, found
from batchproof.oracle.choosing import is_plain
from batchproof.requirements.promises import Promise
from batchproof.run.relations import blame
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Outcome, Workload


def final_findings(final: StepRecord) -> Iterator[Finding]:
    """Yields what a cancelled request has left: blocks, or a row beside that of the one request that
    was added afterwards."""
    free, total = final.num_free_blocks, final.num_total_blocks
    if free is not None and total is not None and free != total:
        rule = Rule.CANCELLED_BLOCKS if free < total else Rule.FREED_TWICE
        yield found(rule, num_free=free, num_total=total)
    if len({row.request_id for row in final.rows}) != 1:
        yield found(Rule.CANCELLED_ROW)


def fed_findings(
    workload: Workload, outcome: Outcome, trace: Sequence[StepRecord]
) -> Iterator[Finding]:
    """Yields requests that are fed in the step of their abort, or later."""
    for request_id, step in workload.aborts:
        if step >= len(outcome.trace_lens):
            continue
        start = outcome.trace_lens[step]
        for number, record in enumerate(trace[start:], start):
            if any(row.request_id == request_id for row in record.rows):
                facts: Facts = {"cancelled_at": step, "num_records": start, "record": number}
                yield found(Rule.CANCELLED_FED, request_id, **facts)


def late_token_findings(outcome: Outcome, request_id: str, cancelled_at: int) -> Iterator[Finding]:
    """Yields tokens that the request gets in the step of its abort, or later."""
    for step, event in outcome.events:
        is_late = step >= cancelled_at and event.token_id is not None
        if event.request_id == request_id and is_late:
            yield found(Rule.CANCELLED_TOKEN, request_id, step, cancelled_at=cancelled_at)


def check_run_with_aborts(trial: Trial, workload: Workload, engine: Engine) -> Outcome:
    """Runs the workload, then one more request on the same engine; judges survivors and leftovers.
    Raises `ConformanceFailure`, `HangFailure` and `OracleError`, as `Trial.run` does."""
    num_records = len(trial.trace_of(engine))
    with blame(Promise.P13, "beside a cancelled request", trial):
        outcome = trial.run(workload, engine)
        trace = trial.trace_of(engine)
        with trial.reporting(workload):
            require(_findings(trial, workload, outcome, trace, num_records))
        trial.check(Workload((afterwards(workload),), workload.config, arrivals=(0,)), engine)
        for final in trial.trace_of(engine)[-1:]:
            with trial.reporting(workload):
                require(final_findings(final))
    return outcome


def _findings(
    trial: Trial, workload: Workload, outcome: Outcome, trace: Sequence[StepRecord], num_records: int
) -> Iterator[Finding]:
    """Yields what is wrong with survivors, cancelled requests, and the trace, if there is one: the
    workload began behind so many records."""

    def of_answers(
        requests: Sequence[Request], completions: tuple[Completion, ...]
    ) -> Iterator[Finding]:
        given = replace(outcome, completions=completions)
        yield from trial.answer_findings(requests, given, workload, trace[num_records:])

    cancelled_at = dict(workload.aborts)
    survivors = [r for r in workload.requests if r.request_id not in cancelled_at]
    by_id = {completion.request_id: completion for completion in outcome.completions}
    yield from of_answers(survivors, tuple(by_id[r.request_id] for r in survivors))
    for request in workload.requests:
        if request.request_id not in cancelled_at:
            continue
        got = by_id[request.request_id]
        yield from late_token_findings(outcome, request.request_id, cancelled_at[request.request_id])
        if got.finish_reason is not FinishReason.ABORTED:  # it had finished before it was cancelled
            yield from of_answers([request], (got,))
        elif workload.is_interrupted or not is_plain(request):
            if got.token_ids:  # of which another may be as good, once the best is banned
                whole = replace(got, finish_reason=FinishReason.LENGTH)
                cut = replace(request, max_new_tokens=len(got.token_ids))
                yield from of_answers([cut], (whole,))
        elif trial.oracle.is_exact:
            right, _ = trial.oracle.under(workload.adapters, workload.weights).expected(request)
            if got.token_ids != right[: len(got.token_ids)]:
                facts: Facts = {"got": got.token_ids, "should_be": right}
                yield found(Rule.CANCELLED_ANSWER, request.request_id, **facts)
    yield from fed_findings(workload, outcome, trace)


def afterwards(workload: Workload) -> Request:
    """Returns a request that is within all limits: it asks for no more than one of the workload's."""
    known = max(workload.requests, key=lambda each: len(each.prompt_token_ids))
    prompt = (2, 7, 1)[: len(known.prompt_token_ids)]
    return Request("afterwards", prompt, min(2, known.max_new_tokens))
