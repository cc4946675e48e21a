"""The socket of the node's process: what is read of a local peer, and what ends its connection."""

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from carpool.cluster.supervisor_socket import (
    MAX_LINE_BYTES,
    SessionRequest,
    SupervisorConnection,
    SupervisorSocket,
)
from tests.behaviours import behaviour
from tests.kit.descriptors import descriptors_left
from tests.kit.leaks import open_fds
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
            await until(lambda: len(open_fds()) <= len(before))
            assert requests == []

    asyncio.run(run())


@behaviour("faults:descriptors-for-operators")
@pytest.mark.parametrize("free", [0, 1, 2, 4])
def test_a_request_whose_descriptors_cannot_all_be_taken_fails_and_those_that_came_are_closed(
    tmp_path: Path, free: int
) -> None:
    async def run() -> None:
        async with listening(tmp_path) as (requests, sock):
            sock.sendall(b'{"end": 3}\n')
            await until(lambda: bool(requests))  # it is accepted
            before = open_fds()
            with descriptors_left(free):
                socket.send_fds(sock, [b'{"open": 4, "node": "beta", "server": "git"}\n'], [0, 1, 2])
                said = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 4096), 40)
            assert b'"failed":4' in said
            assert open_fds() == before
            socket.send_fds(sock, [b'{"open": 5, "node": "beta", "server": "git"}\n'], [0, 1, 2])
            await until(lambda: len(requests) == 2)
            request, fds = requests[1]
            assert (request.open, len(fds)) == (5, 3)
            for fd in fds:
                os.close(fd)

    asyncio.run(run())


def test_an_answer_that_the_socket_does_not_take_at_once_arrives_whole(tmp_path: Path) -> None:
    async def run() -> None:
        heard: list[SupervisorConnection] = []
        path = str(tmp_path / "node.sock")
        own = SupervisorSocket(path, lambda one, *_: heard.append(one), lambda _: None)
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(path)
                sock.setblocking(False)
                sock.send(b'{"end": 4}\n')
                await until(lambda: bool(heard))
                heard[0].tell({"text": "x" * (1 << 20)})
                said = b""
                async with asyncio.timeout(40):
                    while not said.endswith(b"\n"):
                        said += await asyncio.get_running_loop().sock_recv(sock, 1 << 16)
                assert said == b'{"text":"%s"}\n' % (b"x" * (1 << 20))
        finally:
            own.close()

    asyncio.run(run())


def test_a_peer_that_no_longer_hears_is_not_written_to_again_and_is_still_heard(tmp_path: Path) -> None:
    async def run() -> None:
        heard: list[tuple[SupervisorConnection, SessionRequest]] = []
        path = str(tmp_path / "node.sock")
        own = SupervisorSocket(path, lambda one, request, _: heard.append((one, request)), lambda _: None)
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(path)
                sock.sendall(b'{"end": 4}\n')
                await until(lambda: bool(heard))
                connection, _ = heard[0]
                connection.tell({"text": "x" * (1 << 20)})  # more than the socket takes
                sock.shutdown(socket.SHUT_RD)
                while sock.recv(1 << 16):  # now there is room, but nothing can be sent any more
                    pass
                sock.sendall(b'{"end": 5}\n')
                await until(lambda: len(heard) == 2)
                # A writer that is left is called in each turn of the loop, since it can be written to.
                assert not asyncio.get_running_loop().remove_writer(connection._sock.fileno())
        finally:
            own.close()

    asyncio.run(run())


def test_closing_ends_every_connection_and_leaves_no_socket_behind(tmp_path: Path) -> None:
    async def run() -> None:
        before = open_fds()
        async with listening(tmp_path) as (requests, sock):
            sock.send(b'{"end": 4}\n')
            await until(lambda: bool(requests))
        assert open_fds() == before

    asyncio.run(run())
    assert list(tmp_path.iterdir()) == []


def test_a_socket_that_a_killed_process_has_left_is_replaced(tmp_path: Path) -> None:
    async def run() -> None:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(tmp_path / "node.sock"))
        async with listening(tmp_path) as (requests, sock):
            sock.send(b'{"end": 4}\n')
            await until(lambda: bool(requests))

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
