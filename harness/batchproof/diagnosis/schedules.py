"""Schedules of a call, for an engine that shows none: what its events say, else the simplest one."""

from collections import Counter
from collections.abc import Sequence

from batchproof.api import Completion, Request, RowRecord, StepRecord, TokenEvent
from batchproof.workload.workloads import Workload


def plain_schedule(workload: Workload, completions: Sequence[Completion]) -> list[StepRecord]:
    """Returns the schedule assumed for an engine without a trace: first come first served, whole
    prompts, one token of each sequence in each step."""
    waiting = [
        (request, len(completion.token_ids))
        for request, completion in zip(workload.requests, completions, strict=True)
        if completion.token_ids
    ]
    running: list[tuple[Request, int, int]] = []  # request, outputs to come, keys cached
    trace: list[StepRecord] = []
    while waiting or running:
        while waiting and len(running) < workload.config.max_num_seqs:
            request, num_outputs = waiting.pop(0)
            running.append((request, num_outputs, 0))
        rows = tuple(
            RowRecord(r.request_id, cached, 1 if cached else len(r.prompt_token_ids), True)
            for r, _, cached in running
        )
        trace.append(StepRecord(rows, tuple(r.request_id for r, _ in waiting), (), (), ()))
        stepped = zip(running, rows, strict=True)
        left = [(r, todo - 1, row.context_len + row.query_len) for (r, todo, _), row in stepped]
        running = [each for each in left if each[1]]
    return trace


def schedule_of_events(
    workload: Workload, events: Sequence[tuple[int, TokenEvent]]
) -> list[StepRecord]:
    """Returns the schedule that the events of a stepped call show: whole prompts in the step of their
    first token, and as many accepted drafts as a step has further tokens."""
    prompts = {each.request_id: len(each.prompt_token_ids) for each in workload.requests}
    cached = dict.fromkeys(prompts, 0)
    trace: list[StepRecord] = []
    for step in range(max((number for number, _ in events), default=-1) + 1):
        here = [event for number, event in events if number == step and event.request_id in prompts]
        rows = []
        for name, num in Counter(each.request_id for each in here if each.token_id is not None).items():
            fed = (1 if cached[name] else prompts[name]) + num - 1
            rows.append(RowRecord(name, cached[name], fed, True, num - 1, num - 1))
            cached[name] += fed
        ended = tuple(event.request_id for event in here if event.finish_reason is not None)
        trace.append(StepRecord(tuple(rows), (), (), ended, ()))
    return trace
