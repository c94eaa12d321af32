"""A simulated engine on a simulated clock: every figure is the one that arithmetic gives.

Times are sums of powers of two, so that comparisons are exact.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from batchproof.api import Completion, FinishReason, Request, TokenEvent
from batchproof.bench import drive
from batchproof.bench.drive import Round, serve_stepping
from batchproof.bench.metrics import measure

STEP_S = 2.0**-7  # of a decode step
CPU = torch.device("cpu")


@dataclass
class SimulatedEngine:
    """Serves the queue in order. A step takes `STEP_S`, and `prompt_s` more for each prompt token it
    feeds; every running request has a token at its end."""

    slots: int
    prompt_s: float = 0.0
    now: float = 0.0
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
        num_fed = 0
        while self.waiting and len(self.running) < self.slots:
            request = self.waiting.popleft()
            num_fed += len(request.prompt_token_ids)
            self.running[request.request_id] = (request, 0)
        self.now += STEP_S + num_fed * self.prompt_s
        return list(self._events())

    def _events(self) -> Iterator[TokenEvent]:
        for request, num_before in list(self.running.values()):
            is_last = num_before + 1 == request.max_new_tokens
            self.running[request.request_id] = (request, num_before + 1)
            if is_last:
                del self.running[request.request_id]
            yield TokenEvent(request.request_id, 7, FinishReason.LENGTH if is_last else None)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        raise NotImplementedError


def on_simulated_clock(engine: SimulatedEngine, monkeypatch: pytest.MonkeyPatch) -> SimulatedEngine:
    """Puts the client on the clock of the engine."""
    meter = SimpleNamespace(stop=lambda: None, seconds=lambda: engine.now / 2)
    monkeypatch.setattr(drive, "perf_counter", lambda: engine.now)
    monkeypatch.setattr(drive, "CpuMeter", lambda: meter)
    return engine


def test_a_long_prompt_delays_the_tokens_of_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prompts of one token, a decode step, the long prompt, two more steps: 3 + 1 + 129 + 2."""
    requests = (Request("a", (1,), 2), Request("b", (1,), 2), Request("long", (1,) * 128, 3))
    engine = on_simulated_clock(SimulatedEngine(slots=2, prompt_s=STEP_S), monkeypatch)
    served = serve_stepping(engine, requests, CPU, 60.0)
    assert served.num_at_once == 2
    wall_s = 135 * STEP_S
    expected = {
        "request_throughput": 3 / wall_s,
        "output_throughput": 7 / wall_s,
        "total_token_throughput": (7 + 130) / wall_s,
        "output_tokens_per_process_s": 7 / (wall_s / 2),
        "num_output_tokens": 7,
        "num_prompt_tokens": 130,
    }
    in_steps = {  # mean, median, and quantiles between the last two of three
        "ttft": ((3 + 3 + 133) / 3, 3, 3 + 0.8 * 130, 3 + 0.98 * 130),
        "e2el": ((4 + 4 + 135) / 3, 4, 4 + 0.8 * 131, 4 + 0.98 * 131),
        "itl": (1, 1, 1, 1),
        "tpot": (1, 1, 1, 1),
    }
    for name, values in in_steps.items():
        for kind, value in zip(("mean", "median", "p90", "p99"), values, strict=True):
            expected[f"{kind}_{name}_ms"] = 1000 * STEP_S * value
    assert measure([served], requests) == pytest.approx(expected, rel=1e-12)


def test_a_figure_is_that_of_the_median_round_and_an_unknown_one_is_never_0() -> None:
    completions = (Completion("a", (7, 8, 9), FinishReason.LENGTH),)
    rounds = [Round(completions, wall_s, wall_s / 2, None) for wall_s in (2.0, 1.0, 10.0)]
    figures = measure(rounds, (Request("a", (1, 2, 3), 3),))
    assert figures["output_throughput"] == 3 / 2
    assert figures["request_throughput"] == 1 / 2
    assert figures["total_token_throughput"] == (3 + 3) / 2
    assert figures["output_tokens_per_process_s"] == 3 / 1
    assert [value for name, value in figures.items() if name.endswith("_ms")] == [None] * 16
