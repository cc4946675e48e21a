"""A socket of another user in our place: shim, command line and HTTP door say nothing to it."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from carpool.control.control_client import ControlClient, ControlClientError
from carpool.http.broker_link import BrokerLink
from carpool.shim import shim
from carpool_protocol.bootstrap import paths, peer_credentials
from tests.behaviours import behaviour


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Listens where a broker would. The kernel says that it is somebody else's."""
    monkeypatch.setattr(peer_credentials, "peer", lambda _sock: (4711, os.getuid() + 1))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(paths.agents_socket(str(tmp_path)))
        listener.listen()
        listener.settimeout(10)
        yield listener


def heard(trap: socket.socket) -> bytes:
    """All that was said there until its end."""
    accepted, _ = trap.accept()
    with accepted:
        accepted.settimeout(10)
        return accepted.recv(1000)


@behaviour("private:peers")
def test_the_shim_says_nothing_there(trap: socket.socket, tmp_path: Path) -> None:
    sock, code, text = shim._reach(str(tmp_path))
    assert (sock, code) == (None, shim.EXIT_NO_BROKER)
    assert heard(trap) == b""
    assert "belongs to another user" in text


@behaviour("private:peers")
def test_the_command_line_says_nothing_there(trap: socket.socket, tmp_path: Path) -> None:
    with pytest.raises(ControlClientError, match="belongs to another user") as refused:
        ControlClient(str(tmp_path), control=True)
    assert not refused.value.no_broker, "nobody shall start another one beside it"
    assert heard(trap) == b""


@behaviour("private:peers")
def test_the_http_door_says_nothing_there(trap: socket.socket, tmp_path: Path) -> None:
    why: list[str] = []

    async def play() -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            _, line = await loop.create_unix_connection(
                lambda: BrokerLink(lambda: None, lambda _line: None, why.append),
                paths.agents_socket(str(tmp_path)),
            )
            await asyncio.wait_for(line.ended, 10)

    asyncio.run(play())
    assert "belongs to another user" in why[0]
    assert heard(trap) == b""
