"""What goes on in a simulated cluster: a storm at each node and between them, and the calm after it.

Owns the mixture of faults between nodes, drawn from the seed: cuts of one direction or both, lost frames, a
NATS server that dies, node's processes that die or leave, whole machines that die, draining; and links with
so little bandwidth that frames queue. What goes wrong within one carpool is `faults`.

Knows nothing of: how frames travel, what must hold at the end (`node_quiesce`).
"""

from collections.abc import Callable
from itertools import permutations
from random import Random
from typing import Final

from msgspec.structs import replace

from carpool.cluster.core.channel import LOST_S
from tests.world.sim.cluster import SimCluster
from tests.world.sim.faults import STATELESS_TRAITS, TRAITS, Storm, servers_of
from tests.world.sim.node_carpool import NodeCarpool
from tests.world.sim.node_links import LAG_S
from tests.world.sim.node_quiesce import quiesce_cluster
from tests.world.sim.stateless_agents import AnyAgents
from tests.world.sim.traits import Traits
from tests.world.sim.world import SimServer

NAMES: Final = ("alpha", "beta", "gamma")
COMMON: Final = "common"
"""A server that several nodes may offer."""
STORM_S: Final = 40.0
SLOW_LAG_S: Final = 0.2
NARROW_BYTES_PER_S: Final = (8_000.0, 30_000.0, 100_000.0)
"""Bandwidths with which a big answer, or many small ones, fill a link for seconds."""
BIG_TRAITS: Final = (
    Traits(big=0.3, big_bytes=40_000, progress=0.3),
    Traits(big=0.1, big_bytes=200_000, slow=0.05),
)


def node_storm(seed: int) -> SimCluster:
    """A storm over a cluster, then calm. Raises what is wrong. Odd seeds cut links and kill processes."""
    return _storm(seed, Random(f"nodes {seed}"), (*TRAITS, *STATELESS_TRAITS), NodeStorm)


def narrow_storm(seed: int) -> SimCluster:
    """The same over links with little bandwidth, with answers that fill them."""
    return _storm(seed, Random(f"narrow {seed}"), (Traits(), *BIG_TRAITS), NarrowStorm)


def megabyte_storm(seed: int) -> SimCluster:
    """The same with answers of megabytes over links that are slow from the beginning."""
    return _storm(
        seed,
        Random(f"nodes {seed}"),
        (*TRAITS, *STATELESS_TRAITS),
        MegabyteStorm,
        sizes=(100_000, 1_000_000, 2_000_000),
    )


def _storm(
    seed: int,
    rng: Random,
    persons: tuple[Traits, ...],
    make: type["NodeStorm"],
    *,
    sizes: tuple[int, ...] = (),
) -> SimCluster:
    """`sizes`: those of each server's big answers, in bytes."""
    names = NAMES[: rng.choice((2, 2, 3))]
    servers = {name: _servers_of(rng, name, persons) for name in names}
    for server in (each for own in servers.values() for each in own if sizes):
        server.traits = replace(server.traits, big=0.2, big_bytes=rng.choice(sizes))
    cluster = SimCluster(seed, servers, has_store=rng.random() < 0.5)
    cluster.run(2.0)  # the nodes hear of each other
    disasters = seed % 2 == 1
    for world in cluster.worlds.values():
        LocalStorm(
            world,
            persons,
            agents=rng.randint(1, 4),
            duration_s=STORM_S,
            disasters=disasters and rng.random() < 0.5,
            pace_s=0.3,
            arrive_s=10.0,
        )
    make(cluster, rng, disasters=disasters)
    cluster.run(STORM_S)
    quiesce_cluster(cluster)
    return cluster


def _servers_of(rng: Random, node: str, persons: tuple[Traits, ...]) -> list[SimServer]:
    servers = servers_of(rng, rng.randint(1, 2), persons)
    for place, server in enumerate(servers):
        server.name = COMMON if rng.random() < 0.25 and place == 0 else f"{node[0]}{place}"
    return servers


