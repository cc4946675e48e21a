"""`carpool demo --cluster`: three nodes on this machine, agents on two of them, the server on the third.

Owns the order of events: a calm phase, NATS killed and started again, the node with the server killed and
started again; and the table of what the agents saw. Each answer is checked.

Knows nothing of: how nodes reach each other, the user's own carpool.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from carpool.api import Carpool
from carpool.cluster.embedded_nats import EmbeddedNats
from carpool.cluster.links.link import LinkError
from carpool.errors import CarpoolError
from carpool.launcher.sandbox import PrivateCarpool, PrivateCarpoolError
from carpool.terminal import display

NODES: Final = ("alpha", "beta", "gamma")
HOME: Final = "gamma"
"""The node that runs the server; the agents are at the others."""
PHASE_S: Final = 8.0
READY_S: Final = 30.0
PAUSE_S: Final = 0.2
ECHO: Final = Path(__file__).with_name("echo_server.py")


class PhaseFigures:
    """What all agents saw in one phase."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answered = 0
        self.errors: Counter[str] = Counter()
        """Honest errors, by what they say of the delivery: `no` or `maybe`."""
        self.wrong = 0
        self.longest_s = 0.0

    def row(self) -> list[object]:
        """Its row of the table."""
        figures = (self.answered, self.errors["no"], self.errors["maybe"], self.wrong)
        return [self.name, *figures, f"{self.longest_s:.1f} s"]


class ClusterDemo:
    """Three private carpools and a NATS server. `say` prints a line of progress."""

    def __init__(self, agents: int) -> None:
        self._agents = agents
        self._homes = {name: PrivateCarpool("cpd-") for name in NODES}
        self._nats = EmbeddedNats(str(self._homes[HOME].base / "nats"))
        self._phase = PhaseFigures("all nodes are up")
        self.phases: list[PhaseFigures] = []
        self._restart: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start NATS and the nodes, and wait until each has the server. Raises `PrivateCarpoolError`,
        `LinkError`.
        """
        self._nats.launch()
        for name in NODES:
            self._start_node(name)
        deadline = time.monotonic() + READY_S
        while not all("echo" in self._homes[name].status()["servers"] for name in NODES):
            if time.monotonic() > deadline:
                raise PrivateCarpoolError(f"the nodes do not meet within {READY_S:g} s")
            time.sleep(0.2)

    def _start_node(self, name: str) -> None:
        home = self._homes[name]
        echo = {"command": sys.executable, "args": [str(ECHO)], "sharing": "concurrent"}
        servers = {"echo": echo} if name == HOME else {}
        config = {"mcpServers": servers, "cluster": {"url": self._nats.url, "node": name}}
        home.config_file.write_text(json.dumps(config))
        home.up()

    async def run(self) -> None:
        """Let the agents call through all phases."""
        done = asyncio.Event()
        homes = [name for name in NODES if name != HOME]
        agents = [
            asyncio.create_task(self._agent(number, homes[number % len(homes)], done))
            for number in range(self._agents)
        ]
        try:
            await self._run_phase("all nodes are up", lambda: None)
            await self._run_phase("NATS is killed and comes back", self._kill_nats)
            await self._run_phase("the server's node is killed and comes back", self._kill_node)
            if self._restart is not None:
                await self._restart
        finally:
            done.set()
            await asyncio.gather(*agents)

    async def _run_phase(self, name: str, strike: Callable[[], None]) -> None:
        self._phase = PhaseFigures(name)
        self.phases.append(self._phase)
        strike()  # in this thread, with which a NATS server that it starts would end
        await asyncio.sleep(PHASE_S)

    def _kill_nats(self) -> None:
        self._nats.kill()
        self._nats.launch()

    def _kill_node(self) -> None:
        facts = self._homes[HOME].status()
        roles = {"launcher", "broker", "supervisor", "node"}
        for row in facts["processes"]:
            if row["role"] in roles:
                os.kill(row["pid"], signal.SIGKILL)
        self._restart = asyncio.create_task(asyncio.to_thread(self._start_node, HOME))

    async def _agent(self, number: int, node: str, done: asyncio.Event) -> None:
        directory = self._homes[node].directory
        async with Carpool(runtime_dir=directory, name=f"agent-{number}", start=False) as one:
            count = 0
            while not done.is_set():
                count += 1
                await self._call(one, f"{number}-{count}")
                await asyncio.sleep(PAUSE_S)

    async def _call(self, one: Carpool, text: str) -> None:
        phase, began = self._phase, time.monotonic()
        try:
            result = await one.call("echo__echo", {"text": text})
        except CarpoolError as error:
            phase.errors[getattr(error, "delivered", None) or "no"] += 1
        else:
            if result.text == text:
                phase.answered += 1
            else:
                phase.wrong += 1
        phase.longest_s = max(phase.longest_s, time.monotonic() - began)

    def close(self) -> list[str]:
        """End everything. Returns what is left, in sentences."""
        left = [trouble for home in self._homes.values() for trouble in home.close()]
        self._nats.stop()
        return left


def perform_cluster(agents: int, *, as_json: bool) -> tuple[str, list[str]]:
    """The whole demo: its output, and what went wrong."""
    demo = ClusterDemo(agents)
    problems: list[str] = []
    try:
        demo.start()
        asyncio.run(demo.run())
    except (PrivateCarpoolError, LinkError, CarpoolError, KeyError) as error:
        problems.append(str(error))
    finally:
        problems += demo.close()
    wrong = sum(phase.wrong for phase in demo.phases)
    if wrong:
        problems.append(f"{wrong} answers were wrong")
    if as_json:
        rows = [{**vars(phase), "errors": dict(phase.errors)} for phase in demo.phases]
        return json.dumps({"ok": not problems, "phases": rows, "problems": problems}, indent=2), problems
    heads = ["PHASE", "ANSWERED", "NOT DELIVERED", "MAYBE", "WRONG", "LONGEST"]
    rows_shown = [phase.row() for phase in demo.phases]
    opening = f"{agents} agents on two nodes call a server of a third; all three are on this machine.\n\n"
    return opening + display.columns(heads, rows_shown, right=set(heads[1:])), problems
