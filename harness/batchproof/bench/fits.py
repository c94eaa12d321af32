"""How a time grows with a size: pure functions of measured points.

The exponent is the slope of log time over log size, by least squares, over the upper half of the range,
where a fixed cost matters least. Its 95 % interval comes from the residuals (Student's t). The interval
also widens if the exponent changes over the range; it does not cover an error that all points share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Self

import numpy as np

from batchproof.statistics import fit_line

WORST_LINE = 0.25  # a line is reported if no sample is relatively farther from it
MIN_POINTS = 3  # a line through two points has no residual
Sample = tuple[float, float]  # a size, and the seconds it took; both above 0


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """`seconds = factor * size ** exponent`; 95 % interval of the exponent; fitted on sizes
    `smallest` to `largest`."""

    factor: float
    exponent: float
    low: float
    high: float
    smallest: float
    largest: float

    def __call__(self, size: float) -> float:
        """Returns the seconds at this size."""
        return float(self.factor * size**self.exponent)

    @classmethod
    def fit(cls, samples: Sequence[Sample]) -> Self | None:
        """Returns the power fitted on all samples; None for fewer than `MIN_POINTS` sizes."""
        sizes = [size for size, _ in samples]
        if len(set(sizes)) < MIN_POINTS:
            return None
        line = fit_line([log(size) for size in sizes], [log(seconds) for _, seconds in samples])
        slope = line.slope
        assert slope.low is not None, "a slope through three points has an interval"
        assert slope.high is not None, "a slope through three points has an interval"
        factor = exp(line.intercept)
        return cls(factor, slope.value, slope.low, slope.high, min(sizes), max(sizes))


@dataclass(frozen=True, slots=True)
class AffineCost:
    """`seconds = fixed_s + per_unit_s * size`, with neither number negative."""

    fixed_s: float
    per_unit_s: float

    def __call__(self, size: float) -> float:
        """Returns the seconds at this size."""
        return self.fixed_s + self.per_unit_s * size

    @classmethod
    def fit(cls, samples: Sequence[Sample]) -> Self | None:
        """Returns the line of smallest squared relative errors, so that small times count as much as
        large ones; None for fewer than `MIN_POINTS` sizes, or if either number is negative."""
        if len({size for size, _ in samples}) < MIN_POINTS:
            return None
        sizes, seconds = np.array(samples, dtype=np.float64).T
        relative = np.stack([1 / seconds, sizes / seconds], axis=1)
        fixed_s, per_unit_s = np.linalg.lstsq(relative, np.ones(len(samples)))[0].tolist()
        return cls(fixed_s, per_unit_s) if min(fixed_s, per_unit_s) >= 0 else None


def upper_half(samples: Sequence[Sample]) -> list[Sample]:
    """Returns the samples above the geometric middle of sizes, and at least the `MIN_POINTS`
    largest."""
    ordered = sorted(samples)
    if not ordered:
        return []
    middle = sqrt(ordered[0][0] * ordered[-1][0])
    upper = [sample for sample in ordered if sample[0] >= middle * (1 - 1e-9)]
    return upper if len(upper) >= MIN_POINTS else ordered[-MIN_POINTS:]


def fit_growth(samples: Sequence[Sample]) -> PowerLaw | None:
    """Returns the power fitted on the upper half; None for fewer than `MIN_POINTS` sizes."""
    return PowerLaw.fit(upper_half(samples))


def better_line(samples: Sequence[Sample]) -> AffineCost | None:
    """Returns the line if it is within `WORST_LINE` of all samples and fits better than a power."""
    line, power = AffineCost.fit(samples), PowerLaw.fit(samples)
    if line is None or power is None or worst_deviation(line, samples) > WORST_LINE:
        return None
    return line if _misfit(line, samples) < _misfit(power, samples) else None


def _misfit(curve: AffineCost | PowerLaw, samples: Sequence[Sample]) -> float:
    """Returns the mean squared log ratio of curve and sample."""
    return sum(log(curve(size) / seconds) ** 2 for size, seconds in samples) / len(samples)


def worst_deviation(curve: AffineCost | PowerLaw, samples: Sequence[Sample]) -> float:
    """Returns the largest relative distance of a sample from the curve."""
    return max(abs(seconds / curve(size) - 1) for size, seconds in samples)


def describe(samples: Sequence[Sample], one: str, many: str) -> str:
    """Returns the growth as text; `one` and `many` name the size: "token of context", "tokens of
    context"."""
    ordered = sorted(samples)
    if len(ordered) < 2:
        return f"too few points to fit a growth: {len(ordered)}"
    (smallest, least_s), (largest, most_s) = ordered[0], ordered[-1]
    parts = []
    power, line = fit_growth(ordered), better_line(ordered)
    if power is not None:
        parts.append(
            f"grows as n^{power.exponent:.2f} [{power.low:.2f}, {power.high:.2f}] between "
            f"{power.smallest:,.0f} and {power.largest:,.0f} {many}"
        )
    times = "one" if smallest == 1 else f"{smallest:,.0f}"
    parts.append(f"{largest:,.0f} {many} cost {most_s / least_s:.3g} times {times}")
    if line is not None:
        parts.append(
            f"{duration(line.fixed_s)} + {duration(line.per_unit_s)} per {one} describes all points "
            f"within {worst_deviation(line, ordered):.0%}"
        )
    return "; ".join(parts)


def duration(seconds: float) -> str:
    """Returns three digits in the unit that suits, as `1.82 ms`."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
