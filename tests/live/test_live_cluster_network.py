"""Two nodes over a network that is cut, half open, slow, or breaks connections, for NATS and for ZeroMQ."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest
import trio

from bench.cable import Ways
from carpool.cluster.core.channel import LOST_S
from tests.behaviours import behaviour
from tests.kit.cut_cluster import KINDS, CutCluster, cut_cluster, shared_cut_cluster
from tests.kit.line_agent import Json, LineAgent
from tests.kit.live import Make, kit
from tests.kit.nats_server import JETSTREAM, Issuer, nats_server
from tests.kit.waits import until

LIMIT_S: Final = 150.0
HELD_PIECES: Final = 4
"""A cut lasts until this many pieces of data are held back: each end sends one a second at least."""
BREAK_BYTES: Final = 100_000
"""Connections break again once this many bytes have passed."""
BREAKS_IN_A_ROW: Final = 3
"""After so many breaks a call must be answered: each break throws away what the receiving process has not
read yet, and on a busy machine that can be all of it, each time, until the other node counts as lost.
"""
UNREAD_S: Final = 5.0
"""An agent sends no further call if nothing of it is read in this time."""
BIG_BYTES: Final = 10 * 1024 * 1024
SERVERS: Final[dict[str, Json]] = {"echo": kit("echo", sharing="concurrent")}
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module", params=KINDS)
def shared(request: pytest.FixtureRequest) -> Iterator[CutCluster]:
    yield from shared_cut_cluster(request.param, SERVERS)


@pytest.fixture
def cluster(shared: CutCluster) -> Iterator[CutCluster]:
    """The shared nodes; after the test the network between them is whole and fast again."""
    yield shared
    shared.proxy.heal()
    shared.proxy.slow()


async def echoes(agent: LineAgent, texts: list[str]) -> None:
    """Call with all these texts at once; each answer must be that of its call."""
    started = [await agent.start("echo__echo", {"text": text}) for text in texts]
    for text, number in zip(texts, started, strict=True):
        said = await agent.answer(number)
        assert said["result"]["content"][0]["text"] == text, str(said)[:600]


async def pause(cluster: CutCluster) -> None:
    """Let the cut last until it has held back several heartbeats, and mend it."""
    await until(lambda: cluster.proxy.held_pieces >= HELD_PIECES, "the cut holds data back")
    cluster.proxy.heal()


@behaviour("cluster:cuts")
async def test_calls_over_a_network_with_delay_are_answered_and_overtake_nothing(cluster: CutCluster) -> None:
    with trio.fail_after(LIMIT_S):
        async with cluster.beta.shim() as agent:
            await echoes(agent, ["first"])
            cluster.proxy.slow(delay_s=0.05)
            for _ in range(5):
                await echoes(agent, [f"call {number}" for number in range(64)])


@behaviour("cluster:cuts")
async def test_a_cut_of_seconds_costs_a_pause_in_whichever_direction(cluster: CutCluster) -> None:
    ways: tuple[Ways, ...] = ("both", "there", "back")
    with trio.fail_after(LIMIT_S):
        async with cluster.beta.shim() as agent:
            await echoes(agent, ["before"])
            for way in ways:
                cluster.proxy.stall(way)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(pause, cluster)
                    await echoes(agent, [f"meanwhile {way} {number}" for number in range(10)])
                await echoes(agent, [f"after {way}"])


@behaviour("cluster:cuts")
async def test_connections_that_break_under_load_lose_and_double_no_call(cluster: CutCluster) -> None:
    breaks = 0

    async def break_often(cluster: CutCluster, agent: LineAgent) -> None:
        nonlocal breaks
        proxy = cluster.proxy
        while True:
            answered = len(agent.answers)
            for _ in range(BREAKS_IN_A_ROW):
                carried_bytes = proxy.carried_bytes + BREAK_BYTES
                await until(lambda: proxy.carried_bytes > carried_bytes, "calls pass")  # noqa: B023 - awaited here
                proxy.cut()
                breaks += 1
            await until(lambda: len(agent.answers) > answered, "a call is answered")  # noqa: B023 - awaited here

    with trio.fail_after(LIMIT_S):
        async with cluster.beta.shim() as agent:
            await echoes(agent, ["before"])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(break_often, cluster, agent)
                rounds = 0
                while rounds < 3 or breaks < 10:  # a slow machine breaks the link less often in one round
                    await echoes(agent, [f"{rounds} {number} {'x' * 20_000}" for number in range(20)])
                    rounds += 1
                nursery.cancel_scope.cancel()


@behaviour("cluster:fair")
async def test_a_small_call_overtakes_megabytes_of_another_agent_on_a_slow_link(cluster: CutCluster) -> None:
    big = "x" * 6_000_000  # twelve seconds at this bandwidth, and the small calls take less
    with trio.fail_after(LIMIT_S):
        async with (
            cluster.beta.shim() as greedy,
            cluster.beta.shim() as modest,
        ):
            for agent in (greedy, modest):
                await echoes(agent, ["before"])
            cluster.proxy.slow(delay_s=0.01, bytes_per_s=500_000)
            started = await greedy.start("echo__echo", {"text": big})
            for number in range(5):
                await echoes(modest, [f"small {number}"])
            assert started not in greedy.answers, "the megabytes take seconds"
            cluster.proxy.slow()
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
                    lambda facts: any(each["in_flight"] for each in facts["servers"]["slow"]["instances"]),
                    "the server runs the call",
                )
                cluster.proxy.stall()
                assert await agent.text("near__echo", {"text": "local"}) == "local"
                with trio.fail_after(LOST_S + 30):
                    said = await agent.answer(started)
                assert "maybe" in str(said), said
                assert await agent.text("near__echo", {"text": "local"}) == "local"
                await cluster.beta.until(lambda facts: "echo" not in facts["servers"], "alpha is lost")
                cluster.proxy.heal()
                await cluster.beta.until(lambda facts: "echo" in facts["servers"], "alpha is back")
                await echoes(agent, ["after"])


def memory_mib(pid: int) -> float:
    """The memory of a process."""
    return float(psutil.Process(pid).memory_info().rss) / 2**20


@each_kind
@behaviour("cluster:fair")
async def test_an_agent_that_does_not_read_holds_up_nobody_and_fills_no_node(kind: str) -> None:
    text = "y" * 2_000_000
    with trio.fail_after(LIMIT_S):
        async with (
            cut_cluster(kind, {**SERVERS, "big": kit("big")}) as cluster,
            cluster.beta.shim() as modest,
        ):
            await echoes(modest, ["before"])
            nodes = [one.carpool_json("cluster", "status")["pid"] for one in (cluster.alpha, cluster.beta)]
            before = [memory_mib(pid) for pid in nodes]
            silent = await trio.lowlevel.open_process(
                cluster.beta.command("connect"),
                env=cluster.beta.environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert silent.stdin is not None
            try:
                await silent.stdin.send_all(b"".join(greeting()))
                for number in range(30):
                    call = {"name": "echo__echo", "arguments": {"text": text}}
                    with trio.move_on_after(UNREAD_S) as sending:
                        await silent.stdin.send_all(request(number, "tools/call", call))
                    if sending.cancelled_caught:  # it is read no further: that is a bound, too
                        break
                for number in range(20):
                    await echoes(modest, [f"small {number}"])
                said = await modest.answer(await modest.start("big__big", {"bytes": BIG_BYTES}))
                assert len(said["result"]["content"][0]["text"]) == BIG_BYTES
                after = [memory_mib(pid) for pid in nodes]
                assert all(now < then + 100 for now, then in zip(after, before, strict=True)), (before, after)
            finally:
                silent.kill()
                await silent.wait()
                await silent.stdin.aclose()
                assert silent.stdout is not None
                await silent.stdout.aclose()


def request(number: int, method: str, params: Json) -> bytes:
    """The line of a request."""
    said = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return json.dumps(said).encode() + b"\n"


def greeting() -> list[bytes]:
    """The first lines of an agent."""
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
    done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    return [request(9999, "initialize", hello), json.dumps(done).encode() + b"\n"]


@behaviour("cluster:tls")
async def test_a_node_that_a_server_with_tls_refuses_says_why_and_joins_once_that_is_mended(
    tmp_path: Path, daemon: Make
) -> None:
    issuer, other = Issuer(tmp_path), Issuer(tmp_path, "other")
    issuer.issue("server", "localhost")
    files = 'cert_file: "server.crt", key_file: "server.key"'
    ca = tmp_path / "used.pem"
    ca.write_bytes(other.file.read_bytes())
    with trio.fail_after(LIMIT_S), nats_server(tmp_path, JETSTREAM + f"tls {{ {files} }}\n") as server:
        url = f"tls://localhost:{server.port}"
        alpha = daemon(SERVERS, cluster={"url": url, "node": "alpha", "ca": str(issuer.file)})
        beta = daemon({"near": kit("echo")}, cluster={"url": url, "node": "beta", "ca": str(ca)})
        await alpha.until(lambda facts: "echo" in facts["servers"], "alpha is up")

        def trouble() -> str:
            done = beta.run("cluster", "status")
            return done.stdout if done.returncode == 0 else ""

        await until(lambda: "check `cluster.ca`" in trouble(), "the refusal is told")
        assert "not reached for" in trouble()
        assert beta.log("node").count("check `cluster.ca`") == 1
        async with beta.shim() as agent:
            assert await agent.text("near__echo", {"text": "alone"}) == "alone"
        ca.write_bytes(issuer.file.read_bytes())
        await beta.until(lambda facts: "echo" in facts["servers"], "beta has joined")
        assert "check `cluster.ca`" not in trouble()
