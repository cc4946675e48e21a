"""Sessions whose input ends before their answers are there: a pipe, a file, a client that half closes."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
import trio

from carpool_protocol.bootstrap import paths
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json
from tests.kit.live import SERVERS, Daemon, Make, kit, observer
from tests.live.conftest import shared_daemon

CALLS = range(2, 7)


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    yield from shared_daemon({"slow": kit("slow"), "good": observer(), "asks": kit("asks_back")})


def lines_of(*messages: Json) -> bytes:
    return b"".join(json.dumps({"jsonrpc": "2.0", **each}).encode() + b"\n" for each in messages)


def call(number: int, tool: str, **arguments: object) -> Json:
    return {"id": number, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


def greeting(**capabilities: Json) -> tuple[Json, Json]:
    params = {"protocolVersion": "2025-06-18", "capabilities": capabilities, "clientInfo": {"name": "piped"}}
    return {"id": 0, "method": "initialize", "params": params}, {"method": "notifications/initialized"}


def session(tool: str) -> bytes:
    listed = {"id": 1, "method": "tools/list"}
    return lines_of(*greeting(), listed, *(call(number, tool, seconds=0.3) for number in CALLS))


def ids(said: str) -> set[object]:
    answers = [json.loads(line) for line in said.splitlines()]
    return {each["id"] for each in answers if "result" in each}


@behaviour("piped:answered")
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole lines", "last line without its end"])
async def test_a_piped_session_gets_all_of_its_answers(shared: Daemon, *, is_whole: bool) -> None:
    said = session("slow__sleep")
    code, out, err = await shared.carpool("connect", stdin=said if is_whole else said[:-1])
    assert (code, err) == (0, "")
    assert ids(out) == {0, 1, *CALLS}


@behaviour("piped:answered")
async def test_a_piped_session_of_run_gets_all_of_its_answers(shared: Daemon) -> None:
    server = [sys.executable, str(SERVERS / "slow.py")]
    code, out, err = await shared.carpool("run", "--", *server, stdin=session("sleep"))
    assert (code, err) == (0, "")
    assert ids(out) == {0, 1, *CALLS}


@behaviour("piped:answered")
@pytest.mark.parametrize("verb", ["connect", "run"])
async def test_a_piped_session_that_starts_carpool_gets_all_of_its_answers(daemon: Make, verb: str) -> None:
    one = daemon({"slow": kit("slow", env={"HERE": "${FROM_AGENT:-}"})}, up=False)
    words = ("connect",) if verb == "connect" else ("run", "--", sys.executable, str(SERVERS / "slow.py"))
    tool = "slow__sleep" if verb == "connect" else "sleep"
    code, out, err = await one.carpool(*words, stdin=session(tool))
    assert code == 0, err
    assert ids(out) == {0, 1, *CALLS}


@behaviour("piped:answered")
async def test_a_session_from_a_file_gets_all_of_its_answers(shared: Daemon) -> None:
    place = shared.base / "session.jsonl"
    place.write_bytes(session("slow__sleep"))
    with trio.fail_after(LIMIT_S), place.open("rb") as file:
        done = await trio.run_process(
            shared.command("connect"), env=shared.environ, stdin=file.fileno(), capture_stdout=True
        )
    assert ids(done.stdout.decode()) == {0, 1, *CALLS}


@behaviour("piped:answered")
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole lines", "last line without its end"])
async def test_a_client_of_the_socket_that_half_closes_gets_all_of_its_answers(
    shared: Daemon, *, is_whole: bool
) -> None:
    said = session("slow__sleep")
    with trio.fail_after(LIMIT_S):
        stream = await trio.open_unix_socket(paths.agents_socket(str(shared.directory)))
        async with stream:
            await stream.send_all(said if is_whole else said[:-1])
            stream.socket.shutdown(socket.SHUT_WR)
            out = b"".join([data async for data in stream])
    assert ids(out.decode()) == {0, 1, *CALLS}


@behaviour("piped:answered")
async def test_a_server_that_asks_a_piped_session_is_told_that_nobody_answers(shared: Daemon) -> None:
    said = lines_of(*greeting(elicitation={}, sampling={}), call(1, "asks__ask", seconds=0.3))
    code, out, err = await shared.carpool("connect", stdin=said)
    assert (code, err) == (0, "")
    (result,) = [each["result"] for each in map(json.loads, out.splitlines()) if each.get("id") == 1]
    assert "The agent that is asked has closed its input." in result["content"][0]["text"]


@behaviour("piped:killed-cancels")
async def test_a_killed_agent_still_cancels_what_it_has_piped_in(shared: Daemon) -> None:
    said = lines_of(*greeting(), call(1, "slow__sleep", seconds=600))
    with trio.fail_after(LIMIT_S):
        process = await trio.lowlevel.open_process(
            shared.command("connect"), env=shared.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin
        assert process.stdout
        try:
            await process.stdin.send_all(said)
            await process.stdin.aclose()
            await shared.until(lambda facts: _open_calls(facts) == 1, "the call is open")
            await process.stdout.aclose()  # nobody reads any more
            await process.wait()
        finally:
            if process.returncode is None:
                os.kill(process.pid, signal.SIGKILL)
                await process.wait()
        await shared.until(lambda facts: _open_calls(facts) == 0, "the call is cancelled")


def _open_calls(facts: Json) -> int:
    return sum(int(each["in_flight"]) for each in facts["sessions"])