class LocalStorm(Storm):
    """The storm at one node. Its agents mostly call servers of other nodes."""

    def _call(self, agent: AnyAgents) -> None:
        world = self.world
        assert isinstance(world, NodeCarpool)
        names = list(world.node_servers)
        if not names or self.rng.random() < 0.4:
            super()._call(agent)
            return
        name = f"{self.rng.choice(names)}__t{self.rng.randrange(2)}"
        size = self.rng.choice((0, 0, 0, 50, 700))
        progress = self.rng.random() < 0.3
        world.broker.feed(agent.call(name, world.now, size_bytes=size, progress=progress))


class NodeStorm:
    """Everything that can go wrong between nodes, for a while."""

    def __init__(self, cluster: SimCluster, rng: Random, *, disasters: bool) -> None:
        self.cluster = cluster
        self.rng = rng
        self.until = cluster.now + STORM_S
        cluster.links.loss = rng.choice((0.0, 0.0, 0.01, 0.05))
        self._repeat(8.0, self._slow_down)
        self._repeat(15.0, self._drain)
        if disasters:
            self._repeat(8.0, self._cut)
            self._repeat(25.0, self._kill_node)
            self._repeat(60.0, self._kill_machine)
            if cluster.links.has_store:
                self._repeat(25.0, self._kill_store)

    def _repeat(self, every_s: float, act: Callable[[], None]) -> None:
        def run() -> None:
            if self.cluster.now < self.until:
                act()
                self.cluster.clock.later(self.rng.expovariate(1 / every_s), run)

        self.cluster.clock.later(self.rng.expovariate(1 / every_s), run)

    def _slow_down(self) -> None:
        self.cluster.links.lag_s = self.rng.choice((LAG_S, LAG_S, SLOW_LAG_S))

    def _any_node(self) -> str:
        return self.rng.choice(self.cluster.names)

    def _drain(self) -> None:
        node = self.cluster.worlds[self._any_node()].node_process
        if node is not None and node.alive:
            node.drain(is_on=True)
            self.cluster.clock.later(self.rng.uniform(1.0, 10.0), lambda: node.drain(is_on=False))

    def _cut(self) -> None:
        """Cut two nodes, for a moment or for longer than a channel lasts."""
        self.cluster.book.mishaps += 1
        one, other = self.rng.sample(self.cluster.names, 2)
        pairs = [(one, other), (other, one)][: self.rng.choice((1, 2, 2))]
        for pair in pairs:
            self.cluster.links.cut(pair)
        away_s = self.rng.choice((0.2, 2.0, 6.0, LOST_S - 1.0, LOST_S + 4.0))

        def mend() -> None:
            for pair in pairs:
                self.cluster.links.mend(pair)

        self.cluster.clock.later(away_s, mend)

    def _kill_store(self) -> None:
        if self.cluster.links.is_up:
            self.cluster.book.mishaps += 1
            self.cluster.links.store_died()
            away_s = self.rng.choice((0.5, 3.0, LOST_S + 3.0))
            self.cluster.clock.later(away_s, self.cluster.store_comes_back)

    def _kill_node(self) -> None:
        away_s, leaves = self.rng.uniform(0.2, 5.0), self.rng.random() < 0.3
        self.cluster.kill_node(self._any_node(), away_s, leaves=leaves)

    def _kill_machine(self) -> None:
        self.cluster.kill_machine(self._any_node(), self.rng.choice((1.0, 3.0, LOST_S + 3.0)))


class NarrowStorm(NodeStorm):
    """The same, and links whose bandwidth changes."""

    def __init__(self, cluster: SimCluster, rng: Random, *, disasters: bool) -> None:
        super().__init__(cluster, rng, disasters=disasters)
        for _ in cluster.names:
            self._narrow()
        self._repeat(5.0, self._narrow)

    def _narrow(self) -> None:
        """Give one direction between two nodes another bandwidth."""
        one, other = self.rng.sample(self.cluster.names, 2)
        self.cluster.links.narrow((one, other), self.rng.choice(NARROW_BYTES_PER_S))


class MegabyteStorm(NodeStorm):
    """The same, and all links have one bandwidth to the end."""

    def __init__(self, cluster: SimCluster, rng: Random, *, disasters: bool) -> None:
        super().__init__(cluster, rng, disasters=disasters)
        bytes_per_s = rng.choice((10_000.0, 50_000.0, 500_000.0))
        for pair in permutations(cluster.names, 2):
            cluster.links.narrow(pair, bytes_per_s)
