"""How much faster one engine is than another, with an interval that says how sure that is.

A ratio without an interval hides whether it differs from 1, and two intervals on times say little about
their ratio; so the ratio itself gets the interval (T. Kalibera and R. Jones, "Rigorous benchmarking in
reasonable time", ISMM 2013). Ratios are compared on a log scale: the ratio is the geometric mean over
the laps, and its interval is Student's t interval (Welch's for two separate runs) of the mean log.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from batchproof.statistics import Estimate, difference_estimate, mean_estimate


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of throughputs: above 1, the first engine named is faster. `low` and `high` bound it with
    95 % confidence; both are None for a single lap, which has no spread."""

    ratio: float
    low: float | None
    high: float | None
    num_laps: int

    @property
    def is_different(self) -> bool:
        """Whether 1 lies outside the interval; False where there is no interval."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    def figures(self) -> str:
        """Returns the ratio and its interval, as `1.83x [1.79, 1.88]`."""
        if self.low is None or self.high is None:
            return f"{self.ratio:.2f}x (one lap: no interval)"
        ends = self.low, self.high
        digits = 2  # more where a rounded end would touch the 1 that the interval excludes
        while self.is_different and digits < 6 and 1 in (round(each, digits) for each in ends):
            digits += 1
        low, high = (f"{each:.{digits}f}" for each in ends)
        return f"{self.ratio:.{digits}f}x [{low}, {high}]"

    def words(self, engine: str, over: str) -> str:
        """Returns `ragged over static 1.83x [1.79, 1.88]`, or says that no difference is shown."""
        if self.is_different or self.low is None:
            return f"{engine} over {over} {self.figures()}"
        return f"{engine} over {over}: no difference shown, {self.figures()}"

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        """Returns the ratio that a result file holds."""
        return cls(entry["ratio"], entry["low"], entry["high"], entry["num_laps"])


def paired_ratio(times: Sequence[float], times_over: Sequence[float]) -> Ratio:
    """Returns the throughput of the engine that took `times`, over that of the other.

    `times[i]` and `times_over[i]`, in seconds, are of the same lap over the same work, so whatever
    slowed the machine in that lap cancels. Raises `ValueError` for lists of different lengths, no
    times, or a time that is not finite and above 0.
    """
    if len(times) != len(times_over):
        raise ValueError(f"{len(times)} and {len(times_over)} times cannot be paired lap by lap")
    pairs = zip(_logs(times), _logs(times_over), strict=True)
    return _ratio(mean_estimate([over - own for own, over in pairs]), len(times))


def unpaired_ratio(times_before: Sequence[float], times_after: Sequence[float]) -> Ratio:
    """Returns the throughput after over the throughput before, of two separate runs; times in seconds.

    `num_laps` is that of the shorter run. The interval covers the spread between the laps of a run, not
    what differs from run to run (clock rates, memory placement). Raises `ValueError` for no times, or a
    time that is not finite and above 0.
    """
    difference = difference_estimate(_logs(times_before), _logs(times_after))
    return _ratio(difference, min(len(times_before), len(times_after)))


def _logs(times: Sequence[float]) -> list[float]:
    if not times:
        raise ValueError("there are no times to make a ratio of")
    bad = [each for each in times if not (math.isfinite(each) and each > 0)]
    if bad:
        raise ValueError(f"a time of {bad[0]} s cannot be compared: times are finite and above 0")
    return [math.log(each) for each in times]


def _ratio(log: Estimate, num_laps: int) -> Ratio:
    low, high = (None if each is None else math.exp(each) for each in (log.low, log.high))
    return Ratio(math.exp(log.value), low, high, num_laps)
