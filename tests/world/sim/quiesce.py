"""The calm after a storm of the simulated world, and what must hold then.

Owns the end of a run: every promise that only quiet can prove. Knows nothing of: what went on before.
"""

from collections.abc import Sequence
from typing import Final

from carpool_broker.core.model.events import SourceId
from carpool_broker.core.model.timer_kinds import TimerKind
from carpool_protocol.ids import ABSENT, PoolKey, whole_of
from carpool_supervisor.core.model.lifecycle import ACTIVE
from tests.world.sim.agents import SimAgent
from tests.world.sim.oracles.lists import rows_now
from tests.world.sim.oracles.violation import Violation
from tests.world.sim.process import LAG_S
from tests.world.sim.stateless_agents import AnyAgents, StatelessAgents
from tests.world.sim.traits import catalog
from tests.world.sim.world import BOUND_S, POLICY, World

CALL_TIMERS: Final[tuple[TimerKind, ...]] = (
    "queued_call", "sent_call", "deferred_request", "gathered_round", "parked_call",
)  # fmt: skip

FAILING_S = POLICY.first_start_s + POLICY.give_up_after * (POLICY.max_delay_s + POLICY.first_start_s) + 12
"""So long a pool of servers that never greet goes on trying."""


MOST_CHANGES = 3
"""A server that ends changes the state of its pool so often within a moment."""


def quiesce(world: World) -> None:
    """The weather turns: nothing new goes wrong, what is under way ends."""
    calm_down(world)
    for _ in range(3):
        world.run(4.0)
        world.join()
    world.run(BOUND_S)
    nobody_waits(world)
    nothing_is_left(world)
    start_servers(world, world.operable())
    for source in world.sources:
        everything_works(world, source)
    world.rest()
    world.run(POLICY.lease_idle_s + POLICY.idle_s + 20)
    nothing_is_left(world)
    pools_are_at_rest(world)


def start_servers(world: World, keys: Sequence[PoolKey]) -> None:
    """An operator starts the servers of these pools, and gets an answer each time."""
    for key in keys:
        world.operate(key, "start")
    for _ in range(
        4 + len(keys) // 6
    ):  # as many rounds as it takes where no more than three may greet at once
        if world.operations:
            world.run(FAILING_S)
    if world.operations:
        raise Violation(f"operators still wait: {world.operations}")


def calm_down(world: World) -> None:
    """Nothing new goes wrong."""
    world.calm = True
    world.resume_servers()
    for wire in world.wires.values():
        wire.slow_down(LAG_S)


def nobody_waits(world: World) -> None:
    """No agent waits for an answer."""
    for agent in world.agents.values():
        if agent.open:
            raise Violation(f"{agent.session} still waits for {agent.open}")


def assert_calls_survive_the_broker(
    world: World, agent: SimAgent, servers: Sequence[str], *, dies_in: int
) -> None:
    """Call each of these servers, which answer slowly, and let the broker die meanwhile: every call is
    answered, and none runs twice.
    """
    for server in servers:
        world.call(agent, f"{server}__t0")
    world.run(0.3)
    world.kill_broker(0.2, fate="back", dies_in=dies_in)
    world.run(6)
    assert world.book.outcomes == {"ok": len(servers)}
    assert set(world.book.ran.values()) == {1}
    quiesce(world)


def nothing_is_left(world: World) -> None:
    """No record of a request is left in either core, and both believe the same."""
    for _ in range(MOST_CHANGES):
        if _untold(world):
            world.run(2 * LAG_S)  # it may be on its way
    if untold := _untold(world):
        raise Violation(f"the broker was told another state of {untold}")
    broker = world.broker.core
    broker.check()
    ledger = broker.call_table
    _empty(
        "broker's calls",
        ledger.calls,
        *(broker.timers.keys(kind) for kind in CALL_TIMERS),
    )
    world.broker.counters.compare(broker)
    _lists_are_no_older_than_said(world)
    _subscriptions_hold(world)
    for each in world.supervisors.values():
        each.core.check()
        desk = each.core.dispatcher
        _empty(f"calls of {each.name}", desk.calls, desk.timeouts, desk.queue_timeouts)
    _nobody_is_asked(world)
    for agent in world.agents.values():
        if any(agent.doubles.values()):
            raise Violation(f"{agent.session} got no answer to a doubled id: {agent.doubles}")
    _pools_are_those_wanted(world)
    known = {id_ for each in world.supervisors.values() for id_ in each.core.instances.by_id}
    strangers = [i for i in world.living() if i.id not in known]
    if strangers:
        raise Violation(f"{strangers} run and nobody knows")


def _pools_are_those_wanted(world: World) -> None:
    broker = world.broker.core
    wanted = {spec.key for spec in broker.sources.wanted_pools().pools}
    pools = {
        key: (each, pool) for each in world.supervisors.values() for key, pool in each.core.pools.items()
    }
    if pools.keys() != wanted:
        raise Violation(f"pools {set(pools) ^ wanted} are wanted or there, not both")
    for key, (supervisor, pool) in pools.items():
        if world.owner(key) is not supervisor:
            raise Violation(f"{key} is at {supervisor.name}, which does not run its server")
        if pool.catalog is not None and broker.registry.told_catalog(key) != pool.catalog:
            raise Violation(f"the broker has another catalog of {key}")
    if set(broker.states) - wanted:
        raise Violation(f"the broker remembers {set(broker.states) - wanted}")


def _untold(world: World) -> list[str]:
    """Pools of which the broker believes another state than they are in, and which."""
    said = {key: state.state for key, state in world.broker.core.states.items()}
    return [
        f"{key}, which is {pool.state_at(each.clock)}: {said.get(key)}"
        for each in world.supervisors.values()
        for key, pool in each.core.pools.items()
        if pool.state_at(each.clock) != said.get(key)
    ]


