"""A server that floods its stdout is read slowly, and everything that it writes is read in the end."""

import os
from typing import cast

import pytest
import trio

from carpool_protocol.runtime.poller import ReadySet
from carpool_protocol.wire.lines import OverlongLine
from carpool_supervisor.stdio.child_io import ChildIo, PipeBudget
from carpool_supervisor.stdio.flood_limit import (
    BURST_LINES,
    BYTES_OF_LINE,
    FLOOD_S,
    LINES_OF_CALL,
    LINES_OF_WORK,
    LINES_S,
    LONGEST_S,
    MAX_OWED_LINES,
    FloodLimit,
    SlowReaders,
)
from tests.behaviours import behaviour
from tests.kit.waits import until


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@behaviour("flood:stdout")
def test_a_flood_is_read_at_the_rate_and_no_pause_is_longer_than_a_second() -> None:
    clock = Clock()
    limit = FloodLimit(clock)
    read = 0
    for _ in range(2000):
        read += 128
        pause_s = limit.pause_after(128, 0)
        assert pause_s <= LONGEST_S == 1.0
        clock.now += pause_s
    assert read - BURST_LINES <= (clock.now + 1.0) * LINES_S


def test_the_lines_of_calls_and_what_was_saved_up_cause_no_pause() -> None:
    limit = FloodLimit(Clock())
    assert limit.pause_after(BURST_LINES - 1, 0) == 0
    assert limit.pause_after(LINES_OF_CALL, 1) == 0
    assert limit.pause_after(LINES_OF_CALL, 1) > 0


