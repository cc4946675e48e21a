"""kill -9 of the broker, and of the door, with agents over HTTP (docs/decisions/0019)."""

import contextlib
import json
import os
import signal
from http.client import HTTPException
from typing import Any

import mcp
import pytest
import trio
from mcp.client.streamable_http import streamable_http_client

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S
from tests.kit.live import Daemon, Make, kit, observer
from tests.kit.open_door import open_door
from tests.kit.ports import free_port
from tests.kit.private_daemon import until as until_now
from tests.kit.waits import until
from tests.live.test_live_http import SDK_LEAVES_GENERATORS, ask, door, modern, request, session

SDK_WARNS_OF_THE_PAST = "ignore::mcp.shared.exceptions.MCPDeprecationWarning"
"""What the handshake era has and the stateless one has not."""


def kill_broker(daemon: Daemon) -> None:
    os.kill(daemon.facts()["broker"]["pid"], signal.SIGKILL)


def said(answer: Any) -> str:
    return str(answer.json["result"]["content"][0]["text"])


@behaviour("reattach:http")
async def test_calls_of_both_eras_are_answered_once_and_run_once(daemon: Make) -> None:
    one = daemon({"good": observer()}, http=open_door())
    url, pid = door(one)
    answers: dict[str, str] = {}

    def waits(text: str, sid: str | None) -> None:
        arguments = {"gate": "g", "text": text}
        if sid is None:
            answer = modern(url, "tools/call", name="good__wait", arguments=arguments)
        else:
            call = request(7, "tools/call", name="good__wait", arguments=arguments)
            answer = ask(url, "POST", "", call, Mcp_Session_Id=sid)
        assert answer.status == 200, answer.body
        answers[text] = said(answer)

    with trio.fail_after(LIMIT_S):
        sessions = [await trio.to_thread.run_sync(session, url) for _ in range(10)]
        async with trio.open_nursery() as nursery:
            for at, sid in enumerate(sessions):
                nursery.start_soon(trio.to_thread.run_sync, waits, f"h{at}", sid)
                nursery.start_soon(trio.to_thread.run_sync, waits, f"s{at}", None)
            await one.until(lambda status: status["totals"]["in_flight"] == 20, "all are at the server")
            kill_broker(one)
            opens = request(8, "tools/call", name="good__open", arguments={"gate": "g"})
            found = await trio.to_thread.run_sync(
                lambda: ask(url, "POST", "", opens, Mcp_Session_Id=sessions[0])
            )
            assert found.status == 200, found.body
        assert set(answers) == {f"{kind}{at}" for kind in "hs" for at in range(10)}
        assert all(text.startswith("opened") for text in answers.values())
        seen = request(9, "tools/call", name="good__seen", arguments={})
        order = json.loads(said(ask(url, "POST", "", seen, Mcp_Session_Id=sessions[3])))["order"]
        assert {text: order.count(text) for text in answers} == dict.fromkeys(answers, 1)
        assert door(one)[1] == pid
        assert one.facts()["servers"]["good"]["restarts"] == 0


@pytest.mark.filterwarnings(SDK_LEAVES_GENERATORS, SDK_WARNS_OF_THE_PAST)
@behaviour("reattach:http", "reattach:http:asks")
async def test_an_agent_of_the_official_sdk_is_asked_once_and_hears_its_news(daemon: Make) -> None:
    one = daemon({"asks": kit("asks_back"), "news": kit("news")}, http=open_door())
    url, _ = door(one)
    heard: list[str] = []
    asked: list[Any] = []
    go_on = trio.Event()

    async def sample(
        context: Any, params: mcp.types.CreateMessageRequestParams
    ) -> mcp.types.CreateMessageResult:
        asked.append(params)
        await go_on.wait()
        content = mcp.types.TextContent(type="text", text="me")
        return mcp.types.CreateMessageResult(role="assistant", content=content, model="m")

    async def hear(message: Any) -> None:
        heard.append(type(getattr(message, "root", message)).__name__)

    with trio.fail_after(LIMIT_S):
        async with (
            streamable_http_client(url) as (read, write),
            mcp.ClientSession(read, write, sampling_callback=sample, message_handler=hear) as agent,
        ):
            await agent.initialize()
            await agent.subscribe_resource("news:///a")
            results: list[Any] = []

            async def ask_model() -> None:
                results.append(await agent.call_tool("asks__ask", {"text": "who?"}))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask_model)
                await until(lambda: bool(asked), "the question")
                kill_broker(one)
                await agent.send_ping()
                go_on.set()
            assert "me" in results[0].content[0].text
            assert len(asked) == 1
            sid = await trio.to_thread.run_sync(session, url)
            heard.clear()
            call = request(2, "tools/call", name="news__touch", arguments={"uri": "news:///a"})

            def touch() -> bool:
                answer = ask(url, "POST", "", call, Mcp_Session_Id=sid)
                return bool(json.loads(said(answer))["watched"] == ["news:///a"])

            while not await trio.to_thread.run_sync(touch):
                await trio.lowlevel.checkpoint()
            await until(lambda: any("ResourceUpdated" in each for each in heard), "news on its one GET")


