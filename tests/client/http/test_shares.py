"""One process at a door without tokens in its file: how many of its connections it may have."""

import asyncio
import errno
import itertools
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from carpool.http import connection, peer_owner, shares
from carpool.http.core.access import GENERATED_PRINCIPAL, AccessRules, hash_of
from carpool.http.core.core import HttpCore
from carpool.http.core.effects import HttpRules
from carpool.http.core.limits import HttpLimits
from carpool.http.server import HttpDoorServer
from carpool.http.shares import ProcessShares, over_share
from tests.behaviours import behaviour
from tests.client.http.test_connection import WAIT_S, Client, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose a connection is")
HOG, OTHER = 4711, 4712
KNOCK = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer g\r\n\r\n"
"""A request of an agent, which a door without patience answers at once, also where no broker is."""
IN, FULL = b"HTTP/1.1 404 Not Found", b"HTTP/1.1 503 Service Unavailable"


# --- the decision ---

_PIDS = st.lists(st.integers(1, 4), max_size=3, unique=True)


@behaviour("http:shares:processes")
@given(st.lists(_PIDS, max_size=12), st.lists(_PIDS, max_size=12), st.integers(1, 6))
def test_a_newcomer_is_refused_exactly_when_a_process_that_has_it_has_its_share(
    inside: list[list[int]], new: list[list[int]], most: int
) -> None:
    holders = dict(enumerate([*inside, *new]))
    newcomers = range(len(inside), len(holders))
    refused = over_share(newcomers, range(len(inside)), holders, most)
    count_of = Counter(pid for pids in inside for pid in pids)
    for inode in newcomers:
        full = {pid for pid in holders[inode] if count_of[pid] >= most}
        assert (inode in refused) == bool(full)
        if full:
            assert refused[inode] in full
        else:
            count_of.update(holders[inode])


def test_a_socket_whose_process_cannot_be_told_is_not_refused() -> None:
    assert over_share([4, 5], [1, 2, 3], {}, 1) == {}
    assert over_share([4, 5], [1, 2, 3], {1: [HOG], 5: [HOG]}, 1) == {5: HOG}


# --- the order of scans ---


class WaitingConnection:
    """A connection as it can be kept waiting."""

    def __init__(self) -> None:
        self.state = "served"

    def pause_requests(self) -> None:
        self.state = "held"

    def resume_requests(self) -> None:
        self.state = "let in"


class Scans:
    """Stands for `neighbour.holders` and the pause between scans; the test lets each go on."""

    def __init__(self) -> None:
        self.asked: list[Collection[int]] = []
        self.pauses: list[float] = []
        self.go_on = asyncio.Event()

    def holders(self, inodes: Collection[int]) -> dict[int, list[int]]:
        self.asked.append(inodes)
        return {inode: [HOG] for inode in inodes if inode < 100}

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await self.go_on.wait()
        self.go_on.clear()


def test_one_scan_serves_all_that_wait_and_the_next_comes_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> None:
        scans = Scans()
        monkeypatch.setattr(peer_owner, "holders", scans.holders)
        refused: list[Any] = []
        said: list[str] = []
        door = ProcessShares(3, refused.append, said.append, scans.pause)

        def come(inode: int, beside: int) -> Any:
            each: Any = WaitingConnection()
            door.connection_noted(each, inode)
            door.connection_opened(each, beside)
            return each

        inside = [come(n, n) for n in range(3)]
        assert [each.state for each in inside] == ["served"] * 3
        assert not scans.asked, "while few are open nothing is asked"
        hogs, other = [come(10, 3), come(11, 4)], come(100, 5)
        assert [each.state for each in [*hogs, other]] == ["held"] * 3
        await until(lambda: scans.pauses)
        assert scans.asked == [{0, 1, 2, 10, 11, 100}]
        assert refused == hogs
        assert other.state == "let in"
        assert [str(HOG) in line for line in said] == [True]
        door.connection_closed(inside[0])
        late, gone = come(12, 5), come(13, 5)
        door.connection_closed(gone)
        assert late.state == "held"
        assert len(scans.asked) == 1, "it waits until the pause is over"
        scans.go_on.set()
        await until(lambda: len(scans.pauses) == 2)
        assert scans.pauses == [shares.SCAN_EVERY_S] * 2
        assert scans.asked[1] == {1, 2, 12, 100}
        assert late.state == "let in", "its process has one less by then"
        scans.go_on.set()
        await until(lambda: door._deciding is None)
        assert refused == hogs

    asyncio.run(play())


