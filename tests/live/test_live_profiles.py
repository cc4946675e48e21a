"""Profiles of real agents: chosen by flag, URL and token, enforced in lists and calls, changed under them."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from carpool.http.core.access import hash_of
from carpool_protocol.wire.tool_name_resolver import spellings
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, LineAgent, fault_of
from tests.kit.live import Daemon, Make, kit, observer
from tests.live.conftest import shared_daemon
from tests.live.test_live_http import META, ask, door, request, session

CHANGED = "notifications/tools/list_changed"
OFFER = {
    "tools": {"open": "Opens it.", "push": "Changes it."},
    "prompts": ["ask", "tell"],
    "resources": ["file:///open", "file:///secret"],
}
PROFILES: dict[str, Any] = {
    "reader": {
        "allow": ["mcp:good:echo", "mcp:good:open", "mcp:offers:*", "prompt:offers:ask", "resource:offers:*"],
        "deny": ["mcp:*:push", "resource:*:*secret*"],
    },
    "slow": {"allow": ["mcp:good"], "max_in_flight": 1, "max_servers": 1, "max_tools": 2},
    "few": {"allow": ["mcp:good:echo", "mcp:offers:open"], "calls_per_minute": 1, "max_servers": 1},
}
TOKENS = {
    "ann": {"hash": hash_of("a"), "profile": "reader"},
    "bob": hash_of("b"),
    "carl": {"hash": hash_of("c"), "profile": "few"},
}
LISTED = ["good__echo", "good__open", "offers__open"]


def servers(base: Path) -> dict[str, Any]:
    (base / "offer.json").write_text(json.dumps(OFFER))
    return {
        "good": observer(),
        "offers": kit("offers", str(base / "ledger"), str(base / "offer.json")),
        "hidden": observer(),
    }


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    made = servers(tmp_path_factory.mktemp("offers"))
    yield from shared_daemon(made, profiles=PROFILES)


async def refused(agent: LineAgent, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Why a request was refused, with the text."""
    answer = await agent.ask(method, params)
    error = answer["error"]
    return {**error["data"], "text": error["message"]}


