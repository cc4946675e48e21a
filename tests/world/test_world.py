"""The simulated world (docs/architecture.md): both cores through storms, and special weather by hand.

`CARPOOL_WORLD_SEEDS=N` runs N storms instead of the fixed few; `CARPOOL_WORLD_THOROUGH=1` checks every
invariant after every event. A failure names its seed, and the command that runs it again.
"""

import os
from typing import Any

import pytest
from msgspec.structs import replace

from carpool_broker.core.model import events as bv
from carpool_protocol.link.messages import PoolReport
from carpool_protocol.machine.journal import load_journal, replay
from carpool_supervisor.core.model import events as sv
from tests.behaviours import behaviour
from tests.kit.broker_rig import broker_core
from tests.kit.supervisor_rig import supervisor_core
from tests.world.sim.broker import BOUNDS, LIST_WAIT_S
from tests.world.sim.faults import storm
from tests.world.sim.quiesce import quiesce
from tests.world.sim.traits import Traits
from tests.world.sim.world import POLICY, SimServer, World
from tests.world.soak import AGAIN

SEEDS = range(int(os.environ.get("CARPOOL_WORLD_SEEDS", "8")))


@behaviour(
    "calls:one-answer",
    "calls:honest-delivery",
    "calls:isolation",
    "asks:never-left-waiting",
    "asks:own-agent",
    "asks:answer-of-whom",
    "asks:ids:hostile",
    "lease:exclusive",
    "lease:never-silently",
    "modes:serial",
    "cancel:reaches-server",
    "wait:fair",
)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds_through_a_storm_and_after_it(seed: int) -> None:
    try:
        world = storm(seed)
    except Exception as wrong:
        wrong.add_note(f"seed {seed}: {AGAIN} {seed}")
        raise
    assert world.book.outcomes.get("ok", 0) > 10, f"seed {seed} is no storm but a drought"


@behaviour("profiles:call", "profiles:reload", "profiles:bounds")
@pytest.mark.parametrize("seed", [2, 3, 5, 7])
def test_no_call_goes_past_the_rights_of_its_agent_through_a_storm(seed: int) -> None:
    try:
        world = storm(seed, profiles=True)
    except Exception as wrong:
        wrong.add_note(f"seed {seed}: {AGAIN} profiles:{seed}")
        raise
    assert world.profiles.judged > 10
    assert world.book.outcomes.get("not_permitted", 0) > 0


def test_the_same_seed_is_the_same_run() -> None:
    first, second = storm(3), storm(3)
    assert first.book.outcomes == second.book.outcomes
    assert first.events == second.events


