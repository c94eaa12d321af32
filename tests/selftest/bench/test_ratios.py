"""Ratios with intervals: what they cover, and how they are said."""

import math

import pytest

from batchproof.bench.ratios import Ratio, paired_ratio, unpaired_ratio


def test_a_paired_interval_ignores_what_both_engines_suffer() -> None:
    weather = [1.0, 3.0, 0.5, 2.0, 9.0]
    ratio = paired_ratio(weather, [1.8 * each for each in weather])
    assert (ratio.ratio, ratio.low, ratio.high) == pytest.approx((1.8, 1.8, 1.8))
    unpaired = unpaired_ratio(weather, [1.8 * each for each in weather])
    assert unpaired.high - unpaired.low > 1  # type: ignore[operator]


def test_fewer_laps_of_the_same_spread_give_a_wider_interval() -> None:
    def width(num_pairs: int) -> float:
        ratio = paired_ratio([1.0, 1.1] * num_pairs, [1.0] * 2 * num_pairs)
        return math.log(ratio.high / ratio.low)  # type: ignore[operator]

    assert width(1) > width(2) > width(4) > width(16)
    # Student's t with 31 degrees of freedom.
    assert width(16) == pytest.approx(2 * 2.04 * (math.log(1.1) / 2) / math.sqrt(31), rel=1e-3)


def test_one_lap_has_a_ratio_and_no_interval() -> None:
    for ratio in (paired_ratio([1.0], [1.5]), unpaired_ratio([1.5], [1.0])):
        assert ratio == Ratio(ratio.ratio, None, None, 1)
        assert ratio.ratio == pytest.approx(1.5)
        assert not ratio.is_different
        assert ratio.words("ragged", "static") == "ragged over static 1.50x (one lap: no interval)"
    assert unpaired_ratio([1.0, 1.1, 1.2], [1.0]).low is None
    assert paired_ratio([1.0, 1.0], [1.0, 4.0]).ratio == pytest.approx(2.0)  # geometric


def test_times_that_make_no_ratio_are_refused() -> None:
    with pytest.raises(ValueError, match="a time of nan s"):
        paired_ratio([1.0, 1.0], [1.0, math.nan])


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (Ratio(1.83, 1.79, 1.88, 7), "a over b 1.83x [1.79, 1.88]"),
        (Ratio(1.01, 0.97, 1.04, 7), "a over b: no difference shown, 1.01x [0.97, 1.04]"),
        (Ratio(1.02, 1.003, 1.04, 7), "a over b 1.020x [1.003, 1.040]"),
    ],
)
def test_a_ratio_says_whether_a_difference_is_shown(ratio: Ratio, words: str) -> None:
    """A rounded end never touches the 1 that the interval excludes."""
    assert ratio.words("a", "b") == words
    assert ratio.is_different == ("no difference" not in words)
