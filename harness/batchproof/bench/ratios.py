"""How much faster one engine is than another, with an interval that says how sure that is.

A ratio without an interval hides whether it differs from 1, and two intervals on times say little about
their ratio; so the ratio itself gets the interval (T. Kalibera and R. Jones, "Rigorous benchmarking in
reasonable time", ISMM 2013). Ratios are compared on a log scale: the ratio is the geometric mean over
the laps, and its interval is Student's t interval of the mean log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any, Self

from batchproof.statistics import mean_estimate


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of throughputs: above 1, the first engine named is faster. `low` and `high` bound it with
    95 % confidence; both are None for a single lap, which has no spread."""

    ratio: float
    low: float | None
    high: float | None
    num_laps: int

    def words(self, engine: str, over: str) -> str:
        """Returns `ragged over static 1.83x [1.79, 1.88]`, or says that no difference is shown."""
        if self.low is None or self.high is None:
            return f"{engine} over {over} {self.ratio:.2f}x (one lap: no interval)"
        is_different = not self.low <= 1 <= self.high
        ends = self.low, self.high
        digits = 2  # more where a rounded end would touch the 1 that the interval excludes
        while is_different and digits < 6 and 1 in (round(each, digits) for each in ends):
            digits += 1
        low, high = (f"{each:.{digits}f}" for each in ends)
        shown = "" if is_different else ": no difference shown,"
        return f"{engine} over {over}{shown} {self.ratio:.{digits}f}x [{low}, {high}]"

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        """Returns the ratio that a result file holds."""
        return cls(entry["ratio"], entry["low"], entry["high"], entry["num_laps"])


def paired_ratio(times: Sequence[float], times_over: Sequence[float]) -> Ratio:
    """Returns the throughput of the engine that took `times`, over that of the other.

    `times[i]` and `times_over[i]`, in seconds above 0, are of the same lap over the same work, so
    whatever slowed the machine in that lap cancels.
    """
    pairs = zip(times, times_over, strict=True)
    mean = mean_estimate([log(over / own) for own, over in pairs])
    low, high = (None if each is None else exp(each) for each in (mean.low, mean.high))
    return Ratio(exp(mean.value), low, high, len(times))
