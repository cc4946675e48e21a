"""An instance's pipes, with real pipes: order, a full pipe, what was not delivered, the end."""

import fcntl
import gc
import os
import select
import tracemalloc
import weakref
from binascii import crc32
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.runtime.poller import TURN_LINES, ReadySet
from carpool_protocol.wire.lines import OverlongLine
from carpool_supervisor.era.line_sizes import MAX_LINE_BYTES
from carpool_supervisor.stdio.child_io import DRAIN_TURNS, MAX_ANSWERS, RAISED_PIPE_BYTES, ChildIo, PipeBudget
from tests.behaviours import behaviour
from tests.kit.leaks import no_leaks
from tests.kit.waits import until

KIB = 1024


class Far:
    """The far ends of the pipes (the process's), and what our end reported."""

    def __init__(self, ready: ReadySet, budget: PipeBudget, cap_bytes: int = 1 << 20) -> None:
        self.stdin_fd, stdin_write = os.pipe()
        stdout_read, self.stdout_fd = os.pipe()
        self.our_stdout_fd = stdout_read
        for fd in (stdin_write, stdout_read):
            os.set_blocking(fd, False)
        self.lines: list[bytes | OverlongLine] = []
        self.closed = 0
        self.broken = 0
        self.blocked: list[bool] = []
        self.long: list[int] = []
        self.io = ChildIo(
            ready,
            stdin_write,
            stdout_read,
            budget,
            on_lines=self.lines.extend,
            on_stdout_closed=self._closed,
            on_stdin_blocked=self.blocked.append,
            on_stdin_broken=self._broken,
            on_long_line=lambda io: self.long.append(io.pending_bytes),
            on_paused=lambda _: None,
            cap_bytes=cap_bytes,
        )

    def _closed(self) -> None:
        self.closed += 1

    def _broken(self) -> None:
        self.broken += 1

    def take(self, size_bytes: int) -> bytes:
        """Read at the process's end; blocks unless it is there."""
        data = b""
        while len(data) < size_bytes and (part := os.read(self.stdin_fd, size_bytes - len(data))):
            data += part
        return data

    def end(self) -> None:
        """The process ends: its descriptors close."""
        for name in ("stdin_fd", "stdout_fd"):
            if (fd := getattr(self, name)) >= 0:
                os.close(fd)
                setattr(self, name, -1)


@contextmanager
def far(budget: PipeBudget | None = None, cap_bytes: int = 1 << 20) -> Iterator[tuple[Far, ReadySet]]:
    with no_leaks():
        ready = ReadySet()
        one = Far(ready, budget or PipeBudget(), cap_bytes)
        try:
            yield one, ready
        finally:
            one.io.close()
            one.io.close()  # twice is once
            one.end()
            assert len(ready) == 0
            ready.close()


@asynccontextmanager
async def served(budget: PipeBudget | None = None, cap_bytes: int = 1 << 20) -> AsyncIterator[Far]:
    with far(budget, cap_bytes) as (one, ready):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ready.run, lambda: None)
            yield one
            nursery.cancel_scope.cancel()


