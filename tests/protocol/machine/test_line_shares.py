"""Shares of unfinished lines: who is held, who is ended, and the sums."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from carpool_protocol.machine.line_shares import MIN_RATE_BYTES, MIN_RATE_S, LineShares

KIB = 1024
BUDGET = 256 * KIB * KIB


def hog(shares: LineShares[str, str], lines: int, size_bytes: int) -> None:
    for place in range(lines):
        shares.line_grew(f"hog {place}", "hog", size_bytes)


def test_an_owner_within_its_share_reads_on_whatever_another_holds() -> None:
    shares: LineShares[str, str] = LineShares(BUDGET)
    hog(shares, 36, 7_900_000)
    shares.line_grew("agent", "agent", 200 * KIB)
    assert "agent" not in shares.held
    assert shares.held == {f"hog {place}" for place in range(1, 36)}


def test_forty_owners_with_unfinished_lines_do_not_hold_one_with_less_than_its_share() -> None:
    shares: LineShares[str, str] = LineShares(BUDGET)
    for place in range(40):
        shares.line_grew(f"node {place}", f"node {place}", 7_900_000)
    shares.line_grew("agent", "agent", 200 * KIB)
    assert "agent" not in shares.held
    assert len(shares.held) == 39


def test_with_one_line_for_each_owner_an_owner_that_stands_still_holds_up_no_other() -> None:
    shares: LineShares[str, str] = LineShares(BUDGET, each_owner=True)
    hog(shares, 20, 7_900_000)
    for place in range(20):
        shares.line_grew(f"other {place}", "other", 7_900_000)
    assert "hog 0" not in shares.held
    assert "other 0" not in shares.held
    assert len(shares.held) == 38
    assert shares.is_waited_for("other 0")


def test_nobody_is_held_and_nobody_ended_while_the_budget_has_room() -> None:
    shares: LineShares[str, str] = LineShares(BUDGET)
    hog(shares, 3, 8 * KIB * KIB)
    assert not shares.held
    for second in range(100):
        assert not shares.slow_readers(float(second))
        assert not shares.excess_readers()


def test_lines_that_were_slow_before_others_wait_for_them_are_ended_one_each_second() -> None:
    shares: LineShares[str, str] = LineShares(BUDGET)
    hog(shares, 32, 7_900_000)
    for second in range(12):
        assert not shares.slow_readers(float(second))
    hog(shares, 36, 7_900_000)
    assert shares.slow_readers(12.0) == ["hog 0"]
    shares.line_ended("hog 0")
    assert shares.slow_readers(13.0) == ["hog 1"]


def test_a_line_that_grows_fast_enough_is_not_ended_and_time_while_it_is_held_does_not_count() -> None:
    shares: LineShares[str, str] = LineShares(BUDGET)
    hog(shares, 36, 7_900_000)
    for second in range(100):
        shares.line_grew("hog 0", "hog", 7_900_000 + second * MIN_RATE_BYTES // 9)
        assert not shares.slow_readers(float(second))
    shares.line_ended("hog 0")
    for second in range(100, 100 + int(MIN_RATE_S)):
        assert not shares.slow_readers(float(second))
    assert shares.slow_readers(200.0) == ["hog 1"]


def test_owners_that_come_one_after_the_other_end_the_largest_past_twice_the_budget() -> None:
    shares: LineShares[str, str] = LineShares(BUDGET)
    hog(shares, 36, 7_900_000)
    for place in range(50):
        shares.line_grew(f"late {place}", f"late {place}", 6_300_000)
    ended = shares.excess_readers()
    assert ended
    assert all(each.startswith("hog") for each in ended)
    for each in ended:
        shares.line_ended(each)
    assert not shares.excess_readers()


class LineSharesMachine(RuleBasedStateMachine):
    """Any growth and end of lines: somebody who is not held can always go on."""

    def __init__(self) -> None:
        super().__init__()
        self.shares: LineShares[int, int] = LineShares(100)
        self.sizes: dict[int, int] = {}

    @rule(reader=st.integers(0, 9), more=st.integers(1, 60))
    def grow(self, reader: int, more: int) -> None:
        if reader not in self.shares.held:
            self.sizes[reader] = self.sizes.get(reader, 0) + more
            self.shares.line_grew(reader, reader % 4, self.sizes[reader])

    @rule(reader=st.integers(0, 9))
    def end(self, reader: int) -> None:
        assert self.shares.line_ended(reader) == (self.sizes.pop(reader, 0) > 0)

    @invariant()
    def somebody_goes_on_and_who_is_within_the_share_is_not_held(self) -> None:
        self.shares.check()
        assert self.shares.held < self.sizes.keys() or not self.sizes
        sums = [sum(size for each, size in self.sizes.items() if each % 4 == owner) for owner in range(4)]
        owners = sum(1 for each in sums if each)
        if sum(sums) <= 100:
            assert not self.shares.held
        for reader in self.shares.held:
            assert sums[reader % 4] > 100 // owners


TestLineShares = LineSharesMachine.TestCase
TestLineShares.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
