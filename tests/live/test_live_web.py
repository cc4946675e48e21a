"""The web page over real HTTP: its stream, its key, other pages, hostile catalogs, frozen watchers."""

import http.client
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio

from carpool.cluster.core.offers import NodeOffer
from carpool.cluster.node_facts import NodeFacts, SilentNode, write_facts
from carpool.http.core.access import hash_of
from carpool.http.core.live_streams import MAX_OF_PRINCIPAL
from carpool.launcher.http_door import read_page_key
from carpool_protocol.bootstrap import paths
from tests.behaviours import behaviour
from tests.kit.hostile_catalogs import HOSTILE
from tests.kit.line_agent import LIMIT_S, WAIT_S
from tests.kit.live import Daemon, Make, kit, observer
from tests.kit.open_door import open_door
from tests.kit.private_daemon import until as until_now
from tests.kit.waits import until
from tests.live.conftest import shared_daemon
from tests.live.test_live_hostile_catalogs import recorded
from tests.live.test_live_http import HttpReply, ask, door

Json = dict[str, Any]
OWN_PAGE = {"Sec-Fetch-Site": "same-origin"}
SEEN = {"ansi", "controls", "bidi", "surrogate", "html", "markdown", "injection", "format", "names"}
"""Hostile catalogs with tools that are listed, if not as they are."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    yield from shared_daemon({"good": observer(), "echo": kit("echo")}, http=open_door())


def root(daemon: Daemon) -> str:
    return door(daemon)[0].removesuffix("/mcp")


def key(daemon: Daemon) -> Json:
    return {"Authorization": f"Bearer {read_page_key(str(daemon.directory))}"}


class Watcher:
    """A client of the stream."""

    def __init__(self, daemon: Daemon, headers: Json) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(root(daemon)).netloc, timeout=WAIT_S)
        self._connection.request("GET", "/operator/live", headers=headers)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()
        assert self._answer.getheader("Content-Type") == "text/event-stream"

    def event(self) -> tuple[str, Any]:
        """The name and the data of the next event."""
        lines: list[str] = []
        while line := self._answer.readline().decode().rstrip("\n"):
            lines.append(line)
        name, data = (line.partition(": ")[2] for line in lines)
        return name, json.loads(data)

    def state(self, accepts: Callable[[Json], object]) -> Json:
        """The next state of which this is true."""
        for _ in range(60):
            name, found = self.event()
            if name == "state" and accepts(found):
                assert isinstance(found, dict)
                return found
        raise AssertionError("no state is as it should be")

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


@contextmanager
def watching(daemon: Daemon, headers: Json) -> Iterator[Watcher]:
    watcher = Watcher(daemon, headers)
    try:
        yield watcher
    finally:
        watcher.close()


@behaviour("web:same", "web:waterfall")
async def test_a_watcher_sees_agents_servers_and_the_parts_of_a_call(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S), watching(shared, key(shared)) as watcher:
        assert watcher.event() == ("hello", {"right": "full"})
        await trio.to_thread.run_sync(watcher.state, lambda _: True)
        async with shared.agent() as agent:
            assert await agent.text("echo__echo", {"text": "hi"}) == "hi"

            def has_call(state: Json) -> bool:
                return any(call["server"] == "echo" for call in state["recent"])

            state = await trio.to_thread.run_sync(watcher.state, has_call)
    call = next(each for each in state["recent"] if each["server"] == "echo")
    assert (call["tool"], call["outcome"], call["method"]) == ("echo", "ok", "tools/call")
    parts = [call[name] for name in ("waiting_s", "hooks_s", "queue_s", "server_s", "back_s")]
    assert all(part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(call["total_s"], abs=1e-4)
    status = json.loads((await shared.carpool("status", "--json"))[1])
    assert state["servers"].keys() == status["servers"].keys()
    assert call["instance"] in [each["id"] for each in status["servers"]["echo"]["instances"]]


@behaviour("web:access")
async def test_without_tokens_a_page_of_the_door_may_read_and_only_the_key_may_act(shared: Daemon) -> None:
    here = root(shared)

    def said(method: str, path: str, body: Any = None, **headers: str) -> HttpReply:
        return ask(here, method, path, body, **headers)

    for path in ("/operator/status", "/operator/live", "/operator/logs?log=broker"):
        assert said("GET", path).status == 403, "a program is no page"
    assert said("GET", "/operator/status", **OWN_PAGE).status == 200
    with watching(shared, OWN_PAGE) as watcher:
        assert watcher.event() == ("hello", {"right": "read"})
    assert said("GET", "/operator/logs?log=broker", **OWN_PAGE).status == 403
    restart = partial(said, "POST", "/operator/restart", {"servers": ["echo"]})
    assert restart(**OWN_PAGE).status == 403
    assert restart(**OWN_PAGE, Authorization="Bearer wrong").status == 403
    done = await trio.to_thread.run_sync(partial(restart, **OWN_PAGE, **key(shared)))
    assert (done.status, done.json["results"][0]["ok"]) == (200, True)


@behaviour("web:access")
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Host": "evil.example", "Sec-Fetch-Site": "same-origin"},
    ],
    ids=["elsewhere", "another port", "embedded", "rebound"],
)
async def test_pages_from_elsewhere_neither_read_nor_act(shared: Daemon, headers: Json) -> None:
    for path in ("/operator/status", "/operator/live"):
        assert ask(root(shared), "GET", path, **headers).status in {403, 421}
    assert ask(root(shared), "POST", "/operator/stop", {"all": True}, **headers).status in {403, 421}
    # A form needs no permission of the browser; it cannot send JSON.
    as_form = {**key(shared), "Content_Type": "text/plain"}
    assert ask(root(shared), "POST", "/operator/stop", {"all": True}, **as_form).status == 415
    assert (
        "Access-Control-Allow-Origin"
        not in ask(root(shared), "GET", "/operator/status", **key(shared)).headers
    )


@behaviour("web:same", "cluster:status")
async def test_the_cluster_of_which_the_nodes_process_tells_is_in_the_stream_and_the_status(
    shared: Daemon,
) -> None:
    own = NodeOffer(node="beta", epoch="1", release="1.0")
    silent = [SilentNode("gamma", 9.0)]
    facts = NodeFacts(pid=os.getpid(), cluster="garage", is_up=True, own=own, silent=silent)
    with trio.fail_after(LIMIT_S), watching(shared, key(shared)) as watcher:
        await trio.to_thread.run_sync(watcher.state, lambda state: state["cluster"] is None)
        write_facts(str(shared.directory), facts)
        try:
            state = await trio.to_thread.run_sync(watcher.state, lambda state: state["cluster"])
            assert state["cluster"]["silent"] == [{"node": "gamma", "for_s": 9.0}]
            status = ask(root(shared), "GET", "/operator/status", **key(shared)).json
            assert status["cluster"] == json.loads((await shared.carpool("status", "--json"))[1])["cluster"]
            assert status["cluster"]["name"] == "garage"
        finally:
            os.unlink(paths.node_file(str(shared.directory)))


@behaviour("web:access")
async def test_logs_are_read_by_name_and_not_by_path(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            await agent.text("echo__echo", {"text": "hi"})

        def read(log: str) -> HttpReply:
            return ask(root(shared), "GET", f"/operator/logs?log={log}", **key(shared))

        lines = (await trio.to_thread.run_sync(read, "server-echo")).json["lines"]
        assert any("serves" in each["message"] for each in lines)
        names = (await trio.to_thread.run_sync(read, "")).json["logs"]
        assert {"broker", "http", "launcher", "server-echo"} <= {*names}
        for log in names:
            assert (await trio.to_thread.run_sync(read, log)).status == 200
        for log in ("..%2Fhttp", "%2Fetc%2Fpasswd", "server-none", "audit.jsonl"):
            assert (await trio.to_thread.run_sync(read, log)).status == 404


@behaviour("web:access")
async def test_with_tokens_the_page_is_behind_an_operators_token(daemon: Make) -> None:
    tokens = {"ann": hash_of("agent"), "eye": {"hash": hash_of("read"), "operator": "read"}}
    one = daemon({"echo": kit("echo")}, http={"port": 0, "tokens": tokens})
    here = root(one)
    assert ask(here, "GET", "/").status == 200, "the page itself holds nothing"
    assert ask(here, "GET", "/operator/live", **OWN_PAGE).status == 401
    assert ask(here, "GET", "/operator/live", Authorization="Bearer agent").status == 403
    with watching(one, {"Authorization": "Bearer read"}) as watcher:
        assert watcher.event() == ("hello", {"right": "read"})
    with watching(one, key(one)) as watcher:
        assert watcher.event() == ("hello", {"right": "full"})


@behaviour("web:verb")
async def test_the_verb_prints_the_address_with_a_code_that_counts_once(shared: Daemon) -> None:
    here = root(shared)
    with trio.fail_after(LIMIT_S):
        code, out, _ = await shared.carpool("web")
        page, _, once = out.strip().partition("#code=")
        assert (code, page) == (0, f"{here}/")
        told = json.loads((await shared.carpool("web", "--json"))[1])
        assert (told["page"], told["key"]) == (f"{here}/", read_page_key(str(shared.directory)))
        assert told["key"] not in out + told["url"]
        assert told["url"] != out.strip(), "each time another one"
        for status in (200, 403):
            given = ask(here, "POST", "/operator/key", {"code": once}, **OWN_PAGE)
            assert (given.status, given.json.get("key")) == (status, told["key"] if status == 200 else None)
        mode = (shared.directory / "http.json").stat().st_mode
        assert mode & 0o777 == 0o600
        assert told["key"] not in (await shared.carpool("status", "--json"))[1]


@behaviour("web:access")
async def test_a_key_ends_with_its_door(daemon: Make) -> None:
    one = daemon({"echo": kit("echo")}, http=open_door())
    _, pid = door(one)
    old = key(one)
    assert ask(root(one), "GET", "/operator/status", **old).status == 200
    os.kill(pid, signal.SIGKILL)
    until_now(
        lambda: read_page_key(str(one.directory)) not in {"", old["Authorization"].split()[1]}, "another key"
    )
    assert ask(root(one), "GET", "/operator/status", **old).status == 403
    assert ask(root(one), "GET", "/operator/status", **key(one)).status == 200


@behaviour("web:verb")
async def test_the_verb_says_what_to_do_where_there_is_no_page(daemon: Make) -> None:
    one = daemon({"echo": kit("echo")}, up=False)
    with trio.fail_after(LIMIT_S):
        code, _, err = await one.carpool("web")
        assert (code, "no carpool runs here" in err) == (69, True)
        one.up()
        code, _, err = await one.carpool("web")
        assert (code, "carpool up --http" in err) == (1, True)


@behaviour("web:sealed")
async def test_hostile_catalogs_arrive_as_json_text(daemon: Make) -> None:
    catalogs = [said for said in HOSTILE.values() if not said.is_large and not said.is_unreadable]
    one = daemon({}, up=False)
    servers = {f"evil{at}": kit("recorded", recorded(one, said)) for at, said in enumerate(catalogs)}
    one.configure(servers, http=open_door())
    one.up()
    with trio.fail_after(LIMIT_S):
        await one.carpool("tools")
        reply = await trio.to_thread.run_sync(partial(ask, root(one), "GET", "/operator/tools", **key(one)))
        assert reply.status == 200
        assert reply.headers["Content-Type"] == "application/json"
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        shown = {tool["name"].partition("__")[0] for tool in reply.json["tools"]}
        assert shown >= {f"evil{at}" for at, said in enumerate(catalogs) if said.name in SEEN}
        with watching(one, key(one)) as watcher:
            await trio.to_thread.run_sync(watcher.state, lambda state: servers.keys() <= {*state["servers"]})


@behaviour("web:frozen")
async def test_watchers_that_do_not_read_do_not_keep_a_new_one_out(shared: Daemon) -> None:
    """They read the beginning and stop, with all the buffers that the system gives them."""
    frozen: list[Watcher] = []
    try:
        for _ in range(MAX_OF_PRINCIPAL):
            frozen.append(Watcher(shared, key(shared)))
            assert frozen[-1].event()[0] == "hello"

        def is_let_in() -> bool:
            connection = http.client.HTTPConnection(urlsplit(root(shared)).netloc, timeout=WAIT_S)
            with closing(connection):
                connection.request("GET", "/operator/live", headers=key(shared))
                return connection.getresponse().status == 200

        assert not is_let_in()
        await until(is_let_in, "a new one may watch", LIMIT_S)
    finally:
        for watcher in frozen:
            watcher.close()


@behaviour("web:frozen")
async def test_watchers_that_do_not_read_hold_up_neither_calls_nor_other_watchers(shared: Daemon) -> None:
    host = urlsplit(root(shared)).netloc.split(":")
    lines = (
        "GET /operator/live HTTP/1.1",
        "Host: localhost",
        f"Authorization: {key(shared)['Authorization']}",
    )
    head = "\r\n".join([*lines, "", ""])
    frozen: list[socket.socket] = []
    try:
        for _ in range(20):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect((host[0], int(host[1])))
            sock.sendall(head.encode())
            frozen.append(sock)
        with trio.fail_after(LIMIT_S):
            async with shared.agent() as agent:
                for number in range(50):
                    assert await agent.text("echo__echo", {"text": str(number)}) == str(number)
            with watching(shared, key(shared)) as watcher:
                await trio.to_thread.run_sync(watcher.state, lambda state: state["totals"]["calls"] >= 50)
    finally:
        for sock in frozen:
            sock.close()
