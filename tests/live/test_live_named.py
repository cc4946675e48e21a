"""Workspaces that the user's file names, and sessions that move between them, by real processes."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from carpool.http.core.access import hash_of
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json, LineAgent, settled
from tests.kit.live import Daemon, Make, observer
from tests.kit.open_door import open_door
from tests.live.conftest import shared_daemon
from tests.live.test_live_classes import ROOTS, names
from tests.live.test_live_http import ask, door, request, session

CHANGED = "notifications/tools/list_changed"
USE = "carpool/use_workspace"
TOKEN = {"env": {"TOKEN": "${SHOP_TOKEN}"}}
SAME = observer(cwd="/")
WORKSPACES: Json = {
    "shop": {
        "root": "~/shop",
        "mcpServers": {
            "git": observer("--tool", "shops", **TOKEN),
            "held": observer(sharing="session"),
            "same": SAME,
        },
    },
    "bank": {"root": "~/bank", "mcpServers": {"git": observer("--tool", "banks"), "same": SAME}},
    "depot": {
        "root": "~/depot",
        "mcpServers": {
            "eager": observer(pool={"min": 1, "idle_s": 4}),
            "lazy": observer(pool={"idle_s": 4}),
        },
    },
}
EVERYBODYS: Json = {
    "git": observer(),
    "gone": observer(sharing="session"),
    "held": observer(sharing="session"),
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    yield from shared_daemon(EVERYBODYS, workspaces=WORKSPACES, http=open_door())


def directory(daemon: Daemon, name: str) -> Path:
    path = daemon.base / name
    path.mkdir(parents=True, exist_ok=True)
    return path


async def place(daemon: Daemon, pid: int) -> Json:
    """Where the session of this shim is, as people are told."""
    (found,) = [each for each in (await daemon.status())["sessions"] if each["pid"] == pid]
    workspace: Json = found["workspace"]
    return workspace


def holders(facts: Json, server: str) -> list[str]:
    """Sessions that hold an instance of it which is not about to end."""
    instances = facts["servers"][server]["instances"]
    return [each["holder"] for each in instances if each["holder"] and each["state"] == "serving"]


@behaviour("workspaces:named", "workspaces:override", "workspaces:one-instance")
async def test_agents_are_in_the_workspace_that_they_work_in_or_name(shared: Daemon) -> None:
    shop, bank, free = (directory(shared, each) for each in ("shop/src/deep", "bank", "free"))
    with trio.fail_after(LIMIT_S):
        async with (
            shared.shim(cwd=shop, environ={"SHOP_TOKEN": "t"}) as one,
            shared.shim("connect", "--workspace", "bank", cwd=free) as two,
            shared.shim(cwd=free) as three,
        ):
            seen = [await each.seen("git") for each in (one, two, three)]
            assert [each["cwd"] for each in seen] == [str(shared.base / "shop"), str(bank), str(shared.base)]
            assert len({each["pid"] for each in seen}) == 3
            assert (await one.seen("same"))["pid"] == (await two.seen("same"))["pid"]
            assert ["git__shops" in await each.tools() for each in (one, two, three)] == [True, False, False]
            assert "same__echo" not in await three.tools()
            assert (await place(shared, two.pid)) == {"name": "bank", "root": str(bank)}
            assert (await place(shared, three.pid)) == {"name": "", "root": str(free)}
            _, said, _ = await shared.carpool("status")
            assert "WORKSPACE" in said


@behaviour("workspaces:attach")
async def test_the_command_line_names_a_workspace_and_hears_which_there_are(shared: Daemon) -> None:
    bank = directory(shared, "bank")
    code, said, _ = await shared.carpool("tools", "--workspace", "bank", "--json")
    assert code == 0
    assert "git__banks" in {each["name"] for each in json.loads(said)}
    code, said, _ = await shared.carpool("call", "git__seen", "--workspace", str(bank))
    assert (code, json.loads(said)["cwd"]) == (0, str(bank))
    for words in (("tools", "--workspace", "shp"), ("connect", "--workspace", "shp")):
        code, _, said = await shared.carpool(*words)
        assert code != 0
        assert "(there are: shop, bank, depot); did you mean shop?" in said


@behaviour("workspaces:moved", "workspaces:moved-variables")
async def test_an_agent_moves_without_reconnecting(shared: Daemon) -> None:
    """Its tools change and it is told; leases go back; what runs ends where it runs; variables are asked."""
    environ = {"SHOP_TOKEN": "for the shop"}
    directory(shared, "shop")
    with trio.fail_after(LIMIT_S):
        async with (
            shared.shim(cwd=directory(shared, "free"), environ=environ) as agent,
            shared.shim(cwd=directory(shared, "free")) as stays,
        ):
            assert "git__shops" not in await agent.tools()
            old = await agent.seen("git")
            for server in ("gone", "held"):
                await agent.seen(server)
            ours = holders(await shared.status(), "gone")
            assert len(ours) == 1
            assert holders(await shared.status(), "held") == ours
            open_call = await agent.start("git__wait", {"gate": "g"})
            await stays.inside("git", 1)
            since = len(agent.notices)
            moved = await agent.result(USE, {"workspace": "shop"})
            assert moved == {"name": "shop", "root": str(shared.base / "shop")}
            await agent.notice(CHANGED, since)
            names = await agent.until_listed(lambda names: "git__shops" in names, "the shop's are listed")
            assert "gone__echo" in names, "everybody's are there as before"
            assert await agent.text("git__environ", {"name": "TOKEN"}) == "for the shop"
            now = await agent.seen("git")
            assert (now["cwd"], now["pid"] != old["pid"]) == (str(shared.base / "shop"), True)
            await shared.until(lambda facts: not holders(facts, "held"), "the lease has gone back")
            assert holders(await shared.status(), "gone") == ours, "the same pool as before"
            lost = await agent.call("held__seen")
            assert lost["isError"]
            assert lost["_meta"]["carpool/error"]["code"] == "state_lost"
            assert (await agent.seen("held"))["cwd"] == str(shared.base / "shop")
            await stays.text("git__open", {"gate": "g"})
            assert (await agent.answer(open_call))["result"]["content"][0]["text"] == "opened"
            assert (await stays.seen("git"))["pid"] == old["pid"]


@behaviour("workspaces:moved")
async def test_an_operator_moves_a_session_and_unknown_places_are_refused(shared: Daemon) -> None:
    directory(shared, "bank")
    with trio.fail_after(LIMIT_S):
        async with shared.shim(cwd=directory(shared, "free")) as agent:
            await agent.tools()
            (ours,) = (await shared.status())["sessions"]
            code, said, _ = await shared.carpool("use", "bank", "--session", ours["id"])
            assert (code, said) == (0, f"{ours['id']}: bank\n")
            await agent.until_listed(lambda names: "git__banks" in names, "the bank's are listed")
            back = directory(shared, "elsewhere/deep")
            code, said, _ = await shared.carpool("use", str(back), "--session", ours["id"], "--json")
            assert (code, json.loads(said)["workspace"]) == (0, {"name": "", "root": str(back)})
            unknown = (("s999", "bank", "no such session"), (ours["id"], "bnk", "there are: shop"))
            for session_id, to, why in unknown:
                code, _, said = await shared.carpool("use", to, "--session", session_id)
                assert code == 1
                assert why in said
                assert "params" not in said, "whoever typed this has sent none"
            for params in ({"workspace": "bnk"}, {}, {"workspace": "bank", "session": "s1"}):
                answer = await agent.ask(USE, params)
                assert answer["error"]["code"] == -32602
            assert "bank" in (await agent.ask(USE, {"workspace": "bnk"}))["error"]["message"]
            assert (await place(shared, agent.pid))["name"] == ""


@behaviour("workspaces:auto-connect", "pools:outlive-sessions")
async def test_what_starts_by_itself_does_so_while_somebody_is_in_its_workspace(shared: Daemon) -> None:
    depot = directory(shared, "depot")

    def running(facts: Json, *servers: str) -> bool:
        states = {name: facts["servers"][name]["instances"] for name in ("eager", "lazy")}
        return {name for name, found in states.items() if found} == set(servers)

    with trio.fail_after(LIMIT_S):
        async with shared.shim(cwd=depot) as agent:
            await agent.until_listed(lambda names: "lazy__echo" in names, "what they offer is known")
            assert not running(await shared.status())
        await shared.until(running, "nobody is there, and nothing runs")
        async with shared.shim(cwd=depot) as agent:
            await shared.until(lambda facts: running(facts, "eager"), "it has started, uncalled")
            await agent.seen("lazy")
            assert running(await shared.status(), "eager", "lazy")
        await shared.until(running, "nobody is there, and nothing runs")


async def where(agent: LineAgent) -> Json:
    return await agent.seen("git")


@behaviour("workspaces:roots-move")
async def test_an_agent_whose_roots_change_goes_along(shared: Daemon) -> None:
    shop, bank, free = (directory(shared, each) for each in ("shop", "bank", "free"))
    with trio.fail_after(LIMIT_S):
        async with shared.shim(cwd=free, environ={"SHOP_TOKEN": "t"}, greet=False) as agent:
            agent.says = names(shop.as_uri(), bank.as_uri())
            await agent.greet(capabilities=ROOTS)
            assert (await where(agent))["cwd"] == str(shared.base)
            await agent.tell("notifications/roots/list_changed")
            await settled(lambda: where(agent), lambda seen: seen["cwd"] == str(shop), "it is in the shop")
            await agent.result(USE, {"workspace": "bank"})
            asked = len(agent.asks)
            await agent.tell("notifications/roots/list_changed")
            await agent.until(lambda: len(agent.asks) > asked, "it is asked still")
            await agent.result("ping")
            assert (await where(agent))["cwd"] == str(bank), "who was put somewhere in words stays there"


@behaviour("workspaces:attach", "workspaces:moved")
async def test_two_agents_over_http_are_in_two_workspaces_at_once(shared: Daemon) -> None:
    url, _ = door(shared)

    def seen(path: str, sid: str) -> Json:
        answer = ask(url, "POST", path, request(5, "tools/call", name="git__seen"), Mcp_Session_Id=sid)
        found: Json = json.loads(answer.json["result"]["content"][0]["text"])
        return found

    def talk() -> None:
        one, two = session(url, "?workspace=shop"), session(url, "?workspace=bank")
        free = session(url)
        try:
            call = request(5, "tools/call", name="git__seen")
            refused = ask(url, "POST", "?workspace=shop", call, Mcp_Session_Id=one)
            assert "SHOP_TOKEN is not set" in str(refused.json), "nobody over HTTP has variables"
            assert seen("?workspace=bank", two)["cwd"] == str(shared.base / "bank")
            assert seen("", free)["cwd"] == str(shared.base)
            places = {each["workspace"]["name"] for each in shared.facts()["sessions"]}
            assert places == {"shop", "bank", ""}
            moved = ask(url, "POST", "", request(6, USE, workspace="bank"), Mcp_Session_Id=free)
            assert moved.json["result"]["name"] == "bank"
            assert seen("", free)["pid"] == seen("?workspace=bank", two)["pid"]
            refused = ask(url, "POST", "", request(7, USE, workspace="/etc"), Mcp_Session_Id=free)
            assert "is accepted, not a directory" in refused.json["error"]["message"]
        finally:
            for path, sid in (("?workspace=shop", one), ("?workspace=bank", two), ("", free)):
                ask(url, "DELETE", path, Mcp_Session_Id=sid)
        for path in ("?workspace=shp", "?workspace=/etc"):
            unknown = ask(url, "POST", path, request(1, "initialize", protocolVersion="2025-11-25"))
            assert unknown.status == 404
            assert "workspace" in unknown.json["error"]["message"]

    directory(shared, "shop")
    directory(shared, "bank")
    with trio.fail_after(LIMIT_S):
        await trio.to_thread.run_sync(talk)


@behaviour("workspaces:moved-survives", "workspaces:moved-variables")
async def test_a_session_is_where_it_had_moved_after_a_death_of_the_broker(daemon: Make) -> None:
    one = daemon(EVERYBODYS, workspaces=WORKSPACES, http=open_door())
    shop, _ = directory(one, "shop"), directory(one, "bank")
    url, _ = door(one)
    with trio.fail_after(LIMIT_S):
        async with one.shim(cwd=directory(one, "free"), environ={"SHOP_TOKEN": "kept"}) as agent:
            sid = await trio.to_thread.run_sync(session, url)
            await agent.result(USE, {"workspace": "shop"})
            before = await agent.seen("git")
            held = await agent.seen("held")

            def over_http(method: str, **params: str) -> Json:
                answer = ask(url, "POST", "", request(6, method, **params), Mcp_Session_Id=sid)
                found: Json = answer.json["result"]
                return found

            assert (await trio.to_thread.run_sync(lambda: over_http(USE, workspace="bank")))["name"] == "bank"
            os.kill((await one.status())["broker"]["pid"], signal.SIGKILL)
            assert (await agent.seen("git"))["pid"] == before["pid"]
            assert (await agent.seen("held"))["pid"] == held["pid"], "its lease as well"
            assert await agent.text("git__environ", {"name": "TOKEN"}) == "kept"
            assert await place(one, agent.pid) == {"name": "shop", "root": str(shop)}
            listed = await trio.to_thread.run_sync(lambda: over_http("tools/list"))
            assert "git__banks" in {tool["name"] for tool in listed["tools"]}
            await agent.result(USE, {"workspace": "bank"})
            await one.until(lambda facts: not holders(facts, "held"), "a lease of before has gone back")


async def test_a_carrier_that_cannot_be_asked_moves_without_its_variables(shared: Daemon) -> None:
    attach = Attach(version=ATTACH_VERSION, carrier="client", cwd=str(directory(shared, "free")))
    with trio.fail_after(LIMIT_S):
        async with shared.agent(attach=attach) as agent:
            assert (await agent.result(USE, {"workspace": "shop"}))["name"] == "shop"
            said = json.dumps(await agent.ask("tools/call", {"name": "git__seen"}))
            assert "SHOP_TOKEN is not set" in said


@behaviour("workspaces:tokens")
def test_an_agent_with_a_bound_token_does_not_leave_its_workspaces(daemon: Make) -> None:
    bound = {"hash": hash_of("a"), "workspaces": ["bank", "depot"]}
    tokens = {"ann": bound, "bob": hash_of("b")}
    one = daemon(EVERYBODYS, workspaces=WORKSPACES, http={"port": 0, "tokens": tokens})
    for name in ("shop", "bank", "depot"):
        directory(one, name)
    url, _ = door(one)
    ann = {"Authorization": "Bearer a"}
    greeting = request(1, "initialize", protocolVersion="2025-11-25")
    for path in ("", "?workspace=shop", "/tools?workspace=shop", "/s/git?workspace=shop"):
        method, body = ("GET", None) if path.startswith("/tools") else ("POST", greeting)
        assert ask(url, method, path, body, **ann).status == 403, path
    sid = session(url, "?workspace=bank", **ann)

    def move(place: str, where: str = "?workspace=bank") -> Json:
        found: Json = ask(
            url, "POST", where, request(6, USE, workspace=place), Mcp_Session_Id=sid, **ann
        ).json
        return found

    for place in ("shop", "", "/", str(one.base / "shop"), "SHOP"):
        assert "for these workspaces only: bank, depot" in move(place)["error"]["message"], place
    assert move("depot")["result"]["name"] == "depot"
    assert move("bank")["result"]["name"] == "bank"
    free = session(url, Authorization="Bearer b")
    moved = ask(
        url, "POST", "", request(6, USE, workspace="shop"), Mcp_Session_Id=free, Authorization="Bearer b"
    )
    assert moved.json["result"]["name"] == "shop", "another token may"