def test_who_comes_while_others_wait_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a process would get connections that the scan, which is under way, cannot count."""

    async def play() -> None:
        scans = Scans()
        monkeypatch.setattr(peer_owner, "holders", scans.holders)
        door = ProcessShares(1, lambda _: None, lambda _: None, scans.pause)
        for inode, beside, state in ((1, 0, "served"), (2, 1, "held"), (3, 0, "held")):
            each: Any = WaitingConnection()
            door.connection_noted(each, inode)
            door.connection_opened(each, beside)
            assert each.state == state
        door.close()

    asyncio.run(play())


def test_a_scan_that_fails_for_want_of_descriptors_lets_nobody_in_and_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> None:
        scans = Scans()
        failing = [OSError(errno.EMFILE, "Too many open files")]

        def holders(inodes: Collection[int]) -> dict[int, list[int]]:
            if failing:
                raise failing.pop()
            return scans.holders(inodes)

        monkeypatch.setattr(peer_owner, "holders", holders)
        refused: list[Any] = []
        said: list[str] = []
        door = ProcessShares(1, refused.append, said.append, scans.pause)
        come: list[Any] = []
        for inode in (1, 2):
            come.append(WaitingConnection())
            door.connection_noted(come[-1], inode)
            door.connection_opened(come[-1], inode - 1)
        await until(lambda: scans.pauses)
        assert come[1].state == "held"
        assert "Too many open files" in said[0]
        scans.go_on.set()
        await until(lambda: refused)
        assert refused == [come[1]]
        door.close()

    asyncio.run(play())


# --- what the kernel tells ---


def test_every_process_that_has_a_socket_is_found() -> None:
    ours, shared = socket.socketpair()
    with ours, shared:
        child = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[shared.fileno()]
        )
        try:
            inodes = [os.fstat(each.fileno()).st_ino for each in (ours, shared)]
            found = peer_owner.holders([*inodes, 0])
        finally:
            child.communicate(b"\n")
    assert {inode: set(pids) for inode, pids in found.items()} == {
        inodes[0]: {os.getpid()},
        inodes[1]: {os.getpid(), child.pid},
    }


def test_where_proc_cannot_be_read_nobody_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> list[str]:
        raise PermissionError

    monkeypatch.setattr(os, "listdir", refuse)
    assert peer_owner.holders([1]) == {}


def test_a_shortage_is_no_answer_to_the_question_whose_sockets_these_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: str) -> list[str]:
        raise OSError(errno.ENFILE, "Too many open files in system")

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        peer_owner.holders([1])


# --- the door ---

Knock = Callable[..., Awaitable[Client]]
Play = Callable[[Knock], Awaitable[None]]


GATES = {
    "no token": AccessRules,
    "the generated token": lambda: AccessRules(tokens={GENERATED_PRINCIPAL: hash_of("g")}, needs_token=True),
}


LOOPS: dict[str, Any] = {"asyncio": asyncio.run, "uvloop": uvloop.run}


@pytest.fixture(params=itertools.product(LOOPS, GATES), ids=", ".join)
def with_door(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[Play], None]:
    """A door for 8 connections. The test says of which process each is; between scans is no pause."""
    pids: dict[int, int] = {}
    monkeypatch.setattr(
        peer_owner, "holders", lambda inodes: {each: [pids[each]] for each in inodes}, raising=False
    )
    monkeypatch.setattr(shares, "SCAN_EVERY_S", 0.0)

    loop, gate = request.param

    async def run(play: Play) -> None:
        core = HttpCore(HttpRules(), GATES[gate](), patience_s=0.0)
        door = HttpDoorServer(str(tmp_path), core, HttpLimits(), 8)
        listener = socket.create_server(("127.0.0.1", 0))
        address = listener.getsockname()
        listening = asyncio.Event()
        running = asyncio.create_task(door.run(listener, listening.set))
        await listening.wait()
        clients: list[Client] = []

        async def knock(pid: int, words: bytes = KNOCK) -> Client:
            sock = socket.socket()
            pids[os.fstat(sock.fileno()).st_ino] = pid
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, address)
            client = Client(*await asyncio.open_connection(sock=sock))
            clients.append(client)
            await client.send(words)
            return client

        try:
            await play(knock)
        finally:
            for each in clients:
                each.writer.close()
            door.stop()
            await asyncio.wait_for(running, WAIT_S)

    return lambda play: LOOPS[loop](run(play))


async def status(client: Client) -> bytes:
    return (await client.until(b"\r\n")).strip()


@behaviour("http:shares:processes")
def test_one_process_cannot_take_all_connections_of_a_door_without_tokens(
    with_door: Callable[[Play], None],
) -> None:
    async def play(knock: Knock) -> None:
        hogs = [await knock(HOG) for _ in range(6)]
        assert [await status(each) for each in hogs] == [IN] * 6
        for _ in range(20):  # as many as it likes: who was refused keeps no place from others
            refused = await knock(HOG)
            assert await status(refused) == FULL
            assert b"this process has three quarters of the connections" in await refused.rest()
        others = [await knock(OTHER) for _ in range(2)]
        assert [await status(each) for each in others] == [IN] * 2, "others are served up to the bound"
        last = await knock(OTHER)
        assert await status(last) == FULL
        assert b"too many connections are open" in await last.rest()
        for each in others:
            each.writer.close()
        hogs[0].writer.close()
        await hogs[0].rest()
        await until_in(lambda: knock(HOG))

    with_door(play)


@behaviour("faults:descriptors-for-operators")
def test_a_door_with_all_its_connections_answers_operators_and_says_so(
    with_door: Callable[[Play], None],
) -> None:
    async def play(knock: Knock) -> None:
        agents = [await knock(pid) for pid in range(1, 9)]
        assert [await status(each) for each in agents] == [IN] * 8
        last = await knock(OTHER)
        assert await status(last) == FULL
        assert b"too many connections are open" in await last.rest()
        for path, known in ((b"/health", b"broker_away"), (b"/operator/status", b"403")):
            operator = await knock(OTHER, KNOCK.replace(b"/nothing", path))
            assert known in await status(operator) + await operator.until(b"}")

    with_door(play)


@behaviour("http:shares:processes")
def test_a_connection_that_came_when_the_door_was_full_gets_no_place_beyond_the_share_of_its_process(
    with_door: Callable[[Play], None],
) -> None:
    async def play(knock: Knock) -> None:
        inside = [await knock(HOG) for _ in range(6)] + [await knock(OTHER) for _ in range(2)]
        assert [await status(each) for each in inside] == [IN] * 8
        extra = await knock(HOG, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"broker_away" in (await extra.answer())[1]
        inside[-1].writer.close()
        await inside[-1].rest()
        await extra.send(KNOCK)
        assert await status(extra) == FULL
        await until_in(lambda: knock(OTHER))

    with_door(play)


@behaviour("http:shares:processes")
def test_refused_connections_that_stay_give_way_to_new_ones(
    with_door: Callable[[Play], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER_S", float("inf"))

    async def play(knock: Knock) -> None:
        hogs = [await knock(HOG) for _ in range(6)]
        assert [await status(each) for each in hogs] == [IN] * 6
        stay = [await knock(HOG) for _ in range(10)]  # none of them hangs up
        assert {await status(each) for each in stay[-1:]} == {FULL}
        await until_in(lambda: knock(OTHER))

    with_door(play)


async def until_in(knock: Callable[[], Awaitable[Client]]) -> None:
    """Dial until the door serves."""
    async with asyncio.timeout(WAIT_S):
        while await status(client := await knock()) != IN:
            client.writer.close()