@behaviour("flood:endless-line")
def test_a_line_over_the_cap_is_read_in_short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    read = os.read

    def counted(fd: int, size_bytes: int) -> bytes:
        asked.append(size_bytes)
        return read(fd, size_bytes)

    with far() as (one, ready):
        monkeypatch.setattr(os, "read", counted)
        sizes = []
        for data in (*[b"x" * 32 * KIB] * 40, b"\n", *[b"x" * 32 * KIB] * 12):
            os.write(one.stdout_fd, data)
            ready._round()
            ready._round()
            sizes.append((asked[-1] // KIB, one.io.is_overlong))
        assert sizes[20] == (256, False), "a long line is read in long pieces"
        assert sizes[39] == (64, True)
        assert sizes[-1] == (256, False), "the next one"


def test_written_lines_arrive_whole_and_in_order_and_only_at_flush() -> None:
    with far() as (one, _):
        one.io.write(b"one\n")
        one.io.write(b"two\n")
        assert one.io.unwritten_count() == 2
        one.io.flush()
        assert one.take(8) == b"one\ntwo\n"
        assert (one.io.unwritten_count(), one.io.unwritten_bytes, one.blocked) == (0, 0, [])


@behaviour("pressure:answers-of-carpool")
async def test_while_too_many_answers_wait_nothing_is_read_and_all_is_read_when_they_are_written() -> None:
    async with served() as one:
        size_bytes = _capacity(one) + MAX_ANSWERS
        one.io.write_answer(b"x" * (size_bytes - 1) + b"\n")
        one.io.flush()
        for _ in range(MAX_ANSWERS - 1):
            assert not one.io.write_answer(b"{}\n")
        os.write(one.stdout_fd, b"first\n")
        await until(lambda: one.lines == [b"first"], "it is read")
        assert [one.io.write_answer(b"{}\n") for _ in range(3)] == [True, False, False], "it is told once"
        os.write(one.stdout_fd, b"second\n")
        await trio.testing.wait_all_tasks_blocked()
        assert one.lines == [b"first"]
        size_bytes += 3 * (MAX_ANSWERS + 2)
        taken = 0
        while taken < size_bytes:
            taken += len(os.read(one.stdin_fd, 65536))
            await trio.testing.wait_all_tasks_blocked()
        await until(lambda: one.lines == [b"first", b"second"], "it is read again")


@behaviour("pressure:answers-of-carpool")
async def test_a_server_that_closes_its_stdin_while_too_many_answers_wait_is_read_on() -> None:
    async with served() as one:
        one.io.write_answer(b"x" * 2 * _capacity(one))
        one.io.flush()
        for _ in range(MAX_ANSWERS):
            one.io.write_answer(b"{}\n")
        os.write(one.stdout_fd, b"last\n")
        await trio.testing.wait_all_tasks_blocked()
        assert not one.lines
        os.close(one.stdin_fd)
        one.stdin_fd = -1
        await until(lambda: one.lines == [b"last"], "it is read")
        assert not one.io.takes_lines


async def test_a_full_pipe_blocks_nobody_and_the_rest_follows_in_order() -> None:
    lines = [b"%06d" % at + b"x" * (at * 37 % 5000) + b"\n" for at in range(200)]
    whole = b"".join(lines)
    async with served() as one:
        for line in lines:
            one.io.write(line)
            one.io.flush()
        assert one.blocked == [True]
        assert one.io.unwritten_bytes >= len(whole) - _capacity(one)
        got = b""
        while len(got) < len(whole):
            await trio.lowlevel.wait_readable(one.stdin_fd)
            got += os.read(one.stdin_fd, 100 * KIB)
        assert got == whole
        await until(lambda: one.blocked == [True, False], "it is said that the pipe takes again")
        assert (one.io.unwritten_count(), one.io.unwritten_bytes) == (0, 0)


def test_a_line_of_which_bytes_are_missing_is_undelivered_and_one_without_only_its_newline_is_not() -> None:
    with far() as (one, _):
        capacity = _capacity(one)
        one.io.write(b"a" * (capacity - 1) + b"\n")  # fills the pipe to the byte
        one.io.write(b"never started\n")
        one.io.flush()
        assert one.io.unwritten_count() == 1
    with far() as (one, _):
        one.io.write(b"a" * (_capacity(one) - 3) + b"\n")
        one.io.write(b"begun\n")
        one.io.flush()
        assert one.io.unwritten_count() == 1
    with far() as (one, _):
        one.io.write(b"a" * _capacity(one) + b"\n")  # only the newline is missing: at end of file it may run
        one.io.write(b"next\n")
        one.io.flush()
        assert one.io.unwritten_count() == 1


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 40_000), max_size=12),
    st.lists(st.integers(1, 90_000), max_size=12),
    st.integers(0, 3),
)
def test_read_and_unwritten_bytes_add_up(sizes: list[int], reads: list[int], flush_every: int) -> None:
    with far() as (one, _):
        lines = [bytes([97 + at]) * size + b"\n" for at, size in enumerate(sizes)]
        for at, line in enumerate(lines):
            one.io.write(line)
            if flush_every and at % flush_every == 0:
                one.io.flush()
        one.io.flush()
        os.set_blocking(one.stdin_fd, False)
        got = b""
        for size in reads:
            try:
                got += os.read(one.stdin_fd, size)
            except BlockingIOError:
                break
            one.io._push()  # what the ReadySet calls
        while True:
            try:
                got += os.read(one.stdin_fd, 1 << 20)
            except BlockingIOError:
                break
        whole = b"".join(lines)
        assert got == whole[: len(whole) - one.io.unwritten_bytes]
        undelivered = [line for at, line in enumerate(lines) if sum(map(len, lines[: at + 1])) - 1 > len(got)]
        assert one.io.unwritten_count() == len(undelivered)


