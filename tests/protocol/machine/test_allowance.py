"""Allowances that grow with time."""

import pytest

from carpool_protocol.machine.allowance import Allowance


def test_it_is_whole_at_first_and_never_more_than_that() -> None:
    allowance = Allowance(per_s=2.0, most=10.0)
    assert allowance.refill(1000.0) == 10.0
    allowance.left -= 4.0
    assert allowance.refill(1001.0) == 8.0
    assert allowance.refill(1009.0) == 10.0


def test_what_was_overdrawn_is_paid_back_first() -> None:
    allowance = Allowance(per_s=2.0, most=10.0)
    allowance.refill(0.0)
    allowance.left -= 14.0
    assert allowance.wait_s(1.0) == 2.5
    assert allowance.refill(2.0) == 0.0
    assert allowance.refill(2.5) == pytest.approx(1.0)
    assert allowance.wait_s(1.0) == 0.0


def test_a_clock_that_stands_or_goes_back_brings_nothing() -> None:
    allowance = Allowance(per_s=2.0, most=10.0)
    allowance.refill(5.0)
    allowance.left = 0.0
    assert allowance.refill(5.0) == allowance.refill(4.0) == 0.0
    assert allowance.refill(5.0) == 2.0
