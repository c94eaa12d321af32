"""One round: a workload served by an engine, timed by the client's clocks.

A stepping engine is driven as a server drives it: requests are added when they are due, and every token
is stamped when its event arrives. Any other engine gets one call of `generate`, so only the whole round
has a time. What an engine creates lazily is created inside the round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter, itemgetter
from time import perf_counter, sleep
from typing import Any, cast

import torch

from batchproof.api import (
    Completion,
    Engine,
    Request,
    SteppingEngine,
    TokenEvent,
)
from batchproof.bench.processes import CpuMeter
from batchproof.checks.broken import broken
from batchproof.checks.contract_types import checked_completions, checked_events
from batchproof.findings.finding import Rule
from batchproof.run.devices import synchronise
from batchproof.run.time_limit import time_limit
from batchproof.workload.workloads import assemble

Stamped = tuple[float, Any]  # seconds since the round began, and a TokenEvent
ReadStep = tuple[float, list[tuple[Any, ...]]]  # the same, and the events of a step as they were read
# In timed code an event is read and no more: making one costs a microsecond, and a step gives hundreds.
_read = attrgetter("request_id", "token_id", "finish_reason", "error")


@dataclass(frozen=True, slots=True)
class Round:
    """The completions of a round and its times in seconds.

    `wall_s` runs from the first request's submission to the last token, with the device synchronised.
    `token_times_s[i]` holds, for request i, the seconds from its arrival to each of its tokens; None
    for an engine that was not stepped. `num_at_once` is the most requests that got a token in one step
    and had one before: they held a slot at the same time.
    """

    completions: tuple[Completion, ...]
    wall_s: float
    process_s: float  # of all threads of this process, and of those it has started
    token_times_s: tuple[tuple[float, ...], ...] | None = None
    num_at_once: int | None = None


def plain(given: object) -> object:
    """Returns a plain copy of a completion; a value of another type is returned as it is, for the
    checks.

    The copy is made before the clock is read, so that a property or a lazy list is evaluated in timed
    code, and cannot change later.
    """
    if isinstance(given, Completion):
        tokens = given.token_ids
        token_ids = tuple(tokens) if isinstance(tokens, tuple | list) else tokens
        return Completion(given.request_id, token_ids, given.finish_reason, given.error)
    return given


def serve_at_once(
    engine: Engine, requests: Sequence[Request], device: torch.device, time_limit_s: float
) -> Round:
    """Makes one call of `generate`. Raises what the engine raises, `EngineHang`, and
    `BrokenPromise`."""
    asked = [
        replace(request) for request in requests
    ]  # ours stay as they are, whatever is done to these
    synchronise(device)
    with time_limit(time_limit_s, "generate"):
        cpu, began = CpuMeter(), perf_counter()
        given = [plain(each) for each in engine.generate(asked)]
        synchronise(device)
        wall_s = perf_counter() - began
        cpu.stop()
    return Round(checked_completions(given), wall_s, cpu.seconds())


def serve_stepping(
    engine: SteppingEngine,
    requests: Sequence[Request],
    arrivals_s: Sequence[float] | None,
    device: torch.device,
    time_limit_s: float,
) -> Round:
    """Adds each request when it is due and steps until all are done.

    Latencies count from the moment a request is due, not from when the client added it, so a long step
    does not hide the wait. Raises as `serve_at_once` does.
    """
    due = list(arrivals_s or [0.0] * len(requests))
    asked = [replace(request) for request in requests]
    synchronise(device)
    with time_limit(time_limit_s, "add and step"):
        cpu, began = CpuMeter(), perf_counter()
        steps = _step_through(engine, asked, due, began)
        synchronise(device)
        wall_s = perf_counter() - began
        cpu.stop()
    process_s = cpu.seconds()
    stamped = [(now, _event(each)) for now, read in steps for each in read]
    return _put_together(requests, due, stamped, wall_s, process_s)


def _step_through(
    engine: SteppingEngine, requests: Sequence[Request], due: Sequence[float], began: float
) -> list[ReadStep]:
    steps: list[ReadStep] = []
    num_added = 0
    while num_added < len(requests) or engine.has_unfinished:
        now = perf_counter() - began
        while num_added < len(requests) and due[num_added] <= now:
            engine.add(requests[num_added])
            num_added += 1
        if not engine.has_unfinished:
            if num_added < len(requests):
                sleep(max(0.0, due[num_added] - now))
            continue
        read = [_read(each) if isinstance(each, TokenEvent) else (each,) for each in engine.step()]
        steps.append((perf_counter() - began, read))
    return steps


def _event(read: tuple[Any, ...]) -> object:
    """Returns the event that was read, and whatever else a step gave as it is, for the checks."""
    return TokenEvent(*read) if len(read) > 1 else read[0]


def _put_together(
    requests: Sequence[Request],
    due: Sequence[float],
    stamped: Sequence[Stamped],
    wall_s: float,
    process_s: float,
) -> Round:
    checked_events([event for _, event in stamped])  # types, before anything is read
    own: dict[str, list[Stamped]] = {request.request_id: [] for request in requests}
    for now, event in stamped:
        if event.request_id not in own:
            raise broken(Rule.STRANGE_EVENT, event.request_id)
        own[event.request_id].append((now, event))
    completions = []
    times = []
    for request, arrival in zip(requests, due, strict=True):
        mine = own[request.request_id]
        completions.append(assemble(request.request_id, [event for _, event in mine]))
        times.append(tuple(now - arrival for now, event in mine if event.token_id is not None))
    return Round(tuple(completions), wall_s, process_s, tuple(times), _most_at_once(stamped))


def _most_at_once(stamped: Sequence[Stamped]) -> int:
    begun: set[str] = set()
    most = 0
    for _, step in groupby(stamped, key=itemgetter(0)):
        given = {event.request_id for _, event in step if event.token_id is not None}
        most = max(most, len(given & begun))
        begun |= given
    return most


def serve(
    engine: Engine,
    requests: Sequence[Request],
    arrivals_s: Sequence[float] | None,
    device: torch.device,
    time_limit_s: float,
    is_stepping: bool,
) -> Round:
    """Serves one round through stepping or `generate`. Raises as `serve_at_once` does."""
    if is_stepping:
        stepping = cast(SteppingEngine, engine)
        return serve_stepping(stepping, requests, arrivals_s, device, time_limit_s)
    assert arrivals_s is None, "requests that arrive over time need an engine that can be stepped"
    return serve_at_once(engine, requests, device, time_limit_s)
