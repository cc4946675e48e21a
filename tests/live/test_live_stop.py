"""`carpool down` in every phase of every instance: it ends, within its bound, and leaves nothing.

The bound: the stop ladder of an instance is 7 s (end of stdin, TERM after 5 s, KILL after 2 more), the
supervisor gives up on it after 9 s, the spawner has 4 s for what is left, the launcher kills after 15 s and
clears away for 10. The verb fails where that and 5 s more are not enough.
"""

import os
import resource
import shlex
import signal
from pathlib import Path

import trio

from carpool_supervisor import marks
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S, LineAgent
from tests.kit.live import Daemon, Make, alive, kit, observer
from tests.kit.open_door import open_door
from tests.kit.remote_server import Json, remote_server
from tests.kit.waits import until


async def down(one: Daemon) -> None:
    with trio.fail_after(WAIT_S):
        code, _, said = await one.carpool("down")
    assert code == 0, said
    await until(lambda: not one.running(), "nothing of it runs")


async def inside(agent: LineAgent, server: str) -> None:
    await agent.start(f"{server}__wait", {"gate": "never"})
    await agent.inside(server, 1)


@behaviour("stop:bounded")
async def test_down_is_bounded_whatever_each_instance_is_doing(daemon: Make) -> None:
    """All phases beside each other: the bound is one for all of them."""
    leaving = observer()
    servers = {
        "installing": kit("never_greets", first_start_s=300, auto_connect=True),
        "stillborn": kit("dies_at_start", auto_connect=True),
        "idle": observer(auto_connect=True),
        "busy": observer(),
        "frozen": observer(),
        "full": kit("never_reads"),
        "shouting": kit("big"),
        "stopping": kit("deaf"),
        "breeder": kit("breeder"),
    }
    one = daemon({**servers, "leaving": leaving}, max_greeting=10)
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            for server in ("busy", "leaving", "frozen"):
                await inside(agent, server)
            for server in ("breeder", "stopping"):
                await agent.start(f"{server}__{'breed' if server == 'breeder' else 'echo'}")
            for _ in range(4):
                await agent.start("full__echo", {"text": "x" * 300_000})
            frozen = (await one.pids("frozen"))[0]
            await one.until(lambda facts: facts["servers"]["stopping"]["state"] == "serving", "it serves")
            one.configure(servers)
            assert (await one.reload())["ok"]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.operate, "stop", "stopping")
                facts = await one.until(
                    lambda facts: (
                        [i["state"] for i in facts["servers"]["stopping"]["instances"]] == ["stopping"]
                    ),
                    "one is stopping",
                )
                nursery.cancel_scope.cancel()
            phases = {each["state"] for server in facts["servers"].values() for each in server["instances"]}
            assert {"greeting", "serving", "draining", "stopping"} <= phases
            os.kill(frozen, signal.SIGSTOP)
            for _ in range(4):
                await agent.start("shouting__big")
            await down(one)


@behaviour("stop:bounded")
async def test_down_is_bounded_when_a_part_of_carpool_itself_is_frozen(daemon: Make) -> None:
    """Each part in a carpool of its own, all at once: what takes time here is waiting."""
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            for part in ("spawner", "supervisor", "broker"):
                one = daemon({"good": observer(), "deaf": kit("deaf")})
                nursery.start_soon(freeze_and_end, one, part)


async def freeze_and_end(one: Daemon, part: str) -> None:
    async with one.agent() as agent:
        await inside(agent, "good")
        await agent.start("deaf__echo", {"text": "x"})
        facts = await one.until(lambda facts: facts["servers"]["deaf"]["state"] == "serving", "it serves")
        pid: int = facts["supervisors"][0]["pid"]
        if part == "broker":
            pid = facts["broker"]["pid"]
        elif part == "spawner":
            [pid] = [child for child in one.running() if marks.parent_of(child) == pid]
        os.kill(pid, signal.SIGSTOP)
        await down(one)


def escaping(pids: Path, **settings: object) -> Json:
    """A server that has started a process without its group, session and environment."""
    server = kit("echo")
    start = f"env -i setsid sh -c 'echo $$ >> {shlex.quote(str(pids))}; exec sleep 1000' &"
    command = shlex.join([server["command"], *server["args"]])
    return {**server, "command": "sh", "args": ["-c", f"{start} exec {command}"], **settings}


@behaviour("children:escaped")
async def test_a_process_that_left_everything_of_its_server_is_found_all_the_same(
    daemon: Make, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    one = daemon({"escaping": escaping(pids)})

    async def escaped(count: int) -> int:
        await until(lambda: pids.exists() and len(pids.read_text().split()) == count, "it has escaped")
        return int(pids.read_text().split()[-1])

    try:
        with trio.fail_after(LIMIT_S):
            async with one.shim() as agent:
                await agent.text("escaping__echo", {"text": "x"})
                first = await escaped(1)
                await one.operate("stop", "escaping")
                await until(lambda: not alive(first), "it ends with `stop`")
                await one.operate("start", "escaping")
                await agent.text("escaping__echo", {"text": "x"})
                second = await escaped(2)
                facts = await one.status()
                supervisor: int = facts["supervisors"][0]["pid"]
                spawners = [each for each in one.running() if marks.parent_of(each) == supervisor]
                for number in (signal.SIGSTOP, signal.SIGKILL):  # the spawner must not see the death first
                    for pid in (supervisor, *spawners):
                        os.kill(pid, number)
                await until(lambda: not alive(second), "the launcher finds it", WAIT_S)
                await agent.text("escaping__echo", {"text": "x"})
                third = await escaped(3)
                await down(one)
                await until(lambda: not alive(third), "it ends with `down`")
    finally:
        for pid in map(int, pids.read_text().split()):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def core_bytes(pid: int) -> str:
    """The soft limit of core dumps of a process."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    [line] = [each for each in lines if each.startswith("Max core file size")]
    return line.split()[4]


@behaviour("private:core-dumps")
async def test_core_dumps_are_off_where_secrets_are_and_as_they_were_for_servers(daemon: Make) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    wanted = 4096 if hard == resource.RLIM_INFINITY or hard >= 4096 else soft
    resource.setrlimit(resource.RLIMIT_CORE, (wanted, hard))
    try:
        with remote_server() as its:
            one = daemon(
                {"echo": kit("echo"), "far": {"url": its.url(), "transport": "http"}},
                http=open_door(),
            )
            async with one.agent() as agent:
                await agent.text("echo__echo", {"text": "x"})
                await agent.text("far__echo", {"text": "x"})
            found = {line: core_bytes(pid) for pid, line in one.running().items() if alive(pid)}
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    for part in (
        "carpool_broker",
        "carpool_supervisor ",
        "spawner_process",
        "carpool.bridge",
        "carpool.http",
    ):
        [limit] = [each for line, each in found.items() if part in line]
        assert limit in {"0", "1"}, part
    [limit] = [each for line, each in found.items() if "echo.py" in line]
    assert limit == str(wanted)