def test_what_a_process_has_not_read_of_its_stdin_is_seen_also_after_its_end() -> None:
    with far() as (one, _):
        assert not one.io.has_unread_stdin()
        one.io.write(b"{}\n")
        one.io.flush()
        assert one.io.has_unread_stdin()
        one.take(3)
        assert not one.io.has_unread_stdin()
        one.io.write(b"{}\n")
        one.io.flush()
        one.end()
        assert one.io.has_unread_stdin()


def test_a_process_that_closed_its_stdin_is_noticed_and_its_lines_stay_undelivered() -> None:
    with far() as (one, _):
        os.close(one.stdin_fd)
        one.stdin_fd = -1
        one.io.write(b"into the void\n")
        one.io.flush()
        one.io.write(b"again\n")
        one.io.flush()
        assert one.io.is_stdin_broken
        assert one.io.unwritten_count() == 2


async def test_a_process_that_closes_its_stdin_while_the_pipe_is_full_is_noticed_once() -> None:
    """Nothing waits for room in its pipe any more: the system reports a closed pipe as writable again and
    again.
    """
    async with served() as one:
        one.io.write(b"a" * 1_000_000 + b"\n")
        one.io.flush()
        os.close(one.stdin_fd)
        one.stdin_fd = -1
        await until(lambda: one.broken, "it is noticed")
        os.write(one.stdout_fd, b"last words\n")
        await until(lambda: one.lines, "its output is still read")
        assert (one.broken, one.blocked, one.io.unwritten_count()) == (1, [True], 1)


def test_closing_stdin_is_an_end_of_file_and_what_a_full_pipe_held_back_is_undelivered() -> None:
    with far() as (one, _):
        one.io.write(b"last\n")
        one.io.close_stdin()
        assert one.take(100) == b"last\n"
        one.io.write(b"too late\n")
        one.io.flush()
        one.io.close_stdin()
        assert one.io.unwritten_count() == 1
    with far() as (one, _):
        one.io.write(b"a" * 1_000_000 + b"\n")
        one.io.flush()
        one.io.close_stdin()
        assert one.io.unwritten_count() == 1
        assert len(one.take(2_000_000)) < 1_000_000


async def test_lines_come_whole_and_the_end_is_told_once_half_lines_dropped() -> None:
    async with served() as one:
        os.write(one.stdout_fd, b'{"a":1}\n{"b"')
        await until(lambda: one.lines == [b'{"a":1}'], "the first line came")
        assert one.io.received_bytes == 12
        os.write(one.stdout_fd, b":2}\nhalf a li")
        one.end()
        await until(lambda: one.closed, "the end is told")
        assert one.lines == [b'{"a":1}', b'{"b":2}']
        drained(one)
        assert one.closed == 1


async def test_a_line_over_the_cap_is_reported_and_the_next_one_read() -> None:
    async with served(cap_bytes=1000) as one:
        os.write(one.stdout_fd, b'{"id":7,"result":"' + b"x" * 2000 + b'"}\nshort\n')
        await until(lambda: len(one.lines) == 2, "both came")
        assert isinstance(one.lines[0], OverlongLine)
        assert one.lines[0].id == b"7"
        assert one.lines[1] == b"short"


async def test_paused_it_reads_nothing_resumed_everything_and_drained_also_while_paused() -> None:
    async with served() as one:
        one.io.pause()
        os.write(one.stdout_fd, b"waits\n")
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert one.lines == []
        one.io.resume()
        await until(lambda: one.lines == [b"waits"], "it was read")
        one.io.pause()
        os.write(one.stdout_fd, b"last words\n")
        one.end()
        drained(one)
        assert one.lines == [b"waits", b"last words"]


def test_draining_ends_though_somebody_else_holds_the_pipe_open() -> None:
    with far() as (one, _):
        os.write(one.stdout_fd, b"last words\n")
        drained(one)
        drained(one)
        assert (one.lines, one.closed) == ([b"last words"], 0)


