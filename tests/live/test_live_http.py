"""The HTTP door as a process, before a real carpool: both eras, tokens, deaths and what is left."""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPConnection
from typing import Any

import mcp
import pytest
import trio
from mcp.client.streamable_http import streamable_http_client
from prometheus_client.parser import text_string_to_metric_families

from carpool.http.core.access import hash_of
from carpool.launcher.http_door import read_door_status, read_door_url
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S, fault_of
from tests.kit.live import Daemon, kit
from tests.kit.open_door import open_door
from tests.kit.private_daemon import until as until_now
from tests.kit.sdks import entry
from tests.live.conftest import shared_daemon

Json = dict[str, Any]
BOTH = "application/json, text/event-stream"
GREETING = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
SDK_LEAVES_GENERATORS = "ignore::pytest.PytestUnraisableExceptionWarning"
"""The SDK's client leaves its event streams to the garbage collector, which trio warns of."""
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@pytest.fixture(scope="module")
def doored() -> Iterator[Daemon]:
    servers = {"echo": kit("echo"), "sdk": entry("sdk2"), "silent": kit("silent")}
    yield from shared_daemon(servers, http=open_door())


def door(daemon: Daemon) -> tuple[str, int]:
    """The URL and the pid of the door that listens."""
    found: list[tuple[str, int]] = []

    def listens() -> bool:
        """Read the file once: a door that is replaced takes its own away, and the next one writes another."""
        with suppress(OSError, ValueError, KeyError):
            told = json.loads((daemon.directory / "http.json").read_text())
            os.kill(told["pid"], 0)
            found.append((told["url"], told["pid"]))
        return bool(found)

    until_now(listens, "the door listens")
    return found[0]


class HttpReply:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(url: str, method: str, path: str = "", body: Any = None, **headers: str) -> HttpReply:
    """One HTTP request on a connection of its own."""
    host, _, rest = url.removeprefix("http://").partition("/")
    connection = HTTPConnection(host, timeout=WAIT_S)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            named = {"Content-Type": "application/json", "Accept": BOTH, **named}
        connection.request(
            method, f"/{rest}".rstrip("/") + path, None if body is None else json.dumps(body), named
        )
        answer = connection.getresponse()
        return HttpReply(answer.status, dict(answer.getheaders()), answer.read())
    finally:
        connection.close()


def request(ident: int, method: str, /, **params: Any) -> Json:
    return {"jsonrpc": "2.0", "id": ident, "method": method, "params": params}


def session(url: str, path: str = "", **headers: str) -> str:
    greeted = ask(url, "POST", path, request(1, "initialize", **GREETING), **headers)
    assert greeted.status == 200, greeted.body
    found = greeted.headers["Mcp-Session-Id"]
    done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert ask(url, "POST", path, done, Mcp_Session_Id=found, **headers).status == 202
    return found


def modern(url: str, method: str, path: str = "", /, name: str = "", **params: Any) -> HttpReply:
    headers = {"MCP_Protocol_Version": "2026-07-28", "Mcp_Method": method}
    if name:
        headers["Mcp_Name"] = name
        params["name"] = name
    return ask(url, "POST", path, request(1, method, _meta=META, **params), **headers)


@pytest.mark.filterwarnings(SDK_LEAVES_GENERATORS)
@behaviour("http:sessions")
async def test_an_agent_of_the_official_sdk_works_in_a_session(doored: Daemon) -> None:
    seen: list[float] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    with trio.fail_after(LIMIT_S):
        async with (
            streamable_http_client(door(doored)[0]) as (read, write),
            mcp.ClientSession(read, write) as agent,
        ):
            await agent.initialize()
            assert "add" in [each.name for each in (await agent.list_tools()).tools]
            found = await agent.call_tool("steps", {"count": 3}, progress_callback=progress)
            assert found.structured_content == {"result": "3 steps"}
    assert seen == [1.0, 2.0, 3.0]
    await doored.until(lambda status: not status["sessions"], "the session has ended with its agent")
    assert [each["role"] for each in (await doored.status())["processes"]].count("door") == 1


