"""Carpools of a test that are nodes of one cluster, over NATS or over ZeroMQ with keys."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from carpool.cluster.embedded_nats import EmbeddedNats
from carpool_protocol.bootstrap import paths
from tests.kit.line_agent import Json, LineAgent
from tests.kit.live import Daemon
from tests.kit.ports import free_port

READY_S: Final = 40.0
ServersOf = Mapping[str, Mapping[str, Json]]


class ClusterUnderTest:
    """The nodes by name, and the NATS server, which a test may stop and `launch` again."""

    def __init__(self, nats: EmbeddedNats) -> None:
        self.nats = nats
        self.nodes: dict[str, Daemon] = {}

    def __getitem__(self, name: str) -> Daemon:
        return self.nodes[name]

    def facts(self, name: str) -> Json:
        """What `carpool cluster status --json` prints."""
        return self.nodes[name].carpool_json("cluster", "status")

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds."""
        await until(holds, what)

    def reached(self, name: str) -> set[str]:
        """The nodes that a node reaches, with an offer."""
        path = Path(paths.node_file(str(self.nodes[name].directory)))
        if not path.exists():
            return set()
        facts = self.facts(name)
        return {each["offer"]["node"] for each in facts["nodes"] if each["is_reached"]}

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
    nodes, or for one by its name; `profiles` and `audit` are those of the file.
    """
    base = Daemon()
    nats = EmbeddedNats(str(base.base / "nats"))
    cluster = ClusterUnderTest(nats)
    try:
        nats.launch()
        for name, its in servers.items():
            own = {**{key: each for key, each in settings.items() if key not in servers}}
            own |= settings.get(name, {})
            whole = {key: own.pop(key) for key in ("profiles", "audit") if key in own}
            daemon = cluster.nodes[name] = Daemon(
                its, cluster={"url": nats.url, "node": name, **own}, **whole
            )
            daemon.up()
        await cluster.until(lambda: _all_meet(cluster), "each node reaches all others")
        yield cluster
    finally:
        for daemon in cluster.nodes.values():
            daemon.close()
        nats.stop()
        base.close()


def _all_meet(cluster: ClusterUnderTest) -> bool:
    names = set(cluster.nodes)
    return all(cluster.reached(name) == names - {name} for name in names)


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
