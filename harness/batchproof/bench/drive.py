"""One round: a workload served by an engine, timed by the client's clocks.

A stepping engine is driven as a server drives it: requests are added when they are due, and every token
is stamped when its event arrives. Any other engine gets one call of `generate`, so only the whole round
has a time; where requests come over time it is served in waves (`waves.py`). What an engine creates
lazily is created inside the round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter, itemgetter
from time import perf_counter, sleep
from typing import Any, cast

import torch

from batchproof.api import Completion, Engine, Request, SteppingEngine, TokenEvent
from batchproof.bench.arrivals import Arrivals
from batchproof.bench.client import ClientLog
from batchproof.bench.processes import CpuMeter
from batchproof.bench.waves import Waves
from batchproof.checks.broken import broken
from batchproof.checks.contract_types import checked_completions, checked_events, event_list
from batchproof.findings.finding import Rule
from batchproof.run.devices import synchronise
from batchproof.run.time_limit import time_limit
from batchproof.workload.workloads import assemble

Stamped = tuple[float, Any]  # seconds since the round began, and a TokenEvent
ReadStep = tuple[float, list[tuple[Any, ...]]]  # the same, and the events of a step as they were read
_fields = attrgetter("request_id", "token_id", "finish_reason", "error")


@dataclass(frozen=True, slots=True)
class Round:
    """The completions of a round and its times in seconds.

    `wall_s` runs from the first request's submission to the last token, with the device synchronised.
    `token_times_s[i]` holds, for request i, the seconds from its arrival to each of its tokens;
    `num_at_once` is the most requests that got a token in one step and had one before: they held a slot
    at the same time. These and `client` are None for an engine that got one call. `is_streamed` says
    whether a request's tokens arrive one by one.
    """

    completions: tuple[Completion, ...]
    wall_s: float
    process_s: float  # of all threads of this process, and of those it has started
    token_times_s: tuple[tuple[float, ...], ...] | None = None
    num_at_once: int | None = None
    client: ClientLog | None = None
    is_streamed: bool = True


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
    asked = [replace(each) for each in requests]  # ours stay as they are, whatever is done to these
    synchronise(device)
    with time_limit(time_limit_s, "generate"):
        cpu, began = CpuMeter(), perf_counter()
        given: object = engine.generate(asked)
        if isinstance(given, Iterable):  # or the checks say what it is
            given = [plain(each) for each in given]
        synchronise(device)
        wall_s = perf_counter() - began
        cpu.stop()
    return Round(checked_completions(given), wall_s, cpu.seconds())


def serve_stepping(
    engine: SteppingEngine,
    requests: Sequence[Request],
    arrivals: Arrivals,
    device: torch.device,
    time_limit_s: float,
) -> Round:
    """Adds each request when it is due and steps until all are done.

    Latencies count from the moment a request is due, not from when the client added it, so a long step
    does not hide the wait. In closed loop a request is due when one before it has ended. Raises as
    `serve_at_once` does.
    """
    client = _Client(engine, arrivals, [replace(request) for request in requests])
    synchronise(device)
    with time_limit(time_limit_s, "add and step"):
        cpu, client.began = CpuMeter(), perf_counter()
        client.serve()
        synchronise(device)
        wall_s = perf_counter() - client.began
        cpu.stop()
    stamped = [(now, _event(each)) for now, read in client.steps for each in read]
    return _put_together(requests, client.log(cpu.own_s), stamped, wall_s, cpu.seconds())


class _Client:
    """Steps an engine and notes when it did what; times in seconds since `began`.

    An engine with `step_within(seconds)`, which returns no event if none comes in that time, works
    beside the client, as a server does: it is not waited for beyond the time of the next request.
    """

    def __init__(self, engine: SteppingEngine, arrivals: Arrivals, requests: Sequence[Request]) -> None:
        self.began = 0.0
        self.steps: list[ReadStep] = []
        self._engine = engine
        self._step_within = getattr(engine, "step_within", None)
        self._requests = requests
        self._is_closed = arrivals.concurrency is not None
        self._due = arrivals.known_due_s(len(requests))
        self._submitted: list[float] = []
        self._calls: list[tuple[float, float]] = []
        self._slept_s = 0.0

    def serve(self) -> None:
        """Serves all requests. Returns early in closed loop if an engine forgets a request."""
        engine = self._engine
        while True:
            now = perf_counter() - self.began
            while self._has_next and self._due[len(self._submitted)] <= now:
                self._add()
            called = perf_counter() - self.began
            if engine.has_unfinished:
                self._step(called)
            elif self._has_next:
                sleep(self._due[len(self._submitted)] - now)
                self._slept_s += perf_counter() - self.began - called
            else:
                return

    @property
    def _has_next(self) -> bool:
        """Whether it is known when another request is due."""
        return len(self._submitted) < len(self._due)

    def _add(self) -> None:
        called = perf_counter() - self.began
        self._engine.add(self._requests[len(self._submitted)])
        self._submitted.append(called)
        self._calls.append((called, perf_counter() - self.began))

    def _step(self, called: float) -> None:
        if self._step_within is not None and self._has_next:
            given = self._step_within(max(0.0, self._due[len(self._submitted)] - called))
        else:
            given = self._engine.step()
        events = event_list(given)
        self._calls.append((called, perf_counter() - self.began))
        read = _read(events)
        now = perf_counter() - self.began
        self.steps.append((now, read))
        if self._is_closed:
            num_ended = sum(len(each) > 1 and each[2] is not None for each in read)
            self._due += [now] * min(num_ended, len(self._requests) - len(self._due))

    def log(self, cpu_s: float) -> ClientLog:
        """Returns what was noted. A request that was never due, because an engine forgot one, counts
        as due at the start: it has no token."""
        forgotten = (0.0,) * (len(self._requests) - len(self._due))
        return ClientLog(
            due_s=(*self._due, *forgotten),
            submitted_s=(*self._submitted, *forgotten),
            calls_s=tuple(self._calls),
            slept_s=self._slept_s,
            cpu_s=cpu_s,
            is_beside=self._step_within is not None,
        )


def _read(given: Sequence[object]) -> list[tuple[Any, ...]]:
    """Returns the events of a step as tuples that stay as they are.

    Events are such tuples. Only those of another type are looked into: in timed code each look costs a
    third of a microsecond, and a step gives hundreds.
    """
    events = [*given]
    if {*map(type, events)} <= {TokenEvent}:
        return cast("list[tuple[Any, ...]]", events)
    return [_fields(each) if isinstance(each, TokenEvent) else (each,) for each in events]


def _event(read: tuple[Any, ...]) -> object:
    """Returns the event that was read, and whatever else a step gave as it is, for the checks."""
    return TokenEvent(*read) if len(read) > 1 else read[0]


def _put_together(
    requests: Sequence[Request],
    client: ClientLog,
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
    completions, times = [], []
    for request, arrival in zip(requests, client.due_s, strict=True):
        mine = own[request.request_id]
        completions.append(assemble(request.request_id, [event for _, event in mine]))
        times.append(tuple(now - arrival for now, event in mine if event.token_id is not None))
    return Round(tuple(completions), wall_s, process_s, tuple(times), _most_at_once(stamped), client)


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
    arrivals: Arrivals,
    device: torch.device,
    time_limit_s: float,
    is_stepping: bool,
    num_slots: int,
) -> Round:
    """Serves one round through stepping or `generate`, which has at most `num_slots` requests a call
    if they come over time. Raises as `serve_at_once` does."""
    if is_stepping:
        return serve_stepping(cast(SteppingEngine, engine), requests, arrivals, device, time_limit_s)
    if arrivals.is_at_once:
        return serve_at_once(engine, requests, device, time_limit_s)
    waves = Waves(engine, num_slots)
    served = serve_stepping(waves, requests, arrivals, device, time_limit_s)
    return replace(served, num_at_once=None, is_streamed=False)
