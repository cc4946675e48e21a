"""Whose process is at the other end of a Unix socket, and whom we speak with."""

import os
import socket
import sys

import pytest

from carpool_protocol.bootstrap import peer_credentials
from tests.behaviours import behaviour

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who is there")


class FakeSocket:
    """A socket of which the kernel says this."""

    def __init__(self, *told: int | OSError) -> None:
        self.told = told

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        parts = []
        for each in self.told:
            if isinstance(each, OSError):
                raise each
            parts.append(each.to_bytes(4, sys.byteorder))
        return b"".join(parts)


@linux
def test_the_kernel_names_the_process_and_its_user() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert peer_credentials.peer(one) == (os.getpid(), os.getuid())
        assert peer_credentials.is_ours(one)


@linux
@behaviour("private:peers")
@pytest.mark.parametrize(("uid", "is_ours"), [(os.getuid(), True), (0, True), (os.getuid() + 1, False)])
def test_ours_are_our_user_and_root(uid: int, is_ours: bool) -> None:
    assert peer_credentials.is_ours(FakeSocket(4711, uid, 4711)) is is_ours


@linux
@behaviour("private:peers")
def test_a_process_whose_owner_cannot_be_found_is_refused_where_owners_are_told() -> None:
    assert peer_credentials.peer(FakeSocket(OSError("no"))) is None
    assert not peer_credentials.is_ours(FakeSocket(OSError("no")))


def test_where_the_system_does_not_tell_nobody_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_credentials, "_SO_PEERCRED", None)
    assert peer_credentials.peer(FakeSocket(OSError("no"))) is None
    assert peer_credentials.is_ours(FakeSocket(OSError("no")))
