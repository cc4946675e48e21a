"""The first client after a pause is served by the configuration as it is now."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from carpool.http import server as door_server
from carpool.http.core.access import AccessRules, hash_of
from carpool.http.core.core import HttpCore
from carpool.http.core.effects import HttpRules
from carpool.http.core.limits import HttpLimits
from carpool.http.peer_owner import PeerOwners, SocketOwner
from carpool.http.server import HttpDoorServer
from tests.behaviours import behaviour
from tests.client.http.test_peer_owner import IN, KNOCK

WAIT_S = 40.0


async def first_line(directory: Path, gate: AccessRules | None) -> bytes:
    """Return the answer to the first client. `gate`: the look's result; None: the disk does not answer."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpDoorServer(
        str(directory), HttpCore(HttpRules(), AccessRules(tokens={"ann": hash_of("x")})), HttpLimits(), 9
    )
    server.looks_first = True
    listening = asyncio.Event()
    running = asyncio.create_task(server.run(listener, listening.set))
    await listening.wait()
    async with asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(KNOCK)
        await server.first_connected.wait()
        if gate is not None:
            server.set_gate(gate)
            server.configuration_read()
        line = (await reader.readline()).strip()
        writer.close()
        server.stop()
        await running
    return line


@behaviour("idle:wakeups")
def test_a_token_that_was_revoked_while_nobody_was_connected_does_not_let_the_first_client_in(
    tmp_path: Path,
) -> None:
    assert asyncio.run(first_line(tmp_path, AccessRules(tokens={"bob": hash_of("y")}))) == (
        b"HTTP/1.1 401 Unauthorized"
    )
    assert asyncio.run(first_line(tmp_path, AccessRules(tokens={"ann": hash_of("x")}))) == IN


def test_a_disk_that_does_not_answer_holds_the_first_client_up_for_a_moment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_server, "_LOOK_FIRST_S", 0.01)
    assert asyncio.run(first_line(tmp_path, None)) == IN


class OthersOwnAll(PeerOwners):
    """A system on which each connection is another user's."""

    def find(self, sock: socket.socket) -> SocketOwner:
        return SocketOwner(os.getuid() + 1, 1)


def test_a_refused_first_client_has_the_configuration_looked_at_as_well(tmp_path: Path) -> None:
    async def play() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        core = HttpCore(HttpRules(), AccessRules())
        server = HttpDoorServer(str(tmp_path), core, HttpLimits(), 9, owners=OthersOwnAll())
        server.looks_first = True
        listening = asyncio.Event()
        running = asyncio.create_task(server.run(listener, listening.set))
        await listening.wait()
        async with asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            assert await reader.readline() == b"HTTP/1.1 403 Forbidden\r\n"
            await server.first_connected.wait()
            writer.close()
            server.stop()
            await running

    asyncio.run(play())
