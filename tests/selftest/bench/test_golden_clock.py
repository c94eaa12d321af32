"""A simulated engine on a simulated clock: every figure must be the one that queueing arithmetic gives.

Times are sums of powers of two, so that most comparisons are exact. The arithmetic of this file knows
nothing of steps, events or clients: it is Lindley's recursion (Lindley 1952, "The theory of queues with
a single server") for one slot, and waves for several.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from batchproof.api import Completion, FinishReason, Request, TokenEvent
from batchproof.bench import drive
from batchproof.bench.metrics import measure
from batchproof.bench.spec import BenchSpec, Range

STEP_S = 2.0**-7  # of a decode step
CPU = torch.device("cpu")


@dataclass
class Clock:
    """Seconds that pass only when somebody computes or sleeps."""

    now: float = 0.0
    slept: float = 0.0

    def sleep(self, seconds: float) -> None:
        assert seconds > 0, "a client that polls would count its own polls"
        self.now += seconds
        self.slept += seconds


@dataclass
class SimulatedEngine:
    """Serves the queue in order. A step takes `step_s`, and `prompt_s` more for each prompt token it
    feeds; every running request has a token at its end."""

    clock: Clock
    slots: int
    step_s: float = STEP_S
    prompt_s: float = 0.0
    waiting: deque[Request] = field(default_factory=deque)
    running: dict[str, tuple[Request, int]] = field(default_factory=dict)

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def abort(self, request_id: str) -> None:
        raise NotImplementedError

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self) -> list[TokenEvent]:
        fed = 0
        while self.waiting and len(self.running) < self.slots:
            request = self.waiting.popleft()
            fed += len(request.prompt_token_ids)
            self.running[request.request_id] = (request, 0)
        self.clock.now += self.step_s + fed * self.prompt_s
        return list(self._events())

    def _events(self) -> Iterator[TokenEvent]:
        for request, num_before in list(self.running.values()):
            is_last = num_before + 1 == request.max_new_tokens
            self.running[request.request_id] = (request, num_before + 1)
            if is_last:
                del self.running[request.request_id]
            yield TokenEvent(request.request_id, 7, FinishReason.LENGTH if is_last else None)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        for request in requests:
            self.add(request)
        while self.has_unfinished:
            self.step()
        return [
            Completion(each.request_id, (7,) * each.max_new_tokens, FinishReason.LENGTH)
            for each in requests
        ]


class Meter:
    """Measures the time that nobody slept."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.began = clock.now - clock.slept

    def stop(self) -> None:
        self.took = self.clock.now - self.clock.slept - self.began

    def seconds(self) -> float:
        return self.took


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(drive, "perf_counter", lambda: made.now)
    monkeypatch.setattr(drive, "CpuMeter", lambda: Meter(made))
    monkeypatch.setattr(drive, "sleep", made.sleep)
    return made


@dataclass(frozen=True)
class Expected:
    """When each request arrives, and when each of its tokens leaves, in seconds from the beginning."""

    arrivals: Sequence[float]
    tokens: Sequence[Sequence[float]]

    def figures(self, requests: Sequence[Request], slept_s: float) -> dict[str, float]:
        """Returns every figure, by its definition."""
        own = list(zip(self.arrivals, self.tokens, strict=True))
        wall_s = max(times[-1] for times in self.tokens)
        num_output = sum(map(len, self.tokens))
        num_prompt = sum(len(each.prompt_token_ids) for each in requests)
        found = {
            "request_throughput": len(requests) / wall_s,
            "output_throughput": num_output / wall_s,
            "total_token_throughput": (num_output + num_prompt) / wall_s,
            "output_tokens_per_process_s": num_output / (wall_s - slept_s),
            "num_output_tokens": num_output,
            "num_prompt_tokens": num_prompt,
        }
        pooled = {
            "ttft": [times[0] - arrival for arrival, times in own],
            "e2el": [times[-1] - arrival for arrival, times in own],
            "itl": [b - a for times in self.tokens for a, b in pairwise(times)],
            "tpot": [(t[-1] - t[0]) / (len(t) - 1) for t in self.tokens if len(t) > 1],
        }
        for name, values in pooled.items():
            found[f"mean_{name}_ms"] = 1000 * sum(values) / len(values)
            for kind, share in (("median", 0.5), ("p90", 0.9), ("p99", 0.99)):
                found[f"{kind}_{name}_ms"] = 1000 * percentile(values, share)
        return found


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the value at that share of the sorted ones, between two of them by their distance."""
    ranked = sorted(values)
    place = share * (len(ranked) - 1)
    low = int(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (place - low) * (ranked[high] - ranked[low])


def one_slot(
    arrivals: Sequence[float], requests: Sequence[Request], first_s: Callable[[Request], float]
) -> Expected:
    """Returns the times of a queue with one server: a request begins when it has arrived and the one
    before it has left."""
    left, tokens = 0.0, []
    for arrival, request in zip(arrivals, requests, strict=True):
        first = max(arrival, left) + first_s(request)
        tokens.append([first + k * STEP_S for k in range(request.max_new_tokens)])
        left = tokens[-1][-1]
    return Expected(arrivals, tokens)


def wanted(num: int, cap: int, prompt_len: int = 1) -> tuple[Request, ...]:
    return tuple(Request(f"r{n}", (1,) * prompt_len, cap) for n in range(num))


def measured(
    engine: SimulatedEngine,
    requests: Sequence[Request],
    arrivals: Sequence[float] | None,
    slo_ms: dict[str, float] | None = None,
) -> dict[str, Any]:
    served = drive.serve(engine, requests, arrivals, CPU, 60.0, is_stepping=True)
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
    served = drive.serve(SimulatedEngine(clock, 3), requests, None, CPU, 60.0, is_stepping=False)
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
