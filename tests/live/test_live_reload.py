"""The configuration changes under agents that stay; whose environment (rule 13)."""

import json
import sys
from collections.abc import Iterator

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S, Json, LineAgent, fault_of
from tests.kit.live import Daemon, Make, gone, observer, running
from tests.kit.waits import until
from tests.live.conftest import shared_daemon

CHANGED = "notifications/tools/list_changed"
BASE = {"good": observer(), "gate": observer()}


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    yield from shared_daemon(BASE)


@pytest.fixture(autouse=True)
def _base(shared: Daemon) -> Iterator[None]:
    yield
    shared.configure(BASE)
    assert shared.run("reload").returncode == 0
    trio.run(shared.until, _is_base, "only the base is left, and no replacement is on its way")


def _is_base(facts: Json) -> bool:
    servers: Json = facts["servers"]
    instances = [instance for server in servers.values() for instance in server["instances"]]
    alone = all(len(server["instances"]) <= 1 for server in servers.values())
    return servers.keys() == BASE.keys() and alone and all(each["state"] == "serving" for each in instances)


async def test_an_added_server_appears_by_itself_and_a_removed_one_leaves(shared: Daemon) -> None:
    """No verb is used: the file is watched."""
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            assert "late__echo" not in await agent.tools()
            since = len(agent.notices)
            shared.configure({**BASE, "late": observer()})
            await agent.notice(CHANGED, since)
            await agent.until_listed(lambda names: "late__echo" in names, "the new server is listed")
            pid = (await agent.seen("late"))["pid"]
            good = (await agent.seen("good"))["pid"]
            since = len(agent.notices)
            shared.configure(BASE)
            await agent.notice(CHANGED, since)
            await agent.until_listed(lambda names: "late__echo" not in names, "it is gone from the list")
            assert (await agent.ask("tools/call", {"name": "late__echo"}))["error"]["code"] == -32602
            await until(lambda: gone([pid]), "its process has ended", WAIT_S)
            assert (await agent.seen("good"))["pid"] == good


async def test_a_removed_server_finishes_the_calls_it_has(shared: Daemon) -> None:
    end = shared.base / "end"
    with trio.fail_after(LIMIT_S):
        shared.configure({**BASE, "late": observer()})
        assert (await shared.reload())["ok"]
        async with shared.agent() as agent:
            held = await agent.start("late__hold", {"until": str(end)})
            await agent.inside("late", 1)
            shared.configure(BASE)
            assert (await shared.reload())["ok"]
            assert held not in agent.answers
            end.touch()
            assert (await agent.answer(held))["result"]["content"][0]["text"] == "held"


async def test_a_changed_server_is_replaced_only_after_the_new_one_has_greeted(shared: Daemon) -> None:
    door = shared.base / "may-greet"
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            await agent.tools()
            old = (await agent.seen("gate"))["pid"]
            held = await agent.start("gate__wait", {"gate": "old"})
            shared.configure({**BASE, "gate": observer("--greet-when", str(door), "--tool", "fresh")})
            assert (await shared.reload())["ok"]
            both = {"serving", "greeting"}
            await shared.until(
                lambda facts: {each["state"] for each in facts["servers"]["gate"]["instances"]} == both,
                "both run",
            )
            assert (await agent.seen("gate"))["pid"] == old
            assert "gate__fresh" not in await agent.tools()
            since = len(agent.notices)
            door.touch()
            await agent.notice(CHANGED, since)
            await agent.until_listed(lambda names: "gate__fresh" in names, "the new one is listed")
            new = (await agent.seen("gate"))["pid"]
            assert new != old
            assert not gone([old]), "the old one still has a call"
            assert held not in agent.answers
            await agent.cancel(held)
            await until(lambda: gone([old]), "the old one is drained", WAIT_S)
            assert (await agent.seen("gate"))["pid"] == new
        door.unlink()