@behaviour("pressure:short-lines")
async def test_a_turn_takes_a_few_lines_of_a_flood_and_others_have_their_turn() -> None:
    budget = PipeBudget()
    with far(budget) as (flooding, ready):
        other = Far(ready, budget)
        seen: list[int] = []
        other.io._on_lines = lambda _: seen.append(len(flooding.lines))
        os.write(flooding.stdout_fd, b"".join(b"%d\n" % number for number in range(5000)))
        os.write(other.stdout_fd, b"other\n")
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ready.run, lambda: None)
                await until(lambda: len(flooding.lines) == 5000, "all came")
                nursery.cancel_scope.cancel()
        assert flooding.lines == [b"%d" % number for number in range(5000)]
        assert seen, "the other was heard"
        assert seen[0] <= TURN_LINES
        other.io.close()
        other.end()


def drained(one: Far) -> list[int]:
    """Drain an ended process, and count the lines of each turn."""
    turns, before, has_more = list[int](), len(one.lines), True
    while has_more:
        has_more = one.io.drain(lambda line: b"id" in line)  # type: ignore[operator]
        turns.append(len(one.lines) - before)
        before = len(one.lines)
    return turns


@behaviour("pressure:last-lines")
def test_an_ended_process_is_drained_in_turns_of_a_few_lines_and_keeps_their_order() -> None:
    numbers = [b"%d" % number for number in range(1000)]
    with far() as (one, _):
        os.write(one.stdout_fd, b"\n".join([*numbers, b""]))
        one.end()
        turns = drained(one)
        assert one.lines == numbers
        assert one.io.left_out_lines == 0
    assert max(turns) == TURN_LINES


@behaviour("pressure:last-lines")
@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="pipe sizes are Linux's")
def test_of_a_full_pipe_of_an_ended_process_a_few_lines_and_all_that_matter_are_handed_over() -> None:
    with far() as (one, _):
        fcntl.fcntl(one.stdout_fd, fcntl.F_SETPIPE_SZ, RAISED_PIPE_BYTES)
        answers = [b"first id", *[b"id %d" % number for number in range(300)], b"last id"]
        flood = b"0\n" * 100_000
        write_all(one.stdout_fd, b"%b\n" % answers[0] + flood + b"\n".join(answers[1:-1]) + b"\n" + flood)
        write_all(one.stdout_fd, b"%b\n" % answers[-1])
        one.end()
        turns = drained(one)
        assert [line for line in one.lines if line != b"0"] == answers
        reads = 2 * 200_000 // 65536 + 1
        assert len(one.lines) - len(answers) <= (DRAIN_TURNS + reads) * TURN_LINES
        assert one.io.left_out_lines == 200_000 - (len(one.lines) - len(answers))
    assert max(turns) <= TURN_LINES


def reached(one: Far, count: int) -> bool:
    return len(one.lines) == count


@behaviour("pressure:short-lines")
async def test_lines_that_wait_for_their_turn_stay_while_paused_and_come_first_when_drained() -> None:
    numbers = [b"%d" % number for number in range(1000)]

    async with served() as one:

        def take_and_pause(lines: list[bytes | OverlongLine]) -> None:
            one.lines += lines
            one.io.pause()

        one.io._on_lines = take_and_pause
        os.write(one.stdout_fd, b"\n".join([*numbers, b""]))
        await until(lambda: bool(one.lines), "the first have come")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert one.lines == numbers[:TURN_LINES]
        for count in range(2 * TURN_LINES, 500, TURN_LINES):
            one.io.resume()
            await until(partial(reached, one, count), "one turn")
        one.io._on_lines = one.lines.extend
        one.io.resume()
        await until(lambda: len(one.lines) == 1000, "the rest follows, with nothing more in the pipe")
        assert one.lines == numbers
        one.io._on_lines = take_and_pause
        os.write(one.stdout_fd, b"\n".join([*numbers, b""]))
        await until(partial(reached, one, 1000 + TURN_LINES), "one turn")
        os.write(one.stdout_fd, b"later\n")
        drained(one)
        assert one.lines[1000:] == [*numbers, b"later"]


