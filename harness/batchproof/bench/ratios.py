"""How much faster one engine is than another, with an interval that says how sure that is.

A ratio without an interval hides whether it differs from 1, and two intervals on times say little about
their ratio; so the ratio itself gets the interval (T. Kalibera and R. Jones, "Rigorous benchmarking in
reasonable time", ISMM 2013). The interval is a percentile bootstrap (B. Efron, "Bootstrap methods:
another look at the jackknife", Annals of Statistics 7, 1979) of the mean log ratio.

Of n laps a resampled mean varies by (n-1)/n of what it should, and its tails are those of a normal
distribution where Student's are due: few laps would flatter. The residuals are therefore stretched by
sqrt(n/(n-1)) and by the t quantile over the normal one (both: T. Hesterberg, "What teachers should know
about the bootstrap", The American Statistician 69, 2015, where the quantile is moved instead).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
NORMAL_QUANTILE = 1.959964  # of 97.5 %
FEW_QUANTILES = {1: 12.7062, 2: 4.3027}  # Student's t, where its expansion is too coarse
NUM_RESAMPLES = 10_000
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of throughputs: above 1 the first one named is faster. `low` and `high` bound it with 95 %
    confidence; both are None where one lap leaves nothing to tell a spread from."""

    ratio: float
    low: float | None
    high: float | None
    num_laps: int

    @property
    def is_different(self) -> bool:
        """1 lies outside the interval; without an interval no difference is shown."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    @property
    def inverse(self) -> Ratio:
        """Of the second engine over the first."""
        low, high = (None if each is None else 1 / each for each in (self.high, self.low))
        return Ratio(1 / self.ratio, low, high, self.num_laps)

    def figures(self) -> str:
        """`1.83x [1.79, 1.88]`"""
        if self.low is None or self.high is None:
            return f"{self.ratio:.2f}x (one lap: no interval)"
        ends = self.low, self.high
        digits = 2  # more, where a rounded end would touch the 1 that the interval excludes
        while self.is_different and digits < 6 and 1 in (round(each, digits) for each in ends):
            digits += 1
        low, high = (f"{each:.{digits}f}" for each in ends)
        return f"{self.ratio:.{digits}f}x [{low}, {high}]"

    def words(self, engine: str, over: str) -> str:
        """`ragged over static 1.83x [1.79, 1.88]`, or that no difference is shown."""
        if self.is_different or self.low is None:
            return f"{engine} over {over} {self.figures()}"
        return f"{engine} over {over}: no difference shown, {self.figures()}"

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        """From the result file, where `as_dict` has put it."""
        return cls(entry["ratio"], entry["low"], entry["high"], entry["num_laps"])

    def as_dict(self) -> dict[str, Any]:
        """Ready for the result file."""
        return {"ratio": self.ratio, "low": self.low, "high": self.high, "num_laps": self.num_laps}


def paired_ratio(
    times: Sequence[float],
    times_over: Sequence[float],
    *,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> Ratio:
    """Throughput of the engine that took `times`, over that of the one that took `times_over`.

    `times[i]` and `times_over[i]`, in seconds, come from the same lap over the same work, so what the
    machine did in that lap cancels; laps are resampled whole. The ratio is the geometric mean.
    """
    if len(times) != len(times_over):
        raise ValueError(f"{len(times)} and {len(times_over)} times cannot be paired lap by lap")
    logs = _logs(times_over) - _logs(times)
    means = _resampled_means(logs, np.random.default_rng(seed), num_resamples)
    return _ratio(float(logs.mean()), means, len(logs))


def unpaired_ratio(
    times_before: Sequence[float],
    times_after: Sequence[float],
    *,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> Ratio:
    """Throughput after over throughput before, of two separate runs: each is resampled on its own.

    `num_laps` is that of the shorter run. Covers the spread between laps of a run only: what differs
    from run to run (clock rates, where memory lies) is not in it.
    """
    before, after = _logs(times_before), _logs(times_after)
    rng = np.random.default_rng(seed)
    means_before = _resampled_means(before, rng, num_resamples)
    means_after = _resampled_means(after, rng, num_resamples)
    means = None if means_before is None or means_after is None else means_before - means_after
    return _ratio(float(before.mean() - after.mean()), means, min(len(before), len(after)))


def _logs(times: Sequence[float]) -> Floats:
    if not times:
        raise ValueError("there are no times to make a ratio of")
    bad = [each for each in times if not (math.isfinite(each) and each > 0)]
    if bad:
        raise ValueError(f"a time of {bad[0]} s cannot be compared: times are finite and above 0")
    return np.log(np.asarray(times, dtype=np.float64))


def _resampled_means(values: Floats, rng: np.random.Generator, num_resamples: int) -> Floats | None:
    """[num_resamples] means of samples drawn with replacement; None for a single value."""
    num_values = len(values)
    if num_values < 2:
        return None
    mean = values.mean()
    stretched = mean + (values - mean) * _stretch(num_values)
    drawn = rng.integers(num_values, size=(num_resamples, num_values))
    means: Floats = stretched[drawn].mean(axis=1)
    return means


def _stretch(num_values: int) -> float:
    degrees = num_values - 1
    return math.sqrt(num_values / degrees) * _t_quantile(degrees) / NORMAL_QUANTILE


def _t_quantile(degrees: int) -> float:
    """97.5 % of Student's t, by its expansion about the normal quantile (Abramowitz and Stegun 26.7.5);
    off by less than 1 % from 3 degrees of freedom on."""
    z = NORMAL_QUANTILE
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    expanded = z + sum(term / degrees**power for power, term in enumerate(terms, start=1))
    return FEW_QUANTILES.get(degrees, expanded)


def _ratio(mean_log: float, means: Floats | None, num_laps: int) -> Ratio:
    if means is None:
        return Ratio(math.exp(mean_log), None, None, num_laps)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.exp(np.quantile(means, [tail, 1 - tail]))
    return Ratio(math.exp(mean_log), float(low), float(high), num_laps)
