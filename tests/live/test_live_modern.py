"""A server of the stateless era (2026-07-28) on the official Python SDK, behind agents of the era before."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pytest
import trio

from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json, LineAgent, fault_of
from tests.kit.live import LIVE, Daemon, Make
from tests.live.conftest import shared_daemon

VERSION: Final = "2025-11-25"
ASKABLE: Final[Json] = {"sampling": {}, "elicitation": {"form": {}, "url": {}}}
ONLY_THERE: Final = (b"resultType", b"ttlMs", b"cacheScope", b"requestState", b"io.modelcontextprotocol/")
"""What no agent of the handshake era is to read."""


def modern(**settings: Any) -> Json:
    return {"command": sys.executable, "args": [str(LIVE / "modern_server.py")], "era": "modern", **settings}


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    servers = {
        "modern": modern(),
        "rooted": modern(roots="workspace"),
    }
    yield from shared_daemon(servers)


def said_by(name: str, ask: Json) -> Json:
    params = ask["params"]
    if ask["method"] == "elicitation/create":
        return {"result": {"action": "accept", "content": {"name": f"{name} on {params['message']}"}}}
    said = params["messages"][0]["content"]["text"]
    text = {"type": "text", "text": f"{name} on {said}"}
    return {"result": {"role": "assistant", "content": text, "model": name}}


def nothing_of_that_era(agent: LineAgent) -> None:
    for line in agent.lines:
        assert not [sign for sign in ONLY_THERE if sign in line], line


@behaviour("eras:old-agent-new-server")
async def test_an_agent_of_the_handshake_era_uses_everything_of_a_stateless_server(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            tools = await agent.tools()
            assert {"modern__echo", "modern__both"} <= set(tools)
            assert await agent.text("modern__echo", {"text": "é \u2028 😀"}) == "é \u2028 😀"
            prompts = await agent.result("prompts/list")
            assert "modern__review" in [each["name"] for each in prompts["prompts"]]
            modern = "carpool+modern+modern:"  # another server here is the same program
            read = await agent.result("resources/read", {"uri": f"{modern}//notes"})
            assert read["contents"][0]["text"] == "# Notes\n\né and 😀"
            templates = await agent.result("resources/templates/list")
            assert templates["resourceTemplates"][0]["uriTemplate"] == f"{modern}//users/{{user}}/profile"
            read = await agent.result("resources/read", {"uri": f"{modern}//users/ann/profile"})
            assert read["contents"][0]["text"] == "The profile of ann"
            ref = {"type": "ref/prompt", "name": "modern__review"}
            params = {"ref": ref, "argument": {"name": "code", "value": "x"}}
            assert (await agent.result("completion/complete", params))["completion"]["values"] == [
                "code",
                "x",
            ]
            lost = await agent.ask("resources/read", {"uri": f"{modern}//users"})
            assert lost["error"]["code"] == -32002
            nothing_of_that_era(agent)
        facts = await shared.status()
        assert [each["era"] for each in facts["servers"]["modern"]["instances"]] == ["stateless"]


@behaviour("eras:hop-by-hop")
async def test_what_only_carpool_may_tell_a_stateless_server_an_agent_cannot(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            meta = {
                # Spelled as it should be, the first one would make this a request of the stateless era.
                "io.modelcontextprotocol/ProtocolVersion": "1999-01-01",
                "IO.modelcontextprotocol/ClientCapabilities": {"sampling": {}},
                "io.modelcontextprotocol/clientInfo": {"name": "somebody else", "version": "1"},
                "io.modelcontextprotocol/logLevel": "debug",
                "example.com/kept": 1,
            }
            params = {"name": "modern__said", "arguments": {}, "_meta": meta}
            result = await agent.result("tools/call", params)
            assert result["structuredContent"]["result"] == [
                "example.com/kept",
                "io.modelcontextprotocol/clientCapabilities",
                "io.modelcontextprotocol/clientInfo",
                "io.modelcontextprotocol/protocolVersion",
                "progress_token",  # carpool's own: each call is asked for its progress
            ]


async def test_progress_of_a_stateless_server_reaches_the_agent_under_its_own_token(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            id_ = await agent.start("modern__count", {"to": 3}, token="mine")
            assert "result" in await agent.answer(id_)
            told = [each["params"] for each in agent.notices if each["method"] == "notifications/progress"]
            assert [(each["progressToken"], each["progress"], each["total"]) for each in told] == [
                ("mine", at, 3) for at in (1, 2, 3)
            ]


@behaviour("eras:rounds", "asks:own-agent")
async def test_agents_at_once_are_asked_in_rounds_each_its_own_questions(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent(greet=False) as one, shared.shim(greet=False) as other:
            started = {}
            agents = {"anna": one, "bert": other}
            for name, agent in agents.items():
                agent.says = partial(said_by, name)
                await agent.greet(VERSION, ASKABLE)
            for name, agent in agents.items():
                started[name] = await agent.start("modern__both", {"text": name}, id_=1, token=1)
            # The agent of a shim has a workspace and sees one server more: it is told which one asks.
            for name, asked in (("anna", "anna"), ("bert", "[modern] bert")):
                agent = agents[name]
                answer = await agent.answer(started[name])
                assert answer["result"]["content"][0]["text"].split("\n") == [
                    f"second of {name}",
                    f"{name} on {name}",
                    f"accept: {{'name': '{name} on {asked}'}}",
                    "accept",
                ]
                assert len(agent.asks) == 3
                nothing_of_that_era(agent)
            params = {"name": "modern__review", "arguments": {"code": "x"}}
            found = await one.result("prompts/get", params)
            assert found["messages"][0]["content"]["text"] == "Review x as anna on x"


async def test_an_agent_that_cannot_be_asked_gets_an_error_and_the_others_are_not_disturbed(
    shared: Daemon,
) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as mute, shared.agent(greet=False) as shy:
            await shy.greet(VERSION, {"elicitation": {}})
            for agent in (mute, shy):
                answer = await agent.answer(await agent.start("modern__both", {"text": "x"}))
                assert "sampling" in json.dumps(answer)
                assert "error" in answer or answer["result"]["isError"]
            assert mute.asks == []
            assert await mute.text("modern__echo", {"text": "on"}) == "on"


async def test_a_url_is_offered_with_an_id_and_a_pause_is_kept(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent(greet=False) as agent:
            agent.says = lambda _: {"error": {"code": -1, "message": "User rejected the request"}}
            await agent.greet(VERSION, ASKABLE)
            assert await agent.text("modern__visit") == "decline"
            assert agent.asks[0]["params"]["url"] == "https://example.com/"
            assert len(agent.asks[0]["params"]["elicitationId"]) >= 16
            assert await agent.text("modern__later", {"times": 12}) == "after 12 pauses"


async def test_roots_are_told_in_a_round_where_the_configuration_says_so(
    shared: Daemon,
) -> None:
    workspace = shared.base / "workspace"
    (workspace / ".git").mkdir(parents=True)
    attach = Attach(version=ATTACH_VERSION, carrier="client", cwd=str(workspace))
    with trio.fail_after(LIMIT_S):
        async with shared.agent(attach=attach) as agent:
            assert await agent.text("rooted__whereabouts") == workspace.as_uri()
            assert agent.asks == []


@behaviour("eras:one-listen")
async def test_changes_of_a_stateless_server_reach_its_subscribers(daemon: Make) -> None:
    one = daemon({"modern": modern(restart={"first_delay_s": 0.05})})
    updated = "notifications/resources/updated"
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent, one.agent() as other:
            assert "modern__grown" not in await agent.tools()
            for family in ("prompts", "resources"):  # who has listed is told
                await other.result(f"{family}/list")
            await agent.result("resources/subscribe", {"uri": "modern://notes"})
            await other.result("resources/subscribe", {"uri": "modern://a"})
            # Both listens may still be on their way.
            async with trio.open_nursery() as nursery:

                async def touch() -> None:
                    while True:
                        await other.text("modern__touch", {"uri": "modern://notes"})
                        await trio.sleep(0.05)

                nursery.start_soon(touch)
                assert (await agent.notice(updated))["params"] == {"uri": "modern://notes"}
                nursery.cancel_scope.cancel()
            assert [each for each in other.notices if each["method"] == updated] == []
            await other.text("modern__grow")
            await agent.until_listed(lambda names: "modern__grown" in names, "the new tool")
            await other.notice("notifications/prompts/list_changed")
            await other.notice("notifications/resources/list_changed")
            before = len(agent.notices)
            (pid,) = await one.pids("modern")
            os.kill(pid, signal.SIGKILL)
            assert (await agent.notice(updated, before))["params"] == {"uri": "modern://notes"}
            await agent.until_listed(lambda names: "modern__grown" not in names, "the new process's tools")


async def test_a_cancel_reaches_a_stateless_server_between_rounds_and_within(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent(greet=False) as agent:
            await agent.greet(VERSION, ASKABLE)
            id_ = await agent.start("modern__sleep", {"name": "long"})

            async def asleep() -> Any:
                return (await agent.call("modern__asleep"))["structuredContent"]["result"]

            while "long" not in await asleep():
                pass
            await agent.cancel(id_)
            while "long" in await asleep():
                pass
            asked = await agent.start("modern__both", {"text": "x"})
            await agent.until(lambda: len(agent.asks) == 2, "it is asked")
            await agent.cancel(asked)
            for ask in agent.asks:
                await agent.until(
                    lambda ask=ask: any(
                        each["method"] == "notifications/cancelled"
                        and each["params"]["requestId"] == ask["id"]
                        for each in agent.notices
                    ),
                    "the question is withdrawn",
                )
                await agent.say(ask, said_by("late", ask))
            assert await agent.text("modern__echo", {"text": "on"}) == "on"
            assert not {id_, asked} & agent.answers.keys()


@behaviour("eras:rounds")
async def test_a_stateless_server_that_dies_in_the_middle_ends_its_calls_once(daemon: Make) -> None:
    one = daemon({"modern": modern(restart={"first_delay_s": 0.05})})
    with trio.fail_after(LIMIT_S):
        async with one.agent(greet=False) as agent:
            await agent.greet(VERSION, ASKABLE)
            within = await agent.start("modern__sleep", {"name": "x"})
            asked = await agent.start("modern__both", {"text": "x"})
            await agent.until(lambda: len(agent.asks) == 2, "it is asked")
            (pid,) = await one.pids("modern")
            os.kill(pid, signal.SIGKILL)
            for id_ in (within, asked):
                fault = fault_of((await agent.answer(id_))["result"])
                assert (fault["code"], fault["delivered"]) == ("instance_died", "maybe")
            agent.says = partial(said_by, "anna")
            for ask in agent.asks:
                await agent.say(ask, said_by("late", ask))
            assert "accept" in await agent.text("modern__both", {"text": "again"})


async def test_a_server_that_is_not_of_the_configured_era_is_named_with_what_to_do(daemon: Make) -> None:
    old = str(LIVE.parent / "kit" / "servers" / "echo.py")
    wrong = {"command": sys.executable, "args": ["-S", "-E", old], "era": "modern"}
    one = daemon({"wrong": {**wrong, "restart": {"give_up_after": 1}}})
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            await agent.request("tools/list")
            facts = await one.until(
                lambda facts: facts["servers"]["wrong"]["state"] == "breaker_open", "it has given up"
            )
            assert 'set "era" to "legacy"' in facts["servers"]["wrong"]["last_error"]
