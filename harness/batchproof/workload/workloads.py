"""What the suite asks of an engine, and how it is run.

A `Workload` is a value: requests, limits, and for stepping engines when each request arrives and
which are aborted when. `run` gives it to an engine within a time limit and a step bound and returns
an `Outcome`. An engine that raises or hangs is reported as that, not as a wrong answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from batchproof.api import (
    Completion,
    Engine,
    EngineConfig,
    FinishReason,
    Request,
    SteppingEngine,
    TokenEvent,
)
from batchproof.checks.contract_types import checked_completions, checked_events
from batchproof.checks.verdict import ConformanceFailure
from batchproof.errors import EngineHang
from batchproof.promises import Promise
from batchproof.run.time_limit import time_limit

DEFAULT_TIME_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Workload:
    """One thing to ask. `arrivals[i]` is the step before which request i is added (0: at the start);
    None: all at once through `generate`. `aborts` are (request id, step before which)."""

    requests: tuple[Request, ...]
    config: EngineConfig = EngineConfig()
    arrivals: tuple[int, ...] | None = None
    aborts: tuple[tuple[str, int], ...] = ()

    @property
    def needs_stepping(self) -> bool:
        return self.arrivals is not None or bool(self.aborts)

    @property
    def num_tokens(self) -> int:
        """Prompt tokens and caps together: what bounds the work."""
        return sum(len(r.prompt_token_ids) + max(r.max_new_tokens, 0) for r in self.requests)

    @property
    def step_bound(self) -> int:
        """Steps within which every engine must be done (promise P10).

        One request at a time, one token a step, needs `num_tokens` steps. Preemption by recompute
        can at worst repeat a request's tokens once for every token an older one gains; pools here
        are small but hold the largest request, so eight times that is far beyond honest need.
        """
        last_arrival = max(self.arrivals or (0,), default=0)
        return 8 * self.num_tokens + last_arrival + len(self.requests) + 16

    def together(self) -> Workload:
        """The same requests, all at once through `generate`."""
        return replace(self, arrivals=None, aborts=())

    def with_requests(self, requests: Sequence[Request]) -> Workload:
        return replace(self, requests=tuple(requests))

    def with_config(self, **changes: object) -> Workload:
        return replace(self, config=replace(self.config, **changes))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came back: one completion per request in input order, the events if it was stepped, and
    the number of steps."""

    completions: tuple[Completion, ...]
    events: tuple[tuple[int, TokenEvent], ...] = ()  # (step, event)
    num_steps: int = 0
    trace_lens: tuple[int, ...] = ()  # records of the engine's trace before each step, if it has one


def run(engine: Engine, workload: Workload, time_limit_s: float = DEFAULT_TIME_LIMIT_S) -> Outcome:
    """Give the workload to the engine. Raises what the engine raises, and `EngineHang`."""
    if workload.needs_stepping:
        return run_steps(cast(SteppingEngine, engine), workload, time_limit_s)
    asked = list(workload.requests)
    with time_limit(time_limit_s, "generate"):
        completions: object = engine.generate(asked)
        checked = checked_completions(completions)  # inside: it may be made lazily
    if asked != list(workload.requests):
        raise ConformanceFailure(
            Promise.P15,
            f"generate altered the caller's list: it held {len(workload.requests)} requests, now "
            f"{len(asked)}",
        ).found_by("world", thing="requests")
    return Outcome(checked)


def run_steps(
    engine: SteppingEngine, workload: Workload, time_limit_s: float = DEFAULT_TIME_LIMIT_S
) -> Outcome:
    """The same through `add`, `step` and `abort`; completions are put together from the events."""
    arrivals = workload.arrivals or (0,) * len(workload.requests)
    last_action = max([*arrivals, *(step for _, step in workload.aborts)], default=0)
    events: list[tuple[int, TokenEvent]] = []
    trace_lens: list[int] = []
    aborted: set[str] = set()
    step = 0
    with time_limit(time_limit_s, "add, step and abort"):
        while step <= last_action or engine.has_unfinished:
            for request, arrival in zip(workload.requests, arrivals, strict=True):
                if arrival == step:
                    engine.add(request)
            for request_id, when in workload.aborts:
                if when == step:
                    engine.abort(request_id)
                    aborted.add(request_id)
            trace_lens.append(len(getattr(engine, "trace", ())))
            if engine.has_unfinished:  # a client has no other reason to call `step`
                events += ((step, event) for event in checked_events(engine.step()))
            step += 1
            if step > workload.step_bound:
                raise EngineHang(
                    f"after {step} steps the engine still has unfinished requests; "
                    f"this workload needs at most {workload.step_bound}"
                )
    completions = tuple(
        assemble(request.request_id, [event for _, event in events], request.request_id in aborted)
        for request in workload.requests
    )
    return Outcome(completions, tuple(events), step, tuple(trace_lens))


def assemble(request_id: str, events: Sequence[TokenEvent], was_aborted: bool = False) -> Completion:
    """A request's completion from its events. One that never ended is an ERROR that says so."""
    own = [event for event in events if event.request_id == request_id]
    token_ids = tuple(event.token_id for event in own if event.token_id is not None)
    ends = [event for event in own if event.finish_reason is not None]
    if ends:
        assert ends[-1].finish_reason is not None
        return Completion(request_id, token_ids, ends[-1].finish_reason, ends[-1].error)
    if was_aborted:
        return Completion(request_id, token_ids, FinishReason.ABORTED)
    return Completion(
        request_id, token_ids, FinishReason.ERROR, "its events never named a finish reason"
    )
