"""Agents that take all descriptors of the broker: operators still see and end them, new agents are told."""

import json
import resource
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack

import pytest
import trio

from carpool_protocol.bootstrap import paths
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S
from tests.kit.live import Daemon, Make, fd_count, kit
from tests.kit.waits import until
from tests.live.conftest import shared_daemon

PIPES = 3
"""Descriptors of the supervisor for one server. For a moment its start needs as many again."""
AGENTS = 60
SPARE = 40
"""The broker's limit is above what it has open by so much, so not all agents have room."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    yield from shared_daemon({"echo": kit("echo")})


@behaviour("faults:descriptors-for-operators")
@pytest.mark.parametrize("greets", [True, False], ids=["agents", "silent connections"])
async def test_operators_see_and_end_agents_that_have_taken_all_descriptors(
    shared: Daemon, greets: bool
) -> None:
    broker = (await shared.status())["broker"]["pid"]
    before = resource.prlimit(broker, resource.RLIMIT_NOFILE)
    resource.prlimit(broker, resource.RLIMIT_NOFILE, (fd_count(broker) + SPARE, before[1]))
    try:
        with trio.fail_after(LIMIT_S), ExitStack() as crowd:
            for _ in range(AGENTS):
                agent = crowd.enter_context(socket.socket(socket.AF_UNIX))
                agent.connect(paths.agents_socket(str(shared.directory)))
                if greets:
                    agent.sendall(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
            facts = await shared.until(
                lambda facts: facts["reason"] == "descriptors_used_up", "the shortage is seen"
            )
            assert facts["healthy"]
            _, out, _ = await shared.carpool("status")
            assert "no new agent is let in" in out
            _, out, _ = await shared.carpool("doctor", "--json")
            (problem,) = json.loads(out)["problems"]
            assert problem["id"] == "descriptors-used-up"
            assert "carpool disconnect" in problem["repair"]
            async with shared.agent(greet=False) as newcomer:
                answer = await newcomer.ask("ping", {})
                assert answer["error"]["data"]["code"] == "attach_refused"
                assert "no descriptor left for another agent" in answer["error"]["message"]
            async with shared.shim(greet=False) as newcomer:
                answer = await newcomer.ask("ping", {})
                assert "no descriptor left for another agent" in answer["error"]["message"]
            if greets:
                for session in [each["id"] for each in facts["sessions"][:12]]:
                    code, _, said = await shared.carpool("disconnect", session)
                    assert code == 0, said
                async with shared.agent() as newcomer:
                    assert await newcomer.ask("ping", {})
    finally:
        resource.prlimit(broker, resource.RLIMIT_NOFILE, before)
    await until(lambda: not shared.open_connections(), "all have gone")


@behaviour("faults:own-shortage")
async def test_a_supervisor_with_descriptors_for_some_of_many_starts_lives_and_tells_the_shortage(
    daemon: Make,
) -> None:
    """Several starts fail at once while others hold all instances that run."""
    slow = {**kit("echo"), "sharing": "session"}
    shared = daemon({"held": slow, "wanted": slow})
    facts = await shared.until(lambda facts: facts["supervisors"], "the supervisor is linked")
    (pid,) = [each["pid"] for each in facts["supervisors"]]
    async with AsyncExitStack() as agents:
        holders = [await agents.enter_async_context(shared.agent()) for _ in range(3)]
        others = [await agents.enter_async_context(shared.agent()) for _ in range(5)]
        for each in holders:
            await each.call("held__echo", {"text": "held"})
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (fd_count(pid) + PIPES + 1, before[1]))
        try:
            async with trio.open_nursery() as nursery:
                for each in others:
                    nursery.start_soon(each.call, "wanted__echo", {"text": "wanted"})
                facts = await shared.until(
                    lambda facts: facts["reason"] == "no_room_to_start", "the shortage is told"
                )
                assert "another one could not be started" in facts["servers"]["wanted"]["shortage"]
                _, out, _ = await shared.carpool("status")
                assert "calls wait for a process of wanted" in out
                _, out, _ = await shared.carpool("doctor", "--json")
                assert [each["id"] for each in json.loads(out)["problems"]] == ["no-room-to-start"]
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        await shared.until(lambda facts: facts["reason"] == "ok", "all are served")
    facts = await shared.status()
    assert [each["pid"] for each in facts["supervisors"]] == [pid], "no supervisor has ended"


@behaviour("faults:own-shortage")
async def test_a_supervisor_without_a_free_descriptor_ends_an_idle_server_and_blames_none(
    daemon: Make,
) -> None:
    shared = daemon({"echo": kit("echo"), "other": kit("echo")})
    facts = await shared.until(lambda facts: facts["supervisors"], "the supervisor is linked")
    (pid,) = [each["pid"] for each in facts["supervisors"]]
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (fd_count(pid) + 2 * PIPES + 1, before[1]))
    try:
        with trio.fail_after(LIMIT_S):
            async with shared.agent() as agent:
                for server in ("echo", "other", "echo"):
                    answer = await agent.call(f"{server}__echo", {"text": server})
                    assert not answer.get("isError"), answer
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    servers = (await shared.status())["servers"]
    assert {(each["well"], each["last_error"], each["restarts"]) for each in servers.values()} == {
        (True, "", 0)
    }
    assert "waits: it could not be started" in shared.log_text()
