"""A simulated engine on a simulated clock: every figure is the one that arithmetic gives.

Times are sums of powers of two, so that comparisons are exact.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
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


def expected_figures(
    requests: Sequence[Request], tokens_s: Sequence[Sequence[float]]
) -> dict[str, float]:
    """Every figure by its definition, for the seconds from the start to each request's tokens."""
    wall_s = max(times[-1] for times in tokens_s)
    num_output = sum(map(len, tokens_s))
    num_prompt = sum(len(each.prompt_token_ids) for each in requests)
    found = {
        "request_throughput": len(requests) / wall_s,
        "output_throughput": num_output / wall_s,
        "total_token_throughput": (num_output + num_prompt) / wall_s,
        "output_tokens_per_process_s": num_output / (wall_s / 2),
        "num_output_tokens": num_output,
        "num_prompt_tokens": num_prompt,
    }
    pooled = {
        "ttft": [times[0] for times in tokens_s],
        "e2el": [times[-1] for times in tokens_s],
        "itl": [b - a for times in tokens_s for a, b in pairwise(times)],
        "tpot": [(t[-1] - t[0]) / (len(t) - 1) for t in tokens_s if len(t) > 1],
    }
    for name, values in pooled.items():
        found[f"mean_{name}_ms"] = 1000 * sum(values) / len(values)
        for kind, share in (("median", 0.5), ("p90", 0.9), ("p99", 0.99)):
            found[f"{kind}_{name}_ms"] = 1000 * float(np.quantile(values, share))
    return found


def test_a_long_prompt_delays_the_tokens_of_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = (Request("a", (1,), 2), Request("b", (1,), 2), Request("long", (1,) * 128, 3))
    engine = on_simulated_clock(SimulatedEngine(slots=2, prompt_s=STEP_S), monkeypatch)
    served = serve_stepping(engine, requests, CPU, 60.0)
    last = (3 + 1 + 129) * STEP_S  # two prompts of one token, a decode step, the long prompt
    tokens_s = [[3 * STEP_S, 4 * STEP_S]] * 2 + [[last, last + STEP_S, last + 2 * STEP_S]]
    assert served.num_at_once == 2
    assert measure([served], requests) == pytest.approx(expected_figures(requests, tokens_s), rel=1e-12)


def test_a_figure_is_that_of_the_median_round_and_an_unknown_one_is_never_0() -> None:
    completions = (Completion("a", (7, 8, 9), FinishReason.LENGTH),)
    rounds = [Round(completions, wall_s, wall_s / 2, None) for wall_s in (2.0, 1.0, 10.0)]
    figures = measure(rounds, (Request("a", (1, 2, 3), 3),))
    assert figures["output_throughput"] == 3 / 2
    assert figures["request_throughput"] == 1 / 2
    assert figures["total_token_throughput"] == (3 + 3) / 2
    assert figures["output_tokens_per_process_s"] == 3 / 1
    assert [value for name, value in figures.items() if name.endswith("_ms")] == [None] * 16
