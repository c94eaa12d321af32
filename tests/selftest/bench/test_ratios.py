"""Ratios with intervals: what they cover, and how they are said."""

import pytest

from batchproof.bench.ratios import Ratio, paired_ratio


def test_an_interval_covers_the_spread_between_laps_and_not_what_both_engines_suffer() -> None:
    weather = [1.0, 3.0, 0.5, 2.0, 9.0]
    ratio = paired_ratio(weather, [1.8 * each for each in weather])
    assert (ratio.ratio, ratio.low, ratio.high) == pytest.approx((1.8, 1.8, 1.8))
    assert paired_ratio([1.0], [1.5]) == Ratio(pytest.approx(1.5), None, None, 1)
    spread = paired_ratio([1.0, 1.0], [1.0, 4.0])
    # Geometric; Student's t with one degree of freedom.
    assert (spread.ratio, spread.low) == pytest.approx((2.0, 2.0 / 2**12.706), rel=1e-3)


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (Ratio(1.83, 1.79, 1.88, 7), "a over b 1.83x [1.79, 1.88]"),
        (Ratio(1.01, 0.97, 1.04, 7), "a over b: no difference shown, 1.01x [0.97, 1.04]"),
        (Ratio(1.02, 1.003, 1.04, 7), "a over b 1.020x [1.003, 1.040]"),
        (Ratio(1.5, None, None, 1), "a over b 1.50x (one lap: no interval)"),
    ],
)
def test_a_ratio_says_whether_a_difference_is_shown(ratio: Ratio, words: str) -> None:
    """A rounded end never touches the 1 that the interval excludes."""
    assert ratio.words("a", "b") == words
