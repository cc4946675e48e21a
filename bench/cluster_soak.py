"""`python -m bench.cluster_soak`: three nodes of a cluster on this machine, with deaths and cuts under load.

Each node is a private carpool with one server; agents on each call the servers of all. A process of one node
is killed (its broker, supervisor, node's process, or all of the node), NATS is killed and comes back, or a
node's way to NATS is cut. Every request must have exactly one answer, nothing may run twice, nothing that was
told as not delivered may have run. Bounded by `--seconds`; ends what it has started.

Knows nothing of: how carpool survives anything.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import trio

from bench.cable_proxy import CableProxy
from bench.soak import SERVERS, TALLY, SoakAgent, SoakLedger
from carpool.cluster.embedded_nats import EmbeddedNats
from carpool.launcher.sandbox import PrivateCarpool, PrivateCarpoolError
from carpool_protocol.bootstrap import paths

CUTS = ("cut", "half open", "reset", "slow", "long cut", "down", "long down")
VICTIMS = ("broker", "supervisor", "node", "carpool", "nats", *CUTS[:4], "shim", "instance")
SHORT_CUT_S, LONG_CUT_S = 5.0, 60.0
READY_S = 60.0


class SoakedNode:
    """One node: a private carpool with one server of its own, and its agents."""

    def __init__(
        self,
        name: str,
        ledger: SoakLedger,
        written: Path,
        chance: random.Random,
        options: argparse.Namespace,
        *,
        private: PrivateCarpool,
    ) -> None:
        self.name = name
        self.private = private
        self.written = written
        self.proxy = CableProxy()
        first = SERVERS.index(name) * options.agents
        numbers = range(first, first + options.agents)
        self.agents = [SoakAgent(number, self.private, ledger, chance, options.pause) for number in numbers]

    def configure(self, url: str) -> None:
        """Write its configuration: the server of its name, and the cluster at this URL."""
        server = {
            "command": sys.executable,
            "args": ["-S", "-E", str(TALLY), str(self.written)],
            "sharing": "concurrent",
            "restart": {"give_up_after": 1000, "max_delay_s": 1},
        }
        cluster = {"url": url, "node": self.name}
        config = {"mcpServers": {self.name: server}, "cluster": cluster, "list_wait_s": 20}
        self.private.config_file.write_text(json.dumps(config))

    def facts(self) -> dict[str, Any]:
        """The facts that its node's process wrote down; empty while there is none."""
        try:
            facts: dict[str, Any] = json.loads(Path(paths.node_file(self.private.directory)).read_text())
        except (OSError, ValueError):
            return {}
        return facts

    async def pid_of(self, role: str) -> int:
        """A process of this role; 0 if there is none."""
        try:
            said = await trio.to_thread.run_sync(self.private.run_carpool, "ps", "--json")
            rows = json.loads(said)["processes"]
        except (PrivateCarpoolError, ValueError):
            return 0
        pids = [row["pid"] for row in rows if row["role"] == role and row["pid"]]
        return int(random.choice(pids)) if pids else 0