@pytest.mark.filterwarnings(SDK_LEAVES_GENERATORS)
async def test_an_agent_of_the_official_sdk_finds_the_stateless_era(doored: Daemon) -> None:
    seen: list[float] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    with trio.fail_after(LIMIT_S):
        async with mcp.Client(door(doored)[0]) as agent:
            assert agent.protocol_version == "2026-07-28"
            assert (await agent.call_tool("add", {"a": 2, "b": 3})).structured_content == {"sum": 5}
            await agent.call_tool("steps", {"count": 2}, progress_callback=progress)
    assert seen == [1.0, 2.0]


@behaviour("client:looks")
def test_what_agents_on_the_socket_may_ask_of_their_view_is_unknown_over_http(doored: Daemon) -> None:
    url, _ = door(doored)
    sid = session(url)
    for method in ("carpool/tools", "carpool/servers", "carpool/resolve", "carpool/status"):
        refused = ask(url, "POST", "", request(2, method, name="echo"), Mcp_Session_Id=sid)
        assert refused.json["error"]["code"] == -32601, method
    assert ask(url, "DELETE", "", Mcp_Session_Id=sid).status == 200


@behaviour("http:one-server")
def test_one_server_can_be_had_alone_and_under_its_own_names(doored: Daemon) -> None:
    url, _ = door(doored)
    sid = session(url, "/s/echo")
    listed = ask(url, "POST", "/s/echo", request(2, "tools/list"), Mcp_Session_Id=sid)
    assert {each["name"] for each in listed.json["result"]["tools"]} == {"echo", "whoami", "blob"}
    assert ask(url, "DELETE", "/s/echo", Mcp_Session_Id=sid).status == 200
    assert ask(url, "POST", "/s/none", request(1, "initialize", **GREETING)).status == 404
    assert modern(url, "tools/list", "/s/none").status == 404
    assert modern(url, "tools/list", "/p/none").status == 404


@behaviour("http:health")
def test_health_and_the_list_of_tools_are_there_for_programs(doored: Daemon) -> None:
    url, _ = door(doored)
    root = url.removesuffix("/mcp")
    ask(url, "GET", "/tools")  # nobody else may have been here before, and looking at health starts nothing
    until_now(lambda: ask(root, "GET", "/health").json["tool_count"] >= 3, "the tools are known")
    health = ask(root, "GET", "/health")
    assert (health.status, health.json["healthy"], set(health.json)) == (
        200,
        True,
        {"healthy", "reason", "silent", "tool_count", "uptime_s", "servers"},
    )
    assert "echo__echo" in {each["name"] for each in ask(url, "GET", "/tools").json["tools"]}


@behaviour("metrics:names")
def test_metrics_count_the_calls_that_were_made(doored: Daemon) -> None:
    url, _ = door(doored)
    root = url.removesuffix("/mcp")

    def calls() -> float:
        page = ask(root, "GET", "/metrics")
        assert page.status == 200, page
        families = {each.name: each for each in text_string_to_metric_families(page.body.decode())}
        return sum(
            each.value
            for each in families["carpool_answers"].samples
            if each.name == "carpool_answers_total" and each.labels["tool"] == "echo"
        )

    before = calls()
    for number in range(3):
        answer = modern(url, "tools/call", name="echo__echo", arguments={"text": str(number)})
        assert answer.status == 200, answer
    until_now(lambda: calls() == before + 3, "the next reading has them")


@behaviour("http:stateless:statuses")
def test_errors_of_the_stateless_era_have_their_status(doored: Daemon) -> None:
    url, _ = door(doored)
    assert (modern(url, "ping").status, modern(url, "initialize").status) == (404, 404)
    found = ask(url, "POST", "", request(7, "tools/list", _meta=META), MCP_Protocol_Version="2026-07-28")
    assert (found.status, found.json["id"], found.json["error"]["code"]) == (400, 7, -32020)
    old = {**META, "io.modelcontextprotocol/protocolVersion": "2099-01-01"}
    headers = {"MCP_Protocol_Version": "2099-01-01", "Mcp_Method": "tools/list"}
    found = ask(url, "POST", "", request(1, "tools/list", _meta=old), **headers)
    assert (found.status, found.json["error"]["code"]) == (400, -32022)
    assert found.json["error"]["data"]["supported"] == ["2026-07-28"]