@behaviour("pipes:raised-for-few")
@pytest.mark.skipif(not hasattr(fcntl, "F_GETPIPE_SZ"), reason="pipe sizes are Linux's")
async def test_only_a_bounded_number_of_senders_of_long_lines_get_larger_pipes() -> None:
    budget = PipeBudget(limit=1)
    async with served(budget) as short, served(budget) as first, served(budget) as second:
        os.write(short.stdout_fd, b"short\n" * 1000)
        await until(lambda: len(short.lines) == 1000, "the short lines came")
        for one in (first, second):
            await trio.to_thread.run_sync(_write_all, one.stdout_fd, b"x" * 400 * KIB + b"\n")
            await until(lambda at=one: at.lines, "the long line came")  # type: ignore[misc]  # bound late
        assert _pipe_bytes(first) == RAISED_PIPE_BYTES
        assert _pipe_bytes(second) == _pipe_bytes(short) < RAISED_PIPE_BYTES
        first.io.close()  # gives its share back
        await trio.to_thread.run_sync(_write_all, second.stdout_fd, b"x" * 400 * KIB + b"\n")
        await until(lambda: len(second.lines) == 2, "its next long line came")
        assert _pipe_bytes(second) == RAISED_PIPE_BYTES
    assert budget.acquire()


def _pipe_bytes(one: Far) -> int:
    return fcntl.fcntl(one.our_stdout_fd, fcntl.F_GETPIPE_SZ)


def _capacity(one: Far) -> int:
    return fcntl.fcntl(one.stdin_fd, fcntl.F_GETPIPE_SZ) if hasattr(fcntl, "F_GETPIPE_SZ") else 64 * KIB


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def test_objects_behind_the_pipes_are_freed_with_them() -> None:
    """Not by the collector: in a daemon it comes after hundreds of instances."""
    gc.disable()
    try:
        ready = ReadySet()
        one = Far(ready, PipeBudget())
        one.io.close()
        one.end()
        ready.close()
        gone = weakref.ref(one)
        del one
        assert gone() is None
    finally:
        gc.enable()


@behaviour("pressure:long-lines")
def test_a_process_holds_at_most_twice_a_long_line_while_it_is_read() -> None:
    piece = b"x" * 32 * KIB
    with far(cap_bytes=16 << 20) as (one, ready):
        gc.collect()
        tracemalloc.start()
        try:
            for data in (*[piece] * 256, b"\n"):
                os.write(one.stdout_fd, data)
                while not _is_empty(one):
                    ready._round()
            ready._round()
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        (line,) = one.lines
        assert isinstance(line, bytes)
        assert len(line) == 8 << 20
        assert peak_bytes < 2.2 * len(line)


def _is_empty(one: Far) -> bool:
    """Nothing waits in the pipe of its stdout."""
    return not select.select([one.our_stdout_fd], [], [], 0)[0]


@behaviour("pressure:long-lines")
async def test_a_long_line_is_handed_over_in_a_turn_of_its_own() -> None:
    happened: list[str] = []
    with far(cap_bytes=4 << 20) as (one, ready):
        one.io._on_lines = lambda lines: happened.append(f"line of {len(lines[0])}")  # type: ignore[arg-type]
        one.io._on_long_line = lambda _: happened.append("long")
        line = b"x" * (1 << 20)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ready.run, lambda: happened.append("turn"))
            nursery.start_soon(trio.to_thread.run_sync, write_all, one.stdout_fd, line + b"\n")
            await until(lambda: f"line of {len(line)}" in happened, "the line came")
            nursery.cancel_scope.cancel()
    at = happened.index(f"line of {len(line)}")
    assert happened[at - 2 : at] == ["long", "turn"], "others had a turn before it is parsed"


@behaviour("lines:no-result-no-room")
async def test_a_long_line_without_a_result_is_not_kept() -> None:
    notice = b'{"jsonrpc":"2.0","method":"m","params":{"%b":1}}' % (b"x" * MAX_LINE_BYTES)
    result = b'{"jsonrpc":"2.0","id":1,"result":{"%b":1}}' % (b"x" * MAX_LINE_BYTES)
    with far(cap_bytes=64 << 20) as (one, ready):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ready.run, lambda: None)
            nursery.start_soon(
                trio.to_thread.run_sync, write_all, one.stdout_fd, b"%b\n%b\n" % (notice, result)
            )
            await until(lambda: len(one.lines) == 2, "both lines came")
            nursery.cancel_scope.cancel()
    assert one.lines == [OverlongLine(None, False, len(notice), crc32(notice)), result]


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
