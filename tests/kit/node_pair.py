"""Two nodes of which the link and the clock alone are not the product's: real pipes, sockets and processes.

Alpha has agents, whose supervisor a test plays; beta has a server, whose broker a test plays. Between them
run two `NodeProcess`es with their cores, near ends, timers and sockets, in one thread on virtual time. The
link has a delay, a bandwidth, losses and cuts. `play_over` runs them over links of the product, in real time
(`real_pair_network`).

Owns the link, the life of both processes, and the checks that nothing is left at the end. Knows nothing of:
what is said on sessions.
"""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from math import inf
from pathlib import Path
from random import Random
from typing import Final, Protocol
from unittest import mock

from carpool.cluster import process
from carpool.cluster.core.frames import FRAME_BYTES
from carpool.cluster.links.link import LinkEvents, NodeLink
from carpool.cluster.process import NodeConfig, NodeProcess
from carpool.cluster.settings import node_settings
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.reading.load import ConfigFile, load_layer
from carpool_protocol.runtime.node_join import read_join
from tests.kit.leaks import open_fds, opened_since
from tests.kit.scripted_ends import ScriptedEnd, ScriptedSupervisor, SessionBroker
from tests.kit.virtual_loop import run_virtually

SERVER: Final = "echo"
MAX_QUEUED_FRAMES: Final = 512
"""Frames that wait for the link; further ones are dropped, as by ZeroMQ."""
SLOW_READER_S: Final = 30.0
"""The default of `session.slow_reader_s`."""
WAIT_S: Final = 600.0
"""The longest virtual time to wait for anything."""
REAL_WAIT_S: Final = 60.0
"""The longest real time, over links of the product."""
LAST_TASKS_S: Final = 1.0
"""So long tasks may go on that were ended with the nodes."""


class LinkWay:
    """One direction between the two nodes."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self.lag_s = 0.001
        self.bytes_per_s = inf
        self.loss = 0.0
        """The part of frames that is lost."""
        self.is_cut = False
        self.passed_bytes = 0
        self._life = 0
        self._free_at = 0.0
        self._queued = 0
        self.arrive: Callable[[bytes], None] = lambda _: None

    def cut(self) -> None:
        """Lose everything that is under way, and carry nothing until `is_cut` is False."""
        self.is_cut = True
        self._life += 1
        self._queued = 0
        self._free_at = 0.0

    def send(self, frame: bytes) -> None:
        """Carry a frame."""
        if self.is_cut or self._queued >= MAX_QUEUED_FRAMES or self._chance.random() < self.loss:
            return
        self._queued += 1
        self._free_at = max(self._free_at, self._loop.time()) + len(frame) / self.bytes_per_s
        self._loop.call_at(self._free_at + self.lag_s, self._come, frame, self._life)

    def _come(self, frame: bytes, life: int) -> None:
        if life == self._life:
            self._queued -= 1
            self.passed_bytes += len(frame)
            self.arrive(frame)


class PairLink:
    """One node's end of the link (`NodeLink`)."""

    stores_offers = False
    frame_bytes = FRAME_BYTES
    is_up = True
    problem = ""

    def __init__(self, other: str, out: LinkWay, back: LinkWay) -> None:
        self.peers = [other]
        self._out, self._back = out, back

    def send(self, node: str, frame: bytes) -> None:
        """As `NodeLink.send`."""
        assert [node] == self.peers
        self._out.send(frame)

    async def publish(self, offer: bytes) -> None:
        """Nothing: channels carry offers."""

    async def leave(self) -> None:
        """Nothing: the channels end."""

    async def run(self, events: LinkEvents) -> None:
        """As `NodeLink.run`."""
        self._back.arrive = lambda frame: events.frame_received(self.peers[0], frame)
        events.restored()
        await asyncio.Event().wait()


