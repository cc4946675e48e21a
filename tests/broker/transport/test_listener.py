"""The listening socket when descriptors run out and when its file vanishes. Real sockets, no clock."""

import os
import resource
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from carpool_broker.transport.listener import Listener
from carpool_protocol.bootstrap import peer_credentials
from carpool_protocol.runtime.poller import ReadySet
from tests.behaviours import behaviour


class ListenerRig:
    """A listener in a directory of its own; `turn` is one round of its ready set."""

    def __init__(self, base: Path) -> None:
        self.directory = base / "rt"
        self.directory.mkdir(mode=0o700)
        self.path = self.directory / "agents.sock"
        self.ready = ReadySet()
        self.taken: list[socket.socket] = []
        self.listener = Listener(str(self.path), self.ready, self.taken.append)
        self.listener.open()
        self.knocking: list[socket.socket] = []

    def knock(self) -> None:
        sock = socket.socket(socket.AF_UNIX)
        self.knocking.append(sock)
        sock.connect(str(self.path))

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


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """No number below the limit is free."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.open(os.devnull, os.O_RDONLY)  # the lowest free number
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@behaviour("faults:descriptors")
def test_out_of_descriptors_it_does_not_spin_and_whoever_waits_comes_in_later(
    house: ListenerRig, caplog: pytest.LogCaptureFixture
) -> None:
    house.knock()
    house.knock()
    with no_descriptor_left():
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
    assert len(house.taken) == 3
    refused = house.knocking[3]
    assert b"too many connections" in refused.recv(1000)
    assert refused.recv(1000) == b""
    house.taken.pop().close()
    house.knock()
    house.turn()
    assert len(house.taken) == 3, "what has left makes room"
    monkeypatch.setattr(peer_credentials, "peer", lambda _: (1, os.getuid()))
    house.knock()
    house.turn()
    assert len(house.taken) == 4, "another process has a share of its own"
