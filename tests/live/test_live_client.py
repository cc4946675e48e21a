"""The Python client with real processes: `from carpool import Carpool`, under asyncio and trio."""

import json
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from carpool import (
    BadCall,
    Carpool,
    Lost,
    Progress,
    Refused,
    Unavailable,
    UnknownName,
)
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S, Json
from tests.kit.live import Daemon, Make, kit, observer
from tests.live.test_live_kept import Shop

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])


class MixedDaemon(Daemon):
    """Good servers, one that asks, one that is off, and one with names that fall on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.shop = Shop(
            self,
            "shop",
            tools={"get.page": "One.", "get_page": "Another.", "t" * 80: "Long."},
            prompts=["haggle"],
            resources=["shop:/bread"],
        )
        self.configure(
            {
                "good": observer(tags=["code", "fast"]),
                "echo": kit("echo", tags=["fast"]),
                "asks": kit("asks_back"),
                "news": kit("news"),
                "grows": kit("list_changes"),
                "shop": self.shop.config(),
                "full": kit("full", "full"),
                "off": kit("echo", disabled=True),
            },
            workspaces={"quiet": {"mcpServers": {"good": {"disabled": True}}}},
            profiles={
                "echoes": {"allow": ["mcp:*:echo"], "deny": ["mcp:news", "mcp:off"]},
                "lean": {"show": "search"},
            },
        )
        self.up()


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    one = MixedDaemon()
    try:
        yield one
    finally:
        one.close()


def client(daemon: Daemon, **settings: Any) -> Carpool:
    return Carpool(runtime_dir=daemon.directory, start=False, **{"cwd": daemon.base, **settings})


def run(backend: str, what: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        with anyio.fail_after(LIMIT_S):
            await what()

    anyio.run(limited, backend=backend)


async def until(look: Callable[[], Awaitable[object]], what: str) -> None:
    """Bounded."""
    with anyio.move_on_after(WAIT_S):
        while not await look():  # noqa: ASYNC110 - conditions of other processes set no event
            await anyio.sleep(0.02)
        return
    raise AssertionError(f"not within {WAIT_S:g} s: {what}")


async def seen(agent: Carpool) -> Json:
    found: Json = json.loads((await agent.call("good__seen")).text)
    return found


async def inside(agent: Carpool, count: int) -> None:
    """Wait until so many calls are inside `good`."""

    async def there() -> bool:
        return bool((await seen(agent))["inside"] == count)

    await until(there, f"{count} calls inside")


@both
@behaviour("client:concurrent")
def test_a_thousand_calls_at_once_each_have_their_own_answer(shared: Daemon, backend: str) -> None:
    async def main() -> None:
        async def one(at: int) -> None:
            said.append((await agent.call("echo__echo", {"text": f"{at}"})).text == f"{at}")

        said: list[bool] = []
        async with client(shared) as agent, anyio.create_task_group() as tasks:
            for at in range(1000):
                tasks.start_soon(one, at)
        assert said == [True] * 1000

    run(backend, main)


@both
@behaviour("client:asks")
def test_what_a_server_asks_a_callback_answers_while_other_calls_go_on(shared: Daemon, backend: str) -> None:
    async def main() -> None:
        async def sample(params: Json) -> Json:
            asked = params["messages"][0]["content"]["text"]
            text = (await agent.call("echo__echo", {"text": f"{asked} indeed"})).text
            return {"role": "assistant", "content": {"type": "text", "text": text}, "model": "m"}

        async def one(at: int) -> None:
            said = json.loads((await agent.call("asks__ask", {"text": f"q{at}"})).text)
            assert said["result"]["content"]["text"] == f"q{at} indeed"

        async with client(shared, on_sampling=sample) as agent, anyio.create_task_group() as tasks:
            for at in range(5):
                tasks.start_soon(one, at)
        async with client(shared) as agent:
            assert "error" in json.loads((await agent.call("asks__ask", {"text": "who?"})).text)

    run(backend, main)


@both
@behaviour("client:reattach")
def test_calls_open_when_the_broker_is_killed_run_once_and_are_answered_once(
    daemon: Make, backend: str
) -> None:
    one = daemon({"good": observer()})
    calls = 40

    async def main() -> None:
        async def held(at: int) -> None:
            answers.append((await agent.call("good__wait", {"gate": "g", "text": f"h{at}"})).text)

        async def ongoing(at: int) -> None:
            for turn in range(25):
                text = f"o{at}-{turn}"
                assert (await agent.call("good__echo", {"text": text})).text == text

        answers: list[str] = []
        async with client(one) as agent:
            async with anyio.create_task_group() as tasks:
                for at in range(calls):
                    tasks.start_soon(held, at)
                await inside(agent, calls)
                for at in range(8):
                    tasks.start_soon(ongoing, at)
                await kill_broker(one)
                await agent.call("good__open", {"gate": "g"})
            assert answers == ["opened"] * calls
            order = (await seen(agent))["order"]
            once = [f"h{at}" for at in range(calls)]
            once += [f"o{at}-{turn}" for at in range(8) for turn in range(25)]
            assert sorted(each for each in order if each[0] in "ho" and each[1].isdigit()) == sorted(once)

    run(backend, main)
    assert one.log("broker").count("broker serves") == 2


@behaviour("client:reattach")
def test_when_broker_and_supervisor_die_together_an_open_call_is_lost_and_the_session_goes_on(
    daemon: Make,
) -> None:
    one = daemon({"good": observer()})

    async def main() -> None:
        async def held() -> None:
            with pytest.raises(Lost, match="may have been executed") as caught:
                await agent.call("good__wait", {"gate": "g"})
            assert caught.value.delivered == "maybe"

        async with client(one) as agent:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(held)
                await inside(agent, 1)
                facts = await anyio.to_thread.run_sync(one.facts)
                for pid in (facts["supervisors"][0]["pid"], facts["broker"]["pid"]):
                    os.kill(pid, signal.SIGKILL)

            async def reborn() -> bool:  # a call may still reach the broker that is about to die
                return one.log("broker").count("broker serves") == 2

            await until(reborn, "the next broker serves")
            assert (await agent.call("good__echo", {"text": "on"})).text == "on"

    run("asyncio", main)


@behaviour("client:errors", "client:operates")
def test_what_may_not_be_called_is_a_permission_error_until_it_may(shared: Daemon) -> None:
    async def main() -> None:
        async with client(shared) as agent, client(shared) as other:
            with pytest.raises(PermissionError, match="carpool enable off") as caught:
                await agent.call("off__echo", {"text": "x"})
            assert (caught.value.kind, caught.value.delivered) == ("disabled", "no")  # type: ignore[attr-defined]
            with pytest.raises(Refused):
                await agent.describe("off__echo")
            await agent.enable("off", only_here=True)
            assert (await agent.call("off__echo", {"text": "x"})).text == "x"
            with pytest.raises(PermissionError):
                await other.call("off__echo", {"text": "x"})
            await agent.disable("off", only_here=True)
            with pytest.raises(PermissionError):
                await agent.call(("off", "echo"), {"text": "x"})
            with pytest.raises(BadCall, match="did you mean 'off'"):
                await agent.enable("of")

    run("trio", main)


@behaviour("client:errors", "client:looks")
def test_what_a_profile_does_not_permit_is_a_permission_error_and_not_shown(shared: Daemon) -> None:
    async def main() -> None:
        async with client(shared, profile="echoes") as agent:
            assert {tool.name for tool in await agent.tools()} == {"echo__echo", "good__echo"}
            assert {"off", "news"}.isdisjoint(each.name for each in await agent.servers())
            assert (await agent.call(("good", "echo"), {"text": "may"})).text == "may"
            for name in ("good__seen", "mcp:good:seen", "hold", "news__known"):
                with pytest.raises(PermissionError) as caught:
                    await agent.call(name)
                assert caught.value.kind == "not_permitted"  # type: ignore[attr-defined]
                with pytest.raises(PermissionError):
                    await agent.resolve(name)
            with pytest.raises(PermissionError):
                await agent.call(("good", "seen"))
        with pytest.raises(BadCall, match="echoes"):
            async with client(shared, profile="echos"):
                pytest.fail("there is no such profile")

    run("asyncio", main)


@behaviour("client:errors")
def test_a_server_that_awaits_trust_is_refused_as_that(shared: Daemon) -> None:
    place = shared.base / "project"
    place.mkdir()
    (place / ".mcp.json").write_text(json.dumps({"mcpServers": {"its": observer()}}))

    async def main() -> None:
        async with client(shared, cwd=place) as agent:
            with pytest.raises(PermissionError, match="carpool trust") as caught:
                await agent.call("its__echo")
            assert (caught.value.kind, caught.value.server) == ("untrusted", "its")  # type: ignore[attr-defined]
            states = {each.name: (each.state, bool(each.why)) for each in await agent.servers()}
            assert states["its"] == ("untrusted", True)
            assert states["off"] == ("disabled", True)

    run("asyncio", main)


@behaviour("client:operates")
def test_a_server_is_stopped_and_started_again(shared: Daemon) -> None:
    async def main() -> None:
        async with client(shared) as agent:
            assert (await agent.call("good__echo", {"text": "1"})).text == "1"
            assert "stopped" in await agent.stop("good")
            with pytest.raises(Unavailable, match="carpool start good"):
                await agent.call("good__echo")
            assert {each.name: each.state for each in await agent.servers()}["good"] == "stopped"
            await agent.start("good")
            assert (await agent.call("good__echo", {"text": "2"})).text == "2"
            with pytest.raises(Unavailable, match="there is no server"):
                await agent.start("gone")

    run("asyncio", main)


@both
@behaviour("client:timeout", "client:cancel")
def test_a_call_that_times_out_or_is_cancelled_is_cancelled_at_the_server(
    shared: Daemon, backend: str
) -> None:
    async def main() -> None:
        async def too_long() -> None:
            with pytest.raises(TimeoutError):
                await agent.call("good__wait", {"gate": "never", "obeys": True}, timeout_s=2)

        async def cancelled() -> None:
            with anyio.CancelScope() as scope:
                scopes.append(scope)
                await agent.call("good__wait", {"gate": "never", "obeys": True})

        scopes: list[anyio.CancelScope] = []
        async with client(shared) as agent:
            before = len((await seen(agent))["cancels"])
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancelled)
                await inside(agent, 1)
                scopes[0].cancel()
            await too_long()

            async def told() -> bool:
                return len((await seen(agent))["cancels"]) == before + 2

            await until(told, "the server heard of both")

    run(backend, main)


@behaviour("client:names")
def test_every_spelling_means_its_tool_and_an_ambiguous_one_names_the_candidates(shared: Daemon) -> None:
    async def main() -> None:
        async with client(shared) as agent:
            await agent.tools()
            for spelling in (
                "good__echo", "good_echo", "mcp__good__echo", "mcp:good:echo", "mcp:good.echo",
                "mcp_good_echo", "good.echo",
            ):  # fmt: skip
                assert await agent.resolve(spelling) == ("good", "echo"), spelling
                assert (await agent.call(spelling, {"text": spelling})).text == spelling
            assert await agent.resolve("hold") == ("good", "hold")
            with pytest.raises(LookupError, match="say which") as caught:
                await agent.resolve("echo")
            assert isinstance(caught.value, UnknownName)
            assert caught.value.candidates == ("echo__echo", "good__echo")
            with pytest.raises(UnknownName) as caught:
                await agent.resolve("good__ecko")
            assert caught.value.candidates[0] == "good__echo"
            with pytest.raises(UnknownName, match="echo__echo, good__echo"):
                await agent.call("echo")

    run("asyncio", main)


@behaviour("client:names")
def test_a_server_and_a_tool_are_called_whatever_their_name_came_out_as(shared: Daemon) -> None:
    async def main() -> None:
        async with client(shared) as agent:
            for tool in ("get.page", "get_page", "t" * 80):
                assert (await agent.call(("shop", tool))).text == tool
                described = await agent.describe(("shop", tool))
                assert (described.server, described.tool) == ("shop", tool)
                assert described.name != f"shop__{tool}"
                assert (await agent.describe(described.name)) == described
            with pytest.raises(UnknownName):
                await agent.call(("shop", "get/page"))

    run("trio", main)


@behaviour("client:looks")
def test_tools_are_listed_by_tag_and_by_server_with_their_schemas(shared: Daemon) -> None:
    async def main() -> None:
        async with client(shared) as agent:
            assert {tool.server for tool in await agent.tools(tags="code")} == {"good"}
            assert {tool.server for tool in await agent.tools(tags=["code", "fast"])} == {"good", "echo"}
            assert await agent.tools(tags="none") == []
            assert {tool.name for tool in await agent.tools(server="echo", tags="fast")} >= {"echo__echo"}
            (echo,) = [tool for tool in await agent.tools() if tool.name == "good__echo"]
            assert (echo.tags, echo.description) == (("code", "fast"), "echo.")
            assert echo.input_schema == {"type": "object"}
            assert echo.as_mcp()["name"] == "good__echo"
            (good,) = [each for each in await agent.servers() if each.name == "good"]
            assert (good.tags, "good__echo" in good.tools) == (("code", "fast"), True)
            await agent.ping()

    run("asyncio", main)


@behaviour("client:looks")
async def test_a_plain_agent_may_ask_of_its_own_view_and_of_nothing_else(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            await agent.tools()
            found = await agent.result("carpool/resolve", {"name": "good.echo"})
            assert found == {"server": "good", "tool": "echo", "name": "good__echo"}
            for method in ("carpool/status", "carpool/operate", "carpool/switch", "carpool/why"):
                assert (await agent.ask(method, {}))["error"]["code"] == -32601, method


@behaviour("client:looks")
def test_in_search_mode_a_model_is_shown_little_and_the_program_may_call_all(shared: Daemon) -> None:
    async def main() -> None:
        async with client(shared, profile="lean") as agent:
            shown = {tool["name"] for tool in await agent.shown()}
            assert shown == {"find_tools", "describe_tool", "call_tool"}
            assert "good__echo" in {tool.name for tool in await agent.tools()}
            wanted = {"name": "good__echo", "arguments": {"text": "found"}}
            assert (await agent.call("call_tool", wanted)).text == "found"
            assert (await agent.call(("good", "echo"), {"text": "at once"})).text == "at once"

    run("asyncio", main)


@behaviour("client:looks", "resources:owner-told")
def test_resources_and_prompts_are_listed_and_read(shared: Daemon) -> None:
    async def main() -> None:
        async with client(shared) as agent:
            assert {"shop__haggle", "full__tell"} <= {each["name"] for each in await agent.prompts()}
            said = await agent.get_prompt("full__tell", {"who": "you"})
            assert "you" in said["messages"][0]["content"]["text"]
            owners = {each["uri"]: each["server"] for each in await agent.resources()}
            assert (owners["shop:/bread"], owners["full://own"]) == ("shop", "full")
            templates = {each["uriTemplate"]: each["server"] for each in await agent.resource_templates()}
            assert templates["shared://doc/{part}"] == "full"
            assert (await agent.read("full://own"))["contents"][0]["text"] == "full has full://own"
            with pytest.raises(LookupError):
                await agent.read("no://such")

    run("asyncio", main)


@behaviour("client:looks")
def test_a_session_goes_to_another_workspace_and_sees_what_is_there(shared: Daemon) -> None:
    async def main() -> None:
        async with client(shared) as agent:
            assert await agent.tools(server="good")
            assert (await agent.use_workspace("quiet")).name == "quiet"
            assert await agent.tools(server="good") == []
            with pytest.raises(BadCall, match="quiet"):
                await agent.use_workspace("loud")

    run("trio", main)


@both
@behaviour("client:progress", "client:news")
def test_progress_logs_and_changed_lists_are_told(shared: Daemon, backend: str) -> None:
    async def main() -> None:
        steps: list[Progress] = []
        logs: list[Json] = []
        changed = anyio.Event()

        async def on_log(params: Json) -> None:
            await anyio.lowlevel.checkpoint()
            logs.append(params)
            logged.set()

        logged = anyio.Event()
        settings: Json = {"on_log": on_log, "on_tools_changed": changed.set}
        async with client(shared, log_level="debug", **settings) as agent:
            await agent.tools()
            result = await agent.call(
                "good__steps", {"count": 3, "text": "step"}, on_progress=steps.append, timeout_s=WAIT_S
            )
            assert result.text == "step"
            assert [each.progress for each in steps] == [1, 2, 3]
            assert steps[0].message == "step"
            await agent.call("news__log", {"level": "warning", "data": "hear"})
            await logged.wait()
            assert (logs[0]["level"], logs[0]["data"]) == ("warning", "hear")
            await agent.call("grows__grow")
            await changed.wait()

    run(backend, main)


async def kill_broker(daemon: Daemon) -> None:
    facts = await anyio.to_thread.run_sync(daemon.facts)
    os.kill(facts["broker"]["pid"], signal.SIGKILL)


@behaviour("client:no-daemon")
def test_the_examples_of_the_page_start_carpool_and_run_and_its_end_is_a_connection_error(
    daemon: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = daemon({"time": {"command": "mcp-server-time"}}, up=False)
    monkeypatch.setattr(os, "environ", one.environ)
    monkeypatch.chdir(one.base)
    page = (Path(__file__).parents[2] / "docs" / "client.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "docs/client.md", "exec"), {"__name__": "example"})
    said = capsys.readouterr().out
    assert "time__get_current_time Get current time" in said
    assert '"timezone": "Europe/Paris"' in said
    assert "True Error" in said

    async def main() -> None:
        async with Carpool(start=False) as agent:
            assert (await anyio.to_thread.run_sync(one.run, "down")).returncode == 0
            with pytest.raises(ConnectionError, match="stopped"):
                await until(agent.ping, "carpool is gone")
        with pytest.raises(ConnectionError, match="carpool up"):
            async with Carpool(start=False):
                pytest.fail("nothing runs")

    run("trio", main)
    one.up()
