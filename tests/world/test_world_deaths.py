"""A broker that dies is a pause, in the simulated world (rule 4, docs/decisions/0019)."""

import pytest
from msgspec.structs import replace

from tests.behaviours import behaviour
from tests.world.sim.agents import CAPABILITIES, SimAgent
from tests.world.sim.quiesce import assert_calls_survive_the_broker, quiesce
from tests.world.sim.traits import Traits, uri_of
from tests.world.sim.world import POLICY, SOURCES, SimServer, World

ALL = CAPABILITIES[2]


def begun(traits: Traits) -> tuple[World, SimAgent]:
    """A world with one server that is up, and an agent that can be asked."""
    world = World(1, [SimServer(name="s", traits=traits)])
    agent = world.agent(capabilities=ALL)
    world.run(3)
    return world, agent


@behaviour("death:broker-pause", "record:nothing-runs-twice")
@pytest.mark.parametrize("dies_in", range(1, 9))
def test_calls_in_flight_complete_and_none_runs_twice_wherever_the_broker_dies(dies_in: int) -> None:
    world, agent = begun(Traits(answer_s=1.0))
    assert_calls_survive_the_broker(world, agent, ["s"] * 6, dies_in=dies_in)


@behaviour("death:broker-pause")
def test_two_brokers_that_die_one_after_the_other_are_one_pause() -> None:
    world, agent = begun(Traits(answer_s=1.0))
    for _ in range(6):
        world.call(agent, "s__t0")
    for _ in range(2):
        world.run(0.1)
        world.kill_broker(0.1, fate="back")
        world.run(0.3)
    world.run(6)
    assert world.book.outcomes == {"ok": 6}


@behaviour("death:broker-pause")
def test_a_question_is_shown_once_and_its_answer_arrives_at_the_next_broker() -> None:
    world, agent = begun(Traits(asks=1.0, waits=True, answer_s=0.1))
    agent.silent = True
    world.call(agent, "s__t0")
    while not agent.asks:
        world.run(0.01)
    shown, ask = next(iter(agent.asks.items()))
    world.kill_broker(0.1, fate="back")
    world.run(2.3)
    assert shown in agent.asks, "it is open still"
    agent.silent = False
    for each, open_ask in list(agent.asks.items()):
        world.broker.feed(agent.answer(each, open_ask))
    world.run(8)
    assert ask.answered
    assert not agent.open


@behaviour("calls:honest-delivery")
@pytest.mark.parametrize("fate", ["late", "impostor"])
def test_what_an_agent_had_open_that_nobody_knows_any_more_is_lost_and_not_run_again(fate: str) -> None:
    world, agent = begun(Traits(answer_s=1.0))
    for _ in range(3):
        world.call(agent, "s__t0")
    world.run(0.02)
    world.kill_broker(0.2, fate=fate)  # type: ignore[arg-type]
    world.run(20)
    assert world.book.outcomes == {"link_broken": 3}
    world.call(agent, "s__t0")
    world.run(3)
    assert world.book.outcomes == {"link_broken": 3, "ok": 1}


@behaviour("calls:honest-delivery")
@pytest.mark.parametrize("first", ["broker", "supervisor"])
def test_when_both_die_open_calls_are_lost_and_the_agent_works_on(first: str) -> None:
    world, agent = begun(Traits(answer_s=1.0))
    world.call(agent, "s__t0")
    world.run(0.02)
    for part in ("broker", "supervisor") if first == "broker" else ("supervisor", "broker"):
        world.kill_broker(0.2, fate="back") if part == "broker" else world.kill_supervisor(0.2)
        world.run(0.05)
    world.run(5)
    assert world.book.outcomes == {"link_broken": 1}
    world.call(agent, "s__t0")
    world.run(5)
    assert world.book.outcomes == {"link_broken": 1, "ok": 1}


@behaviour("death:broker-pause", "record:nothing-runs-twice")
def test_calls_that_ended_with_the_link_are_not_run_again_though_their_agent_had_not_read_that() -> None:
    world, agent = begun(Traits(answer_s=2.0))
    for _ in range(6):
        world.call(agent, "s__t0")
    world.deaths.choke(1.0)
    world.run(0.1)
    world.wire.cut(told=True)
    world.wire.join()
    world.run(1.5)
    assert len(agent.open) == 6
    world.kill_broker(0.1, fate="back")
    world.run(6)
    assert set(world.book.ran.values()) == {1}
    assert not agent.open
    quiesce(world)


@behaviour("lease:never-silently")
def test_a_link_that_is_cut_before_a_holder_is_back_at_the_next_broker_leaves_it_its_word_of_loss() -> None:
    policy = replace(POLICY, sharing="session", spares=0)
    world = World(1, [SimServer(name="s", traits=Traits(), policy=policy)])
    agent = world.agent(capabilities=ALL)
    world.run(3)
    world.call(agent, "s__t0")
    world.run(2)
    world.kill_broker(0.1, fate="back")
    world.run(0.01)
    [carrier] = world.away
    world.away.clear()  # it is slow
    world.run(0.5)
    world.wire.cut(told=True)
    world.run(0.1)
    world.wire.join()
    world.run(0.1)
    world.away.append(carrier)
    world.deaths.come_back(carrier)
    for _ in range(2):
        world.call(agent, "s__t0")
        world.run(3)
    assert world.book.outcomes == {"ok": 2, "state_lost": 1}


@behaviour("lease:never-silently")
def test_a_configuration_that_changes_before_a_holder_is_back_at_the_next_broker_costs_it_no_silence() -> (
    None
):
    """Which pool its class of agents had there, that broker cannot know."""
    policy = replace(POLICY, sharing="session", spares=0)
    world = World(1, [SimServer(name="s", traits=Traits(), twins=True, stop_first=True, policy=policy)])
    agent = world.agent(capabilities=ALL)
    world.run(3)
    world.call(agent, "s__t0")
    world.run(2)
    world.servers["s"].version = 1
    world.kill_broker(0.005, fate="back")
    world.run(3)
    for _ in range(3):
        world.call(agent, "s__t0")
        world.run(8)
    assert world.book.outcomes == {"ok": 3, "state_lost": 1}


@behaviour("death:broker-pause")
@pytest.mark.parametrize("dies_in", [1, 2, 3])
def test_what_an_agent_wants_to_hear_of_it_hears_of_through_the_next_broker_and_nobody_else_does(
    dies_in: int,
) -> None:
    world, agent = begun(Traits(shy=True, logs=1.0, updates=1.0, answer_s=0.1))
    other = world.agent(capabilities=ALL)
    world.run(1)
    world.broker.feed(agent.watch(uri_of(world.servers["s"].key(SOURCES[0])), world.now))
    world.broker.feed(agent.set_level("info", world.now))
    world.run(1)
    for lives in (1, 2):
        for who in (agent, other):
            world.call(who, "s__t0")
            world.run(2)
        assert agent.logged == lives
        assert agent.updated >= 2 * lives, "in doubt it hears once too often"
        world.kill_broker(0.2, fate="back", dies_in=dies_in)
        world.run(5)
    assert other.updated == other.logged == 0
    quiesce(world)