@behaviour("subscriptions:loops")
def test_the_answers_to_requests_of_carpools_own_are_not_counted_and_more_lines_are() -> None:
    limit = FloodLimit(Clock())
    for _ in range(3):
        limit.allow_answers(BURST_LINES)
        assert limit.pause_after(BURST_LINES // 2, 0) == limit.pause_after(BURST_LINES // 2, 0) == 0
    assert not limit.is_used_up
    assert limit.pause_after(BURST_LINES + LINES_S, 0) == LONGEST_S


@behaviour("flood:stdout")
def test_a_flood_takes_a_quarter_of_the_time_whatever_its_lines_cost() -> None:
    clock = Clock()
    limit = FloodLimit(clock)
    work_s = 0.0
    for _ in range(500):
        clock.now += 0.1
        work_s += 0.1
        clock.now += limit.pause_after(1, 0, 0, 0.1)
    saved_up_s = BURST_LINES / LINES_OF_WORK
    assert work_s - saved_up_s <= 0.25 * clock.now


@behaviour("flood:stdout")
def test_what_a_pause_does_not_pay_is_paid_in_the_next_ones_up_to_a_bound() -> None:
    clock = Clock()
    limit = FloodLimit(clock)
    limit.pause_after(BURST_LINES, 0)
    assert limit.pause_after(1, 0, 0, 1.0) == LONGEST_S
    paused_s = 0.0
    while pause_s := limit.pause_after(0, 0):
        clock.now += pause_s
        paused_s += pause_s
    assert paused_s == pytest.approx(LINES_OF_WORK / LINES_S, abs=0.1)
    limit.pause_after(0, 0, 0, 1e6)
    clock.now += MAX_OWED_LINES / LINES_S
    assert limit.pause_after(0, 0) == 0


def test_short_pauses_are_saved_up_for_a_longer_one() -> None:
    clock = Clock()
    limit = FloodLimit(clock)
    limit.pause_after(BURST_LINES, 0)
    assert limit.pause_after(1, 0) == 0
    assert limit.pause_after(99, 0) == 100 / LINES_S


def test_bytes_count_before_anything_is_known_of_them() -> None:
    limit = FloodLimit(Clock())
    limit.pause_after(BURST_LINES, 0)
    assert limit.pause_after(0, 0, 100 * BYTES_OF_LINE) == 100 / LINES_S


def test_the_allowance_is_used_up_until_half_of_it_is_saved_again() -> None:
    clock = Clock()
    limit = FloodLimit(clock)
    limit.pause_after(BURST_LINES - 1, 0)
    assert not limit.is_used_up
    for at_s, is_used_up in ((0.0, True), (BURST_LINES / LINES_S / 2, True), (0.1, False)):
        clock.now += at_s
        limit.pause_after(1 if is_used_up else 0, 0)
        assert limit.is_used_up == is_used_up


@behaviour("flood:endless-line")
@pytest.mark.parametrize("floods", [1, 4, 32])
def test_all_that_have_nothing_left_take_a_quarter_of_the_time_together(floods: int) -> None:
    clock = Clock()
    slow = SlowReaders(ReadySet())
    ios = [cast("ChildIo", object()) for _ in range(floods)]
    limits = [FloodLimit(clock) for _ in ios]
    due = [0.0] * floods
    work_s = 0.0
    while clock.now < 100:
        at = due.index(min(due))
        clock.now = max(clock.now, due[at]) + 0.002
        work_s += 0.002
        limits[at].forfeit()
        together = slow.count_floods(ios[at], clock.now)
        due[at] = clock.now + limits[at].pause_after(0, 0, 0, 0.002, together)
    assert 0.1 * clock.now < work_s <= 0.26 * clock.now


def test_an_instance_counts_as_flooding_for_some_time_and_not_once_it_has_ended() -> None:
    slow = SlowReaders(ReadySet())
    one, other, third = (cast("ChildIo", object()) for _ in range(3))
    assert (slow.count_floods(one, 0.0), slow.count_floods(other, FLOOD_S - 1)) == (1, 2)
    assert slow.count_floods(other, FLOOD_S) == 1
    slow.remove(other)
    assert slow.count_floods(third, FLOOD_S) == 1


@behaviour("flood:endless-line")
async def test_of_pauses_that_are_over_together_one_ends_in_each_round(autojump_clock: object) -> None:
    ready = ReadySet()
    slow = SlowReaders(ready)
    ended: list[int] = []

    class Io:
        def __init__(self, number: int) -> None:
            self.number = number

        def slow_down(self, *, is_on: bool) -> None:
            ended.extend([] if is_on else [self.number])

    async with trio.open_nursery() as nursery:
        for number, pause_s in enumerate((0.3, 0.1, 0.2, 9.0)):
            slow.pause(cast("ChildIo", Io(number)), pause_s)
        nursery.start_soon(slow.run)
        await trio.sleep(0.4)
        for so_far in ([1], [1, 2], [1, 2, 0], [1, 2, 0]):
            ready._round()
            assert ended == so_far
        await trio.sleep(9.0)
        ready._round()
        assert ended == [1, 2, 0, 3]
        nursery.cancel_scope.cancel()
    ready.close()


@behaviour("flood:stdout")
async def test_what_a_server_wrote_during_a_pause_is_read_after_it(autojump_clock: object) -> None:
    ready, lines = ReadySet(), list[bytes | OverlongLine]()
    slow = SlowReaders(ready)
    told_pauses: list[bool] = []
    stdin_read, stdin_write = os.pipe()
    stdout_read, stdout_write = os.pipe()
    for fd in (stdin_write, stdout_read):
        os.set_blocking(fd, False)
    io = ChildIo(
        ready,
        stdin_write,
        stdout_read,
        PipeBudget(),
        on_lines=lines.extend,
        on_stdout_closed=lambda: None,
        on_stdin_blocked=lambda _: None,
        on_stdin_broken=lambda: None,
        on_long_line=lambda _: None,
        on_paused=told_pauses.append,
    )
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slow.run)
            slow.pause(io, 0.5)
            nursery.start_soon(ready.run, lambda: None)
            os.write(stdout_write, b"one\ntwo\n")
            await trio.sleep(0.4)
            assert not lines
            await until(lambda: lines == [b"one", b"two"], "both lines are read")
            assert not told_pauses, "the time-outs of its calls go on"
            nursery.cancel_scope.cancel()
    finally:
        io.close()
        os.close(stdin_read)
        os.close(stdout_write)
