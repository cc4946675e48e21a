"""The ready set: one task for many descriptors, and what callbacks may do to it in the middle of a round."""

import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio
import trio.testing

from carpool_protocol.runtime import poller as ready_module
from carpool_protocol.runtime.poller import ROUND_BYTES, ReadySet
from tests.kit.waits import until

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture(autouse=True, params=["epoll", "selectors"])
def polling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test also with what stands in for epoll elsewhere."""
    if request.param == "selectors":
        monkeypatch.setattr(ready_module, "_new_poll", ready_module._Selected)


@pytest.fixture
def sockets() -> Iterator[list[Ends]]:
    made = [socket.socketpair() for _ in range(8)]
    for a, b in made:
        a.setblocking(False)
        b.setblocking(False)
    yield made
    for a, b in made:
        a.close()
        b.close()


@asynccontextmanager
async def serving(ready: ReadySet) -> AsyncIterator[list[int]]:
    """The set running; yields one entry per settled round."""
    rounds: list[int] = []
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ready.run, lambda: rounds.append(1))
            yield rounds
            nursery.cancel_scope.cancel()
    ready.close()


async def turns(count: int = 5) -> None:
    """Let the set run for some rounds: what has not happened after them does not happen."""
    for _ in range(count):
        await trio.testing.wait_all_tasks_blocked(0.005)


async def test_what_is_ready_at_once_is_served_in_one_round_and_settled_once(sockets: list[Ends]) -> None:
    ready, heard = ReadySet(), []
    for i, (a, b) in enumerate(sockets):
        ready.add(a.fileno(), lambda i=i, a=a: heard.append((i, a.recv(100))))  # type: ignore[misc]
        b.send(b"x")
    async with serving(ready) as rounds:
        await until(lambda: len(heard) == 8, "all heard")
        await turns()
        assert sorted(heard) == [(i, b"x") for i in range(8)]
        assert len(rounds) == 1


async def test_a_descriptor_added_while_the_set_waits_is_served(sockets: list[Ends]) -> None:
    ready, heard = ReadySet(), []
    async with serving(ready):
        await turns()
        a, b = sockets[0]
        ready.add(a.fileno(), lambda: heard.append(a.recv(100)))
        b.send(b"late")
        await until(lambda: heard == [b"late"], "heard")


async def test_what_is_to_be_done_soon_is_done_in_a_round_of_its_own_and_others_run_too() -> None:
    ready = ReadySet()
    done: list[int] = []
    others: list[int] = []

    def again() -> None:
        done.append(len(others))
        if len(done) < 4:
            ready.call_soon(again)

    async with serving(ready) as rounds:
        await turns()
        ready.call_soon(again)  # while it sleeps
        while len(done) < 4:
            others.append(1)
            await trio.lowlevel.checkpoint()
        await turns()
        assert len(done) == len(rounds) == 4
        assert len(set(done)) > 1


async def test_what_a_reader_wants_soon_is_done_after_the_round_is_settled(sockets: list[Ends]) -> None:
    ready = ReadySet()
    log: list[str] = []
    a, b = sockets[0]

    def on_readable() -> None:
        log.append("read")
        a.recv(100)

    def settle() -> None:
        log.append("settled")
        if log.count("settled") == 1:
            ready.call_soon(lambda: log.append("soon"))

    ready.add(a.fileno(), on_readable)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ready.run, settle)
            b.send(b"x")
            await until(lambda: len(log) >= 4, "both rounds")
            await turns()
            nursery.cancel_scope.cancel()
    assert log == ["read", "settled", "soon", "settled"]
    ready.close()


async def test_paused_reading_leaves_bytes_where_they_are_and_does_not_spin(sockets: list[Ends]) -> None:
    ready, heard = ReadySet(), []
    a, b = sockets[0]
    ready.add(a.fileno(), lambda: heard.append(a.recv(100)))
    ready.pause_read(a.fileno())
    b.send(b"x")
    b.close()  # a hang-up is not to be told to nobody either
    async with serving(ready) as rounds:
        await turns()
        assert not heard
        assert not rounds
        ready.resume_read(a.fileno())
        await until(lambda: heard[:2] == [b"x", b""], "the bytes, then the end of file")
        ready.remove(a.fileno())


async def test_who_asks_for_another_turn_has_it_in_the_next_round_though_nothing_came(
    sockets: list[Ends],
) -> None:
    ready, heard = ReadySet(), []
    (a, b), (c, d) = sockets[:2]

    def once_more() -> None:
        with suppress(BlockingIOError):
            a.recv(100)
        heard.append("a")
        if heard.count("a") < 4:
            ready.read_again(a.fileno())

    ready.add(a.fileno(), once_more)
    ready.add(c.fileno(), lambda: heard.append(c.recv(1).decode()))
    b.sendall(b"x")
    d.sendall(b"123")
    async with serving(ready) as rounds:
        await until(lambda: len(heard) == 7, "all have had their turns")
        assert [heard[at : at + 2].count("a") for at in (0, 2, 4)] == [1, 1, 1], "one in each round"
        await turns()
        assert len(heard) == 7
        assert len(rounds) == 4
        ready.read_again(a.fileno())
        await until(lambda: len(heard) == 8, "whoever asks while nothing happens is not left waiting")
        await turns()
        assert len(rounds) == 5


async def test_another_turn_is_not_for_whom_is_paused_or_removed_by_then(sockets: list[Ends]) -> None:
    ready, heard = ReadySet(), []
    (a, _), (c, _), (e, f) = sockets[:3]
    ready.add(a.fileno(), lambda: heard.append("a"))
    ready.add(c.fileno(), lambda: heard.append("c"))
    ready.add(e.fileno(), lambda: heard.append(e.recv(1).decode()))
    ready.read_again(a.fileno())
    ready.read_again(c.fileno())
    ready.remove(a.fileno())
    ready.pause_read(c.fileno())
    async with serving(ready):
        f.sendall(b"e")
        await until(lambda: bool(heard), "the third is served")
        await turns()
        assert heard == ["e"]


async def test_writing_is_offered_until_it_is_no_longer_wanted(sockets: list[Ends]) -> None:
    ready, log = ReadySet(), []
    a, b = sockets[0]
    fd = a.fileno()

    def on_writable() -> None:
        log.append("write")
        if len(log) == 3:
            ready.want_write(fd, None)

    ready.add(fd, lambda: log.append(a.recv(100).decode()))
    ready.want_write(fd, on_writable)
    async with serving(ready):
        await until(lambda: len(log) == 3, "three offers")
        await turns()
        assert log == ["write"] * 3
        b.send(b"read")
        await until(lambda: log[3:] == ["read"], "still reading")


async def test_both_interests_of_one_descriptor_are_served_reading_first(sockets: list[Ends]) -> None:
    ready, log = ReadySet(), []
    a, b = sockets[0]
    b.send(b"x")

    def on_readable() -> None:
        log.append("read")
        a.recv(100)

    def on_writable() -> None:
        log.append("write")
        ready.want_write(a.fileno(), None)

    ready.add(a.fileno(), on_readable)
    ready.want_write(a.fileno(), on_writable)
    async with serving(ready):
        await until(lambda: len(log) == 2, "both")
        assert log == ["read", "write"]


async def test_a_writer_hears_of_a_hang_up_while_reading_is_paused(sockets: list[Ends]) -> None:
    ready, log = ReadySet(), []
    a, b = sockets[0]
    filler = b"x" * 65536
    with suppress(BlockingIOError):
        while True:
            a.send(filler)

    def on_writable() -> None:
        try:
            a.send(filler)
        except BrokenPipeError:
            log.append("broken")
            ready.remove(a.fileno())

    ready.add(a.fileno(), lambda: log.append("read"))
    ready.pause_read(a.fileno())
    ready.want_write(a.fileno(), on_writable)
    async with serving(ready):
        await turns()
        assert not log
        b.close()
        await until(lambda: log == ["broken"], "the hang-up")


async def test_a_callback_may_remove_others_of_the_same_round(sockets: list[Ends]) -> None:
    ready, heard = ReadySet(), []

    def remove_all_others(me: int) -> None:
        heard.append(me)
        for fd in fds:
            if fd != me:
                ready.remove(fd)

    fds = [a.fileno() for a, _ in sockets]
    for a, b in sockets:
        ready.add(a.fileno(), partial(remove_all_others, a.fileno()))
        b.send(b"x")
    async with serving(ready) as rounds:
        await until(lambda: rounds, "one round")
        assert len(heard) == 1 or len(set(heard)) == 1
        assert len(ready) == 1
        ready.remove(heard[0])


async def test_readiness_of_a_closed_descriptor_does_not_reach_the_next_use_of_its_number(
    sockets: list[Ends],
) -> None:
    ready, heard = ReadySet(), []
    fresh: list[socket.socket] = []
    fds = {a.fileno() for a, _ in sockets[:2]}

    def replace(me: int) -> None:
        # The first of the two closes the other and opens a silent one under the same number.
        heard.append("old")
        (other,) = fds - {me}
        ready.remove(me)
        ready.remove(other)
        x, y = socket.socketpair()
        fresh.extend((x, y))
        os.dup2(x.fileno(), other)
        ready.add(other, lambda: heard.append("new"))

    for a, b in sockets[:2]:
        ready.add(a.fileno(), partial(replace, a.fileno()))
        b.send(b"x")
    async with serving(ready):
        await until(lambda: heard, "the first")
        await turns()
        assert heard == ["old"]
        fresh[1].send(b"now")
        await until(lambda: "new" in heard, "the new descriptor's own readiness")
        for fd in fds:
            ready.remove(fd)
    for each in fresh:
        each.close()


async def test_a_descriptor_that_removes_itself_gets_no_write_call_in_the_same_round(
    sockets: list[Ends],
) -> None:
    ready, log = ReadySet(), []
    a, b = sockets[0]
    b.send(b"x")

    def on_readable() -> None:
        log.append("read")
        ready.remove(a.fileno())

    ready.add(a.fileno(), on_readable)
    ready.want_write(a.fileno(), lambda: log.append("write"))
    async with serving(ready):
        await until(lambda: log, "read")
        await turns()
        assert log == ["read"]


async def test_a_callback_that_raises_ends_the_run_loudly(sockets: list[Ends]) -> None:
    ready = ReadySet()
    a, b = sockets[0]

    def broken() -> None:
        raise RuntimeError("our bug")

    ready.add(a.fileno(), broken)
    b.send(b"x")
    with trio.fail_after(10), pytest.raises(RuntimeError, match="our bug"):
        await ready.run(lambda: None)
    ready.close()


def test_what_cannot_be_watched_is_refused_and_not_remembered(sockets: list[Ends], tmp_path: object) -> None:
    ready = ReadySet()
    fd = sockets[0][0].fileno()
    ready.add(fd, lambda: None)
    with pytest.raises(ValueError, match="watched already"):
        ready.add(fd, lambda: None)
    with open(f"{tmp_path}/plain", "w") as file, pytest.raises(OSError, match="not permitted"):
        ready.add(file.fileno(), lambda: None)
    assert len(ready) == 1
    ready.remove(fd)
    ready.remove(fd)
    ready.close()


def test_in_a_crowd_a_round_serves_a_portion_and_all_take_turns(
    sockets: list[Ends], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(ready_module, "CROWDED_ROUND", 4)
    ready = ReadySet()
    heard: list[int] = []
    for i, (a, b) in enumerate(sockets):
        ready.add(a.fileno(), partial(heard.append, i))  # and nobody reads: each is ready for ever
        b.send(b"x")
    ready._round()
    assert ready.share_bytes <= ROUND_BYTES // 4
    if request.node.callspec.params["polling"] == "epoll":
        assert len(heard) == 4
        ready._round()
        assert sorted(heard) == list(range(8)), "those that were not come to go first"
    ready.close()
