"""Who may come in over loopback where no token is asked for."""

import asyncio
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


def test_the_kernel_names_the_user_of_the_other_end(dial: Dial) -> None:
    client, accepted = dial()
    found = peer_owner.socket_owner(accepted)
    assert found == (os.getuid(), os.fstat(client.fileno()).st_ino)
    assert peer_owner.is_ours(found)


@behaviour("private:http")
@pytest.mark.parametrize("reset", [False, True])
def test_who_sends_and_hangs_up_before_he_can_be_known_is_nobody(dial: Dial, reset: bool) -> None:
    """The kernel calls an abandoned connection root's, or knows none: it must not come in like that."""
    client, accepted = dial()
    client.send(KNOCK)
    if reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    assert not peer_owner.is_ours(peer_owner.socket_owner(accepted))


@behaviour("private:http")
@pytest.mark.parametrize(("uid", "is_ours"), [(os.getuid(), True), (0, True), (os.getuid() + 1, False)])
def test_ours_are_our_user_and_root(uid: int, is_ours: bool) -> None:
    assert peer_owner.is_ours(peer_owner.SocketOwner(uid, 7)) is is_ours


def test_where_the_kernel_cannot_be_asked_nobody_is_turned_away(
    dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_owner, "_SOCK_DIAG", 999)  # as in a sandbox
    assert peer_owner.socket_owner(dial()[1]) is None
    assert peer_owner.is_ours(None)


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


def test_it_is_known_whether_the_system_tells_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peer_owner.can_tell_owners() is (sys.platform == "linux")
    monkeypatch.setattr(peer_owner, "_SOCK_DIAG", 999)  # as in a sandbox
    assert not peer_owner.can_tell_owners()
