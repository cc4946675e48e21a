"""kill -9, of everybody: each open call ends once and honestly, nothing is left, and work goes on."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from carpool.launcher.http_door import read_door_url
from carpool_protocol.bootstrap import paths
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S, Json, LineAgent, fault_of, settled
from tests.kit.live import Daemon, Make, alive, gone, kit, observer
from tests.kit.open_door import open_door
from tests.kit.waits import until


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


async def held(agent: LineAgent, count: int, server: str = "good") -> list[bytes]:
    """So many calls inside the server."""
    ids = [await agent.start(f"{server}__wait", {"gate": "held"}) for _ in range(count)]
    await agent.inside(server, count)
    return ids


async def lost(agent: LineAgent, ids: list[bytes]) -> None:
    for id_ in ids:
        fault = fault_of((await agent.answer(id_))["result"])
        assert fault["delivered"] == "maybe", fault


def pid_of(daemon: Daemon, word: str) -> int:
    [pid] = [pid for pid, line in daemon.running().items() if word in line]
    return pid


async def only_known(daemon: Daemon) -> None:
    """Every instance that runs is one that the supervisor knows: there are no orphans."""

    def orphans() -> dict[int, str]:
        return {pid: line for pid, line in daemon.strangers().items() if "carpool connect" not in line}

    async def look() -> Json:
        return {"orphans": await trio.to_thread.run_sync(orphans)}

    await settled(look, lambda seen: not seen["orphans"], "there are no orphans")


async def test_kill_9_of_the_supervisor_under_load_loses_its_calls_and_nothing_else(daemon: Make) -> None:
    one = daemon({"good": observer(), "breeder": kit("breeder")})
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent, one.agent() as other:
            ids = await held(agent, 8)
            old = [(await agent.seen("good"))["pid"]]
            old += [int(await other.text(f"breeder__{tool}")) for tool in ("breed", "breed_away")]
            supervisor = (await one.status())["supervisors"][0]["pid"]
            kill(supervisor)
            await lost(agent, ids)
            waiting = await other.start("good__seen")
            await other.answer(waiting)
            assert gone(old), "an instance of the old supervisor runs beside one of the new"
            assert await agent.text("good__echo", {"text": "after"}) == "after"
            facts = await one.status()
            assert facts["supervisors"][0]["pid"] != supervisor
            assert len(facts["sessions"]) == 2
            await only_known(one)


async def test_kill_9_of_the_spawner_ends_its_instances_and_another_one_serves(daemon: Make) -> None:
    one = daemon({"good": observer(restart={"first_delay_s": 0})})
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            ids = await held(agent, 3)
            old = (await agent.seen("good"))["pid"]
            supervisor = (await one.status())["supervisors"][0]["pid"]
            [spawner] = [pid for pid, _ in running_children(one, supervisor)]
            kill(spawner)
            await lost(agent, ids)
            assert await agent.text("good__echo", {"text": "after"}) == "after"
            await until(lambda: not alive(old), "the old instance is gone", WAIT_S)
            await only_known(one)


def running_children(daemon: Daemon, parent: int) -> list[tuple[int, str]]:
    from carpool_supervisor import marks

    return [(pid, line) for pid, line in daemon.running().items() if marks.parent_of(pid) == parent]


async def test_kill_9_of_the_launcher_ends_everything_and_up_works_again(daemon: Make) -> None:
    one = daemon({"good": observer(), "breeder": kit("breeder")})
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            await held(agent, 3)
            bred = [int(await agent.text(f"breeder__{tool}")) for tool in ("breed", "breed_away")]
            kill(pid_of(one, "carpool.launcher"))
            await agent.ended.wait()
        await until(lambda: not one.running(), f"nothing of it runs: {one.running()}", WAIT_S)
        assert gone(bred)
        assert (await one.carpool("status"))[0] == 69
        assert (await one.carpool("up", "--detach"))[0] == 0
        async with one.agent() as agent:
            assert await agent.text("good__echo", {"text": "again"}) == "again"


async def test_kill_9_of_the_broker_brings_a_new_one_for_new_agents_and_no_orphan(daemon: Make) -> None:
    one = daemon({"good": observer()})
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            await held(agent, 4)
            broker = (await one.status())["broker"]["pid"]
            kill(broker)
            await agent.ended.wait()
        await until(lambda: connects(one), "a new broker listens", WAIT_S)
        async with one.shim() as fresh:
            assert await fresh.text("good__echo", {"text": "new"}) == "new"
            assert await fresh.tools()
            facts = await one.status()
            assert facts["broker"]["pid"] != broker
            assert len(facts["servers"]["good"]["instances"]) == 1
            # What the old broker's agents had open is cancelled, not executed again.
            order = (await fresh.seen("good"))["order"]
            assert order.count("wait") <= 4
            await only_known(one)


def connects(daemon: Daemon) -> bool:
    from carpool.launcher.launcher import accepts

    return accepts(str(daemon.directory))


async def test_an_agent_that_comes_in_the_gap_between_two_supervisors_is_served(daemon: Make) -> None:
    one = daemon({"good": observer()})
    with trio.fail_after(LIMIT_S):
        kill((await one.status())["supervisors"][0]["pid"])
        async with one.shim() as agent:
            assert await agent.text("good__echo", {"text": "patience"}) == "patience"
            assert "good__echo" in await agent.tools()


@behaviour("silence:daemons-replaced")
async def test_a_stopped_supervisor_is_not_a_dead_one(daemon: Make) -> None:
    one = daemon({"good": observer()})
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            ids = await held(agent, 2)
            supervisor = (await one.status())["supervisors"][0]["pid"]
            os.kill(supervisor, signal.SIGSTOP)
            try:
                echo = await agent.start("good__echo", {"text": "frozen"})
                await agent.result("ping")  # the broker serves on
            finally:
                os.kill(supervisor, signal.SIGCONT)
            assert (await agent.answer(echo))["result"]["content"][0]["text"] == "frozen"
            await agent.call("good__open", {"gate": "held"})
            for id_ in ids:
                assert (await agent.answer(id_))["result"]["content"][0]["text"] == "opened"
            assert (await one.status())["supervisors"][0]["pid"] == supervisor


async def test_racing_shims_start_one_daemon(daemon: Make) -> None:
    one = daemon({"good": observer()}, up=False)
    told: list[int] = []

    async def start() -> None:
        async with one.shim() as agent:
            told.append((await agent.seen("good"))["pid"])
            if len(told) == 4:
                every.set()
            await every.wait()
            launchers = [
                line for line in one.running().values() if "carpool.launcher" in line and "--stay" in line
            ]
            assert len(launchers) == 1, launchers

    every = trio.Event()
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(start)
        assert len(set(told)) == 1
        one.note_fds()


@behaviour("children:daemon-outlives-agent")
async def test_a_daemon_outlives_the_process_group_of_the_agent_that_started_it(daemon: Make) -> None:
    one = daemon({"good": observer()}, up=False)
    with trio.fail_after(LIMIT_S):
        process = await trio.lowlevel.open_process(
            one.command("up", "--detach"), env=one.environ, start_new_session=True, stdout=subprocess.DEVNULL
        )
        assert await process.wait() == 0
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        async with one.agent() as agent:
            assert await agent.text("good__echo", {"text": "alive"}) == "alive"


async def test_a_second_up_says_that_one_runs_and_changes_nothing(daemon: Make) -> None:
    one = daemon({"good": observer()})
    with trio.fail_after(LIMIT_S):
        before = (await one.status())["broker"]["pid"]
        code, _, said = await one.carpool("up")
        assert (code, "already runs" in said) == (2, True), said
        assert (await one.carpool("up", "--detach"))[0] == 0
        assert (await one.status())["broker"]["pid"] == before


async def test_down_in_the_middle_of_calls_leaves_no_process_and_no_socket(daemon: Make) -> None:
    servers = {"good": observer(), "slow": kit("slow"), "deaf": kit("deaf"), "frozen": observer()}
    one = daemon(servers)
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent, one.agent() as other:
            await held(agent, 5)
            frozen = (await agent.seen("frozen"))["pid"]
            os.kill(frozen, signal.SIGSTOP)
            await other.start("slow__sleep", {"seconds": 60})
            assert await other.text("deaf__echo", {"text": "hello"}) == "hello"
            [deaf] = await one.pids("deaf")
            os.kill(deaf, signal.SIGTERM)
            assert await other.text("deaf__echo", {"text": "what?"}) == "what?"
            code, _, said = await one.carpool("down")
            assert code == 0, said
            await other.ended.wait()
            await agent.ended.wait()
        await until(lambda: not one.running(), f"nothing runs: {one.running()}", WAIT_S)
        assert not list(one.directory.glob("*.sock"))
        assert (await one.carpool("down"))[0] == 0  # again: was not running


def still_kept(one: Daemon) -> list[str]:
    return [each for each in paths.held_until_down(str(one.directory)) if Path(each).exists()]


@behaviour("config:last-good", "config:last-good-of-projects")
async def test_whoever_dies_while_the_file_is_broken_comes_back_with_the_last_good_one(daemon: Make) -> None:
    one = daemon({"good": observer()}, http=open_door())
    project = one.base / "project"
    project.mkdir()
    its = project / ".mcp.json"
    its.write_text(json.dumps({"mcpServers": {"its": observer()}}))
    with trio.fail_after(LIMIT_S):
        assert (await one.carpool("trust", "--yes", str(project)))[0] == 0
        async with one.shim(cwd=project) as agent:
            assert await agent.text("good__echo", {"text": "before"}) == "before"
            assert await agent.text("its__echo", {"text": "before"}) == "before"
            its.write_text("{")
            one.config.write_text('{"mcpServers": {"good": {"comand": "x"}}, "http": {"port": 0}}')
            await one.until(lambda facts: facts["config"]["problem"], "the broken file is noticed")
            await one.until(lambda facts: facts["workspaces"][0]["problems"], "the project's is as well")
            kill(pid_of(one, "carpool_broker"))
            assert await agent.text("good__echo", {"text": "broker"}) == "broker"
            assert await agent.text("its__echo", {"text": "broker"}) == "broker"
            daemons = one.daemons()
            kill(pid_of(one, "carpool.launcher"))
            await until(lambda: gone(daemons), "all of it has ended", WAIT_S)
            assert await agent.text("good__echo", {"text": "launcher"}) == "launcher"
            assert await agent.text("its__echo", {"text": "launcher"}) == "launcher"
            facts = await one.until(lambda facts: facts["reason"] == "config_broken", "status says so")
            assert "comand" in facts["config"]["problem"]
            await until(
                lambda: read_door_url(str(one.directory)), "the HTTP door is open again as well", WAIT_S
            )
            code, _, said = await one.carpool("down")
            assert code == 0, said
            assert not still_kept(one), "what is kept until then goes"
            await agent.ended.wait()
        code, _, said = await one.carpool("up", "--detach", "--config", str(one.config))
        assert (code, "comand" in said) == (2, True), "whoever stops it and starts it is told"


async def test_a_broken_configuration_is_refused_at_start_with_file_and_line(daemon: Make) -> None:
    one = daemon(up=False)
    one.config.write_text('{\n "mcpServers": {\n  "x": {"comand": "true"}\n }\n}')
    with trio.fail_after(LIMIT_S):
        code, _, said = await one.carpool("up", "--detach", "--config", str(one.config))
        assert code == 2
        assert "carpool.json:3" in said
        assert "did you mean" in said
        assert not one.running()
        process = await trio.run_process(
            one.command("connect"),
            env=one.environ,
            stdin=b"",
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
        assert process.returncode == 2
        assert not process.stdout
        assert b"comand" in process.stderr


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_to_the_launcher_ends_all_in_order(daemon: Make, ending: signal.Signals) -> None:
    if signal.getsignal(ending) is signal.SIG_IGN:
        signal.signal(ending, signal.SIG_DFL)  # under nohup; whoever is started so is not ended by it either
    one = daemon({"good": observer()})
    check: Callable[[], bool] = lambda: not one.running()  # noqa: E731
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            await held(agent, 1)
            os.kill(pid_of(one, "carpool.launcher"), ending)
            await agent.ended.wait()
        await until(check, "nothing runs", WAIT_S)
        assert not list(one.directory.glob("*.sock"))
