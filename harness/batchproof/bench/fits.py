"""How a time grows with a size: pure functions of the points, no clock.

The exponent is the slope of log time over log size, by least squares, over the upper half of the range:
there a fixed cost matters least. Its interval comes from how far the points lie off that line
(Student's t); it does not know of an error that all points share, and an exponent that still changes
over the range shows in it as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Self

WORST_LINE = 0.25  # relative distance of a sample from a line that is still worth telling
MIN_POINTS = 3  # two leave no residual to tell a spread from
# Student's t that 2.5 % lie above, for 1, 2, ... degrees of freedom; the last is kept for more.
STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
Sample = tuple[float, float]  # a size, and the seconds it took; both above 0


@dataclass(frozen=True, slots=True)
class Power:
    """`seconds = factor * size ** exponent`; 95 % interval of the exponent; fitted on sizes
    `smallest` to `largest`."""

    factor: float
    exponent: float
    low: float
    high: float
    smallest: float
    largest: float

    def __call__(self, size: float) -> float:
        return float(self.factor * size**self.exponent)

    @classmethod
    def fit(cls, samples: Sequence[Sample]) -> Self | None:
        """On all samples; None if there are too few of them."""
        if len({size for size, _ in samples}) < MIN_POINTS:
            return None
        xs, ys = [log(size) for size, _ in samples], [log(seconds) for _, seconds in samples]
        mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
        spread = sum((x - mean_x) ** 2 for x in xs)
        slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
        start = mean_y - slope * mean_x
        num_free = len(xs) - 2
        squares = sum((y - start - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
        t = STUDENT_T[min(num_free, len(STUDENT_T)) - 1]
        margin = t * sqrt(squares / num_free / spread)
        sizes = [size for size, _ in samples]
        return cls(exp(start), slope, slope - margin, slope + margin, min(sizes), max(sizes))


@dataclass(frozen=True, slots=True)
class Line:
    """`seconds = fixed_s + per_unit_s * size`, both of them not negative."""

    fixed_s: float
    per_unit_s: float

    def __call__(self, size: float) -> float:
        return self.fixed_s + self.per_unit_s * size

    @classmethod
    def fit(cls, samples: Sequence[Sample]) -> Self | None:
        """The smallest relative errors, so that small times count as much as large ones; None if there
        are too few samples, or if either number would be negative."""
        if len({size for size, _ in samples}) < MIN_POINTS:
            return None
        weights = [1 / seconds**2 for _, seconds in samples]
        total = sum(weights)
        mean_x = sum(w * size for w, (size, _) in zip(weights, samples, strict=True)) / total
        mean_y = sum(w * seconds for w, (_, seconds) in zip(weights, samples, strict=True)) / total
        spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, samples, strict=True))
        shared = sum(
            w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, samples, strict=True)
        )
        line = cls(mean_y - shared / spread * mean_x, shared / spread)
        return line if line.fixed_s >= 0 and line.per_unit_s >= 0 else None


def upper_half(samples: Sequence[Sample]) -> list[Sample]:
    """Those from the geometric middle of the range on; the largest `MIN_POINTS` if they are fewer."""
    ordered = sorted(samples)
    if not ordered:
        return []
    middle = sqrt(ordered[0][0] * ordered[-1][0])
    upper = [sample for sample in ordered if sample[0] >= middle * (1 - 1e-9)]
    return upper if len(upper) >= MIN_POINTS else ordered[-MIN_POINTS:]


def fit_growth(samples: Sequence[Sample]) -> Power | None:
    """The exponent over the upper half; None with fewer than `MIN_POINTS` samples."""
    return Power.fit(upper_half(samples))


def better_line(samples: Sequence[Sample]) -> Line | None:
    """The line, if it describes all the samples well, and better than one power of the size does."""
    line, power = Line.fit(samples), Power.fit(samples)
    if line is None or power is None or worst_deviation(line, samples) > WORST_LINE:
        return None
    return line if _misfit(line, samples) < _misfit(power, samples) else None


def _misfit(curve: Line | Power, samples: Sequence[Sample]) -> float:
    """Mean square of the log of curve over sample."""
    return sum(log(curve(size) / seconds) ** 2 for size, seconds in samples) / len(samples)


def worst_deviation(curve: Line | Power, samples: Sequence[Sample]) -> float:
    """The largest relative distance of a sample from the curve."""
    return max(abs(seconds / curve(size) - 1) for size, seconds in samples)


def describe(samples: Sequence[Sample], one: str, many: str) -> str:
    """In words; `one` and `many` name the size: "token of context", "tokens of context"."""
    ordered = sorted(samples)
    if len(ordered) < 2:
        return f"too few points to tell a growth: {len(ordered)}"
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
    """Three digits in the unit that suits: `1.82 ms`."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1 or unit == "µs":
            return f"{seconds * factor:.3g} {unit}"
    raise AssertionError("the last unit takes every time")
