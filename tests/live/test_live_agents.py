"""Many agents at once: nothing of one reaches another, and nobody can hold up the rest."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import trio

from carpool_protocol.bootstrap import paths
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S, fault_of
from tests.kit.live import Daemon, gone, observer, undisturbed
from tests.kit.waits import until
from tests.live.conftest import shared_daemon


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    servers = {"good": observer(), "gate": observer(), "vanish": observer()}
    yield from shared_daemon(servers, session={"slow_reader_s": 1.0})


@behaviour("calls:isolation", "calls:own-ids", "progress:by-token")
async def test_agents_with_equal_ids_and_tokens_get_their_own_answers_and_progress(shared: Daemon) -> None:
    async def talk(name: str) -> None:
        async with shared.shim(greet=False) as agent:
            hello = {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": name, "version": "1"},
            }
            assert "result" in await agent.ask("initialize", hello, id_=0)
            for id_ in range(1, 40):
                await agent.start("good__steps", {"count": 5, "text": f"{name} {id_}"}, id_=id_, token=id_)
            for id_ in range(1, 40):
                answer = await agent.answer(str(id_).encode())
                assert answer["result"]["content"][0]["text"] == f"{name} {id_}"
            told = [notice["params"] for notice in agent.notices]
            assert len(told) == 39 * 5
            assert all(each["message"] == f"{name} {each['progressToken']}" for each in told)

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            for name in ("anna", "bert", "carl"):
                nursery.start_soon(talk, name)


async def test_an_agent_cancels_only_its_own_call(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as one, shared.agent() as other:
            mine = await one.start("gate__wait", {"gate": "own"}, id_=1)
            theirs = await other.start("gate__wait", {"gate": "own"}, id_=1)
            await one.inside("gate", 2)
            before = len((await one.seen("gate"))["cancels"])
            await one.cancel(mine)
            await one.until_seen("gate", lambda seen: len(seen["cancels"]) > before, "the cancel has come")
            await other.call("gate__open", {"gate": "own"})
            assert (await other.answer(theirs))["result"]["content"][0]["text"] == "opened"
            await one.inside("gate", 0)
            assert mine not in one.answers


@behaviour("pressure:bounded-calls", "pressure:unblocking-lines-are-read")
async def test_64_calls_are_open_256_wait_and_the_rest_is_refused(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent, shared.agent() as other:
            ids = [await agent.start("gate__wait", {"gate": "bound"}) for _ in range(64 + 256 + 7)]
            for id_ in ids[-7:]:
                fault = fault_of((await agent.answer(id_))["result"])
                assert (fault["code"], fault["delivered"]) == ("too_many_calls", "no")
                assert fault["retry_after_s"] > 0
            await other.inside("gate", 64)
            # What unblocks is read all the same (rule 3): a cancel of one that waits, and a ping.
            await agent.cancel(ids[100])
            await agent.result("ping")
            facts = await shared.status()
            assert facts["totals"]["in_flight"] >= 64
            await other.call("gate__open", {"gate": "bound"})
            for id_ in [*ids[:100], *ids[101:-7]]:
                assert (await agent.answer(id_))["result"]["content"][0]["text"] == "opened"
            assert ids[100] not in agent.answers


async def flood(stream: trio.SocketStream) -> None:
    """Far more calls with big answers than all buffers on the way hold."""
    hello = b'"method":"initialize","params":{"protocolVersion":"2025-06-18"}'
    await stream.send_all(b'{"jsonrpc":"2.0","id":0,%s}\n' % hello)
    call = b'"method":"tools/call","params":{"name":"gate__echo","arguments":{"text":"%s"}}' % (
        b"x" * 100_000
    )
    for id_ in range(1, 1000):
        await stream.send_all(b'{"jsonrpc":"2.0","id":%d,%s}\n' % (id_, call))


@behaviour("pressure:slow-reader")
async def test_an_agent_that_never_reads_is_dropped_and_nobody_notices(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared):
            stream = await trio.open_unix_socket(paths.agents_socket(str(shared.directory)))
            async with stream:
                with pytest.raises(trio.BrokenResourceError):
                    await flood(stream)
            await until(lambda: "it has not read for 1 s" in shared.log("broker"), "the log says so", WAIT_S)


@behaviour("failure:agent-gone")
async def test_an_agent_that_vanishes_has_its_calls_cancelled_at_the_server(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as witness:
            async with shared.agent() as agent:
                for _ in range(3):
                    await agent.start("vanish__wait", {"gate": "gone", "obeys": True})
                await witness.inside("vanish", 3)
            await witness.inside("vanish", 0)
            assert len((await witness.seen("vanish"))["cancels"]) == 3


async def test_kill_9_of_a_shim_ends_its_session_and_cancels_its_calls(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as witness:
            before = len((await witness.seen("vanish"))["cancels"])
            async with shared.shim() as agent:
                await agent.start("vanish__wait", {"gate": "shim", "obeys": True})
                await witness.inside("vanish", 1)
                os.kill(agent.pid, signal.SIGKILL)
                await agent.ended.wait()
            await witness.inside("vanish", 0)
            assert len((await witness.seen("vanish"))["cancels"]) == before + 1


AGENT = """
import json, subprocess, sys
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
shim = subprocess.Popen([sys.executable, "-m", "carpool", "connect"], **pipes)
def say(message):
    shim.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\\n")
    shim.stdin.flush()
say({"id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {}}})
shim.stdout.readline()
call = {"name": "vanish__wait", "arguments": {"gate": "agent", "obeys": True}}
say({"id": 2, "method": "tools/call", "params": call})
print(shim.pid, flush=True)
shim.wait()
"""


async def test_kill_9_of_the_agent_ends_its_shim_and_cancels_its_calls(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as witness:
            before = len((await witness.seen("vanish"))["cancels"])
            process = await trio.lowlevel.open_process(
                [sys.executable, "-c", AGENT], env=shared.environ, stdout=subprocess.PIPE
            )
            assert process.stdout is not None
            async with process.stdout:
                shim = int(await process.stdout.receive_some(100))
                await witness.inside("vanish", 1)
                process.kill()
                await process.wait()
            await until(lambda: gone([shim]), "the shim ends with its agent", WAIT_S)
            await witness.inside("vanish", 0)
            assert len((await witness.seen("vanish"))["cancels"]) == before + 1


async def test_50_agents_share_one_process_of_each_server(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):

        async def talk(number: int, told: list[set[int]]) -> None:
            async with shared.agent() as agent:
                told.append({(await agent.seen(server))["pid"] for server in ("good", "gate", "vanish")})
                assert await agent.text("good__echo", {"text": str(number)}) == str(number)

        told: list[set[int]] = []
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(talk, number, told)
        assert len(told) == 50
        assert all(each == told[0] and len(each) == 3 for each in told)
