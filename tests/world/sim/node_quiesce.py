"""The calm after a storm over a simulated cluster, and what must hold then.

Owns what only quiet can prove between nodes: nothing is left of sessions, at no end; each node knows what the
others offer; every server works from every node. What must hold within each carpool is `quiesce`.

Knows nothing of: what went on before.
"""

from collections.abc import Iterator
from typing import Final

from carpool.cluster.core.channel import LOST_S
from carpool.cluster.core.own_servers import GRACE_S
from carpool.cluster.core.send_window import MAX_RESEND_S
from tests.world.sim.cluster import SimCluster
from tests.world.sim.node_agents import NodeAgent
from tests.world.sim.node_carpool import NodeCarpool
from tests.world.sim.node_instances import NodeInstance
from tests.world.sim.node_links import LAG_S
from tests.world.sim.oracles.lists import rows_now
from tests.world.sim.oracles.violation import Violation
from tests.world.sim.quiesce import (
    calm_down,
    everything_works,
    nobody_waits,
    nothing_is_left,
    pools_are_at_rest,
    start_servers,
)
from tests.world.sim.world import BOUND_S, POLICY

LOOKS: Final = 4
"""How often lists are looked at before they count as old."""
HEARD_S: Final = LOST_S + MAX_RESEND_S + 3.0
"""After this time both ends know of a channel that was lost, and of the next one."""


def quiesce_cluster(cluster: SimCluster) -> None:
    """The weather turns: nothing new goes wrong, what is under way ends."""
    worlds = list(cluster.worlds.values())
    _heal(cluster, worlds)
    cluster.run(BOUND_S + GRACE_S)
    for world in worlds:
        nobody_waits(world)
        nothing_is_left(world)
        _knows_all_servers(world)
        _sessions_have_both_ends(world)
    for world in worlds:
        start_servers(world, world.operable())
    for world in worlds:  # the list of another node's server is as old as its last session
        start_servers(world, world.remote_pools())
    for world in worlds:
        for source in world.sources:
            everything_works(world, source)
    for world in worlds:
        world.rest()
    cluster.run(2 * POLICY.lease_idle_s + POLICY.idle_s + 20)
    for world in worlds:
        nothing_is_left(world)
        pools_are_at_rest(world)
        _no_session_is_left(world)


def _heal(cluster: SimCluster, worlds: list[NodeCarpool]) -> None:
    """All faults end, and everything that is down comes back."""
    cluster.links.loss, cluster.links.lag_s = 0.0, LAG_S
    wait_s = cluster.links.widen()
    for pair in list(cluster.links.cuts):
        cluster.links.mend(pair)
    cluster.store_comes_back()
    for world in worlds:
        calm_down(world)
    if wait_s:
        cluster.run(wait_s)  # old frames arrive before new ones
    for part in range(4):
        cluster.run(HEARD_S / 4)
        for world in worlds:
            world.join()
            cluster.start_node(world.name)
            if world.node_process is not None and world.node_process.core.is_draining:
                world.node_process.drain(is_on=False)
        if part == 0:  # later the leases have ended, and the sessions with them
            _lists_are_the_present_ones(cluster)


def _knows_all_servers(world: NodeCarpool) -> None:
    """The broker has read each server that another node offers, and no other."""
    offered = {
        server
        for name in world.node_names
        for server in world.cluster.worlds[name].own_names()
        if not world.has_server(server)
    }
    known = {each.target.server for each in world.node_servers.values() if each.target is not None}
    if known - world.own_names() != offered:
        raise Violation(f"{world.name} knows {sorted(known)} of other nodes, which offer {sorted(offered)}")


def _sessions_have_both_ends(world: NodeCarpool) -> None:
    """Each session is known at both of its nodes, and its list is the present one."""
    for other in world.node_names:
        here = world.node_process
        there = world.cluster.worlds[other].node_process
        assert here is not None
        assert there is not None
        if here.core.sessions_of(other) != there.core.sessions_of(world.name):
            raise Violation(
                f"{world.name} has {here.core.sessions_of(other)} sessions with {other}, which has "
                f"{there.core.sessions_of(world.name)} with it"
            )
        if here.name not in there.core.reached():
            raise Violation(f"{other} does not reach {here.name}")
    ends = [agent for agent in world.agents.values() if isinstance(agent, NodeAgent)]
    living = [each for each in world.living() if isinstance(each, NodeInstance)]
    node = world.node_process
    assert node is not None
    if len(node.sessions) != len(ends) + len(living):
        raise Violation(
            f"{world.name} has {len(node.sessions)} near ends, {len(ends)} sessions at its broker and "
            f"{len(living)} instances"
        )


def _lists_are_the_present_ones(cluster: SimCluster) -> None:
    """What each instance has told of the tools there is what its session would be told now."""
    for _ in range(LOOKS):
        if not any(_old_lists(cluster)):
            return
        cluster.run(1.0)  # a change may be on its way
    for text in _old_lists(cluster):
        raise Violation(text)


def _old_lists(cluster: SimCluster) -> Iterator[str]:
    for world in cluster.worlds.values():
        for instance in world.living():
            if isinstance(instance, NodeInstance) and instance.tools is not None and _is_steady(world):
                present = _lists_there(cluster, world, instance)
                if present is not None and instance.tools not in present:
                    yield (
                        f"instance {instance.id} of {instance.key} at {world.name} has tools "
                        f"{instance.tools}, which are {present} there"
                    )


def _lists_there(cluster: SimCluster, world: NodeCarpool, instance: NodeInstance) -> list[list[str]] | None:
    """The tools of each session that may be this instance's; None: one of them is between two brokers."""
    assert instance.spec.target is not None
    present: list[list[str]] = []
    for there in cluster.worlds.values():
        agents = [*there.agents.values(), *(carrier.agent for carrier in there.away)]
        sessions = [
            agent
            for agent in agents
            if isinstance(agent, NodeAgent)
            and agent.end.server == instance.spec.target.server
            and agent.end.other == world.name
        ]
        if sessions and not (_is_steady(there) and all(it.session in there.agents for it in sessions)):
            return None
        present += [[name for name, _ in rows_now(there.broker.core, it.session)] for it in sessions]
    return present


def _is_steady(world: NodeCarpool) -> bool:
    """Whether both daemons run and are connected."""
    sides = (world.broker, *world.supervisors.values())
    return all(each.alive and not each.stopped for each in sides) and all(
        wire.up for wire in world.wires.values()
    )


def _no_session_is_left(world: NodeCarpool) -> None:
    """Nobody has used a server for a while: all sessions between nodes have ended."""
    node = world.node_process
    assert node is not None
    left = {other: node.core.sessions_of(other) for other in world.node_names}
    agents = [agent.session for agent in world.agents.values() if isinstance(agent, NodeAgent)]
    living = [each.id for each in world.living() if isinstance(each, NodeInstance)]
    if any(left.values()) or len(node.sessions) or agents or living:
        raise Violation(f"{world.name} still has sessions {left}, at its broker {agents}, instances {living}")
