"""`carpool stats` next to what 200 agents have counted themselves, also over the death of a broker."""

import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import trio

from carpool import Carpool, UnknownName
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S
from tests.kit.live import Daemon, Make, observer
from tests.live.test_live_client import client

AGENTS: Final = 200
PROGRAMS: Final = 4


async def stats(daemon: Daemon, by: str) -> dict[str, dict[str, Any]]:
    """The sums by this dimension, and under an empty name the whole document."""
    code, out, err = await daemon.carpool("stats", "--by", by, "--json")
    assert code == 0, err
    document = json.loads(out)
    return {"": document, **{each["name"]: each for each in document["groups"]}}


async def work(agent: Carpool, name: str, made: Counter[tuple[str, str]]) -> None:
    """Make some calls, and count what came of them."""
    for text in ("one", "two", "three"):
        result = await agent.call("good__echo", {"text": text})
        assert result.text == text
        made[name, "ok"] += 1
    try:
        await agent.call("good__nothing", {})
    except UnknownName:
        made[name, "unknown"] += 1


async def in_flight(daemon: Daemon, count: int) -> dict[str, Any]:
    """The row of `good/wait` once so many calls are in it."""
    while True:
        row = (await stats(daemon, "tool")).get("good/wait")
        if row is not None and row["in_flight"] == count:
            return row
        await trio.sleep(0.05)


@asynccontextmanager
async def crowd(daemon: Daemon) -> AsyncIterator[list[tuple[str, Carpool]]]:
    """All agents, each under the name of its program."""
    names = [f"worker-{number % PROGRAMS}" for number in range(AGENTS)]
    async with AsyncExitStack() as stack:
        yield [(name, await stack.enter_async_context(client(daemon, name=name))) for name in names]


@behaviour("counters:every-call", "counters:broker-death")
async def test_the_counters_are_what_200_agents_have_counted_also_after_a_brokers_death(daemon: Make) -> None:
    one = daemon({"good": observer()})
    made: Counter[tuple[str, str]] = Counter()
    with trio.fail_after(2 * LIMIT_S):
        async with crowd(one) as agents:
            async with trio.open_nursery() as calls:
                for name, agent in agents:
                    calls.start_soon(work, agent, name, made)
            await each_program_is_counted(one, made)

            async with trio.open_nursery() as calls:
                for _, agent in agents:
                    calls.start_soon(agent.call, "good__wait", {"gate": "g"})
                waiting = await in_flight(one, AGENTS)
                assert (waiting["calls"], waiting["answers"]) == (AGENTS, 0)
                first = await stats(one, "server")
                os.kill((await one.status())["broker"]["pid"], signal.SIGKILL)
                await in_flight(one, AGENTS)
                await agents[0][1].call("good__open", {"gate": "g"})

        after = await stats(one, "server")
        assert after[""]["run"] != first[""]["run"]
        found = after["good"]
        assert (found["calls"], found["resumed"]) == (AGENTS + 1, AGENTS)
        assert (found["answers"], found["in_flight"], found["errors"]) == (AGENTS + 1, 0, {})
        assert found["total_s"]["count"] == 1, "the times of resumed calls are not known"
        assert after[""]["servers"]["good"]["starts"] == 1
        counted = first[""]["total"]["calls"] + found["calls"] - found["resumed"]
        assert counted == made.total() + AGENTS + 1


async def each_program_is_counted(daemon: Daemon, made: Counter[tuple[str, str]]) -> None:
    """The counters of each program are what its agents have counted."""
    by_agent = await stats(daemon, "agent")
    for name in {name for name, _ in made}:
        found = by_agent[name]
        assert (found["answers"], found["in_flight"]) == (made[name, "ok"], 0)
        assert found["refusals"] == {"unknown_tool": made[name, "unknown"]}
        assert found["total_s"]["count"] == sum(found["total_s"]["buckets"]) == made[name, "ok"]
    by_door = await stats(daemon, "door")
    assert by_door["client"]["calls"] == made.total() == 4 * AGENTS


@behaviour("counters:off")
async def test_counting_is_turned_off_and_on_by_the_file_without_a_restart(daemon: Make) -> None:
    one = daemon({"good": observer()}, counters=False)
    code, _, err = await one.carpool("stats")
    assert (code, "`counters` is false" in err) == (1, True)
    assert (await one.status())["counters"]["enabled"] is False
    one.configure({"good": observer()}, counters=True)
    await one.reload()
    code, _, err = await one.carpool("call", "good__echo", "--args", '{"text":"hi"}')
    assert code == 0, err
    assert (await stats(one, "server"))["good"]["answers"] == 1