@pytest.mark.filterwarnings(SDK_LEAVES_GENERATORS)
@behaviour("reattach:http:door")
async def test_a_session_goes_on_through_the_next_door_with_its_lease(daemon: Make) -> None:
    port = free_port()
    one = daemon({"counter": kit("counter", sharing="session"), "good": observer()}, http=open_door(port))
    url, pid = door(one)
    with trio.fail_after(LIMIT_S):
        async with (
            streamable_http_client(url) as (read, write),
            mcp.ClientSession(read, write) as agent,
        ):
            await agent.initialize()

            async def count() -> int:
                found: Any = await agent.call_tool("counter__increment", {})
                return int(found.content[0].text)

            assert [await count(), await count()] == [1, 2]
            sid = await trio.to_thread.run_sync(session, url)
            wait = request(5, "tools/call", name="good__wait", arguments={"gate": "g", "text": "runs on"})

            def wait_in_vain() -> None:
                with contextlib.suppress(OSError, HTTPException):
                    ask(url, "POST", "", wait, Mcp_Session_Id=sid)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, wait_in_vain)
                await one.until(lambda status: status["totals"]["in_flight"] == 1, "a call is at its server")
                os.kill(pid, signal.SIGKILL)
            await until(lambda: door(one)[1] != pid, "another door listens")
            assert await count() == 3, "the same session, with its instance"
            opens = request(6, "tools/call", name="good__open", arguments={"gate": "g"})
            assert said(ask(url, "POST", "", opens, Mcp_Session_Id=sid)) == "open"
            seen = request(7, "tools/call", name="good__seen", arguments={})
            found = json.loads(said(ask(url, "POST", "", seen, Mcp_Session_Id=sid)))
            assert found["cancels"] == [], "a connection that broke is no cancel"
            assert ask(url, "POST", "", request(8, "ping"), Mcp_Session_Id="nobody-s").status == 404


@behaviour("reattach:http:door", "http:own-process")
def test_when_broker_and_door_die_together_agents_begin_anew(daemon: Make) -> None:
    one = daemon({"echo": kit("echo")}, http=open_door(free_port()))
    url, pid = door(one)
    sid = session(url)
    broker = one.facts()["broker"]["pid"]
    os.kill(pid, signal.SIGKILL)
    os.kill(broker, signal.SIGKILL)
    until_now(lambda: door(one)[1] != pid, "another door listens")
    assert ask(url, "POST", "", request(2, "ping"), Mcp_Session_Id=sid).status == 404
    assert ask(url, "POST", "", request(2, "ping"), Mcp_Session_Id=session(url)).status == 200


@behaviour("restart:drains")
async def test_a_restart_answers_what_runs_refuses_what_comes_and_sessions_begin_anew(daemon: Make) -> None:
    one = daemon({"good": observer()}, http=open_door(free_port()))
    url, _ = door(one)
    end = one.base / "end"
    answers: list[Any] = []

    def call(sid: str, name: str, arguments: dict[str, Any]) -> Any:
        asked = request(7, "tools/call", name=name, arguments=arguments)
        return ask(url, "POST", "", asked, Mcp_Session_Id=sid)

    def runs(sid: str) -> None:
        answers.append(call(sid, "good__hold", {"until": str(end)}))

    with trio.fail_after(LIMIT_S):
        sid, other = session(url), session(url)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, runs, sid)
            await one.until(lambda status: status["totals"]["in_flight"] == 1, "a call is at its server")
            nursery.start_soon(one.carpool, "restart", "--all")
            await until(lambda: "draining" in one.log("broker"), "the broker drains", LIMIT_S)
            refused = await trio.to_thread.run_sync(call, other, "good__echo", {"text": "late"})
            assert refused.json["result"]["_meta"]["carpool/error"]["delivered"] == "no"
            assert not answers
            end.touch()
        assert said(answers[0]) == "held"
        assert ask(url, "POST", "", request(8, "ping"), Mcp_Session_Id=sid).status == 404
        assert said(call(session(url), "good__echo", {"text": "on"})) == "on"


@behaviour("faults:frozen", "stop:answers")
async def test_a_frozen_door_loses_nothing_and_down_answers_what_came_through_it(daemon: Make) -> None:
    one = daemon({"good": observer()}, http=open_door())
    url, pid = door(one)
    answers: dict[str, Any] = {}

    def waits(text: str, sid: str | None) -> None:
        arguments = {"gate": text}
        if sid is None:
            found = modern(url, "tools/call", name="good__wait", arguments=arguments)
        else:
            asked = request(7, "tools/call", name="good__wait", arguments=arguments)
            found = ask(url, "POST", "", asked, Mcp_Session_Id=sid)
        answers[f"{text} {bool(sid)}"] = found.json["result"]

    with trio.fail_after(LIMIT_S):
        sid = await trio.to_thread.run_sync(session, url)
        async with one.agent() as other, trio.open_nursery() as nursery:
            for who in (sid, None):
                nursery.start_soon(trio.to_thread.run_sync, waits, "frozen", who)
            await one.until(lambda status: status["totals"]["in_flight"] == 2, "both are at the server")
            os.kill(pid, signal.SIGSTOP)
            try:
                assert await other.text("good__echo", {"text": "meanwhile"}) == "meanwhile"
                await other.call("good__open", {"gate": "frozen"})
                assert not answers
            finally:
                os.kill(pid, signal.SIGCONT)
        assert {text: found["content"][0]["text"] for text, found in answers.items()} == {
            "frozen True": "opened",
            "frozen False": "opened",
        }
        assert door(one)[1] == pid
        answers.clear()
        async with trio.open_nursery() as nursery:
            for who in (sid, None):
                nursery.start_soon(trio.to_thread.run_sync, waits, "never", who)
            await one.until(lambda status: status["totals"]["in_flight"] == 2, "both are at the server")
            assert (await one.carpool("down"))[0] == 0
        faults = [found["_meta"]["carpool/error"] for found in answers.values()]
        assert [fault["delivered"] for fault in faults] == ["maybe", "maybe"], faults
        assert not one.running()
