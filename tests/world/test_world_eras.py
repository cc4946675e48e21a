"""Agents of the stateless era in the simulated world: special weather by hand.

The kit raises what reaches the wrong agent or comes twice, so these tests mostly count.
"""

import pytest
from msgspec.structs import replace

from carpool_broker.core.model.capabilities import Capabilities, StatelessAgent
from tests.behaviours import behaviour
from tests.world.sim.agents import CAPABILITIES
from tests.world.sim.broker import BOUNDS
from tests.world.sim.stateless_agents import StatelessAgents
from tests.world.sim.traits import Traits
from tests.world.sim.world import POLICY, SOURCES, SimServer, World

ROOMY = replace(POLICY, max_in_flight=64, max_waiting_calls=64, wait_s=60.0, max_total_s=60.0, timeout_s=9.0)
ABLE = StatelessAgent(
    Capabilities(sampling=True, sampling_tools=True, form=True, url=True, roots=True), "sim"
)
OLD = Traits(asks=1.0, waits=True, echo="exact", answer_s=0.5)
NEW = Traits(asks=1.0, speaks="stateless", answer_s=0.5)


def quiet(traits: Traits, **policy: object) -> World:
    """One server, and nothing goes wrong by itself."""
    era = "stateless" if traits.speaks == "stateless" else "handshake"
    server = SimServer(name="s", traits=traits, era=era, policy=replace(ROOMY, **policy))  # type: ignore[arg-type]
    world = World(1, [server])
    world.calm = True
    return world


def come(world: World, count: int = 1) -> StatelessAgents:
    """Agents who can be asked everything, and a server that runs."""
    group = world.stateless_agents(count=count, asker=ABLE)
    world.broker.feed(group.list_tools(world.now))
    world.run(3)
    assert group.tools == ["s__t0", "s__t1"]
    return group


@behaviour("eras:every-mix", "eras:rounds", "calls:isolation", "asks:own-agent")
@pytest.mark.parametrize("traits", [OLD, NEW])
def test_agents_of_both_eras_on_one_instance_are_each_asked_their_own(traits: Traits) -> None:
    world = quiet(traits, sharing="concurrent", max_instances=1)
    group, others = come(world, 4), [world.agent(capabilities=CAPABILITIES[-1]) for _ in range(4)]
    world.run(1)
    for agent in others:
        world.call(agent, "s__t0")
        world.call(group, "s__t0")
        world.call(group, "s__t1")
    world.run(4)
    assert len(world.living()) == 1
    world.run(16)
    assert world.book.eras["parked"] >= 8
    assert world.book.asks.outcomes["shown"] >= 4
    assert world.book.outcomes.get("ok", 0) + world.book.outcomes.get("error", 0) == 13
    assert not group.open


@behaviour("eras:tokens")
def test_tokens_are_refused_a_second_time_and_to_another_session_and_harm_nobody() -> None:
    world = quiet(NEW)
    group, thief = come(world), world.stateless_agents(asker=ABLE)
    world.wanted = lambda *_: None  # type: ignore[method-assign]
    world.call(group, "s__t0")
    world.run(1)
    [token] = group.tokens
    for _ in range(5):
        world.broker.feed(thief.misuse(token, world.now))
    assert world.book.eras["refused"] == 5
    world.broker.feed(group.retry(token, world.now))
    world.broker.feed(group.retry(token, world.now))
    assert world.book.eras["refused"] == 6
    assert len(group.open) == 1


@behaviour("eras:parked-ends")
def test_a_call_that_nobody_comes_back_for_ends_everywhere_in_time() -> None:
    world = quiet(NEW, sharing="serial", ask_timeout_s=50.0)
    group = come(world)
    world.wanted = lambda *_: None  # type: ignore[method-assign]
    world.call(group, "s__t0")
    world.run(1)
    assert world.broker.core.call_table.calls
    world.run(BOUNDS.park_s)
    assert not world.broker.core.call_table.calls
    world.broker.feed(group.retry(group.tokens[0], world.now))
    assert world.book.eras["expired"] == 1
    world.run(1)
    assert not world.supervisor.core.dispatcher.calls
    assert not world.living()[0].asker.open


@behaviour("wait:parked-gives-way", "eras:parked-ends")
def test_who_stays_away_holds_up_no_other_agent_and_is_told_so_when_it_comes_back() -> None:
    world = quiet(OLD, sharing="serial", max_instances=2, wait_s=4.5)
    world.wanted = lambda *_: None  # type: ignore[method-assign]
    group, other = come(world), world.agent(capabilities=CAPABILITIES[-1])
    world.run(1)
    for _ in range(2):
        world.call(group, "s__t0")
    world.run(1)
    assert len(group.tokens) == 2
    world.call(other, "s__t0")
    world.run(BOUNDS.park_s - 1.1)
    for token in list(group.tokens):
        world.broker.feed(group.retry(token, world.now))
    world.run(3)
    assert world.book.outcomes == {"ok": 3, "agent_away": 1}, "a list, the other agent's call, one of two"
    assert not world.broker.core.call_table.calls
    assert not world.supervisor.core.dispatcher.calls


@behaviour("eras:parked-ends")
def test_who_comes_back_after_the_supervisor_died_is_told_so_and_nothing_runs_twice() -> None:
    world = quiet(NEW)
    group = come(world)
    world.wanted = lambda *_: None  # type: ignore[method-assign]
    world.call(group, "s__t0")
    world.run(1)
    world.kill_supervisor(0.5)
    world.broker.feed(group.retry(group.tokens[0], world.now))
    assert world.book.outcomes == {"ok": 1, "link_broken": 1}
    world.run(5)
    assert not world.broker.core.call_table.calls


