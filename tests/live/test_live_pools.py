"""Pools: how many instances there are, who waits, and for how long."""

from collections.abc import Iterator

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json, fault_of
from tests.kit.live import Daemon, Make, observer
from tests.live.conftest import shared_daemon

STARTING = {"spawning", "greeting"}


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    servers = {
        "wide": observer(pool={"min": 1, "max": 3, "scale_up_at": 2, "idle_s": 0.3}),
        "narrow": observer(max_in_flight=1, wait_s=0.5, pool={"min": 1, "max": 1}),
        "fair": observer(max_in_flight=1),
        "short": observer(max_in_flight=1, max_waiting_calls=5),
        "strict": observer(tool_timeouts_s={"wait": 0.4}, timeout_s=30),
        "total": observer(timeout_s=2.0, max_total_s=2.5),
    }
    yield from shared_daemon(servers, max_instances=16)


def serving(facts: Json, server: str) -> int:
    return sum(1 for each in facts["servers"][server]["instances"] if each["state"] == "serving")


def open_calls(facts: Json, server: str) -> list[int]:
    return [each["in_flight"] for each in facts["servers"][server]["instances"]]


async def test_a_pool_grows_under_load_and_shrinks_to_its_minimum_when_idle(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            ids = [await agent.start("wide__hold", {"party": 1, "seconds": 0})]
            await agent.answer(ids[0])
            waits: list[bytes] = []
            facts = await shared.status()
            while serving(facts, "wide") < 3:
                if not any(each["state"] in STARTING for each in facts["servers"]["wide"]["instances"]):
                    # Also where one has come and, on a busy machine, gone again before a call was on it.
                    waits.append(await agent.start("wide__wait", {"gate": "load", "obeys": True}))
                facts = await shared.status()
            assert len(open_calls(facts, "wide")) == 3
            for id_ in waits:
                await agent.cancel(id_)
            await shared.until(lambda facts: serving(facts, "wide") == 1, "one instance is left")
            assert (await shared.status())["servers"]["wide"]["restarts"] == 0


@behaviour("wait:bounded")
async def test_a_call_waits_for_an_instance_no_longer_than_wait_s(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent, shared.agent() as other:
            await shared.until(lambda facts: serving(facts, "narrow") == 1, "it serves")
            held = await agent.start("narrow__wait", {"gate": "n", "obeys": True})
            await shared.until(lambda facts: open_calls(facts, "narrow") == [1], "it is inside")
            fault = fault_of(await other.call("narrow__echo", {"text": "late"}))
            assert (fault["code"], fault["delivered"]) == ("waited_too_long", "no")
            assert fault["retry_after_s"] > 0
            await agent.cancel(held)
            await shared.until(lambda facts: open_calls(facts, "narrow") == [0], "it is free")
            assert await other.text("narrow__echo", {"text": "now"}) == "now"
            assert "late" not in (await agent.seen("narrow"))["order"]


@behaviour("wait:fair")
async def test_one_session_with_many_waiting_calls_delays_anothers_by_its_share_only(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as greedy, shared.agent() as modest:
            held = await greedy.start("fair__wait", {"gate": "f", "obeys": True})
            await shared.until(lambda facts: open_calls(facts, "fair") == [1], "it is inside")
            ids = [await greedy.start("fair__echo", {"text": f"greedy {at}"}) for at in range(60)]
            await shared.until(lambda facts: facts["servers"]["fair"]["waiting"] == 60, "60 wait")
            single = await modest.start("fair__echo", {"text": "modest"})
            await shared.until(lambda facts: facts["servers"]["fair"]["waiting"] == 61, "61 wait")
            await greedy.cancel(held)
            await modest.answer(single)
            for id_ in ids:
                await greedy.answer(id_)
            order = (await modest.seen("fair"))["order"]
            assert order.index("modest") <= order.index("greedy 0") + 2, order


async def test_a_waiting_line_is_bounded_and_says_when_to_come_back(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            held = await agent.start("short__wait", {"gate": "s", "obeys": True})
            await shared.until(lambda facts: open_calls(facts, "short") == [1], "it is inside")
            ids = [await agent.start("short__echo", {"text": str(at)}) for at in range(8)]
            await agent.until(lambda: sum(id_ in agent.answers for id_ in ids) == 3, "three are refused")
            refused = [fault_of(agent.answers[id_]["result"]) for id_ in ids if id_ in agent.answers]
            assert {(each["code"], each["delivered"]) for each in refused} == {("waiting_line_full", "no")}
            await agent.cancel(held)
            for id_ in ids:
                await agent.answer(id_)


async def test_a_tools_own_timeout_holds_for_that_tool_alone(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            held = await agent.start("strict__hold", {"seconds": 0, "party": 2})
            fault = fault_of(await agent.call("strict__wait", {"gate": "t", "obeys": True}))
            assert (fault["code"], fault["delivered"]) == ("timed_out", "maybe")
            assert held not in agent.answers
            assert await agent.text("strict__hold", {"seconds": 0, "party": 2}) == "held"
            assert (await agent.answer(held))["result"]["content"][0]["text"] == "held"
            seen = await agent.seen("strict")
            assert len(seen["cancels"]) == 1


async def test_progress_keeps_a_call_alive_but_not_beyond_its_total_limit(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            arguments = {"count": 200, "delay_s": 0.05}
            fault = fault_of(
                (await agent.answer(await agent.start("total__steps", arguments, token=1)))["result"]
            )
            assert (fault["code"], fault["delivered"]) == ("ran_too_long", "maybe"), "not when it was idle"


@behaviour("wait:cap")
async def test_at_the_process_cap_the_longest_idle_instance_makes_room(daemon: Make) -> None:
    servers = {name: observer(pool={"min": 0, "max": 2}) for name in ("one", "two", "three")}
    capped = daemon(servers, max_instances=2)
    with trio.fail_after(LIMIT_S):
        async with capped.agent() as agent:
            for name in ("one", "two", "three", "one", "three", "two"):
                assert await agent.text(f"{name}__echo", {"text": name}) == name
                facts = await capped.status()
                assert facts["totals"]["instances"] <= 3, facts  # one more while the old one ends
            await capped.until(lambda facts: facts["totals"]["instances"] <= 2, "the cap holds")


async def test_auto_connect_and_min_start_with_the_daemon_and_others_do_not(daemon: Make) -> None:
    servers = {
        "eager": observer(auto_connect=True),
        "two": observer(pool={"min": 2, "max": 2}),
        "lazy": observer(),
    }
    one = daemon(servers, up=False)
    assert one.run("up", "--detach").returncode == 0
    with trio.fail_after(LIMIT_S):
        facts = await one.until(lambda facts: facts["totals"]["instances"] >= 3, "three have started")
        assert {name: len(each["instances"]) for name, each in facts["servers"].items()} == {
            "eager": 1,
            "two": 2,
            "lazy": 0,
        }
