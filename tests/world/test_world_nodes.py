"""Several carpools of a cluster in the simulated world: storms by seed, and single faults between nodes."""

import os

import pytest
from msgspec.structs import replace

from carpool.cluster.core.channel import LOST_S
from carpool_protocol.link.messages import Policy
from tests.behaviours import behaviour
from tests.world.sim.agents import SimAgent
from tests.world.sim.cluster import SimCluster
from tests.world.sim.node_carpool import NodeCarpool
from tests.world.sim.node_faults import node_storm
from tests.world.sim.node_quiesce import quiesce_cluster
from tests.world.sim.traits import Traits
from tests.world.sim.world import POLICY, SimServer
from tests.world.soak import AGAIN

WANTED = os.environ.get("CARPOOL_WORLD_SEEDS")
SEEDS = range(int(WANTED)) if WANTED else (3, 4, 7, 11)
"""Without a number, some that take a second or two each."""


@behaviour(
    "calls:one-answer",
    "calls:honest-delivery",
    "calls:isolation",
    "asks:own-agent",
    "lease:exclusive",
    "lease:never-silently",
    "cancel:reaches-server",
)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds_across_nodes_through_a_storm_and_after_it(seed: int) -> None:
    try:
        cluster = node_storm(seed)
    except Exception as wrong:
        wrong.add_note(f"seed {seed}: {AGAIN} nodes:{seed}")
        raise
    assert cluster.book.outcomes.get("ok", 0) > 10, f"seed {seed} is no storm but a drought"
    assert cluster.left, "no call has left its node"


def two_nodes(
    traits: Traits, policy: Policy = POLICY
) -> tuple[SimCluster, NodeCarpool, NodeCarpool, SimAgent]:
    """`alpha`, and `beta` with a server of this kind; an agent at `alpha` has called it once."""
    cluster = SimCluster(1, {"alpha": [], "beta": [SimServer(name="b0", traits=traits, policy=policy)]})
    here, there = cluster.worlds["alpha"], cluster.worlds["beta"]
    cluster.run(3.0)
    agent = here.agent()
    here.call(agent, "b0__t0")
    cluster.run(6.0)
    assert cluster.book.outcomes == {"ok": 1}
    cluster.book.outcomes.clear()
    return cluster, here, there, agent


def test_the_same_seed_is_the_same_run_at_all_nodes() -> None:
    runs = [node_storm(11) for _ in range(2)]  # a short one
    assert runs[0].book.outcomes == runs[1].book.outcomes
    counts = [[world.events for world in run.worlds.values()] for run in runs]
    assert counts[0] == counts[1]


def cut_for(cluster: SimCluster, duration_s: float) -> None:
    """Cut both directions for so long."""
    pairs = (("alpha", "beta"), ("beta", "alpha"))
    for pair in pairs:
        cluster.links.cut(pair)
    cluster.run(duration_s)
    for pair in pairs:
        cluster.links.mend(pair)


def test_a_call_goes_on_after_a_short_cut_and_runs_once() -> None:
    cluster, here, _, agent = two_nodes(Traits(answer_s=2.0))
    here.call(agent, "b0__t0")
    cluster.run(0.2)
    cut_for(cluster, 5.0)
    cluster.run(6.0)
    assert cluster.book.outcomes == {"ok": 1}
    assert set(cluster.book.ran.values()) == {1}
    quiesce_cluster(cluster)


def test_a_call_that_crossed_before_a_long_cut_is_lost_and_maybe_has_run() -> None:
    cluster, here, there, agent = two_nodes(Traits(answer_s=3.0), replace(POLICY, timeout_s=60.0))
    here.call(agent, "b0__t0")
    cluster.run(0.3)
    cut_for(cluster, LOST_S + 2.0)
    cluster.run(8.0)
    assert cluster.book.outcomes == {"node_lost": 1}
    assert set(cluster.book.ran.values()) == {1}
    assert not there.agents, "the session of the lost node is still at the broker"
    quiesce_cluster(cluster)


def test_an_agent_hears_that_its_state_is_lost_with_the_other_node() -> None:
    session = replace(POLICY, sharing="session")
    cluster, here, _, agent = two_nodes(Traits(), session)
    cluster.kill_machine("beta", 1.0)
    cluster.run(8.0)
    here.call(agent, "b0__t0")
    cluster.run(8.0)
    assert cluster.book.outcomes == {"state_lost": 1}
    quiesce_cluster(cluster)


def test_calls_survive_the_death_of_the_other_node_s_broker() -> None:
    cluster, here, there, agent = two_nodes(Traits(answer_s=2.0))
    here.call(agent, "b0__t0")
    cluster.run(0.3)
    there.kill_broker(0.2, fate="back")
    cluster.run(8.0)
    assert cluster.book.outcomes == {"ok": 1}
    assert set(cluster.book.ran.values()) == {1}
    quiesce_cluster(cluster)


def test_a_dead_nats_server_costs_a_pause_and_no_call() -> None:
    cluster, here, _, agent = two_nodes(Traits(answer_s=2.0))
    here.call(agent, "b0__t0")
    cluster.run(0.2)
    cluster.links.store_died()
    cluster.run(4.0)
    cluster.store_comes_back()
    cluster.run(8.0)
    assert cluster.book.outcomes == {"ok": 1}
    assert "b0" in here.node_servers
    quiesce_cluster(cluster)


def test_a_draining_node_takes_no_further_session_and_keeps_those_that_are_open() -> None:
    cluster, here, there, agent = two_nodes(Traits())
    node = there.node_process
    assert node is not None
    node.drain(is_on=True)
    cluster.run(1.0)
    here.call(agent, "b0__t0")
    other = here.agent()
    here.call(other, "b0__t0")
    cluster.run(10.0)
    assert cluster.book.outcomes.pop("ok") == 1
    assert sum(cluster.book.outcomes.values()) == 1
    node.drain(is_on=False)
    quiesce_cluster(cluster)
