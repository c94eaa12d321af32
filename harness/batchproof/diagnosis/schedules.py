"""Schedules of a call, for an engine that shows none: what its events say, else the simplest one."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from batchproof.api import Completion, RowRecord, StepRecord, TokenEvent
from batchproof.workload.workloads import Workload

Events = Iterable[tuple[int, TokenEvent]]  # with the number of their step


def plain_events(workload: Workload, completions: Sequence[Completion]) -> Events:
    """Yields the events assumed for an engine that shows none: first come first served, one token of
    each sequence in each step."""
    free_from = [0] * workload.config.max_num_seqs  # the step from which on each slot is free
    for completion in completions:
        start = heappop(free_from)
        for step, token_id in enumerate(completion.token_ids, start):
            yield step, TokenEvent(completion.request_id, token_id)
        heappush(free_from, start + len(completion.token_ids))


def schedule_of_events(workload: Workload, events: Events) -> list[StepRecord]:
    """Returns the schedule that the events of a call show: whole prompts in the step of their first
    token, and as many accepted drafts as a step has further tokens."""
    prompts = {each.request_id: len(each.prompt_token_ids) for each in workload.requests}
    cached = dict.fromkeys(prompts, 0)
    steps: defaultdict[int, list[TokenEvent]] = defaultdict(list)
    for step, event in events:
        if event.request_id in prompts:
            steps[step].append(event)
    trace: list[StepRecord] = []
    for step in range(max(steps, default=-1) + 1):
        rows = []
        told = Counter(each.request_id for each in steps[step] if each.token_id is not None)
        for name, num in told.items():
            fed = (1 if cached[name] else prompts[name]) + num - 1
            rows.append(RowRecord(name, cached[name], fed, True, num - 1, num - 1))
            cached[name] += fed
        ended = tuple(event.request_id for event in steps[step] if event.finish_reason is not None)
        trace.append(StepRecord(tuple(rows), (), (), ended, ()))
    return trace
