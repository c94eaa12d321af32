"""The statistics of the harness: intervals of 95 % and binomial bounds.

Everything here is exact for its model (normal residuals, independent trials) and deterministic: no
resampling and no seed. The distributions are those of `scipy.special`, which is imported where it is
needed: most commands need none, and `scipy.stats` takes a second to import.
"""

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and the ends of its 95 % confidence interval, all in the unit of the samples. `low` and
    `high` are None where one sample leaves no spread to estimate."""

    value: float
    low: float | None
    high: float | None


def mean_estimate(samples: Sequence[float]) -> Estimate:
    """Returns the mean with Student's t interval. Raises `ValueError` for no samples."""
    mean = statistics.fmean(samples)
    if len(samples) < 2:
        return Estimate(mean, None, None)
    standard_error = statistics.stdev(samples) / math.sqrt(len(samples))
    margin = student_t_quantile(len(samples) - 1) * standard_error
    return Estimate(mean, mean - margin, mean + margin)


def binomial_bound(num_trials: int, probability: float, risk: float) -> int:
    """Returns the smallest k with P(more than k successes in `num_trials`) <= `risk`. Raises
    `ValueError` unless 0 < risk < 1/2."""
    from scipy.special import bdtrc

    if not 0 < risk < 0.5:
        raise ValueError(f"risk is {risk}, but must be above 0 and below 0.5")
    if probability <= 0.0 or num_trials == 0:
        return 0
    if probability >= 1.0:
        return num_trials
    return bisect_left(
        range(num_trials), True, key=lambda k: bool(bdtrc(k, num_trials, probability) <= risk)
    )


def g_test(observed: Sequence[int], expected: Sequence[float]) -> tuple[float, float]:
    """Returns the G statistic of counts against expected ones, and the chance of as large a one.

    2 sum(o ln(o / e)) is nearly chi-square distributed with one degree of freedom less than there are
    cells (S. S. Wilks, Annals of Mathematical Statistics 9, 1938). With a single cell the chance is 1.
    """
    from scipy.special import chdtrc

    pairs = zip(observed, expected, strict=True)
    statistic = 2 * sum(seen * math.log(seen / wanted) for seen, wanted in pairs if seen)
    degrees = len(observed) - 1
    return statistic, float(chdtrc(degrees, statistic)) if statistic > 0 and degrees > 0 else 1.0


def share_bound(num_successes: int, num_trials: int, risk: float) -> float:
    """Returns the largest probability of success at which as few as `num_successes` still happen with
    probability `risk` (the upper bound of C. J. Clopper and E. S. Pearson, Biometrika 26, 1934)."""
    from scipy.special import betaincinv

    if num_successes == num_trials:
        return 1.0
    return float(betaincinv(num_successes + 1, num_trials - num_successes, 1 - risk))


def student_t_quantile(degrees: int) -> float:
    """Returns the t within which a Student variable with `degrees` degrees of freedom lies with a
    probability of 95 %. Raises `ValueError` for less than one degree of freedom."""
    from scipy.special import stdtrit

    if degrees < 1:
        raise ValueError(f"Student's t has {degrees} degrees of freedom, but needs at least 1")
    return float(stdtrit(degrees, 0.975))
