"""What agents see listed, and how they learn that it changed (rule 18)."""

from collections.abc import Iterator

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, fault_of
from tests.kit.live import Daemon, Make, kit, observer
from tests.live.conftest import shared_daemon

CHANGED = "notifications/tools/list_changed"


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    servers = {
        "good": observer(),
        "many": kit("paged"),
        "changes": kit("list_changes"),
        "picky": observer(tools={"allow": ["e*"], "deny": ["environ"]}),
        "plain": observer("--tool", "only_here", tools_prefix=""),
        "off": observer(disabled=True),
    }
    yield from shared_daemon(servers)


@behaviour("lists:bounded-wait")
async def test_a_server_that_never_greets_does_not_keep_the_others_from_being_listed(daemon: Make) -> None:
    servers = {"good": observer(), "mute": kit("never_greets", first_start_s=300.0)}
    one = daemon(servers, list_wait_s=1.0)
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            # Neither a list nor a call waits for longer than that second.
            await agent.until_listed(lambda names: "good__echo" in names, "the good one is listed")
            assert await agent.text("good__echo", {"text": "hello"}) == "hello"
            assert {name.split("__")[0] for name in await agent.tools()} == {"good"}


@behaviour("pages:own-cursors")
async def test_2500_tools_are_listed_whole_in_pages(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            names = await agent.tools()
            many = [name for name in names if name.startswith("many__")]
            assert many == [f"many__tool_{at:04}" for at in range(2500)]
            assert len(names) == len(set(names))
            pages = [line for line in agent.lines if b'"tools":[' in line]
            assert len(pages) >= 3
            assert await agent.text("many__tool_2499") == "tool_2499"


async def test_the_list_is_the_same_for_every_agent_and_honours_the_configuration(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as one, shared.agent() as other:
            names = await one.tools()
            assert names == await other.tools()
            assert [name for name in names if name.startswith("picky__")] == ["picky__echo"]
            assert "only_here" in names
            assert not [name for name in names if name.startswith("off")]
            assert (await one.ask("tools/call", {"name": "picky__seen"}))["error"]["code"] == -32602
            assert fault_of(await one.call("off__echo"))["code"] == "disabled"
            assert await one.text("only_here") == "only_here"


async def test_a_list_that_changes_is_told_to_everybody_who_has_read_it(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as one, shared.agent() as other, shared.agent() as never_listed:
            assert "changes__grown_0" not in await one.tools()
            await other.tools()
            since = (len(one.notices), len(other.notices))
            await never_listed.call("changes__grow")
            await one.notice(CHANGED, since[0])
            await other.notice(CHANGED, since[1])
            assert "changes__grown_0" in await one.tools()
            assert await one.text("changes__grown_0") == "1"
            since = (len(one.notices), len(other.notices))
            await one.call("changes__shrink")
            await one.notice(CHANGED, since[0])
            assert "changes__grown_0" not in await one.tools()
            # It has not listed again since it was told: there is nothing new to tell.
            assert len(other.notices) == since[1]


@behaviour("lists:away-and-back")
async def test_a_stopped_server_leaves_the_list_and_returns_on_start(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            assert "good__echo" in await agent.tools()
            since = len(agent.notices)
            code, said, _ = await shared.carpool("stop", "good")
            assert (code, "good" in said) == (0, True)
            await agent.notice(CHANGED, since)
            assert "good__echo" not in await agent.tools()
            assert fault_of(await agent.call("good__echo"))["code"] == "stopped"
            assert (await shared.status())["servers"]["good"]["state"] == "stopped"
            since = len(agent.notices)
            assert (await shared.carpool("start", "good"))[0] == 0
            await agent.notice(CHANGED, since)
            assert "good__echo" in await agent.tools()
            assert await agent.text("good__echo", {"text": "back"}) == "back"


async def test_a_restarted_server_stays_listed_and_has_another_process(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            names = await agent.tools()
            before = (await agent.seen("good"))["pid"]
            [done] = await shared.operate("restart", "good")
            assert done["ok"], done
            assert (await agent.seen("good"))["pid"] != before
            assert await agent.tools() == names
            assert not agent.notices
