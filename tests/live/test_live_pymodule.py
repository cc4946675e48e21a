"""A module's functions as tools, by real processes: the child, the supervisor, an agent."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json, LineAgent
from tests.kit.live import Daemon
from tests.live.conftest import shared_daemon

MINE = '''
"""Tools of mine."""

import os
import sys
import threading
from typing import Annotated

from mcp.server.mcpserver import Context
from pydantic import BaseModel, Field

import beside

__version__ = "7.1"
gate = threading.Event()
print("printed at import")
os.system("echo said by a child")


class Point(BaseModel):
    x: int
    y: float = 0


class Name(BaseModel):
    name: str


def move(point: Point, by: Annotated[int, Field(description="How far.")] = 1) -> Point:
    """Move it."""
    print("printed in a call")
    os.write(1, b"written to descriptor 1\\n")
    sys.__stdout__.write("{}\\n")
    return Point(x=point.x + by, y=point.y)


def hold() -> str:
    gate.wait()
    return "held"


def release() -> int:
    gate.set()
    return os.getpid()


def loose(text, times=1):
    return text * times


def boom() -> None:
    raise KeyError("what the agent may read")


async def steps(count: int, context: Context) -> str:
    for step in range(count):
        await context.report_progress(step + 1, count)
    return (await context.elicit("Who?", Name)).data.name


def helper() -> str:
    return beside.WORD
'''


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    for one in shared_daemon({"mine": {"python": "pack.mine", "cwd": "code"}}):
        write(one, "code/pack/mine.py", MINE)
        write(one, "code/beside.py", "WORD = 'from beside'\n")
        # What the child itself needs is not looked for in the server's directory.
        write(one, "code/anyio.py", "raise SystemExit('the wrong anyio')\n")
        yield one


def write(daemon: Daemon, name: str, text: str) -> Path:
    path = daemon.base / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


async def listed(agent: LineAgent) -> dict[str, Json]:
    await agent.until_listed(lambda names: "mine__move" in names, "the module's functions are listed")
    tools = (await agent.result("tools/list"))["tools"]
    return {tool["name"]: tool for tool in tools}


@behaviour("python:run", "python:schemas", "python:untyped")
async def test_a_modules_functions_are_tools_with_their_schemas(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            tools = await listed(agent)
            assert list(tools) == [
                f"mine__{name}" for name in ("boom", "helper", "hold", "loose", "move", "release", "steps")
            ]
            move = tools["mine__move"]
            assert move["description"] == "Move it."
            assert move["inputSchema"]["properties"]["by"]["description"] == "How far."
            assert move["inputSchema"]["required"] == ["point"]
            assert tools["mine__loose"]["inputSchema"] == {"type": "object"}
            moved = await agent.call("mine__move", {"point": {"x": 1}, "by": 2})
            assert moved["structuredContent"] == {"x": 3, "y": 0}
            assert json.loads(moved["content"][0]["text"]) == {"x": 3, "y": 0}
            assert await agent.text("mine__loose", {"text": "ab", "times": 2}) == "abab"
            assert await agent.text("mine__helper") == "from beside"
            code, said, _ = await shared.carpool("logs", "mine")
            assert code == 0
            assert "mine.py:47: loose: text, times have no types, so the tool takes any arguments" in said


@behaviour("python:stdout")
async def test_what_a_module_prints_reaches_the_log_and_no_agent(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            await listed(agent)
            for _ in range(3):
                assert (await agent.call("mine__move", {"point": {"x": 1}}))["structuredContent"]["x"] == 2
            _, said, _ = await shared.carpool("logs", "mine")
            for text in (
                "printed at import",
                "said by a child",
                "printed in a call",
                "written to descriptor 1",
            ):
                assert text in said
            facts = await shared.status()
            assert facts["servers"]["mine"]["restarts"] == 0


@behaviour("python:failures")
async def test_an_exception_is_told_and_its_traceback_is_in_the_log_alone(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            await listed(agent)
            result = await agent.call("mine__boom")
            assert result["isError"] is True
            assert result["content"][0]["text"] == (
                "Error executing tool boom: KeyError: 'what the agent may read'"
            )
            assert "_meta" not in result, "it is the tool's own error, not carpool's"
            _, said, _ = await shared.carpool("logs", "mine")
            assert "Traceback" in said


@behaviour("python:side-by-side")
async def test_a_slow_function_holds_up_no_other_call(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as slow, shared.agent() as fast:
            await listed(slow)
            # More than the threads that anyio has for everything, stdin and stdout included.
            held = [await slow.start("mine__hold") for _ in range(45)]
            await shared.until(
                lambda facts: [each["in_flight"] for each in facts["servers"]["mine"]["instances"]] == [45],
                "they are inside",
            )
            assert await fast.text("mine__loose", {"text": "x"}) == "x"
            assert not slow.answers.keys() & set(held)
            pid = int(await fast.text("mine__release"))
            for each in held:
                assert (await slow.answer(each))["result"]["structuredContent"] == {"result": "held"}
            assert await shared.pids("mine") == [pid], "one instance did them all"


@behaviour("python:run")
async def test_progress_and_questions_through_the_context_reach_the_agent(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent(greet=False) as agent:
            await agent.greet("2025-11-25", {"elicitation": {}})
            agent.says = lambda ask: {"result": {"action": "accept", "content": {"name": "Ada"}}}
            await listed(agent)
            answer = await agent.answer(await agent.start("mine__steps", {"count": 3}, token="t"))
            assert answer["result"]["structuredContent"] == {"result": "Ada"}
            told = [each["params"] for each in agent.notices if each["method"] == "notifications/progress"]
            assert [(each["progressToken"], each["progress"]) for each in told] == [
                ("t", 1),
                ("t", 2),
                ("t", 3),
            ]


@behaviour("python:run")
async def test_a_killed_child_is_started_again_and_a_changed_module_after_a_restart(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            await listed(agent)
            before = set(await shared.pids("mine"))  # a test before this one may have left a second one
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            await shared.until(
                lambda facts: before.isdisjoint(
                    each["pid"] for each in facts["servers"]["mine"]["instances"]
                ),
                "its end is seen",
            )
            assert await agent.text("mine__helper") == "from beside"
            write(shared, "code/beside.py", "WORD = 'changed'\n")
            write(shared, "code/pack/mine.py", MINE + "\n\ndef fresh() -> int:\n    return 1\n")
            assert await agent.text("mine__helper") == "from beside", "nothing is reloaded by itself"
            code, _, said = await shared.carpool("restart", "mine")
            assert code == 0, said
            await agent.until_listed(lambda names: "mine__fresh" in names, "the new function is listed")
            assert await agent.text("mine__helper") == "changed"


@behaviour("python:run")
async def test_a_projects_module_is_found_in_its_workspace_once_it_is_trusted(shared: Daemon) -> None:
    write(shared, "project/.mcp.json", json.dumps({"mcpServers": {"its": {"python": "local"}}}))
    write(shared, "project/local.py", "def where() -> str:\n    return __file__\n")
    deep = shared.base / "project" / "deep"
    deep.mkdir()
    code, _, said = await shared.carpool("trust", "--yes", str(deep))
    assert code == 0, said
    attach = Attach(version=ATTACH_VERSION, carrier="client", pid=os.getpid(), cwd=str(deep))
    with trio.fail_after(LIMIT_S):
        async with shared.agent(attach=attach) as agent:
            await agent.until_listed(lambda names: "its__where" in names, "the project's module is listed")
            assert await agent.text("its__where") == str(shared.base / "project" / "local.py")


@behaviour("python:failures", "python:untyped")
async def test_a_module_that_cannot_be_offered_says_why_where_people_look(
    daemon: Callable[..., Daemon],
) -> None:
    once: Json = {"restart": {"give_up_after": 1}}
    one = daemon(
        {
            "gone": {"python": "nowhere", **once},
            "needs": {"python": "needs", "cwd": "code", **once},
            "strict": {"python": "loose", "cwd": "code", "strict": True, **once},
        },
        up=False,
    )
    write(one, "code/needs.py", "import not_installed_anywhere\n")
    write(one, "code/loose.py", "\n\ndef shout(text):\n    return text\n")
    one.up()
    why = {
        "gone": "there is no module nowhere in ",
        "needs": "needs.py:1 imports not_installed_anywhere, which ",
        "strict": "loose.py:3: shout: text has no type; with `strict` that keeps loose from starting",
    }
    with trio.fail_after(LIMIT_S):
        started = {each["server"]: each for each in await one.operate("start", *why)}
        facts = await one.status()
        async with one.agent() as agent:
            for server, text in why.items():
                assert not started[server]["ok"]
                assert text in started[server]["text"]
                assert text in facts["servers"][server]["last_error"]
                called = await agent.call(f"{server}__any")
                assert text in called["content"][0]["text"], "the agent is told as well"
