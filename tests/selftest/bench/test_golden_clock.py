"""A simulated engine on a simulated clock: every figure is the one that queueing arithmetic gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from batchproof.api import Request
from batchproof.bench import drive
from batchproof.bench.arrivals import AT_ONCE, Arrivals
from batchproof.bench.metrics import measure
from batchproof.bench.spec import BenchSpec, Range
from tests.selftest.bench.simulated import (
    CPU,
    STEP_S,
    Clock,
    Expected,
    SimulatedEngine,
    one_slot,
    simulate_time,
    wanted,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return simulate_time(monkeypatch)


def measured(
    engine: SimulatedEngine,
    requests: Sequence[Request],
    arrivals: Sequence[float] | None,
    slo_ms: dict[str, float] | None = None,
) -> dict[str, Any]:
    came = AT_ONCE if arrivals is None else Arrivals(tuple(arrivals))
    served = drive.serve(engine, requests, came, CPU, 60.0, is_stepping=True, num_slots=1)
    return measure([served], requests, slo_ms)


def require(found: dict[str, Any], expected: dict[str, float]) -> None:
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-12)
    unknown = set(found) - set(expected) - {"request_goodput", "goodput_share"}
    assert not unknown, "the arithmetic gives every figure"


@pytest.mark.parametrize("gap_s", [STEP_S / 4, 3 * STEP_S, 8 * STEP_S], ids=["rush", "busy", "idle"])
def test_regular_arrivals_at_one_slot(clock: Clock, gap_s: float) -> None:
    """D/D/1: a request takes 4 steps, so that the queue grows, grows slowly, or is always empty."""
    requests = wanted(32, cap=4)
    arrivals = [n * gap_s for n in range(32)]
    found = measured(SimulatedEngine(clock, slots=1), requests, arrivals)
    expected = one_slot(arrivals, requests, lambda _: STEP_S)
    require(found, expected.figures(requests, clock.slept))
    assert clock.slept == 31 * max(0.0, gap_s - 4 * STEP_S)


def test_random_arrivals_at_one_slot_with_prompts_of_their_own(clock: Clock) -> None:
    """M/G/1: lengths, caps and Poisson arrivals as a workload draws them."""
    caps = ((0.5, Range(1, 3)), (0.5, Range(9, 20)))
    spec = BenchSpec("golden", "why", 64, Range(1, 40), caps, slots=1, arrival_rate=9.0)
    drawn = spec.realise(vocab_size=50, context_len=64)
    assert drawn.arrivals_s is not None
    engine = SimulatedEngine(clock, slots=1, prompt_s=STEP_S / 16)
    found = measured(engine, drawn.requests, drawn.arrivals_s)
    expected = one_slot(
        drawn.arrivals_s, drawn.requests, lambda r: STEP_S * (1 + len(r.prompt_token_ids) / 16)
    )
    require(found, expected.figures(drawn.requests, clock.slept))


def test_a_long_step_hides_no_wait(clock: Clock) -> None:
    """Requests fall due while a prompt of one second is fed. A client that counts from when it could
    add them would report a first token after one step."""
    long, short = Request("long", (1,) * 128, 2), wanted(3, cap=2)
    arrivals = [0.0, 0.25, 0.5, 0.75]
    engine = SimulatedEngine(clock, slots=4, prompt_s=STEP_S)
    found = measured(engine, (long, *short), arrivals)
    first = 129 * STEP_S
    second = first + 4 * STEP_S  # three prompts of one token, and the step itself
    tokens = [[first, second], *[[second, second + STEP_S]] * 3]
    require(found, Expected(arrivals, tokens).figures((long, *short), 0.0))
    assert found["median_ttft_ms"] > 500


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_waves_of_equal_requests(clock: Clock, slots: int) -> None:
    """All at once over several slots: wave after wave, each of `cap` steps."""
    requests = wanted(12, cap=5)
    found = measured(SimulatedEngine(clock, slots), requests, None)
    tokens = [[(5 * (n // slots) + k + 1) * STEP_S for k in range(5)] for n in range(12)]
    require(found, Expected([0.0] * 12, tokens).figures(requests, 0.0))


def test_goodput_is_the_share_that_meets_the_limits(clock: Clock) -> None:
    """Request n of a D/D/1 queue waits n (service - gap); so the first 11 have a token in time."""
    requests = wanted(32, cap=4)
    arrivals = [n * 3 * STEP_S for n in range(32)]
    limit_ms = 1000 * (11 * STEP_S + STEP_S / 2)
    found = measured(SimulatedEngine(clock, slots=1), requests, arrivals, {"ttft": limit_ms})
    assert found["goodput_share"] == 11 / 32
    assert found["request_goodput"] == pytest.approx(11 / (32 * 4 * STEP_S))


def test_a_call_of_generate_has_throughput_alone(clock: Clock) -> None:
    requests = wanted(12, cap=5)
    served = drive.serve(
        SimulatedEngine(clock, 3), requests, AT_ONCE, CPU, 60.0, is_stepping=False, num_slots=1
    )
    found = measure([served], requests)
    assert served.wall_s == 4 * 5 * STEP_S
    assert found["output_throughput"] == 60 / (20 * STEP_S)
    assert found["mean_ttft_ms"] is None


def test_figures_of_a_slower_engine_are_slower(clock: Clock) -> None:
    """Twice the step: every latency doubles, every rate halves."""
    requests = wanted(12, cap=5)
    fast = measured(SimulatedEngine(clock, 3), requests, None)
    slow = measured(SimulatedEngine(clock, 3, step_s=2 * STEP_S), [replace(r) for r in requests], None)
    for name, value in fast.items():
        if value is not None and not name.startswith("num_"):
            assert slow[name] == (2 * value if name.endswith("_ms") else value / 2)
