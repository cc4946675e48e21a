"""The proxy on real sockets of loopback: each fault as both ends see it."""

import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple

import pytest
import trio

from bench.cable import BUFFER_BYTES, FLIGHT_BYTES, Way
from bench.cable_proxy import CableProxy
from tests.kit.waits import until

LIMIT_S: Final = 30.0
Serve = Callable[[trio.SocketStream], Awaitable[None]]


class ProxiedServer(NamedTuple):
    """A proxy in front of a server, and the port at which it is reached."""

    proxy: CableProxy
    port: int

    async def connect(self) -> trio.SocketStream:
        """Connect to the server through the proxy."""
        return await trio.open_tcp_stream("127.0.0.1", self.port)


async def echo(stream: trio.SocketStream) -> None:
    """Return each byte, and the end of them."""
    async for data in stream:
        await stream.send_all(data)
    await stream.send_eof()


@asynccontextmanager
async def network(serve: Serve = echo, *, reverse: bool = False) -> AsyncIterator[ProxiedServer]:
    """A server behind a proxy."""

    async def served(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):  # some tests reset it
            await serve(stream)

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, served, [listener])
            proxy = CableProxy()
            yield ProxiedServer(
                proxy, proxy.listen(nursery, listener.socket.getsockname()[1], reverse=reverse)
            )
            nursery.cancel_scope.cancel()


async def said(stream: trio.SocketStream, count: int) -> bytes:
    """Read so many bytes."""
    data = b""
    while len(data) < count:
        more = await stream.receive_some(count - len(data))
        assert more, f"it ended after {data!r}"
        data += more
    return data


async def test_a_connection_passes_bytes_and_its_end_both_ways() -> None:
    async with network() as there, await there.connect() as stream:
        await stream.send_all(b"hello")
        assert await said(stream, 5) == b"hello"
        await stream.send_eof()
        assert await stream.receive_some() == b""
        assert there.proxy.cable.there.carried_bytes == there.proxy.cable.back.carried_bytes == 5


async def test_a_stall_in_one_direction_holds_the_answers_and_lets_the_questions_pass() -> None:
    heard = bytearray()

    async def note(stream: trio.SocketStream) -> None:
        async for data in stream:
            heard.extend(data)
            await stream.send_all(data)

    async with network(note) as there, await there.connect() as stream:
        there.proxy.stall("back")
        await stream.send_all(b"question")
        await until(lambda: there.proxy.held_pieces, "the answer is held")
        assert bytes(heard) == b"question"
        there.proxy.heal()
        assert await said(stream, 8) == b"question"


async def test_a_connection_made_during_a_stall_is_taken_and_served_after_it() -> None:
    async with network() as there:
        there.proxy.stall()
        async with await there.connect() as stream:
            await stream.send_all(b"early")
            there.proxy.heal()
            assert await said(stream, 5) == b"early"


async def test_during_a_stall_a_sender_is_stopped_once_the_buffers_are_full() -> None:
    async with network() as there, await there.connect() as stream:
        await stream.send_all(b"!")
        await said(stream, 1)
        there.proxy.stall()
        with trio.move_on_after(1.0) as sending:  # megabytes take some ms where nobody stops them
            for _ in range(FLIGHT_BYTES // BUFFER_BYTES):
                await stream.send_all(bytes(BUFFER_BYTES))
        assert sending.cancelled_caught, "16 MiB went into a stalled connection"


async def test_a_cut_resets_the_connections_and_takes_new_ones() -> None:
    async with network() as there:
        async with await there.connect() as stream:
            await stream.send_all(b"before")
            await said(stream, 6)
            there.proxy.cut()
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
        async with await there.connect() as stream:
            await stream.send_all(b"after")
            assert await said(stream, 5) == b"after"


async def test_a_refusal_refuses_new_connections_and_keeps_the_old_ones() -> None:
    async with network() as there, await there.connect() as old:
        await old.send_all(b"before")
        await said(old, 6)
        there.proxy.refuse()
        with pytest.raises(OSError, match="failed"):
            await there.connect()
        await old.send_all(b"still")
        assert await said(old, 5) == b"still"
        there.proxy.heal()
        async with await there.connect() as new:
            await new.send_all(b"again")
            assert await said(new, 5) == b"again"


async def test_a_server_that_is_gone_shows_as_a_reset() -> None:
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        gone = listener.socket.getsockname()[1]
        await listener.aclose()
        there = ProxiedServer(proxy := CableProxy(), proxy.listen(nursery, gone))
        with trio.fail_after(LIMIT_S):
            async with await there.connect() as stream:
                with pytest.raises(trio.BrokenResourceError):
                    await stream.receive_some()
        nursery.cancel_scope.cancel()


async def test_a_reset_at_one_end_is_a_reset_at_the_other() -> None:
    ended = trio.Event()

    async def resets(stream: trio.SocketStream) -> None:
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
        ended.set()

    async with network(resets) as there:
        stream = await there.connect()
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.aclose()
        await ended.wait()


@pytest.mark.parametrize("reverse", [False, True])
async def test_a_bandwidth_of_one_direction_can_be_taken_away_while_bytes_wait(reverse: bool) -> None:
    async with network(reverse=reverse) as there, await there.connect() as stream:
        way: Way = "back" if reverse else "there"
        there.proxy.slow(bytes_per_s=100.0, way=way)
        await stream.send_all(bytes(2000))
        await until(lambda: there.proxy.cable.direction(way).carried_bytes, "some of it has left")
        assert there.proxy.carried_bytes < 1000
        there.proxy.slow()
        assert await said(stream, 2000) == bytes(2000)


async def test_two_ports_share_the_bandwidth_of_one_cable() -> None:
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, echo, [listener])
            target = listener.socket.getsockname()[1]
            proxy = CableProxy()
            for _ in range(2):
                port = proxy.listen(nursery, target)
                async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                    await stream.send_all(b"12345")
                    await said(stream, 5)
            assert proxy.carried_bytes == 20
            nursery.cancel_scope.cancel()