class SoakedCluster:
    """Three nodes and a NATS server."""

    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self.chance = random.Random(options.seed)
        self.ledger = SoakLedger()
        self.written = directory / "ledger"
        self.written.touch()
        self.nats = EmbeddedNats(str(directory / "nats"))
        self.nodes = [
            SoakedNode(name, self.ledger, self.written, self.chance, options, private=self.new_private(name))
            for name in SERVERS
        ]
        self.victims = tuple(options.victims.split(","))
        self.every_s = options.every
        self.kills: Counter[str] = Counter()

    def new_private(self, _name: str) -> PrivateCarpool:
        """Return the carpool of a node."""
        return PrivateCarpool("cpn-")

    async def start(self, nursery: trio.Nursery) -> None:
        """Start NATS, the network and the nodes, and wait until each node has the servers of all."""
        await self.connect(nursery)
        for node in self.nodes:
            await trio.to_thread.run_sync(node.private.up)
        with trio.fail_after(READY_S):
            while not all(  # noqa: ASYNC110 - the facts are in files
                len(node.facts().get("nodes", [])) == len(self.nodes) - 1 for node in self.nodes
            ):
                await trio.sleep(0.2)

    async def connect(self, nursery: trio.Nursery) -> None:
        """Start NATS and the proxies, and write the configurations."""
        self.nats.launch()
        address, _, port = self.nats.url.rpartition(":")
        for node in self.nodes:
            node.configure(f"{address}:{node.proxy.listen(nursery, int(port))}")

    async def cut(self, node: SoakedNode, victim: str) -> None:
        """Cut the way of a node to NATS for a while, in one of the ways that `VICTIMS` names."""
        proxy = node.proxy
        if victim == "reset":
            proxy.cut()
            return
        if victim == "slow":
            proxy.slow(delay_s=0.05, bytes_per_s=500_000)
        else:
            proxy.stall("back" if victim == "half open" else "both")
        await trio.sleep(LONG_CUT_S if victim == "long cut" else SHORT_CUT_S)
        proxy.slow()
        proxy.heal()

    def heal(self) -> None:
        """End all cuts."""
        for node in self.nodes:
            node.proxy.heal()

    async def storm(self, stop: trio.Event) -> None:
        """Kill or cut one thing after the other."""
        while not stop.is_set():
            with trio.move_on_after(self.chance.uniform(0.5, 1.5) * self.every_s):
                await stop.wait()
                return
            await self._strike(self.chance.choice(self.victims), self.chance.choice(self.nodes))

    async def _strike(self, victim: str, node: SoakedNode) -> None:
        if victim == "nats":
            self.nats.kill()
            await trio.sleep(self.chance.uniform(0.0, 2.0))
            self.nats.launch()
        elif victim in CUTS:
            await self.cut(node, victim)
        elif victim == "carpool":
            await self._kill_carpool(node)
        else:
            pid = self.chance.choice(node.agents).pid if victim == "shim" else await node.pid_of(victim)
            if not pid:
                return
            os.kill(pid, signal.SIGKILL)
        self.kills[victim] += 1

    async def _kill_carpool(self, node: SoakedNode) -> None:
        """Kill all processes of a node at once, and start it again."""
        try:
            said = await trio.to_thread.run_sync(node.private.run_carpool, "ps", "--json")
            rows = json.loads(said)["processes"]
        except (PrivateCarpoolError, ValueError):
            return
        for row in rows:
            if row["role"] in {"launcher", "broker", "supervisor", "node"} and row["pid"]:
                os.kill(row["pid"], signal.SIGKILL)
        try:
            await trio.to_thread.run_sync(node.private.up)
        except PrivateCarpoolError as error:  # an agent was faster
            print(f"  {node.name}: {str(error).splitlines()[-1]}")

    def close(self) -> None:
        """End everything."""
        for node in self.nodes:
            node.private.close()
        self.nats.stop()


async def soak(options: argparse.Namespace, cluster: SoakedCluster) -> None:
    """Run agents and deaths for the given time."""
    stop = trio.Event()
    async with trio.open_nursery() as outer:
        await cluster.start(outer)
        print(f"three nodes are up; {3 * options.agents} agents call for {options.seconds:g} s", flush=True)
        began = time.monotonic()
        async with trio.open_nursery() as nursery:
            for node in cluster.nodes:
                for agent in node.agents:
                    nursery.start_soon(agent.run, stop)
            nursery.start_soon(cluster.storm, stop)
            while time.monotonic() < began + options.seconds:
                await trio.sleep(min(10.0, options.seconds))
                ledger = cluster.ledger
                passed = time.monotonic() - began
                print(f"  {passed:4.0f} s: {ledger.asked} asked, {dict(cluster.kills)}", flush=True)
            cluster.heal()
            stop.set()
        outer.cancel_scope.cancel()


def soak_parser(
    prog: str, text: str, *, seconds: float, agents: int, every_s: float, victims: Sequence[str]
) -> argparse.ArgumentParser:
    """Return the options of a soak, with these defaults."""
    parser = argparse.ArgumentParser(prog=prog, description=text.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--agents", type=int, default=agents, help="on each node")
    parser.add_argument("--pause", type=float, default=1.0, help="the longest time between bursts of calls")
    parser.add_argument("--every", type=float, default=every_s, help="seconds between two faults, about")
    parser.add_argument("--victims", default=",".join(victims), help="what fails, with commas")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def run_soak(options: argparse.Namespace, make: Callable[[Path], SoakedCluster]) -> int:
    """Run a soak of the cluster that `make` returns, and print the result. Returns 1 if a promise was broken.
    `make` gets a directory for files.
    """
    holder = PrivateCarpool("cpc-")
    cluster = make(holder.base)
    try:
        trio.run(soak, options, cluster)
        return _report(cluster)
    finally:
        cluster.close()
        holder.close()


def main(argv: list[str]) -> int:
    """Run the soak. Returns 1 if a promise was broken."""
    parser = soak_parser(
        "python -m bench.cluster_soak", __doc__, seconds=120.0, agents=10, every_s=4.0, victims=VICTIMS
    )
    options = parser.parse_args(argv)
    return run_soak(options, lambda directory: SoakedCluster(options, directory))


def _report(cluster: SoakedCluster) -> int:
    """Print the result. Returns 1 if a promise was broken."""
    ledger = cluster.ledger
    faults = ledger.judge(cluster.written.read_text())
    print(f"{ledger.asked} calls, longest {ledger.longest_s:.1f} s, {dict(cluster.kills)}")
    for end, count in ledger.ends.most_common():
        print(f"  {count:6} {end}")
    for fault in faults[:50]:
        print(f"FAULT {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
