"""Who may come in over loopback where no token is asked for."""

import asyncio
import errno
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from carpool.http import peer_owner
from carpool.http.core.access import AccessRules, hash_of
from carpool.http.core.core import HttpCore
from carpool.http.core.effects import HttpRules
from carpool.http.core.limits import HttpLimits
from carpool.http.peer_owner import PeerOwners
from carpool.http.server import HttpDoorServer
from tests.behaviours import behaviour

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose a connection is")
Dial = Callable[[], tuple[socket.socket, socket.socket]]
RULES = HttpRules(
    path="/mcp", stateless=False, json_response=False, max_sessions=9, max_open=9, session_idle_s=9
)
KNOCK = (
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\nContent-Length: 9\r\n"
    b"Expect: 100-continue\r\n\r\n"
)
"""Answered at once, also where no broker is."""
IN, OUT = b"HTTP/1.1 100 Continue", b"HTTP/1.1 403 Forbidden"


@pytest.fixture(params=["127.0.0.1", "::1"])
def dial(request: pytest.FixtureRequest) -> Iterator[Dial]:
    """Connects, over IPv4 and IPv6: the client's end and the accepted one."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    made: list[socket.socket] = []
    listener = socket.socket(family)
    made.append(listener)
    try:
        listener.bind((request.param, 0))
    except OSError:
        listener.close()
        pytest.skip("this machine has no IPv6")
    listener.listen()

    def connect() -> tuple[socket.socket, socket.socket]:
        client = socket.create_connection(listener.getsockname()[:2])
        accepted, _ = listener.accept()
        made.extend((client, accepted))
        return client, accepted

    yield connect
    for each in made:
        each.close()


@pytest.fixture
def owners() -> Iterator[PeerOwners]:
    asked = PeerOwners()
    yield asked
    asked.close()


def test_the_kernel_names_the_user_of_the_other_end(dial: Dial, owners: PeerOwners) -> None:
    client, accepted = dial()
    found = owners.find(accepted)
    assert found == (os.getuid(), os.fstat(client.fileno()).st_ino)
    assert peer_owner.is_ours(found)


@behaviour("private:http")
@pytest.mark.parametrize("reset", [False, True])
def test_who_sends_and_hangs_up_before_he_can_be_known_is_nobody(
    dial: Dial, owners: PeerOwners, reset: bool
) -> None:
    """The kernel calls an abandoned connection root's, or knows none: it must not come in like that."""
    client, accepted = dial()
    client.send(KNOCK)
    if reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    assert not peer_owner.is_ours(owners.find(accepted))


@behaviour("private:http")
@pytest.mark.parametrize(("uid", "is_ours"), [(os.getuid(), True), (0, True), (os.getuid() + 1, False)])
def test_ours_are_our_user_and_root(uid: int, is_ours: bool) -> None:
    assert peer_owner.is_ours(peer_owner.SocketOwner(uid, 7)) is is_ours


def test_where_the_kernel_tells_no_owners_nobody_is_turned_away(
    dial: Dial, owners: PeerOwners, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_owner, "_SOCK_DIAG", 999)  # as in a sandbox
    assert not owners.open()
    assert owners.find(dial()[1]) is None
    assert peer_owner.is_ours(None)


@behaviour("private:http")
def test_a_shortage_of_descriptors_lets_nobody_in_whose_owner_is_not_known(
    dial: Dial, owners: PeerOwners, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    _, accepted = dial()
    with monkeypatch.context() as short:
        short.setattr(socket, "socket", refuse)
        short.setattr(socket, "create_server", refuse)
        assert owners.open(), "a shortage is no proof that the system tells no owners"
        assert not peer_owner.is_ours(owners.find(accepted))
    assert peer_owner.is_ours(owners.find(accepted)), "after the shortage it is asked again"


@behaviour("private:http")
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("create_server", OSError(errno.EADDRINUSE, "Address already in use")),
        ("create_connection", OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")),
        ("create_connection", TimeoutError("timed out")),
    ],
    ids=["no port to listen on", "no port to connect from", "no time"],
)
def test_a_connection_of_its_own_that_fails_is_no_proof_that_the_system_tells_no_owners(
    dial: Dial, owners: PeerOwners, monkeypatch: pytest.MonkeyPatch, name: str, error: OSError
) -> None:
    def fail(*_: object) -> socket.socket:
        raise error

    _, accepted = dial()
    with monkeypatch.context() as short:
        short.setattr(socket, name, fail)
        assert owners.open()
    assert owners.find(accepted) is not None


@behaviour("private:http")
def test_a_question_that_the_kernel_refuses_once_is_a_refusal_and_the_next_one_is_answered(
    dial: Dial, owners: PeerOwners
) -> None:
    _, accepted = dial()
    assert peer_owner.is_ours(owners.find(accepted))
    assert owners._kernel is not None
    kernel = owners._kernel

    class Deaf:
        def send(self, question: bytes) -> int:
            return kernel.send(question)

        def recv(self, _: int) -> bytes:
            raise OSError(errno.ENOBUFS, "No buffer space available")

    owners._kernel = Deaf()  # type: ignore[assignment]
    assert not peer_owner.is_ours(owners.find(accepted))
    owners._kernel = kernel
    assert peer_owner.is_ours(owners.find(accepted)), "the late answer is not taken for that of this question"


def test_the_socket_to_the_kernel_stays_open_between_questions(dial: Dial, owners: PeerOwners) -> None:
    owners.open()
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        owners.find(dial()[1])
    kernel = owners._kernel
    assert kernel is not None
    assert str(kernel.fileno()) in before


def visited(directory: Path, gates: list[AccessRules]) -> list[bytes]:
    """What a stranger's one connection gets from a door with these gates, in turn."""

    async def play() -> list[bytes]:
        server = HttpDoorServer(str(directory), HttpCore(RULES, gates[0]), HttpLimits(), 9)
        listener = socket.create_server(("127.0.0.1", 0))
        listening = asyncio.Event()
        running = asyncio.create_task(server.run(listener, listening.set))
        await listening.wait()
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(KNOCK)
        said = [(await asyncio.wait_for(reader.read(1000), 10)).partition(b"\r\n")[0]]
        for gate in gates[1:]:
            server.set_gate(gate)
            said.append(await asyncio.wait_for(reader.read(1000), 10))
        writer.close()
        server.stop()
        await asyncio.wait_for(running, 10)
        return said

    return asyncio.run(play())


TOKENS = {"ann": hash_of("x")}


@behaviour("private:http")
@pytest.mark.parametrize(
    ("gates", "said"),
    [
        ([AccessRules()], [OUT]),
        ([AccessRules(tokens=TOKENS)], [IN]),
        ([AccessRules(tokens=TOKENS), AccessRules()], [IN, b""]),
    ],
    ids=["without tokens", "with tokens", "once there are none any more"],
)
def test_another_users_process_comes_in_only_where_tokens_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gates: list[AccessRules], said: list[bytes]
) -> None:
    monkeypatch.setattr(peer_owner, "is_ours", lambda _found: False)
    assert visited(tmp_path, gates) == said


def test_our_own_process_comes_in_without_a_token(tmp_path: Path) -> None:
    assert visited(tmp_path, [AccessRules()]) == [IN]


def test_it_is_decided_once_if_the_system_tells_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    here, sandbox = PeerOwners(), PeerOwners()
    assert here.open()
    monkeypatch.setattr(peer_owner, "_SOCK_DIAG", 999)  # as in a sandbox
    assert here.open()
    assert not sandbox.open()
    here.close()
