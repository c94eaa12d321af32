"""A simulated engine on a simulated clock, and the times that queueing arithmetic gives for it.

Times are sums of powers of two, so that most comparisons are exact. The arithmetic knows nothing of
steps, events or clients: it is Lindley's recursion (Lindley 1952, "The theory of queues with a single
server") for one slot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import torch

from batchproof.api import Completion, FinishReason, Request, TokenEvent
from batchproof.bench import drive
from batchproof.bench.arrivals import Arrivals
from batchproof.bench.knee import judge_points
from batchproof.bench.load import Load
from batchproof.bench.load_sweep import point_of
from batchproof.bench.result_rows import Terms
from batchproof.bench.spec import BenchSpec, BenchWorkload, Range

STEP_S = 2.0**-7  # of a decode step
CPU = torch.device("cpu")
TERMS = Terms(num_laps=1, clock="wall")
ONE = ((1.0, Range(1, 1)),)
FIXED = BenchSpec("fixed", "why", 2000, Range(1, 1), ONE, slots=1)  # M/D/1 with Poisson arrivals
MIXED = BenchSpec("mixed", "why", 48, Range(1, 40), ((1.0, Range(1, 9)),), slots=1)


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
    """Serves the queue in order. A step takes `STEP_S`, and `prompt_s` more for each prompt token it
    feeds; every running request has a token at its end."""

    clock: Clock
    slots: int
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
        self.clock.now += STEP_S + fed * self.prompt_s
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
        self.own_s = clock.now - clock.slept

    def stop(self) -> None:
        self.own_s = self.clock.now - self.clock.slept - self.own_s

    def seconds(self) -> float:
        return self.own_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the client is put on."""
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


def serve(
    engine: Any, requests: Sequence[Request], came: Arrivals, wave_of: int | None = None
) -> drive.Round:
    """`wave_of`: the most requests of a call of `generate`; None: the engine is stepped."""
    is_stepping = wave_of is None
    return drive.serve(engine, requests, came, CPU, 60.0, is_stepping, num_slots=wave_of or 1)


def served(
    clock: Clock,
    workload: BenchWorkload,
    prompt_s: float = 0.0,
    kind: type[SimulatedEngine] = SimulatedEngine,
) -> drive.Round:
    """The clock starts anew, so that no digit is lost to the rounds before."""
    clock.now = clock.slept = 0.0
    engine = kind(clock, workload.config.max_num_seqs, prompt_s)
    return serve(engine, workload.requests, workload.arrivals)


def curve(
    clock: Clock, load: Load, spec: BenchSpec, kind: type[SimulatedEngine] = SimulatedEngine
) -> list[dict[str, Any]]:
    workloads = [each.realise(50, 64) for each in load.specs(spec)]
    found = [point_of([served(clock, each, kind=kind)], each, TERMS) for each in workloads]
    points = [{"load": value} | point for value, point in zip(load.values, found, strict=True)]
    judge_points(points)
    return points
