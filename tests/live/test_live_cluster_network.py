"""Two nodes over a network that is cut, half open, slow, or breaks connections, for NATS and for ZeroMQ."""

from typing import Final

import pytest
import trio

from carpool.cluster.core.channel import LOST_S
from tests.behaviours import behaviour
from tests.kit.cut_cluster import KINDS, CutCluster, cut_cluster
from tests.kit.line_agent import Json, LineAgent
from tests.kit.live import kit

LIMIT_S: Final = 150.0
CUT_S: Final = 2.0
SERVERS: Final[dict[str, Json]] = {"echo": kit("echo", sharing="concurrent")}
each_kind = pytest.mark.parametrize("kind", KINDS)


async def echoes(agent: LineAgent, texts: list[str]) -> None:
    """Call with all these texts at once; each answer must be that of its call."""
    started = [await agent.start("echo__echo", {"text": text}) for text in texts]
    for text, number in zip(texts, started, strict=True):
        said = await agent.answer(number)
        assert said["result"]["content"][0]["text"] == text


async def pause(cluster: CutCluster) -> None:
    """Let the cut last for a while, and mend it."""
    await trio.sleep(CUT_S)
    cluster.heal()


@each_kind
@behaviour("cluster:cuts")
async def test_calls_over_a_network_with_delay_are_answered_and_overtake_nothing(kind: str) -> None:
    with trio.fail_after(LIMIT_S):
        async with cut_cluster(kind, SERVERS) as cluster, cluster.beta.shim() as agent:
            await echoes(agent, ["first"])
            cluster.slow(delay_s=0.05)
            for _ in range(5):
                await echoes(agent, [f"call {number}" for number in range(64)])


@each_kind
@pytest.mark.parametrize("way", ["both", "there", "back"])
@behaviour("cluster:cuts")
async def test_a_cut_of_seconds_costs_a_pause_in_whichever_direction(kind: str, way: str) -> None:
    with trio.fail_after(LIMIT_S):
        async with cut_cluster(kind, SERVERS) as cluster, cluster.beta.shim() as agent:
            await echoes(agent, ["before"])
            cluster.cut(way)  # type: ignore[arg-type] # one of its words
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pause, cluster)
                await echoes(agent, [f"meanwhile {number}" for number in range(10)])
            await echoes(agent, ["after"])


@each_kind
@behaviour("cluster:cuts")
async def test_connections_that_break_under_load_lose_and_double_no_call(kind: str) -> None:
    async def break_often(cluster: CutCluster) -> None:
        for _ in range(5):
            await trio.sleep(0.3)
            cluster.break_all()

    with trio.fail_after(LIMIT_S):
        async with cut_cluster(kind, SERVERS) as cluster, cluster.beta.shim() as agent:
            await echoes(agent, ["before"])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(break_often, cluster)
                for each in range(8):
                    await echoes(agent, [f"{each} {number} {'x' * 20_000}" for number in range(20)])


@each_kind
@behaviour("cluster:fair")
async def test_a_small_call_overtakes_megabytes_of_another_agent_on_a_slow_link(kind: str) -> None:
    big = "x" * 3_000_000
    with trio.fail_after(LIMIT_S):
        async with (
            cut_cluster(kind, SERVERS) as cluster,
            cluster.beta.shim() as greedy,
            cluster.beta.shim() as modest,
        ):
            for agent in (greedy, modest):
                await echoes(agent, ["before"])
            cluster.slow(delay_s=0.01, bytes_per_s=500_000)
            started = await greedy.start("echo__echo", {"text": big})
            for number in range(5):
                await echoes(modest, [f"small {number}"])
            assert started not in greedy.answers, "the megabytes take seconds"
            cluster.slow()
            said = await greedy.answer(started)
            assert said["result"]["content"][0]["text"] == big


@behaviour("cluster:cuts")
async def test_a_long_cut_ends_the_calls_across_it_and_nothing_else() -> None:
    local: dict[str, Json] = {"near": kit("echo")}
    with trio.fail_after(LIMIT_S):
        async with cut_cluster("nats", {**SERVERS, "slow": kit("slow")}) as cluster:
            cluster.beta.configure(local, cluster=cluster.beta.configured()["cluster"])
            await cluster.beta.until(lambda facts: "near" in facts["servers"], "beta has its own server")
            async with cluster.beta.shim() as agent:
                await echoes(agent, ["before"])
                started = await agent.start("slow__sleep", {"seconds": 100})
                await cluster.alpha.until(
                    lambda facts: facts["servers"]["slow"]["instances"], "the call has begun"
                )
                cluster.cut()
                assert await agent.text("near__echo", {"text": "local"}) == "local"
                with trio.fail_after(LOST_S + 30):
                    said = await agent.answer(started)
                assert "maybe" in str(said), said
                assert await agent.text("near__echo", {"text": "local"}) == "local"
                await cluster.beta.until(lambda facts: "echo" not in facts["servers"], "alpha is lost")
                cluster.heal()
                await cluster.beta.until(lambda facts: "echo" in facts["servers"], "alpha is back")
                await echoes(agent, ["after"])
