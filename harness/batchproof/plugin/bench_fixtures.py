"""The values of the fixtures for benchmark tests: one engine's figures, and how pytest-benchmark gets
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from batchproof.bench.reading import INVALID


class ReplayClock:
    """A clock that returns recorded times.

    As a benchmark's `timer` it lets pytest-benchmark store times of rounds that ran interleaved with
    other engines, which its own loop cannot do.
    """

    def __init__(self) -> None:
        self._readings: Iterator[float] = iter(())

    def load(self, durations_s: Sequence[float]) -> None:
        """Sets the durations of the following rounds, in seconds. Each round reads the clock twice."""
        self._readings = iter([reading for each in durations_s for reading in (0.0, each)])

    def __call__(self) -> float:
        """Returns the next reading in seconds. Raises `AssertionError` beyond the rounds loaded."""
        reading = next(self._readings, None)
        assert reading is not None, "as many rounds are replayed as were loaded"
        return reading


@dataclass(frozen=True)
class ThroughputRow:
    """One engine's row of a comparison."""

    row: Mapping[str, Any]
    comparison: Mapping[str, Any]
    replay: ReplayClock

    @property
    def times_s(self) -> list[float]:
        """Returns the seconds of each lap, by the clock that ratios are computed from."""
        return [each[f"{self.comparison['clock']}_s"] for each in self.row["rounds"]]

    def report_to(self, benchmark: BenchmarkFixture) -> None:
        """Passes the figures to pytest-benchmark. Fails the test if there are none, because the row
        is INVALID or a round took too long.
        """
        if self.row["metrics"] is None:
            pytest.fail(f"{self.row['verdict']}: {self.row['reason']}", pytrace=False)
        _replay(self.replay, self.times_s, benchmark)
        benchmark.extra_info.update(self._extra_info())

    def _extra_info(self) -> dict[str, Any]:
        """The figures flat, in vLLM's names, with what they were measured on."""
        workload, model = self.comparison["workload"], self.comparison["model"]
        about = {
            "engine": self.row["engine"],
            "verdict": self.row["verdict"],
            "workload": workload["name"],
            "workload_hash": workload["hash"],
            "model": model["name"],
            "dtype": model["dtype"],
            "clock": self.comparison["clock"],
        }
        return about | dict(self.row["metrics"])


@dataclass(frozen=True)
class GrowthEntry:
    """How the time of one engine's step grows."""

    entry: Mapping[str, Any]
    replay: ReplayClock

    def report_to(self, benchmark: BenchmarkFixture) -> None:
        """Passes the last point to pytest-benchmark. Fails the test if an answer was wrong; skips, by
        name, an engine that refused the model.
        """
        if self.entry["verdict"] == INVALID:
            pytest.fail(f"INVALID: {self.entry['reason']}", pytrace=False)
        if not self.entry["points"]:
            pytest.skip(self.entry["words"])
        _replay(self.replay, [self.entry["points"][-1]["seconds"]], benchmark)
        benchmark.extra_info.update(self.entry)


def _replay(clock: ReplayClock, times_s: Sequence[float], benchmark: BenchmarkFixture) -> None:
    clock.load(times_s)
    benchmark.pedantic(lambda: None, rounds=len(times_s), iterations=1)