@behaviour("http:stateless:hang-up")
async def test_a_stateless_agent_that_hangs_up_cancels_its_call(doored: Daemon) -> None:
    url, _ = door(doored)
    host, port = url.removeprefix("http://").split("/")[0].split(":")
    name = "silent__wait"
    body = json.dumps(request(1, "tools/call", _meta=META, name=name, arguments={})).encode()
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nAccept: {BOTH}\r\n"
        f"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: {name}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(head.encode() + body)
        await doored.until(lambda status: status["totals"]["in_flight"] == 1, "the call is at the server")
    await doored.until(lambda status: status["totals"]["in_flight"] == 0, "the call is cancelled")


@behaviour("http:tokens", "metrics:access")
async def test_with_tokens_each_comes_in_as_itself_or_not_at_all(daemon: Callable[..., Daemon]) -> None:
    one = daemon(
        {"echo": kit("echo")}, http={"port": 0, "tokens": {"ann": hash_of("a"), "bob": hash_of("b")}}
    )
    url, _ = door(one)
    assert ask(url, "POST", "", request(1, "initialize", **GREETING)).status == 401
    root = url.removesuffix("/mcp")
    assert ask(root, "GET", "/metrics").status == 401
    assert ask(root, "GET", "/metrics", Authorization="Bearer a").status == 403
    sid = session(url, Authorization="Bearer a")
    call = request(2, "ping")
    assert ask(url, "POST", "", call, Mcp_Session_Id=sid, Authorization="Bearer a").status == 200
    assert ask(url, "POST", "", call, Mcp_Session_Id=sid, Authorization="Bearer b").status == 404
    one.configure({"echo": kit("echo")}, http={"port": 0, "tokens": {"bob": hash_of("b")}})
    until_now(
        lambda: ask(url, "POST", "", call, Mcp_Session_Id=sid, Authorization="Bearer a").status == 401,
        "a token that is taken out is refused without a restart",
    )


