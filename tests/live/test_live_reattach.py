"""kill -9 of the broker: agents behind a carrier notice a pause and nothing else (docs/decisions/0019)."""

import json
import os
import signal
import sys
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import trio

from bench import reattach
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach, ResumeSession
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S, Json, LineAgent, fault_of, settled
from tests.kit.live import SERVERS, Daemon, Make, kit, observer
from tests.kit.open_door import open_door
from tests.kit.ports import free_port
from tests.kit.stateless_agent import Stateless
from tests.kit.waits import until
from tests.live.test_live_http import ask, door, request, session

ASKABLE: Final[Json] = {"sampling": {}}
KEEPS: Final = Attach(version=ATTACH_VERSION, carrier="shim", keeps=True)
UPDATED: Final = "notifications/resources/updated"


async def kill_broker(daemon: Daemon) -> None:
    """The broker is dead; the next one may not be there yet."""
    os.kill((await daemon.status())["broker"]["pid"], signal.SIGKILL)


def deaths(daemon: Daemon) -> int:
    return daemon.log("broker").count("broker serves") - 1


async def reborn(daemon: Daemon, count: int) -> None:
    """So many brokers have died, and another one serves."""
    await until(lambda: deaths(daemon) == count, f"broker {count} serves", WAIT_S)


async def seen_once(agent: LineAgent, server: str, texts: list[str]) -> None:
    """The server has run each of these calls exactly once."""
    order = (await agent.seen(server))["order"]
    assert {text: order.count(text) for text in texts} == dict.fromkeys(texts, 1)


@behaviour("reattach:calls")
async def test_calls_in_flight_are_answered_once_and_run_once(daemon: Make) -> None:
    one = daemon({"good": observer()})
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent, one.shim() as other, one.agent() as plain:
            ids = [
                await agent.start("good__wait", {"gate": "g", "text": f"w{at}"}, id_=at) for at in range(8)
            ]
            theirs = [
                await other.start("good__wait", {"gate": "g", "text": f"o{at}"}, id_=at) for at in range(8)
            ]
            await agent.inside("good", 16)
            await kill_broker(one)
            await plain.ended.wait()
            during = await agent.start("good__echo", {"text": "said while nobody was there"})
            await other.text("good__open", {"gate": "g"})
            for who, mine in ((agent, ids), (other, theirs)):
                for each in mine:
                    assert (await who.answer(each))["result"]["content"][0]["text"].startswith("opened")
            await agent.answer(during)
            texts = [f"{who}{at}" for who in "wo" for at in range(8)]
            await seen_once(agent, "good", [*texts, "said while nobody was there"])
            facts = await one.status()
            assert facts["servers"]["good"]["restarts"] == 0
            assert len(facts["servers"]["good"]["instances"]) == 1
            assert not [note for note in agent.notices if "method" in note], "the agent notices a pause only"


@behaviour("reattach:calls")
async def test_a_call_that_ends_while_there_is_no_broker_is_answered_by_the_next(daemon: Make) -> None:
    one = daemon({"good": observer()})
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent, one.shim() as other:
            held = await agent.start("good__wait", {"gate": "g", "text": "ends alone"})
            await agent.inside("good", 1)
            opened = await other.start("good__open", {"gate": "g"})
            await kill_broker(one)
            assert "result" in await other.answer(opened)
            assert "result" in await agent.answer(held)
            await seen_once(agent, "good", ["ends alone"])


@behaviour("reattach:session")
async def test_an_idle_agent_is_there_again_under_its_own_name(daemon: Make) -> None:
    one = daemon({"good": observer()})
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent:
            await agent.tools()
            before = {each["id"]: each["era"] for each in (await one.status())["sessions"]}
            for count in (1, 2, 3):
                await kill_broker(one)
                await reborn(one, count)
                await agent.result("ping")
                after = {each["id"]: each["era"] for each in (await one.status())["sessions"]}
                assert after == before
            assert await agent.text("good__echo", {"text": "on"}) == "on"
            assert (await one.status())["broker"]["restarts"] == 3


