"""Gives a workload to an engine, at once or step by step, within a time limit and a step bound.

An engine that raises or hangs is reported as such, not as a wrong answer.
"""

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import cast

from batchproof.api import Completion, Engine, SteppingEngine, TokenEvent
from batchproof.checks.broken import broken
from batchproof.checks.contract_types import checked_completions, checked_events
from batchproof.errors import EngineHang
from batchproof.findings.finding import Rule
from batchproof.run.time_limit import time_limit
from batchproof.workload.workloads import (
    DEFAULT_TIME_LIMIT_S,
    Interruption,
    Outcome,
    Workload,
    assemble,
)

Interrupt = Callable[[Interruption], None]


def refuse_interruption(asked: Interruption) -> None:
    raise NotImplementedError(f"{asked.kind} is for a trial to do")


def serve(
    engine: Engine,
    workload: Workload,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    interrupt: Interrupt = refuse_interruption,
) -> Outcome:
    """Gives the workload to the engine, through `generate` or step by step, and returns the outcome.

    `interrupt` does with the engine what an interruption says. Raises what the engine raises,
    `EngineHang` after `time_limit_s` seconds or too many steps, and `BrokenPromise` for values of the
    wrong type.
    """
    if workload.needs_stepping:
        return _serve_steps(cast(SteppingEngine, engine), workload, time_limit_s, interrupt)
    asked = list(workload.requests)
    with time_limit(time_limit_s, "generate"):
        for each in workload.interruptions:
            interrupt(each)
        completions: object = engine.generate(asked)
        checked = checked_completions(completions)  # inside: it may be made lazily
    if asked != list(workload.requests):
        change = f"it held {len(workload.requests)} requests, now {len(asked)}"
        if len(asked) == len(workload.requests):
            change = "it holds its requests in another order, or others"
        raise broken(Rule.CALLERS_LIST, change=change)
    return Outcome(checked)


def _serve_steps(
    engine: SteppingEngine, workload: Workload, time_limit_s: float, interrupt: Interrupt
) -> Outcome:
    """Serves the workload through `add`, `step` and `abort`; assembles completions from the events."""
    arrivals = workload.arrivals or (0,) * len(workload.requests)
    aborted_at, acting = (step for _, step in workload.aborts), (i.step for i in workload.interruptions)
    last_action = max([*arrivals, *aborted_at, *acting], default=0)
    events: list[tuple[int, TokenEvent]] = []
    trace_lens: list[int] = []
    aborted: set[str] = set()
    step, step_bound = 0, workload.step_bound
    with time_limit(time_limit_s, "add, step and abort"):
        while step <= last_action or engine.has_unfinished:
            for each in workload.interruptions:
                if each.step == step:
                    interrupt(each)
            for request, arrival in zip(workload.requests, arrivals, strict=True):
                if arrival == step:
                    engine.add(request)
            leaving = [request_id for request_id, when in workload.aborts if when == step]
            for request_id in leaving:
                engine.abort(request_id)
            aborted.update(leaving)
            trace_lens.append(len(getattr(engine, "trace", ())))
            if engine.has_unfinished or leaving:  # whose ids are free behind a step
                events += ((step, event) for event in checked_events(engine.step()))
            step += 1
            if step > step_bound:
                raise EngineHang(
                    f"after {step} steps the engine still has unfinished requests; "
                    f"this workload needs at most {step_bound}"
                )
    completions = assembled(workload, [event for _, event in events], aborted)
    return Outcome(completions, tuple(events), tuple(trace_lens))


def assembled(
    workload: Workload, events: Sequence[TokenEvent], aborted: AbstractSet[str] = frozenset()
) -> tuple[Completion, ...]:
    """Returns the completion of each request, from the events of all."""
    ids = (request.request_id for request in workload.requests)
    return tuple(assemble(each, events, each in aborted) for each in ids)


def steps(engine: SteppingEngine, workload: Workload) -> Iterator[list[TokenEvent]]:
    """Adds all requests and steps until none is unfinished, for a test that acts in between.

    Yields all events so far before each step and after the last; it is one list, which grows. Raises
    `EngineHang` after too many steps.
    """
    for request in workload.requests:
        engine.add(request)
    events: list[TokenEvent] = []
    for _ in range(workload.step_bound + 1):
        yield events
        if not engine.has_unfinished:
            return
        events += checked_events(engine.step())
    raise EngineHang(f"after {workload.step_bound} steps the engine still has unfinished requests")
