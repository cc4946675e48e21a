"""Leases and modes in the simulated world: special weather by hand.

The kit raises what runs beside something else where it must not, or on another instance than its state.
"""

import pytest
from msgspec.structs import replace

from tests.behaviours import behaviour
from tests.world.sim.agents import CAPABILITIES
from tests.world.sim.traits import Traits
from tests.world.sim.world import POLICY, SOURCES, SimServer, World

PATIENT = replace(POLICY, sharing="session", wait_s=30.0, max_total_s=60.0, spares=0)


def quiet(**policy: object) -> World:
    """One server that is leased, and nothing goes wrong by itself."""
    return World(1, [SimServer(name="s", traits=Traits(greet_s=0.3), policy=replace(PATIENT, **policy))])


@behaviour("modes:session", "lease:exclusive")
def test_two_agents_of_a_leased_server_have_an_instance_each_and_of_a_concurrent_one_the_same() -> None:
    for sharing, processes in (("session", 2), ("concurrent", 1)):
        world = quiet(sharing=sharing)
        agents = [world.agent(), world.agent()]
        world.run(3)
        for _ in range(3):
            for agent in agents:
                world.call(agent, "s__t0")
            world.run(2)
        assert world.book.outcomes == {"ok": 6}
        assert len([each for each in world.living() if each.served]) == processes


@behaviour("lease:crash:one-state-lost", "lease:never-silently")
def test_a_lease_lost_to_a_crash_gives_one_state_lost_and_then_a_fresh_instance() -> None:
    world = quiet()
    agent = world.agent()
    world.run(3)
    world.call(agent, "s__t0")
    world.run(1)
    [held] = [each for each in world.living() if each.served]
    held.die("was killed by SIGKILL")
    world.run(2)
    world.call(agent, "s__t0")
    world.run(2)
    assert world.book.outcomes == {"ok": 1, "state_lost": 1}
    world.call(agent, "s__t0")
    world.run(3)
    assert world.book.outcomes == {"ok": 2, "state_lost": 1}


@behaviour("lease:never-silently")
def test_a_server_that_is_taken_out_and_comes_back_before_its_process_has_ended_tells_what_was_lost() -> None:
    world = World(1, [SimServer(name="s", traits=Traits(deaf=True, greet_s=0.3), policy=PATIENT)])
    agent = world.agent()
    world.run(3)
    world.call(agent, "s__t0")
    world.run(1)
    server = world.servers["s"]
    for configured in (False, True):
        server.configured = configured
        world.read_config()
        world.run(1)
    assert [each.served for each in world.living() if each.served], "it ends on SIGKILL only"
    world.call(agent, "s__t0")
    world.run(3)
    world.call(agent, "s__t0")
    world.run(12)
    assert world.book.outcomes == {"ok": 2, "state_lost": 1}


@behaviour("lease:never-silently")
@pytest.mark.parametrize("version", [0, 1])
def test_what_was_lost_with_a_server_that_was_taken_out_is_told_when_it_is_back(version: int) -> None:
    """Also long after its pool is gone, and also as another launch."""
    world = quiet()
    agent = world.agent()
    world.run(3)
    world.call(agent, "s__t0")
    world.run(1)
    server = world.servers["s"]
    for configured in (False, True):
        server.configured = configured
        server.version = version if configured else 0
        world.read_config()
        world.run(20)
    assert not world.living()
    for _ in range(2):
        world.call(agent, "s__t0")
        world.run(3)
    assert world.book.outcomes == {"ok": 2, "state_lost": 1}


@behaviour("lease:never-silently", "lease:reload")
def test_a_configuration_that_changes_twice_while_the_link_is_down_loses_no_word_of_what_was_lost() -> None:
    world = quiet()
    agent = world.agent()
    world.run(3)
    world.call(agent, "s__t0")
    world.run(1)
    world.wire.cut(told=True)
    world.run(0.1)
    for version in (1, 2):
        world.servers["s"].version = version
        world.read_config()
    world.wire.join()
    world.run(10)
    for _ in range(2):
        world.call(agent, "s__t0")
        world.run(3)
    assert world.book.outcomes == {"ok": 2, "state_lost": 1}


@behaviour("wait:fair")
def test_agents_who_share_a_session_have_one_turn_together_when_several_lanes_come_free_at_once() -> None:
    policy = replace(PATIENT, sharing="serial", max_instances=1, max_in_flight=9)
    server = SimServer(name="s", traits=Traits(silent=1.0), policy=policy)
    world = World(1, [server])
    agent, group = world.agent(), world.stateless_agents(count=4, anonymous=True)
    world.run(3)
    for _ in range(6):
        world.call(agent, "s__t0")
        world.call(group, "s__t0")
    world.run(1)
    assert len(world.living()[0].running) == 1
    server.policy = replace(server.policy, sharing="concurrent")
    world.read_config()  # the oracle raises what jumps the line
    world.run(0.1)
    assert len(world.living()[0].running) == 8, "the ninth place is for an agent that holds none"


