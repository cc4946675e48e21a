"""Links of the product between the two nodes of a `NodePair`: NATS and ZeroMQ.

Those over TCP go through a cable (`bench.cable_proxy`) that is slow, stalls and resets connections. Owns how
links and cable are put together. Knows nothing of: nodes, sessions, what is said.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from math import inf
from pathlib import Path
from typing import Final

import trio

from bench.cable_proxy import CableProxy
from carpool.cluster.embedded_nats import EmbeddedNats
from carpool.cluster.links.link import NodeLink
from carpool.cluster.links.nats import NatsLink
from carpool.cluster.links.nats_access import NatsAccess
from carpool.cluster.links.zmq import NodeAddress, ZmqNodeLink
from tests.kit.cut_cluster import ProxyOfThread, proxy_of_thread
from tests.kit.node_links import key_pair
from tests.kit.ports import free_port

KINDS: Final = ("ipc", "curve", "nats")
NAMES: Final = ("alpha", "beta")


class RealNetwork:
    """A `PairNetwork`. Without a cable nothing disturbs it."""

    def __init__(self, links: dict[str, NodeLink], proxy: ProxyOfThread | None = None) -> None:
        self.links: Mapping[str, NodeLink] = links
        self._proxy = proxy

    def slow(self, *, bytes_per_s: float = inf, lag_s: float = 0.001) -> None:
        """See `PairNetwork`."""
        if self._proxy is not None:
            self._proxy.slow(delay_s=lag_s, bytes_per_s=bytes_per_s)

    def disturb(self) -> None:
        """Stall: TCP loses nothing."""
        if self._proxy is not None:
            self._proxy.stall()

    def cut(self) -> None:
        """Reset all connections; they may be made again at once."""
        if self._proxy is not None:
            self._proxy.cut()

    def heal(self) -> None:
        """See `PairNetwork`."""
        if self._proxy is not None:
            self._proxy.heal()


@asynccontextmanager
async def real_pair_network(kind: str, directory: str) -> AsyncIterator[RealNetwork]:
    """Links of one of `KINDS`. Files are made in this directory."""
    with ExitStack() as over:
        match kind:
            case "ipc":
                yield _over_ipc(directory)
            case "curve":
                yield _over_curve(over)
            case _:
                yield _over_nats(over, directory)


def _over_ipc(directory: str) -> RealNetwork:
    places = {name: NodeAddress(f"ipc://{Path(directory) / name}.link") for name in NAMES}
    return RealNetwork(
        {
            "alpha": ZmqNodeLink(places["alpha"].address, "alpha", {"beta": places["beta"]}),
            "beta": ZmqNodeLink(places["beta"].address, "beta", {"alpha": places["alpha"]}),
        }
    )


def _over_curve(over: ExitStack) -> RealNetwork:
    ports = {name: free_port() for name in NAMES}
    reached: dict[str, int] = {}

    def listen(proxy: CableProxy, nursery: trio.Nursery) -> None:
        for name, port in ports.items():
            reached[name] = proxy.listen(nursery, port, reverse=name == "alpha")

    proxy = over.enter_context(proxy_of_thread(listen))
    keys = {name: key_pair() for name in NAMES}
    nodes = {name: NodeAddress(f"tcp://127.0.0.1:{reached[name]}", keys[name][0]) for name in NAMES}
    links: dict[str, NodeLink] = {
        name: ZmqNodeLink(f"tcp://127.0.0.1:{ports[name]}", name, {other: nodes[other]}, keys[name][1])
        for name, other in (NAMES, NAMES[::-1])
    }
    return RealNetwork(links, proxy)


def _over_nats(over: ExitStack, directory: str) -> RealNetwork:
    server = EmbeddedNats(str(Path(directory) / "nats"))
    over.callback(server.stop)
    port = server.launch()
    reached: list[int] = []
    proxy = over.enter_context(
        proxy_of_thread(lambda proxy, nursery: reached.append(proxy.listen(nursery, port)))
    )
    urls = {"alpha": server.url, "beta": f"{server.url.rpartition(':')[0]}:{reached[0]}"}
    return RealNetwork({name: NatsLink(NatsAccess(url), "c", name) for name, url in urls.items()}, proxy)
