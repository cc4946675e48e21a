"""One agent's socket: what is read, what waits, and what is said of that."""

import gc
import socket
import tracemalloc
import weakref
from collections.abc import Iterator

import pytest

from carpool_broker.transport.socket_io import AgentIo
from carpool_protocol.ids import CallId
from carpool_protocol.runtime.poller import CROWDED_ROUND, ROUND_BYTES, TURN_LINES, ReadySet
from carpool_protocol.runtime.pump import OUTPUTS_PER_FLUSH
from carpool_protocol.wire.lines import OverlongLine
from tests.behaviours import behaviour

MIB = 1024 * 1024


class Ends:
    """Both ends of an agent's socket."""

    def __init__(self) -> None:
        self.ready = ReadySet()
        ours, self.agent = socket.socketpair()
        for each in (ours, self.agent):
            each.setblocking(False)
        self.taken: list[list[bytes | OverlongLine]] = []
        self.unread: list[int] = []
        self.written: list[CallId] = []
        self.answer_bytes = 0
        """Each line is answered with so much, if with anything."""
        self.io = AgentIo(
            ours,
            self.ready,
            on_lines=self.take,
            on_closed=lambda: None,
            on_input_ended=lambda: None,
            on_unfinished=lambda: None,
            on_unread=self.unread.append,
            written=self.written,
        )
        self.io.skip_blanks()

    def take(self, lines: list[bytes | OverlongLine]) -> None:
        self.taken.append(lines)
        for _ in lines if self.answer_bytes else ():
            self.io.write(b"x" * (self.answer_bytes - 1) + b"\n")

    def round(self) -> None:
        self.ready._round()
        self.io.flush()

    def read(self) -> int:
        """What the agent can read now, in bytes, until nothing comes any more."""
        count = 0
        while True:
            try:
                count += len(self.agent.recv(MIB))
            except BlockingIOError:
                before = self.io.unread_bytes
                self.round()
                if self.io.unread_bytes == before:
                    return count


@pytest.fixture
def ends() -> Iterator[Ends]:
    one = Ends()
    yield one
    one.io.close()
    one.agent.close()
    one.ready.close()


def test_a_burst_of_requests_is_taken_in_pieces_and_no_further_than_the_agent_reads(ends: Ends) -> None:
    ends.answer_bytes = MIB
    ends.agent.sendall(b"".join(b"line %d\n" % n for n in range(500)))
    ends.round()
    assert sum(map(len, ends.taken)) == OUTPUTS_PER_FLUSH, "then it was seen that nobody reads"
    total = 0
    for _ in range(100):
        if (count := ends.read()) == 0:
            break
        total += count
    assert total == 500 * MIB
    assert [line for piece in ends.taken for line in piece] == [b"line %d" % n for n in range(500)]


@behaviour("pressure:short-lines")
def test_each_round_takes_a_few_lines_of_a_flood(ends: Ends) -> None:
    ends.agent.send(b"{}\n" * 1000)
    for turn in range(1, 8):
        ends.round()
        assert sum(map(len, ends.taken)) == turn * TURN_LINES
    ends.agent.send(b"more\n")
    for _ in range(3):
        ends.round()
    assert [line for piece in ends.taken for line in piece] == [*[b"{}"] * 1000, b"more"]


@behaviour("pressure:long-lines")
def test_a_process_holds_at_most_twice_a_long_line_while_it_is_read(ends: Ends) -> None:
    gc.collect()
    tracemalloc.start()
    try:
        for data in (*[b"x" * 32 * 1024] * 224, b"\n"):
            ends.agent.sendall(data)
            ends.round()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    ((line,),) = ends.taken
    assert isinstance(line, bytes)
    assert len(line) == 7 * MIB
    assert peak_bytes < 2.2 * len(line)


def test_unread_bytes_are_reported_at_every_step_and_when_all_is_read(ends: Ends) -> None:
    for _ in range(3):
        ends.io.write(b"x" * MIB)
        ends.io.flush()
    assert ends.unread == sorted(ends.unread)
    assert 2 * MIB < ends.unread[-1] <= 3 * MIB
    ends.read()
    assert ends.unread[-1] == 0
    ends.io.write(b"short\n")
    ends.io.flush()
    assert ends.unread[-1] == 0
    assert len(ends.unread) < 10, "not with every byte"


