"""The figures are those that vLLM's names stand for, and what is not known is never 0."""

from __future__ import annotations

from itertools import accumulate

import pytest

from batchproof.api import Completion, FinishReason, Request
from batchproof.bench.drive import Round
from batchproof.bench.metrics import measure
from batchproof.bench.spec import BenchSpec
from batchproof.bench.spec_files import BENCHMARKS_DIR, load_specs

DECODE = load_specs(BENCHMARKS_DIR / "decode", on_cpu=False)

REQUESTS = (Request("a", (1, 2, 3), 3), Request("b", (4,), 1))
COMPLETIONS = (
    Completion("a", (7, 8, 9), FinishReason.LENGTH),
    Completion("b", (5,), FinishReason.LENGTH),
)


def _round(wall_s: float, times: tuple[tuple[float, ...], ...] | None) -> Round:
    return Round(COMPLETIONS, wall_s, wall_s / 2, times)


def test_throughputs_are_those_of_the_median_round() -> None:
    figures = measure([_round(s, None) for s in (2.0, 1.0, 10.0)], REQUESTS)
    assert figures["output_throughput"] == pytest.approx(4 / 2)
    assert figures["request_throughput"] == pytest.approx(2 / 2)
    assert figures["total_token_throughput"] == pytest.approx((4 + 4) / 2)
    assert figures["output_tokens_per_process_s"] == pytest.approx(4 / 1)


def test_an_engine_that_shows_no_tokens_has_no_latencies() -> None:
    figures = measure([_round(1.0, None)], REQUESTS)
    missing = [key for key in figures if key.endswith("_ms")]
    assert len(missing) == 4 * 4
    assert all(figures[key] is None for key in missing)


def test_the_median_gap_is_a_decode_step_where_tpot_holds_a_neighbours_prompt() -> None:
    """20 ms a step, and one of 100 ms in which a newcomer's prompt was fed. The workloads of
    `cases/benchmarks/decode` said `tpot`."""
    gaps_s = [0.1, *[0.02] * 9]
    times_s = tuple(accumulate(gaps_s, initial=0.5))
    done = (Completion("a", tuple(range(11)), FinishReason.LENGTH),)
    figures = measure([Round(done, 1.0, 1.0, (times_s,))], [Request("a", (1,), 11)])
    assert figures["median_itl_ms"] == pytest.approx(20)
    assert figures["median_tpot_ms"] == pytest.approx(28)


@pytest.mark.parametrize("spec", DECODE.values(), ids=list(DECODE))
def test_a_decode_workload_names_the_figure_that_is_a_step(spec: BenchSpec) -> None:
    assert "The median itl is the time of a decode step" in " ".join(spec.why.split())