@behaviour("eras:listens")
def test_whoever_listens_hears_of_each_change_once_per_listen_and_nothing_after_its_end() -> None:
    world = quiet(Traits(speaks="stateless", updates=1.0))
    group = come(world, 2)
    for _ in range(3):
        world.broker.feed(group.listen(("sim://s/r",), world.now))
    assert world.book.eras["listens"] == 3
    world.calm = False
    world.call(group, "s__t0")
    world.run(2)
    assert world.book.eras["updated"] == 3
    event = group.cancel(world.now, listens=True)
    assert event is not None
    world.broker.feed(event)
    world.call(group, "s__t0")
    world.run(2)
    assert world.book.eras["updated"] == 5
    world.leave(group)
    world.run(1)
    assert not world.living()[0].watched


@behaviour("lease:never-silently", "eras:match")
def test_a_lease_in_the_pool_of_one_era_is_told_as_lost_when_one_pool_turns_out_to_do_for_both() -> None:
    policy = replace(ROOMY, sharing="session", spares=0)
    world = World(1, [SimServer(name="s", traits=Traits(speaks="stateless"), era="newest", policy=policy)])
    world.calm = True
    group = world.stateless_agents(asker=ABLE)
    world.call(group, "s__t0")
    world.run(4)
    assert [each.key for each in world.living() if each.served] == ["s:0:newest"]
    world.broker.feed(world.agent().list_tools(world.now))
    world.run(4)
    for _ in range(2):
        world.call(group, "s__t0")
        world.run(4)
    scope = world.broker.core.sources.scope(SOURCES[0], asking=True, stateless=True)
    assert [entry.key for entry in scope.servers] == ["s:0"]
    assert world.book.outcomes == {"ok": 3, "state_lost": 1}


@behaviour("lease:reload", "eras:match")
def test_a_lease_of_either_pool_that_one_takes_the_place_of_is_told_as_lost() -> None:
    policy = replace(ROOMY, sharing="session", spares=0)
    world = World(1, [SimServer(name="s", traits=Traits(speaks="both"), twins=True, policy=policy)])
    world.calm = True
    plain, able = world.stateless_agents(asker=StatelessAgent()), world.stateless_agents(asker=ABLE)
    for group in (plain, able):
        world.call(group, "s__t0")
        world.run(4)
    assert world.book.outcomes == {"ok": 2}
    world.servers["s"].version, world.servers["s"].era = 1, "newest"
    world.read_config()
    world.run(30)
    for group in (plain, able):
        world.call(group, "s__t0")
        world.run(4)
    assert world.book.outcomes == {"ok": 2, "state_lost": 2}


# --- a broker that dies ---------------------------------------------------------------------------------


@behaviour("death:broker-pause", "record:nothing-runs-twice")
@pytest.mark.parametrize("dies_in", [1, 2, 5])
@pytest.mark.parametrize("count", [1, 4])
def test_calls_in_flight_complete_at_the_next_broker_and_none_runs_twice(count: int, dies_in: int) -> None:
    world = quiet(Traits(speaks="stateless", answer_s=1.0))
    group = come(world, count)
    for _ in range(6):
        world.call(group, "s__t0")
    world.run(0.3)
    world.kill_broker(0.2, fate="back", dies_in=dies_in)
    world.run(6)
    assert world.book.outcomes == {"ok": 7}
    assert set(world.book.ran.values()) == {1}


@behaviour("death:broker-pause", "eras:tokens")
@pytest.mark.parametrize("traits", [OLD, NEW, Traits(sends_to_urls=1.0)])
def test_what_a_call_wants_is_brought_to_the_next_broker_and_nothing_runs_twice(traits: Traits) -> None:
    world = quiet(traits)
    group = come(world)
    world.calm = not traits.sends_to_urls
    said = world.wanted
    world.wanted = lambda *_: None  # type: ignore[method-assign]
    world.call(group, "s__t0")
    while not group.tokens:
        world.run(0.01)
    world.kill_broker(0.2, fate="back")
    world.run(3)
    world.wanted = said  # type: ignore[method-assign]
    world.calm = True
    world.broker.feed(group.retry(group.tokens[0], world.now))
    world.run(10)
    assert world.book.outcomes.get("ok", 0) + world.book.outcomes.get("url_declined", 0) == 2
    assert not group.open


@behaviour("death:broker-pause", "eras:listens")
def test_a_listen_goes_on_at_the_next_broker_and_hears_that_a_list_has_changed_meanwhile() -> None:
    world = quiet(Traits(speaks="stateless", updates=1.0))
    world.servers["gone"] = SimServer(name="gone", traits=Traits())
    world.read_config()
    world.run(3)
    group = world.stateless_agents(asker=ABLE)
    world.broker.feed(group.listen(("sim://s/r",), world.now))
    for _ in range(2):
        world.broker.feed(group.list_tools(world.now))
        world.run(3)
    [listen] = group.listens.values()
    assert listen.tools == ["gone__t0", "gone__t1", "s__t0", "s__t1"]
    world.kill_broker(0.2, fate="back")
    world.servers["gone"].configured = False
    world.run(5)
    assert not listen.tools, "it was told"
    world.calm = False
    world.call(group, "s__t0")
    world.run(3)
    assert world.book.eras["updated"] >= 1, "in doubt it hears once too often"
    assert world.book.eras["listens"] == 1, "it was not told again that it is in force"
