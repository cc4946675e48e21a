"""`python -m bench.cluster`: compares calls through a cluster with local calls and with bare NATS requests.

Starts a NATS server and two nodes on this machine; the echo server is at one of them. In each round it
measures the echo tool from an agent of that node (*local*), from one of the other node (*remote*), and
requests of the NATS client to a responder in a process of its own (*bare*), in turns. The marks: the median
of a lone remote call is at most twice the local one and one bare request; with 64 calls in flight at least
half as many remote calls as bare requests a second. Bounded; ends what it started.

Knows nothing of: how nodes reach each other, how CPU is measured (`carpool bench`).
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any, Final

import nats
from nats.aio.msg import Msg

from bench.revisions import median_interval
from carpool.bench.agents import BenchAgents, Load
from carpool.bench.arms import ECHO_ARGV
from carpool.bench.scenarios import ProcessCosts
from carpool.bench.spawn import connect
from carpool.bench.work import EchoWorkload
from carpool.cluster.embedded_nats import EmbeddedNats
from carpool.launcher.sandbox import PrivateCarpool
from carpool_protocol.bootstrap import paths
from carpool_protocol.runtime.node_join import node_pid

READY_S: Final = 30.0
SUBJECT: Final = "bench.echo"
PAYLOAD: Final = b"x" * 200
IN_FLIGHT: Final = 64
LONE_MARK, RATE_MARK = 2.0, 0.5


class MeasuredNode:
    """One node: a private carpool in the cluster."""

    def __init__(self, name: str, url: str, servers: dict[str, Any]) -> None:
        self._private = PrivateCarpool("cpb-")
        config = {"mcpServers": servers, "cluster": {"url": url, "node": name}}
        self._private.config_file.write_text(json.dumps(config))
        self._private.up()

    def wait_for(self, server: str) -> None:
        """Wait until its agents have this server."""
        deadline = time.monotonic() + READY_S
        while server not in self._private.status()["servers"]:
            if time.monotonic() > deadline:
                raise SystemExit(f"{server} is not offered after {READY_S:g} s")
            time.sleep(0.1)

    def pids(self) -> dict[str, list[int]]:
        """Its processes by role."""
        facts = self._private.status()
        supervisors = [each["pid"] for each in facts["supervisors"]]
        return {
            "broker": [facts["broker"]["pid"]],
            "supervisor": supervisors,
            "node": [node_pid(self._private.directory)],
        }

    def measure(self, agents: int, in_flight: int, seconds: float) -> tuple[float, float, ProcessCosts]:
        """Load the echo tool: the median time of a call in ms, calls per second, and CPU."""
        costs = ProcessCosts()
        costs.watch(self.pids())
        socket = paths.agents_socket(self._private.directory)
        crowd = BenchAgents([connect(socket) for _ in range(agents)])
        try:
            crowd.greet()
            load = Load(in_flight=in_flight, seconds=seconds, warmup_s=1.0)
            found = crowd.run_load(EchoWorkload("echo__echo"), load, at_start=costs.begin, at_end=costs.end)
        finally:
            crowd.close()
        if found.errors or found.unanswered:
            raise SystemExit(f"calls failed: {found.errors}, {found.unanswered} unanswered")
        if not found.latencies_s:
            raise SystemExit(f"no call has ended within {seconds:g} s: say more --seconds")
        costs.cpu_s = {role: spent / found.calls for role, spent in costs.cpu_s.items()}
        return 1000 * statistics.median(found.latencies_s), found.calls / found.seconds, costs

    def close(self) -> None:
        """End it."""
        for trouble in self._private.close():
            print(trouble, file=sys.stderr)


async def respond(url: str) -> None:
    """Answer requests with their own payload until killed."""
    client = await nats.connect(url)

    async def answer(message: Msg) -> None:
        await message.respond(message.data)

    await client.subscribe(SUBJECT, cb=answer)
    await asyncio.Event().wait()


async def bare_requests(url: str, in_flight: int, seconds: float) -> tuple[float, float]:
    """The median time of a request in ms, and requests per second."""
    client = await nats.connect(url)
    taken: list[float] = []
    end = time.monotonic() + seconds

    async def worker() -> None:
        while time.monotonic() < end:
            began = time.perf_counter()
            await client.request(SUBJECT, PAYLOAD, timeout=10)
            taken.append(time.perf_counter() - began)

    await client.request(SUBJECT, PAYLOAD, timeout=10)
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    await client.close()
    return 1000 * statistics.median(taken), len(taken) / seconds


class Rounds:
    """The figures of all rounds, one entry for each."""

    def __init__(self) -> None:
        self.lone: list[tuple[float, float, float]] = []
        """Medians in ms: local, remote, bare."""
        self.rates: dict[str, list[tuple[float, float, float]]] = {}
        """Per second, by scenario: local, remote, bare."""
        self.cpu_us: dict[str, dict[str, float]] = {}

    def report(self) -> bool:
        """Print the figures. Returns True if both marks are met."""
        local, remote, bare = (statistics.median(row[at] for row in self.lone) for at in range(3))
        ratios = [each / (LONE_MARK * near + alone) for near, each, alone in self.lone]
        low, high = median_interval(ratios)
        print(f"lone call, p50: local {local:.3f} ms, remote {remote:.3f} ms, bare NATS {bare:.3f} ms")
        print(
            f"  remote to (2 x local + bare): {statistics.median(ratios):.3f} (95 % {low:.3f} to {high:.3f})"
        )
        is_met = low <= 1.0
        for scenario, rows in self.rates.items():
            near, far, alone = (statistics.median(row[at] for row in rows) for at in range(3))
            shares = [row[1] / row[2] for row in rows]
            low, high = median_interval(shares)
            print(f"{scenario}: local {near:.0f}/s, remote {far:.0f}/s, bare NATS {alone:.0f}/s")
            print(f"  remote to bare: {statistics.median(shares):.3f} (95 % {low:.3f} to {high:.3f})")
            print(
                "  CPU of a remote call, µs: "
                + ", ".join(f"{role} {spent:.0f}" for role, spent in self.cpu_us[scenario].items())
            )
            is_met = is_met and high >= RATE_MARK
        return is_met


def measure(near: MeasuredNode, far: MeasuredNode, url: str, asked: argparse.Namespace) -> Rounds:
    """Take all rounds."""
    rounds = Rounds()
    for _ in range(asked.rounds):
        local, remote = (node.measure(1, 1, asked.seconds)[0] for node in (near, far))
        rounds.lone.append((local, remote, asyncio.run(bare_requests(url, 1, asked.seconds))[0]))
        bare = asyncio.run(bare_requests(url, IN_FLIGHT, asked.seconds))[1]
        for scenario in asked.scenarios.split(","):
            agents, in_flight = map(int, scenario.split("x"))
            there = near.measure(agents, in_flight, asked.seconds)[1]
            _, here, costs = far.measure(agents, in_flight, asked.seconds)
            rounds.rates.setdefault(scenario, []).append((there, here, bare))
            rounds.cpu_us[scenario] = {role: 1e6 * spent for role, spent in costs.cpu_s.items()}
    return rounds


def main(argv: Sequence[str]) -> int:
    """Run the command. Returns its exit code: 1 if a mark is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--scenarios", default="64x1,1x64", help="agents x in flight, with commas")
    parser.add_argument("--respond", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    if asked.respond:
        asyncio.run(respond(asked.respond))
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedNats(directory)
        nodes: list[MeasuredNode] = []
        responder: subprocess.Popen[bytes] | None = None
        try:
            asyncio.run(server.start())
            responder = subprocess.Popen([sys.executable, "-m", "bench.cluster", "--respond", server.url])
            echo = {"command": ECHO_ARGV[0], "args": ECHO_ARGV[1:], "sharing": "concurrent"}
            nodes = [MeasuredNode("alpha", server.url, {"echo": echo}), MeasuredNode("beta", server.url, {})]
            nodes[1].wait_for("echo")
            return 0 if measure(nodes[0], nodes[1], server.url, asked).report() else 1
        finally:
            for node in nodes:
                node.close()
            if responder is not None:
                responder.kill()
                responder.wait()
            server.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