@behaviour("profiles:call", "profiles:chosen", "profiles:lists")
async def test_every_spelling_of_what_is_kept_back_is_refused_and_of_all_else_works(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim("connect", "--profile", "reader") as agent:
            assert await agent.tools() == LISTED
            for name in ("good__echo", *spellings("good", "echo")):
                assert await agent.text(name, {"text": name}) == name
            for server, tool in (("offers", "push"), ("good", "seen"), ("hidden", "echo")):
                for name in (f"{server}__{tool}", *spellings(server, tool)):
                    if (server, name) == ("hidden", "echo"):
                        continue  # another one has it, too
                    found = await refused(agent, "tools/call", {"name": name, "arguments": {}})
                    assert found["code"] == "not_permitted", name
                    assert (found["server"], "The profile reader keeps it back." in found["text"]) == (
                        server,
                        True,
                    )
            which = await refused(agent, "tools/call", {"name": "open"})
            assert (which["code"], "good__open, offers__open" in which["text"]) == ("unknown_tool", True)
            assert "hidden" not in which["text"]
            assert (await refused(agent, "tools/call", {"name": "good__nope"}))["code"] == "unknown_tool"


@behaviour("profiles:call", "profiles:lists")
async def test_prompts_resources_and_completions_go_by_the_profile(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim("connect", "--profile", "reader") as agent:
            await agent.tools()
            prompts = (await agent.result("prompts/list"))["prompts"]
            assert [each["name"] for each in prompts] == ["offers__ask"]
            resources = (await agent.result("resources/list"))["resources"]
            assert [each["uri"] for each in resources] == ["file:///open"]
            argument = {"name": "x", "value": ""}
            for method, params in (
                ("prompts/get", {"name": "offers__tell"}),
                ("resources/read", {"uri": "file:///secret"}),
                ("resources/read", {"uri": "carpool+offers+file:///secret"}),
                ("resources/read", {"uri": "file:///secret/below"}),
                ("resources/read", {"uri": "carpool+offers+file://x/secret"}),
                ("resources/read", {"uri": "carpool+offers+file://localhost:1/open"}),
                ("resources/subscribe", {"uri": "file:///secret"}),
                ("resources/subscribe", {"uri": "carpool+offers+file:///open/unlisted"}),
                (
                    "completion/complete",
                    {"ref": {"type": "ref/prompt", "name": "tell"}, "argument": argument},
                ),
                (
                    "completion/complete",
                    {"ref": {"type": "ref/resource", "uri": "file:///secret"}, "argument": argument},
                ),
            ):
                assert (await refused(agent, method, params))["code"] == "not_permitted", (method, params)


@behaviour("profiles:tokens", "profiles:chosen")
async def test_a_token_has_its_profile_and_a_url_says_one_for_the_others(
    daemon: Make, tmp_path: Path
) -> None:
    one = daemon(servers(tmp_path), profiles=PROFILES, http={"port": 0, "tokens": TOKENS})
    url, _ = door(one)
    headers = {"MCP_Protocol_Version": "2026-07-28", "Authorization": "Bearer a"}

    def listed(path: str, token: str) -> tuple[int, list[str]]:
        sent = {**headers, "Authorization": f"Bearer {token}", "Mcp_Method": "tools/list"}
        reply = ask(url, "POST", path, request(1, "tools/list", _meta=META), **sent)
        tools = reply.json["result"]["tools"] if reply.status == 200 else []
        return reply.status, [tool["name"] for tool in tools]

    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            everything = await agent.tools()
    assert listed("", "a") == (200, LISTED)
    assert listed("/p/reader", "a") == (200, LISTED)
    assert listed("/p/slow", "a") == (403, [])
    assert listed("", "b") == (200, everything)
    assert listed("/p/reader", "b") == (200, LISTED)
    assert listed("/p/nobody", "b")[0] == 404
    named = {"Mcp_Method": "tools/call", "Mcp_Name": "hidden__echo"}
    called = request(1, "tools/call", name="hidden__echo", arguments={}, _meta=META)
    reply = ask(url, "POST", "", called, **headers, **named)
    assert reply.json["error"]["data"]["code"] == "not_permitted"
    said = request(7, "tools/call", name="good__echo", arguments={"text": "1"})
    for outcome in (b'"text": "1"', b"too_many_a_minute"):
        other = {"Mcp_Session_Id": session(url, Authorization="Bearer c"), "Authorization": "Bearer c"}
        assert outcome in ask(url, "POST", "", said, **other).body, "its minute is one for all its sessions"
    sid = session(url, Authorization="Bearer a")
    told = {"Mcp_Session_Id": sid, "Authorization": "Bearer a"}
    pinged = ask(url, "POST", "", request(2, "tools/list"), **told)
    assert [tool["name"] for tool in pinged.json["result"]["tools"]] == LISTED
    assert ask(url, "POST", "/p/reader", request(3, "ping"), **told).status == 200
    assert ask(url, "DELETE", "", None, **told).status == 200
    health = url.removesuffix("/mcp") + "/health"
    assert ask(health, "GET", "", None, Authorization="Bearer b").json["servers"]
    assert ask(health, "GET", "", None, Authorization="Bearer a").json["servers"] == {}, (
        "it would name them all"
    )


@behaviour("profiles:servers", "profiles:leak")
async def test_a_server_of_which_nothing_is_permitted_is_not_started_for_it(
    daemon: Make, tmp_path: Path
) -> None:
    one = daemon(servers(tmp_path), profiles=PROFILES)
    with trio.fail_after(LIMIT_S):
        async with one.shim("connect", "--profile", "reader", greet=False) as agent:
            greeted = await agent.greet()
            assert "hidden" not in json.dumps(greeted)
            assert await agent.tools() == LISTED
            await refused(agent, "tools/call", {"name": "hidden__echo"})
            facts = await one.status()
            assert [each["profile"] for each in facts["sessions"]] == ["reader"]
            assert facts["servers"]["hidden"]["instances"] == []
            assert facts["servers"]["good"]["instances"]
        code, out, _ = await one.carpool("tools", "--profile", "reader", "--json")
        assert (code, [tool["name"] for tool in json.loads(out)]) == (0, LISTED)
        code, _, said = await one.carpool("tools", "offers__push", "--profile", "reader")
        assert (code, "The profile reader keeps it back." in said) == (1, True)
        code, _, said = await one.carpool("call", "offers__push", "--profile", "reader")
        assert (code, "The profile reader keeps it back." in said) == (1, True)
        code, _, said = await one.carpool("call", "offers__push", "--profile", "raeder")
        assert (code != 0, "did you mean reader?" in said) == (True, True), said
        code, out, _ = await one.carpool("check")
        assert code == 0
        assert "profile reader: 3 of 10 known tools" in out


@behaviour("profiles:bounds", "profiles:max-tools")
async def test_what_a_profile_bounds_is_bounded(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim("connect", "--profile", "slow") as agent, shared.agent() as other:
            assert len(await agent.tools()) == 2
            (mine,) = [each for each in (await shared.status())["sessions"] if each["profile"] == "slow"]
            assert mine["tools_left_out"] == 6
            first = await agent.start("good__wait", {"gate": "slow"})
            second = await agent.start("good__echo", {"text": "after"})
            await other.inside("good", 1)
            assert second not in agent.answers
            await other.text("good__open", {"gate": "slow"})
            await agent.answer(first)
            assert (await agent.answer(second))["result"]["content"][0]["text"] == "after"
        async with shared.shim("connect", "--profile", "few") as agent:
            assert await agent.text("good__echo", {"text": "1"}) == "1"
            fault = fault_of(await agent.call("good__echo", {"text": "2"}))
            assert (fault["code"], fault["delivered"]) == ("too_many_a_minute", "no")
            assert 0 < fault["retry_after_s"] <= 60
            assert fault_of(await agent.call("offers__open"))["code"] == "too_many_servers"


@behaviour("profiles:reload", "profiles:call")
async def test_a_profile_that_changes_under_an_agent_counts_at_once(daemon: Make, tmp_path: Path) -> None:
    made = {**servers(tmp_path), "list": kit("list_changes")}
    reader = {"allow": ["mcp:good:echo", "mcp:good:seen", "mcp:list:grow", "mcp:list:shrink"]}
    one = daemon(made, profiles={"reader": reader, "other": {"allow": ["mcp:offers:*"]}})
    before = ["good__echo", "good__seen", "list__grow", "list__shrink"]
    with trio.fail_after(LIMIT_S):
        async with (
            one.shim("connect", "--profile", "reader") as agent,
            one.shim("connect", "--profile", "other") as other,
            one.agent() as plain,
        ):
            assert await agent.tools() == before
            theirs = await other.tools()
            await plain.tools()
            await plain.text("list__grow")
            await plain.notice(CHANGED)
            assert await agent.tools() == before
            changes = {"allow": reader["allow"], "deny": ["mcp:good:echo", "mcp:list:shrink"]}
            one.configure(made, profiles={"reader": changes, "other": {"allow": ["mcp:offers:*"]}})
            await one.reload()
            await agent.notice(CHANGED)
            assert [each["method"] for each in agent.notices] == [CHANGED], "not for what the server changed"
            assert await agent.tools() == ["good__seen", "list__grow"]
            for name in ("good__echo", *spellings("good", "echo"), "echo", "list__shrink"):
                found = await refused(agent, "tools/call", {"name": name})
                assert (found["code"], "profile reader" in found["text"]) == ("not_permitted", True), name
            one.configure(made, profiles={"other": {"allow": ["mcp:offers:*"]}})
            await one.reload()
            assert (
                await agent.until_listed(lambda names: names == [], "a profile that is gone grants nothing")
                == []
            )
            assert await other.tools() == theirs
            assert other.notices == []


@behaviour("profiles:chosen")
async def test_the_next_broker_gives_an_agent_the_profile_that_it_had(daemon: Make, tmp_path: Path) -> None:
    one = daemon(servers(tmp_path), profiles=PROFILES, http={"port": 0, "tokens": TOKENS})
    url, _ = door(one)
    with trio.fail_after(LIMIT_S):
        async with one.shim("connect", "--profile", "reader") as agent:
            assert await agent.tools() == LISTED
            sid = session(url, Authorization="Bearer a")
            told = {"Mcp_Session_Id": sid, "Authorization": "Bearer a"}
            os.kill((await one.status())["broker"]["pid"], signal.SIGKILL)
            assert await agent.tools() == LISTED
            assert (await refused(agent, "tools/call", {"name": "offers__push"}))["code"] == "not_permitted"
            reply = ask(url, "POST", "", request(5, "tools/list"), **told)
            assert [tool["name"] for tool in reply.json["result"]["tools"]] == LISTED
            facts = await one.status()
            assert [each["profile"] for each in facts["sessions"]] == ["reader", "reader"]
            assert sorted(each["principal"] for each in facts["sessions"]) == ["", "ann"]
            assert ask(url, "DELETE", "", None, **told).status == 200
