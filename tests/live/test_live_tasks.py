"""Tasks of a stateless server and agents that come back for them (SEP-2663 of MCP 2026-07-28)."""

import json
import os
import signal
import urllib.error
import urllib.request
from typing import Any, Final

import trio

from carpool.http.core.access import hash_of
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S, Json, settled
from tests.kit.live import Make, kit
from tests.kit.private_daemon import until
from tests.kit.stateless_agent import MODERN, PREFIX, Stateless

TASKS: Final = "io.modelcontextprotocol/tasks"
KNOWS: Final[Json] = {"elicitation": {"form": {}}, "extensions": {TASKS: {}}}


def tasking(**settings: Any) -> Json:
    return kit("tasking", era="modern", **settings)


async def begin(agent: Stateless, name: str, **more: Any) -> str:
    """Our id of the task."""
    params = {"name": "tasking__work", "arguments": {"name": name, **more}}
    result = await agent.result("tools/call", params)
    assert result["resultType"] == "task", result
    assert result["status"] == "working"
    found: str = result["taskId"]
    return found


async def seen(agent: Stateless) -> Json:
    found: Json = json.loads(await agent.text("tasking__seen"))
    return found


@behaviour("tasks:relayed", "tasks:own-id", "tasks:undeclared", "tasks:listened", "tasks:end-with-agent")
async def test_a_task_is_its_agents_from_beginning_to_end_and_nobody_elses(daemon: Make) -> None:
    one = daemon({"tasking": tasking()})
    with trio.fail_after(LIMIT_S):
        async with one.agent(greet=False) as first, one.shim(greet=False) as second, one.agent() as old:
            anna, bert = Stateless(first, capabilities=KNOWS), Stateless(second, capabilities=KNOWS)
            await old.tools()
            described = await anna.result("server/discover")
            assert described["capabilities"]["extensions"] == {TASKS: {}}

            task = await begin(anna, "a")
            assert task != "theirs-1"
            got = await anna.result("tasks/get", {"taskId": task})
            assert (got["resultType"], got["taskId"], got["status"]) == ("complete", task, "working")
            assert got["ttlMs"] == 600_000

            nobodys = (await bert.ask("tasks/get", {"taskId": "theirs-1"}))["error"]
            assert nobodys["code"] == -32602
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                refused = await bert.ask(method, {"taskId": task, "inputResponses": {}})
                assert refused["error"] == nobodys
            assert (await old.ask("tasks/get", {"taskId": task}))["error"]["code"] == -32601

            plain = Stateless(first)
            lacks = (await plain.ask("tasks/get", {"taskId": task}))["error"]
            assert lacks["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
            work = {"name": "tasking__work", "arguments": {"name": "x"}}
            assert (await plain.ask("tools/call", work))["error"]["code"] == -32021

            listen, deaf = await anna.listen(taskIds=[task]), await bert.listen(taskIds=[task])
            assert await listen.acknowledged() == {"taskIds": [task]}
            assert await deaf.acknowledged() == {}
            await settled(lambda: seen(anna), lambda it: it["listens"] == [["theirs-1"]], "one listen for it")
            await anna.text("tasking__want", {"name": "a"})
            told = await listen.notice("notifications/tasks")
            assert (told["params"]["taskId"], told["params"]["status"]) == (task, "input_required")
            got = await anna.result("tasks/get", {"taskId": task})
            assert got["inputRequests"]["who"]["params"]["message"] == "a"

            said = {"who": {"action": "accept", "content": {"name": "Anna"}}}
            ack = await anna.result("tasks/update", {"taskId": task, "inputResponses": said})
            assert ack["resultType"] == "complete"
            got = await anna.result("tasks/get", {"taskId": task})
            assert got["result"]["content"][0]["text"] == "by Anna"
            assert not deaf.heard("notifications/tasks")

            await begin(bert, "b")
            await anna.result("tasks/cancel", {"taskId": await begin(anna, "c")})
            assert (await seen(anna))["cancelled"] == ["theirs-3"]
        async with one.agent(greet=False) as third:
            cleo = Stateless(third, capabilities=KNOWS)
            facts = await settled(
                lambda: seen(cleo), _cancelled_of_bert, "what nobody can ask for is cancelled"
            )
            assert "theirs-1" not in facts["cancelled"], "its end was told"


def _cancelled_of_bert(facts: Json) -> bool:
    return "theirs-2" in facts["cancelled"]


@behaviour("tasks:held")
async def test_an_instance_that_runs_a_task_is_not_idle_and_its_result_is_fetched_later(daemon: Make) -> None:
    one = daemon({name: tasking(pool={"idle_s": 0.3}) for name in ("tasking", "without_task")})
    with trio.fail_after(LIMIT_S):
        async with one.agent(greet=False) as agent:
            anna = Stateless(agent, capabilities=KNOWS)
            task = await begin(anna, "a")
            [before] = (await one.status())["servers"]["tasking"]["instances"]
            await anna.text("without_task__seen")
            await one.until(
                lambda facts: not facts["servers"]["without_task"]["instances"],
                "an instance that was used later is idle",
            )
            [after] = (await one.status())["servers"]["tasking"]["instances"]
            assert after["pid"] == before["pid"]
            await anna.text("tasking__finish", {"name": "a"})
            got = await anna.result("tasks/get", {"taskId": task})
            assert got["result"]["content"][0]["text"] == "a is done"
            await one.until(lambda facts: not facts["servers"]["tasking"]["instances"], "it was idle")
            gone = await anna.ask("tasks/get", {"taskId": task})
            assert gone["error"]["code"] == -32602


@behaviour("reattach:listens", "tasks:listened")
async def test_whoever_listens_for_a_task_hears_that_it_is_gone_with_the_broker(daemon: Make) -> None:
    one = daemon({"tasking": tasking()}, list_wait_s=30)
    with trio.fail_after(LIMIT_S):
        async with one.shim(greet=False) as agent:
            anna = Stateless(agent, capabilities=KNOWS)
            task = await begin(anna, "a")
            listen = await anna.listen(taskIds=[task], toolsListChanged=True)
            assert (await listen.acknowledged())["taskIds"] == [task]
            os.kill((await one.status())["broker"]["pid"], signal.SIGKILL)
            assert (await agent.answer(listen.id))["result"]["resultType"] == "complete"
            gone = await anna.ask("tasks/get", {"taskId": task})
            assert gone["error"]["code"] == -32602
            again = await anna.listen(taskIds=[task], toolsListChanged=True)
            assert await again.acknowledged() == {"toolsListChanged": True}
            await settled(lambda: seen(anna), lambda it: it["cancelled"], "what is gone is cancelled")


def post(url: str, method: str, params: Json, bearer: str, name: str) -> Json:
    """One stateless request; its message, whatever the status. `name`: what `Mcp-Name` says."""
    meta = {f"{PREFIX}protocolVersion": MODERN, f"{PREFIX}clientCapabilities": KNOWS}
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": method,
        "Mcp-Name": name,
        "Authorization": f"Bearer {bearer}",
    }
    asked = urllib.request.Request(url, json.dumps(message).encode(), headers)
    try:
        with urllib.request.urlopen(asked, timeout=WAIT_S) as answer:
            found: Json = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            found = json.loads(error.read())
    return found


@behaviour("tasks:own-id")
def test_at_the_http_door_a_task_is_found_under_its_own_bearer_token_only(daemon: Make) -> None:
    bearers = {name: f"{name}-{'x' * 40}" for name in ("anna", "eve")}
    tokens = {name: hash_of(each) for name, each in bearers.items()}
    one = daemon({"tasking": tasking()}, http={"port": 0, "tokens": tokens})
    file = one.directory / "http.json"
    until(file.exists, "the door listens")
    url = json.loads(file.read_text())["url"]
    work = {"name": "tasking__work", "arguments": {"name": "a"}}
    begun = post(url, "tools/call", work, bearers["anna"], "tasking__work")["result"]
    task = begun["taskId"]
    assert begun["resultType"] == "task"

    def code(bearer: str, name: str) -> int:
        found: int = post(url, "tasks/get", {"taskId": task}, bearers[bearer], name)["error"]["code"]
        return found

    assert code("eve", task) == -32602
    assert code("anna", "another") == -32020
    got = post(url, "tasks/get", {"taskId": task}, bearers["anna"], task)["result"]
    assert (got["taskId"], got["status"]) == (task, "working")
