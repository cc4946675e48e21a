"""The listening socket when descriptors run out and when its file vanishes. Real sockets, no clock."""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool_broker.transport.listener import NO_DESCRIPTOR, TOO_MANY_CONNECTIONS, Listener
from carpool_protocol.bootstrap import peer_credentials
from carpool_protocol.runtime.poller import ReadySet
from tests.behaviours import behaviour
from tests.kit.descriptors import descriptors_left


class ListenerRig:
    """A listener in a directory of its own; `turn` is one round of its ready set."""

    def __init__(self, base: Path) -> None:
        self.directory = base / "rt"
        self.directory.mkdir(mode=0o700)
        self.path = self.directory / "agents.sock"
        self.ready = ReadySet()
        self.taken: list[socket.socket] = []
        self.refused: list[str] = []
        """The reasons for which connections are to be refused."""
        self.now = 0.0
        self.listener = Listener(str(self.path), self.ready, self._take, lambda: self.now)
        self.listener.open()
        self.knocking: list[socket.socket] = []

    def knock(self) -> None:
        sock = socket.socket(socket.AF_UNIX)
        self.knocking.append(sock)
        sock.connect(str(self.path))

    def _take(self, sock: socket.socket, refusal: str) -> None:
        self.taken.append(sock)
        self.refused += [refusal] * bool(refusal)

    def turn(self) -> bool:
        """Whether anything was ready."""
        return self.ready._round()

    def close(self) -> None:
        self.listener.close()
        self.ready.close()
        for sock in [*self.taken, *self.knocking]:
            sock.close()


@pytest.fixture
def house() -> Iterator[ListenerRig]:
    # Not pytest's tmp_path: a socket's path is at most 103 bytes long.
    base = Path(tempfile.mkdtemp(prefix="cpl-", dir="/tmp"))
    one = ListenerRig(base)
    yield one
    one.close()
    shutil.rmtree(base)


@behaviour("faults:descriptors")
def test_out_of_descriptors_it_does_not_spin_and_whoever_waits_comes_in_later(
    house: ListenerRig, caplog: pytest.LogCaptureFixture
) -> None:
    house.knock()
    house.knock()
    with descriptors_left(0):
        assert house.turn()
        assert not house.turn(), "the socket is watched although nobody can be let in"
        house.listener.check()
        assert not house.turn()
        assert not house.taken
    assert caplog.text.count("no connection can be accepted") == 1
    house.listener.check()
    assert len(house.taken) == 2
    house.knock()
    assert house.turn()
    assert len(house.taken) == 3


@behaviour("faults:runtime-directory")
@pytest.mark.parametrize("whole", [False, True])
def test_a_vanished_socket_file_is_put_back_and_no_waiting_connection_is_lost(
    house: ListenerRig, whole: bool
) -> None:
    house.knock()
    if whole:
        shutil.rmtree(house.directory)
    else:
        house.path.unlink()
    house.listener.check()
    assert len(house.taken) == 1
    assert house.path.stat().st_mode & 0o777 == 0o600
    house.knock()
    assert house.turn()
    assert len(house.taken) == 2


def test_a_file_that_cannot_be_put_back_is_said_once_and_tried_again(
    house: ListenerRig, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(house.directory)
    house.directory.write_text("in the way")
    for _ in range(3):
        house.listener.check()
    assert caplog.text.count("cannot be put back") == 1
    house.directory.unlink()
    house.listener.check()
    house.knock()
    assert house.turn()


def test_a_file_of_somebody_else_is_left_alone(house: ListenerRig) -> None:
    house.path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(house.path))
        before = house.path.stat().st_ino
        house.listener.check()
        house.listener.close()
        assert house.path.stat().st_ino == before


@behaviour("private:shares")
def test_one_process_cannot_take_all_connections(house: ListenerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house.listener, "_most", 3)
    for _ in range(5):
        house.knock()
    house.turn()
    assert house.refused == [TOO_MANY_CONNECTIONS] * 2
    house.taken.pop(0).close()
    house.knock()
    house.turn()
    assert len(house.refused) == 2, "what has left makes room"
    monkeypatch.setattr(peer_credentials, "peer", lambda _: (1, os.getuid()))
    house.knock()
    house.turn()
    assert len(house.refused) == 2, "another process has a share of its own"


@behaviour("private:shares")
def test_refused_connections_are_logged_at_once_and_then_once_a_minute_with_their_number(
    house: ListenerRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(house.listener, "_most", 1)
    for _ in range(433):
        house.knock()
        house.turn()
    assert len(caplog.records) == 1
    house.now = 59.0
    house.listener.check()
    assert len(caplog.records) == 1
    house.now = 60.0
    house.listener.check()
    assert [record.getMessage() for record in caplog.records[1:]] == [
        f"431 more connections are refused: process {os.getpid()} has 1 connections and gets no more"
    ]
    house.now = 120.0
    house.listener.check()
    assert len(caplog.records) == 2


@behaviour("faults:descriptors")
def test_a_connection_that_gets_one_of_the_last_descriptors_is_for_operators_only(
    house: ListenerRig,
) -> None:
    house.knock()
    house.turn()
    house.knock()
    house.knock()
    with descriptors_left(2):
        house.turn()
        assert house.refused == [NO_DESCRIPTOR] * 2
        assert house.listener.reserve.is_needed()
    assert not house.listener.reserve.is_needed()
    house.knock()
    house.turn()
    assert len(house.refused) == 2
