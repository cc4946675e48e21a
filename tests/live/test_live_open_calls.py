"""`carpool calls`, `cancel`, `pause`, `resume` and `stop --all` under agents that are there."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, fault_of
from tests.kit.live import Daemon, observer
from tests.live.conftest import shared_daemon

SERVERS = {"good": observer(), "other": observer()}


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    yield from shared_daemon(SERVERS)


async def told(daemon: Daemon, *words: str) -> str:
    code, out, said = await daemon.carpool(*words)
    assert code == 0, said
    return out


async def open_calls(daemon: Daemon) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(await told(daemon, "calls", "--json"))["calls"]
    return rows


@behaviour("operate:calls", "operate:cancel")
async def test_an_open_call_is_listed_and_cancelled(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent, shared.agent() as other:
            held = await agent.start("good__hold", {"text": "x", "until": str(shared.base / "never")})
            await other.inside("good", 1)
            (row,) = await open_calls(shared)
            assert (row["server"], row["tool"], row["state"]) == ("good", "hold", "running")
            assert row["pid"] == (await other.seen("good"))["pid"]
            page = await told(shared, "calls", "--server", "good")
            assert "good__hold" in page
            assert f"pid {row['pid']}" in page
            assert await told(shared, "calls", "--state", "waiting") == "no open calls\n"
            cancelled = json.loads(await told(shared, "cancel", row["call"], "--json"))
            assert cancelled == {
                "call": row["call"], "server": "good", "tool": "hold", "delivered": "maybe",
            }  # fmt: skip
            fault = fault_of((await agent.answer(held))["result"])
            assert (fault["code"], fault["delivered"]) == ("operator_cancelled", "maybe")
            assert await open_calls(shared) == []
            code, _, said = await shared.carpool("cancel", row["call"])
            assert (code, "`carpool calls`" in said) == (1, True), said


@behaviour("operate:pause")
async def test_calls_of_a_paused_server_wait_through_the_death_of_the_broker(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            assert await agent.text("good__echo", {"text": "a"}) == "a"
            assert "good: paused" in await told(shared, "pause", "good")
            assert "serving, paused" in await told(shared, "status")
            waiting = await agent.start("good__echo", {"text": "b"})
            assert await agent.text("other__echo", {"text": "c"}) == "c", "other servers go on"
            os.kill((await shared.status())["broker"]["pid"], signal.SIGKILL)
            assert await agent.text("other__echo", {"text": "d"}) == "d", "the next broker serves"
            await shared.until(lambda facts: facts["servers"]["good"]["waiting"] == 1, "it waits there too")
            assert waiting not in agent.answers
            (row,) = await open_calls(shared)
            assert (row["state"], row["waits_for"]) == ("waiting", "`carpool resume good`")
            assert (await shared.status())["servers"]["good"]["paused"]
            assert "good: running" in await told(shared, "resume", "good")
            assert (await agent.answer(waiting))["result"]["content"][0]["text"] == "b"
            code, _, said = await shared.carpool("pause", "goood")
            assert (code, "did you mean 'good'?" in said) == (1, True), said


@behaviour("operate:stop-all")
async def test_all_servers_are_stopped_and_carpool_stays(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            assert await agent.text("good__echo", {"text": "a"}) == "a"
            await told(shared, "stop", "--all")
            states = {name: each["state"] for name, each in (await shared.status())["servers"].items()}
            assert states == {"good": "stopped", "other": "stopped"}
            await told(shared, "start", "--all")
            assert await agent.text("good__echo", {"text": "b"}) == "b"
