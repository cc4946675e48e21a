"""A carpool with several supervisors: each runs some of the servers, and one's death concerns only those."""

import os
import signal

import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, LineAgent
from tests.kit.live import Daemon, Make, kit

SERVERS = [f"echo{number}" for number in range(6)]


async def supervisors(one: Daemon) -> dict[str, int]:
    """Wait until both are connected; return their pids by name."""
    facts = await one.until(lambda facts: len(facts["supervisors"]) == 2, "both supervisors are connected")
    return {each["id"]: each["pid"] for each in facts["supervisors"]}


async def placed(one: Daemon) -> dict[str, list[str]]:
    """The servers by the supervisor that runs them; each has an instance."""
    found: dict[str, list[str]] = {}
    for name, pid in (await supervisors(one)).items():
        spawners = trio.Path(f"/proc/{pid}/task/{pid}/children")
        found[name] = (await spawners.read_text()).split()
    by_spawner = {spawner: name for name, children in found.items() for spawner in children}
    servers: dict[str, list[str]] = {name: [] for name in found}
    for server in SERVERS:
        (pid,) = await one.pids(server)
        status = await trio.Path(f"/proc/{pid}/stat").read_text()
        servers[by_spawner[status.rpartition(")")[2].split()[1]]].append(server)
    return servers


async def say(agent: LineAgent, server: str) -> None:
    assert await agent.text(f"{server}__echo", {"text": server}) == server


@behaviour("supervisors:several")
async def test_the_death_of_one_supervisor_concerns_only_its_servers(daemon: Make) -> None:
    one = daemon({name: kit("echo") for name in SERVERS}, supervisors=2)
    with trio.fail_after(LIMIT_S):
        before = await supervisors(one)
        async with one.shim() as agent:
            for server in SERVERS:
                await say(agent, server)
            servers = await placed(one)
            assert all(servers.values()), "both run servers"
            pids = {server: await one.pids(server) for server in servers["sup1"]}
            os.kill(before["sup2"], signal.SIGKILL)
            for server in servers["sup1"]:
                await say(agent, server)
            await one.until(
                lambda facts: {each["pid"] for each in facts["supervisors"]} - {*before.values()},
                "another one has taken its place",
            )
            for server in SERVERS:
                await say(agent, server)
            assert {server: await one.pids(server) for server in servers["sup1"]} == pids
            assert await placed(one) == servers


@behaviour("supervisors:several")
async def test_calls_at_both_supervisors_survive_the_death_of_the_broker(daemon: Make) -> None:
    one = daemon({name: kit("echo") for name in SERVERS}, supervisors=2)
    with trio.fail_after(LIMIT_S):
        await supervisors(one)
        async with one.shim() as agent:
            for server in SERVERS:
                await say(agent, server)
            pids = {server: await one.pids(server) for server in SERVERS}
            for _ in range(3):
                broker = one.facts()["broker"]["pid"]
                async with trio.open_nursery() as nursery:
                    for server in SERVERS * 5:
                        nursery.start_soon(say, agent, server)
                    os.kill(broker, signal.SIGKILL)
                await supervisors(one)
            assert {server: await one.pids(server) for server in SERVERS} == pids


@behaviour("supervisors:several")
async def test_operators_see_and_reach_the_servers_of_both(daemon: Make) -> None:
    one = daemon({name: kit("echo") for name in SERVERS}, supervisors=2)
    with trio.fail_after(LIMIT_S):
        await supervisors(one)
        assert [each["ok"] for each in await one.operate("start", *SERVERS)] == [True] * len(SERVERS)
        facts = await one.status()
        ids = [row["id"] for name in SERVERS for row in facts["servers"][name]["instances"]]
        assert len({*ids}) == len(SERVERS), "ids are unique in the carpool"
        code, out, _ = await one.carpool("ps", "--json")
        assert code == 0
        assert "sup2" in out
        assert [each["ok"] for each in await one.operate("stop", *SERVERS)] == [True] * len(SERVERS)


@behaviour("supervisors:several")
async def test_a_reload_says_that_another_number_of_supervisors_waits_for_a_restart(daemon: Make) -> None:
    one = daemon({"echo0": kit("echo")}, supervisors=1)
    with trio.fail_after(LIMIT_S):
        one.configure({"echo0": kit("echo")}, supervisors=2)
        code, out, err = await one.carpool("reload")
        assert (code, out) == (0, "reloaded\n")
        assert "2 in the configuration, and 1 in force" in err
        assert "`carpool restart --all`" in err
