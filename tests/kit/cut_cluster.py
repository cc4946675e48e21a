"""Two nodes, alpha and beta, whose network a test cuts, delays and slows down (`bench.cut_proxy`)."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import trio

from bench.cut_proxy import CutProxy, Way
from carpool.cluster.embedded_nats import EmbeddedNats
from tests.kit.cluster import all_at_once, curve_settings
from tests.kit.line_agent import Json
from tests.kit.live import Daemon

KINDS: Final = ("nats", "curve")


class CutCluster(NamedTuple):
    """The nodes, and the proxies between beta and the rest of the world."""

    alpha: Daemon
    beta: Daemon
    proxies: list[CutProxy]

    def cut(self, way: Way = "both") -> None:
        """Cut the network between the nodes."""
        for proxy in self.proxies:
            proxy.cut(way)

    def heal(self) -> None:
        """Mend it."""
        for proxy in self.proxies:
            proxy.heal()

    def break_all(self) -> None:
        """Reset all connections between the nodes."""
        for proxy in self.proxies:
            proxy.break_all()

    @property
    def held_back(self) -> int:
        """The pieces of data that the cut has held back so far."""
        return sum(proxy.held_back for proxy in self.proxies)

    @property
    def passed_bytes(self) -> int:
        """The bytes that the network has passed, each way."""
        return sum(proxy.passed_bytes for proxy in self.proxies)

    def slow(self, *, delay_s: float = 0.0, bytes_per_s: float = float("inf")) -> None:
        """Give the network a delay and a bandwidth, each way."""
        for proxy in self.proxies:
            proxy.delay_s, proxy.bytes_per_s = delay_s, bytes_per_s


@asynccontextmanager
async def cut_cluster(kind: str, servers: Mapping[str, Json]) -> AsyncIterator[CutCluster]:
    """Alpha with these servers, and beta, which has them too. `kind`: `nats`, or `curve` for ZeroMQ."""
    base, alpha, beta = Daemon(), Daemon(), Daemon()
    nats = EmbeddedNats(str(base.base / "nats"))
    try:
        async with trio.open_nursery() as nursery:
            proxies: list[CutProxy] = []
            if kind == "nats":
                settings, proxies = await _over_nats(nats, nursery)
            else:
                settings, proxies = await _over_curve({"alpha": alpha, "beta": beta}, nursery)
            alpha.configure(servers, cluster=settings["alpha"])
            beta.configure({}, cluster=settings["beta"])
            await all_at_once((alpha.up, beta.up))
            await beta.until(lambda facts: set(servers) <= set(facts["servers"]), "beta has alpha's servers")
            yield CutCluster(alpha, beta, proxies)
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await all_at_once((alpha.close, beta.close))
        nats.stop()
        base.close()


async def _over_nats(nats: EmbeddedNats, nursery: trio.Nursery) -> tuple[dict[str, Json], list[CutProxy]]:
    proxy = CutProxy(nats.launch())
    await nursery.start(proxy.run)
    user = nats.url.rpartition(":")[0]
    urls = {"alpha": nats.url, "beta": f"{user}:{proxy.port}"}
    return {name: {"url": url, "node": name} for name, url in urls.items()}, [proxy]


async def _over_curve(
    nodes: Mapping[str, Daemon], nursery: trio.Nursery
) -> tuple[dict[str, Json], list[CutProxy]]:
    settings = curve_settings(nodes)
    proxies = []
    for one in settings.values():
        name, address, key = one["peers"][0].split(" ")
        proxy = CutProxy(int(address.rpartition(":")[2]))
        await nursery.start(proxy.run)
        one["peers"] = [f"{name} tcp://127.0.0.1:{proxy.port} {key}"]
        proxies.append(proxy)
    return settings, proxies
