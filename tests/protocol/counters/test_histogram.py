"""Histograms of durations: their buckets, sums and percentiles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_protocol.counters.histogram import BUCKETS_S, DurationHistogram

DURATIONS = st.lists(st.floats(0, 3000, allow_nan=False), max_size=50)


def histogram(*seconds: float) -> DurationHistogram:
    made = DurationHistogram()
    for each in seconds:
        made.observe(each)
    return made


def test_a_bound_belongs_to_its_own_bucket() -> None:
    for number, bound in enumerate(BUCKETS_S):
        assert histogram(bound).counts.index(1) == number
        assert histogram(bound * 1.0001).counts.index(1) == number + 1


def test_two_histograms_share_no_counts() -> None:
    assert histogram(1.0).counts != histogram().counts


def test_the_percentiles_of_nothing_are_not_known() -> None:
    assert histogram().percentile(0.5) is None


def test_a_percentile_is_interpolated_within_its_bucket() -> None:
    halfway = histogram(*[0.2] * 10).percentile(0.5)
    assert halfway == pytest.approx((0.1 + 0.25) / 2)


def test_a_percentile_above_the_last_bound_is_that_bound() -> None:
    assert histogram(5000.0).percentile(0.99) == BUCKETS_S[-1]


@given(DURATIONS, st.floats(0.01, 1.0))
def test_a_percentile_lies_in_the_bucket_of_the_exact_one(durations: list[float], fraction: float) -> None:
    found = histogram(*durations).percentile(fraction)
    if not durations:
        assert found is None
        return
    assert found is not None
    exact = next(
        each
        for number, each in enumerate(sorted(durations), 1)
        if number >= fraction * len(durations) or number == len(durations)
    )
    bounds = (0.0, *BUCKETS_S)
    number = histogram(exact).counts.index(1)
    assert bounds[min(number, len(BUCKETS_S))] <= found <= bounds[min(number + 1, len(BUCKETS_S))]


@given(DURATIONS, DURATIONS)
def test_a_sum_less_one_part_is_the_other_part(one: list[float], other: list[float]) -> None:
    both = histogram(*one)
    both.merge(histogram(*other))
    assert both.counts == histogram(*one, *other).counts
    assert both.minus(histogram(*one)).counts == histogram(*other).counts
    assert both.sum_s == pytest.approx(sum(one) + sum(other))
    assert both.count == len(one) + len(other)


@given(DURATIONS, DURATIONS, st.floats(0.01, 1.0))
def test_no_percentile_is_longer_than_the_longest_duration(
    one: list[float], other: list[float], fraction: float
) -> None:
    both = histogram(*one)
    both.merge(histogram(*other))
    for found, durations in ((both, one + other), (both.minus(histogram(*other)), one + other)):
        at = found.percentile(fraction)
        assert at is None or at <= max(durations)


def test_five_calls_of_one_length_have_that_length_as_their_p99() -> None:
    assert histogram(*[0.702] * 5).percentile(0.99) == pytest.approx(0.702)


def test_a_percentile_of_an_older_broker_is_the_interpolated_one() -> None:
    counted = histogram(*[0.702] * 5)
    assert DurationHistogram(counted.counts, counted.sum_s).percentile(1.0) == 1.0


def test_no_percentile_is_longer_than_all_durations_together() -> None:
    one = DurationHistogram()
    one.observe(1.28)
    assert [one.percentile(fraction) for fraction in (0.5, 0.99)] == [1.28, 1.28]
    for _ in range(3):
        one.observe(0.0)
    assert one.percentile(0.99) == pytest.approx(1.28)
