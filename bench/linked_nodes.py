"""Three nodes of a cluster on this machine, of which B is at the end of a cable whose faults a bench chooses.

Over NATS, the NATS server stands beside A, and B reaches it through the cable. Over ZeroMQ with keys, each
connection between B and another node passes the cable. Each node has one server, named after it, that writes
down which calls it runs. Owns starting, killing and stopping of nodes, and what `carpool status` of A says.

Knows nothing of: which faults happen when, what calls must survive.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import trio

from bench.cable_proxy import CableProxy
from bench.soak import TALLY
from carpool.cluster.embedded_nats import EmbeddedNats
from carpool.cluster.node_facts import read_facts
from carpool.launcher.own_command import carpool_argv
from carpool.launcher.sandbox import PrivateCarpool
from carpool_protocol.bootstrap import paths
from tests.kit.ports import free_port

LinkKind = Literal["nats", "zmq"]
NAMES: Final = ("a", "b", "c")
DAEMONS: Final = ("launcher", "broker", "supervisor", "node")
READY_S: Final = 60.0
STATUS_S: Final = 15.0


class TalliedCarpool:
    """A private carpool with one server, which writes its calls down."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.private = PrivateCarpool("cpl-")
        self.tally = self.private.base / "tally"
        self.tally.touch()

    def configure(self, **settings: Any) -> None:
        """Write the configuration, with these settings beside the server."""
        server = {
            "command": sys.executable,
            "args": ["-S", "-E", str(TALLY), str(self.tally)],
            "sharing": "concurrent",
        }
        self.private.config_file.write_text(json.dumps({"mcpServers": {self.name: server}, **settings}))

    @property
    def door_port(self) -> int:
        """The port of its HTTP door."""
        url: str = json.loads((Path(self.private.directory) / "http.json").read_text())["url"]
        return int(url.rpartition(":")[2].partition("/")[0])

    @property
    def agents_socket(self) -> str:
        """Where agents connect."""
        return paths.agents_socket(self.private.directory)

    def ran(self) -> Counter[str]:
        """Return how often each mark was written down."""
        return Counter(self.tally.read_text().split())

    async def up(self) -> None:
        """Start it."""
        await trio.to_thread.run_sync(self.private.up)

    async def processes(self) -> list[dict[str, Any]]:
        """Return its processes, as `carpool ps` shows them."""
        said = await trio.to_thread.run_sync(self.private.run_carpool, "ps", "--json")
        return msgspec.json.decode(said, type=dict[str, list[dict[str, Any]]])["processes"]

    async def pids(self, *roles: str) -> list[int]:
        """Return its processes of these roles."""
        return [row["pid"] for row in await self.processes() if row["role"] in roles and row["pid"]]

    async def say(self, *arguments: str) -> tuple[int, str]:
        """Run a command and return its exit code and its output, whatever it says."""
        done = await trio.to_thread.run_sync(
            lambda: subprocess.run(
                [*carpool_argv(), *arguments],
                env=self.private.environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=STATUS_S,
                check=False,
            )
        )
        return done.returncode, done.stdout or done.stderr

    def close(self) -> None:
        """End it."""
        for trouble in self.private.close():
            print(f"  {self.name}: {trouble}", file=sys.stderr)


