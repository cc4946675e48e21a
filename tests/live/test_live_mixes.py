"""What is of an era and crosses to the other: tokens, cancels, deaths, changes, logs, errors, live."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.era_matrix import MATRIX
from tests.kit.line_agent import LIMIT_S, Json, LineAgent, fault_of
from tests.kit.live import Daemon, Make
from tests.kit.scripted_agents import ASKABLE, said_by
from tests.kit.stateless_agent import MODERN, PREFIX, Stateless
from tests.live.conftest import shared_daemon

SERVERS: Final = ("old", "new")
"""Names of the two servers, of the handshake era and of the stateless one: the same file, both at once."""
CONFIRM: Final = "test_input_required_result_request_state"
UPDATED: Final = "notifications/resources/updated"
TOOLS_CHANGED: Final = "notifications/tools/list_changed"
WATCHED: Final = "test://watched-resource"


def both(**settings: Any) -> dict[str, Json]:
    columns = {"old": "sdk2-legacy", "new": "sdk2-modern"}
    return {
        name: {**MATRIX[column].entry(**settings), "tools_prefix": f"{name}__"}
        for name, column in columns.items()
    }


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    yield from shared_daemon(both(sharing="concurrent"))


@asynccontextmanager
async def stateless(
    daemon: Daemon, name: str = "bert", capabilities: Json | None = None
) -> AsyncIterator[Stateless]:
    """A stateless agent behind its own shim, that answers what it is asked."""
    async with daemon.shim(greet=False) as agent:
        one = Stateless(agent, capabilities=ASKABLE if capabilities is None else capabilities, name=name)
        one.says = lambda each: said_by(name, each["method"], each.get("params", {}))
        await one.result("tools/list")
        yield one


@asynccontextmanager
async def handshake(daemon: Daemon, name: str = "anna") -> AsyncIterator[LineAgent]:
    """An agent of the handshake era behind its own shim, that answers what it is asked."""
    async with daemon.shim(greet=False) as agent:
        agent.says = lambda ask: {"result": said_by(name, ask["method"], ask.get("params", {}))}
        await agent.greet("2025-11-25", ASKABLE)
        await agent.tools()
        yield agent


def confirm(server: str) -> Json:
    return {"name": f"{server}__{CONFIRM}", "arguments": {}}


async def round_of(one: Stateless, params: Json) -> Json:
    """The first round of a call: a result that wants input."""
    found = await one.result("tools/call", params)
    assert found["resultType"] == "input_required"
    assert found["requestState"]
    return found


def refused(answer: Json) -> None:
    assert answer["error"]["code"] == -32602, answer


# --- tokens ----------------------------------------------------------------------------------------------


@behaviour("eras:tokens", "eras:rounds")
@pytest.mark.parametrize("server", SERVERS)
async def test_the_token_of_a_round_is_good_once_and_for_its_own_agent_and_request_only(
    shared: Daemon, server: str
) -> None:
    params = confirm(server)
    with trio.fail_after(LIMIT_S):
        async with stateless(shared) as owner, stateless(shared, "eve") as thief:
            wanted = await round_of(owner, params)
            retry = {**params, **owner.retry(wanted)}
            refused(await thief.ask("tools/call", retry))
            refused(await owner.ask("tools/call", {**retry, "arguments": {"more": 1}}))
            other = {**retry, "name": f"{server}__test_input_required_result_tampered_state"}
            refused(await owner.ask("tools/call", other))
            state = retry["requestState"]
            flipped = f"{state[:-1]}{'0' if state[-1] != '0' else '1'}"
            refused(await owner.ask("tools/call", {**retry, "requestState": flipped}))
            refused(await owner.ask("tools/call", {**retry, "requestState": "made up"}))
            bare = {key: each for key, each in retry.items() if key != "requestState"}
            afresh = await owner.result("tools/call", bare)  # a call of its own: the token is still good
            assert afresh["resultType"] == ("complete" if server == "new" else "input_required"), (
                "answers in advance are for questions that have names"
            )

            done = await owner.result("tools/call", retry)  # refusals have used up nothing
            assert done["resultType"] == "complete"
            assert done["content"][0]["text"] == "state-ok, ok=True"
            refused(await owner.ask("tools/call", retry))


@behaviour("eras:rounds")
@pytest.mark.parametrize("server", SERVERS)
async def test_input_that_is_left_out_is_wanted_again_under_another_token(
    shared: Daemon, server: str
) -> None:
    params = {"name": f"{server}__test_input_required_result_multi_round", "arguments": {}}
    with trio.fail_after(LIMIT_S):
        async with stateless(shared) as one:
            first = await round_of(one, params)
            given = {"inputResponses": {}, "requestState": first["requestState"]}
            again = await round_of(one, {**params, **given})
            assert again["inputRequests"] == first["inputRequests"]
            assert again["requestState"] != first["requestState"]
            second = await round_of(one, {**params, **one.retry(again)})
            assert second["inputRequests"] != first["inputRequests"]
            done = await one.result("tools/call", {**params, **one.retry(second)})
            steps = ("Step 1: What is your name?", "Step 2: What is your favorite color?")
            named, liked = (f"bert on [{server}] {step}" for step in steps)  # the agent sees two servers
            assert done["content"][0]["text"] == f"{named} likes {liked}."


async def test_a_token_of_one_server_is_none_of_the_other(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with stateless(shared) as one:
            for server, other in (SERVERS, SERVERS[::-1]):
                retry = one.retry(await round_of(one, confirm(server)))
                refused(await one.ask("tools/call", {**confirm(other), **retry}))


# --- questions that cannot be answered -------------------------------------------------------------------


@pytest.mark.parametrize("server", SERVERS)
async def test_an_agent_that_cannot_be_asked_is_told_so_in_the_words_of_its_era(
    shared: Daemon, server: str
) -> None:
    with trio.fail_after(LIMIT_S):
        async with stateless(shared, capabilities={}) as mute, shared.shim() as deaf:
            found = await mute.ask("tools/call", confirm(server))
            said = await deaf.ask("tools/call", confirm(server))
            for answer in (found, said):
                assert "error" in answer or answer["result"].get("isError"), answer
            assert found.get("result", {}).get("resultType", "complete") == "complete"
            # The tool looks at what was declared, and misses sampling.
            params = {"name": f"{server}__test_missing_capability", "arguments": {}}
            missed = await mute.ask("tools/call", params)
            assert missed["error"]["code"] == -32021
            assert missed["error"]["data"] == {"requiredCapabilities": {"sampling": {}}}
            told = await deaf.ask("tools/call", params)
            assert "sampling" in str(told).lower()
            if server == "new":  # the old one says -32021 itself, and what it says to its own era stays
                assert told.get("error", {}).get("code") != -32021, told


@pytest.mark.parametrize("server", SERVERS)
async def test_a_user_who_has_to_go_somewhere_first_is_sent_there_in_the_way_of_the_era(
    shared: Daemon, server: str
) -> None:
    with trio.fail_after(LIMIT_S):
        async with handshake(shared) as old, stateless(shared) as new:
            done = await new.rounds(
                "tools/call", {"name": f"{server}__sign_in", "arguments": {"text": f"new-{server}"}}
            )
            assert done.answer["result"]["content"][0]["text"] == f"signed in: new-{server}"
            [wanted] = [each["params"] for each in done.wanted[0].values()]
            assert wanted["mode"] == "url"
            assert wanted["url"] == f"https://example.org/new-{server}"
            assert "elicitationId" not in wanted
            answer = await old.answer(await old.start(f"{server}__sign_in", {"text": f"old-{server}"}))
            if server == "old":
                assert answer["error"]["code"] == -32042
                [entry] = answer["error"]["data"]["elicitations"]
                assert entry["elicitationId"]
                assert old.asks == []
            else:
                assert answer["result"]["content"][0]["text"] == f"signed in: old-{server}"
                assert old.asks[0]["params"]["elicitationId"]


async def test_an_agent_that_declares_roots_is_asked_for_them_by_a_server_of_its_era(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with stateless(shared, capabilities={"roots": {}}) as one:
            assert await one.text("new__home") == "file:///home/bert"


# --- errors and methods of one era -----------------------------------------------------------------------


@pytest.mark.parametrize("server", SERVERS)
async def test_a_missing_resource_has_the_code_of_the_agents_era(daemon: Make, server: str) -> None:
    uri = "test://none"
    one = daemon({server: both()[server]})
    with trio.fail_after(LIMIT_S):
        async with handshake(one) as old, stateless(one) as new:
            # What a server of the same era says passes: this SDK says -32602 where the era has -32002.
            code = (await old.ask("resources/read", {"uri": uri}))["error"]["code"]
            assert code == (-32602 if server == "old" else -32002)
            error = (await new.ask("resources/read", {"uri": uri}))["error"]
            assert (error["code"], error["data"]) == (-32602, {"uri": uri})


async def test_what_is_of_the_other_era_is_no_method_and_a_probe_settles_nothing(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim(greet=False) as agent:
            one = Stateless(agent)
            found = await one.result("server/discover")
            assert MODERN in found["supportedVersions"]
            assert found["capabilities"]["tools"] == {"listChanged": True}
            assert type(found["ttlMs"]) is int
            for method in ("ping", "logging/setLevel", "resources/subscribe", "no/such"):
                assert (await one.ask(method, {"uri": WATCHED, "level": "info"}))["error"]["code"] == -32601
            bad = {f"{PREFIX}protocolVersion": "2099-01-01", f"{PREFIX}clientCapabilities": {}}
            error = (await agent.ask("server/discover", {"_meta": bad}))["error"]
            assert error["code"] == -32022
            assert error["data"] == {"supported": found["supportedVersions"], "requested": "2099-01-01"}
            # A client of both eras may still choose the handshake.
            assert (await agent.greet("2025-11-25"))["protocolVersion"] == "2025-11-25"


# --- cancels and deaths ----------------------------------------------------------------------------------


@pytest.mark.parametrize("server", SERVERS)
async def test_a_cancel_reaches_a_server_of_either_era_and_is_not_answered(
    shared: Daemon, server: str
) -> None:
    with trio.fail_after(LIMIT_S):
        async with handshake(shared) as old, stateless(shared) as new:
            for name, agent, start in (
                ("anna", old, old.request),
                ("bert", new.agent, new.request),
            ):
                id_ = await start("tools/call", {"name": f"{server}__rest", "arguments": {"name": name}})

                async def words(tool: str) -> list[str]:
                    return (await old.text(f"{server}__{tool}")).split()

                while name not in await words("resting"):
                    pass
                await agent.cancel(id_)
                while name not in await words("rested"):
                    pass
                assert id_ not in agent.answers


@pytest.mark.parametrize("server", SERVERS)
async def test_a_killed_server_ends_the_calls_of_agents_of_both_eras_and_serves_again(
    daemon: Make, server: str
) -> None:
    one = daemon({server: both(restart={"first_delay_s": 0.05})[server]})
    rest = {"name": f"{server}__rest", "arguments": {"name": "x"}}
    with trio.fail_after(LIMIT_S):
        async with handshake(one) as old, stateless(one) as new:
            parked = await round_of(new, confirm(server))
            started = [
                (old, await old.request("tools/call", rest)),
                (new.agent, await new.request("tools/call", rest)),
            ]
            while (await old.text(f"{server}__resting")).split() != ["x"]:
                pass
            await one.until(lambda facts: facts["totals"]["in_flight"] >= 2, "both calls are open")
            for pid in await one.pids(server):
                os.kill(pid, signal.SIGKILL)
            for agent, id_ in started:
                fault = fault_of((await agent.answer(id_))["result"])
                assert (fault["code"], fault["delivered"]) == ("instance_died", "maybe")
            # The call between two rounds is lost with the process, and says so; nobody is asked again.
            lost = await new.ask("tools/call", {**confirm(server), **new.retry(parked)})
            assert "error" in lost or lost["result"].get("isError"), lost
            assert await new.text(f"{server}__{CONFIRM}") == "state-ok, ok=True"
            assert await old.text(f"{server}__{CONFIRM}") == "state-ok, ok=True"


# --- what servers tell -----------------------------------------------------------------------------------


@behaviour("eras:one-listen")
@pytest.mark.parametrize("server", SERVERS)
async def test_a_changed_list_is_told_to_agents_of_both_eras_each_in_its_way(
    shared: Daemon, server: str
) -> None:
    with trio.fail_after(LIMIT_S):
        async with handshake(shared) as old, stateless(shared) as new, stateless(shared, "carl") as silent:
            tools = await new.listen(id_=7, toolsListChanged=True)
            prompts = await new.listen(id_="7", promptsListChanged=True)
            assert await tools.acknowledged() == {"toolsListChanged": True}
            assert await prompts.acknowledged() == {"promptsListChanged": True}
            before = len(old.notices)
            await new.text(f"{server}__test_trigger_tool_change")
            await tools.notice(TOOLS_CHANGED)
            await old.notice(TOOLS_CHANGED, before)
            assert prompts.heard(TOOLS_CHANGED) == []
            assert silent.agent.notices == []
            await new.text(f"{server}__test_trigger_prompt_change")
            await prompts.notice("notifications/prompts/list_changed")
            assert all(
                "_meta" not in each.get("params", {})
                for each in old.notices
                if each["method"] == TOOLS_CHANGED
            )
            # What has ended hears nothing more, and has no answer.
            await tools.end()
            await prompts.end()
            count = len(tools.heard())
            await new.text(f"{server}__test_trigger_tool_change")
            await old.tools()
            await new.result("tools/list")
            assert len(tools.heard()) == count
            assert not {b"7", b'"7"'} & new.agent.answers.keys()


@behaviour("eras:one-listen")
@pytest.mark.parametrize("server", SERVERS)
async def test_a_changed_resource_is_told_to_subscribers_of_both_eras_and_to_nobody_else(
    daemon: Make, server: str
) -> None:
    one = daemon({server: both(sharing="concurrent")[server]})
    uri = WATCHED
    with trio.fail_after(LIMIT_S):
        async with handshake(one) as old, stateless(one) as new, stateless(one, "carl") as other:
            await old.result("resources/subscribe", {"uri": uri})
            listen = await new.listen(resourceSubscriptions=[uri])
            assert await listen.acknowledged() == {"resourceSubscriptions": [uri]}
            nothing = await other.listen(resourceSubscriptions=["test://static-text"])
            await nothing.acknowledged()
            async with trio.open_nursery() as nursery:  # the upstream listen may still be on its way

                async def touch() -> None:
                    while True:
                        await other.text(f"{server}__touch", {"uri": WATCHED})
                        await trio.sleep(0.05)

                nursery.start_soon(touch)
                assert (await listen.notice(UPDATED))["params"]["uri"] == uri
                assert (await old.notice(UPDATED))["params"] == {"uri": uri}
                nursery.cancel_scope.cancel()
            assert nothing.heard(UPDATED) == []


@behaviour("eras:own-log-level")
@pytest.mark.parametrize("server", SERVERS)
async def test_logs_reach_the_request_that_wants_them_and_never_one_that_does_not(
    daemon: Make, server: str
) -> None:
    one = daemon({server: both(sharing="serial")[server]})
    log = "notifications/message"

    def heard(agent: LineAgent) -> list[Any]:
        return [each["params"]["data"] for each in agent.notices if each["method"] == log]

    with trio.fail_after(LIMIT_S):
        async with handshake(one) as old, stateless(one) as new:

            async def say(text: str, level: str) -> Json:
                return {"name": f"{server}__say", "arguments": {"level": level, "text": text}}

            await new.result("tools/call", await say("unasked", "error"))
            await new.result("tools/call", await say("wanted", "warning"), level="warning")
            await new.agent.until(lambda: heard(new.agent) == ["wanted"], "the wanted log")
            await new.result("tools/call", await say("below", "info"), level="warning")
            await old.result("logging/setLevel", {"level": "info"})
            await old.result("tools/call", await say("of the old", "info"))
            await old.until(lambda: "of the old" in heard(old), "the old one's log")
            await new.result("tools/call", await say("unasked too", "error"))
            await new.result("tools/call", await say("last", "error"), level="debug")
            await new.agent.until(lambda: "last" in heard(new.agent), "the last log")
            assert heard(new.agent) == ["wanted", "last"]
            assert heard(old) == ["of the old"]