@behaviour("reattach:session", "trust:asked")
async def test_a_trusted_projects_instances_are_its_agents_still_and_an_untrusted_ones_are_not(
    daemon: Make,
) -> None:
    one = daemon({})
    work = one.base / "work"
    work.mkdir()
    file = work / ".mcp.json"
    file.write_text(json.dumps({"mcpServers": {"its": observer()}}), encoding="utf-8")
    assert (await one.carpool("trust", "--yes", str(work)))[0] == 0
    with trio.fail_after(LIMIT_S):
        async with one.shim(cwd=work) as agent:
            held = await agent.start("its__wait", {"gate": "g", "text": "through it"})
            await agent.inside("its", 1)
            (before,) = (await one.status())["servers"]["its"]["instances"]
            await kill_broker(one)
            await reborn(one, 1)
            await agent.text("its__open", {"gate": "g"})
            assert "result" in await agent.answer(held)
            await seen_once(agent, "its", ["through it"])
            (after,) = (await one.status())["servers"]["its"]["instances"]
            assert after["pid"] == before["pid"]
            file.write_text(json.dumps({"mcpServers": {"its": observer()}}) + " ", encoding="utf-8")
            await kill_broker(one)
            await reborn(one, 2)
            await agent.until_listed(lambda names: "its__echo" not in names, "trust is asked again")


@behaviour("reattach:calls")
async def test_a_second_death_before_anybody_has_settled_loses_nothing(daemon: Make) -> None:
    one = daemon({"good": observer()})
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent:
            held = await agent.start("good__wait", {"gate": "g", "text": "twice"})
            await agent.inside("good", 1)
            await kill_broker(one)
            # As soon as it listens: it may not have read a line of anybody.
            await until(lambda: deaths(one) == 1, "the second broker listens", WAIT_S)
            os.kill(broker_pid(one), signal.SIGKILL)
            await agent.text("good__open", {"gate": "g"})
            assert "result" in await agent.answer(held)
            await seen_once(agent, "good", ["twice"])
            assert deaths(one) == 2


@behaviour("reattach:calls")
async def test_a_crowd_that_calls_all_the_time_loses_and_repeats_nothing_over_several_deaths() -> None:
    house = reattach.furnished()
    try:
        await trio.to_thread.run_sync(house.up)
        with trio.fail_after(LIMIT_S):
            found = await reattach.measure(house, agents=16, kills=3, every_s=0.3)
    finally:
        left = await trio.to_thread.run_sync(house.close)
    assert not left
    assert not reattach.wrong(found), found
    assert found["server_restarts"] == 0


def broker_pid(daemon: Daemon) -> int:
    """By the process table: nobody may answer."""
    return max(pid for pid, line in daemon.running().items() if "carpool_broker" in line)


@behaviour("reattach:asks")
async def test_a_question_is_shown_once_and_its_answer_arrives(daemon: Make) -> None:
    one = daemon({"asks": kit("asks_back")})
    with trio.fail_after(LIMIT_S):
        async with one.shim(greet=False) as agent:
            await agent.greet("2025-11-25", ASKABLE)
            asked = await agent.start("asks__ask", {"text": "who?"})
            await agent.until(lambda: bool(agent.asks), "the question")
            await kill_broker(one)
            await reborn(one, 1)
            await agent.result("ping")
            said: Json = {"role": "assistant", "content": {"type": "text", "text": "me"}, "model": "m"}
            await agent.say(agent.asks[0], {"result": said})
            result = (await agent.answer(asked))["result"]
            assert json.loads(result["content"][0]["text"])["result"]["content"]["text"] == "me"
            assert len(agent.asks) == 1


@behaviour("reattach:asks")
async def test_an_answer_that_was_on_its_way_to_the_dead_broker_arrives(daemon: Make) -> None:
    one = daemon({"asks": kit("asks_back")})
    with trio.fail_after(LIMIT_S):
        async with one.shim(greet=False) as agent:
            await agent.greet("2025-11-25", ASKABLE)
            asked = await agent.start("asks__ask", {"text": "who?"})
            await agent.until(lambda: bool(agent.asks), "the question")
            pid = (await one.status())["broker"]["pid"]
            os.kill(pid, signal.SIGSTOP)  # it reads nothing any more
            said: Json = {"role": "assistant", "content": {"type": "text", "text": "me"}, "model": "m"}
            await agent.say(agent.asks[0], {"result": said})
            os.kill(pid, signal.SIGKILL)
            assert "me" in (await agent.answer(asked))["result"]["content"][0]["text"]
            assert len(agent.asks) == 1


