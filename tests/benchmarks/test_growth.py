"""How an engine's cost grows with sequences in flight, context and prompt."""

from __future__ import annotations

from pytest_benchmark.fixture import BenchmarkFixture

from harness.plugin.measured import MeasuredGrowth


def test_cost_growth(growth: MeasuredGrowth, benchmark: BenchmarkFixture) -> None:
    """The time that pytest-benchmark keeps is that of the largest point; all are in the result file."""
    growth.report_to(benchmark)
