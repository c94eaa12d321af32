"""Growth: the fits find what was put in, a point times the steps it says, and no wrong answer has a
figure."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import Completion, Engine, EngineConfig, Request, StepRecord, TracingEngine
from batchproof.bench import axes as axes_module
from batchproof.bench import growth_runner
from batchproof.bench.axes import (
    Axis,
    context_axis,
    decode_point,
    prompt_axis,
    requests_axis,
    sequences_axis,
)
from batchproof.bench.drive import Round, serve_at_once
from batchproof.bench.fits import (
    AffineCost,
    PowerLaw,
    better_line,
    describe,
    duration,
    fit_growth,
    upper_half,
)
from batchproof.bench.growth import GrowthBudget, GrowthEngine, measure_growth, num_pieces
from batchproof.bench.growth_runner import GrowthRunner
from batchproof.errors import UnsupportedModelError
from batchproof.models.catalogue import ModelUnderTest
from batchproof.requirements.promises import Promise
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import EngineSpec, resolve_engine
from batchproof.run.trial import Trial

MODEL = "gpt2-random"
SIZES = [1, 2, 4, 8, 16, 32, 64]
factors = st.floats(1e-6, 1e2)
Measure = Callable[..., list[dict[str, Any]]]


# ---- the fits ----------------------------------------------------------------------------------


@given(factors, st.floats(-1, 3))
def test_a_power_is_found_with_no_spread(factor: float, exponent: float) -> None:
    found = fit_growth([(x, factor * x**exponent) for x in SIZES])
    assert found is not None
    assert found.exponent == pytest.approx(exponent, abs=1e-6)
    assert found.high - found.low == pytest.approx(0, abs=1e-5)
    assert found(5) == pytest.approx(factor * 5**exponent, rel=1e-5)
    assert (found.smallest, found.largest) == (8, 64)


@given(factors, factors)
def test_a_line_is_found_and_said_where_both_parts_of_it_show(fixed_s: float, share: float) -> None:
    per_unit_s = fixed_s * min(max(share, 0.02), 1.0)
    samples = [(x, fixed_s + per_unit_s * x) for x in SIZES]
    found = better_line(samples)
    assert found is not None
    assert found.fixed_s == pytest.approx(fixed_s, rel=1e-6)
    assert found.per_unit_s == pytest.approx(per_unit_s, rel=1e-6)


@given(factors, st.floats(1.2, 3))
def test_no_line_is_claimed_where_a_power_is_the_better_description(
    factor: float, exponent: float
) -> None:
    assert better_line([(x, factor * x**exponent) for x in SIZES]) is None


@given(st.lists(st.floats(1e-5, 1e2), min_size=7, max_size=7), st.floats(1e-3, 1e3))
def test_the_exponent_does_not_depend_on_the_unit_of_time(times: list[float], factor: float) -> None:
    found = fit_growth(list(zip(SIZES, times, strict=True)))
    scaled = fit_growth([(x, t * factor) for x, t in zip(SIZES, times, strict=True)])
    assert found is not None
    assert scaled is not None
    assert scaled.exponent == pytest.approx(found.exponent, abs=1e-6)
    assert found.low - 1e-9 <= found.exponent <= found.high + 1e-9
    assert scaled.high == pytest.approx(found.high, rel=1e-6, abs=1e-6)


@given(st.lists(st.floats(-0.5, 0.5), min_size=7, max_size=7))
def test_the_interval_is_as_wide_as_the_points_are_apart(noise: list[float]) -> None:
    narrow, wide = (
        PowerLaw.fit([(x, x**0.8 * math.exp(k * e)) for x, e in zip(SIZES, noise, strict=True)])
        for k in (1, 4)
    )
    assert narrow is not None
    assert wide is not None
    assert wide.high - wide.low == pytest.approx(4 * (narrow.high - narrow.low), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("num_points", [0, 1, 2])
def test_too_few_points_have_no_exponent(num_points: int) -> None:
    samples = [(x, 0.1 * x) for x in SIZES[:num_points]]
    assert fit_growth(samples) is None
    assert AffineCost.fit(samples) is None
    assert "grows" not in describe(samples, "token", "tokens")


def test_the_upper_half_is_that_of_the_logarithm_and_has_three_points_at_least() -> None:
    assert [x for x, _ in upper_half([(x, 1.0) for x in SIZES])] == [8, 16, 32, 64]
    assert [x for x, _ in upper_half([(x, 1.0) for x in (64, 256, 1024, 4096)])] == [256, 1024, 4096]


def test_the_words_name_range_interval_ratio_and_line() -> None:
    words = describe([(x, 0.002 + 0.0001 * x) for x in SIZES], "sequence", "sequences")
    assert words.startswith("grows as n^0.")
    assert "between 8 and 64 sequences; 64 sequences cost 4 times one; " in words
    assert words.endswith("2 ms + 100 µs per sequence describes all points within 0%")


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.0, "2 s"), (0.00182, "1.82 ms"), (3.1e-7, "0.31 µs"), (0.0, "0 µs")]
)
def test_a_duration_is_told_in_the_unit_that_suits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# ---- the points --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lab() -> Laboratory:
    return Laboratory(torch.device("cpu"), torch.float32, 60.0)


@pytest.mark.parametrize("budget", [2048, 32])
@pytest.mark.parametrize(("num_sequences", "context", "num_steps"), [(1, 24, 8), (4, 40, 16)])
def test_two_calls_differ_by_the_steps_they_should_with_all_sequences_in_flight(
    lab: Laboratory,
    monkeypatch: pytest.MonkeyPatch,
    num_sequences: int,
    context: int,
    num_steps: int,
    budget: int,
) -> None:
    monkeypatch.setattr(axes_module, "NUM_BATCHED_TOKENS", budget)  # 32: prompts are fed in chunks
    point = decode_point(9, num_sequences, context, num_steps)
    subject = lab.subject(MODEL)

    def full_steps(cap: int) -> list[StepRecord]:
        engine = resolve_engine("ragged").factory(subject.model, point.config)
        engine.generate(point.requests(cap, 0, subject.vocab_size))
        assert isinstance(engine, TracingEngine)
        steps = [each for each in engine.trace if all(row.query_len == 1 for row in each.rows)]
        assert max(len(each.rows) for each in engine.trace) == num_sequences
        return [each for each in steps if len(each.rows) == num_sequences]

    short, long = map(full_steps, point.caps)
    assert len(long) - len(short) == num_steps
    contexts = [row.context_len for each in long[len(short) :] for row in each.rows]
    assert sum(contexts) / len(contexts) == pytest.approx(context, abs=1 if budget == 2048 else 3)


def test_no_two_calls_on_the_way_share_a_prompt() -> None:
    point = context_axis([64]).points[0]
    asked = [point.requests(cap, lap, 4096) for cap in point.caps for lap in range(-1, 3)]
    prompts = [request.prompt_token_ids[:8] for requests in asked for request in requests]
    assert len(set(prompts)) == len(prompts)


def test_the_default_axes_reach_what_the_report_shows() -> None:
    sequences, context, prompt, requests = axes_module.default_axes()
    assert [point.num_sequences for point in sequences.points] == SIZES
    assert [point.x for point in context.points] == [2**k for k in range(6, 13)]
    assert [point.prompt_len for point in prompt.points] == [2**k for k in range(6, 13)]
    assert [point.num_sequences for point in requests.points] == [16, 64, 256, 1024]
    assert {point.config.max_num_seqs for point in requests.points} == {16}, "the others wait"
    assert all(point.num_positions <= 8192 for axis in (context, prompt) for point in axis.points)


# ---- the sweep ---------------------------------------------------------------------------------

SMALL = (
    sequences_axis([1, 2, 4], context=12, num_steps=4),
    context_axis([16, 32, 64]),
    prompt_axis([16, 32, 64]),
    requests_axis([4, 8, 16], num_slots=2, cap=2),
)


def made_up(fixed_s: float, per_token_s: float) -> Callable[..., Round]:
    """In place of the clock: what a call takes."""

    def serve(engine: Engine, requests: Sequence[Request], *_: object) -> Round:
        completions = tuple(engine.generate(requests))
        seconds = fixed_s + per_token_s * len(requests) * requests[0].max_new_tokens
        return Round(completions, seconds, seconds)

    return serve


ONE_LAP = GrowthBudget(num_laps=1, axis_s=1e6)
STEADY = made_up(5.0, 0.25)


@pytest.fixture
def measure(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Times are made up, so that no noise hides a point."""

    def run(
        *engines: str | EngineSpec,
        axes: Sequence[Axis] = SMALL[:1],
        budget: GrowthBudget = ONE_LAP,
        serve: Callable[..., Round] = STEADY,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> list[dict[str, Any]]:
        monkeypatch.setattr(growth_runner, "serve_at_once", serve)
        return measure_growth(lab.subject(MODEL), growth_engines(lab, *engines), axes, budget, on_step)

    return run


def growth_engines(lab: Laboratory, *engines: str | EngineSpec) -> list[GrowthEngine]:
    specs = [resolve_engine(each) if isinstance(each, str) else each for each in engines]
    oracle = lab.oracle(MODEL)
    return [GrowthEngine.of(Trial(lab, each, oracle, frozenset(), Promise.P1)) for each in specs]


def test_every_engine_has_an_entry_for_every_axis_and_the_caller_hears_of_each_step(
    lab: Laboratory, measure: Measure
) -> None:
    notes: list[str] = []
    names, budget = ("static", "ragged"), GrowthBudget(num_laps=1)
    found = measure(*names, axes=SMALL, budget=budget, serve=serve_at_once, on_step=notes.append)
    assert [(each["axis"], each["engine"]) for each in found] == [
        (axis, name) for axis in ("sequences", "context", "prompt", "requests") for name in names
    ]
    assert [each["verdict"] for each in found] == ["VALID"] * 8
    assert len(notes) == num_pieces(growth_engines(lab, *names), SMALL, budget)
    assert notes[0] == "growth over sequences at 1: static"
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_on_a_device_the_warm_up_goes_as_far_as_the_longest_timed_call() -> None:
    """It had the shorter cap: contexts that only the longer call reaches were captured, and the pool
    grew for them, while the clock ran. `meta` stands in for a device."""
    calls: list[tuple[tuple[int, int], ...]] = []

    class Noting:
        def generate(self, requests: Sequence[Request]) -> list[Completion]:
            calls.append(tuple((len(r.prompt_token_ids), r.max_new_tokens) for r in requests))
            return []

    subject = SimpleNamespace(
        model=SimpleNamespace(device=torch.device("meta")), context_len=256, vocab_size=256
    )
    engine = GrowthEngine("noting", lambda _: nullcontext(Noting()), lambda *_: None)
    GrowthRunner(engine, cast(ModelUnderTest, subject), 60.0, "salt").run_lap(SMALL[0].points[-1], 0)
    warm_up, *timed = calls
    assert warm_up == max(timed)
    assert len(timed) == 2


def test_what_both_calls_have_in_common_cancels(measure: Measure) -> None:
    (entry,) = measure("static", budget=GrowthBudget(num_laps=3, axis_s=1e6))
    assert [point["x"] for point in entry["points"]] == [1, 2, 4]
    for point in entry["points"]:
        assert point["low"] == point["seconds"] == point["high"] == pytest.approx(0.25 * point["x"])
        assert point["num_laps"] == 3
    assert entry["fit"]["exponent"] == pytest.approx(1)
    assert entry["words"].startswith("grows as n^1.00 [1.00, 1.00] between 1 and 4 sequences; ")


def test_steps_that_noise_hides_are_left_out_in_words(measure: Measure) -> None:
    (entry,) = measure("static", serve=made_up(1.0, 0.0))
    assert (entry["verdict"], entry["points"], entry["fit"]) == ("VALID", [], None)
    assert "1, 2, 4 left out: the noise of the prefill hides the steps" in entry["words"]


def test_a_single_lap_is_said_to_have_no_spread(measure: Measure) -> None:
    (entry,) = measure("static")
    assert entry["words"].endswith("; one lap at 1, 2, 4, so no spread there")


@pytest.mark.parametrize("fault", ["cap_off_by_one", "mask_ignores_sequence"])
def test_an_engine_that_answers_wrong_is_invalid_and_shows_no_figure(
    measure: Measure, fault: str
) -> None:
    wrong, right = measure(f"fault:{fault}", "static")
    assert (wrong["verdict"], wrong["points"], wrong["fit"]) == ("INVALID", [], None)
    assert "is broken" in wrong["reason"]
    assert wrong["words"] == f"INVALID: {wrong['reason']}"
    assert right["verdict"] == "VALID"
    assert right["points"]


def test_a_wrong_answer_is_not_excused_by_a_right_one_of_another_engine(measure: Measure) -> None:
    right, wrong = measure("reference", "fault:mask_ignores_sequence")
    assert (right["verdict"], wrong["verdict"]) == ("VALID", "INVALID")


class Scripted:
    """A static engine that does something else first."""

    def __init__(self, model: Any, config: EngineConfig, act: Callable[[], None]) -> None:
        self._inner = resolve_engine("static").factory(model, config)
        self._act = act

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self._act()
        return self._inner.generate(requests)


def scripted(act: Callable[[], None]) -> EngineSpec:
    return EngineSpec("scripted", lambda model, config: Scripted(model, config, act))


def test_an_engine_that_raises_is_invalid_and_ends_no_other(measure: Measure) -> None:
    def fail() -> None:
        raise MemoryError("no room")

    broken, other = measure(scripted(fail), "static")
    assert broken["reason"] == "the engine raised MemoryError: no room"
    assert other["verdict"] == "VALID"


def test_an_engine_that_refuses_the_model_is_unverified(measure: Measure) -> None:
    def refuse(_model: object, _config: EngineConfig) -> Engine:
        raise UnsupportedModelError("not this one")

    (entry,) = measure(EngineSpec("picky", refuse))
    assert (entry["verdict"], entry["reason"], entry["points"]) == ("UNVERIFIED", "not this one", [])


def test_a_call_that_takes_too_long_ends_the_axis_and_is_not_called_wrong(measure: Measure) -> None:
    spec, budget = scripted(lambda: time.sleep(5)), GrowthBudget(num_laps=2, call_limit_s=0.2)
    (entry,) = measure(spec, budget=budget, serve=serve_at_once)
    assert (entry["verdict"], entry["points"]) == ("VALID", [])
    assert "1 and beyond left out: generate did not return within 0.2 s" in entry["words"]


def test_a_spent_budget_leaves_points_out_in_words_but_never_the_first(measure: Measure) -> None:
    (entry,) = measure("static", budget=GrowthBudget(num_laps=2, axis_s=0.0))
    assert [(point["x"], point["num_laps"]) for point in entry["points"]] == [(1, 1)]
    assert "2 and beyond left out: a lap would take about 12" in entry["words"]


def test_an_engine_that_fits_into_the_budget_goes_on_without_one_that_does_not(
    measure: Measure,
) -> None:
    def serve(engine: Engine, requests: Sequence[Request], *rest: object) -> Round:
        is_slow = type(engine).__name__ == "ReferenceEngine"
        return made_up(1e5 if is_slow else 0.5, 0.25)(engine, requests, *rest)

    slow, quick = measure("reference", "static", serve=serve, budget=GrowthBudget(axis_s=1e5))
    assert [point["x"] for point in slow["points"]] == [1]
    assert [point["x"] for point in quick["points"]] == [1, 2, 4]


def test_a_context_the_model_does_not_have_is_left_out_in_words(measure: Measure) -> None:
    (entry,) = measure("static", axes=[prompt_axis([64, 128, 256, 512])])
    assert [point["x"] for point in entry["points"]] == [64, 128]
    assert "256 and beyond left out: 257 positions are needed, the model has 256" in entry["words"]


def test_an_answer_that_was_found_right_is_judged_once(lab: Laboratory) -> None:
    judged: list[str] = []
    taking_part = [
        replace(each, judge=lambda *_, name=each.name: judged.append(name))
        for each in growth_engines(lab, "static", "ragged")
    ]
    budget = GrowthBudget(num_laps=1)
    measure_growth(lab.subject(MODEL), taking_part, SMALL[:1], budget, lambda _: None)
    assert judged == ["static"] * 2 * 3
