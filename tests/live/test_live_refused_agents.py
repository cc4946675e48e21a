"""Agents that cannot be served as carpool is configured: every one hears why, in place of a closed pipe."""

import json
import os
import subprocess
from collections.abc import Iterator

import pytest
import trio

from carpool.errors import CarpoolError
from carpool.sync import Carpool
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S, Json, spoken
from tests.kit.live import Daemon, Make
from tests.kit.open_door import open_door
from tests.live.conftest import shared_daemon
from tests.live.test_live_http import META, ask, door, request

INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "live", "version": "1"},
}
ERAS: dict[str, list[tuple[str, Json]]] = {
    "handshake": [("initialize", INITIALIZE), ("tools/list", {})],
    "discover": [("server/discover", {"_meta": META}), ("initialize", INITIALIZE)],
    "stateless": [("tools/call", {"name": "x", "_meta": META}), ("tools/list", {"_meta": META})],
}
"""The first request of an agent, and one that it may send after an error."""

SECRET = "hunter2-never-told"
FILES = {
    "broken JSON": (f'{{"mcpServers": {{"a": {{"env": {{"T": "{SECRET}"}}', "carpool.json:1: ", "missing"),
    "unknown key": (f'{{"mcpServers": {{}},\n "limit": "{SECRET}"}}', "carpool.json:2: limit", "unknown key"),
    "no file": (None, "carpool.json:1: ", "there is no such file: write it"),
}
"""Of a configuration: the text, and what is told of it: the place, and what is wrong."""
WORDS = {
    "workspace": (("--workspace", "nope"), "the configuration has no workspace 'nope'"),
    "profile": (("--profile", "nope"), "the configuration has no profile 'nope'"),
    "directory": (("--workspace", "/no/such/place"), "--workspace names no directory that is there"),
    "option": (("--nope", SECRET), "--nope is not an option of `carpool connect`"),
}


async def hear(one: Daemon, asks: list[tuple[str, Json]], *words: str) -> tuple[list[Json], int, str]:
    """What an agent hears behind `carpool connect WORDS`: its errors, the shim's exit code and stderr."""
    process = await trio.lowlevel.open_process(
        one.command("connect", *words),
        env=one.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    try:
        async with process.stderr:
            async with spoken(process.stdin, process.stdout, process.pid) as agent:
                answers = []
                for method, params in asks:
                    answers.append(await agent.ask(method, params))
                    await agent.tell("notifications/initialized")
                assert len(agent.lines) == len(asks), "a notification has no answer"
                assert process.poll() is None, "it stays as long as the agent does"
            with trio.fail_after(WAIT_S):
                said = b"".join([data async for data in process.stderr])
                code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
        await process.stdin.aclose()
        await process.stdout.aclose()
    assert all("error" in answer for answer in answers), answers
    return [answer["error"] for answer in answers], code, said.decode()


async def refused(one: Daemon, *words: str, where: str, what: str) -> None:
    """An agent of each era is refused: the answers have what the command line prints."""
    for era, asks in ERAS.items():
        errors, code, said = await hear(one, asks, *words)
        assert code == 2, (era, said)
        for error in errors:
            assert error["code"] == 4111, era
            assert (error["data"]["code"], error["data"]["delivered"]) == ("attach_refused", "no")
            assert error["message"] == said.rstrip("\n"), "what a person reads on the command line"
            assert where in error["message"]
            assert what in error["message"]
            assert SECRET not in json.dumps(error)


def spoil(one: Daemon, kind: str) -> None:
    text = FILES[kind][0]
    if text is None:
        one.config.unlink()
    else:
        one.config.write_text(text)


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    yield from shared_daemon({}, http=open_door())


@behaviour("agents:refusal-told")
@pytest.mark.parametrize("kind", FILES)
async def test_a_broken_configuration_is_the_answer_where_no_carpool_runs(daemon: Make, kind: str) -> None:
    one = daemon(up=False)
    spoil(one, kind)
    with trio.fail_after(LIMIT_S):
        await refused(one, where=FILES[kind][1], what=FILES[kind][2])
    assert not one.running(), "no carpool is left behind"


@behaviour("agents:refusal-told")
@pytest.mark.parametrize("kind", WORDS)
async def test_options_that_cannot_be_are_the_answer_where_no_carpool_runs(daemon: Make, kind: str) -> None:
    one = daemon(up=False)
    words, what = WORDS[kind]
    with trio.fail_after(LIMIT_S):
        await refused(one, *words, where="carpool: ", what=what)


@behaviour("agents:refusal-told")
async def test_what_a_running_carpool_refuses_is_told_by_every_way_in(
    shared: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", shared.environ)
    with trio.fail_after(LIMIT_S):
        for words, what in WORDS.values():
            await refused(shared, *words, where="carpool: ", what=what)
        await trio.to_thread.run_sync(_refused_over_http, shared)
        await trio.to_thread.run_sync(_refused_python, shared)


def _refused_over_http(one: Daemon) -> None:
    url, _ = door(one)
    for path, what in (
        ("?workspace=nope", "no workspace 'nope'"),
        ("/p/nope", "no profile 'nope'"),
    ):
        for method, params in (("initialize", INITIALIZE), ("server/discover", {"_meta": META})):
            headers = (
                {"MCP_Protocol_Version": "2026-07-28", "Mcp_Method": method} if "_meta" in params else {}
            )
            reply = ask(url, "POST", path, request(1, method, **params), **headers)
            assert reply.status == 404, (path, method)
            assert (reply.json["id"], what in reply.json["error"]["message"]) == (1, True), reply.json


def _refused_python(one: Daemon) -> None:
    for named, what in (({"workspace": "nope"}, "no workspace"), ({"profile": "nope"}, "no profile")):
        with pytest.raises(CarpoolError, match=what) as refusal, Carpool(**named, start=False):
            pytest.fail("it was let in")
        assert refusal.value.kind == "attach_refused"


@behaviour("agents:refusal-told")
@pytest.mark.parametrize("kind", FILES)
async def test_a_file_that_breaks_while_carpool_runs_keeps_no_agent_out(shared: Daemon, kind: str) -> None:
    text = shared.config.read_text()
    spoil(shared, kind)
    try:
        with trio.fail_after(LIMIT_S):
            async with shared.shim() as agent:
                assert await agent.tools() == []
    finally:
        shared.config.write_text(text)


@behaviour("agents:refusal-told")
async def test_a_carpool_that_cannot_be_started_is_told_as_not_running(daemon: Make) -> None:
    one = daemon(up=False)
    one.directory.mkdir(mode=0o700)
    (one.directory / "agents.sock").symlink_to("agents.sock")
    with trio.fail_after(LIMIT_S):
        errors, code, said = await hear(one, ERAS["handshake"])
    assert (code, [error["code"] for error in errors]) == (69, [5317, 5317])
    assert {error["message"] for error in errors} == {said.rstrip("\n")}
    assert "cannot connect" in said
    (one.directory / "agents.sock").unlink()