class LinkedNodes:
    """The nodes A, B and C."""

    def __init__(self, kind: LinkKind) -> None:
        self.kind = kind
        self.nodes = {name: TalliedCarpool(name) for name in NAMES}
        self.proxy = CableProxy()
        self._base = PrivateCarpool("cpl-")
        self.nats = EmbeddedNats(str(self._base.base / "nats"))
        self._stopped: Sequence[int] = ()

    @property
    def a(self) -> TalliedCarpool:
        """The node of the agents."""
        return self.nodes["a"]

    @property
    def b(self) -> TalliedCarpool:
        """The node at the end of the cable."""
        return self.nodes["b"]

    async def start(self, nursery: trio.Nursery) -> None:
        """Start them, and wait until each has an offer of all others and A lists their servers."""
        settings = self._over_nats(nursery) if self.kind == "nats" else await self._over_zmq(nursery)
        for name, node in self.nodes.items():
            node.configure(cluster={"node": name, **settings[name]}, list_wait_s=20)
        async with trio.open_nursery() as starting:
            for node in self.nodes.values():
                starting.start_soon(node.up)
        await self.until_met()

    async def until_met(self) -> None:
        """Wait until each node has an offer of all others, and A lists their servers."""
        with trio.fail_after(READY_S):
            while not await self._have_met():  # noqa: ASYNC110 - the facts are in files
                await trio.sleep(0.1)

    async def _have_met(self) -> bool:
        for node in self.nodes.values():
            facts = read_facts(node.private.directory)
            if facts is None or {each.offer.node for each in facts.nodes if each.is_reached} != set(NAMES) - {
                node.name
            }:
                return False
        status = await trio.to_thread.run_sync(self.a.private.status)
        return set(NAMES) <= set(status["servers"])

    def _over_nats(self, nursery: trio.Nursery) -> dict[str, dict[str, Any]]:
        own_port = self.nats.launch()
        address = self.nats.url.rpartition(":")[0]
        port = self.proxy.listen(nursery, own_port)
        return {name: {"url": f"{address}:{port}" if name == "b" else self.nats.url} for name in NAMES}

    async def _over_zmq(self, nursery: trio.Nursery) -> dict[str, dict[str, Any]]:
        ports = {name: free_port() for name in NAMES}
        keys = {}
        for name, node in self.nodes.items():
            node.configure()
            said = await trio.to_thread.run_sync(
                node.private.run_carpool,
                "cluster",
                "key",
                "--config",
                str(node.private.config_file),
                "--json",
            )
            keys[name] = json.loads(said)["public_key"]
        into_b = self.proxy.listen(nursery, ports["b"], reverse=True)
        out_of_b = {name: self.proxy.listen(nursery, ports[name]) for name in NAMES if name != "b"}
        seen = {name: {**ports, **(out_of_b if name == "b" else {"b": into_b})} for name in NAMES}
        return {
            name: {
                "url": f"tcp://127.0.0.1:{ports[name]}",
                "peers": [
                    f"{other} tcp://127.0.0.1:{seen[name][other]} {keys[other]}"
                    for other in NAMES
                    if other != name
                ],
            }
            for name in NAMES
        }

    # --- faults ----------------------------------------------------------------------------------------

    async def kill_b(self, *roles: str) -> None:
        """Kill these processes of B, all at once."""
        for pid in await self.b.pids(*roles):
            os.kill(pid, signal.SIGKILL)

    async def stop_b(self) -> None:
        """Stop all processes of B, as if its machine slept."""
        self._stopped = await self.b.pids(*DAEMONS, "instance")
        for pid in self._stopped:
            os.kill(pid, signal.SIGSTOP)

    def continue_b(self) -> None:
        """Let them go on."""
        for pid in self._stopped:
            os.kill(pid, signal.SIGCONT)
        self._stopped = ()

    async def look(self) -> list[str]:
        """Return what A says of itself and of B: the exit code and the ends of `status`, B's line of `cluster
        status`.
        """
        code, status = await self.a.say("status")
        lines = [line for line in status.splitlines() if line.strip()] or [""]
        _, cluster = await self.a.say("cluster", "status")
        of_b = [line for line in cluster.splitlines() if line.split()[:1] == ["b"]]
        return [
            f"status, exit code {code}: {lines[0].strip()} ... {lines[-1].strip()}",
            f"cluster status: {' '.join(of_b[0].split()) if of_b else 'b is not in it'}",
        ]

    def ran(self) -> Counter[str]:
        """Return how often each mark was written down, at all nodes."""
        return sum((node.ran() for node in self.nodes.values()), Counter[str]())

    def close(self) -> None:
        """End everything."""
        self.continue_b()
        for node in self.nodes.values():
            node.close()
        self.nats.stop()
        self._base.close()
