"""The socket of the node's process: what is read of a local peer, and what ends its connection."""

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from carpool.cluster.supervisor_socket import MAX_LINE_BYTES, SessionRequest, SupervisorSocket
from tests.kit.node_links import until

Requests = list[tuple[SessionRequest, tuple[int, ...]]]


@asynccontextmanager
async def listening(directory: Path) -> AsyncIterator[tuple[Requests, socket.socket]]:
    """The requests that arrive, and a connection."""
    requests: Requests = []
    path = str(directory / "node.sock")
    own = SupervisorSocket(path, lambda _, request, fds: requests.append((request, fds)), lambda _: None)
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)
            sock.setblocking(False)
            yield requests, sock
    finally:
        own.close()


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))


def test_a_request_has_the_descriptors_that_came_with_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with listening(tmp_path) as (requests, sock):
            socket.send_fds(sock, [b'{"open": 4, "node": "beta", "server": "git"}\n'], [0, 1, 2])
            await until(lambda: bool(requests))
            [(request, fds)] = requests
            assert (request.open, request.node, request.server, len(fds)) == (4, "beta", "git", 3)
            for fd in fds:
                os.close(fd)

    asyncio.run(run())


@pytest.mark.parametrize("bad", [b'{"act":"story","node":"beta","session":1%s}' % (b"0" * 26), b"{", b"\xff"])
def test_a_request_that_cannot_be_read_is_left_out_and_the_next_one_is_heard(
    tmp_path: Path, bad: bytes
) -> None:
    async def run() -> None:
        async with listening(tmp_path) as (requests, sock):
            sock.send(bad + b'\n{"end": 4}\n')
            await until(lambda: bool(requests))
            assert [request.end for request, _ in requests] == [4]

    asyncio.run(run())


def test_descriptors_without_a_line_end_their_connection_and_are_closed(tmp_path: Path) -> None:
    async def run() -> None:
        async with listening(tmp_path) as (requests, sock):
            before = open_fds()

            def is_ended() -> bool:
                try:
                    socket.send_fds(sock, [b" "], [0] * 200)
                except BlockingIOError:
                    return False
                except OSError:
                    return True
                return is_closed(sock)

            await until(is_ended)
            await until(lambda: open_fds() <= before)
            assert requests == []

    asyncio.run(run())


def test_a_line_without_an_end_ends_its_connection(tmp_path: Path) -> None:
    async def run() -> None:
        async with listening(tmp_path) as (_, sock):
            sent = 0

            def is_ended() -> bool:
                nonlocal sent
                try:
                    sent += sock.send(bytes(4096))
                except BlockingIOError:
                    return False
                except OSError:
                    return True
                assert sent < 100 * MAX_LINE_BYTES
                return is_closed(sock)

            await until(is_ended)

    asyncio.run(run())


def test_a_connection_waits_while_there_is_no_free_descriptor(tmp_path: Path) -> None:
    async def run() -> None:
        requests: Requests = []
        path = str(tmp_path / "node.sock")
        own = SupervisorSocket(path, lambda _, request, fds: requests.append((request, fds)), lambda _: None)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                resource.setrlimit(resource.RLIMIT_NOFILE, (sock.fileno() + 1, hard))
                sock.connect(path)
                sock.sendall(b'{"end": 4}\n')
                await until(lambda: own.is_paused)
                assert not requests
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                await until(lambda: bool(requests))
                assert not own.is_paused
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            own.close()

    asyncio.run(run())
