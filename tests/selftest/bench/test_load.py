"""At rising load every figure is that of queueing arithmetic, and the knee is where theory has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from batchproof.api import Request, TokenEvent
from batchproof.bench.knee import in_words, knee_of
from batchproof.bench.load import CONCURRENCY, RATE, SHARES, Load
from batchproof.bench.load_sweep import point_of
from batchproof.bench.result_rows import Terms
from batchproof.bench.spec import Range
from batchproof.bench.spec_files import LOAD_DIR, chosen
from batchproof.errors import UsageError
from tests.selftest.bench.simulated import (
    FIXED,
    MIXED,
    STEP_S,
    TERMS,
    Clock,
    Expected,
    SimulatedEngine,
    curve,
    one_slot,
    serve,
    served,
)


def closed_loop(
    concurrency: int, requests: Sequence[Request], first_s: Callable[[Request], float]
) -> Expected:
    """Request i is due when the one `concurrency` before it has left."""
    arrivals = [0.0] * concurrency
    while len(arrivals) < len(requests):
        so_far = one_slot(arrivals, requests[: len(arrivals)], first_s)
        arrivals.append(so_far.tokens[len(arrivals) - concurrency][-1])
    return one_slot(arrivals, requests, first_s)


@pytest.mark.parametrize(
    "load",
    [
        Load.parsed("rate:5,10,20,40"),
        Load.parsed("rate:5,10,20,40", burstiness=0.25),
        Load.parsed("rate:5,10,20,40", burstiness=4),
        Load.parsed("concurrency:1,3,16"),
    ],
    ids=["poisson", "bursts", "regular", "closed loop"],
)
def test_each_point_has_the_figures_of_lindleys_recursion(clock: Clock, load: Load) -> None:
    def first_s(request: Request) -> float:
        return STEP_S * (1 + len(request.prompt_token_ids) / 16)

    for value, spec in zip(load.values, load.specs(MIXED), strict=True):
        workload = spec.realise(50, 64)
        point = point_of([served(clock, workload, STEP_S / 16)], workload, TERMS)
        requests, due_s = workload.requests, workload.arrivals_s
        if due_s is None:
            expected = closed_loop(int(value), requests, first_s)
        else:
            expected = one_slot(due_s, requests, first_s)
        figures = expected.figures(requests, clock.slept)
        ends = [times[-1] for times in expected.tokens]
        quickest = min(end - due for end, due in zip(ends, expected.arrivals, strict=True))
        came, left = max(expected.arrivals), max(ends) - quickest
        if due_s is None:
            assert point["metrics"]["offered_rate"] is None
        else:
            assert 47 / came == pytest.approx(value, rel=1e-5), "what is asked for is offered"
            figures["offered_rate"] = 47 / came
        figures["achieved_rate"] = min(47, sum(end > quickest for end in ends)) / left
        figures["lag_ms"] = 1000 * (left - came)
        found = {name: point["metrics"][name] for name in figures}
        assert found == pytest.approx(figures, rel=1e-9)
        assert point["client"]["own_share"] == pytest.approx(0, abs=1e-9)
        assert point["client"]["p99_own_delay_ms"] == pytest.approx(0, abs=1e-6)


def test_an_engine_that_cannot_be_stepped_is_given_what_waits_when_it_is_free(clock: Clock) -> None:
    """A wave is all that has come, at most a full batch; it ends with its longest answer."""
    spec = replace(MIXED, slots=4, arrival_rate=20.0)
    workload = spec.realise(50, 64)
    arrivals, longest = workload.arrivals_s, []
    assert arrivals is not None
    ends: list[float] = []
    free = 0.0
    while len(ends) < len(arrivals):
        begin = max(free, arrivals[len(ends)])
        num = sum(arrival <= begin for arrival in arrivals[len(ends) : len(ends) + 4])
        longest.append(max(r.max_new_tokens for r in workload.requests[len(ends) : len(ends) + num]))
        free = begin + longest[-1] * STEP_S
        ends += [free] * num
    assert {1, 4} <= {ends.count(end) for end in ends}, "waves of several sizes"

    engine = SimulatedEngine(clock, slots=4)
    found = serve(engine, workload.requests, workload.arrivals, wave_of=4)
    assert found.process_s == pytest.approx(sum(longest) * STEP_S)
    metrics = point_of([found], workload, TERMS)["metrics"]
    waits = [end - arrival for end, arrival in zip(ends, arrivals, strict=True)]
    for name in ("ttft", "e2el"):
        assert metrics[f"mean_{name}_ms"] == pytest.approx(1000 * fmean(waits))
    assert metrics["mean_tpot_ms"] is metrics["mean_itl_ms"] is None
    begin = arrivals[0] + min(waits)
    after = min(sum(end > begin for end in ends), 47)
    assert metrics["achieved_rate"] == pytest.approx(after / (ends[-1] - begin))


def test_the_knee_of_m_d_1_is_where_power_is_largest(clock: Clock) -> None:
    """Mean time in system: 1 + u / (2 (1 - u)) services (Pollaczek and Khinchine), so that power is
    largest at a utilisation of 2 - sqrt(2) = 0.586; the nearest load measured is 0.6."""
    points = curve(clock, Load(RATE, ()).at(1 / STEP_S), FIXED)
    assert len(points) == len(SHARES)
    for share, point in zip((0.2, 0.4, 0.6), points, strict=False):
        in_system = point["metrics"]["mean_e2el_ms"] / (1000 * STEP_S)
        assert in_system == pytest.approx(1 + share / (2 * (1 - share)), rel=0.05)
    knee = knee_of(points)
    assert knee == pytest.approx(0.6 / STEP_S, rel=1e-3)
    assert [each["keeps_up"] for each in points] == [True] * 6 + [False]
    assert points[-1]["metrics"]["achieved_rate"] == pytest.approx(1 / STEP_S, rel=0.01)
    words = in_words(RATE, points, knee)
    assert f"knee at rate {0.6 / STEP_S:.3g}: " in words
    assert "it may lie beyond" not in words


def test_the_knee_of_a_closed_loop_is_where_the_slots_are_full(clock: Clock) -> None:
    """With n of 4 slots busy throughput is n / service; with more users only latency grows."""
    spec = replace(MIXED, prompt_len=Range(1, 1), cap=((1.0, Range(4, 4)),), slots=4)
    points = curve(clock, Load.parsed("concurrency:1,2,4,8,16"), spec)
    by_users = {point["load"]: point["metrics"] for point in points}
    assert by_users[2]["mean_e2el_ms"] == by_users[4]["mean_e2el_ms"] == 4000 * STEP_S
    assert by_users[4]["output_throughput"] == by_users[8]["output_throughput"] == 4 / STEP_S
    assert by_users[16]["median_e2el_ms"] == 16_000 * STEP_S
    assert knee_of(points) == 4
    assert all(each["keeps_up"] for each in points)


def test_an_engine_that_stalls_at_the_start_achieves_no_more_for_it(clock: Clock) -> None:
    """Its first answer comes a second late, and others in a burst that says nothing of its pace."""

    class Stalled(SimulatedEngine):
        def step(self) -> list[TokenEvent]:
            if not self.running and clock.now < 1:
                clock.now += 1
            return super().step()

    for point in curve(clock, Load.parsed("rate:4,16,64"), replace(MIXED, slots=8), Stalled):
        assert point["metrics"]["achieved_rate"] <= point["metrics"]["offered_rate"]
        assert point["metrics"]["p99_e2el_ms"] > 500


def test_a_round_that_is_too_short_says_so(clock: Clock) -> None:
    """Four requests at 100 a second come in 30 ms, and one takes 8 to 63 ms."""
    spec = replace(MIXED, num_requests=4, slots=4)
    points = curve(clock, Load.parsed("rate:1,10,100"), spec)
    assert [point["keeps_up"] for point in points] == [True, True, None]
    words = in_words(RATE, points, knee_of(points))
    assert "keeps up with rate 10; at rate 100 the round is too short to tell" in words


def test_goodput_is_no_more_than_what_is_achieved(clock: Clock) -> None:
    spec = replace(MIXED, arrival_rate=10.0, num_requests=8)
    workload = spec.realise(50, 64)
    terms = Terms(num_laps=1, clock="wall", slo_ms={"e2el": 1e9})
    metrics = point_of([served(clock, workload)], workload, terms)["metrics"]
    assert metrics["request_goodput"] == metrics["achieved_rate"] <= metrics["offered_rate"]


def test_too_few_points_or_none_that_keeps_up_have_no_knee(clock: Clock) -> None:
    points = curve(clock, Load(RATE, ()).at(1 / STEP_S), replace(FIXED, num_requests=50))
    assert knee_of(points[:2]) is None
    assert knee_of(points[-1:] * 3) is None
    assert in_words(RATE, points[-1:], None) == "falls behind at rate 154"
    assert "(the highest load with figures: it may lie beyond)" in in_words(RATE, points[:3], 76.8)


@pytest.mark.parametrize("burstiness", [0.25, 1, 4])
def test_burstiness_is_the_shape_of_the_gaps(burstiness: float) -> None:
    """vLLM's definition: a coefficient of variation of 1 / sqrt(burstiness), whatever the rate."""
    spec = replace(FIXED, arrival_rate=5.0, burstiness=burstiness, num_requests=4000)
    due_s = spec.realise(50, 64).arrivals_s
    assert due_s is not None
    gaps = [b - a for a, b in pairwise(due_s)]
    assert fmean(gaps) == pytest.approx(1 / 5, rel=1e-6)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(burstiness**-0.5, rel=0.05)
    faster = replace(spec, arrival_rate=10.0).realise(50, 64).arrivals_s
    assert faster == pytest.approx([each / 2 for each in due_s], abs=1e-5)


