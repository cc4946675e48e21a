"""Carpools of a test that are nodes of one cluster, over NATS or over ZeroMQ with keys."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import trio

from carpool.cluster.embedded_nats import EmbeddedNats
from carpool.cluster.node_facts import read_facts
from tests.kit.line_agent import Json, LineAgent
from tests.kit.live import Daemon
from tests.kit.ports import free_port

READY_S: Final = 40.0
ServersOf = Mapping[str, Mapping[str, Json]]


class ClusterUnderTest:
    """The nodes by name, and the NATS server, which a test may stop and `launch` again."""

    def __init__(self) -> None:
        self.base = Daemon()
        """Only the directory of the NATS server: it never runs."""
        self.nats = EmbeddedNats(str(self.base.base / "nats"))
        self.nodes: dict[str, Daemon] = {}

    def __getitem__(self, name: str) -> Daemon:
        return self.nodes[name]

    def facts(self, name: str) -> Json:
        """Return the facts that `carpool cluster status --json` prints, from the file that it reads."""
        found = read_facts(str(self.nodes[name].directory))
        assert found is not None, f"{name} is in no cluster"
        facts: Json = msgspec.to_builtins(found)
        return facts

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds."""
        await until(holds, what)

    def reached(self, name: str) -> set[str]:
        """The nodes that a node reaches, with an offer."""
        facts = read_facts(str(self.nodes[name].directory))
        return set() if facts is None else {each.offer.node for each in facts.nodes if each.is_reached}

    def is_up(self, name: str) -> bool:
        """A node reaches the NATS server."""
        facts = read_facts(str(self.nodes[name].directory))
        return facts is not None and facts.is_up

    def quiet(self) -> None:
        """Fails unless the tests before left every node as `Daemon.quiet` wants it."""
        for daemon in self.nodes.values():
            daemon.quiet()

    def node_pid(self, name: str) -> int:
        """The pid of a node's process."""
        return int(self.facts(name)["pid"])


async def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    with trio.fail_after(READY_S):
        while not holds():  # noqa: ASYNC110 - the facts are in files
            await trio.sleep(0.05)
    assert holds(), what


@asynccontextmanager
async def cluster_of(servers: ServersOf, **settings: Any) -> AsyncIterator[ClusterUnderTest]:
    """Nodes with these servers over NATS, each of which reaches all others. `settings`: of `cluster`, for all
    nodes, or for one by its name; `profiles`, `audit` and `http` are those of the file.
    """
    cluster = ClusterUnderTest()
    try:
        await _join(cluster, servers, settings)
        yield cluster
    finally:
        with trio.CancelScope(shield=True):
            await _end(cluster)


def shared_cluster(servers: ServersOf, **settings: Any) -> Iterator[ClusterUnderTest]:
    """For a module's fixture `shared`: one cluster, as `cluster_of` makes it, for all of its tests."""
    cluster = ClusterUnderTest()
    try:
        trio.run(_join, cluster, servers, settings)
        yield cluster
    finally:
        trio.run(_end, cluster)


async def _join(cluster: ClusterUnderTest, servers: ServersOf, settings: Mapping[str, Any]) -> None:
    """Start the NATS server and the nodes, and wait until each reaches all others."""
    cluster.nats.launch()
    for name, its in servers.items():
        own = {key: each for key, each in settings.items() if key not in servers}
        own |= settings.get(name, {})
        whole = {key: own.pop(key) for key in ("profiles", "audit", "http") if key in own}
        cluster.nodes[name] = Daemon(its, cluster={"url": cluster.nats.url, "node": name, **own}, **whole)
    await all_at_once(daemon.up for daemon in cluster.nodes.values())
    await cluster.until(lambda: _all_meet(cluster), "each node reaches all others")


async def _end(cluster: ClusterUnderTest) -> None:
    try:
        await all_at_once(daemon.close for daemon in cluster.nodes.values())
    finally:
        cluster.nats.stop()
        cluster.base.close()


async def all_at_once(acts: Iterable[Callable[[], None]]) -> None:
    """Do all of this side by side, and to its end, whatever fails."""
    failed: list[BaseException] = []

    async def run(act: Callable[[], None]) -> None:
        try:
            await trio.to_thread.run_sync(act)
        except Exception as wrong:  # noqa: BLE001 - the first is raised once all have ended
            failed.append(wrong)

    async with trio.open_nursery() as nursery:
        for act in acts:
            nursery.start_soon(run, act)
    if failed:
        raise failed[0]


def _all_meet(cluster: ClusterUnderTest) -> bool:
    names = set(cluster.nodes)
    return all(cluster.is_up(name) and cluster.reached(name) == names - {name} for name in names)


def curve_settings(daemons: Mapping[str, Daemon]) -> dict[str, Json]:
    """The settings of `cluster` for nodes over TCP; their keys are made by `carpool cluster key`."""
    urls = {name: f"tcp://127.0.0.1:{free_port()}" for name in daemons}
    keys = {name: daemon.carpool_json("cluster", "key")["public_key"] for name, daemon in daemons.items()}
    return {
        name: {
            "url": urls[name],
            "node": name,
            "peers": [f"{other} {urls[other]} {keys[other]}" for other in daemons if other != name],
        }
        for name in daemons
    }


async def until_offered(cluster: ClusterUnderTest, node: str, server: str, *, there: bool = True) -> None:
    """Wait until the broker of a node has a server of another one, or has it no longer."""
    await cluster[node].until(lambda facts: (server in facts["servers"]) == there, f"{server} there: {there}")


async def until_says(agent: LineAgent, tool: str, text: str) -> None:
    """Call until the answer is there: a node that was away may take a moment to be reached again."""
    with trio.fail_after(READY_S):
        while True:
            said = await agent.answer(await agent.start(tool, {"text": text}))
            if "error" not in said and not said["result"].get("isError"):
                assert said["result"]["content"][0]["text"] == text
                return
