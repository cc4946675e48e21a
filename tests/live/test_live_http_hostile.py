"""What clients and signals do to the door and its broker while requests and streams are open: nothing hangs,
nothing is left, nobody else notices.
"""

import json
import os
import signal
import socket
from contextlib import suppress
from typing import Any

import psutil
import trio

from carpool.http.core.access import hash_of
from tests.kit.line_agent import WAIT_S
from tests.kit.live import Daemon, Make, alive, kit
from tests.kit.open_door import open_door
from tests.kit.private_daemon import until as until_now
from tests.kit.sdks import entry
from tests.live.test_live_http import BOTH, GREETING, META, ask, door, request, session


class Raw:
    """One connection, and what it has heard. `linger=False`: it ends with a reset."""

    def __init__(self, url: str, data: bytes = b"") -> None:
        host, _, port = url.removeprefix("http://").partition("/")[0].partition(":")
        self.sock = socket.create_connection((host, int(port)), WAIT_S)
        self.sock.sendall(data)
        self.heard = b""

    def until(self, mark: bytes) -> bytes:
        while mark not in self.heard:
            more = self.sock.recv(65536)
            assert more, f"the connection ended without {mark!r}: {self.heard[-300:]!r}"
            self.heard += more
        return self.heard

    def ends(self) -> bool:
        while more := self.sock.recv(65536):
            self.heard += more
        return True

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()


def written(method: str, body: Any = None, **headers: str) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    named = {"Host": "localhost", "Accept": BOTH if data else "text/event-stream", **headers}
    if data:
        named |= {"Content-Type": "application/json", "Content-Length": str(len(data))}
    lines = [f"{method} /mcp HTTP/1.1", *(f"{name.replace('_', '-')}: {it}" for name, it in named.items())]
    return "\r\n".join([*lines, "", ""]).encode() + data


def stateless(method: str, name: str = "", **params: Any) -> bytes:
    headers = {
        "MCP_Protocol_Version": "2026-07-28",
        "Mcp_Method": method,
        **({"Mcp_Name": name} if name else {}),
    }
    named = {"name": name} if name else {}
    return written("POST", request(1, method, _meta=META, **named, **params), **headers)


def clients(url: str) -> int:
    """Connections to the door that it has not let go of, also those that it has not accepted yet."""
    port = int(url.removeprefix("http://").partition("/")[0].partition(":")[2])
    over = {psutil.CONN_LISTEN, psutil.CONN_TIME_WAIT}
    ours = [each for each in psutil.net_connections("tcp") if each.laddr and each.laddr[1] == port]
    return sum(each.status not in over for each in ours)


async def quiet(one: Daemon) -> None:
    await one.until(lambda status: status["totals"]["in_flight"] == 0, "no call is open")


async def test_clients_that_leave_at_any_moment_leave_nothing(daemon: Make) -> None:
    one = daemon({"sdk2": entry("sdk2", sharing="concurrent")}, http=open_door())
    url, pid = door(one)
    sid = session(url)
    steps = request(5, "tools/call", name="steps", arguments={"count": 3}, _meta={"progressToken": 1})
    for whole in (
        written("POST", steps, Mcp_Session_Id=sid),
        stateless("tools/call", "steps", arguments={"count": 3}),
    ):
        for cut in range(0, len(whole), 13):
            Raw(url, whole[:cut]).reset()
        for delay in range(0, 100, 5):
            left = Raw(url, whole)
            await trio.sleep(delay / 1000)  # not a wait: the moment it leaves
            left.reset()
    broker = one.facts()["broker"]["pid"]
    os.kill(broker, signal.SIGSTOP)  # who is answered before it leaves has a session
    for _ in range(50):
        Raw(url, written("POST", request(1, "initialize", protocolVersion="2025-11-25"))).reset()
    until_now(lambda: not clients(url), "the door knows that they have left")
    os.kill(broker, signal.SIGCONT)
    await quiet(one)
    await one.until(lambda status: len(status["sessions"]) <= 2, "no session of those who left at once")
    until_now(lambda: not clients(url), "their connections are closed")
    assert ask(url, "POST", "", request(6, "ping"), Mcp_Session_Id=sid).status == 200
    assert alive(pid)


def waiting(url: str) -> bytes:
    """The answer of the server: how many calls are in its tools that wait."""
    body = request(1, "tools/call", _meta=META, name="waiting", arguments={})
    headers = {"MCP_Protocol_Version": "2026-07-28", "Mcp_Method": "tools/call", "Mcp_Name": "waiting"}
    return ask(url, "POST", "", body, **headers).body


async def test_what_is_open_outlives_a_broker_or_supervisor_that_stands_still_for_a_while(
    daemon: Make,
) -> None:
    one = daemon({"sdk2": entry("sdk2", sharing="concurrent")}, http=open_door())
    url, pid = door(one)
    greeting = {**GREETING, "capabilities": {"elicitation": {}}}
    sid = ask(url, "POST", "", request(1, "initialize", **greeting)).headers["Mcp-Session-Id"]
    form = request(7, "tools/call", name="form", arguments={"text": "x"})
    for who in ("broker", "supervisor", "door"):
        asked = Raw(url, written("POST", form, Mcp_Session_Id=sid))
        heard = asked.until(b'"required"')
        gate, note = one.base / f"gate-{who}", one.base / f"note-{who}"
        wait = {"seconds": 0, "until": str(gate), "note": str(note)}
        called = Raw(url, stateless("tools/call", "sleep", arguments=wait))
        until_now(lambda: b'"1"' in waiting(url), "the second call is at the server")
        facts = await one.status()
        victim = {
            "door": pid,
            "broker": facts["broker"]["pid"],
            "supervisor": facts["supervisors"][0]["pid"],
        }[who]
        os.kill(victim, signal.SIGSTOP)
        try:
            gate.touch()
            until_now(note.exists, f"the server answers while {who} stands still")
        finally:
            os.kill(victim, signal.SIGCONT)
        await trio.to_thread.run_sync(called.until, b"slept")
        ident = json.loads(heard.rpartition(b"data: ")[2].partition(b"\n")[0])["id"]
        said = {"jsonrpc": "2.0", "id": ident, "result": {"action": "decline"}}
        assert ask(url, "POST", "", said, Mcp_Session_Id=sid).status == 202
        await trio.to_thread.run_sync(asked.until, b'"result"')
        called.sock.close()
        asked.sock.close()
    await quiet(one)
    assert door(one)[1] == pid


async def test_a_token_that_is_taken_out_ends_the_streams_that_it_has_open(daemon: Make) -> None:
    tokens = {"ann": hash_of("a"), "bob": hash_of("b")}
    one = daemon({"echo": kit("echo")}, http={"port": 0, "tokens": tokens})
    url, _ = door(one)
    streams = {}
    for name, token in (("ann", "Bearer a"), ("bob", "Bearer b")):
        sid = session(url, Authorization=token)
        streams[name] = Raw(url, written("GET", Mcp_Session_Id=sid, Authorization=token, Connection="close"))
        streams[name].until(b"id: 0-0")
    one.configure({"echo": kit("echo")}, http={"port": 0, "tokens": {"bob": tokens["bob"]}})
    assert await trio.to_thread.run_sync(streams["ann"].ends)
    await one.until(lambda status: len(status["sessions"]) == 1, "and its session")
    streams["bob"].sock.setblocking(False)
    with suppress(BlockingIOError):
        assert streams["bob"].sock.recv(1), "the other stream is open"
    for each in streams.values():
        each.sock.close()
