"""The NATS server that carpool runs itself: its address from one start to the next."""

import asyncio
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from carpool.cluster.embedded_nats import EmbeddedNats
from carpool.cluster.links.link import LinkError
from tests.behaviours import behaviour


def port_of(server: EmbeddedNats) -> int:
    port = urlsplit(server.url).port
    assert port is not None
    return port


def password_of(url: str) -> str | None:
    return urlsplit(url).username


def say_something_else(listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            with listener.accept()[0] as client:
                client.sendall(b"220 mail.example ESMTP\r\n")


@behaviour("cluster:new")
def test_the_server_keeps_its_address_and_takes_another_one_if_a_program_has_its_port(tmp_path: Path) -> None:
    server = EmbeddedNats(str(tmp_path))

    async def run() -> None:
        await server.start()
        first = server.url
        server.kill()
        await server.start()
        assert server.url == first
        server.kill()
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", port_of(server)))
            other.listen()
            with pytest.raises(LinkError, match="is its port taken"):
                await server.start_again()
            assert server.url == first, "other nodes know this address"
            threading.Thread(target=say_something_else, args=[other], daemon=True).start()
            await server.start()
            assert port_of(server) != other.getsockname()[1]
            assert password_of(server.url) == password_of(first), "other nodes know it"
            assert server.is_running()

    try:
        asyncio.run(run())
    finally:
        server.stop()


@behaviour("cluster:new")
def test_the_server_keeps_its_address_through_a_start_without_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a new version is being installed."""
    server = EmbeddedNats(str(tmp_path))

    async def run() -> None:
        await server.start()
        first = server.url
        server.kill()
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(sys, "executable", str(tmp_path / "python"))
            meanwhile.setenv("PATH", str(tmp_path))
            with pytest.raises(LinkError, match="there is no nats-server"):
                await server.start()
        await server.start()
        assert server.url == first

    try:
        asyncio.run(run())
    finally:
        server.stop()
