"""How fast each engine is, in tokens that were checked. Run with `pytest --benchmark-only`."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from batchproof.plugin.benchmarks import Measured


# An engine without figures fails the test; that nothing was timed is no second defect.
@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")
def test_throughput(throughput: Measured, benchmark: BenchmarkFixture) -> None:
    """All engines of a comparison run interleaved, each lap on prompts of its own. One wrong token,
    length or finish reason makes the row INVALID: then there is no figure, and this fails."""
    throughput.report_to(benchmark)
