"""The audit of calls, from the agent to the server: one line and one id each, with real processes."""

import json
import os
import signal
from collections.abc import Iterator

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json, settled
from tests.kit.live import Daemon, Make, observer
from tests.kit.waits import until
from tests.live.conftest import shared_daemon

ON = {"audit": {"on": True}}


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    yield from shared_daemon({"obs": observer()}, **ON)


def lines(daemon: Daemon) -> list[Json]:
    path = daemon.logs / "audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def story(daemon: Daemon, name: str) -> list[Json]:
    """The lines about one tool, prompt or spelling."""

    def found() -> list[Json]:
        return [line for line in lines(daemon) if line.get("name") == name]

    await until(lambda: bool(found()), f"a line about {name}")
    return found()


@behaviour("audit:one-id", "audit:every-call", "audit:no-values")
async def test_one_call_has_the_same_id_at_its_server_in_the_audit_and_for_the_verb(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            await agent.text("obs__echo", {"text": "hunter2"})
            (line,) = await story(shared, "echo")
            seen = json.loads(await agent.text("obs__seen"))
        assert line["id"] in seen["ids"]
        assert (line["server"], line["outcome"], line["delivered"]) == ("obs", "ok", "yes")
        assert line["agent"]
        code, text, _ = await shared.carpool("audit", "--tool", "echo", "--json")
        assert (code, json.loads(text)) == (0, [line])
        code, text, _ = await shared.carpool("audit", "--server", "obs")
        assert code == 0
        assert line["id"] in text
        assert "hunter2" not in shared.log_text()


@behaviour("audit:refusals", "audit:one-id")
async def test_a_refused_call_and_one_of_the_command_line_are_there_with_the_ids_of_their_errors(
    shared: Daemon,
) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            refused = await agent.ask("tools/call", {"name": "obs__nobodys", "arguments": {}})
        code, _, _ = await shared.carpool("call", "obs__say", "--args", '{"text":"x"}')
        (first,) = await story(shared, "obs__nobodys")
        (second,) = await story(shared, "say")
        assert (first["outcome"], first["id"]) == ("unknown_tool", refused["error"]["data"]["call"])
        assert (code, second["via"], second["outcome"]) == (0, "cli", "ok")


@behaviour("audit:broker-death")
async def test_a_call_that_was_open_when_the_broker_died_has_its_line_from_the_next_one(daemon: Make) -> None:
    made = daemon({"obs": observer()}, **ON)
    with trio.fail_after(LIMIT_S):
        async with made.shim() as agent:
            first = await agent.text("obs__echo", {"text": "warm"})
            waits = await agent.request("tools/call", {"name": "obs__wait", "arguments": {"gate": "g"}})
            facts = await made.until(lambda all_: all_["totals"]["in_flight"] == 1, "the call is in flight")
            os.kill(facts["broker"]["pid"], signal.SIGKILL)
            await until(lambda: made.log("broker").count("broker serves") == 2, "the next broker serves")
            await agent.text("obs__open", {"gate": "g"})
            assert (await agent.answer(waits))["result"]
            (line,) = await story(made, "wait")
            seen = json.loads(await agent.text("obs__seen"))
        assert first == "warm"
        assert (line["outcome"], line["duration_s"]) == ("ok", None)
        assert line["id"] == seen["ids"][1], "it has kept its id"


async def test_the_audit_is_switched_on_and_off_while_carpool_runs(daemon: Make) -> None:
    made = daemon({"obs": observer()})
    with trio.fail_after(LIMIT_S):
        async with made.agent() as agent:
            await agent.text("obs__echo", {"text": "a"})
            made.configure({"obs": observer()}, **ON)
            await made.reload()
            await agent.text("obs__say", {"text": "b"})
            await story(made, "say")
            made.configure({"obs": observer()})
            await made.reload()
            await agent.text("obs__open", {"gate": "x"})
            seen = json.loads(await agent.text("obs__seen"))
        assert [line["name"] for line in lines(made) if "name" in line] == ["say"]
        assert [bool(each) for each in seen["ids"]] == [False, True, False, False]


@behaviour("audit:broken-disk")
async def test_calls_go_on_while_the_audit_cannot_be_written_and_status_says_so(daemon: Make) -> None:
    made = daemon({"obs": observer()}, up=False, **ON)
    for each in (made.directory, made.logs.parent, made.logs, made.logs / "audit.jsonl"):
        each.mkdir(mode=0o700)
    made.up()
    with trio.fail_after(LIMIT_S):
        async with made.agent() as agent:
            for _ in range(3):
                await agent.text("obs__echo", {"text": "x"})
        facts = await made.status()
        assert facts["audit"]["missed"] == 3
        assert "cannot be written" in facts["audit"]["problem"]
        _, page, _ = await made.carpool("status")
        assert "the audit misses 3 calls" in page
        (made.logs / "audit.jsonl").rmdir()
        async with made.agent() as agent:

            async def again() -> Json:
                await agent.text("obs__open", {"gate": "x"})
                return {"lines": lines(made)}

            found = await settled(again, lambda all_: all_["lines"], "the audit is written again")
        assert found["lines"][0]["missed"] >= 3


@behaviour("audit:story")
async def test_the_story_of_a_call_names_its_steps_its_instance_and_its_end(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            await agent.text("obs__environ", {"name": "NOTHING"})
            (line,) = await story(shared, "environ")
        (pid,) = await shared.pids("obs")
        code, text, _ = await shared.carpool("story", line["id"])
        assert code == 0
        steps = ("came from s", "went to the supervisor", f"(pid {pid})", "its server answered", "ended: ok")
        assert [text.find(step) for step in steps] == sorted(text.find(step) for step in steps)
        assert all(step in text for step in steps)
        found = json.loads((await shared.carpool("story", line["id"], "--json"))[1])
        assert found["audit"] == [line]
        assert found["broker"]
        assert found["supervisor"]
        assert (await shared.carpool("story", "c999999"))[0] == 1
        assert (await shared.carpool("story", "nonsense"))[0] == 2


@behaviour("operate:audited")
async def test_what_operators_do_is_in_the_audit_and_is_no_call(daemon: Make) -> None:
    one = daemon({"obs": observer()}, **ON)
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            await agent.text("obs__echo", {"text": "a"})
            for words in (("pause", "obs"), ("resume", "obs"), ("disable", "obs"), ("enable", "obs")):
                assert (await one.carpool(*words))[0] == 0
            assert (await one.carpool("cancel", "c999"))[0] == 1
        acts = [line for line in lines(one) if "act" in line]
        assert [(each["act"], each["targets"], each["outcome"]) for each in acts] == [
            ("pause", ["obs"], "done"),
            ("resume", ["obs"], "done"),
            ("disable", ["obs"], "done"),
            ("enable", ["obs"], "done"),
            ("cancel", ["c999"], "not_found"),
        ]
        assert {each["uid"] for each in acts} == {os.getuid()}
        assert all(each["pid"] and each["via"] for each in acts)
        code, text, _ = await one.carpool("audit", "--acts")
        assert code == 0
        assert all(word in text for word in ("(pause)", "(cancel)", f"uid {os.getuid()}", "c999"))
        assert "echo" not in text
        shown = json.loads((await one.carpool("audit", "--server", "obs", "--outcome", "done", "--json"))[1])
        assert [each["act"] for each in shown] == ["pause", "resume", "disable", "enable"]
        sums = json.loads((await one.carpool("audit", "--by", "tool", "--json"))[1])
        assert [(each["tool"], each["calls"]) for each in sums["groups"]] == [("echo", 1)]
