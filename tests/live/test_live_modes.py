"""Sharing modes and leases through the whole of carpool, on a server that counts."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json, LineAgent, fault_of
from tests.kit.live import Daemon, Make, alive, kit
from tests.kit.waits import until


def counter(sharing: str, **settings: Any) -> dict[str, Json]:
    return {"counter": kit("counter", sharing=sharing, **settings)}


async def instances(daemon: Daemon) -> list[Json]:
    found: list[Json] = (await daemon.status())["servers"]["counter"]["instances"]
    return found


def serving(facts: Json) -> list[Json]:
    """The instances that have greeted, held or spare."""
    return [
        each
        for each in facts["servers"]["counter"]["instances"]
        if each["state"] in {"serving", "spare", "leased"}
    ]


async def add(agent: LineAgent) -> int:
    return int(await agent.text("counter__increment"))


async def read(agent: LineAgent) -> int:
    return int(await agent.text("counter__read"))


@asynccontextmanager
async def two(daemon: Daemon) -> AsyncIterator[tuple[LineAgent, LineAgent]]:
    async with daemon.shim() as one, daemon.agent() as other:
        yield one, other


@behaviour("modes:session")
async def test_two_agents_with_session_see_two_counters(daemon: Make) -> None:
    own = daemon(counter("session"))
    with trio.fail_after(LIMIT_S):
        async with two(own) as (one, other):
            assert [await add(one) for _ in range(3)] == [1, 2, 3]
            assert [await add(other), await read(one), await read(other)] == [1, 3, 1]
            facts = await own.status()
            held = [each["holder"] for each in serving(facts) if each["holder"]]
            assert len(held) == len(set(held)) == 2
            assert set(held) <= {each["id"] for each in facts["sessions"]}


@behaviour("modes:concurrent")
async def test_two_agents_with_concurrent_see_one_counter(daemon: Make) -> None:
    own = daemon(counter("concurrent"))
    with trio.fail_after(LIMIT_S):
        async with two(own) as (one, other):
            assert [await add(one), await add(other), await read(one), await read(other)] == [1, 2, 2, 2]
            assert len(await instances(own)) == 1


@behaviour("lease:returned-ended")
async def test_a_returned_instance_is_ended_and_never_another_agents(daemon: Make) -> None:
    own = daemon(counter("session", pool={"max": 1}))
    with trio.fail_after(LIMIT_S):
        async with own.agent() as one:
            assert [await add(one), await add(one)] == [1, 2]
            [pid] = [each["pid"] for each in await instances(own)]
        async with own.agent() as other:
            assert await add(other) == 1
            assert [each["pid"] for each in await instances(own)] != [pid]
        await until(lambda: not alive(pid), "the first agent's process has ended")


@behaviour("lease:next-in-line", "lease:with-holder")
async def test_when_a_holder_is_killed_the_next_in_line_gets_an_instance_of_its_own(daemon: Make) -> None:
    own = daemon(counter("session", wait_s=30, pool={"max": 1}))
    with trio.fail_after(LIMIT_S):
        async with own.agent() as waiting:
            async with own.shim() as holder:
                assert [await add(holder), await add(holder)] == [1, 2]
                id_ = await waiting.start("counter__increment")
                await own.until(lambda facts: facts["servers"]["counter"]["waiting"], "it waits")
                assert id_ not in waiting.answers, "nobody else's instance is good enough"
                os.kill(holder.pid, signal.SIGKILL)
                result = (await waiting.answer(id_))["result"]
            assert result["content"][0]["text"] == "1", "a process that nobody had before"


@behaviour("lease:crash:one-state-lost")
async def test_a_lease_lost_to_a_crash_is_told_once_and_the_next_call_runs_on_a_fresh_instance(
    daemon: Make,
) -> None:
    own = daemon(counter("session"))
    with trio.fail_after(LIMIT_S):
        async with two(own) as (one, other):
            assert [await add(one), await add(one), await add(other)] == [1, 2, 1]
            facts = await own.status()
            me = {each["pid"]: each["id"] for each in facts["sessions"]}
            [lost] = [each for each in serving(facts) if each["holder"] == me.get(one.pid)]
            os.kill(lost["pid"], signal.SIGKILL)
            await own.until(
                lambda facts: lost["pid"] not in {each["pid"] for each in serving(facts)}, "it is gone"
            )
            fault = fault_of(await one.call("counter__increment"))
            assert (fault["code"], fault["delivered"]) == ("state_lost", "no")
            assert [await add(one), await read(one)] == [1, 1], "not executed the first time, and told once"
            assert await read(other) == 1, "the other's lease is untouched"


@behaviour("lease:every-call-hears")
async def test_calls_sent_behind_the_one_that_hears_of_a_loss_hear_it_too_and_the_next_one_runs(
    daemon: Make,
) -> None:
    own = daemon(counter("session"))
    with trio.fail_after(LIMIT_S):
        async with own.agent() as one:
            assert await add(one) == 1
            facts = await own.status()
            [lost] = [each for each in serving(facts) if each["holder"]]
            os.kill(lost["pid"], signal.SIGKILL)
            await own.until(
                lambda facts: lost["pid"] not in {each["pid"] for each in serving(facts)}, "it is gone"
            )
            lines = [
                b'{"jsonrpc":"2.0","id":%d,"method":"tools/call",'
                b'"params":{"name":"counter__increment","arguments":{}}}' % number
                for number in range(9001, 9101)  # more than may be open: some wait at the broker
            ]
            await one.line(b"\n".join(lines))
            for number in range(9001, 9101):
                fault = fault_of((await one.answer(b"%d" % number))["result"])
                assert (fault["code"], fault["delivered"]) == ("state_lost", "no")
            assert [await add(one), await read(one)] == [1, 1], "what is sent after that runs at once"


@behaviour("lease:spares")
async def test_a_spare_is_warm_before_the_next_agent_comes(daemon: Make) -> None:
    own = daemon(counter("session", pool={"max": 4, "spares": 1}))
    with trio.fail_after(LIMIT_S):
        async with own.agent() as one, own.agent() as other:
            assert await add(one) == 1
            facts = await own.until(lambda facts: len(serving(facts)) == 2, "one is held, one is spare")
            [spare] = [each["pid"] for each in serving(facts) if not each["holder"]]
            assert await add(other) == 1
            facts = await own.status()
            assert spare in [each["pid"] for each in serving(facts) if each["holder"]], "no one waits"


@behaviour("lease:holders-shown")
async def test_ps_says_who_holds_what(daemon: Make) -> None:
    own = daemon(counter("session", pool={"spares": 0}))
    with trio.fail_after(LIMIT_S):
        async with own.shim() as one:
            assert await add(one) == 1
            code, said, _ = await own.carpool("ps")
            assert code == 0
            [row] = [line for line in said.splitlines() if "counter" in line]
            assert "live" in row, "the agent's name"


@behaviour("modes:serial")
async def test_a_serial_server_takes_one_call_at_a_time_on_each_process(daemon: Make) -> None:
    servers = {"slow": kit("slow", sharing="serial", wait_s=30, pool={"max": 2})}
    own = daemon(servers)
    most = 0
    with trio.fail_after(LIMIT_S):
        async with own.agent() as one, own.agent() as two, own.agent() as three:
            started = [
                (agent, await agent.start("slow__sleep", {"seconds": 0.3}))
                for agent in (one, two, three, one, two)
            ]

            async def watch() -> None:
                nonlocal most
                while True:
                    for each in (await own.status())["servers"]["slow"]["instances"]:
                        most = max(most, each["in_flight"])
                    await trio.sleep(0.02)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                for agent, id_ in started:
                    assert (await agent.answer(id_))["result"]["content"][0]["text"] == "sleep done"
                nursery.cancel_scope.cancel()
        assert most == 1