async def test_a_changed_server_that_cannot_start_leaves_the_old_one_serving(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            old = (await agent.seen("gate"))["pid"]
            shared.configure({**BASE, "gate": {"command": "/no/such/program"}})
            assert (await shared.reload())["ok"]
            facts = await shared.until(
                lambda facts: facts["servers"]["gate"]["last_error"], "the failure is shown"
            )
            assert "program" in facts["servers"]["gate"]["last_error"] or "No such" in json.dumps(
                facts["servers"]["gate"]
            )
            assert (await agent.seen("gate"))["pid"] == old


async def test_a_setting_that_is_no_launch_changes_without_a_new_process(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            before = (await agent.seen("gate"))["pid"]
            changed: Json = {**BASE, "gate": observer(tool_timeouts_s={"wait": 0.2})}
            shared.configure(changed)
            assert (await shared.reload())["ok"]
            fault = fault_of(await agent.call("gate__wait", {"gate": "x", "obeys": True}))
            assert fault["code"] == "timed_out"
            assert (await agent.seen("gate"))["pid"] == before


async def test_a_broken_file_leaves_the_last_good_one_in_force_and_status_says_so(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            before = (await agent.seen("good"))["pid"]
            shared.config.write_text('{"mcpServers": {"good": {"comand": "x"}}}')
            facts = await shared.until(lambda facts: facts["config"]["problem"], "the broken file is noticed")
            assert facts["reason"] == "config_broken"
            assert "comand" in facts["config"]["problem"]
            assert (await agent.seen("good"))["pid"] == before
            code, _, said = await shared.carpool("reload")
            assert (code, "comand" in said) == (2, True)
            shared.configure(BASE)
            await shared.until(lambda facts: not facts["config"]["problem"], "the good file is read")
            assert (await agent.seen("good"))["pid"] == before


@behaviour("config:told-once")
async def test_a_change_of_the_file_is_told_once_and_only_where_it_changes_a_list(shared: Daemon) -> None:
    def told(agent: LineAgent) -> int:
        return sum(each["method"] == CHANGED for each in agent.notices)

    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            names = await agent.tools()
            old = (await agent.seen("good"))["pid"]
            text = shared.config.read_text()
            for said in (text, f"// a comment\n{text}", "{", text):
                shared.config.write_text(said)
                await shared.reload()
            shared.configure({**BASE, "good": observer(timeout_s=33, env={"X": "1"})})
            await agent.until_seen("good", lambda seen: seen["pid"] != old, "another process serves")
            assert (await agent.tools(), told(agent)) == (names, 0)
            shared.configure({**BASE, "good": observer("--tool", "more", timeout_s=33)})
            await agent.until_listed(lambda names: "good__more" in names, "it is listed")
            renamed = {"gate": BASE["gate"], "fine": observer("--tool", "more", timeout_s=33)}
            shared.configure(renamed)
            await agent.until_listed(lambda names: "fine__more" in names, "it is listed by its new name")
            assert (await agent.seen("fine"))["inside"] == 0
            shared.configure({"gate": BASE["gate"]})
            await agent.until_listed(lambda names: "fine__more" not in names, "it is listed no more")
            assert told(agent) == 3


SECRET_A, SECRET_B = "s3cr3t-of-anna-4711", "s3cr3t-of-bert-0815"


async def test_a_variable_comes_from_each_agents_own_environment_and_shows_nowhere(daemon: Make) -> None:
    env = {"TOKEN": "${CARPOOL_LIVE_TOKEN}"}
    one = daemon({"mine": observer(env=env, pool={"idle_s": 15}), "good": observer()})
    told: dict[str, list[int]] = {SECRET_A: [], SECRET_B: []}
    looked = 0
    every, all_looked = trio.Event(), trio.Event()

    async def talk(secret: str) -> None:
        nonlocal looked
        async with one.shim(
            environ={"CARPOOL_LIVE_TOKEN": secret, "CARPOOL_LIVE_OTHER": "not asked for"}
        ) as agent:
            assert await agent.text("mine__environ", {"name": "TOKEN"}) == secret
            assert await agent.text("mine__environ", {"name": "CARPOOL_LIVE_OTHER"}) == ""
            told[secret].append((await agent.seen("mine"))["pid"])
            if sum(map(len, told.values())) == 4:
                every.set()
            await every.wait()
            facts = await one.status()
            assert len(facts["servers"]["mine"]["instances"]) == 2
            assert len(facts["servers"]["good"]["instances"]) <= 1
            looked += 1
            if looked == 4:
                all_looked.set()
            # The pool of an agent that leaves may end before the others look.
            await all_looked.wait()

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            for secret in (SECRET_A, SECRET_A, SECRET_B, SECRET_B):
                nursery.start_soon(talk, secret)
        assert len(set(told[SECRET_A])) == len(set(told[SECRET_B])) == 1
        assert told[SECRET_A][0] != told[SECRET_B][0]
        shown = [one.log_text(), json.dumps(await one.status()), *running(str(one.directory)).values()]
        for verb in ("status", "ps", "check", "logs", "tools"):
            _, out, err = await one.carpool(verb, "--json")
            shown += [out, err]
        # The pools of agents that have gone end by themselves once they are idle.
        await one.until(
            lambda facts: not facts["servers"]["mine"]["instances"], "nobody is left who wants it"
        )
        shown.append(one.log_text())
        assert not [text for text in shown if SECRET_A in text or SECRET_B in text]


async def test_a_missing_variable_leaves_one_server_unset_and_says_where(daemon: Make) -> None:
    one = daemon({"mine": observer(env={"TOKEN": "${CARPOOL_LIVE_TOKEN}"}), "good": observer()})
    with trio.fail_after(LIMIT_S):
        async with one.shim(greet=False) as agent:
            assert "mine (unset" in (await agent.greet())["instructions"]
            assert await agent.text("good__echo", {"text": "fine"}) == "fine"
            answer = await agent.ask("tools/call", {"name": "mine__echo"})
            said = json.dumps(answer)
            assert "[mine] The server lacks a variable" in said
            assert "misconfigured" not in said
            assert "CARPOOL_LIVE_TOKEN" in said
            facts = await one.status()
            assert (facts["servers"]["mine"]["state"], facts["reason"]) == ("unset", "ok")
            assert "CARPOOL_LIVE_TOKEN" in facts["servers"]["mine"]["last_error"]


async def test_a_servers_last_words_are_shown_without_values_of_its_environment(daemon: Make) -> None:
    code = "import os, sys; print('cannot log in with', os.environ['TOKEN'], file=sys.stderr); sys.exit(4)"
    leaky = {"command": sys.executable, "args": ["-c", code], "env": {"TOKEN": "${CARPOOL_LIVE_TOKEN}"}}
    one = daemon({"leaky": {**leaky, "restart": {"give_up_after": 1}}})
    with trio.fail_after(LIMIT_S):
        async with one.shim(environ={"CARPOOL_LIVE_TOKEN": SECRET_A}) as agent:
            result = await agent.call("leaky__anything")
            assert fault_of(result)["code"] == "breaker_open"
            facts = await one.status()
            assert "cannot log in with" in json.dumps(facts["servers"]["leaky"])
            assert SECRET_A not in json.dumps(facts)
            assert not [line for line in agent.lines if SECRET_A.encode() in line]


async def test_the_daemon_does_not_take_over_the_environment_of_whoever_starts_it(daemon: Make) -> None:
    one = daemon({"good": observer()}, up=False)
    one.environ["CARPOOL_LIVE_STRAY"] = "stray"
    one.up()
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            assert await agent.text("good__environ", {"name": "CARPOOL_LIVE_STRAY"}) == ""
            assert await agent.text("good__environ", {"name": "HOME"}) == str(one.base)
            assert (await agent.seen("good"))["cwd"] == str(one.base)
