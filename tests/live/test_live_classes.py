"""Agents that declare different things on one daemon: classes (rule 12) and roots (rule 6)."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
import trio

from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json, LineAgent, settled
from tests.kit.live import Daemon, Make, kit
from tests.live.conftest import shared_daemon

CAN: Json = {"sampling": {}, "elicitation": {}}
ROOTS: Json = {"roots": {"listChanged": True}}


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    """Servers that are told the roots of their agents, their workspace, and nothing."""
    told_of = {"choosy": kit("choosy", roots="agent"), "placed": kit("choosy", roots="workspace")}
    yield from shared_daemon({**told_of, "bare": kit("choosy")})


async def told(agent: LineAgent, server: str = "choosy") -> Json:
    """Who serves this agent, and which roots that process was given."""
    found: Json = json.loads(await agent.text(f"{server}__told"))
    return found


def names(*uris: str) -> Callable[[Json], Json | None]:
    """An agent with these roots."""
    return lambda ask: {"result": {"roots": [{"uri": uri} for uri in uris]}}


@asynccontextmanager
async def rooted(daemon: Daemon, *uris: str) -> AsyncIterator[LineAgent]:
    async with daemon.agent(greet=False) as agent:
        agent.says = names(*uris)
        await agent.greet(capabilities=ROOTS)
        yield agent


@behaviour("classes:declared", "classes:apart")
async def test_a_server_that_looks_at_what_is_declared_is_seen_by_each_agent_as_greeted_for_it(
    daemon: Make,
) -> None:
    one = daemon({"choosy": kit("choosy", "--ask")})
    with trio.fail_after(LIMIT_S):
        async with one.agent() as plain, one.agent(greet=False) as asking:
            await asking.greet(capabilities=CAN)
            assert await plain.tools() == ["choosy__told"]
            assert await asking.tools() == ["choosy__ask", "choosy__told"]
            first, second = await told(plain), await told(asking)
            assert first["pid"] != second["pid"]
            assert (await told(plain))["pid"] == first["pid"]


@behaviour("classes:merged")
async def test_a_server_that_looks_at_nothing_serves_both_classes_from_one_process(daemon: Make) -> None:
    one = daemon({"choosy": kit("choosy")})
    with trio.fail_after(LIMIT_S):
        async with one.agent() as plain, one.agent(greet=False) as asking:
            assert await plain.tools() == ["choosy__told"]
            since = len(plain.notices)
            await asking.greet(capabilities=CAN)
            assert await asking.tools() == ["choosy__told"]
            await one.until(
                lambda facts: len(facts["servers"]["choosy"]["instances"]) == 1, "the plain process has gone"
            )
            assert await told(plain) == await told(asking)
            assert plain.notices[since:] == [], "for the agent nothing has changed"


@behaviour("roots:of-the-agent", "roots:part-of-the-key")
async def test_agents_with_equal_roots_share_a_process_and_others_do_not(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with (
            rooted(shared, "file:///x") as first,
            rooted(shared, "file:///x") as same,
            rooted(shared, "file:///y") as other,
        ):
            seen = [await told(agent) for agent in (first, same, other)]
            assert [each["roots"] for each in seen] == [["file:///x"], ["file:///x"], ["file:///y"]]
            assert seen[0]["pid"] == seen[1]["pid"] != seen[2]["pid"]
            bare = [await told(agent, "bare") for agent in (first, other)]
            assert bare[0] == bare[1], "roots make no difference to a server that is not told them"
            assert bare[0]["roots"] is None


@behaviour("roots:changes-rekey")
async def test_changed_roots_bring_the_agent_another_process_and_leave_the_old_one_as_it_was(
    shared: Daemon,
) -> None:
    with trio.fail_after(LIMIT_S):
        async with rooted(shared, "file:///x") as agent, rooted(shared, "file:///x") as stays:
            before = await told(agent)
            agent.says = names("file:///z")
            await agent.tell("notifications/roots/list_changed")
            await settled(
                lambda: told(agent), lambda seen: seen["roots"] == ["file:///z"], "its new roots count"
            )
            assert await told(stays) == before


@pytest.mark.parametrize("server", ["placed", "choosy"])
@behaviour("roots:of-the-agent")
async def test_without_roots_of_its_own_an_agents_workspace_is_its_root(shared: Daemon, server: str) -> None:
    attach = Attach(version=ATTACH_VERSION, carrier="client", cwd="/tmp/my work")
    with trio.fail_after(LIMIT_S):
        async with shared.agent(attach=attach) as agent:
            assert (await told(agent, server))["roots"] == ["file:///tmp/my%20work"]
