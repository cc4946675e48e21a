"""Operators over HTTP: what their tokens read and change in a carpool that runs."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import trio

from carpool.http.core.access import hash_of
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, fault_of
from tests.kit.live import Daemon, Make, observer
from tests.live.conftest import shared_daemon
from tests.live.test_live_http import HttpReply, ask, door

ON = {"audit": {"on": True}}
TOKENS = {
    "ann": hash_of("agent"),
    "ops": {"hash": hash_of("full"), "operator": True},
    "scraper": {"hash": hash_of("read"), "operator": "read"},
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    yield from shared_daemon(
        {"good": observer(), "other": observer()}, http={"port": 0, "tokens": TOKENS}, **ON
    )


def operator(daemon: Daemon, verb: str, body: Any = None, token: str = "full") -> HttpReply:
    root = door(daemon)[0].removesuffix("/mcp")
    method = "GET" if body is None else "POST"
    return ask(root, method, f"/operator/{verb}", body, Authorization=f"Bearer {token}")


async def done(daemon: Daemon, verb: str, body: Any = None, token: str = "full") -> Any:
    reply = await trio.to_thread.run_sync(partial(operator, daemon, verb, body, token))
    assert reply.status == 200, reply
    return reply.json


@behaviour("operate:http")
async def test_an_operator_sees_and_cancels_an_open_call(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent, shared.agent() as other:
            held = await agent.start("good__hold", {"text": "x", "until": str(shared.base / "never")})
            await other.inside("good", 1)
            (row,) = (await done(shared, "calls?server=good", token="read"))["calls"]
            assert (row["server"], row["tool"], row["state"]) == ("good", "hold", "running")
            cancelled = await done(shared, "cancel", {"call": row["call"]})
            assert (cancelled["call"], cancelled["delivered"]) == (row["call"], "maybe")
            assert fault_of((await agent.answer(held))["result"])["code"] == "operator_cancelled"
            again = await trio.to_thread.run_sync(operator, shared, "cancel", {"call": row["call"]})
            assert again.status == 404
            assert "`carpool calls`" in again.json["error"]["message"]


@behaviour("operate:http", "operate:pause", "operate:audited")
async def test_an_operator_pauses_resumes_and_stops_servers(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            assert await agent.text("good__echo", {"text": "a"}) == "a"
            paused = await done(shared, "pause", {"servers": ["good", "goood"]})
            assert [each["ok"] for each in paused["results"]] == [True, False]
            waiting = await agent.start("good__echo", {"text": "b"})
            await shared.until(lambda facts: facts["servers"]["good"]["waiting"] == 1, "the call waits")
            await done(shared, "resume", {"servers": ["good"]})
            acts = json.loads((await shared.carpool("audit", "--acts", "--json"))[1])
            assert [(each["act"], each["outcome"], each["failed"]) for each in acts[-2:]] == [
                ("pause", "partly", ["goood"]),
                ("resume", "done", []),
            ]
            assert {(each["principal"], each["via"]) for each in acts[-2:]} == {("ops", "http")}
            assert (await agent.answer(waiting))["result"]["content"][0]["text"] == "b"
            stopped = await done(shared, "stop", {"all": True})
            assert {each["server"]: each["ok"] for each in stopped["results"]} == {
                "good": True,
                "other": True,
            }
            status = await done(shared, "status", token="read")
            assert all(not each["instances"] for each in status["servers"].values())
            assert (await done(shared, "start", {"servers": ["good"]}))["results"][0]["ok"]
            assert await agent.text("good__echo", {"text": "c"}) == "c"


@behaviour("operate:http", "operate:disconnect")
async def test_an_operator_disconnects_a_session(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        await done(shared, "start", {"all": True})
        async with shared.shim() as agent:
            await agent.tools()
            (row,) = [each for each in (await done(shared, "status"))["sessions"] if each["pid"] == agent.pid]
            ended = await done(shared, "disconnect", {"session": row["id"]})
            assert ended["session"] == row["id"]
            await agent.ended.wait()


@behaviour("operate:http", "metrics:access")
def test_tokens_of_agents_and_of_readers_change_nothing(shared: Daemon) -> None:
    for verb, body in (("stop", {"all": True}), ("pause", {"servers": ["good"]}), ("cancel", {"call": "c1"})):
        for token, status in (("agent", 403), ("read", 403), ("nobody", 401)):
            assert operator(shared, verb, body, token).status == status
    assert operator(shared, "status", token="agent").status == 403
    root = door(shared)[0].removesuffix("/mcp")
    for token, status in (("agent", 403), ("read", 200), ("full", 200)):
        assert ask(root, "GET", "/metrics", Authorization=f"Bearer {token}").status == status
        assert ask(root, "GET", "/health", Authorization=f"Bearer {token}").json["servers"]
    assert operator(shared, "counters", token="read").json["rows"] is not None


@behaviour("operate:http", "http:tokens:verbs")
async def test_a_token_of_an_operator_works_as_soon_as_the_verb_has_added_it(daemon: Make) -> None:
    one = daemon({"good": observer()}, http={"port": 0, "tokens": TOKENS})
    with trio.fail_after(LIMIT_S):
        code, out, said = await one.carpool("token", "add", "new", "--operator", "full", "--json")
        assert code == 0, said
        token = json.loads(out)["token"]
        while True:
            reply = await trio.to_thread.run_sync(operator, one, "status", None, token)
            if reply.status == 200:
                break
            await trio.sleep(0.05)
        assert (await one.carpool("token", "revoke", "new"))[0] == 0
        while reply.status != 401:
            reply = await trio.to_thread.run_sync(operator, one, "status", None, token)
            await trio.sleep(0.05)


@behaviour("http:tokens:verbs")
async def test_a_token_that_expires_is_shut_out_and_the_door_does_not_open_for_everybody(
    daemon: Make,
) -> None:
    """Nothing in the configuration changes between the last time that it comes in and its end."""
    one = daemon({"good": observer()}, http={"port": 0, "tokens": {"ann": hash_of("agent")}})

    async def status_for(token: str) -> int:
        return (await trio.to_thread.run_sync(operator, one, "status", None, token)).status

    async def new_token(name: str, seconds: int) -> str:
        (code, out, said) = await one.carpool("token", "add", name, "--expires", f"{seconds}s", "--json")
        assert code == 0, said
        return str(json.loads(out)["token"])

    async def comes_in(token: str, seconds: int) -> bool:
        with trio.move_on_after(seconds):
            while True:
                if await status_for(token) != 401:
                    return True
                await trio.sleep(0.05)
        return False

    with trio.fail_after(LIMIT_S):
        await new_token("old", 1)
        assert (await one.carpool("token", "revoke", "ann"))[0] == 0
        token, seconds = "", 3
        while not token or not await comes_in(token, seconds):
            seconds *= 2  # a busy machine needs longer to let it in
            token = await new_token(f"bob{seconds}", seconds)
        while True:
            reply = await trio.to_thread.run_sync(operator, one, "status", None, token)
            if reply.status == 401:
                break
            await trio.sleep(0.1)
        assert "has not expired" in reply.json["error"]["message"]
        without = await trio.to_thread.run_sync(ask, door(one)[0].removesuffix("/mcp"), "GET", "/metrics")
        assert without.status == 401