@behaviour("reattach:session")
async def test_level_subscriptions_and_held_lists_are_in_force_again(daemon: Make) -> None:
    one = daemon({"news": kit("news"), "lists": kit("list_changes")})
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent, one.shim() as other:
            await agent.until_listed(lambda names: "lists__grow" in names, "the tools of lists")
            await agent.result("logging/setLevel", {"level": "warning"})
            for uri in ("news:///a", "news:///b"):
                await agent.result("resources/subscribe", {"uri": uri})
            await agent.result("resources/unsubscribe", {"uri": "news:///b"})
            for count in (1, 2):
                # The next broker may send the notification before this test has seen that it serves.
                before_death = len(agent.notices)
                await kill_broker(one)
                await reborn(one, count)
                since = len(agent.notices)

                async def known() -> Json:
                    found: Json = json.loads(await other.text("news__known"))
                    return found

                await settled(
                    known,
                    lambda found: found == {"watched": ["news:///a"], "level": "warning"},
                    "the server is to tell what it was to tell",
                )
                await other.text("news__touch", {"uri": "news:///a"})
                await agent.notice(UPDATED, since)
                await other.text("lists__grow")
                await agent.notice("notifications/tools/list_changed", before_death)
                grown = f"lists__grown_{count - 1}"  # the notice may be of an earlier change
                await agent.until_listed(lambda names, grown=grown: grown in names, "what has grown")


@behaviour("reattach:listens", "reattach:http")
async def test_subscriptions_of_both_eras_hold_though_their_server_is_away_as_the_broker_dies(
    daemon: Make,
) -> None:
    one = daemon({"news": kit("news"), "good": observer()}, http=open_door())
    url, uri = door(one)[0], "news:///a"
    with trio.fail_after(LIMIT_S):
        async with (
            one.shim() as old, one.shim(greet=False) as agent, one.shim() as other,
            trio.open_nursery() as nursery,
        ):  # fmt: skip
            new, over_http = Stateless(agent), bytearray()
            await old.result("resources/subscribe", {"uri": uri})
            wanted: Json = {"resourceSubscriptions": [uri], "promptsListChanged": True}
            listen = await new.listen(**wanted)
            assert (await listen.acknowledged())["resourceSubscriptions"] == [uri]
            nursery.start_soon(hear, url, {"notifications": wanted, "_meta": new.meta()}, over_http)
            await until(lambda: b"acknowledged" in over_http, "it listens over HTTP")
            for count in (1, 2):
                one.configure({"good": observer()}, http=open_door())
                await kill_broker(one)
                await reborn(one, count)
                await new.result("server/discover")
            one.configure({"news": kit("news"), "good": observer()}, http=open_door())
            await other.until_listed(lambda names: "news__touch" in names, "the tools of news")
            # It had no place: nobody knows what became of it.
            await listen.notice(UPDATED)
            await old.notice(UPDATED)
            await until(lambda: over_http.count(b"resources/updated") == 1, "as much over HTTP")
            before = len(old.notices), len(listen.heard(UPDATED))
            await other.text("news__touch", {"uri": uri})
            assert (await listen.notice(UPDATED, before[1]))["params"]["uri"] == uri
            await old.notice(UPDATED, before[0])
            await until(lambda: over_http.count(b"resources/updated") == 2, "as much over HTTP")
            assert len(listen.heard("notifications/subscriptions/acknowledged")) == 1
            assert over_http.count(b"acknowledged") == 1
            nursery.cancel_scope.cancel()


