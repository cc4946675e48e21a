"""Several supervisors in the simulated world: what one of them loses concerns only its servers."""

import pytest

from carpool_protocol.ids import PoolKey, SupervisorName
from tests.behaviours import behaviour
from tests.world.sim.agents import SimAgent
from tests.world.sim.quiesce import assert_calls_survive_the_broker, quiesce
from tests.world.sim.storms import STORMS
from tests.world.sim.traits import Traits
from tests.world.sim.world import SimServer, World

FIRST, SECOND = SupervisorName("sup1"), SupervisorName("sup2")


def begun(traits: Traits) -> tuple[World, SimAgent, dict[SupervisorName, str]]:
    """A world with servers at both supervisors that are up, an agent, and one server of each."""
    world = World(
        1, [SimServer(name=f"s{n}", traits=traits) for n in range(6)], supervisors=2, max_processes=12
    )
    agent = world.agent()
    servers = {world.owner(PoolKey(f"{name}:0")).name: name for name in world.servers}
    for name in servers.values():
        world.call(agent, f"{name}__t0")
    world.run(8)
    assert world.book.outcomes == {"ok": 2}
    world.book.outcomes.clear()
    return world, agent, servers


@behaviour("supervisors:several")
def test_only_calls_of_the_supervisor_that_died_are_lost() -> None:
    world, agent, servers = begun(Traits(answer_s=1.0))
    for name in servers.values():
        for _ in range(3):
            world.call(agent, f"{name}__t0")
    world.run(0.3)
    world.kill_supervisor(0.5, SECOND)
    world.run(6)
    assert world.book.outcomes == {"ok": 3, "link_broken": 3}
    quiesce(world)


@behaviour("supervisors:several")
def test_a_call_that_waits_for_an_absent_supervisor_holds_back_none_for_another() -> None:
    world, agent, servers = begun(Traits(answer_s=0.1))
    world.kill_supervisor(2.0, SECOND)
    for name in (servers[SECOND], servers[FIRST]) * 2:
        world.call(agent, f"{name}__t0")
    world.run(1.0)
    assert world.book.outcomes == {"ok": 2}, "those of the first"
    world.run(8)
    assert world.book.outcomes == {"ok": 4}
    quiesce(world)


@behaviour("supervisors:several", "record:nothing-runs-twice")
@pytest.mark.parametrize("dies_in", range(1, 7))
def test_calls_at_both_complete_and_none_runs_twice_wherever_the_broker_dies(dies_in: int) -> None:
    world, agent, servers = begun(Traits(answer_s=1.0))
    assert_calls_survive_the_broker(world, agent, [*servers.values()] * 3, dies_in=dies_in)


@behaviour("supervisors:several")
def test_after_both_have_died_with_the_broker_every_call_ends_once() -> None:
    world, agent, servers = begun(Traits(answer_s=1.0))
    for name in servers.values():
        world.call(agent, f"{name}__t0")
    world.run(0.3)
    world.kill_broker(0.2, fate="back")
    world.kill_supervisor(0.3, FIRST)
    world.kill_supervisor(3.0, SECOND)
    world.run(12)
    assert sum(world.book.outcomes.values()) == 2
    assert world.book.outcomes["link_broken"] >= 1
    assert set(world.book.ran.values()) == {1}
    quiesce(world)


@behaviour("supervisors:several")
@pytest.mark.parametrize("seed", range(8))
def test_a_storm_over_several_supervisors_breaks_no_promise(seed: int) -> None:
    STORMS["supervisors"](seed)
