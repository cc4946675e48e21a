"""Servers of the simulated world that ask their agents: special weather by hand.

The kit raises what is shown to or said by the wrong agent, so these tests only count.
"""

import pytest
from msgspec.structs import replace

from tests.behaviours import behaviour
from tests.world.sim.agents import CAPABILITIES, SimAgent
from tests.world.sim.traits import Traits
from tests.world.sim.world import POLICY, SimServer, World

ROOMY = replace(POLICY, max_in_flight=64, max_waiting_calls=64, wait_s=60.0, max_total_s=60.0)
ASKS = Traits(asks=1.0, waits=True, answer_s=0.5)


def quiet(traits: Traits, **policy: object) -> World:
    """One server, and nothing goes wrong by itself."""
    world = World(1, [SimServer(name="s", traits=traits, policy=replace(ROOMY, **policy))])
    world.calm = True
    return world


def crowd(world: World, count: int) -> list[SimAgent]:
    """So many agents that can be asked everything."""
    agents = [world.agent(capabilities=CAPABILITIES[-1]) for _ in range(count)]
    world.run(3)
    return agents


@behaviour("asks:attribution:traceparent", "asks:own-agent", "calls:isolation")
def test_twenty_agents_on_one_instance_that_echoes_are_each_asked_their_own() -> None:
    world = quiet(replace(ASKS, echo="exact"), sharing="concurrent", max_instances=1)
    for agent in crowd(world, 20):
        world.call(agent, "s__t0")
    world.run(5)
    assert len(world.living()) == 1
    asks = world.book.asks
    assert {ask.about for ask in asks.asks.values() if ask.answered} == set(range(21, 41))
    assert (
        asks.outcomes["shown"] == asks.outcomes["answered"] + asks.outcomes.get("erred", 0) == len(asks.asks)
    )
    assert world.book.outcomes == {"ok": 20}


@behaviour("asks:in-flight:after-cancel", "calls:isolation")
def test_the_same_when_a_third_of_the_calls_is_cancelled_in_the_middle() -> None:
    world = quiet(replace(ASKS, echo="exact"), sharing="concurrent", max_instances=1)
    agents = crowd(world, 21)
    for agent in agents:
        world.call(agent, "s__t0")
    world.run(0.2)
    for agent in [each for each in agents if each.open][:7]:
        event = agent.cancel(world.now)
        assert event is not None
        world.broker.feed(event)
    world.run(10)
    assert all(not agent.open and not agent.asks for agent in agents)
    assert world.book.outcomes == {"ok": 14}
    assert [ask.number for ask in world.book.asks.asks.values() if not ask.answered] == []


@behaviour("modes:serial", "asks:attribution:only-call", "asks:own-agent")
def test_twenty_agents_of_a_serial_server_that_echoes_nothing_are_each_asked_their_own() -> None:
    world = quiet(ASKS, sharing="serial", max_instances=4)
    for agent in crowd(world, 20):
        world.call(agent, "s__t0")
    world.run(2)
    assert 1 < len(world.living()) <= 4
    world.run(30)
    asks = world.book.asks
    assert {ask.about for ask in asks.asks.values() if ask.answered} == set(range(21, 41))
    assert asks.outcomes["shown"] == len(asks.asks)
    assert world.book.outcomes == {"ok": 20}


@behaviour("asks:evidence", "asks:attribution:refused", "modes:new-placements")
def test_an_ambiguous_ask_is_refused_and_makes_the_server_serial_so_the_next_round_is_right() -> None:
    world = quiet(ASKS, sharing="auto", max_instances=4)
    agents = crowd(world, 8)
    for agent in agents:
        world.call(agent, "s__t0")
    world.run(30)
    asks = world.book.asks
    assert asks.outcomes["refused"] > 0
    assert [pool.mode for pool in world.supervisor.core.pools.values()] == ["serial"]
    before = dict(asks.outcomes)
    for agent in agents:
        world.call(agent, "s__t0")
    world.run(30)
    assert asks.outcomes["refused"] == before["refused"]
    assert asks.outcomes["shown"] > before.get("shown", 0)
    assert world.book.outcomes == {"ok": 16}


@behaviour("asks:attribution:traceparent")
def test_a_late_ask_of_an_answered_call_is_shown_to_nobody_though_agents_share_a_trace() -> None:
    world = World(
        1, [SimServer(name="s", traits=Traits(echo="exact", asks_late=1.0, answer_s=0.4), policy=ROOMY)]
    )
    agents = crowd(world, 6)
    for _ in range(10):
        for agent in agents:
            world.call(agent, "s__t0")
        world.run(0.5)
    world.run(10)
    assert world.book.asks.outcomes == {"refused": 60}


@behaviour("wait:ask-timeout", "wait:ask-stops-idle", "asks:never-left-waiting")
def test_a_server_whose_agent_never_answers_gets_an_error_in_time_and_answers_its_call() -> None:
    world = quiet(ASKS, ask_timeout_s=5.0, timeout_s=2.0)
    world.book.asks.bound_s = 6.0
    [agent] = crowd(world, 1)
    agent.silent = True
    world.call(agent, "s__t0")
    world.run(4.5)
    assert agent.asks, "the call's own limit stands still meanwhile"
    world.run(5)
    assert not agent.asks
    assert set(world.book.asks.outcomes) - {"elicited"} == {"shown", "refused"}
    assert world.book.outcomes == {"ok": 1}


@behaviour("asks:agent-gone")
def test_a_server_whose_agent_goes_in_the_middle_of_an_ask_gets_an_error_at_once() -> None:
    world = quiet(ASKS, ask_timeout_s=50.0)
    [agent] = crowd(world, 1)
    agent.silent = True
    world.call(agent, "s__t0")
    world.run(1)
    assert agent.asks
    world.leave(agent)
    world.run(0.3)  # the link lags
    assert all(ask.answered for ask in world.book.asks.asks.values())


@behaviour("asks:withdrawn:instance-gone")
def test_what_a_dead_instance_asked_is_withdrawn() -> None:
    world = quiet(ASKS, ask_timeout_s=50.0)
    [agent] = crowd(world, 1)
    agent.silent = True
    world.call(agent, "s__t0")
    world.run(1)
    assert agent.asks
    world.living()[0].die("was killed by SIGKILL")
    world.run(0.5)
    assert not agent.asks


@behaviour("asks:capability:lacking")
@pytest.mark.parametrize("declared", CAPABILITIES)
def test_an_agent_is_asked_only_what_it_has_declared_and_the_server_is_told(declared: object) -> None:
    world = quiet(ASKS)
    world.agent(capabilities=declared)  # type: ignore[arg-type]
    world.run(3)
    [agent] = world.agents.values()
    for _ in range(20):
        world.call(agent, "s__t0")
        world.run(2)
    assert world.book.outcomes == {"ok": 20}
    assert all(ask.answered for ask in world.book.asks.asks.values())