@behaviour("http:not-open", "http:retried")
def test_a_port_in_use_is_told_and_the_rest_lives_on(daemon: Callable[..., Daemon]) -> None:
    one = daemon({"echo": kit("echo")}, up=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        asked = ("--config", str(one.config), "--http", address)
        alone = one.run("up", *asked)
        assert (alone.returncode, one.daemons()) == (1, []), "in the foreground it does not start"
        done = one.run("up", "--detach", *asked)
        assert done.returncode == 1
        assert f"cannot listen on {address}" in done.stderr
        one.note_fds()
        assert one.run("tools").returncode == 0
        told = json.loads(one.run("status", "--json").stdout)
        assert (told["healthy"], told["reason"]) == (False, "door_closed")
        assert address in told["door"]["problem"]
        assert told["door"]["retried"]
        assert one.run("up", "--detach", *asked).returncode == 1
    assert door(one)[0] == f"http://{address}/mcp"
    assert f"http://{address}/mcp" in one.run("status").stdout


@behaviour("http:tokens:elsewhere", "http:not-open")
def test_a_door_that_all_could_use_is_not_opened_without_tokens(daemon: Callable[..., Daemon]) -> None:
    one = daemon({"echo": kit("echo")}, up=False, http={"tokens": False})
    asked = ("--config", str(one.config), "--http", "0.0.0.0:0")
    alone = one.run("up", *asked)
    assert alone.returncode == 2
    assert "without tokens" in alone.stderr
    done = one.run("up", "--detach", *asked)
    assert done.returncode == 2
    assert "without tokens" in done.stderr
    one.note_fds()
    told = json.loads(one.run("status", "--json").stdout)["door"]
    assert (told["url"], told["retried"]) == ("", False)
    assert "the HTTP door is not open" in one.run("status").stdout
    assert one.run("tools").returncode == 0, "agents on the socket are served"


@behaviour("http:not-open")
def test_a_door_of_the_file_that_cannot_open_is_told_until_the_file_wants_none(
    daemon: Callable[..., Daemon],
) -> None:
    one = daemon({"echo": kit("echo")}, up=False, http={"host": "0.0.0.0", "port": 0, "tokens": False})
    done = one.run("up", "--detach", "--config", str(one.config))
    assert done.returncode == 2
    assert "without tokens" in done.stderr
    one.note_fds()
    assert one.run("tools").returncode == 0
    assert json.loads(one.run("status", "--json").stdout)["reason"] == "door_closed"
    one.configure({"echo": kit("echo")})
    until_now(lambda: read_door_status(str(one.directory)) is None, "no door is wanted")
    assert json.loads(one.run("status", "--json").stdout)["door"] is None
    one.configure({"echo": kit("echo")}, http=open_door())
    until_now(lambda: read_door_url(str(one.directory)), "the door of the new file is open")


def test_the_door_comes_and_goes_with_the_configuration(daemon: Callable[..., Daemon]) -> None:
    one = daemon({"echo": kit("echo")})
    assert not (one.directory / "http.json").exists()
    one.configure({"echo": kit("echo")}, http=open_door())
    url, _ = door(one)
    assert ask(url, "POST", "", request(2, "ping"), Mcp_Session_Id=session(url)).status == 200
    one.configure({"echo": kit("echo")})
    until_now(lambda: not (one.directory / "http.json").exists(), "the door is closed")
    assert one.facts()["broker"]["pid"]


def test_without_the_extra_the_door_says_what_to_install(
    daemon: Callable[..., Daemon], tmp_path: Any
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['httptools'] = None\n")
    (tmp_path / "carpool_broker").mkdir()  # what holds nothing of carpool is not on the daemon's path
    one = daemon({"echo": kit("echo")}, up=False)
    one.environ["PYTHONPATH"] += os.pathsep + str(tmp_path)
    done = one.run("up", "--detach", "--config", str(one.config), "--http", "127.0.0.1:0")
    assert done.returncode == 2
    assert "-m pip install 'httptools>=0.6.4' 'uvloop>=0.21'" in done.stderr
    one.note_fds()


@behaviour("remote:own-door")
async def test_a_server_that_leads_to_carpools_own_door_is_refused_there(
    daemon: Callable[..., Daemon],
) -> None:
    one = daemon({"echo": kit("echo")}, http=open_door())
    url, _ = door(one)
    servers: dict[str, Json] = {
        "found": {"url": f"{url}/s/echo"},
        "new": {"url": url, "transport": "http", "era": "modern"},
        "old": {"url": url.replace("/mcp", "/sse"), "transport": "sse"},
    }
    one.configure({"echo": kit("echo"), **servers}, http=open_door())
    assert (await one.reload())["ok"]
    async with one.agent() as agent:
        for name in servers:
            refused = await agent.call(f"{name}__echo", {"text": "round"})
            says = "HTTP 508" if name == "old" else "this is carpool's own HTTP door"
            assert says in refused["content"][0]["text"]
            assert fault_of(refused)["delivered"] == "no"
        listed = [each["name"] for each in (await agent.result("tools/list", {}))["tools"]]
    assert {each.partition("__")[0] for each in listed} == {"echo"}


@behaviour("http:health:frozen")
@pytest.mark.parametrize("part", ["broker", "supervisor"])
def test_health_and_status_name_the_process_that_is_frozen(doored: Daemon, part: str) -> None:
    url, _ = door(doored)
    root = url.removesuffix("/mcp")
    ask(url, "GET", "/tools")
    until_now(lambda: ask(root, "GET", "/health").json["tool_count"], "the tools are known")
    before = ask(root, "GET", "/health").json
    facts = json.loads(doored.run("status", "--json").stdout)
    pid = facts["broker"]["pid"] if part == "broker" else facts["supervisors"][0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        until_now(lambda: ask(root, "GET", "/health").status == 503, "the kept answer has expired")
        health = ask(root, "GET", "/health")
        shown = doored.run("status")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (health.status, health.json["reason"]) == (503, f"{part}_silent")
    assert health.json["silent"]["process"] == part
    assert (health.json["servers"], health.json["tool_count"]) == (before["servers"], before["tool_count"])
    assert shown.returncode == (1 if part == "broker" else 0)
    words = shown.stderr if part == "broker" else shown.stdout
    assert f"the {part} " in words
    assert "`carpool restart --all`" in words
    until_now(lambda: ask(root, "GET", "/health").status == 200, "it is well again")
