"""What agents are told unasked (log messages, changes of resources), and batches; with real processes."""

import json
import os
import signal
from collections.abc import Iterator

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json, LineAgent, settled
from tests.kit.live import Daemon, kit
from tests.live.conftest import shared_daemon

UPDATED = "notifications/resources/updated"
MESSAGE = "notifications/message"


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    yield from shared_daemon({"news": kit("news", restart={"first_delay_s": 0.05})})


async def known(agent: LineAgent) -> Json:
    found: Json = json.loads(await agent.text("news__known"))
    return found


def told(agent: LineAgent, method: str) -> list[Json]:
    return [each["params"] for each in agent.notices if each.get("method") == method]


@behaviour("subscriptions:counted", "subscriptions:subscribers-only")
async def test_a_change_reaches_its_subscribers_only_and_the_server_is_asked_once_for_all(
    shared: Daemon,
) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as one, shared.shim() as other, shared.agent() as third:
            for agent in (one, other):
                await agent.result("resources/subscribe", {"uri": "news:///a"})
            await third.result("resources/subscribe", {"uri": "news:///b"})
            assert (await known(third))["watched"] == ["news:///a", "news:///b"]
            await third.text("news__touch", {"uri": "news:///a/part"})
            for agent in (one, other):
                assert (await agent.notice(UPDATED))["params"]["uri"] == "news:///a/part"
            assert told(third, UPDATED) == []
            await one.result("resources/unsubscribe", {"uri": "news:///a"})
            await third.text("news__touch", {"uri": "news:///a"})
            await other.until(lambda: len(told(other, UPDATED)) == 2, "the second change")
            await one.result("ping")
            assert len(told(one, UPDATED)) == 1
        async with shared.agent() as late:
            await settled(lambda: known(late), lambda found: not found["watched"], "nothing is watched")


@behaviour("subscriptions:renewed")
async def test_after_a_crash_the_server_watches_again_and_subscribers_hear_of_it(
    shared: Daemon,
) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            await agent.result("resources/subscribe", {"uri": "news:///b"})
            assert (await known(agent))["watched"] == ["news:///b"]
            (pid,) = await shared.pids("news")
            os.kill(pid, signal.SIGKILL)
            assert (await agent.notice(UPDATED))["params"] == {"uri": "news:///b"}
            assert (await known(agent))["watched"] == ["news:///b"]


@behaviour("logging:level-per-session")
async def test_a_log_message_reaches_the_agent_whose_call_it_is_from_its_level_on(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as one, shared.agent() as other:
            await one.result("logging/setLevel", {"level": "warning"})
            await other.result("logging/setLevel", {"level": "debug"})
            assert (await known(one))["level"] == "debug", "the server has the most verbose of them"
            await one.text("news__log", {"level": "info", "data": "too quiet"})
            await one.text("news__log", {"level": "error", "data": "mine"})
            await other.text("news__log", {"level": "debug", "data": "its own"})
            assert (await one.notice(MESSAGE))["params"] == {"level": "error", "data": "mine"}
            assert [each["data"] for each in told(one, MESSAGE)] == ["mine"]
            assert [each["data"] for each in told(other, MESSAGE)] == ["its own"]
            refused = await one.ask("logging/setLevel", {"level": "loud"})
            assert refused["error"]["code"] == -32602


@behaviour("batches:split")
async def test_a_batch_of_2025_03_26_is_answered_one_by_one_and_refused_to_others(shared: Daemon) -> None:
    ping = '{"jsonrpc":"2.0","id":%d,"method":"ping"}'
    batch = f"[{ping % 901}, {ping % 902}]\n".encode()
    with trio.fail_after(LIMIT_S):
        async with shared.agent(greet=False) as old, shared.agent() as new:
            await old.greet("2025-03-26")
            await old.line(batch)
            assert (await old.answer(b"901"))["result"] == {}
            assert (await old.answer(b"902"))["result"] == {}
            await new.line(batch)
            assert (await new.answer(b"null"))["error"]["code"] == -32600
