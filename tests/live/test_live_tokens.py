"""Tokens of the HTTP door in a carpool that runs: the one that it makes, and those that are taken out."""

import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import mcp
import pytest
import trio
from mcp.client.streamable_http import streamable_http_client

from carpool.http.core.access import hash_of
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S
from tests.kit.live import Daemon, kit
from tests.kit.open_door import open_door
from tests.kit.private_daemon import until as until_now
from tests.live.conftest import shared_daemon
from tests.live.test_live_http import GREETING, SDK_LEAVES_GENERATORS, ask, door, request, session

Make = Callable[..., Daemon]


def status_of(url: str, token: str = "") -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return ask(url, "POST", "", request(1, "initialize", **GREETING), **headers).status


def shown_token(daemon: Daemon) -> str:
    done = daemon.run("token", "show")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.filterwarnings(SDK_LEAVES_GENERATORS)
@behaviour("http:tokens:generated")
async def test_an_agent_works_with_the_token_that_carpool_shows(daemon: Make) -> None:
    one = daemon({"echo": kit("echo")}, http={"port": 0})
    url = await trio.to_thread.run_sync(lambda: door(one)[0])
    token = await trio.to_thread.run_sync(shown_token, one)
    assert await trio.to_thread.run_sync(status_of, url) == 401
    with trio.fail_after(LIMIT_S):
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
            streamable_http_client(url, http_client=http) as (read, write),
            mcp.ClientSession(read, write) as agent,
        ):
            await agent.initialize()
            assert (await agent.call_tool("echo__echo", {"text": "x"})).is_error is False


@behaviour("http:tokens:generated", "private:files", "web:access")
def test_the_generated_token_stands_in_its_file_alone_and_outlives_a_restart(daemon: Make) -> None:
    one = daemon({"echo": kit("echo")}, http={"port": 0})
    url, _ = door(one)
    token = shown_token(one)
    kept = one.directory / "state" / "http-token"
    assert kept.stat().st_mode & 0o777 == 0o600
    told = one.run("status").stdout + one.run("status", "--json").stdout
    assert str(kept) in told
    assert token not in told + one.log_text().replace(kept.read_text(), "")
    assert status_of(url, token) == 200
    root = url.removesuffix("/mcp")
    assert ask(root, "GET", "/metrics").status == 401
    assert ask(root, "GET", "/metrics", Authorization=f"Bearer {token}").status == 200
    assert ask(root, "GET", "/health").json["servers"] == {}
    forged = {"Sec_Fetch_Site": "same-origin"}
    assert ask(root, "GET", "/operator/status", **forged).status == 401, "a header is no token"
    assert ask(root, "GET", "/operator/status", Authorization=f"Bearer {token}").status == 403
    key = one.carpool_json("web")["key"]
    assert ask(root, "GET", "/operator/status", Authorization=f"Bearer {key}").status == 200
    assert one.run("restart", "--all").returncode == 0
    url, _ = door(one)
    assert status_of(url, token) == 200
    assert one.run("token", "revoke", "generated").returncode == 0
    assert status_of(url, token) == 401, "the verb ended when the door had shut it out"
    assert status_of(url, shown_token(one)) == 200


@behaviour("http:tokens:at-once", "http:tokens:elsewhere")
def test_the_last_token_of_a_network_door_is_revoked_when_the_verb_ends(daemon: Make) -> None:
    one = daemon({"echo": kit("echo")}, http={"host": "0.0.0.0", "port": 0, "tokens": {"ann": hash_of("a")}})
    url = door(one)[0].replace("0.0.0.0", "127.0.0.1")
    sid = session(url, Authorization="Bearer a")
    done = one.run("token", "revoke", "ann", "--last")
    assert done.returncode == 0, done.stderr
    assert status_of(url, "a") == 401
    assert (
        ask(url, "POST", "", request(2, "ping"), Mcp_Session_Id=sid, Authorization="Bearer a").status == 401
    )


@behaviour("http:tokens:at-once")
def test_a_token_is_revoked_at_once_in_a_file_that_is_broken_elsewhere(daemon: Make) -> None:
    servers = {"echo": kit("echo")}
    tokens = {"ann": hash_of("a"), "bob": hash_of("b")}
    one = daemon(servers, http={"port": 0, "tokens": tokens})
    url, pid = door(one)
    one.configure({**servers, "bad": {"comand": "x"}}, http={"port": 0, "tokens": tokens})
    done = one.run("token", "revoke", "ann")
    assert done.returncode == 0, done.stderr
    assert (status_of(url, "a"), status_of(url, "b")) == (401, 200)
    os.kill(pid, signal.SIGKILL)
    until_now(lambda: door(one)[1] != pid, "another door is there")
    url, _ = door(one)
    assert (status_of(url, "a"), status_of(url, "b")) == (401, 200), "the last good file still has ann"


