"""Latency against throughput as the load rises. Run with `pytest --benchmark-only --load=auto`."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from batchproof.plugin.measured import MeasuredLoad


# An engine without figures fails the test; that nothing was timed is no second defect.
@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")
def test_load(load_sweep: MeasuredLoad, benchmark: BenchmarkFixture) -> None:
    """The times that pytest-benchmark keeps are those at the highest load; all loads are in the result
    file. One wrong token at any load leaves no figure at all, and this fails."""
    load_sweep.report_to(benchmark)
