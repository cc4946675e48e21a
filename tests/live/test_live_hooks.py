"""Hooks as people write them: commands and Python functions, good ones and bad ones."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S, Json, LineAgent, fault_of
from tests.kit.live import Daemon, Make, alive, fd_count, observer
from tests.kit.waits import until

KIT: Final = Path(__file__).parents[1] / "kit"
FUNCTIONS: Final = "hook_functions"
OPEN: Final[Json] = {"on_failure": "allow"}
QUICK: Final[Json] = {"timeout_s": 0.5}
TOOLS: Final = (
    *("raised", "shouted", "denied", "slow", "swapped", "fallen", "failed", "speaking", "absent", "unset"),
    *(
        "profiled",
        "hung",
        "hung_open",
        "command_hung",
        "crashed",
        "crashed_open",
        "killed",
        "noted",
        "refused",
    ),
)


def command(*words: str) -> Json:
    return {"command": sys.executable, "args": ["-S", "-E", str(KIT / "hook_commands.py"), *words]}


def hook(name: str, tool: str, **settings: Any) -> Json:
    return {"name": name, "match": [f"mcp:good:{tool}"], "timeout_s": LIMIT_S, **settings}


def python(function: str) -> Json:
    return {"python": f"{FUNCTIONS}:{function}", "env": {"PYTHONPATH": str(KIT)}}


def server() -> Json:
    return observer(*(word for tool in TOOLS for word in ("--tool", tool)))


@pytest.fixture(scope="module")
def house() -> Iterator[Daemon]:
    one = Daemon()
    notes, bred = str(one.base / "notes"), str(one.base / "bred")
    hooks = [
        hook("raise", "raised", **python("upper"), rewrite=True),
        hook("shout", "shouted", on=["after"], **command("shout"), rewrite=True),
        hook("guard", "denied", **command("deny")),
        hook("slow", "slow", **python("slowly")),
        hook("swap", "swapped", on=["after"], **python("swap"), rewrite=True),
        hook("fall", "fallen", **python("fall")),
        hook("fail", "failed", **command("fail"), env={"HOOK_TOKEN": "hunter2hunter2"}),
        hook("speak", "speaking", **command("speak")),
        hook("absent", "absent", python="no_such_module:f"),
        hook("unset", "unset", **command("note", notes), env={"X": "${NO_SUCH_VARIABLE}"}),
        hook("hang", "hung", **python("hang"), **QUICK),
        hook("hang_open", "hung_open", **python("hang"), **QUICK, **OPEN),
        hook("breed", "command_hung", **command("breed", bred)),
        hook("crash", "crashed", **python("crash")),
        hook("crash_open", "crashed_open", **python("crash"), **OPEN),
        hook("killed", "killed", **python("hang")),
        hook("note", "noted", on=["before", "after"], **command("note", notes)),
        hook("note_refused", "refused", on=["after"], **command("note", notes)),
        hook("refuse", "refused", **command("deny")),
    ]
    hooks.append(hook("of_finders", "profiled", **command("deny"), profiles=["finder"]))
    one.configure({"good": server()}, hooks=hooks, profiles={"finder": {"show": "search"}})
    try:
        one.up()
        yield one
    finally:
        one.close()


async def row(daemon: Daemon, name: str) -> Json:
    """What `status` says of this hook."""
    found: Json = next(each for each in (await daemon.status())["hooks"] if each["name"] == name)
    return found


async def refused(agent: LineAgent, tool: str, arguments: Json | None = None) -> tuple[str, str]:
    """The code and the text of an error of carpool."""
    result = await agent.call(f"good__{tool}", arguments)
    return fault_of(result)["code"], result["content"][0]["text"]


async def passes(agent: LineAgent, tool: str, text: str) -> None:
    """The hook of this tool lets such calls pass again: its new process may not be there yet."""
    with trio.fail_after(WAIT_S):
        while "_meta" in (await agent.call(f"good__{tool}", {"text": text})):  # noqa: ASYNC110 - a process starts
            await trio.sleep(0.05)


@behaviour("hooks:rewrite")
async def test_a_function_rewrites_arguments_and_a_command_rewrites_a_result(house: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with house.shim() as agent:
            assert await agent.text("good__raised", {"text": "quiet", "other": 1}) == "QUIET"
            assert "QUIET" in (await agent.seen("good"))["order"], "the server has seen nothing else"
            assert await agent.text("good__shouted", {"text": "quiet"}) == "QUIET"
            assert "quiet" in (await agent.seen("good"))["order"]
    facts = await row(house, "raise")
    assert facts["rewritten"] == 1
    assert facts["median_s"] > 0
    assert alive(facts["pid"])


@behaviour("hooks:deny")
async def test_a_command_denies_and_its_reason_is_one_clean_line(house: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with house.shim() as agent:
            code, text = await refused(agent, "denied", {"text": "a secret"})
            assert code == "denied_by_hook"
            assert "The hook guard says: denied is not for live [2J never." in text
            assert "denied" not in (await agent.seen("good"))["order"]
    assert "a secret" not in house.log_text()


@pytest.mark.parametrize(
    "params",
    [
        b'{"name":"good__raised","arguments":{"text":"never-a","text":"b"}}',
        b'{"name":"good__raised","arguments":{"text":"b","more":[{"x":1,"x":2}]}}',
    ],
    ids=["argument", "below"],
)
async def test_a_call_that_servers_may_read_in_another_way_than_the_hook_is_denied(
    house: Daemon, params: bytes
) -> None:
    with trio.fail_after(LIMIT_S):
        async with house.shim() as agent:
            await agent.line(b'{"jsonrpc":"2.0","id":"twice","method":"tools/call","params":%b}' % params)
            result = (await agent.answer(b'"twice"'))["result"]
            assert fault_of(result)["code"] == "denied_by_hook"
            assert "stands twice" in result["content"][0]["text"]


async def test_call_tool_has_the_hooks_of_the_tool_that_it_calls_and_profiles_have_their_own(
    house: Daemon,
) -> None:
    with trio.fail_after(LIMIT_S):
        async with house.shim("connect", "--profile", "finder") as finder, house.shim() as agent:

            async def find(tool: str, **arguments: Any) -> Json:
                return await finder.call("call_tool", {"name": f"good__{tool}", "arguments": arguments})

            assert (await find("raised", text="quiet"))["content"][0]["text"] == "QUIET"
            denied = fault_of(await find("denied"))
            assert (denied["code"], denied["tool"]) == ("denied_by_hook", "denied")
            assert fault_of(await find("profiled"))["code"] == "denied_by_hook"
            assert await agent.text("good__profiled", {"text": "no profile"}) == "no profile"


@behaviour("hooks:refused", "hooks:after")
async def test_a_hook_after_calls_hears_how_each_ended(house: Daemon) -> None:
    notes = house.base / "notes"
    with trio.fail_after(LIMIT_S):
        async with house.shim() as agent:
            assert await agent.text("good__noted", {"text": "one"}) == "one"
            assert await refused(agent, "refused", {"text": "two"})
    wanted = ["before - - one", "after answered - one", "after refused denied_by_hook two"]
    await until(lambda: notes.exists() and notes.read_text().splitlines() == wanted, "all is noted", WAIT_S)


@behaviour("hooks:failure")
async def test_each_way_to_fail_is_said_with_its_reason_and_no_value(house: Daemon) -> None:
    ways = {
        "swapped": ("answer_hook_failed", "the content of the result was not an array"),
        "fallen": ("hook_failed", "it raised RuntimeError"),
        "failed": ("hook_failed", "its command ended with exit code 3"),
        "speaking": ("hook_failed", "its output is not JSON"),
        "absent": ("hook_failed", "no_such_module:f cannot be imported: ModuleNotFoundError"),
        "unset": ("hook_failed", "NO_SUCH_VARIABLE"),
    }
    with trio.fail_after(LIMIT_S):
        async with house.shim() as agent:
            for tool, (code, why) in ways.items():
                found, text = await refused(agent, tool, {"text": "pass-phrase"})
                assert (found, why in text) == (code, True), text
                assert "pass-phrase" not in text
    log = house.log("broker")
    assert "hunter2hunter2" not in log
    assert "token is …" in log
    assert (await row(house, "unset"))["problem"].startswith("the environment variable NO_SUCH_VARIABLE")


@behaviour("hooks:failure", "hooks:apart")
async def test_a_hook_that_hangs_fails_by_its_setting_and_holds_up_no_other_call(house: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with house.shim() as agent:
            pid = (await row(house, "hang"))["pid"]
            hung = await agent.start("good__hung", {"text": "h"})
            open_ = await agent.start("good__hung_open", {"text": "o"})
            slow = await agent.start("good__slow", {"seconds": 0.1, "text": "s"})
            assert await agent.text("good__echo", {"text": "by the way"}) == "by the way"
            assert (await agent.answer(slow))["result"]["content"][0]["text"] == "s"
            assert fault_of((await agent.answer(hung))["result"])["code"] == "hook_failed"
            assert (await agent.answer(open_))["result"]["content"][0]["text"] == "o"
            assert (await row(house, "hang"))["timeouts"] == 1
            await until(lambda: "hook hang hangs" in house.log("broker"), "it has another process", WAIT_S)
            await passes(agent, "hung", "quick")
            assert (await row(house, "hang"))["pid"] != pid


@behaviour("hooks:nothing-left")
async def test_a_command_that_hangs_is_ended_with_all_that_it_has_started(house: Daemon) -> None:
    bred = house.base / "bred"

    def pids() -> list[int]:
        return [int(word) for word in bred.read_text().split()] if bred.exists() else []

    with trio.fail_after(LIMIT_S):
        async with house.shim() as agent:
            held = await agent.start("good__command_hung")
            await until(lambda: len(pids()) == 2, "it has started another process", WAIT_S)
            await agent.cancel(held)
            await until(lambda: not any(map(alive, pids())), "both are gone", WAIT_S)


@behaviour("hooks:failure", "hooks:apart")
async def test_a_hook_that_takes_its_process_along_gets_another_one(house: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with house.shim() as agent:
            code, text = await refused(agent, "crashed", {"text": "crash"})
            assert (code, "its process ended with exit code 3" in text) == ("hook_failed", True), text
            assert await agent.text("good__crashed_open", {"text": "crash"}) == "crash"
            await passes(agent, "crashed", "well")


@behaviour("hooks:apart")
async def test_a_kill_of_a_hooks_process_ends_its_calls_by_their_setting(house: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with house.shim() as agent:
            held = await agent.start("good__killed")
            await house.until(lambda facts: hooks_of(facts)["killed"]["running"], "the hook runs")
            os.kill((await row(house, "killed"))["pid"], signal.SIGKILL)
            result = (await agent.answer(held))["result"]
            assert fault_of(result)["code"] == "hook_failed"
            assert "its process ended with signal 9" in result["content"][0]["text"]


async def test_a_cancelled_call_ends_its_hooks_run(house: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with house.shim() as agent:
            held = await agent.start("good__slow", {"seconds": 600, "text": "never"})
            await house.until(lambda facts: hooks_of(facts)["slow"]["running"], "the hook runs")
            await agent.cancel(held)
            await house.until(lambda facts: not hooks_of(facts)["slow"]["running"], "it has ended")
            assert await agent.text("good__slow", {"text": "next"}) == "next"
            assert held not in agent.answers


def hooks_of(facts: Json) -> dict[str, Json]:
    return {each["name"]: each for each in facts["hooks"]}


async def test_people_read_what_hooks_do(house: Daemon) -> None:
    code, out, _ = await house.carpool("status")
    assert code == 0
    assert "REWRITTEN" in out
    assert "hook unset fails, its calls are refused: the environment variable NO_SUCH_VARIABLE" in out
    code, out, said = await house.carpool("check")
    assert code == 0, "what a hook lacks is a warning"
    assert "there is no module no_such_module that Python finds" in said


@behaviour("hooks:reload", "hooks:nothing-left")
async def test_hooks_come_change_and_go_with_the_file_and_leave_nothing(daemon: Make) -> None:
    one = daemon({"good": server()})
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent:
            assert await agent.text("good__raised", {"text": "a"}) == "a"
            broker = (await one.status())["broker"]["pid"]
            before = fd_count(broker)
            one.configure({"good": server()}, hooks=[hook("x", "raised", **python("upper"), rewrite=True)])
            assert (await one.reload())["ok"]
            assert await agent.text("good__raised", {"text": "a"}) == "A"
            pid = (await row(one, "x"))["pid"]
            one.configure({"good": server()}, hooks=[hook("x", "raised", **command("deny"))])
            await one.reload()
            assert (await refused(agent, "raised"))[0] == "denied_by_hook"
            await until(lambda: not alive(pid), "its process has ended", WAIT_S)
            one.configure({"good": server()})
            await one.reload()
            assert await agent.text("good__raised", {"text": "a"}) == "a"
            await until(lambda: fd_count(broker) <= before, "no descriptor is left", WAIT_S)


@behaviour("hooks:broker-death", "hooks:nothing-left")
async def test_a_broker_that_dies_while_hooks_run_leaves_none_and_loses_and_doubles_no_call(
    daemon: Make,
) -> None:
    one = daemon(up=False)
    gate = one.base / "gate"
    gate.mkdir()
    hooks = [
        hook("before", "noted", **command("gate", str(gate))),
        hook("after", "killed", on=["after"], **command("gate", str(gate))),
    ]
    one.configure({"good": server()}, hooks=hooks)
    one.up()
    seen = gate / "seen"

    def noted() -> list[str]:
        return sorted(seen.read_text().splitlines()) if seen.exists() else []

    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent:
            first = await agent.start("good__noted", {"text": "first"})
            second = await agent.start("good__killed", {"text": "second"})
            twice = ["after answered - second", "before - - first"]
            await until(lambda: noted() == twice, "both hooks run", WAIT_S)
            facts = await one.status()
            pids = [each["pid"] for each in facts["hooks"]]
            os.kill(facts["broker"]["pid"], signal.SIGKILL)
            await until(lambda: not any(map(alive, pids)), "the hooks' processes have ended", WAIT_S)
            await until(lambda: noted() == sorted(twice * 2), "both look again", WAIT_S)
            (gate / "open").touch()
            for id_, text in ((first, "first"), (second, "second")):
                assert (await agent.answer(id_))["result"]["content"][0]["text"] == text
            order = (await agent.seen("good"))["order"]
            assert (order.count("first"), order.count("second")) == (1, 1)
