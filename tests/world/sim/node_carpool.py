"""One carpool of a simulated cluster: a world with a node's process, and servers of other nodes.

Owns what its broker reads of other nodes' servers, what it offers to them, and which parts of it stand for
sessions between nodes. Knows nothing of: how the nodes reach each other.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from carpool.cluster.core.offers import NodeServer, ServerOffer
from carpool.cluster.core.own_servers import GRACE_S
from carpool.cluster.process import LOOK_S
from carpool_broker.core.configuration.launches import MAX_NODE_SESSIONS, NODE_RETRY_S
from carpool_broker.core.model import events as bv
from carpool_broker.core.model.events import SourceId
from carpool_broker.core.model.supervisors import ONLY
from carpool_protocol.config.schema.settings_cluster import ANY_NODE
from carpool_protocol.ids import AskId, PoolKey, SessionId, SupervisorName
from carpool_protocol.link.messages import Call, NodeTarget, Policy, PoolSpec
from carpool_supervisor.core.model import effects as sf
from tests.world.sim.agents import SimAgent
from tests.world.sim.node_agents import NodeAgent, NodeCarrier, SimBrokerEnd
from tests.world.sim.node_instances import NodeInstance
from tests.world.sim.oracles.violation import Violation
from tests.world.sim.servers import SimInstance
from tests.world.sim.stateless_agents import AnyAgents
from tests.world.sim.supervisor import SimSupervisor
from tests.world.sim.traits import Traits, number_of
from tests.world.sim.world import SOURCES, SimServer, World

if TYPE_CHECKING:
    from tests.world.sim.cluster import SimCluster
    from tests.world.sim.node_process import SimNode


class NodeCarpool(World):
    """See the module."""

    def __init__(self, cluster: "SimCluster", name: str, *args: Any, **settings: Any) -> None:
        self.cluster = cluster
        self.name = name
        self.node_servers: dict[str, SimServer] = {}
        self.node_process: SimNode | None = None
        self._left_at: dict[SessionId, float] = {}
        """When each session of another node's agent ended."""
        super().__init__(*args, clock=cluster.clock, book=cluster.book, mark=f"{name}-", **settings)

    @property
    def node_names(self) -> list[str]:
        """See `World`."""
        return [name for name in self.cluster.names if name != self.name]

    # --- servers ----------------------------------------------------------------------------------------

    def has_server(self, name: str) -> bool:
        """Whether one runs here that other nodes may use."""
        return name in self.servers and self.servers[name].configured

    def own_names(self) -> frozenset[str]:
        """Names that are taken."""
        return frozenset(name for name in self.servers if self.has_server(name))

    def offered(self) -> list[ServerOffer]:
        """What other nodes may use."""
        return [
            ServerOffer(
                name=server.name,
                launch=str(server.version),
                keeps_state=server.policy.sharing in {"auto", "session"},
                start_s=server.policy.first_start_s + GRACE_S,
                timeout_s=server.policy.timeout_s + GRACE_S,
                max_total_s=server.policy.max_total_s + GRACE_S,
            )
            for server in super().configured()
        ]

    def nodes_offer(self, servers: Mapping[str, NodeServer]) -> None:
        """Other nodes offer these from now on."""
        fresh = {name: _node_server(name, each, self.cluster.node_policy) for name, each in servers.items()}
        if fresh != self.node_servers:
            self.node_servers = fresh
            if self.broker.alive:  # else the next one reads it as it is then
                self.broker.awake(self.read_config)

    def configured(self) -> list[SimServer]:
        """See `World`."""
        own = super().configured()
        names = {server.name for server in own}
        return [*own, *(each for name, each in self.node_servers.items() if name not in names)]

    def server_names(self) -> list[str]:
        """See `World`."""
        return [*self.servers, *(name for name in self.node_servers if name not in self.servers)]

    def remote_pools(self) -> list[PoolKey]:
        """The pools of servers of other nodes."""
        names = self.own_names()
        servers = [each for name, each in self.node_servers.items() if name not in names]
        return [key for server in servers for key in server.keys(SOURCES[0])]

    def read_config(self) -> None:
        """See `World`. The offer follows a moment later."""
        super().read_config()
        if (node := self.node_process) is not None:
            self.later(self.rng.uniform(0.0, LOOK_S), node.publish)

    def operable(self) -> list[PoolKey]:
        """See `World`. The list of a server of other nodes is that of its last session: a start reads it."""
        names = self.own_names()
        servers = [each for name, each in self.node_servers.items() if name not in names]
        keys = [key for server in servers for key in server.keys(SOURCES[0])]
        return [*super().operable(), *keys]

    def readings(self) -> list[bv.SourceRead]:
        """For a session of another node, its one server under the names of its own."""
        readings = super().readings()
        for server in self.servers.values():
            read = self.reading(SOURCES[0], [server] if server.configured else [])
            entries = tuple(replace(entry, prefix="") for entry in read.scope.servers)
            scope = replace(read.scope, servers=entries)
            readings.append(replace(read, source=source_of(server.name), scope=scope))
        return readings

    def traits(self, key: PoolKey) -> Traits:
        """See `World`."""
        return Traits() if key not in self._traits else super().traits(key)

    def served_at(self, key: PoolKey) -> list[tuple[World, PoolKey]]:
        """See `World`."""
        found = next((each for each in self.node_servers.values() if key in each.keys(SOURCES[0])), None)
        found = found or next((s for s in self.node_servers.values() if key in s.keys(SOURCES[1])), None)
        if found is None:
            return [(self, key)]
        assert found.target is not None
        nodes = self.node_names if found.target.node == ANY_NODE else [found.target.node]
        worlds = [self.cluster.worlds[node] for node in nodes]
        return [
            (world, world.pool_of(found.target.server))
            for world in worlds
            if world.has_server(found.target.server)
        ]

    def pool_of(self, name: str) -> PoolKey:
        """The pool of this server that the broker wants: of two classes of agents one may do for both."""
        keys = self.servers[name].keys(SOURCES[0])
        return next((key for key in keys if key in self.owner(key).core.pools), keys[0])

    # --- sessions between nodes -------------------------------------------------------------------------

    def new_instance(self, supervisor: SimSupervisor, effect: sf.Spawn, spec: PoolSpec | None) -> SimInstance:
        """See `World`."""
        if spec is not None and spec.target is not None:
            return NodeInstance(self, supervisor, effect.instance, spec)
        return super().new_instance(supervisor, effect, spec)

    def node_agent(self, end: SimBrokerEnd) -> NodeAgent:
        """A session of another node's agent has come to the broker."""
        self.sessions += 1
        session = SessionId(f"{self.mark}{self.sessions}")
        agent = self.agents[session] = NodeAgent(self, session, end)
        came = bv.SessionOpened(
            session=session, source=source_of(end.server), agent=end.other, pid=1, carrier="node", keeps=True
        )
        self._comes(NodeCarrier(agent, came))
        return agent

    def says(self, agent: NodeAgent, say: Callable[[], bv.AnyEvent]) -> None:
        """Such a session says something, now or when a broker is there."""
        away = [carrier for carrier in self.away if carrier.agent is agent]
        if away:
            away[0].pipe.append(lambda: self.broker.feed(say()))
        elif agent.session in self.agents:
            self.broker.feed(say())

    def asked(self, agent: SimAgent, shown: AskId) -> None:
        """See `World`. Of a session of another node it is asked on."""
        if not isinstance(agent, NodeAgent):
            super().asked(agent, shown)

    def never_returns(self, agent: AnyAgents) -> None:
        """See `World`."""
        super().never_returns(agent)
        if isinstance(agent, NodeAgent):
            agent.end.lost("the broker has gone away")

    def kill_supervisor(self, away_s: float, name: SupervisorName = ONLY) -> None:
        """See `World`."""
        super().kill_supervisor(away_s, name)
        if self.node_process is not None:
            self.node_process.supervisor_gone(name)

    # --- what is known for the oracles ------------------------------------------------------------------

    def call_leaves(self, instance: NodeInstance, call: Call) -> None:
        """A call is written to a session at another node."""
        number = number_of(call)
        self.cluster.left[number] = (instance, call)
        self.book.asks.left[number] = call.session

    def executed(self, instance: SimInstance, call: Call) -> None:
        """See `World`. The agent's own node shares a session at most as its server's does."""
        number = number_of(call)
        if instance.leased:
            owner = self.book.owners[number]
            instance.holders.add(self.book.asks.principals.get(owner, owner))
            if len(instance.holders) > 1:
                raise Violation(f"instance {instance.id} of {instance.key} is held by {instance.holders}")
        here, left = self.cluster.left.get(number, (None, call))
        if here is not None and here.alive and here.supervisor.alive:
            here.supervisor.sharing.executed(here, left, here.supervisor.kept_mode(here.key))

    def leave(self, agent: AnyAgents) -> None:
        """See `World`. The broker hears of the end of a node's session no sooner than the node's process."""
        super().leave(agent)
        if isinstance(agent, NodeAgent):
            self._left_at[agent.session] = self.now

    def heard_since(self, session: SessionId) -> float:
        """See `World`."""
        carrier = self.deaths.carrier_of(session)
        if carrier is None:
            return self._left_at.get(session, 0.0)
        if not isinstance(carrier.agent, NodeAgent):
            return 0.0
        if carrier in self.away:
            return self.now
        agent = carrier.agent
        origin = self.cluster.worlds[agent.end.other]
        return max(agent.back_at, self.cluster.clear_since(agent.end.other, self.name), origin.speaks_since())

    def speaks_since(self) -> float:
        """Since when agents here are heard at the node's process; now, if they are not."""
        node = self.node_process
        if node is None or not node.alive or not self.broker.alive:
            return self.now
        joined = [wire.joined_at if wire.up else self.now for wire in self.wires.values()]
        return max(node.began_at, *joined)


def source_of(server: str) -> SourceId:
    """The source of sessions of other nodes at this server."""
    return SourceId(f"node:{server}")


def _node_server(name: str, found: NodeServer, policy: Policy) -> SimServer:
    """As the broker reads it (`own_servers.node_servers_text`, `launches`)."""
    offer = found.offer
    node = ANY_NODE if name == offer.name else found.nodes[0]
    return SimServer(
        name=name,
        traits=Traits(),
        twins=True,
        target=NodeTarget(node, offer.name, offer.keeps_state),
        policy=replace(
            policy,
            sharing="session",
            max_instances=MAX_NODE_SESSIONS,
            open_s=NODE_RETRY_S,
            max_delay_s=NODE_RETRY_S,
            first_start_s=offer.start_s,
            start_s=offer.start_s,
            timeout_s=offer.timeout_s,
            max_total_s=offer.max_total_s,
        ),
    )
