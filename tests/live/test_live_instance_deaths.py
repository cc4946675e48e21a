"""An instance dies: idle, greeting, with calls waiting, draining. What each call hears."""

import json
import os
import signal
from collections.abc import Iterator

import pytest
import trio

from carpool_protocol.bootstrap import paths
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json, fault_of
from tests.kit.live import Daemon, observer, undisturbed
from tests.live.conftest import shared_daemon

SOON = {"first_delay_s": 0.05, "max_delay_s": 0.05, "give_up_after": 100}


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    yield from shared_daemon(servers())


def servers(**more: Json) -> dict[str, Json]:
    return {"good": observer(), "idle": observer(), "single": observer(max_in_flight=1, restart=SOON), **more}


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


async def test_one_that_dies_idle_costs_no_call(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            for _ in range(2):
                pid = (await agent.seen("idle"))["pid"]
                kill(pid)
                await shared.until(
                    lambda facts, pid=pid: (
                        pid not in [i["pid"] for i in facts["servers"]["idle"]["instances"]]
                    ),
                    "its death is noticed",
                )
                assert (await agent.seen("idle"))["pid"] != pid


async def test_calls_that_wait_for_an_instance_are_not_lost_with_it(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent, shared.agent() as other:
            pid = (await agent.seen("single"))["pid"]
            held = await agent.start("single__wait", {"gate": "never"})
            await shared.until(
                lambda facts: facts["servers"]["single"]["instances"][0]["in_flight"] == 1, "it is inside"
            )
            waiting = [await each.start("single__echo", {"text": "waited"}) for each in (agent, other, agent)]
            await shared.until(lambda facts: facts["servers"]["single"]["waiting"] == 3, "three wait")
            kill(pid)
            assert fault_of((await agent.answer(held))["result"])["delivered"] == "maybe"
            for each, id_ in zip((agent, other, agent), waiting, strict=True):
                assert (await each.answer(id_))["result"]["content"][0]["text"] == "waited"
            assert (await agent.seen("single"))["order"].count("waited") == 3


async def test_a_call_that_waits_for_a_greeting_outlives_deaths_before_it(shared: Daemon) -> None:
    """Of a server that was never fit it is told to come back; of one that is known it is placed again."""
    door = shared.base / "may-greet-late"
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            shared.configure(servers(late=observer("--greet-when", str(door), restart=SOON)))
            assert (await shared.reload())["ok"]
            call = await agent.start("late__echo", {"text": "too early"})
            kill(await greeting(shared, "late"))
            fault = fault_of((await agent.answer(call))["result"])
            assert (fault["code"], fault["delivered"]) == ("backing_off", "no")
            assert fault["retry_after_s"] is not None
            door.touch()
            await shared.until(lambda facts: facts["servers"]["late"]["state"] == "serving", "it serves")
            pid = (await agent.seen("late"))["pid"]
            door.unlink()
            kill(pid)
            await greeting(shared, "late")
            call = await agent.start("late__echo", {"text": "patient"})
            await shared.until(lambda facts: facts["servers"]["late"]["waiting"] == 1, "it waits")
            kill(await greeting(shared, "late"))
            door.touch()
            assert (await agent.answer(call))["result"]["content"][0]["text"] == "patient"
        shared.configure(servers())
        assert (await shared.reload())["ok"]


async def greeting(daemon: Daemon, server: str) -> int:
    """The one instance of the server, once it is about to greet."""
    facts = await daemon.until(
        lambda facts: [i["state"] for i in facts["servers"][server]["instances"]] == ["greeting"], "it greets"
    )
    pid: int = facts["servers"][server]["instances"][0]["pid"]
    return pid


async def test_one_that_dies_draining_loses_its_call_and_is_not_started_again(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            shared.configure(servers(leaving=observer()))
            assert (await shared.reload())["ok"]
            held = await agent.start("leaving__wait", {"gate": "never"})
            await agent.inside("leaving", 1)
            pid = (await agent.seen("leaving"))["pid"]
            shared.configure(servers())
            assert (await shared.reload())["ok"]
            kill(pid)
            fault = fault_of((await agent.answer(held))["result"])
            assert (fault["code"], fault["delivered"]) == ("instance_died", "maybe")
            await shared.until(lambda facts: "leaving" not in facts["servers"], "it is gone")


@behaviour("stderr:not-for-everybody")
async def test_an_answer_never_shows_the_stderr_that_other_agents_have_caused(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as one, shared.agent() as other:
            await one.call("idle__say", {"text": "what agent one wants kept"})
            held = await other.start("idle__wait", {"gate": "never"})
            await other.inside("idle", 1)
            kill((await one.seen("idle"))["pid"])
            result = (await other.answer(held))["result"]
            assert fault_of(result)["code"] == "instance_died"
            assert "what agent one wants kept" not in json.dumps(result)
            assert "carpool logs idle" in result["content"][0]["text"]
            assert "what agent one wants kept" in shared.log("server-idle")


async def test_an_agent_that_dies_in_mid_line_has_said_nothing(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as witness:
            hello = (
                b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}\n'
            )
            params = b'{"name":"good__echo","arguments":{"text":"half"}}'
            call = b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":%s}' % params
            for cut in (1, len(call) // 2, len(call)):
                stream = await trio.open_unix_socket(paths.agents_socket(str(shared.directory)))
                async with stream:
                    await stream.send_all(hello + call[:cut])
                    assert b'"id":1' in await stream.receive_some(65536)
            await shared.until(lambda facts: len(facts["sessions"]) == 1, "they are gone")
            assert "half" not in (await witness.seen("good"))["order"]
