"""A simulated engine on a simulated clock: every figure is the one that queueing arithmetic gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from batchproof.api import Request
from batchproof.bench.arrivals import AT_ONCE, Arrivals
from batchproof.bench.drive import Round
from batchproof.bench.metrics import measure
from tests.selftest.bench.simulated import (
    STEP_S,
    Clock,
    Expected,
    SimulatedEngine,
    one_slot,
    serve,
    wanted,
)


def require(served: Round, requests: Sequence[Request], times: Expected, slept_s: float = 0.0) -> None:
    found, expected = measure([served], requests), times.figures(requests, slept_s)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-12)
    unknown = set(found) - set(expected) - {"request_goodput", "goodput_share"}
    assert not unknown, "the arithmetic gives every figure"


@pytest.mark.parametrize("gap_s", [STEP_S / 4, 3 * STEP_S, 8 * STEP_S], ids=["rush", "busy", "idle"])
def test_regular_arrivals_at_one_slot(clock: Clock, gap_s: float) -> None:
    """D/D/1: a request takes 4 steps, so that the queue grows, grows slowly, or is always empty."""
    requests = wanted(32, cap=4)
    arrivals = tuple(n * gap_s for n in range(32))
    served = serve(SimulatedEngine(clock, slots=1), requests, Arrivals(arrivals))
    require(served, requests, one_slot(arrivals, requests, lambda _: STEP_S), clock.slept)
    assert clock.slept == 31 * max(0.0, gap_s - 4 * STEP_S)


def test_a_long_step_hides_no_wait_and_is_not_laid_on_the_client(clock: Clock) -> None:
    """Requests fall due while a prompt of one second is fed. A client that counts from when it could
    add them would report a first token after one step."""
    requests = (Request("long", (1,) * 128, 2), *wanted(3, cap=2))
    arrivals = (0.0, 0.25, 0.5, 0.75)
    engine = SimulatedEngine(clock, slots=4, prompt_s=STEP_S)
    served = serve(engine, requests, Arrivals(arrivals))
    first = 129 * STEP_S
    second = first + 4 * STEP_S  # three prompts of one token, and the step itself
    tokens = [[first, second], *[[second, second + STEP_S]] * 3]
    require(served, requests, Expected(arrivals, tokens))
    log = served.client
    assert log is not None
    assert log.submitted_s == (0.0, *[first] * 3)
    assert list(log.own_delays_s()) == [0.0] * 4
    own_beside_a_server = replace(log, is_beside=True).own_delays_s()
    assert list(own_beside_a_server) == [0.0, *(first - due_s for due_s in arrivals[1:])]


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_waves_of_equal_requests(clock: Clock, slots: int) -> None:
    """All at once over several slots: wave after wave, each of `cap` steps."""
    requests = wanted(12, cap=5)
    served = serve(SimulatedEngine(clock, slots), requests, AT_ONCE)
    tokens = [[(5 * (n // slots) + k + 1) * STEP_S for k in range(5)] for n in range(12)]
    require(served, requests, Expected([0.0] * 12, tokens))


def test_a_call_of_generate_has_throughput_alone(clock: Clock) -> None:
    requests = wanted(12, cap=5)
    served = serve(SimulatedEngine(clock, 3), requests, AT_ONCE, wave_of=1)
    found = measure([served], requests)
    assert served.wall_s == 4 * 5 * STEP_S
    assert found["output_throughput"] == 60 / (20 * STEP_S)
    assert found["mean_ttft_ms"] is None
