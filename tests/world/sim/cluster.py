"""A simulated cluster: several carpools on one virtual clock, one book and one seed.

Owns the nodes, their links, and deaths of node's processes. Knows nothing of: what goes on in any of them.
"""

from random import Random
from typing import Final

from carpool.cluster.core.own_servers import GRACE_S
from carpool.cluster.core.send_window import MAX_RESEND_S
from carpool_protocol.link.messages import Call, Policy
from tests.world.sim.clock import SimClock
from tests.world.sim.node_carpool import NodeCarpool
from tests.world.sim.node_instances import NodeInstance
from tests.world.sim.node_links import SimNodeLinks
from tests.world.sim.node_process import SimNode
from tests.world.sim.oracles.calls import CallBook
from tests.world.sim.world import BOUND_S, POLICY, SimServer

SEEDS_OF_ONE: Final = 8
"""So many worlds may have seeds of their own."""


class SimCluster:
    """See the module."""

    def __init__(
        self,
        seed: int,
        servers: dict[str, list[SimServer]],
        *,
        has_store: bool = True,
        max_processes: int = 8,
        node_policy: Policy = POLICY,
    ) -> None:
        """`servers`: those of each node. `has_store`: the links are those of NATS. `node_policy`: of servers
        of other nodes, but for what their offers say.
        """
        self.seed = seed
        self.node_policy = node_policy
        self.rng = Random(f"cluster {seed}")
        self.clock = SimClock()
        self.book = CallBook(BOUND_S + GRACE_S, POLICY.ask_timeout_s)
        self.names = list(servers)
        self.left: dict[int, tuple[NodeInstance, Call]] = {}
        """The calls that were written to another node, by number: by which instance, as what."""
        self.links = SimNodeLinks(self.clock, self.rng, has_store=has_store)
        self.dropped = 0
        """The sessions of other nodes that a broker has dropped because they were not read."""
        self._lives = dict.fromkeys(self.names, 0)
        self.worlds = {
            name: NodeCarpool(self, name, SEEDS_OF_ONE * seed + place, own, max_processes=max_processes)
            for place, (name, own) in enumerate(servers.items())
        }
        for name in self.names:
            self.start_node(name)

    @property
    def now(self) -> float:
        """The time."""
        return self.clock.now

    def run(self, duration_s: float) -> None:
        """Let so much time pass at all nodes."""
        self.clock.run(duration_s)

    def clear_since(self, one: str, other: str) -> float:
        """Since when what one node tells another arrives at once."""
        return self.links.clear_since(one, other) + MAX_RESEND_S

    # --- nodes' processes -------------------------------------------------------------------------------

    def start_node(self, name: str) -> None:
        """Start the node's process, if it does not run."""
        world = self.worlds[name]
        if world.node_process is None or not world.node_process.alive:
            life = self._lives[name]
            self._lives[name] += 1
            world.node_process = SimNode(world, self.links, life=life, has_file=bool(world.node_servers))

    def kill_node(self, name: str, away_s: float, *, leaves: bool = False) -> None:
        """The node's process dies, or leaves in the ordinary way; the next one comes."""
        node = self.worlds[name].node_process
        if node is None or not node.alive:
            return
        self.book.mishaps += 1
        if leaves:
            node.leave()
        else:
            node.die()
        self.clock.later(away_s, lambda: self.start_node(name))

    def kill_machine(self, name: str, away_s: float) -> None:
        """Everything of one node dies at once, its agents too."""
        world = self.worlds[name]
        self.kill_node(name, away_s)
        for supervisor in world.supervisors.values():
            if supervisor.alive:
                world.kill_supervisor(away_s, supervisor.name)
        if world.broker.alive:
            world.kill_broker(away_s, fate="gone")

    # --- links ------------------------------------------------------------------------------------------

    def store_comes_back(self) -> None:
        """The NATS server runs again, and each node connects to it after a moment."""
        if not self.links.is_up:
            self.links.store_came()
            for world in self.worlds.values():
                node = world.node_process
                if node is not None:
                    self.clock.later(self.rng.uniform(0.0, 1.0), node.link_restored)
