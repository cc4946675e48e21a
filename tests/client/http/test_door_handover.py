"""The shell of a door that ends while requests wait: for the next door, for no door, and past every bound."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
import uvloop

from carpool.http import left_connections, server
from carpool.http.broker_link import BrokerLink
from carpool.http.core import pending
from carpool.http.core.access import AccessRules, hash_of
from carpool.http.core.core import HttpCore
from carpool.http.core.effects import HttpRules
from carpool.http.core.limits import HttpLimits
from carpool.http.left_connections import LeftConnection
from carpool.http.server import HttpDoorServer
from tests.behaviours import behaviour
from tests.client.http.door_core_rig import BOTH, modern
from tests.client.http.test_connection import WAIT_S, Client, until

BODY = json.dumps(modern(7, "tools/list")).encode()
POST = (
    b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: %b\r\n"
    b"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/list\r\nContent-Length: %d\r\n\r\n%b"
    % (BOTH.encode(), len(BODY), BODY)
)
HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
WATCH = b"GET /operator/live HTTP/1.1\r\nHost: 127.0.0.1\r\nSec-Fetch-Site: same-origin\r\n\r\n"


class RunningDoor:
    """A door without a broker, so that every request waits."""

    def __init__(
        self,
        directory: Path,
        listener: socket.socket,
        *earlier: LeftConnection,
        gate: AccessRules | None = None,
    ) -> None:
        self.held = asyncio.Event()
        core = HttpCore(HttpRules(), gate or AccessRules(knows_owners=True), patience_s=WAIT_S)
        self.server = HttpDoorServer(str(directory), core, HttpLimits(), 9, on_held=self.held.set)
        self.listening = asyncio.Event()
        self._listener = listener
        self._running = asyncio.create_task(self.server.run(listener, self.listening.set, earlier))

    async def client(self) -> Client:
        """A client whose connection the door has accepted."""
        await self.listening.wait()
        client = Client(*await asyncio.open_connection(*self._listener.getsockname()[:2]))
        await client.send(HEALTH)
        await client.answer()
        return client

    async def ended(self) -> list[LeftConnection]:
        return await asyncio.wait_for(self._running, WAIT_S)


def played(
    tmp_path: Path,
    play: Callable[[RunningDoor, socket.socket], Awaitable[None]],
    run_loop: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
) -> None:
    """`play` with a door, and a second descriptor of its listening socket, as the launcher has one."""

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener, listener.dup() as kept:
            await play(RunningDoor(tmp_path, listener), kept)

    run_loop(run())


async def not_delivered(client: Client) -> bytes:
    """The client is told that its request was not delivered, and when to try again. Returns the head."""
    head = await client.until(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 1\r\n" in head
    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    told = json.loads(await client.reader.readexactly(size))
    assert told["id"] == 7
    assert "not delivered" in told["error"]["message"]
    return head


@behaviour("handover:keep-alive", "handover:requests")
def test_the_next_door_has_the_connections_and_the_requests_that_wait(tmp_path: Path) -> None:
    async def play(door: RunningDoor, kept: socket.socket) -> None:
        idle, waiting = await door.client(), await door.client()
        door.server.hold()
        await asyncio.wait_for(door.held.wait(), WAIT_S)
        await waiting.send(POST)
        door.server.hand_over(0.0)
        left = await door.ended()
        assert sorted(bool(each.data) for each in left) == [False, True]
        between = Client(*await asyncio.open_connection(*kept.getsockname()[:2]))
        await between.send(HEALTH)
        following = RunningDoor(tmp_path, kept, *left)
        for client in (between, idle):
            if client is idle:
                await client.send(HEALTH)
            assert (await client.answer())[0] == 503
        following.server.stop()
        assert (await waiting.answer())[0] == 503
        assert await following.ended() == []
        for client in (idle, waiting, between):
            client.writer.close()

    played(tmp_path, play)


@behaviour("handover:requests", "handover:ends")
def test_requests_that_wait_are_refused_where_no_door_follows(tmp_path: Path) -> None:
    async def play(door: RunningDoor, _: socket.socket) -> None:
        client = await door.client()
        door.server.hold()
        await client.send(POST)
        door.server.stop()
        assert b"Connection: close\r\n" in await not_delivered(client)
        assert await client.rest() == b""
        assert await door.ended() == []
        client.writer.close()

    played(tmp_path, play)


@behaviour("handover:requests")
def test_more_requests_than_may_wait_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "MAX_WAITING", 1)

    async def play(door: RunningDoor, _: socket.socket) -> None:
        first, second = await door.client(), await door.client()
        door.server.hold()
        await first.send(POST)
        await second.send(HEALTH + POST)
        await second.answer()
        assert (await second.answer())[0] == 503
        door.server.stop()
        await not_delivered(first)
        await door.ended()
        first.writer.close()
        second.writer.close()

    played(tmp_path, play)


@behaviour("handover:requests")
def test_connections_that_are_too_many_end_and_what_waits_on_them_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_connections, "MOST", 0)

    async def play(door: RunningDoor, _: socket.socket) -> None:
        idle, waiting = await door.client(), await door.client()
        door.server.hold()
        await waiting.send(POST)
        door.server.hand_over(0.0)
        await not_delivered(waiting)
        assert await waiting.rest() == await idle.rest() == b""
        assert await door.ended() == []
        idle.writer.close()
        waiting.writer.close()

    played(tmp_path, play)


@behaviour("handover:keep-alive")
def test_of_too_many_connections_those_with_a_request_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_connections, "MOST", 2)

    async def play(door: RunningDoor, _: socket.socket) -> None:
        clients = [await door.client() for _ in range(6)]
        door.server.hold()
        for client in clients[2:4]:
            await client.send(POST)
        door.server.hand_over(0.0)
        left = await door.ended()
        assert [each.data.endswith(BODY) for each in left] == [True, True]
        assert [await client.rest() for client in (*clients[:2], *clients[4:])] == [b""] * 4
        left_connections.end_connections(left)
        for client in clients:
            client.writer.close()

    played(tmp_path, play)


@behaviour("handover:requests")
def test_a_request_that_is_half_read_when_the_door_ends_may_be_finished(tmp_path: Path) -> None:
    async def play(door: RunningDoor, _: socket.socket) -> None:
        client = await door.client()
        await client.send(POST[:-5])
        (connection,) = door.server._places.open
        await until(lambda: connection.is_arriving)
        door.server.hand_over(0.0)
        await client.send(POST[-5:])
        (left,) = await door.ended()
        assert left.data.endswith(BODY)
        client.writer.close()
        left_connections.end_connections([left])

    played(tmp_path, play)


@behaviour("handover:requests")
@pytest.mark.parametrize("comes", ["before the hold", "during the hold", "after the open calls"])
def test_a_request_waits_for_the_next_door_longer_than_for_a_broker_that_starts(
    tmp_path: Path, comes: str
) -> None:
    """Another client that sends half a request keeps the door open as long as a broker is waited for."""

    async def play(door: RunningDoor, _: socket.socket) -> None:
        waiting, slow = await door.client(), await door.client()
        await slow.send(POST[:-5])
        if comes == "before the hold":
            await waiting.send(POST)
            await until(lambda: len(door.server._pending) == 1)
        if comes == "during the hold":
            door.server.hold()
        else:
            door.server.hand_over(0.0)
        if comes == "after the open calls":
            await until(lambda: door.server._is_settled)
        if comes != "before the hold":
            await waiting.send(POST)
        await until(lambda: len(door.server._pending) == 1)
        now = door.server._clock()
        door.server._clock = lambda: now + 2 * WAIT_S  # type: ignore[assignment]
        door.server._beat_once()
        door.server.hand_over(0.0)
        await slow.send(POST[-5:])
        left = await door.ended()
        assert [each.data.endswith(BODY) for each in left] == [True, True]
        left_connections.end_connections(left)
        for client in (waiting, slow):
            client.writer.close()

    played(tmp_path, play)


@behaviour("handover:requests")
@pytest.mark.parametrize("run_loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_bytes_that_an_earlier_door_has_read_come_before_those_in_the_socket(
    tmp_path: Path, run_loop: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def play(door: RunningDoor, kept: socket.socket) -> None:
        client = await door.client()
        door.server.hand_over(0.0)
        (left,) = await door.ended()
        await client.send(HEALTH[-5:])
        following = RunningDoor(tmp_path, kept, left._replace(data=HEALTH[:-5]))
        status, _ = await client.answer()
        following.server.stop()
        await following.ended()
        client.writer.close()
        assert status == 503, "400: the end of the request was read before its beginning"

    played(tmp_path, play, run_loop)


@pytest.mark.parametrize("follows", [True, False])
def test_the_stream_of_a_web_page_ends_properly_and_does_not_keep_the_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, follows: bool
) -> None:
    monkeypatch.setattr(server, "_GOODBYE_S", 10 * WAIT_S)  # a test that waits for it fails

    async def play(door: RunningDoor, _: socket.socket) -> None:
        client = await door.client()
        door.server._broker_connected(create_autospec(BrokerLink, instance=True, is_congested=False))
        await client.send(WATCH)
        await client.until(b"event: hello")
        if follows:
            door.server.hand_over(0.0)
        else:
            door.server.stop()
        left = await door.ended()
        assert [each.data for each in left] == [b""] * follows, "the connection is idle by then"
        left_connections.end_connections(left)
        assert (await client.rest()).endswith(b"\r\n0\r\n\r\n")
        client.writer.close()

    played(tmp_path, play)


@behaviour("handover:keep-alive")
@pytest.mark.parametrize("tokens", [("one", "two"), ("two",)], ids=["the same tokens", "its token is gone"])
def test_connections_that_have_shown_a_token_stay_admitted_at_the_next_door(
    tmp_path: Path, tokens: tuple[str, ...]
) -> None:
    def gate(*names: str) -> AccessRules:
        return AccessRules(tokens={name: hash_of(name) for name in names})

    request = HEALTH[:-2] + b"Authorization: Bearer one\r\n\r\n"
    shown = 3  # of clients that have shown no token 2 connections may be open

    async def run(listener: socket.socket, kept: socket.socket) -> None:
        first = RunningDoor(tmp_path, listener, gate=gate("one", "two"))
        await first.listening.wait()
        clients = []
        for _number in range(shown):
            clients.append(Client(*await asyncio.open_connection(*kept.getsockname()[:2])))
            await clients[-1].send(request)
            await clients[-1].answer()
        first.server.hand_over(0.0)
        left = await first.ended()
        assert [each.owner for each in left] == ["one"] * shown
        following = RunningDoor(tmp_path, kept, *left, gate=gate(*tokens))
        if "one" in tokens:
            staying = clients
            await until(lambda: len(following.server._places.open) == shown)
        else:
            given_way, *staying = clients
            assert await given_way.rest() == b"", "the oldest gives way when the last one comes"
        for client in staying:
            await client.send(request)
            await client.answer()
        following.server.stop()
        await following.ended()
        for client in clients:
            client.writer.close()

    with socket.create_server(("127.0.0.1", 0)) as listener, listener.dup() as kept:
        asyncio.run(run(listener, kept))
