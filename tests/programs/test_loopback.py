"""The namespace of agent programs: loopback alone, sockets of the test's own in it, nothing left of it."""

import socket
import subprocess
import sys
import threading

import pytest

from tests.programs.loopback import Loopback

_CONNECT = (
    "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 10); print(s.recv(5))"
)


def require_namespace(loopback: Loopback) -> None:
    if not loopback.isolated:
        pytest.skip("this system gives no network namespace")


def test_a_process_in_the_namespace_sees_loopback_alone(loopback: Loopback) -> None:
    require_namespace(loopback)
    assert loopback.interfaces() == ["lo"]


def test_a_process_in_the_namespace_reaches_a_socket_that_the_test_serves(loopback: Loopback) -> None:
    with loopback.listen() as listener:

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(b"hello")

        thread = threading.Thread(target=serve)
        thread.start()
        command = [
            *loopback.prefix,
            sys.executable,
            "-S",
            "-E",
            "-c",
            _CONNECT,
            str(listener.getsockname()[1]),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        thread.join()
    assert done.stdout == "b'hello'\n", done.stderr


def test_a_socket_outside_is_not_reached_from_the_namespace(loopback: Loopback) -> None:
    require_namespace(loopback)
    with socket.create_server(("127.0.0.1", 0)) as outside:
        command = [
            *loopback.prefix,
            sys.executable,
            "-S",
            "-E",
            "-c",
            _CONNECT,
            str(outside.getsockname()[1]),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "ConnectionRefusedError" in done.stderr


def test_the_keeper_of_a_namespace_ends_with_it() -> None:
    with Loopback() as one:
        require_namespace(one)
        prefix = one.prefix
    assert subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0
