"""`carpool enable` and `disable` under agents that are there."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from carpool_protocol.bootstrap import paths
from carpool_protocol.files.overrides_file import read_overrides
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S, fault_of
from tests.kit.live import Daemon, Make, gone, observer
from tests.kit.waits import until
from tests.live.conftest import shared_daemon

CHANGED = "notifications/tools/list_changed"
SERVERS = {
    "good": observer(),
    "own": observer(sharing="session"),
    "off": observer(disabled=True),
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    yield from shared_daemon(SERVERS)


def kept(daemon: Daemon) -> dict[str, bool]:
    """What is kept for the next broker."""
    return read_overrides(paths.switches_file(str(daemon.directory))).servers


async def switched(daemon: Daemon, *words: str) -> str:
    code, out, said = await daemon.carpool(*words)
    assert code == 0, said
    return out


def lists(server: str) -> Any:
    return lambda names: any(name.startswith(f"{server}__") for name in names)


def lists_not(server: str) -> Any:
    return lambda names: not lists(server)(names)


@behaviour("switch:live")
async def test_a_server_is_disabled_under_a_call_that_finishes_and_enabled_again(shared: Daemon) -> None:
    end = shared.base / "end"
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent, shared.agent() as other:
            assert lists("good")(await agent.tools())
            pid = (await agent.seen("good"))["pid"]
            held = await other.start("good__hold", {"text": "held", "until": str(end)})
            await other.inside("good", 1)
            since = len(agent.notices)
            assert "until carpool stops" in await switched(shared, "disable", "good")
            await agent.notice(CHANGED, since)
            assert lists_not("good")(await agent.tools())
            fault = fault_of(refused := await agent.call("good__echo"))
            assert (fault["code"], fault["delivered"], fault["server"]) == ("disabled", "no", "good")
            assert "`carpool disable`" in json.dumps(refused)
            assert "`carpool enable good`" in json.dumps(refused)
            assert held not in other.answers
            end.touch()
            assert (await other.answer(held))["result"]["content"][0]["text"] == "held"
            await until(lambda: gone([pid]), "its process has ended", WAIT_S)
            facts = await shared.until(
                lambda facts: facts["servers"]["good"]["state"] == "disabled", "status says so"
            )
            assert facts["servers"]["good"]["switched"] == "off"
            for verb in ("status", "ps"):
                assert "good: disabled (until carpool stops" in await switched(shared, verb)
            code, _, said = await shared.carpool("start", "good")
            assert (code, "carpool enable good" in said) == (1, True), said
            since = len(agent.notices)
            await switched(shared, "enable", "good")
            await agent.notice(CHANGED, since)
            await agent.until_listed(lists("good"), "it is back")
            assert (await agent.seen("good"))["pid"] != pid
            assert (await shared.status())["servers"]["good"]["switched"] == ""


@behaviour("switch:live")
async def test_a_server_that_its_file_disables_is_enabled_for_a_while(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            fault = fault_of(await agent.call("off__echo", {"text": "x"}))
            assert fault["code"] == "disabled"
            code, _, said = await shared.carpool("call", "off__echo", "--dry-run")
            assert (code, "carpool enable off" in said, "lists that are known" in said) == (1, True, False)
            told = (await switched(shared, "enable", "good", "off")).splitlines()
            assert told[0] == "good is enabled"
            assert f"disabled in {shared.config}" in told[1]
            await agent.until_listed(lists("off"), "it is there")
            assert await agent.text("off__echo", {"text": "on"}) == "on"
            assert "off: enabled (until carpool stops)" in await switched(shared, "status")
            await switched(shared, "disable", "off")
            await agent.until_listed(lists_not("off"), "it is off again")
            assert kept(shared) == {}


@behaviour("switch:session")
async def test_a_server_is_disabled_for_one_session_and_others_notice_nothing(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as one:
            (mine,) = [each["id"] for each in (await shared.status())["sessions"]]
            async with shared.agent() as other:
                pid, lease = (await one.seen("good"))["pid"], (await one.seen("own"))["pid"]
                others_lease = (await other.seen("own"))["pid"]
                await one.tools()
                await other.tools()
                since = len(one.notices)
                for server in ("good", "own"):
                    told = await switched(shared, "disable", server, "--session", mine)
                    assert f"{server} is disabled for session {mine} until the session ends" in told
                await one.notice(CHANGED, since)
                assert lists_not("own")(await one.tools())
                assert fault_of(await one.call("good__echo"))["code"] == "disabled"
                await until(lambda: gone([lease]), "its lease is returned", WAIT_S)
                assert (await other.seen("good"))["pid"] == pid
                assert (await other.seen("own"))["pid"] == others_lease
                assert not [note for note in other.notices if note["method"] == CHANGED]
                assert f"good: disabled for {mine}" in await switched(shared, "status")
                await switched(shared, "enable", "good", "--session", mine)
                assert await one.text("good__echo", {"text": "again"}) == "again"
                await switched(shared, "enable", "own", "--session", mine)
                assert fault_of(await one.call("own__echo"))["code"] == "state_lost", "it is told once"
        for words, why in (
            (("disable", "good", "--session", mine), "no session with this id"),
            (("disable", "goood"), "did you mean 'good'?"),
            (("disable", "good", "goood"), "did you mean 'good'?"),
        ):
            code, _, said = await shared.carpool(*words)
            assert (code, why in said) == (1, True), said
        assert (await shared.status())["servers"]["good"]["switched"] == "", "all are checked first"


@behaviour("switch:saved")
async def test_the_file_comes_to_say_it_under_agents_that_are_there(shared: Daemon) -> None:
    text = json.dumps({"mcpServers": SERVERS}, indent=2).replace("{\n", "{ // mine\n", 1)
    shared.config.write_text(text)
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            await agent.tools()
            await switched(shared, "disable", "good")
            await switched(shared, "disable", "good", "--save")
            assert lists_not("good")(await agent.tools())
            good = (await shared.status())["servers"]["good"]
            assert (good["switched"], good["disabled_in"]) == ("", [str(shared.config)])
            assert kept(shared) == {}
            assert "// mine" in shared.config.read_text()
            await switched(shared, "enable", "good", "--save")
            assert shared.config.read_text() == text
            await agent.until_listed(lists("good"), "it is back")


@behaviour("switch:kept")
async def test_switches_outlive_the_broker_and_a_restart_and_end_with_carpool(daemon: Make) -> None:
    servers = {"good": observer(), "mine": observer(), "off": observer(disabled=True)}
    one = daemon(servers)
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent, one.shim() as other:
            await agent.text("mine__echo", {"text": "x"})
            found = {each["pid"]: each["id"] for each in (await one.status())["sessions"]}
            mine = found[agent.pid]
            await switched(one, "disable", "good")
            await switched(one, "enable", "off")
            await switched(one, "disable", "mine", "--session", mine)
            os.kill((await one.status())["broker"]["pid"], signal.SIGKILL)
            for who, mine_too in ((agent, False), (other, True)):
                names = await who.until_listed(lists("off"), "what was enabled is there")
                assert (lists("good")(names), lists("mine")(names)) == (False, mine_too)
            facts = await one.status()
            assert facts["broker"]["restarts"] == 1
            assert {each["id"]: each["switched"] for each in facts["sessions"]}[mine] == {"mine": "off"}
            await switched(one, "restart", "--all")
            names = await agent.until_listed(lists("mine"), "its session is another one now")
            assert (lists("good")(names), lists("off")(names)) == (False, True)
        assert kept(one) == {"good": False, "off": True}
        await switched(one, "down")
        assert kept(one) == {}