class PairNetwork(Protocol):
    """What is between the two nodes."""

    links: Mapping[str, NodeLink]
    """The end of each node."""

    def slow(self, *, bytes_per_s: float = inf, lag_s: float = 0.001) -> None:
        """Give the link this bandwidth and delay, each way."""

    def disturb(self) -> None:
        """Have less get through than is sent, until it is healed."""

    def cut(self) -> None:
        """Cut the link: what is under way is lost."""

    def heal(self) -> None:
        """Mend it. Bandwidth and delay stay."""


class VirtualNetwork:
    """Two `PairLink`s. `seed`: of losses."""

    def __init__(self, seed: int) -> None:
        chance = Random(seed)
        there, back = LinkWay(chance), LinkWay(chance)
        self._ways = (there, back)
        self.links: Mapping[str, NodeLink] = {
            "alpha": PairLink("beta", there, back),
            "beta": PairLink("alpha", back, there),
        }

    def slow(self, *, bytes_per_s: float = inf, lag_s: float = 0.001) -> None:
        """See `PairNetwork`."""
        for way in self._ways:
            way.bytes_per_s, way.lag_s = bytes_per_s, lag_s

    def disturb(self) -> None:
        """Lose a part of the frames."""
        for way in self._ways:
            way.loss = 0.1

    def cut(self) -> None:
        """Cut both ways until they are healed."""
        for way in self._ways:
            way.cut()

    def heal(self) -> None:
        """See `PairNetwork`."""
        for way in self._ways:
            way.is_cut, way.loss = False, 0.0


