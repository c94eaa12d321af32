"""How the time of a step grows: the fit finds what is there, what both calls share cancels, and a wrong
answer leaves no figure."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from batchproof.api import Engine, Request, TracingEngine
from batchproof.bench import growth
from batchproof.bench.drive import Round
from batchproof.bench.growth import Point, PowerLaw, measure_growth
from batchproof.requirements.promises import Promise
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import resolve_engine
from batchproof.run.trial import Trial

MODEL = "gpt2-random"
SIZES = [1, 2, 4, 8, 16, 32, 64]
POINTS = [Point(num, prompt_len=8, num_steps=4) for num in (1, 2, 4)]
Measure = Callable[..., list[dict[str, Any]]]


def test_a_power_is_found_with_no_spread() -> None:
    exponent = 0.5
    found = PowerLaw.fit([(x, 0.1 * x**exponent) for x in SIZES])
    assert found is not None
    assert (found.low, found.exponent, found.high) == pytest.approx((exponent,) * 3)
    assert (found.smallest, found.largest) == (8, 64), "of the upper half"
    assert PowerLaw.fit([(1, 0.1), (2, 0.2)]) is None


@pytest.fixture(scope="module")
def lab() -> Laboratory:
    return Laboratory(torch.device("cpu"), torch.float32, 60.0)


@pytest.mark.parametrize(("num_sequences", "prompt_len"), [(1, 8), (9, 240)])
def test_two_calls_differ_by_steps_in_which_all_sequences_decode(
    lab: Laboratory, num_sequences: int, prompt_len: int
) -> None:
    """Also where the prompts together exceed the usual budget of a step."""
    point = Point(num_sequences, prompt_len, num_steps=8)
    subject = lab.subject(MODEL)

    def full_steps(cap: int) -> list[int]:
        engine = resolve_engine("ragged").factory(subject.model, point.config)
        engine.generate(point.requests(cap, "", subject.vocab_size))
        assert isinstance(engine, TracingEngine)
        steps = [each.rows for each in engine.trace if all(row.query_len == 1 for row in each.rows)]
        assert all(len(rows) == num_sequences for rows in steps)
        return [rows[0].context_len for rows in steps]

    short, long = map(full_steps, point.caps)
    assert (short, long) == ([], list(range(prompt_len, prompt_len + 8)))
    asked = [point.requests(cap, f"salt {lap}", 4096) for cap in point.caps for lap in range(3)]
    prompts = [request.prompt_token_ids for requests in asked for request in requests]
    assert len(set(prompts)) == len(prompts), "no two calls share a prompt"


def served_steadily(engine: Engine, requests: Sequence[Request], *_: object) -> Round:
    """In place of the clock: 5 s for a call and 0.25 s for each token."""
    seconds = 5.0 + 0.25 * len(requests) * requests[0].max_new_tokens
    return Round(tuple(engine.generate(requests)), seconds, seconds)


@pytest.fixture
def measure(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Times are made up, so that no noise hides a point."""

    def run(
        *engines: str, budget_s: float = 1e6, on_step: Callable[[str], None] = lambda _: None
    ) -> list[dict[str, Any]]:
        monkeypatch.setattr(growth, "serve_at_once", served_steadily)
        specs = map(resolve_engine, engines)
        trials = [Trial(lab, each, lab.oracle(MODEL), frozenset(), Promise.P1) for each in specs]
        return measure_growth(trials, budget_s, 60.0, on_step, POINTS)

    return run


def test_what_both_calls_have_in_common_cancels(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "NUM_LAPS", 2)
    labels: list[str] = []
    found = measure("static", "ragged", on_step=labels.append)
    assert len(labels) == 2 * 2 * len(POINTS)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    for entry in found:
        assert entry["verdict"] == "VALID"
        for point, size in zip(entry["points"], (1, 2, 4), strict=True):
            assert point["x"] == size
            assert point["low"] == point["seconds"] == point["high"] == pytest.approx(0.25 * size)
            assert point["num_laps"] == 2
        assert entry["fit"]["exponent"] == pytest.approx(1)
        assert (
            entry["words"] == "grows as n^1.00 [1.00, 1.00] between 1 and 4 sequences; 4 cost 4 times 1"
        )


def test_an_engine_that_answers_wrong_is_invalid_and_shows_no_figure(measure: Measure) -> None:
    (entry,) = measure("static", budget_s=0.0)
    assert (entry["verdict"], entry["points"], entry["fit"]) == ("VALID", [], None)
    assert entry["words"].startswith("too few points to fit a growth: 0; give more seconds")
    right, wrong = measure("static", "fault:mask_ignores_sequence")
    assert (wrong["verdict"], wrong["points"], wrong["fit"]) == ("INVALID", [], None)
    assert "is broken" in wrong["reason"]
    assert wrong["words"] == f"INVALID: {wrong['reason']}"
    assert right["verdict"] == "VALID"
    assert right["points"]