def kinds(effects: list[Any]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


@pytest.mark.parametrize("seed", [2, 6])
def test_a_journal_of_both_cores_replays_to_the_same_end(seed: int) -> None:
    """No disasters in these seeds, so each side has one life and one journal."""
    world = storm(seed, journal=True, asks=False)
    broker_replays_to_the_same_end(world)
    supervisor_replays_to_the_same_end(world)


@pytest.mark.parametrize("seed", [12, 13])
def test_a_journal_with_asks_and_traces_of_agents_in_it_replays_to_the_same_end(seed: int) -> None:
    world = storm(seed, journal=True)
    assert world.book.asks.outcomes["answered"] > 0
    broker_replays_to_the_same_end(world)
    supervisor_replays_to_the_same_end(world)


def broker_replays_to_the_same_end(world: World) -> None:
    assert world.broker.journal is not None
    broker = broker_core(BOUNDS, LIST_WAIT_S, secret=world.broker.secret, audits=True)
    told = load_journal(world.broker.journal.dump(), [bv.AnyEvent])
    decided = [[e["type"] for e in entry.effects] for entry in world.broker.journal.entries()]
    assert [kinds(effects) for effects in replay(broker, told)] == decided
    assert broker.call_table.opened == world.broker.core.call_table.opened
    assert broker.states == world.broker.core.states
    broker.check()


def without_words(report: PoolReport) -> PoolReport:
    """Of what servers wrote a journal keeps the length."""
    return replace(report, stderr_tail=[], last_error=report.last_error.partition(": ")[0])


def supervisor_replays_to_the_same_end(world: World) -> None:
    assert world.supervisor.journal is not None
    supervisor = supervisor_core(world.supervisor.life)
    told = load_journal(world.supervisor.journal.dump(), [sv.AnyEvent])
    decided = [[e["type"] for e in entry.effects] for entry in world.supervisor.journal.entries()]
    assert [kinds(effects) for effects in replay(supervisor, told)] == decided
    assert list(map(without_words, supervisor.pool_reports())) == list(
        map(without_words, world.supervisor.core.pool_reports())
    )
    supervisor.check()


@behaviour("wait:fair")
def test_a_session_with_a_long_line_delays_a_single_call_of_another_by_one_turn() -> None:
    slow = Traits(answer_s=0.5, one_at_a_time=True)
    policy = replace(POLICY, max_instances=1, max_in_flight=1, max_waiting_calls=2000, timeout_s=60.0)
    world = World(
        1, [SimServer(name="s", traits=slow, policy=replace(policy, wait_s=600.0, max_total_s=600.0))]
    )
    greedy, modest = world.agent(), world.agent()
    world.run(3)
    for _ in range(BOUNDS.max_open_calls + BOUNDS.max_waiting_calls):
        world.call(greedy, "s__t0")
    world.run(1)
    world.call(modest, "s__t0")
    world.run(1.5)
    assert not modest.open, "the single call had to wait for more than one turn"
    assert greedy.open


def test_three_servers_that_never_greet_hold_up_another_by_their_turn_only() -> None:
    silent = [SimServer(name=f"n{i}", traits=Traits(never_greets=True)) for i in range(3)]
    patient = replace(POLICY, wait_s=30.0, first_start_s=60.0)
    world = World(1, [*silent, SimServer(name="good", traits=Traits())], max_processes=10)
    for server in world.servers.values():
        server.policy = patient
    world.read_config()
    agent = world.agent()
    world.run(7)
    world.broker.feed(agent.list_tools(world.now))
    world.run(3)
    assert agent.tools == ["good__t0", "good__t1"]


@behaviour("wait:slot-for-each")
def test_one_slot_goes_round_among_servers_with_demand() -> None:
    world = World(1, [SimServer(name=f"s{i}", traits=Traits(greet_s=0.1)) for i in range(3)], max_processes=1)
    agent = world.agent()
    world.run(10)
    world.broker.feed(agent.list_tools(world.now))
    world.run(3)
    assert len(agent.tools) == 6
    for i in (0, 1, 2, 0):
        world.call(agent, f"s{i}__t0")
        world.run(3)
    assert world.book.outcomes["ok"] == 5
    assert len(world.living()) == 1


def test_a_changed_server_serves_from_the_old_pool_until_the_new_one_has_greeted() -> None:
    world = World(1, [SimServer(name="s", traits=Traits(greet_s=3.0))])
    agent = world.agent()
    world.run(5)
    world.call(agent, "s__t0")
    world.run(1)
    server = world.servers["s"]
    server.version = 1
    world.read_config()
    for _ in range(40):
        world.call(agent, "s__t0")
        world.run(0.1)
    world.run(5)
    assert world.book.outcomes == {"ok": 41}
    assert {instance.key for instance in world.living()} == {"s:1"}
    server.version = 2
    server.traits = Traits(never_greets=True)
    world.read_config()
    for _ in range(10):
        world.call(agent, "s__t0")
        world.run(0.5)
    assert world.book.outcomes == {"ok": 51}, "a new one that fails leaves the old one in force"


def test_a_pool_that_goes_and_comes_back_while_it_drains_is_listed_again() -> None:
    world = World(1, [SimServer(name="s", traits=Traits(deaf=True))])
    agent = world.agent()
    world.run(3)
    server = world.servers["s"]
    server.configured = False
    world.read_config()
    world.run(0.5)
    server.configured = True
    world.read_config()
    world.run(1)
    world.broker.feed(agent.list_tools(world.now))
    world.run(3)
    assert agent.tools == ["s__t0", "s__t1"]


def test_stop_first_waits_for_the_old_pool_also_when_the_configuration_is_read_again() -> None:
    world = World(1, [SimServer(name="s", traits=Traits(deaf=True), stop_first=True)])
    agent = world.agent()
    world.run(3)
    world.servers["s"].version = 1
    world.read_config()
    world.call(agent, "s__t0")
    world.run(0.5)
    world.read_config()  # the wire raises a Violation if the new pool starts beside the old one
    world.run(0.5)
    assert [instance.key for instance in world.living()] == ["s:0"]
    world.run(20)
    quiesce(world)


@behaviour("silence:probed-then-replaced")
def test_an_instance_that_answers_calls_is_not_silent_though_it_ignores_pings() -> None:
    world = World(1, [SimServer(name="s", traits=Traits(ignores_ping=True, answer_s=0.5))])
    agent = world.agent()
    world.run(3)
    for _ in range(40):
        world.call(agent, "s__t0")
        world.run(1)
    assert world.book.outcomes == {"ok": 40}
    assert world.supervisor.core.pool_reports()[0].restarts == 0


def test_a_call_waits_out_a_supervisor_that_is_away() -> None:
    world = World(1, [SimServer(name="s", traits=Traits())])
    agent = world.agent()
    world.run(3)
    world.kill_supervisor(2.0)
    world.call(agent, "s__t0")
    world.run(6)
    assert world.book.outcomes == {"ok": 1}


def test_a_link_cut_under_calls_in_flight_ends_each_once_as_maybe_and_the_next_works() -> None:
    world = World(1, [SimServer(name="s", traits=Traits(answer_s=2.0))])
    agent = world.agent()
    world.run(3)
    for _ in range(5):
        world.call(agent, "s__t0")
    world.run(0.015)  # they have arrived, and nothing can have been answered
    world.wire.cut(told=False)
    world.run(0.1)
    assert world.book.outcomes == {"link_broken": 5}
    world.wire.join()
    world.call(agent, "s__t0")
    world.run(4)
    assert world.book.outcomes == {"link_broken": 5, "ok": 1}
