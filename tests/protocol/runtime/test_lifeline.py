"""The child's end of the lifeline."""

import socket
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from carpool_protocol.runtime import lifeline
from carpool_protocol.runtime.lifeline import Lifeline

Pair = tuple[socket.socket, Lifeline]
ROUNDS_S = 2.5 * lifeline.ALIVE_EVERY_S
"""Time for a sign of life at once and two more."""


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """The launcher's end, non-blocking, and the child's. The clock of the test begins with a period."""
    monkeypatch.setattr(lifeline, "until_due", lambda period_s: period_s)
    launcher, child = socket.socketpair()
    launcher.setblocking(False)
    line = Lifeline(child.detach())
    yield launcher, line
    launcher.close()
    line.close()


class Heard:
    def __init__(self) -> None:
        self.words: list[str] = []

    def stop(self) -> None:
        self.words.append("stop")

    def gone(self, name: str) -> None:
        self.words.append(f"gone {name}")


async def test_stop_and_gone_are_passed_on_in_order_and_stop_once(pair: Pair) -> None:
    launcher, lifeline = pair
    heard = Heard()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lifeline.run, heard.stop, heard.gone)
            for part in (b"gone s", b"up1\nst", b"op\nstop\nwhat is this\ngone sup2\n"):
                launcher.send(part)
                await wait_all_tasks_blocked()
            launcher.shutdown(socket.SHUT_WR)
    assert heard.words == ["gone sup1", "stop", "gone sup2"]


async def test_another_word_for_stop_is_passed_on_and_the_same_one_is_not(pair: Pair) -> None:
    launcher, lifeline = pair
    words: list[str] = []
    launcher.send(b"stop again\nstop again\nstop again now\n")
    launcher.shutdown(socket.SHUT_WR)
    with trio.fail_after(5):
        await lifeline.run(lambda: words.append(lifeline.stop_command), lambda _: None)
    assert words == ["stop again", "stop again now"]


async def test_a_dead_launcher_stops_the_child(pair: Pair) -> None:
    launcher, lifeline = pair
    heard = Heard()
    launcher.close()
    with trio.fail_after(5):
        await lifeline.run(heard.stop, heard.gone)
    assert heard.words == ["stop"]


async def test_it_says_ready_and_then_that_it_is_alive_again_and_again(
    pair: Pair, autojump_clock: MockClock
) -> None:
    launcher, lifeline = pair
    lifeline.ready()
    with trio.move_on_after(ROUNDS_S):
        await lifeline.run(lambda: None, lambda _: None)
    assert launcher.recv(4096) == b"ready\nalive\nalive\nalive\n"


async def test_that_it_is_alone_it_says_with_the_next_sign_of_life(
    pair: Pair, autojump_clock: MockClock
) -> None:
    launcher, lifeline = pair
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lifeline.run, lambda: None, lambda _: None)
        await trio.sleep(0.5)
        lifeline.end_return_period()
        await trio.sleep(ROUNDS_S - 0.5)
        nursery.cancel_scope.cancel()
    assert launcher.recv(4096) == b"alive\nalone\nalone\n"


async def test_it_stays_alive_while_it_drains(pair: Pair, autojump_clock: MockClock) -> None:
    launcher, lifeline = pair
    launcher.send(b"stop\n")
    with trio.move_on_after(ROUNDS_S):
        await lifeline.run(lambda: None, lambda _: None)
    assert launcher.recv(4096).count(b"alive\n") == 3


async def test_a_launcher_that_does_not_read_blocks_nothing_and_gets_whole_lines(pair: Pair) -> None:
    launcher, lifeline = pair
    for _ in range(20_000):
        lifeline._send(b"alive\n")
    said = b""
    while True:
        try:
            said += launcher.recv(1 << 16)
        except BlockingIOError:
            break
    lifeline._send(b"alive\n")
    said += launcher.recv(4096)
    assert len(said) < 20_000 * 6
    assert set(said.split(b"\n")) == {b"alive", b""}


def test_that_nobody_uses_carpool_is_one_line(pair: Pair) -> None:
    launcher, lifeline = pair
    lifeline.idle()
    assert launcher.recv(4096) == b"idle\n"


def test_a_line_of_which_a_part_was_sent_is_completed_before_the_next_one() -> None:
    """The launcher would take the rest for a line of its own. A TCP socket takes parts of a line everywhere,
    a Unix socket on some systems.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        launcher = socket.create_connection(server.getsockname(), timeout=20)
        child, _ = server.accept()
    launcher.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    child.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    lifeline = Lifeline(child.detach())
    notes = [str(number) + "x" * 1000 for number in range(2000)]
    received = b""
    try:
        for note in notes:
            lifeline.note(note)
        while not received.endswith(b"\nready\n"):
            lifeline.ready()
            received += launcher.recv(1 << 16)
    finally:
        launcher.close()
        lifeline.close()
    lines = received.decode().split("\n")[:-1]
    assert set(lines) <= {"ready", *(f"note {note}" for note in notes)}
    assert len(lines) < len(notes), "some did not fit"
