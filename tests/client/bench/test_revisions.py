"""The interval that `bench.revisions` prints beside a ratio."""

from bench.revisions import median_interval


def test_equal_rounds_leave_no_doubt() -> None:
    assert median_interval([1.02] * 9) == (1.02, 1.02)


def test_the_interval_holds_the_median_and_lies_within_the_rounds() -> None:
    rounds = [0.9, 0.95, 0.98, 0.99, 1.0, 1.01, 1.02, 1.05, 1.3]
    low, high = median_interval(rounds)
    assert 0.9 < low < 1.0 < high < 1.3
    assert median_interval(rounds) == (low, high)


def test_a_lower_level_and_more_rounds_have_a_narrower_interval() -> None:
    rounds = [0.8, 0.9, 1.0, 1.1, 1.2]
    low, high = median_interval(rounds)
    narrow_low, narrow_high = median_interval(rounds, level=0.5)
    assert low < narrow_low < narrow_high < high
    many_low, many_high = median_interval(rounds * 20)
    assert many_high - many_low < high - low
