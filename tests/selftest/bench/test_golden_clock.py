"""A simulated engine on a simulated clock: every figure is the one that queueing arithmetic gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from batchproof.api import Request
from batchproof.bench.arrivals import AT_ONCE, Arrivals
from batchproof.bench.metrics import measure
from batchproof.bench.spec import BenchSpec, Range
from tests.selftest.bench.simulated import (
    STEP_S,
    Clock,
    Expected,
    SimulatedEngine,
    one_slot,
    serve,
    wanted,
)


def measured(
    engine: SimulatedEngine, requests: Sequence[Request], arrivals: Sequence[float] | None
) -> dict[str, Any]:
    came = AT_ONCE if arrivals is None else Arrivals(tuple(arrivals))
    return measure([serve(engine, requests, came)], requests)


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


def test_a_call_of_generate_has_throughput_alone(clock: Clock) -> None:
    requests = wanted(12, cap=5)
    served = serve(SimulatedEngine(clock, 3), requests, AT_ONCE, wave_of=1)
    found = measure([served], requests)
    assert served.wall_s == 4 * 5 * STEP_S
    assert found["output_throughput"] == 60 / (20 * STEP_S)
    assert found["mean_ttft_ms"] is None
