"""Two nodes, alpha and beta, whose network a test cuts, delays and slows down (`bench.cable_proxy`)."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from math import inf
from typing import Final, NamedTuple

import trio

from bench.cable import Ways
from bench.cable_proxy import CableProxy
from carpool.cluster.embedded_nats import EmbeddedNats
from tests.kit.cluster import all_at_once, curve_settings
from tests.kit.line_agent import Json
from tests.kit.live import Daemon

KINDS: Final = ("nats", "curve")


ENDED_S: Final = 10.0
"""So long the thread of a proxy may take to do something."""


class CutCluster(NamedTuple):
    """The nodes, and the network between them."""

    alpha: Daemon
    beta: Daemon
    proxy: CableProxy
    """What stands between beta and the rest of the world."""

    def quiet(self) -> None:
        """Fails unless the tests before left both nodes as `Daemon.quiet` wants it."""
        self.alpha.quiet()
        self.beta.quiet()

    def descriptors(self) -> set[int]:
        """The descriptors of this process that the network between the nodes has now."""
        return self.proxy.descriptors() if isinstance(self.proxy, ProxyOfThread) else set()


class ProxyOfThread(CableProxy):
    """A proxy in a trio loop of its own thread, for tests that each have a loop."""

    def __init__(self) -> None:
        super().__init__()
        self._token = trio.lowlevel.current_trio_token()

    def slow(self, *, delay_s: float = 0.0, bytes_per_s: float = inf, way: Ways = "both") -> None:
        self._do(lambda: CableProxy.slow(self, delay_s=delay_s, bytes_per_s=bytes_per_s, way=way))

    def stall(self, way: Ways = "both") -> None:
        self._do(lambda: CableProxy.stall(self, way))

    def cut(self) -> None:
        self._do(lambda: CableProxy.cut(self))

    def refuse(self) -> None:
        self._do(lambda: CableProxy.refuse(self))

    def heal(self) -> None:
        self._do(lambda: CableProxy.heal(self))

    def descriptors(self) -> set[int]:
        """The sockets of its connections now."""
        found: set[int] = set()
        self._do(lambda: found.update(self._sockets()))
        return found

    def _sockets(self) -> set[int]:
        return {stream.socket.fileno() for each in self._connections for stream in each.streams}

    def run_soon(self, act: Callable[[], object]) -> None:
        """Have the thread of the proxy do this."""
        self._token.run_sync_soon(act)

    def _do(self, act: Callable[[], None]) -> None:
        """Act in the thread of the proxy; return when it is done."""
        done = threading.Event()

        def do() -> None:
            act()
            done.set()

        self.run_soon(do)
        assert done.wait(ENDED_S), "the thread of the proxy has ended"


@asynccontextmanager
async def cut_cluster(kind: str, servers: Mapping[str, Json]) -> AsyncIterator[CutCluster]:
    """Alpha with these servers, and beta, which has them too. `kind`: `nats`, or `curve` for ZeroMQ."""
    base, alpha, beta = Daemon(), Daemon(), Daemon()
    nats = EmbeddedNats(str(base.base / "nats"))
    cluster = CutCluster(alpha, beta, CableProxy())
    try:
        async with trio.open_nursery() as nursery:
            _configure(kind, cluster, nats, servers, nursery)
            await _join(cluster, servers)
            yield cluster
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await all_at_once((alpha.close, beta.close))
        nats.stop()
        base.close()


def shared_cut_cluster(kind: str, servers: Mapping[str, Json]) -> Iterator[CutCluster]:
    """For a module's fixture `shared`: one pair of nodes, as `cut_cluster` makes it, for all of its tests."""
    base, alpha, beta = Daemon(), Daemon(), Daemon()
    nats = EmbeddedNats(str(base.base / "nats"))

    def listen(proxy: CableProxy, nursery: trio.Nursery) -> None:
        _configure(kind, CutCluster(alpha, beta, proxy), nats, servers, nursery)

    try:
        with proxy_of_thread(listen) as proxy:
            cluster = CutCluster(alpha, beta, proxy)
            try:
                trio.run(_join, cluster, servers)
                yield cluster
            finally:
                trio.run(all_at_once, (alpha.close, beta.close))
    finally:
        nats.stop()
        base.close()


@contextmanager
def proxy_of_thread(listen: Callable[[CableProxy, trio.Nursery], None]) -> Iterator[ProxyOfThread]:
    """A proxy in a thread. `listen` has it listen there."""
    made: list[ProxyOfThread] = []
    listening, over = threading.Event(), trio.Event()

    async def carry() -> None:
        proxy = ProxyOfThread()
        async with trio.open_nursery() as nursery:
            listen(proxy, nursery)
            made.append(proxy)
            listening.set()
            await over.wait()
            nursery.cancel_scope.cancel()

    def run() -> None:
        try:
            trio.run(carry)
        finally:
            listening.set()

    thread = threading.Thread(target=run, name="proxy")
    thread.start()
    try:
        listening.wait()
        [proxy] = made
        yield proxy
    finally:
        if thread.is_alive():
            made[0].run_soon(over.set)
        thread.join()


def _configure(
    kind: str, cluster: CutCluster, nats: EmbeddedNats, servers: Mapping[str, Json], nursery: trio.Nursery
) -> None:
    """Have the proxy listen, and write the files of both nodes."""
    alpha, beta, proxy = cluster
    if kind == "nats":
        settings = _over_nats(nats, proxy, nursery)
    else:
        settings = _over_curve({"alpha": alpha, "beta": beta}, proxy, nursery)
    alpha.configure(servers, cluster=settings["alpha"])
    beta.configure({}, cluster=settings["beta"])


async def _join(cluster: CutCluster, servers: Mapping[str, Json]) -> None:
    await all_at_once((cluster.alpha.up, cluster.beta.up))
    await cluster.beta.until(lambda facts: set(servers) <= set(facts["servers"]), "beta has alpha's servers")


def _over_nats(nats: EmbeddedNats, proxy: CableProxy, nursery: trio.Nursery) -> dict[str, Json]:
    port = proxy.listen(nursery, nats.launch())
    user = nats.url.rpartition(":")[0]
    urls = {"alpha": nats.url, "beta": f"{user}:{port}"}
    return {name: {"url": url, "node": name} for name, url in urls.items()}


def _over_curve(nodes: Mapping[str, Daemon], proxy: CableProxy, nursery: trio.Nursery) -> dict[str, Json]:
    settings = curve_settings(nodes)
    for one in settings.values():
        name, address, key = one["peers"][0].split(" ")
        port = proxy.listen(nursery, int(address.rpartition(":")[2]), reverse=name == "beta")
        one["peers"] = [f"{name} tcp://127.0.0.1:{port} {key}"]
    return settings
