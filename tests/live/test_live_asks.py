"""What servers ask of agents through the whole of carpool: each ask reaches its own agent, and no other."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

import pytest
import trio

from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json, LineAgent
from tests.kit.live import Daemon, Make, kit
from tests.kit.sdks import AGENTS, ASKABLE, call, entry, require_peers, tour
from tests.live.conftest import shared_daemon

VERSION: Final = "2025-11-25"
CROWD: Final = 20
CANCELLED: Final = "notifications/cancelled"


@pytest.fixture(autouse=True)
def _peers() -> None:
    require_peers()


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    """One server, so that carpool names it in no question, and one process that serves all calls."""
    yield from shared_daemon({"asking": entry("sdk2", sharing="concurrent", pool={"max": 1})})


def subject(ask: Json) -> str:
    """Whose text it was that the server asks with."""
    params = ask["params"]
    if ask["method"] == "elicitation/create":
        return str(params["message"])
    return str(params["messages"][0]["content"]["text"])


def said_by(name: str, ask: Json) -> Json:
    """What the agent `name` says to an ask: it names itself and what it was asked."""
    if ask["method"] == "elicitation/create":
        fields = ask["params"]["requestedSchema"]["required"]
        content = {field: f"{name}: form on {subject(ask)}" for field in fields}
        return {"result": {"action": "accept", "content": content}}
    text = {"type": "text", "text": f"{name}: model on {subject(ask)}"}
    return {"result": {"role": "assistant", "content": text, "model": name}}


@asynccontextmanager
async def crowd(daemon: Daemon, count: int = CROWD) -> AsyncIterator[dict[str, LineAgent]]:
    """So many agents by name, each ready to answer what it is asked."""
    async with AsyncExitStack() as stack:
        agents = {}
        for at in range(count):
            name = f"agent-{at}"
            agents[name] = await stack.enter_async_context(daemon.agent(greet=False))
            agents[name].says = partial(said_by, name)
        async with trio.open_nursery() as nursery:
            for agent in agents.values():
                nursery.start_soon(agent.greet, VERSION, ASKABLE)
        yield agents


def both_said(name: str, result: Json) -> None:
    """The answer of `both` holds what this agent said, and nothing of another."""
    assert not result.get("isError"), result
    said = json.loads(result["content"][0]["text"])
    assert said == [name, f"{name}: model on {name}", f"{name}: form on {name}"]


def nothing_of_others(agents: dict[str, LineAgent]) -> None:
    """Every ask names the agent that it came to."""
    for name, agent in agents.items():
        assert {subject(ask) for ask in agent.asks} <= {name}, name


async def processes(daemon: Daemon, server: str) -> list[Json]:
    found: list[Json] = (await daemon.status())["servers"][server]["instances"]
    return found


@behaviour("asks:never-left-waiting")
async def test_a_question_that_nobody_answers_ends_in_time_also_where_nothing_else_happens(
    daemon: Make,
) -> None:
    one = daemon({"asking": entry("sdk2", ask_timeout_s=1)})
    with trio.fail_after(LIMIT_S):
        async with crowd(one, 1) as agents:
            [(name, agent)] = agents.items()
            agent.says = None
            started = await agent.start("both", {"text": name, "room": "r", "party": 1})
            ended = await agent.answer(started)
            assert "error" in ended or ended["result"]["isError"]


# --- one process for all -------------------------------------------------------------------------------


@behaviour("asks:own-agent", "asks:attribution:traceparent", "calls:isolation")
async def test_twenty_agents_at_once_are_asked_by_one_process_each_its_own_question(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with crowd(shared) as agents:
            before = sum(each["calls"] for each in await processes(shared, "asking"))
            started = {}
            for name, agent in agents.items():
                arguments = {"text": name, "room": "r", "party": CROWD}
                # One id and one token for all: what is equal must not mix.
                started[name] = await agent.start("both", arguments, id_=1, token=1)
            for name, agent in agents.items():
                both_said(name, (await agent.answer(started[name]))["result"])
                assert [ask["method"] for ask in agent.asks] == [
                    "sampling/createMessage",
                    "elicitation/create",
                ]
            nothing_of_others(agents)
            [process] = await processes(shared, "asking")
            assert process["calls"] - before == CROWD, "one process has served them all"


@behaviour("asks:in-flight:after-cancel", "calls:isolation")
async def test_a_third_that_cancels_in_the_middle_disturbs_no_other_agent(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with crowd(shared) as agents:
            for agent in agents.values():
                agent.says = None
            started = {
                name: await agent.start("both", {"text": name, "room": "r", "party": CROWD}, id_=1)
                for name, agent in agents.items()
            }
            for agent in agents.values():
                await agent.until(lambda agent=agent: agent.asks, "it is asked")
            leaving = {name: agent for at, (name, agent) in enumerate(agents.items()) if at % 3 == 0}
            for name, agent in leaving.items():
                await agent.cancel(started[name])
            for name, agent in leaving.items():
                # The server gives up what it has asked for that call.
                withdrawn = await agent.notice(CANCELLED)
                assert withdrawn["params"]["requestId"] == agent.asks[0]["id"], name
            for name, agent in agents.items():
                if name not in leaving:
                    agent.says = partial(said_by, name)
                    await agent.say(agent.asks[0], said_by(name, agent.asks[0]))
            for name, agent in agents.items():
                if name not in leaving:
                    both_said(name, (await agent.answer(started[name]))["result"])
            nothing_of_others(agents)
            for name, agent in leaving.items():
                assert started[name] not in agent.answers, "a cancelled call has no answer"
                # Saying it late changes nothing, and the next call is as the first.
                await agent.say(agent.asks[0], said_by(name, agent.asks[0]))
                agent.says = partial(said_by, name)
                both_said(name, await agent.call("both", {"text": name}))


async def test_a_few_agents_on_real_sdks_are_asked_by_one_process_each_its_own_question(
    shared: Daemon,
) -> None:
    kinds = [*AGENTS, *AGENTS]
    reports: dict[str, Json] = {}

    async def go(at: int, kind: str) -> None:
        name = f"{kind}-{at}"
        # None goes on before all are inside.
        steps = [call("both", text=name, room="r", party=len(kinds))]
        reports[name] = await tour(
            kind, name, shared.command("connect"), steps, environ=shared.environ, directory=shared.base
        )

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            for at, kind in enumerate(kinds):
                nursery.start_soon(go, at, kind)
        for name, report in reports.items():
            [step] = report["steps"]
            said = json.loads(step["answer"]["content"][0]["text"])
            assert said == [name, f"{name} on {name}", f"{name} on {name}"]
            assert len(step["asks"]) == 2


# --- one question at a time ----------------------------------------------------------------------------


async def ask_back(server: str, name: str, agent: LineAgent) -> None:
    """Have the agent asked by sampling and by elicitation, and check what the server was told."""
    if server != "everything":
        both_said(name, await agent.call("both", {"text": name}))
        return
    sampled = await agent.call("trigger-sampling-request", {"prompt": name})
    assert not sampled.get("isError"), sampled
    assert f"{name}: model on Resource trigger-sampling-request context: {name}" in json.dumps(sampled)
    elicited = await agent.call("trigger-elicitation-request")
    assert not elicited.get("isError"), elicited
    assert f"{name}: form on " in json.dumps(elicited)


def asked_of_own(server: str, agents: dict[str, LineAgent]) -> None:
    """Every ask came to the agent whose call it belongs to."""
    if server != "everything":
        nothing_of_others(agents)
        return
    for name, agent in agents.items():
        prompts = [subject(ask) for ask in agent.asks if ask["method"] == "sampling/createMessage"]
        assert {text.rpartition(" ")[2] for text in prompts} <= {name}


@behaviour("asks:own-agent", "modes:serial", "calls:isolation")
@pytest.mark.parametrize("server", ["sdk1", "everything"])
async def test_twenty_agents_at_once_are_asked_one_after_another_on_serial_processes(
    daemon: Make, server: str
) -> None:
    one = daemon({server: entry(server, sharing="serial", wait_s=60, pool={"max": 3})})
    with trio.fail_after(2 * LIMIT_S):
        async with crowd(one) as agents:
            async with trio.open_nursery() as nursery:
                for name, agent in agents.items():
                    nursery.start_soon(ask_back, server, name, agent)
            asked_of_own(server, agents)
            assert all(len(agent.asks) == 2 for agent in agents.values())
            assert len(await processes(one, server)) <= 3


@pytest.mark.parametrize("server", ["sdk1", "everything"])
async def test_a_third_that_cancels_on_serial_processes_leaves_the_others_their_answers(
    daemon: Make, server: str
) -> None:
    one = daemon({server: entry(server, sharing="serial", wait_s=60, pool={"max": 3})})
    with trio.fail_after(2 * LIMIT_S):
        async with crowd(one, 12) as agents:

            async def leave(agent: LineAgent, name: str) -> None:
                agent.says = None
                everything = ("trigger-sampling-request", {"prompt": name})
                id_ = await agent.start(*(everything if server == "everything" else ("both", {"text": name})))
                await agent.until(lambda: agent.asks, "it is asked")
                await agent.cancel(id_)
                withdrawn = await agent.notice(CANCELLED)
                assert withdrawn["params"]["requestId"] == agent.asks[0]["id"]
                agent.says = partial(said_by, name)
                # On a process that may still run the cancelled call nobody else is asked.
                await ask_back(server, name, agent)
                assert id_ not in agent.answers

            async with trio.open_nursery() as nursery:
                for at, (name, agent) in enumerate(agents.items()):
                    if at % 3 == 0:
                        nursery.start_soon(leave, agent, name)
                    else:
                        nursery.start_soon(ask_back, server, name, agent)
            asked_of_own(server, agents)


@behaviour("asks:evidence", "asks:attribution:refused")
async def test_auto_refuses_the_first_ambiguous_question_and_is_serial_from_then_on(daemon: Make) -> None:
    one = daemon({"sdk1": entry("sdk1", sharing="auto", wait_s=60)})
    with trio.fail_after(2 * LIMIT_S):
        async with crowd(one, 6) as agents:
            asking, other = agents["agent-0"], agents["agent-1"]
            end = one.base / "end"
            id_ = await other.start("sleep", {"seconds": 0, "until": str(end)})
            await one.until(
                lambda facts: any(each["in_flight"] for each in facts["servers"]["sdk1"]["instances"]),
                "the other's call is open",
            )
            # The server may mean either.
            refused = await asking.call("sample", {"text": "agent-0"})
            assert refused.get("isError"), refused
            assert not asking.asks, "nobody was asked"
            assert not other.asks, "nobody was asked"
            assert id_ not in other.answers, "both were open"
            end.touch()
            facts = await one.until(
                lambda facts: facts["servers"]["sdk1"]["sharing"] == "serial", "the server is serial"
            )
            assert facts["servers"]["sdk1"]["verified"]
            async with trio.open_nursery() as nursery:
                for name, agent in agents.items():
                    nursery.start_soon(ask_back, "sdk1", name, agent)
            nothing_of_others(agents)
            assert (await other.answer(id_))["result"]["content"][0]["text"] == "slept"
        code, said, _ = await one.carpool("why", "sdk1")
        assert code == 0
        assert "serial" in said


async def test_auto_takes_a_server_of_the_list_for_serial_before_it_has_ever_asked(daemon: Make) -> None:
    one = daemon({"everything": entry("everything", sharing="auto", wait_s=60)})
    with trio.fail_after(2 * LIMIT_S):
        async with crowd(one, 4) as agents:
            async with trio.open_nursery() as nursery:
                for name, agent in agents.items():
                    nursery.start_soon(ask_back, "everything", name, agent)
            asked_of_own("everything", agents)
        assert (await one.status())["servers"]["everything"]["sharing"] == "serial"


# --- who cannot be asked -------------------------------------------------------------------------------


@behaviour("asks:capability:lacking")
async def test_an_agent_that_declares_nothing_is_never_asked_and_its_call_ends_in_an_error(
    shared: Daemon,
) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as plain, crowd(shared, 1) as agents:
            for tool in ("sample", "form"):
                # An SDK 2 server passes an error of the agent on as the error of the call.
                answer = await plain.answer(await plain.start(tool, {"text": "plain"}))
                assert "error" in answer or answer["result"]["isError"], answer
            assert not plain.asks
            both_said("agent-0", await agents["agent-0"].call("both", {"text": "agent-0"}))
            assert not plain.asks


@behaviour("asks:agent-gone")
async def test_a_server_whose_agent_is_gone_is_told_and_serves_on(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with crowd(shared, 1) as agents:
            async with shared.agent(greet=False) as leaving:
                await leaving.greet(VERSION, ASKABLE)
                await leaving.start("sample", {"text": "leaving"})
                await leaving.until(lambda: leaving.asks, "it is asked")
            await shared.until(
                lambda facts: not any(it["asks"] for it in facts["servers"]["asking"]["instances"]),
                "no ask is open",
            )
            both_said("agent-0", await agents["agent-0"].call("both", {"text": "agent-0"}))


@behaviour("asks:answer-of-whom")
async def test_what_an_agent_says_to_an_ask_that_is_not_its_own_changes_nothing(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with crowd(shared, 2) as agents:
            asked, liar = agents["agent-0"], agents["agent-1"]
            asked.says = None
            id_ = await asked.start("sample", {"text": "agent-0"})
            await asked.until(lambda: asked.asks, "it is asked")
            await liar.say(asked.asks[0], said_by("liar", asked.asks[0]))
            # What came before it in the liar's stream has been read when this is answered.
            assert await liar.text("echo", {"text": "x"}) == "x"
            assert id_ not in asked.answers
            await asked.say(asked.asks[0], said_by("agent-0", asked.asks[0]))
            result = (await asked.answer(id_))["result"]
            assert "agent-0: model on agent-0" in result["content"][0]["text"]


# --- tasks and roots -----------------------------------------------------------------------------------


@behaviour("tasks:driven", "tasks:hidden")
async def test_a_tool_that_needs_a_task_works_for_an_agent_that_knows_none(daemon: Make) -> None:
    one = daemon({"everything": entry("everything")})
    with trio.fail_after(LIMIT_S):
        async with crowd(one, 1) as agents:
            [agent] = agents.values()
            listed = (await agent.result("tools/list"))["tools"]
            [tool] = [each for each in listed if each["name"] == "simulate-research-query"]
            assert "execution" not in tool
            id_ = await agent.start("simulate-research-query", {"topic": "cars", "ambiguous": True}, token=7)
            result = (await agent.answer(id_))["result"]
            assert not result.get("isError"), result
            assert "# Research Report: cars (agent-0: form on " in result["content"][0]["text"]
            assert "related-task" not in json.dumps([result, agent.asks])
            told = [each for each in agent.notices if each["method"] == "notifications/progress"]
            assert {each["params"]["progressToken"] for each in told} == {7}


@behaviour("tasks:cancelled")
async def test_a_cancel_ends_a_task_at_the_server(daemon: Make) -> None:
    one = daemon({"everything": entry("everything")})
    with trio.fail_after(LIMIT_S):
        async with crowd(one, 1) as agents:
            [agent] = agents.values()
            agent.says = None
            # It asks only inside its task: it is under way then.
            id_ = await agent.start("simulate-research-query", {"topic": "cars", "ambiguous": True})
            await agent.until(lambda: agent.asks, "it is asked")
            await agent.cancel(id_)
            await one.until(
                lambda facts: not any(it["in_flight"] for it in facts["servers"]["everything"]["instances"]),
                "the call is over",
            )
            assert "Echo: still" in await agent.text("echo", {"message": "still"})
            assert id_ not in agent.answers


@behaviour("roots:of-the-agent")
async def test_a_server_that_wants_roots_gets_the_workspace_of_its_agents(daemon: Make) -> None:
    servers = {"told": entry("sdk2", roots="workspace"), "not-told": {**entry("sdk2"), "tools_prefix": "no"}}
    one = daemon(servers)
    workspace = one.base / "workspace"
    (workspace / ".git").mkdir(parents=True)
    with trio.fail_after(LIMIT_S):
        attach = Attach(version=ATTACH_VERSION, carrier="client", cwd=str(workspace))
        async with one.agent(attach=attach) as agent:
            await agent.until_listed(lambda names: {"roots", "no__roots"} <= set(names), "both are listed")
            assert json.loads(await agent.text("roots")) == [{"uri": workspace.as_uri(), "name": "workspace"}]
            answer = await agent.answer(await agent.start("no__roots"))
            assert answer.get("error", {}).get("code") == -32601 or answer["result"]["isError"], answer


async def test_a_question_of_a_server_that_is_not_on_an_sdk_reaches_the_agent_too(daemon: Make) -> None:
    one = daemon({"asks": kit("asks_back")})
    with trio.fail_after(LIMIT_S):
        async with crowd(one, 1) as agents:
            [agent] = agents.values()
            got = json.loads(await agent.text("asks__ask", {"text": "agent-0"}))
            assert got["result"]["content"]["text"] == "agent-0: model on agent-0"
