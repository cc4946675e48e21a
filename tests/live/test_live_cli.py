"""The command line on a live daemon: what programs may rely on."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json
from tests.kit.live import Daemon, Make, kit, observer
from tests.live.conftest import shared_daemon


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    servers = {
        "good": observer(),
        "other": observer(),
        "stillborn": kit("dies_at_start", restart={"give_up_after": 1}),
        "off": observer(disabled=True),
    }
    yield from shared_daemon(servers)


async def told(daemon: Daemon, *arguments: str, code: int = 0) -> Any:
    """What a verb prints as JSON."""
    status, out, err = await daemon.carpool(*arguments, "--json")
    assert status == code, (arguments, status, out, err)
    return json.loads(out)


NUMBER = (int, float)
STATUS: Json = {
    "healthy": bool,
    "reason": str,
    "broker": {"pid": int, "uptime_s": NUMBER, "version": str, "restarts": int},
    "supervisors": [{"id": str, "pid": int}],
    "sessions": [{"id": str, "agent": str, "pid": int, "era": str, "profile": str, "in_flight": int}],
    "totals": {
        "instances": int,
        "sessions": int,
        "in_flight": int,
        "calls": int,
        "private_processes_avoided": int,
        "memory_saved_bytes": int,
    },
}
SERVER: Json = {
    "state": str,
    "sharing": str,
    "waiting": int,
    "restarts": int,
    "tools": int,
    "last_error": str,
    "instances": [
        {
            "id": (int, str),
            "pid": int,
            "state": str,
            "generation": int,
            "era": str,
            "in_flight": int,
            "calls": int,
            "rss_bytes": int,
            "pss_bytes": int,
            "cpu_percent": NUMBER,
        }
    ],
}


def fits(found: Any, shape: Any, where: str = "") -> None:
    """Every key of the contract is there with its type; more keys may be."""
    if isinstance(shape, dict):
        assert isinstance(found, dict), where
        for key, inner in shape.items():
            assert key in found, f"{where}.{key} is missing"
            fits(found[key], inner, f"{where}.{key}")
    elif isinstance(shape, list):
        assert isinstance(found, list), where
        for at, each in enumerate(found):
            fits(each, shape[0], f"{where}[{at}]")
    else:
        assert isinstance(found, shape), f"{where} is {found!r}"
        assert isinstance(found, bool) == (shape is bool), f"{where} is {found!r}"


async def test_status_json_keeps_its_contract(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent, shared.shim() as second:
            for one in (agent, second):
                await one.text("good__echo", {"text": "x"})
                await one.text("other__echo", {"text": "x"})
            await agent.call("stillborn__x")
            held = await agent.start("good__wait", {"gate": "status"})
            await agent.inside("good", 1)
            facts = await told(shared, "status")
            fits(facts, STATUS, "status")
            assert set(facts["servers"]) == {"good", "other", "stillborn", "off"}
            for name, server in facts["servers"].items():
                fits(server, SERVER, name)
            [instance] = facts["servers"]["good"]["instances"]
            assert instance["in_flight"] == 1
            assert instance["calls"] >= 3
            assert instance["pid"] == (await agent.seen("good"))["pid"]
            assert instance["pss_bytes"] > 1_000_000
            assert instance["rss_bytes"] >= instance["pss_bytes"]
            assert facts["servers"]["good"]["tools"] == 8
            assert facts["servers"]["good"]["state"] == "serving"
            assert facts["servers"]["stillborn"]["state"] == "breaker_open"
            assert facts["servers"]["off"]["state"] == "disabled"
            assert len(facts["sessions"]) == facts["totals"]["sessions"] == 2
            assert {each["pid"] for each in facts["sessions"]} == {agent.pid, second.pid}
            assert {each["agent"] for each in facts["sessions"]} == {"live"}
            assert facts["totals"]["instances"] == 2
            assert facts["totals"]["in_flight"] == 1
            assert facts["totals"]["private_processes_avoided"] == 2
            assert facts["broker"]["pid"] in shared.running()
            await agent.call("good__open", {"gate": "status"})
            await agent.answer(held)


async def test_status_and_ps_are_shown_to_people_too(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            pid = (await agent.seen("good"))["pid"]
            code, said, _ = await shared.carpool("status")
            assert code == 0
            assert "good" in said
            assert "serving" in said
            code, said, _ = await shared.carpool("ps")
            assert code == 0
            assert str(pid) in said
            rows = (await told(shared, "ps"))["processes"]
            assert [row["pid"] for row in rows if row["server"] == "good"] == [pid]


async def test_tools_json_lists_and_explains(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        tools = await told(shared, "tools")
        for tool in tools:
            fits(
                tool, {"name": str, "server": str, "tool": str, "description": str, "aliases": [str]}, "tool"
            )
        assert {"good__echo", "other__echo"} <= {tool["name"] for tool in tools}
        [found] = await told(shared, "tools", "mcp:good.echo")
        assert (found["name"], found["server"], found["tool"]) == ("good__echo", "good", "echo")
        assert "mcp__good__echo" in found["aliases"]
        code, _, said = await shared.carpool("tools", "good__ecko")
        assert (code, "good__echo" in said) == (1, True)


async def test_call_json_prints_the_result_and_its_exit_code_tells_an_error(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        result = await told(shared, "call", "good__echo", "--args", '{"text": "ä\\n\\ud83d\\ude00"}')
        assert result["content"] == [{"type": "text", "text": "ä\n😀"}]
        result = await told(shared, "call", "stillborn__x", code=1)
        assert result["isError"]
        assert result["_meta"]["carpool/error"]["code"] == "breaker_open"
        result = await told(shared, "call", "no_such_tool", code=1)
        assert result["error"]["code"] == -32602
        code, said, _ = await shared.carpool("call", "good__echo", "--args", '{"text": "plain"}')
        assert (code, said) == (0, "plain\n")
        assert (await shared.carpool("call", "good__echo", "--args", "[1]"))[0] == 2
        code, said, _ = await shared.carpool(
            "call", "good__echo", "--args", "-", stdin=b'{"text":\n"from stdin"}'
        )
        assert (code, said) == (0, "from stdin\n")


async def test_logs_show_a_servers_stderr_and_the_daemons_own(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        await told(shared, "call", "good__say", "--args", '{"text": "words on stderr"}')
        code, said, _ = await shared.carpool("logs", "good")
        assert (code, "words on stderr" in said) == (0, True)
        lines = await told(shared, "logs", "good")
        assert [
            (each["server"], each["stream"]) for each in lines if each["message"] == "words on stderr"
        ] == [("good", "stderr")]
        code, said, _ = await shared.carpool("logs", "--daemon")
        assert code == 0
        assert "broker serves" in said
        assert "supervisor" in said
        code, _, said = await shared.carpool("logs", "godo")
        assert (code, "good" in said) == (1, True)


async def test_stop_start_and_restart_say_what_came_of_it(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        assert await told(shared, "start", "good", "other") == [
            {"server": "good", "ok": True, "text": "serving"},
            {"server": "other", "ok": True, "text": "serving"},
        ]
        [before] = await shared.pids("other")
        [done] = await told(shared, "restart", "other")
        assert done["ok"]
        assert await shared.pids("other") != [before]
        [done] = await told(shared, "stop", "other")
        assert done["ok"]
        assert not (await shared.status())["servers"]["other"]["instances"]
        [done] = await told(shared, "start", "other")
        assert done["ok"]
        [done] = await told(shared, "start", "stillborn", code=1)
        assert not done["ok"]
        assert "exit code 3" in done["text"]
        [done] = await told(shared, "start", "off", code=1)
        assert "disabled" in done["text"]
        [done] = await told(shared, "stop", "nobody", code=1)
        assert "there is no server 'nobody'" in done["text"]
        assert (await shared.carpool("start"))[0] == 2


async def test_check_shows_settings_and_starts_servers_on_demand(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        facts = await told(shared, "check")
        assert facts["ok"] is True
        assert facts["file"] == str(shared.config)
        facts = await told(shared, "check", "--start", code=1)
        assert {each["server"]: each["ok"] for each in facts["started"]}["good"] is True
        assert {each["server"]: each["ok"] for each in facts["started"]}["stillborn"] is False
        assert {each["server"]: each["problem"] for each in facts["started"]}["good"] == ""
        assert {each["server"]: each["problem"] for each in facts["started"]}["stillborn"] == "server-failing"
        _, out, said = await shared.carpool("check", "--start")
        rows = [line.split() for line in out[out.index("SERVER ") :].splitlines()]
        assert ["good", "yes"] in rows
        assert ["stillborn", "no", "server-failing"] in rows
        assert "See `carpool logs stillborn`, then run `carpool start stillborn`." in said
        broken = shared.base / "broken.json"
        broken.write_text('{"mcpServers": {"x": {"command": "true", "timeout_z": 3}}}')
        facts = await told(shared, "check", "--config", str(broken), code=2)
        assert facts["ok"] is False
        assert "timeout_s" in facts["problems"][0]["text"]


async def test_every_verb_says_69_where_nothing_runs_and_status_keeps_its_keys(daemon: Make) -> None:
    one = daemon({"good": observer()}, up=False)
    with trio.fail_after(LIMIT_S):
        for verb in (
            ["status"],
            ["ps"],
            ["start", "good"],
            ["stop", "good"],
            ["restart", "good"],
            ["reload"],
        ):
            assert (await one.carpool(*verb))[0] == 69, verb
        facts = await told(one, "status", code=69)
        assert set(STATUS) <= set(facts)
        assert facts["healthy"] is False
        assert (await one.carpool("down"))[0] == 0
        assert not one.running()
        # `call` and `tools` start what they need.
        assert (await told(one, "call", "good__echo", "--args", '{"text": "up"}'))["content"][0][
            "text"
        ] == "up"


async def test_restart_all_brings_a_new_daemon_with_the_same_configuration(daemon: Make) -> None:
    one = daemon({"good": observer()})
    del one.environ["CARPOOL_CONFIG"]
    with trio.fail_after(LIMIT_S):
        before = (await one.status())["broker"]["pid"]
        await told(one, "restart", "--all")
        facts = await one.status()
        assert facts["broker"]["pid"] != before
        assert set(facts["servers"]) == {"good"}
        assert oct(os.stat(one.directory).st_mode & 0o777) == "0o700"


async def test_an_operator_may_ask_many_things_on_one_connection_also_at_once(shared: Daemon) -> None:
    attach = Attach(version=ATTACH_VERSION, carrier="cli", control=True)
    with trio.fail_after(LIMIT_S):
        async with shared.agent(greet=False, attach=attach) as operator:
            for _ in range(2):
                asked = [await operator.request("carpool/status", {}) for _ in range(2)]
                for each in asked:
                    assert "servers" in (await operator.answer(each))["result"]


@behaviour("config:in-force")
async def test_every_verb_works_on_the_file_that_the_running_carpool_was_given(daemon: Make) -> None:
    one = daemon({"echo": kit("echo")}, up=False)
    one.config = one.base / "elsewhere.json"
    one.configure({"echo": kit("echo"), "other": kit("echo")})
    one.environ.pop("CARPOOL_CONFIG")
    await trio.to_thread.run_sync(one.up)
    code, out, err = await one.carpool("check", "--json")
    assert (code, json.loads(out)["file"]) == (0, str(one.config)), err
    code, _, err = await one.carpool("disable", "other", "--save")
    assert code == 0, err
    code, out, err = await one.carpool("add", "late", "--", "sh", "-c", "true")
    assert (code, out) == (0, f"late added to {one.config}\n"), err
    code, _, err = await one.carpool("remove", "echo")
    assert code == 0, err
    written = json.loads(one.config.read_text())["mcpServers"]
    assert written.keys() == {"other", "late"}
    assert written["other"]["disabled"] is True
    await one.until(lambda facts: facts["servers"].keys() == {"other", "late"}, "it is in force")
