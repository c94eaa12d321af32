"""A client that is too slow says so and makes no claim; what the engine delays is not laid on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from batchproof.api import FinishReason, Request, TokenEvent
from batchproof.bench import drive
from batchproof.bench.arrivals import Arrivals
from batchproof.bench.knee import in_words
from batchproof.bench.load import RATE, Load
from batchproof.bench.load_sweep import point_of
from tests.selftest.bench.simulated import (
    FIXED,
    MIXED,
    STEP_S,
    TERMS,
    Clock,
    SimulatedEngine,
    curve,
    serve,
    served,
)

CAPACITY = 1 / (5 * STEP_S)  # of `MIXED`, in requests per second, if prompts cost nothing


@pytest.mark.parametrize(("steps", "share"), [(1 / 8, 1 / 9), (1 / 64, 1 / 65)])
def test_a_client_that_is_slow_between_steps_makes_no_claim(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, steps: float, share: float
) -> None:
    read = drive._read

    def slowly(events: Sequence[object]) -> list[tuple[Any, ...]]:
        clock.now += steps * STEP_S
        return read(events)

    monkeypatch.setattr(drive, "_read", slowly)
    (point,) = curve(clock, Load.parsed(f"rate:{CAPACITY / 2}"), MIXED)
    assert point["client"]["own_share"] == pytest.approx(share)
    if share < 0.05:
        assert point["saturation"] is None
        return
    assert "its code took 11% of the time (limit 5%)" in point["saturation"]
    assert point["metrics"] is point["spread"] is None
    assert in_words(RATE, [point], None).startswith("no figures at rate 12.8: the load generator")


def test_a_client_that_oversleeps_makes_no_claim(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request finds the engine idle, and waits a quarter of the step for the client."""
    monkeypatch.setattr(drive, "sleep", lambda seconds: clock.sleep(seconds + STEP_S / 4))
    workload = replace(FIXED, num_requests=5, arrival_rate=0.01).realise(50, 64)
    round_ = served(clock, workload)
    assert round_.client is not None
    assert list(round_.client.own_delays_s()) == pytest.approx([0.0, *[STEP_S / 4] * 4])
    saturation = point_of([round_], workload, TERMS)["saturation"]
    assert "its own delays are 17% of the times to first token" in saturation  # 1 / 6


@dataclass
class SimulatedServer:
    """Answers each request `SERVICE_S` after it came, however many there are."""

    clock: Clock
    ends: dict[str, float]

    @property
    def has_unfinished(self) -> bool:
        return bool(self.ends)

    def add(self, request: Request) -> None:
        self.ends[request.request_id] = self.clock.now + 0.5

    def step(self) -> list[TokenEvent]:
        return self.step_within(60.0)

    def step_within(self, seconds: float) -> list[TokenEvent]:
        self.clock.now = min(self.clock.now + seconds, *self.ends.values())
        ended = [name for name, end in self.ends.items() if end <= self.clock.now]
        for name in ended:
            del self.ends[name]
        return [TokenEvent(name, 7, FinishReason.LENGTH) for name in ended]


def test_a_server_gets_each_request_when_it_is_due(clock: Clock) -> None:
    """Waiting for a token of one request delays no other: without `step_within` the second would be
    sent when the first has ended."""
    requests = tuple(Request(f"r{n}", (1,), 1) for n in range(3))
    came = Arrivals((0.0, 0.25, 0.375))
    served = serve(SimulatedServer(clock, {}), requests, came)
    assert served.client is not None
    assert served.client.submitted_s == came.due_s
    assert served.token_times_s == ((0.5,),) * 3


def test_an_engine_that_forgets_a_request_ends_a_closed_loop(clock: Clock) -> None:
    class Forgetful(SimulatedEngine):
        def step(self) -> list[TokenEvent]:
            return [each for each in super().step() if each.request_id != "r1"]

    workload = replace(MIXED, concurrency=1, num_requests=3).realise(50, 64)
    reasons = [each.finish_reason for each in served(clock, workload, kind=Forgetful).completions]
    assert reasons == [FinishReason.LENGTH, FinishReason.ERROR, FinishReason.ERROR]
