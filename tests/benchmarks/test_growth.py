"""How the time of an engine's decode step grows with the sequences in it."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from batchproof.plugin.benchmarks import Measured


# An engine without figures fails the test; that nothing was timed is no second defect.
@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")
def test_cost_growth(growth: Measured, benchmark: BenchmarkFixture) -> None:
    """The time that pytest-benchmark keeps is that of the largest point; all are in the result file."""
    growth.report_to(benchmark)