class NodePair:
    """The two nodes. `wait_s`: the longest time to wait for anything, on the clock of the loop."""

    def __init__(self, base: str, network: PairNetwork, slow_reader_s: float, wait_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.network = network
        self._wait_s = wait_s
        self.agents: dict[int, ScriptedEnd] = {}
        self._directories = {name: os.path.join(base, name) for name in ("alpha", "beta")}
        for directory in self._directories.values():
            os.mkdir(directory, mode=0o700)
        self.broker = SessionBroker(self._directories["beta"], self.agents, slow_reader_s)
        nodes = {
            name: NodeProcess(
                directory, _config(name, directory), link=network.links[name], url=f"ipc:///{name}"
            )
            for name, directory in self._directories.items()
        }
        self._nodes = nodes
        self._serving = {name: asyncio.create_task(node.serve(None)) for name, node in nodes.items()}
        self.supervisor: ScriptedSupervisor | None = None

    @property
    def now(self) -> float:
        """Return the time of the loop."""
        return self._loop.time()

    async def until(self, holds: Callable[[], object], what: str, within_s: float = inf) -> None:
        """Let time pass until a condition holds."""
        within_s = min(within_s, self._wait_s)
        end = self.now + within_s
        while not holds():
            assert self.now < end, f"after {within_s:g} s still not: {what}"
            for name, serving in self._serving.items():
                assert not serving.done(), f"the process of node {name} has ended"
            await asyncio.sleep(0.01)

    async def meet(self) -> None:
        """Wait until the nodes reach each other, and alpha knows beta's server."""
        path = Path(paths.node_servers_file(self._directories["alpha"]))
        await self.until(lambda: path.exists() and SERVER in path.read_text(), "they meet")

    async def start(self) -> None:
        """Wait until they meet, and start the supervisor of alpha."""
        await self.meet()
        self.supervisor = ScriptedSupervisor(paths.node_socket(self._directories["alpha"]))

    def open(self) -> int:
        """Open a session of an agent of alpha at beta's server. Returns its instance."""
        assert self.supervisor is not None
        instance = len(self.agents) + 1
        self.agents[instance] = self.supervisor.open(instance, "beta", SERVER)
        self.agents[instance].say(b"%d " % instance)
        return instance

    async def reach(self) -> None:
        """Open sessions until the broker has one: nodes that do not reach each other yet refuse some."""
        end = self.now + self._wait_s
        while not await self._is_opened(self.open()):
            assert self.now < end, "each session was refused"

    async def _is_opened(self, instance: int) -> bool:
        """Wait until the broker has this session, or the supervisor was told that it has failed."""
        sessions, supervisor = self.broker.sessions, self.supervisor
        assert supervisor is not None
        await self.until(
            lambda: instance in sessions or supervisor.answers("failed", instance),
            "the session is open or was refused",
        )
        return instance in sessions

    async def session(self) -> tuple[ScriptedEnd, ScriptedEnd]:
        """Open a session and return both of its ends: the agent's, and the broker's."""
        instance = self.open()
        await self.until(lambda: instance in self.broker.sessions, "the broker has the session")
        return self.agents[instance], self.broker.sessions[instance]

    async def close(self) -> None:
        """End everything. Raises what has failed."""
        for end in self.agents.values():
            end.end()
        if self.supervisor is not None:
            self.supervisor.close()
        for node in self._nodes.values():
            node.stop()
        codes = await asyncio.gather(*self._serving.values())
        self.broker.close()
        assert codes == [0, 0], "a callback in a node's process has failed: see its log"
        if left := asyncio.all_tasks() - {asyncio.current_task()}:
            _, left = await asyncio.wait(left, timeout=LAST_TASKS_S)
        assert not left, f"tasks are left: {left}"


def _config(name: str, directory: str) -> NodeConfig:
    other = "beta" if name == "alpha" else "alpha"
    path = os.path.join(directory, "carpool.json")
    servers = (
        f'{{"{SERVER}": {{"command": "/bin/cat", "sharing": "concurrent"}}}}' if name == "beta" else "{}"
    )
    Path(path).write_text(
        f'{{"cluster": {{"url": "ipc:///{name}", "node": "{name}", "peers": ["{other} ipc:///{other}"]}}, '
        f'"mcpServers": {servers}}}'
    )
    file = ConfigFile(path, asked_for=True)
    config = load_layer(file, directory).loaded.config
    assert config is not None
    settings = node_settings(config, read_join(directory), directory)
    assert settings is not None
    return NodeConfig(file, directory, settings, process._stamps(file, directory))


Script = Callable[[NodePair], Awaitable[None]]


def play(script: Script, *, seed: int = 0, slow_reader_s: float = SLOW_READER_S) -> None:
    """Run a script against two nodes that have met, on virtual time. Fails if it leaves a task or a
    descriptor.
    """

    async def run(base: str) -> None:
        await _run(script, NodePair(base, VirtualNetwork(seed), slow_reader_s, WAIT_S))

    with _surroundings() as base:
        run_virtually(run(base))


def play_over(
    networks: Callable[[str], AbstractAsyncContextManager[PairNetwork]], script: Script, slow_reader_s: float
) -> None:
    """The same over a network of the product, in real time. `networks` makes it, in a directory."""

    async def run(base: str) -> None:
        async with networks(base) as network:
            await _run(script, NodePair(base, network, slow_reader_s, REAL_WAIT_S))

    with _surroundings() as base:
        asyncio.run(run(base))


async def _run(script: Script, pair: NodePair) -> None:
    failed = False
    try:
        await pair.start()
        await script(pair)
    except BaseException:
        failed = True
        raise
    finally:
        try:
            await pair.close()
        except AssertionError:
            if not failed:
                raise


@contextmanager
def _surroundings() -> Iterator[str]:
    """A directory for both nodes. Fails if a descriptor is left."""
    before = open_fds(with_garbage=True)
    with (
        tempfile.TemporaryDirectory(prefix="cp-", dir="/tmp") as base,
        mock.patch.dict(os.environ, {"CARPOOL_STATE_DIR": os.path.join(base, "state")}),
        mock.patch.object(process, "raise_descriptor_limit", lambda wished: wished),
    ):
        yield base
    left = opened_since(before)
    assert not left, f"descriptors are left: {left}"
