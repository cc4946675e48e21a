"""How much is read from servers: pauses and the budget for unfinished lines, with real pipes."""

import os
from collections.abc import Iterator

import pytest

from carpool_protocol.machine.line_shares import MIN_RATE_BYTES
from carpool_protocol.runtime.poller import ReadySet
from carpool_supervisor.stdio.child_io import LONG_LINE_BYTES, ChildIo, PipeBudget
from carpool_supervisor.stdio.read_budget import HELD_HIGH_BYTES, HELD_LOW_BYTES, ReadBudget
from tests.behaviours import behaviour

BUDGET = 4 * LONG_LINE_BYTES
CHUNK = b"x" * 32_768


class WritingServers:
    """Servers that write, as far as they are read."""

    def __init__(self) -> None:
        self.ready = ReadySet()
        self.intake = ReadBudget(BUDGET)
        self.lines: list[int] = []
        """The lengths of whole lines that came."""
        self.paused: list[tuple[int, bool]] = []
        """Which server was paused or read again."""
        self.life: list[int] = []
        """Which server gave a sign of life by its unfinished line."""
        self.servers = [self.server(place) for place in range(3)]

    def server(self, place: int) -> tuple[int, ChildIo]:
        stdin_read, stdin_write = os.pipe()
        stdout_read, stdout_write = os.pipe()
        os.close(stdin_read)
        for fd in (stdin_write, stdout_read, stdout_write):
            os.set_blocking(fd, False)
        io = ChildIo(
            self.ready,
            stdin_write,
            stdout_read,
            PipeBudget(0),
            on_lines=lambda lines: self.lines.extend(len(line) for line in lines if isinstance(line, bytes)),
            on_stdout_closed=lambda: None,
            on_stdin_blocked=lambda _: None,
            on_stdin_broken=lambda: None,
            on_long_line=lambda io: self.life.extend([place] * self.intake.line_grew(io)),
            on_paused=lambda paused: self.paused.append((place, paused)),
        )
        self.intake.add(io)
        return stdout_write, io

    def write(self, place: int, size_bytes: int, end: bytes = b"") -> int:
        """Have a server write so much of a line; how much of it was taken."""
        fd, _ = self.servers[place]
        data = b"x" * size_bytes + end
        taken = 0
        for _ in range(200):
            try:
                taken += os.write(fd, data[taken : taken + len(CHUNK)])
            except BlockingIOError:
                self.ready._round()
            if taken == len(data):
                break
        self.ready._round()
        self.ready._round()
        return taken

    def pending(self) -> list[int]:
        return [io.pending_bytes for _, io in self.servers]


@pytest.fixture
def rig() -> Iterator[WritingServers]:
    one = WritingServers()
    yield one
    for fd, io in one.servers:
        io.close()
        os.close(fd)
    one.ready.close()


@behaviour("pressure:server-lines")
def test_of_the_long_lines_above_their_share_only_the_oldest_is_read_on(rig: WritingServers) -> None:
    rig.write(1, 3 * LONG_LINE_BYTES)
    rig.write(0, 8 * LONG_LINE_BYTES)
    assert BUDGET < sum(rig.pending()) <= BUDGET + 2 * 65_536 + LONG_LINE_BYTES, rig.pending()
    oldest_before = rig.pending()[1]
    rig.write(1, 2 * LONG_LINE_BYTES)
    assert rig.pending()[1] > oldest_before
    assert rig.write(2, 1000, b"\n") == 1001
    assert rig.lines == [1000], "short lines of others pass"
    rig.write(1, 0, b"\n")
    before = rig.pending()[0]
    rig.write(0, 2 * LONG_LINE_BYTES)
    assert rig.pending()[0] > before, "then it is the next one's turn"


@behaviour("pressure:server-lines")
def test_a_long_line_within_its_share_is_read_beside_unfinished_lines_of_others(rig: WritingServers) -> None:
    rig.write(1, 3 * LONG_LINE_BYTES)
    rig.write(0, 8 * LONG_LINE_BYTES)
    assert rig.paused == [(0, True)]
    size = LONG_LINE_BYTES + 30_000
    assert rig.write(2, size, b"\n") == size + 1
    assert rig.lines == [size]


@behaviour("pressure:server-lines")
def test_a_line_that_others_wait_for_is_a_sign_of_life_only_while_it_grows(rig: WritingServers) -> None:
    rig.write(1, 3 * LONG_LINE_BYTES)
    rig.write(0, 8 * LONG_LINE_BYTES)
    rig.write(1, MIN_RATE_BYTES)
    rig.life.clear()
    for _ in range(3):
        rig.write(1, 1)
    assert rig.life == []
    rig.write(1, MIN_RATE_BYTES)
    assert 1 in rig.life
    rig.write(0, 0, b"\n")
    rig.intake.remove(rig.servers[0][1])
    rig.life.clear()
    rig.write(1, 1)
    assert rig.life == [1], "nobody waits for it any more"


def test_the_turn_goes_on_when_the_server_with_the_oldest_line_is_gone(rig: WritingServers) -> None:
    rig.write(1, 3 * LONG_LINE_BYTES)
    rig.write(0, 8 * LONG_LINE_BYTES)
    before = rig.pending()[0]
    rig.intake.remove(rig.servers[1][1])
    rig.write(0, 2 * LONG_LINE_BYTES)
    assert rig.pending()[0] > before


def test_no_server_is_read_while_much_output_waits_for_the_broker(rig: WritingServers) -> None:
    rig.intake.settle(HELD_HIGH_BYTES + 1)
    rig.servers.append(rig.server(3))
    for place in range(4):
        rig.write(place, 10, b"\n")
    assert rig.lines == []
    rig.intake.settle(HELD_LOW_BYTES)
    for _ in range(2):
        rig.ready._round()
    assert rig.lines == []
    rig.intake.settle(HELD_LOW_BYTES - 1)
    for _ in range(2):
        rig.ready._round()
    assert rig.lines == [10] * 4


@behaviour("silence:only-while-read")
def test_each_pause_is_told_once_and_what_was_written_meanwhile_is_there_at_its_end(
    rig: WritingServers,
) -> None:
    rig.intake.settle(HELD_HIGH_BYTES + 1)
    rig.intake.settle(HELD_HIGH_BYTES + 2)
    assert rig.paused == [(place, True) for place in range(3)]
    rig.write(1, 10, b"\n")
    assert [io.has_unread for _, io in rig.servers] == [False, True, False]
    rig.paused.clear()
    rig.intake.settle(HELD_LOW_BYTES - 1)
    rig.intake.settle(HELD_LOW_BYTES - 2)
    assert rig.paused == [(place, False) for place in range(3)]


@behaviour("silence:only-while-read")
def test_servers_that_are_rationed_are_told_as_paused_and_the_oldest_is_not(rig: WritingServers) -> None:
    rig.write(1, 3 * LONG_LINE_BYTES)
    rig.write(0, 8 * LONG_LINE_BYTES)
    assert rig.paused == [(0, True)]
    rig.write(1, 0, b"\n")
    assert rig.paused == [(0, True), (0, False)]
