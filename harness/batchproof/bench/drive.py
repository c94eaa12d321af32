"""One round: a workload served by an engine, timed by the client's clocks.

All requests are submitted at the start. A stepping engine is driven as a server drives it, and every
token is stamped when its event arrives. Any other engine gets one call of `generate`, so only the whole
round has a time. What an engine creates lazily is created inside the round.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from time import perf_counter
from typing import Any, cast

import torch

from batchproof.api import Capability, Completion, Engine, Request, SteppingEngine, TokenEvent
from batchproof.bench.hardware import CpuMeter
from batchproof.checks.broken import broken
from batchproof.checks.contract_types import checked_completions, checked_events, event_list
from batchproof.findings.finding import Rule
from batchproof.run.devices import synchronise
from batchproof.run.time_limit import time_limit
from batchproof.workload.workloads import assemble

Stamped = tuple[float, Any]  # seconds since the round began, and a TokenEvent


@dataclass(frozen=True, slots=True)
class Round:
    """The completions of a round and its times in seconds.

    `wall_s` runs from the first request's submission to the last token, with the device synchronised.
    `token_times_s[i]` holds, for request i, the seconds from the start to each of its tokens;
    `num_at_once` is the most requests that got a token in one step and had one before: they held a slot
    at the same time. Both are None for an engine that got one call.
    """

    completions: tuple[Completion, ...]
    wall_s: float
    process_s: float  # of all threads of this process, and of those it has started
    token_times_s: tuple[tuple[float, ...], ...] | None = None
    num_at_once: int | None = None


def serve(
    engine: Engine,
    requests: Sequence[Request],
    device: torch.device,
    time_limit_s: float,
    capabilities: AbstractSet[Capability],
) -> Round:
    """Steps an engine that can be stepped; any other gets one call."""
    if Capability.STEPPING in capabilities:
        return serve_stepping(cast(SteppingEngine, engine), requests, device, time_limit_s)
    return serve_at_once(engine, requests, device, time_limit_s)


def serve_at_once(
    engine: Engine, requests: Sequence[Request], device: torch.device, time_limit_s: float
) -> Round:
    """Makes one call of `generate`. Raises what the engine raises, `EngineHang`, and
    `BrokenPromise`."""
    asked = [replace(each) for each in requests]  # ours stay as they are, whatever is done to these
    synchronise(device)
    with time_limit(time_limit_s, "generate"):
        cpu, began = CpuMeter(), perf_counter()
        given: object = engine.generate(asked)
        if isinstance(given, Iterable):  # or the checks say what it is
            given = [_plain(each) for each in given]
        synchronise(device)
        wall_s = perf_counter() - began
        cpu.stop()
    return Round(checked_completions(given), wall_s, cpu.seconds())


def _plain(given: object) -> object:
    """Copies a completion before the clock is read, so that a property or a lazy list is evaluated in
    timed code and cannot change later. A value of another type is left to the checks."""
    if isinstance(given, Completion):
        tokens = given.token_ids
        token_ids = tuple(tokens) if isinstance(tokens, tuple | list) else tokens
        return Completion(given.request_id, token_ids, given.finish_reason, given.error)
    return given


def serve_stepping(
    engine: SteppingEngine, requests: Sequence[Request], device: torch.device, time_limit_s: float
) -> Round:
    """Adds all requests and steps until all are done. Raises as `serve_at_once` does."""
    asked = [replace(each) for each in requests]
    steps: list[tuple[float, list[object]]] = []
    synchronise(device)
    with time_limit(time_limit_s, "add and step"):
        cpu, began = CpuMeter(), perf_counter()
        for each in asked:
            engine.add(each)
        while engine.has_unfinished:
            read = _read(event_list(engine.step()))
            steps.append((perf_counter() - began, read))
        synchronise(device)
        wall_s = perf_counter() - began
        cpu.stop()
    stamped = [(now, each) for now, read in steps for each in read]
    completions, times = _per_request(requests, stamped)
    return Round(completions, wall_s, cpu.seconds(), times, _most_at_once(stamped))


def _read(given: Sequence[object]) -> list[object]:
    """Returns the events of a step as they will stay.

    A `TokenEvent` is a tuple. Only one of a subclass is looked into: in timed code each look costs a
    third of a microsecond, and a step gives hundreds.
    """
    events = [*given]
    if {*map(type, events)} <= {TokenEvent}:
        return events
    return [
        TokenEvent(e.request_id, e.token_id, e.finish_reason, e.error)
        if isinstance(e, TokenEvent)
        else e
        for e in events
    ]


def _per_request(
    requests: Sequence[Request], stamped: Sequence[Stamped]
) -> tuple[tuple[Completion, ...], tuple[tuple[float, ...], ...]]:
    checked_events([event for _, event in stamped])  # types, before anything is read
    own: dict[str, list[Stamped]] = {request.request_id: [] for request in requests}
    for now, event in stamped:
        if event.request_id not in own:
            raise broken(Rule.STRANGE_EVENT, event.request_id)
        own[event.request_id].append((now, event))
    completions = tuple(assemble(name, [event for _, event in mine]) for name, mine in own.items())
    times = (tuple(now for now, event in mine if event.token_id is not None) for mine in own.values())
    return completions, tuple(times)


def _most_at_once(stamped: Sequence[Stamped]) -> int:
    begun: set[str] = set()
    most = 0
    for _, step in groupby(stamped, key=itemgetter(0)):
        given = {event.request_id for _, event in step if event.token_id is not None}
        most = max(most, len(given & begun))
        begun |= given
    return most
