"""Intervals and bounds against exact arithmetic and draws."""

import math
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.statistics import (
    Estimate,
    binomial_bound,
    mean_estimate,
    share_bound,
    student_t_quantile,
)


@given(st.integers(0, 60), st.integers(0, 20), st.sampled_from([1e-6, 1e-3, 0.05, 0.4]))
def test_the_binomial_bound_is_that_of_exact_arithmetic(
    trials: int, twentieths: int, risk: float
) -> None:
    share = Fraction(twentieths, 20)

    def tail(k: int) -> Fraction:
        terms = range(k + 1, trials + 1)
        return sum(
            (math.comb(trials, i) * share**i * (1 - share) ** (trials - i) for i in terms), Fraction()
        )

    exact = next(k for k in range(trials + 1) if tail(k) <= Fraction(risk))
    bound = binomial_bound(trials, float(share), risk)
    assert bound == exact
    assert type(bound) is int, "a fact of a finding is no number of numpy"


@pytest.mark.parametrize("successes", [0, 29, 287])
def test_a_share_is_bounded_where_so_few_successes_become_unlikely(successes: int) -> None:
    share = share_bound(successes, 288, 1e-6)
    few = (math.comb(288, k) * share**k * (1 - share) ** (288 - k) for k in range(successes + 1))
    assert sum(few) == pytest.approx(1e-6, rel=1e-6)
    assert share_bound(288, 288, 1e-6) == 1.0


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = Random(0)
    estimates = (mean_estimate([rng.gauss(1, 2) for _ in range(4)]) for _ in range(2000))
    assert 0.93 < sum(each.low <= 1 <= each.high for each in estimates) / 2000 < 0.97


def test_too_few_samples_have_no_interval() -> None:
    assert mean_estimate([2.0]) == Estimate(2.0, None, None)
    with pytest.raises(ValueError, match="0 degrees of freedom"):
        student_t_quantile(0)
