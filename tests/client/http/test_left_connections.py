"""Connections that one door leaves to the next: how they wait in between, and that clients notice nothing."""

import asyncio
import os
import resource
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

import msgspec
import pytest

from carpool.http import left_connections
from carpool.http.connection import HttpConnection
from carpool.http.left_connections import LeftConnection, end_backlog, end_connections, pack, unpack
from tests.behaviours import behaviour
from tests.client.http.test_connection import WAIT_S, Client, RecordingHandler, until
from tests.kit.leaks import open_fds

GET = b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /hold HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"


def pair(data: bytes = b"") -> tuple[LeftConnection, socket.socket]:
    ours, theirs = socket.socketpair()
    return LeftConnection(ours.detach(), data), theirs


def many_left(count: int, clients: list[socket.socket]) -> socket.socket:
    """The socket with so many connections, whose bytes are their numbers. `clients` gets the other ends."""
    pairs = [pair(b"%d" % number) for number in range(count)]
    clients += [client for _, client in pairs]
    return pack([each for each, _ in pairs])


@contextmanager
def few_descriptors(count: int) -> Iterator[None]:
    """Let this process open not many more descriptors than this."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="it counts descriptors in /proc")
def test_what_is_packed_is_unpacked_with_its_bytes_and_no_descriptor_is_left_behind() -> None:
    before = open_fds()
    pairs = [pair(b"%d" % at * at) for at in range(300)]
    packed = pack([left for left, _ in pairs])
    found = unpack(packed)
    assert [each.data for each in found] == [b"%d" % at * at for at in range(300)]
    for at, (each, (_, client)) in enumerate(zip(found, pairs, strict=True)):
        client.send(b"from %d" % at)
        assert os.read(each.fd, 64) == b"from %d" % at
        assert not os.get_inheritable(each.fd)
        os.close(each.fd)
        client.close()
    assert open_fds() == before


def test_a_socket_that_was_read_before_has_nothing_more() -> None:
    left, client = pair()
    packed = pack([left])
    again = packed.dup()
    (found,) = unpack(packed)
    assert unpack(again) == []
    os.close(found.fd)
    client.close()


def test_connections_in_a_form_of_another_version_end() -> None:
    left, client = pair()
    file = os.memfd_create("other") if hasattr(os, "memfd_create") else os.open("/dev/null", os.O_RDONLY)
    os.write(file, msgspec.msgpack.encode([1, ["text"], [""]]))
    os.lseek(file, 0, os.SEEK_SET)
    theirs, ours = socket.socketpair()
    socket.send_fds(theirs, [b"\n"], [file, left.fd])
    os.close(file)
    os.close(left.fd)
    theirs.close()
    assert unpack(ours) == []
    client.settimeout(WAIT_S)
    assert client.recv(1) == b""
    client.close()


def test_connections_beside_a_pipe_in_place_of_their_file_end() -> None:
    left, client = pair()
    ours_end, its = os.pipe()
    os.write(its, msgspec.msgpack.encode([2, [b""], [""]]))
    os.close(its)
    theirs, ours = socket.socketpair()
    with theirs:
        socket.send_fds(theirs, [b"\n"], [ours_end, left.fd])
    os.close(ours_end)
    os.close(left.fd)
    assert unpack(ours) == []
    with client:
        client.settimeout(WAIT_S)
        assert client.recv(1) == b""


def test_a_limit_of_descriptors_costs_only_those_past_it_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(left_connections, "warn", said.append)
    clients: list[socket.socket] = []
    with many_left(200, clients) as ours, few_descriptors(20):
        found = unpack(ours)
    assert 0 < len(found) < 200
    assert [each.data for each in found] == [b"%d" % number for number in range(len(found))]
    assert said == [
        f"{200 - len(found)} connections of the earlier door end: "
        "this process may have no more descriptors open (`ulimit -n`)"
    ]
    for each in found:
        os.close(each.fd)
    for client in clients[len(found) :]:
        client.settimeout(WAIT_S)
        assert client.recv(1) == b""
    for client in clients:
        client.close()


@behaviour("handover:requests")
def test_connections_that_no_door_goes_on_with_end_and_what_waits_is_answered() -> None:
    (idle, idle_client), (waits, waiting_client) = pair(), pair(b"GET / HTTP/1.1\r\n\r\n")
    end_connections([idle, waits])
    said = []
    for client in (idle_client, waiting_client):
        client.settimeout(WAIT_S)
        said.append(client.makefile("rb").read())
        client.close()
    assert said[0] == b""
    assert said[1].startswith(b"HTTP/1.1 503 ")
    assert said[1].endswith(b"not delivered")


@behaviour("handover:requests")
def test_what_came_on_a_connection_since_it_was_left_is_answered_before_the_connection_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), timeout=WAIT_S)
        left, _ = listener.accept()
    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    end_connections([LeftConnection(left.detach(), b"")])
    with client:
        assert client.makefile("rb").read().startswith(b"HTTP/1.1 503 ")


@behaviour("handover:requests")
def test_connections_that_wait_at_a_socket_which_closes_are_answered_if_a_request_waits() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        idle, asks = (socket.create_connection(address, timeout=WAIT_S) for _ in range(2))
        asks.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        end_backlog(listener.detach())
    with idle, asks:
        assert idle.makefile("rb").read() == b""
        assert asks.makefile("rb").read().startswith(b"HTTP/1.1 503 ")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=WAIT_S)


def two_doors(play: Callable[[RecordingHandler, Client, "Next"], Awaitable[None]]) -> None:
    """`play` with a door, a client of it, and what makes the next door."""

    async def run() -> None:
        taker = RecordingHandler()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: HttpConnection(taker, lambda: taker.now), "127.0.0.1", 0)
        async with AsyncExitStack() as stack:
            stack.callback(server.close)
            port = server.sockets[0].getsockname()[1]
            client = Client(*await asyncio.open_connection("127.0.0.1", port))
            stack.callback(client.writer.close)
            await until(lambda: taker.connections)
            following = Next(taker)
            await play(taker, client, following)
            for each in (*taker.connections, *following.taker.connections):
                each.abort()
            await until(lambda: not taker.connections and not following.taker.connections)

    asyncio.run(run())


class Next:
    """The next door, with a handler of its own."""

    def __init__(self, earlier: RecordingHandler) -> None:
        self._earlier = earlier
        self.taker = RecordingHandler()

    def leave(self, waiting: int = 0) -> LeftConnection | None:
        """The only connection leaves the first door. `waiting`: the number of its open request."""
        (connection,) = self._earlier.connections
        return connection.leave(self._earlier.requests[waiting - 1] if waiting else None)

    async def go_on(self, left: LeftConnection | None) -> None:
        assert left is not None
        (found,) = unpack(pack([left]))
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: HttpConnection(self.taker, lambda: self.taker.now, found.data),
            socket.socket(fileno=found.fd),
        )


@behaviour("handover:keep-alive")
def test_an_idle_connection_goes_on_at_the_next_door() -> None:
    async def play(taker: RecordingHandler, client: Client, following: Next) -> None:
        await client.send(GET % b"one")
        assert (await client.answer())[0] == 200
        await following.go_on(following.leave())
        await client.send(GET % b"two")
        assert (await client.answer())[0] == 200
        assert [each.path for each in following.taker.requests] == ["/two"]
        assert [each.path for each in taker.requests] == ["/one"]
        assert not taker.gone_

    two_doors(play)


@behaviour("handover:keep-alive")
def test_a_request_that_nobody_has_read_when_its_connection_leaves_is_read_by_the_next_door() -> None:
    async def play(taker: RecordingHandler, client: Client, following: Next) -> None:
        left = following.leave()
        await client.send(GET % b"late")
        await following.go_on(left)
        assert (await client.answer())[0] == 200
        assert not taker.requests

    two_doors(play)


@behaviour("handover:keep-alive", "handover:requests")
def test_a_waiting_request_and_those_behind_it_are_answered_in_order_by_the_next_door() -> None:
    async def play(taker: RecordingHandler, client: Client, following: Next) -> None:
        await client.send(POST + GET % b"second" + GET % b"third")
        await until(lambda: taker.requests)
        assert [each.path for each in taker.requests] == ["/hold"]
        await following.go_on(following.leave(1))
        await until(lambda: following.taker.held)
        for x, connection in following.taker.held.items():
            connection.respond(200, b"held %d" % len(following.taker.requests[x - 1].body), "text/plain")
        assert [await client.answer() for _ in range(3)] == [(200, b"held 4"), (200, b"0"), (200, b"0")]
        assert [each.path for each in following.taker.requests] == ["/hold", "/second", "/third"]
        assert not taker.gone_

    two_doors(play)


@pytest.mark.parametrize("sent", [b"G", b"GET / HTTP/1.1\r\nHost", POST[:-1]])
def test_a_connection_on_which_a_request_is_arriving_does_not_leave(sent: bytes) -> None:
    async def play(taker: RecordingHandler, client: Client, following: Next) -> None:
        await client.send(sent)
        (connection,) = taker.connections
        await until(lambda: connection.is_arriving)
        assert following.leave() is None

    two_doors(play)


def test_a_connection_with_an_open_request_does_not_leave_without_it() -> None:
    async def play(taker: RecordingHandler, client: Client, following: Next) -> None:
        await client.send(GET % b"stream")
        await until(lambda: taker.held)
        assert following.leave() is None
        (connection,) = taker.connections
        connection.write(b"event")
        await client.until(b"event\r\n")

    two_doors(play)


def test_a_connection_that_the_next_door_has_may_be_idle_as_long_as_any() -> None:
    async def play(taker: RecordingHandler, client: Client, following: Next) -> None:
        await following.go_on(following.leave())
        (connection,) = following.taker.connections
        assert connection.due == following.taker.limits.keep_s

    two_doors(play)


@behaviour("handover:requests")
def test_the_last_answer_says_that_the_connection_closes() -> None:
    async def play(taker: RecordingHandler, client: Client, _: Next) -> None:
        await client.send(GET % b"hold")
        await until(lambda: taker.held)
        (connection,) = taker.held.values()
        connection.close_after_answer()
        connection.respond(503, b"", "text/plain")
        assert b"Connection: close" in await client.until(b"\r\n\r\n")
        assert await client.rest() == b""

    two_doors(play)
