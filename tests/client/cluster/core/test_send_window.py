"""The window of a channel follows the delay of acknowledgements."""

import pytest

from carpool.cluster.core.send_window import (
    LATE_S,
    MAX_RESEND_S,
    MAX_WINDOW_BYTES,
    MIN_WINDOW_BYTES,
    QUICK_S,
    RESEND_S,
    START_WINDOW_BYTES,
    SendWindow,
)

FRAME_BYTES = 1000
QUICKEST_S = 0.1


@pytest.fixture
def window() -> SendWindow:
    """One whose quickest acknowledgement took a tenth of a second. It is a second later now."""
    window = SendWindow()
    window.acknowledged(0, 0.0, QUICKEST_S)
    assert window.size_bytes == START_WINDOW_BYTES
    return window


def acknowledge(window: SendWindow, took_s: float, *, sent_at: float = 1.0) -> None:
    window.acknowledged(FRAME_BYTES, sent_at, sent_at + took_s)


def widen(window: SendWindow) -> int:
    """Let it grow far beyond its smallest size, and return its size."""
    window.acknowledged(15 * START_WINDOW_BYTES, 0.0, QUICKEST_S)
    return window.size_bytes


@pytest.mark.parametrize(
    ("took_s", "size_bytes"),
    [
        (QUICKEST_S + QUICK_S - 0.01, START_WINDOW_BYTES + FRAME_BYTES),
        (QUICKEST_S + QUICK_S + 0.01, START_WINDOW_BYTES),
        (QUICKEST_S + LATE_S - 0.01, START_WINDOW_BYTES),
        (QUICKEST_S + LATE_S + 0.01, START_WINDOW_BYTES // 2),
    ],
    ids=["quick: it grows by what has arrived", "not quick", "not late", "late: it is halved"],
)
def test_the_window_grows_with_quick_acknowledgements_and_shrinks_with_late_ones(
    window: SendWindow, took_s: float, size_bytes: int
) -> None:
    acknowledge(window, took_s)
    assert window.size_bytes == size_bytes


def test_the_window_stays_between_its_bounds(window: SendWindow) -> None:
    window.acknowledged(2 * MAX_WINDOW_BYTES, 1.0, 1.0 + QUICKEST_S)
    assert window.size_bytes == MAX_WINDOW_BYTES
    for number in range(20):
        window.link_cut(float(number))
    assert window.size_bytes == MIN_WINDOW_BYTES


def test_frames_that_were_sent_before_the_window_shrank_do_not_shrink_it_again(window: SendWindow) -> None:
    full = widen(window)
    acknowledge(window, 2.0, sent_at=1.0)
    acknowledge(window, 2.0, sent_at=2.9)
    assert window.size_bytes == full // 2
    window.link_cut(5.0)
    acknowledge(window, 2.0, sent_at=4.9)
    assert window.size_bytes == full // 4
    acknowledge(window, 2.0, sent_at=5.0)
    assert window.size_bytes == full // 8


def test_a_cut_halves_the_window(window: SendWindow) -> None:
    full = widen(window)
    window.link_cut(1.0)
    assert window.size_bytes == full // 2


def test_a_link_that_is_slow_with_the_smallest_window_counts_as_the_slower_link_that_it_is(
    window: SendWindow,
) -> None:
    acknowledge(window, 3.0, sent_at=1.0)
    acknowledge(window, 3.0, sent_at=10.0)
    assert window.size_bytes == MIN_WINDOW_BYTES
    acknowledge(window, 3.0, sent_at=20.0)
    assert window.size_bytes == MIN_WINDOW_BYTES + FRAME_BYTES


def test_a_link_is_not_taken_for_a_slower_one_while_the_window_may_shrink(window: SendWindow) -> None:
    full = widen(window)
    for number, size_bytes in enumerate((full // 2, full // 4)):
        acknowledge(window, 3.0, sent_at=10.0 * number)
        assert window.size_bytes == size_bytes


def test_a_frame_is_sent_again_after_twice_the_usual_time(window: SendWindow) -> None:
    assert (window.resend_s, window.max_resend_s) == (RESEND_S, MAX_RESEND_S)
    for number in range(100):
        acknowledge(window, 5.0, sent_at=10.0 * number)
    assert window.resend_s == window.max_resend_s == pytest.approx(10.0)


def test_one_slow_acknowledgement_moves_the_usual_time_by_a_quarter_of_the_difference(
    window: SendWindow,
) -> None:
    acknowledge(window, QUICKEST_S + 0.4)
    assert window.usual_s == pytest.approx(QUICKEST_S + 0.1)