def _nobody_is_asked(world: World) -> None:
    """No server waits for an answer, no agent owes one, no instance is held for an agent that is gone."""
    for instance in world.living():
        if instance.asker.open and not instance.mute:
            raise Violation(f"instance {instance.id} of {instance.key} waits for {instance.asker.open}")
    for agent in world.agents.values():
        if agent.asks:
            raise Violation(f"{agent.session} believes that {list(agent.asks)} are open")
    for pool in [pool for each in world.supervisors.values() for pool in each.core.pool_reports()]:
        for shown in pool.instances:
            if not shown.holder:
                continue
            if whole_of(shown.holder) not in world.agents:
                raise Violation(f"instance {shown.id} of {pool.key} is held for {shown.holder}, who is gone")
            scope = world.broker.core.sessions[whole_of(shown.holder)].scope
            if pool.key not in {entry.key for entry in scope.servers}:
                raise Violation(
                    f"instance {shown.id} of {pool.key} is held for {shown.holder}, served elsewhere"
                )


def _lists_are_no_older_than_said(world: World) -> None:
    """Whoever has a list, and was not told that it is old (where a group listens), has the present one."""
    for agent in world.agents.values():
        if isinstance(agent, SimAgent) and agent.has_read is not None:
            rows = rows_now(world.broker.core, agent.session)
            if agent.has_read != rows:
                raise Violation(f"{agent.session} has read {agent.has_read}, not {rows}, and was not told")
        if isinstance(agent, StatelessAgents):
            view = world.broker.core.view_of(agent.session)
            present = [tool.qualified for tool in view.lists[0].present.entries]
            for listen in agent.listens.values():
                if "tools" in listen.families and listen.tools not in (None, present):
                    raise Violation(f"{listen.person} listens and has {listen.tools}, not {present}")


def _subscriptions_hold(world: World) -> None:
    """What an agent was told that it is subscribed to, it is, through however many brokers."""
    watching, interests = world.broker.core.requests.subscribe, world.broker.core.requests.subscriptions
    for agent in world.agents.values():
        held = {(holder, spelled) for _, _, holder, spelled in interests.subscriptions_of(agent.session)}
        held.update(watching.unplaced.of_session(agent.session))
        if isinstance(agent, SimAgent):
            told = {(ABSENT, uri) for uri in agent.subscribed}
        else:
            here = [(id_, listen) for id_, listen in agent.listens.items() if not listen.is_elsewhere]
            told = {(id_, uri) for id_, listen in here for uri in listen.held_uris}
        if told - held:
            raise Violation(f"{agent.session} believes that it is subscribed to {told - held}")


def _empty(what: str, *tables: object) -> None:
    for table in tables:
        if len(table):  # type: ignore[arg-type]
            raise Violation(f"{what}: something is left: {table!r}")


def everything_works(world: World, source: SourceId) -> None:
    """A new agent finds every good server, and gets an answer from each of its tools."""
    if not world.profiles.rights.are_all:
        world.read_config()  # everything is permitted again
    agent = world.agent(source)
    _all_tools_work(world, agent)
    _all_tools_work(world, world.stateless_agents(source))


def _all_tools_work(world: World, agent: AnyAgents) -> None:
    world.broker.feed(agent.list_tools(world.now))
    world.run(POLICY.first_start_s + 10)
    for _ in range(3):  # of two pools one may turn out to do for both, which has told nothing yet
        scope = world.broker.core.sessions[agent.session].scope
        untold = [it.key for it in scope.servers if world.broker.core.registry.told_catalog(it.key) is None]
        for key in untold:  # what is listed of it may be an earlier carpool's word
            world.operate(key, "start")
        if untold:
            world.run(POLICY.first_start_s)
    world.broker.feed(agent.list_tools(world.now))
    world.run(POLICY.first_start_s)
    for entry in world.broker.core.sessions[agent.session].scope.servers:
        served = world.served_at(entry.key)
        if not served or not all(_good(there, key) for there, key in served):
            continue
        there, its_key = served[0]
        for tool in catalog(its_key, there.traits(its_key)).tools:
            name = f"{entry.server}__{tool.name}"
            if name not in agent.tools and not agent.searches:
                raise Violation(f"{name} of {entry.key} is not listed: {agent.tools}")
            before, lost = (world.book.outcomes.get(word, 0) for word in ("ok", "state_lost"))
            world.call(agent, name)
            world.run(POLICY.first_start_s + 3)
            if world.book.outcomes.get("state_lost", 0) > lost:  # one pool has turned out to do for two
                world.call(agent, name)
                world.run(POLICY.first_start_s + 3)
            if world.book.outcomes.get("ok", 0) != before + 1:
                raise Violation(f"{name} of {entry.key} does not work: {world.book.outcomes}")
    world.leave(agent)


def _good(world: World, key: PoolKey) -> bool:
    traits = world.traits(key)
    if not traits.healthy:
        return False
    pool = world.owner(key).core.pools[key]
    return pool.catalog is None or pool.catalog == catalog(key, traits, era=pool.catalog.era)


def pools_are_at_rest(world: World) -> None:
    """No pool has more instances than it keeps."""
    for key, pool in [each for of in world.supervisors.values() for each in of.core.pools.items()]:
        active = [i for i in pool.instances.values() if i.state in ACTIVE]
        kept = pool.policy.min_instances
        least = kept if pool.restart.breaker == "closed" else 0  # such a pool tries again and again
        if not least <= len(active) <= kept or pool.target > kept:
            raise Violation(f"{key} rests with {len(active)} instances, target {pool.target}, least {least}")
        if len(pool.instances) != len(active) and pool.restart.breaker == "closed":
            raise Violation(f"{key} has instances that do not end")