def test_lines_leave_whole_and_in_order_whatever_their_sizes(ends: Ends) -> None:
    sizes = [1, 300_000, 2, 2, 100_000, 200_000, 5, 1_000_000, 3]
    wanted = b"".join(b"%d" % (at % 10) * size for at, size in enumerate(sizes))
    for at, size in enumerate(sizes):
        ends.io.write(b"%d" % (at % 10) * size)
    ends.io.flush()
    got = b""
    while len(got) < len(wanted):
        try:
            got += ends.agent.recv(MIB)
        except BlockingIOError:
            ends.round()
    assert got == wanted
    assert ends.io.unread_bytes == 0
    assert not ends.io.is_blocked


@behaviour("pressure:short-lines")
def test_the_more_agents_send_the_less_is_read_of_each_at_a_time(ends: Ends) -> None:
    others = [socket.socketpair() for _ in range(CROWDED_ROUND - 1)]
    for count, (ours, theirs) in enumerate([(None, None), *others], 1):
        if ours is not None and theirs is not None:
            ends.ready.add(ours.fileno(), lambda: None)
            theirs.send(b"x")
        if count in (1, 2, 8, 64):
            ends.agent.sendall(b"z\n" * ROUND_BYTES)
            ends.round()
            left = len(ends.io._sock.recv(MIB, socket.MSG_PEEK))
            assert 2 * ROUND_BYTES - left == ROUND_BYTES // count
            ends.io._sock.recv(MIB)
            while ends.io._later:
                ends.round()
    for ours, theirs in others:
        ends.ready.remove(ours.fileno())
        ours.close()
        theirs.close()


def test_in_a_crowd_a_few_calls_of_each_are_read_at_a_time_but_a_long_line_as_ever(ends: Ends) -> None:
    share = ends.ready.share_bytes = ROUND_BYTES // CROWDED_ROUND
    ends.agent.sendall(b"x" * 99 + b"\n" + b"y" * 99 + b"\n" * (4 * share))
    ends.io._read_ready()
    assert ends.io.unread_bytes == 0
    assert sum(map(len, ends.taken)) == 2
    left = len(ends.io._sock.recv(MIB, socket.MSG_PEEK))
    assert left == 199 + 4 * share - share
    ends.io._sock.recv(MIB)
    for _ in range(CROWDED_ROUND + 2):
        ends.agent.sendall(b"z" * share)
        ends.io._read_ready()
    assert ends.io.pending_bytes > ROUND_BYTES
    ends.agent.sendall(b"z" * 10 * share)
    before = ends.io.pending_bytes
    ends.io._read_ready()
    assert ends.io.pending_bytes == before + 10 * share


def test_an_answer_is_written_when_the_socket_has_all_of_it_and_not_before(ends: Ends) -> None:
    ends.io.write(b"x\n")
    ends.io.mark_call(CallId(1))
    assert ends.written == []
    ends.io.flush()
    assert ends.written == [1]
    # More than the socket takes; some of it leaves as it is accepted.
    for call in (2, 3, 4):
        ends.io.write(b"y" * MIB + b"\n")
        ends.io.mark_call(CallId(call))
    ends.io.flush()
    assert ends.written != [1, 2, 3, 4]
    before = 0
    ends.io.mark_call(CallId(5))  # with no line of its own
    while ends.io.unread_bytes:
        assert 5 not in ends.written
        ends.read()
        assert len(ends.written) >= before
        before = len(ends.written)
    ends.io.mark_call(CallId(6))
    assert ends.written == [1, 2, 3, 4, 5, 6]


def test_objects_behind_a_connection_are_freed_with_it() -> None:
    """Not by the collector: in a daemon it comes after thousands of sessions."""
    gc.disable()
    try:
        one = Ends()
        one.io.close()
        one.agent.close()
        one.ready.close()
        gone = weakref.ref(one)
        del one
        assert gone() is None
    finally:
        gc.enable()


def test_a_read_asks_for_no_more_memory_than_what_has_come() -> None:
    """Else the heap of a daemon fills with holes."""
    one = Ends()
    one.agent.send(b"x" * 100 + b"\n")
    tracemalloc.start()
    try:
        one.ready._round()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert one.taken == [[b"x" * 100]]
    assert most < ROUND_BYTES // 4
    one.io.close()
    one.agent.close()
    one.ready.close()