def test_workloads_without_the_new_fields_keep_their_hashes_and_labels() -> None:
    poisson = replace(MIXED, arrival_rate=5.0)
    drawn, scaled = (replace(poisson, burstiness=b).realise(50, 64).arrivals_s for b in (None, 1.0))
    assert drawn is not None
    assert scaled == pytest.approx([each * 47 / 5 / drawn[-1] for each in drawn], abs=1e-5)
    assert not {"burstiness", "concurrency"} & poisson.as_dict().keys()
    bursts = replace(poisson, burstiness=2.0)
    loops = [replace(MIXED, concurrency=num) for num in (1, 2)]
    assert len({each.realise(50, 64).hash for each in (MIXED, bursts, *loops)}) == 4


@pytest.mark.parametrize(
    ("text", "burstiness", "says"),
    [
        ("rat:2", None, "must be rate:R,... in requests per second, concurrency:N,... or auto"),
        ("rate:", None, "--load is 'rate:', but must be rate:R"),
        ("rate:0,2", None, "--load is 'rate:0,2', but must be rate:R,"),
        ("rate:4,2", None, "with numbers above 0 that rise"),
        ("rate:2,fast", None, "--load is 'rate:2,fast', but must be"),
        ("concurrency:1.5", None, "--load is 'concurrency:1.5', but must be"),
        ("auto", 0, "--burstiness is 0, but must be above 0 and finite"),
        ("concurrency:2", 0.5, "--burstiness is 0.5, but must be left out with --load concurrency"),
    ],
)
def test_what_is_no_load_is_named(text: str, burstiness: float | None, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        Load.parsed(text, burstiness)
    assert says in str(caught.value)


@pytest.mark.parametrize("on_cpu", [True, False])
def test_the_workload_of_load_has_no_arrivals_of_its_own(on_cpu: bool) -> None:
    (spec,) = chosen([str(LOAD_DIR)], on_cpu=on_cpu)
    rated = Load.parsed("auto").at(10.0).specs(spec)
    assert [each.arrival_rate for each in rated] == [10 * share for share in SHARES]
    assert spec.num_requests >= 8 * spec.slots, "a queue can form"


def test_a_workload_that_does_not_fit_the_load_is_named() -> None:
    with pytest.raises(
        UsageError, match="workload 'mixed' has its own arrival_rate: name a --workload"
    ):
        Load.parsed("rate:2").specs(replace(MIXED, arrival_rate=1.0))
    with pytest.raises(UsageError, match="'mixed': concurrency is 99, but must be 1 to 48, the number"):
        Load.parsed("concurrency:2,99").specs(MIXED)
    assert Load(CONCURRENCY, (2,), None).at(5.0).values == (2,)