async def hear(url: str, params: Json, heard: bytearray) -> None:
    """Listen over HTTP, and note all that comes."""
    method, at = "subscriptions/listen", urlsplit(url)
    body = json.dumps(request(1, method, **params)).encode()
    head = (
        f"POST {at.path} HTTP/1.1\r\nHost: {at.netloc}\r\nContent-Type: application/json\r\n"
        "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n"
        f"Mcp-Method: {method}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    async with await trio.open_tcp_stream(at.hostname or "", at.port or 0) as stream:
        await stream.send_all(head.encode() + body)
        async for data in stream:
            heard += data


@behaviour("reattach:session")
async def test_a_lease_outlives_the_broker_with_its_state(daemon: Make) -> None:
    one = daemon({"counter": kit("counter", sharing="session")})
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent, one.shim() as other:
            assert [int(await agent.text("counter__increment")) for _ in range(3)] == [1, 2, 3]
            assert int(await other.text("counter__increment")) == 1
            await kill_broker(one)
            assert int(await agent.text("counter__increment")) == 4
            assert int(await other.text("counter__increment")) == 2
            facts = await one.status()
            holders = {each["holder"] for each in facts["servers"]["counter"]["instances"] if each["holder"]}
            assert holders == {each["id"] for each in facts["sessions"]}


@behaviour("reattach:session")
async def test_a_session_of_carpool_run_keeps_its_own_server(daemon: Make) -> None:
    one = daemon()
    words = ("run", "--", sys.executable, "-S", "-E", str(SERVERS / "counter.py"))
    with trio.fail_after(LIMIT_S):
        async with one.shim(*words) as agent:
            assert [int(await agent.text("increment")) for _ in range(2)] == [1, 2]
            await kill_broker(one)
            assert int(await agent.text("increment")) == 3


@behaviour("reattach:everything-died")
async def test_when_broker_and_supervisor_die_together_open_calls_are_lost_and_the_session_goes_on(
    daemon: Make,
) -> None:
    one = daemon({"good": observer()})
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent:
            held = await agent.start("good__wait", {"gate": "g"})
            await agent.inside("good", 1)
            facts = await one.status()
            for pid in (facts["supervisors"][0]["pid"], facts["broker"]["pid"]):
                os.kill(pid, signal.SIGKILL)
            fault = fault_of((await agent.answer(held))["result"])
            assert fault["delivered"] == "maybe"
            await reborn(one, 1)  # until then a call may still reach the broker that is about to die
            assert await agent.text("good__echo", {"text": "on"}) == "on"


@behaviour("reattach:everything-died")
async def test_when_all_of_carpool_dies_the_shim_starts_it_again(daemon: Make) -> None:
    one = daemon({"good": observer()})
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent:
            held = await agent.start("good__wait", {"gate": "g"})
            await agent.inside("good", 1)
            [launcher] = [pid for pid, line in one.running().items() if "carpool.launcher" in line]
            os.kill(launcher, signal.SIGKILL)
            assert fault_of((await agent.answer(held))["result"])["delivered"] == "maybe"
            await reborn(one, 1)  # until then a call may still reach the broker that is about to die
            assert await agent.text("good__echo", {"text": "on"}) == "on"


@behaviour("death:broker-frees-plain")
async def test_the_lease_of_a_plain_connection_is_free_when_the_next_broker_is_there(daemon: Make) -> None:
    one = daemon({"counter": kit("counter", sharing="session", pool={"max": 1}, wait_s=25)})
    with trio.fail_after(LIMIT_S):
        async with one.agent() as plain, one.shim() as agent:
            assert int(await plain.text("counter__increment")) == 1
            await agent.result("ping")
            await kill_broker(one)
            await plain.ended.wait()
            # It may hold it for 30 s, were it awaited.
            assert int(await agent.text("counter__increment")) == 1


@behaviour("lease:everything-died")
async def test_state_that_went_with_all_of_carpool_is_told_to_who_had_some_and_to_nobody_else(
    daemon: Make,
) -> None:
    servers = {"counter": kit("counter", sharing="session"), "good": observer()}
    one = daemon(servers, http=open_door(free_port()))
    count = request(2, "tools/call", name="counter__increment", arguments={})
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent, one.shim() as other:
            assert [int(await agent.text("counter__increment")) for _ in range(2)] == [1, 2]
            assert await other.text("good__echo", {"text": "on"}) == "on"
            assert (await one.carpool("restart", "--all"))[0] == 0
            assert await agent.text("good__echo", {"text": "on"}) == "on"
            fault = fault_of(await agent.call("counter__increment"))
            assert (fault["code"], fault["delivered"], fault["server"]) == ("state_lost", "no", "counter")
            assert int(await agent.text("counter__increment")) == 1
            assert int(await other.text("counter__increment")) == 1
            url, _ = await trio.to_thread.run_sync(door, one)
            over_http = await trio.to_thread.run_sync(session, url)
            counts = partial(ask, url, "POST", "", count, Mcp_Session_Id=over_http)
            assert (await trio.to_thread.run_sync(counts)).json["result"]["content"][0]["text"] == "1"
            facts = await one.status()
            for pid in (facts["supervisors"][0]["pid"], facts["broker"]["pid"]):
                os.kill(pid, signal.SIGKILL)
            await reborn(one, 2)
            for who in (agent, other):
                assert fault_of(await who.call("counter__increment"))["code"] == "state_lost"
                assert int(await who.text("counter__increment")) == 1
            await one.until(lambda facts: len(facts["sessions"]) == 3, "the door has come back as well")
            assert fault_of((await trio.to_thread.run_sync(counts)).json["result"])["code"] == "state_lost"
            assert (await trio.to_thread.run_sync(counts)).json["result"]["content"][0]["text"] == "1"


@behaviour("reattach:meant")
async def test_restart_all_is_a_pause_and_down_is_an_end(daemon: Make) -> None:
    one = daemon({"good": observer()})
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent:
            before = (await one.status())["broker"]["pid"]
            assert (await one.carpool("restart", "--all"))[0] == 0
            assert await agent.text("good__echo", {"text": "on"}) == "on"
            assert await agent.tools()
            assert (await one.status())["broker"]["pid"] != before
            assert (await one.carpool("down"))[0] == 0
            await agent.ended.wait()
        assert "carpool was stopped" in (one.base / "shims.log").read_text()
        assert not one.running()
        one.up()


@behaviour("reattach:secret")
async def test_a_session_is_nobodys_who_does_not_have_its_secret_or_comes_too_early(daemon: Make) -> None:
    one = daemon({"counter": kit("counter", sharing="session")})

    def attach(session: str, secret: str) -> Attach:
        resume = ResumeSession(session=session, secret=secret, supervisor="any")
        return Attach(version=ATTACH_VERSION, carrier="shim", keeps=True, resume=resume)

    with trio.fail_after(LIMIT_S):
        async with one.agent(greet=False, attach=KEEPS) as agent:
            await agent.until(lambda: bool(agent.notices), "the broker's yes")
            told = agent.notices[0]["params"]
            await agent.greet()
            assert int(await agent.text("counter__increment")) == 1
            # Its own secret, but at the broker that gave it: that one has not died.
            async with one.agent(attach=attach(told["session"], told["secret"])) as thief:
                assert thief.notices[0]["params"]["session"] != told["session"]
                assert int(await thief.text("counter__read")) == 0
            await kill_broker(one)
            await agent.ended.wait()
        await reborn(one, 1)
        secret = told["secret"]
        for bad in (
            "",
            "0",
            "0." + "0" * 32,
            "1" + secret[1:],
            secret[:-1],
            f"0{secret}",
            "\u0660" + secret[1:],
        ):
            async with one.agent(attach=attach(told["session"], bad)) as thief:
                assert thief.notices[0]["params"]["session"] != told["session"]
        async with one.agent(attach=attach(told["session"], secret)) as rightful:
            assert rightful.notices[0]["params"]["session"] == told["session"]
            assert int(await rightful.text("counter__read")) == 1
            async with one.agent(attach=attach(told["session"], secret)) as second:
                assert second.notices[0]["params"]["session"] != told["session"]
        text = one.log_text()
        assert secret not in text
        assert secret.partition(".")[2] not in text
