"""The command line's way in: which lines of a broker are answers."""

import errno
import socket
from collections.abc import Iterator

import pytest

from carpool.control.control_client import AnsweredError, ControlClient, ControlClientError


@pytest.fixture
def ends() -> Iterator[tuple[ControlClient, socket.socket]]:
    """A door that is attached, and the broker's end."""
    ours, theirs = socket.socketpair()
    door = ControlClient.__new__(ControlClient)
    door._socket, door._unread, door._next = ours, bytearray(), 1
    with ours, theirs:
        yield door, theirs


def test_an_answer_with_half_a_surrogate_pair_is_an_answer(ends: tuple[ControlClient, socket.socket]) -> None:
    door, broker = ends
    broker.sendall(
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"message":"\\ud83d"}}\n'
        b'{"jsonrpc":"2.0","id":"p","method":"ping","params":{"x":"\\udc00"}}\n'
        b'{"jsonrpc":"2.0","id":99,"result":"\\ud83d"}\n'
        b'{"jsonrpc":"2.0","id":1,"result":{"text":"\\ud83d"}}\n'
        b'{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":"\\ud83d"}}\n'
    )
    told: list[str] = []
    assert (
        bytes(door.request("x", {}, on_notice=lambda method, _: told.append(method))) == b'{"text":"\\ud83d"}'
    )
    assert told == ["notifications/progress"]
    with pytest.raises(AnsweredError) as caught:
        door.request("x", {})
    assert bytes(caught.value.error) == b'{"code":1,"message":"\\ud83d"}'
    assert b'{"jsonrpc":"2.0","id":"p","result":{}}\n' in broker.recv(1 << 16)


@pytest.mark.parametrize("line", [b"\xff", b"[]", b"{", b"[" * 100_000, b'"\\ud83d"'])
def test_a_line_that_is_no_message_ends_the_verb_with_a_sentence(
    ends: tuple[ControlClient, socket.socket], line: bytes
) -> None:
    door, broker = ends
    broker.sendall(line + b"\n")
    broker.shutdown(socket.SHUT_WR)
    with pytest.raises(ControlClientError, match=r"not JSON-RPC|closed the connection"):
        door.request("x", {})


def test_a_process_without_a_free_descriptor_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_socket(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", no_socket)
    with pytest.raises(ControlClientError, match="cannot connect to the broker: Too many open files"):
        ControlClient("/nonexistent")