@behaviour("lease:with-holder", "lease:next-in-line", "lease:returned-ended")
def test_when_a_holder_goes_the_next_in_line_has_an_instance_within_a_second() -> None:
    world = quiet(max_instances=1)
    first, second = world.agent(), world.agent()
    world.run(3)
    world.call(first, "s__t0")
    world.run(1)
    [held] = [each for each in world.living() if each.served]
    world.call(second, "s__t0")
    world.run(5)
    assert second.open
    world.leave(first)
    world.run(1)
    assert not second.open
    assert not held.alive or held.served == {first.session}


def test_a_call_that_was_on_its_way_when_the_supervisor_died_costs_one_word_too_many() -> None:
    """Whether it had run there, the broker cannot know: found by storm 477."""
    world = quiet()
    agent = world.agent()
    world.run(3)
    world.call(agent, "s__t0")
    world.kill_supervisor(0.5)
    world.run(3)
    for _ in range(2):
        world.call(agent, "s__t0")
        world.run(3)
    assert world.book.outcomes == {"link_broken": 1, "state_lost": 1, "ok": 1}


@behaviour("lease:idle")
def test_an_idle_lease_ends_at_its_limit_and_its_holder_is_told_once() -> None:
    world = quiet(lease_idle_s=5.0)
    agent = world.agent()
    world.run(3)
    world.call(agent, "s__t0")
    world.run(15)
    assert [each for each in world.living() if each.served] == []
    for _ in range(2):
        world.call(agent, "s__t0")
        world.run(3)
    assert world.book.outcomes == {"ok": 2, "state_lost": 1}


@behaviour("lease:spares")
def test_with_a_spare_the_next_lease_is_instant_and_when_nobody_holds_one_it_goes() -> None:
    world = World(
        1,
        [
            SimServer(
                name="s", traits=Traits(greet_s=3.0), policy=replace(PATIENT, spares=1, first_start_s=10.0)
            )
        ],
    )
    first = world.agent()
    world.run(6)
    world.call(first, "s__t0")
    world.run(6)
    second = world.agent()
    world.call(second, "s__t0")
    world.run(0.5)
    assert not second.open
    world.leave(first)
    world.leave(second)
    world.run(30)
    assert world.living() == []


@behaviour("wait:cap-yields-lease", "wait:slot-for-each")
def test_two_leased_servers_and_one_slot_go_round_and_each_loss_is_told() -> None:
    world = World(
        1,
        [SimServer(name=f"s{i}", traits=Traits(greet_s=0.1), policy=PATIENT) for i in range(2)],
        max_processes=1,
    )
    agent = world.agent()
    world.run(20)
    for name in ("s0__t0", "s1__t0", "s0__t0", "s0__t0"):
        world.call(agent, name)
        world.run(10)
    assert world.book.outcomes == {"ok": 3, "state_lost": 1}


@behaviour("lease:reload")
def test_a_lease_that_a_reload_ends_is_told_once_at_the_new_pool() -> None:
    world = quiet()
    agent = world.agent()
    world.run(3)
    world.call(agent, "s__t0")
    world.run(1)
    world.servers["s"].version = 1
    world.read_config()
    world.run(25)
    for _ in range(3):
        world.call(agent, "s__t0")
        world.run(5)
    assert world.book.outcomes == {"ok": 3, "state_lost": 1}


@behaviour("lease:never-silently")
def test_a_lease_outlives_a_link_that_was_cut_or_its_holder_is_told() -> None:
    world = quiet()
    agent = world.agent()
    world.run(3)
    world.call(agent, "s__t0")
    world.run(2)
    [held] = [each for each in world.living() if each.served]
    world.wire.cut(told=False)
    world.run(0.5)
    world.wire.join()
    world.run(2)
    world.call(agent, "s__t0")
    world.run(2)
    assert world.book.outcomes.get("state_lost") == 1 or held.alive


@behaviour("lease:reload", "lease:never-silently")
def test_a_loss_is_told_at_the_new_pool_also_while_another_agent_waits_at_the_old_one() -> None:
    policy = replace(PATIENT, max_instances=1)
    world = World(1, [SimServer(name="s", traits=Traits(greet_s=3.0), policy=policy)])
    agent, other = world.agent(), world.agent()
    world.run(6)
    world.call(agent, "s__t0")
    world.run(1)
    world.call(other, "s__t0")
    world.run(0.1)
    world.servers["s"].version = 1
    world.servers["s"].traits = Traits(greet_s=0.05, answer_s=0.05)
    world.read_config()
    [held] = [each for each in world.living() if each.served]
    held.die("was killed by SIGKILL")
    world.run(0.05)
    world.call(agent, "s__t0")
    world.run(2)
    assert world.book.outcomes.get("state_lost") == 1


@behaviour("classes:merged", "lease:never-silently")
def test_a_leased_server_keeps_its_two_pools_when_the_link_was_cut() -> None:
    world = World(1, [SimServer(name="s", traits=Traits(), twins=True, policy=replace(PATIENT, spares=1))])
    for capabilities in (CAPABILITIES[0], CAPABILITIES[-1]):
        agent = world.agent(capabilities=capabilities)
        world.run(3)
        world.call(agent, "s__t0")
        world.run(2)
    world.wire.cut(told=False)
    world.run(0.2)
    world.wire.join()
    world.run(2)
    assert [entry.key for entry in world.broker.core.sources.scope(SOURCES[0]).servers] == ["s:0"]
