"""A scripted engine on a clock of its own: every figure is the one that arithmetic gives.

Times are sums of powers of two, so that comparisons are exact.
"""

from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from batchproof.api import Completion, FinishReason, Request, TokenEvent
from batchproof.bench import drive
from batchproof.bench.drive import Round, serve_stepping
from batchproof.bench.metrics import measure

STEP_S = 2.0**-7  # of a decode step


@dataclass
class ScriptedEngine:
    """Serves by a script, on its own clock: how many `STEP_S` each step takes, and which requests have
    a token at its end, the last one in capitals."""

    script: deque[tuple[int, str]]
    now: float = 0.0

    def add(self, request: Request) -> None:
        """Knows it already."""

    @property
    def has_unfinished(self) -> bool:
        return bool(self.script)

    def step(self) -> list[TokenEvent]:
        num_steps, names = self.script.popleft()
        self.now += num_steps * STEP_S
        ends = {True: FinishReason.LENGTH, False: None}
        return [TokenEvent(each.lower(), 7, ends[each.isupper()]) for each in names]


def test_a_long_prompt_delays_the_tokens_of_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prompts of one token, a decode step, the long prompt, two more steps."""
    requests = (Request("a", (1,), 2), Request("b", (1,), 2), Request("c", (1,) * 128, 3))
    engine: Any = ScriptedEngine(deque([(3, "ab"), (1, "AB"), (129, "c"), (1, "c"), (1, "C")]))
    meter = SimpleNamespace(stop=lambda: None, seconds=lambda: engine.now / 2)
    monkeypatch.setattr(drive, "perf_counter", lambda: engine.now)
    monkeypatch.setattr(drive, "CpuMeter", lambda: meter)
    served = serve_stepping(engine, requests, torch.device("cpu"), 60.0)
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