@behaviour("http:tokens:at-once", "http:not-open")
def test_a_network_door_without_tokens_ends_and_status_says_why(daemon: Make) -> None:
    servers = {"echo": kit("echo")}
    one = daemon(servers, http={"host": "0.0.0.0", "port": 0, "tokens": {"ann": hash_of("a")}})
    door(one)
    one.configure(servers, http={"host": "0.0.0.0", "port": 0, "tokens": False})

    def is_told() -> bool:
        told = json.loads(one.run("status", "--json").stdout)["door"] or {}
        return "without tokens" in told.get("problem", "")

    until_now(is_told, "status says why no door is open")
    assert one.run("tools").returncode == 0, "agents on the socket are served"


@behaviour("private:files")
def test_what_the_door_keeps_is_for_its_user_alone(daemon: Make) -> None:
    one = daemon({}, http={"port": 0, "tokens": {"ann": hash_of("a")}})
    door(one)
    files = [Path(one.directory) / name for name in ("http.json", "http-tokens.json")]
    assert [each.stat().st_mode & 0o777 for each in files] == [0o600, 0o600]
    assert one.run("down").returncode == 0
    assert not any(each.exists() for each in files)


@behaviour("http:tokens:wrong")
def test_wrong_tokens_are_told_and_slowed_and_right_ones_are_not(daemon: Make) -> None:
    tokens = {"ann": hash_of("a"), "ops": {"hash": hash_of("o"), "operator": "read"}}
    one = daemon({"echo": kit("echo")}, http={"port": 0, "tokens": tokens}, audit={"on": True})
    url, _ = door(one)
    host, port = url.removeprefix("http://").removesuffix("/mcp").split(":")
    head = "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n\r\n"
    with contextlib.ExitStack() as stack:
        guesses = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(12)]
        for each in guesses:
            each.sendall(head.encode())
        assert status_of(url, "a") == 200
        waiting = select.select(guesses, [], [], 0)[0]
        assert len(waiting) < len(guesses), "a right token was served while answers to wrong ones wait"
        for each in guesses:
            each.settimeout(LIMIT_S)
            assert each.recv(64).startswith(b"HTTP/1.1 401")
    root = url.removesuffix("/mcp")

    def metrics() -> str:
        return ask(root, "GET", "/metrics", Authorization="Bearer o").body.decode()

    assert 'carpool_http_refused_total{why="wrong_token"} 12.0' in metrics()
    until_now(lambda: "requests with a wrong token or code: " in one.log("http"), "the log tells it")
    assert "from 127.0.0.1" in one.log("http")
    assert "wrong" not in one.log("http").replace("a wrong token", ""), "no token is in the log"
    until_now(lambda: any(line["act"] == "enter" for line in acts(one)), "the audit tells it")
    (line,) = acts(one)
    assert (line["targets"], line["via"], line["outcome"]) == (["127.0.0.1"], "http", "wrong_token")
    assert "127.0.0.1" in one.run("audit", "--acts").stdout


def acts(one: Daemon) -> list[Any]:
    done = one.run("audit", "--acts", "--json")
    return list(json.loads(done.stdout)) if done.returncode == 0 else []


@behaviour("http:limits:free")
@pytest.mark.parametrize("tokens", [False, {}], ids=["no token is needed", "a generated token"])
@pytest.mark.parametrize("path", ["/health", "/operator/key", "/operator/proof", "/"])
def test_a_long_body_is_refused_where_no_token_is_asked_for(
    opened: dict[bool, Daemon], path: str, tokens: Any
) -> None:
    url, _ = door(opened[tokens is False])
    host, port = url.removeprefix("http://").removesuffix("/mcp").split(":")
    for framing in ("Content-Length: 4000000", "Transfer-Encoding: chunked"):
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{framing}\r\n\r\n"
        )
        with socket.create_connection((host, int(port)), timeout=LIMIT_S) as sock:
            sock.sendall(head.encode())
            with contextlib.suppress(OSError):  # it is cut as soon as it is too long
                for _ in range(3):
                    part = b"a" * 32 * 1024
                    sock.sendall(b"8000\r\n" + part + b"\r\n" if "chunked" in framing else part)
            assert sock.recv(64).startswith(b"HTTP/1.1 413"), framing


@pytest.fixture(scope="module")
def opened() -> Iterator[dict[bool, Daemon]]:
    """Doors by whether they need no token."""
    made = contextlib.contextmanager(shared_daemon)
    with made({}, http=open_door()) as one, made({}, http={"port": 0}) as other:
        yield {True: one, False: other}
