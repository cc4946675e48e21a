"""What goes on in a simulated world: a storm of calls and deaths, the calm after it, and what must hold then.

Owns the mixture (drawn from the world's seed) and the end: every promise that only quiet can prove.
Knows nothing of: how events travel.
"""

from random import Random
from typing import Any

from msgspec.structs import replace

from carpool_broker.core.events import SourceId
from carpool_protocol.ids import PoolKey
from carpool_protocol.messages import EraWish, Policy, Sharing
from carpool_supervisor.core import events as sv
from carpool_supervisor.core.lifecycle import ACTIVE
from tests.kit.world import BOUND_S, POLICY, SOURCES, SimServer, World
from tests.kit.world_agents import SimAgent
from tests.kit.world_asks import Violation
from tests.kit.world_parties import Anybody, Party
from tests.kit.world_sides import LAG_S
from tests.kit.world_traits import Speaks, Traits, catalog

PERSONS = (
    Traits(),
    Traits(slow=0.1, progress=0.5, silent=0.02),
    Traits(dies_on_call=0.03, dies_after_call=0.02, one_at_a_time=True),
    Traits(dies_at_start=0.3, refuses=0.1, greet_s=1.0),
    Traits(doubles=0.2, unknowns=0.2, unreadable=0.1, errs=0.1, misspeaks=0.1),
    Traits(list_changes=0.7, progress=0.3),
    Traits(deaf=True, freezes=0.01, mute=0.01),
    Traits(ignores_ping=True, slow=0.2),
    Traits(never_reads=True),
    Traits(never_greets=True),
    Traits(no_command=True),
    Traits(silent=0.3, one_at_a_time=True),
    Traits(asks=0.5, echo="exact", asks_late=0.1, asks_after_cancel=0.3, asks_twice=0.1, progress=0.3),
    Traits(asks=0.5, echo="tracer", waits=True, withdraws=0.2, slow=0.1),
    Traits(asks=0.7, waits=True, asks_about_nothing=0.1, asks_after_cancel=0.3),
    Traits(asks=0.5, as_task=True, asks_late=0.2, asks_twice=0.1, waits=True),
    Traits(asks=0.4, sends_to_urls=0.2, asks_late=0.05, silent=0.05, dies_on_call=0.01, doubles=0.1),
)
MODERN = (
    Traits(speaks="stateless", asks=0.6, progress=0.3, ttl_ms=400, slow=0.05),
    Traits(speaks="stateless", asks=0.5, pauses=0.3, logs=0.3, updates=0.3, ttl_ms=0),
    Traits(speaks="stateless", list_changes=0.7, updates=0.5, ttl_ms=3000, public=True),
    Traits(speaks="both", asks=0.4, echo="exact", logs=0.3, dies_on_call=0.02, ttl_ms=200),
    Traits(speaks="both", asks=0.3, errs=0.1, silent=0.05, dies_after_call=0.02),
    Traits(shy=True, logs=0.5, updates=0.5, asks=0.3, sends_to_urls=0.3, list_changes=0.3),
)
"""Those that speak the stateless era, or have something to say on it."""
SILENT = tuple(person for person in (*PERSONS, *MODERN) if not person.asks)
"""Those that ask nothing."""
WISHES: dict[Speaks, tuple[EraWish, ...]] = {
    "handshake": ("handshake", "auto", "newest"),
    "stateless": ("stateless", "auto", "newest"),
    "both": ("handshake", "stateless", "auto", "newest"),
}
SLOW_LAG_S = 0.3
SHARINGS: tuple[Sharing, ...] = ("auto", "auto", "concurrent", "serial", "session", "session")
LIMITS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"limit_calls": 6},
    {"limit_age_s": 7.0},
    {"limit_rss_mb": 100, "limit_calls": 40},
)


def storm(seed: int, *, journal: bool = False, asks: bool = True) -> World:
    """Thirty seconds of storm, then calm. Raises what is wrong. Odd seeds cut links and kill daemons."""
    rng = Random(seed)
    persons = (*PERSONS, *MODERN) if asks else SILENT
    servers = servers_of(rng, rng.randint(2, 5), persons)
    most = rng.choice((4, 6, 24))
    world = World(seed, servers, max_processes=most, journal=journal)
    Storm(world, persons, agents=rng.randint(2, 8), duration_s=30, disasters=seed % 2 == 1)
    world.run(30)
    calm_down(world)
    return world


def servers_of(rng: Random, count: int, persons: tuple[Traits, ...]) -> list[SimServer]:
    """So many servers of these kinds."""
    traits = [rng.choice(persons) for _ in range(count)]
    return [
        SimServer(
            name=f"s{i}",
            traits=traits[i],
            era=rng.choice(WISHES[traits[i].speaks]),
            per_source=rng.random() < 0.3,
            stop_first=rng.random() < 0.3,
            twins=rng.random() < 0.4,
            policy=replace(
                POLICY, sharing=rng.choice(SHARINGS), spares=rng.randint(0, 1), **rng.choice(LIMITS)
            ),
        )
        for i in range(count)
    ]


class Storm:
    """Agents at work and everything that can go wrong, for a while."""

    def __init__(
        self, world: World, persons: tuple[Traits, ...], *, agents: int, duration_s: float, disasters: bool
    ) -> None:
        self.world = world
        self.rng = world.rng
        self.persons = persons
        self.until = world.now + duration_s
        for _ in range(agents):
            self._arrive()
        self._repeat(3.0, self._arrive)
        self._repeat(4.0, self._change_config)
        self._repeat(3.0, self._operate)
        self._repeat(2.0, self._kill_instance)
        self._repeat(0.5, self._measure)
        self._repeat(6.0, lambda: world.wire.slow_down(self.rng.choice((LAG_S, LAG_S, SLOW_LAG_S))))
        if disasters:
            self._repeat(9.0, lambda: world.wire.cut(told=self.rng.random() < 0.5))
            self._repeat(2.0, world.wire.join)
            self._repeat(15.0, world.wire.join_again)
            self._repeat(15.0, lambda: world.broker.stop(self.rng.uniform(0.05, 2.0)))
            self._repeat(15.0, lambda: world.supervisor.stop(self.rng.choice((0.1, 1.0, 3.0, 8.0))))
            self._repeat(25.0, self._kill_supervisor)
            self._repeat(40.0, self._kill_broker)

    def _repeat(self, every_s: float, act: object) -> None:
        assert callable(act)

        def run() -> None:
            if self.world.now < self.until:
                act()
                self.world.later(self.rng.expovariate(1 / every_s), run)

        self.world.later(self.rng.expovariate(1 / every_s), run)

    def _arrive(self) -> None:
        if not self.world.broker.alive or self.world.broker.stopped:
            return
        source, pace_s = self.rng.choice(SOURCES), self.rng.expovariate(1 / 0.1)
        if self.rng.random() < 0.5:
            self._work(self.world.agent(source, careless=self.rng.random() < 0.3), pace_s)
        else:
            count = self.rng.choice((1, 1, 4))
            party = self.world.party(source, count=count, anonymous=count > 1 and self.rng.random() < 0.5)
            self._work(party, pace_s)

    def _work(self, agent: Anybody, pace_s: float) -> None:
        world = self.world

        def step() -> None:
            if world.now < self.until and agent.session in world.agents:
                if world.broker.stopped:
                    pass  # nobody would be heard
                elif isinstance(agent, SimAgent):
                    self._act(agent)
                else:
                    self._act_stateless(agent)
                world.later(self.rng.expovariate(1 / pace_s), step)

        world.later(self.rng.expovariate(1 / pace_s), step)

    def _act(self, agent: SimAgent) -> None:
        world, dice = self.world, self.rng.random()
        feed = world.broker.feed
        if agent.list_is_old and dice < 0.3:
            feed(agent.list_tools(world.now))
        elif dice < 0.02:
            feed(agent.ping(world.now))
        elif dice < 0.12:
            event = agent.cancel(world.now)
            if event is not None:
                feed(event)
        elif dice < 0.13:
            world.leave(agent)
        elif dice < 0.2:
            for _ in range(self.rng.randint(5, 20)):
                self._call(agent)
        else:
            self._call(agent)

    def _act_stateless(self, party: Party) -> None:
        world, dice = self.world, self.rng.random()
        feed = world.broker.feed
        uris = tuple(f"sim://{name}/r" for name in world.servers if self.rng.random() < 0.5)
        if dice < 0.1:
            feed(party.list_tools(world.now))
        elif dice < 0.13:
            feed(party.discover(world.now))
        elif dice < 0.18:
            feed(party.listen((*uris, "sim://nobody/r"), world.now))
        elif dice < 0.28:
            event = party.cancel(world.now, listens=self.rng.random() < 0.2)
            if event is not None:
                feed(event)
        elif dice < 0.285:
            world.leave(party)
        elif dice < 0.35:
            feed(party.read(self.rng.choice((*uris, "sim://nobody/r")), world.now))
        else:
            for _ in range(self.rng.choice((1, 1, 1, 1, 12))):
                self._call(party)

    def _call(self, agent: Anybody) -> None:
        name = f"s{self.rng.randrange(len(self.world.servers) + 1)}__t{self.rng.randrange(3)}"
        if agent.tools and self.rng.random() < 0.8:
            name = self.rng.choice(agent.tools)
        size = self.rng.choice((0, 0, 0, 50, 700))
        self.world.broker.feed(
            agent.call(name, self.world.now, size_bytes=size, progress=self.rng.random() < 0.3)
        )

    def _change_config(self) -> None:
        if not self.world.broker.alive:
            return
        for _ in range(self.rng.choice((1, 1, 2))):
            server = self.world.servers[self.rng.choice(list(self.world.servers))]
            match self.rng.randrange(5):
                case 0 | 1:
                    server.version += 1
                    server.traits = self.rng.choice(self.persons)
                    server.era = self.rng.choice(WISHES[server.traits.speaks])
                case 2:
                    server.version = max(0, server.version - 1)
                case 3:
                    server.configured = not server.configured
                case _:
                    policy = self.rng.choice((POLICY, self._other_policy()))
                    sharing, limits = self.rng.choice(SHARINGS), self.rng.choice(LIMITS)
                    server.policy = replace(policy, sharing=sharing, **limits)
        self.world.read_config()

    def _other_policy(self) -> Policy:
        # `carpool check` holds that the cap is not below the sum of all `min`.
        roomy = self.world.max_processes > 4 * len(self.world.servers)
        return replace(POLICY, max_instances=1, min_instances=1 if roomy else 0, max_waiting_calls=4)

    def _operate(self) -> None:
        server = self.world.servers[self.rng.choice(list(self.world.servers))]
        for _ in range(self.rng.choice((1, 1, 3))):
            key = server.key(self.rng.choice(SOURCES))
            self.world.operate(key, self.rng.choice(("start", "stop", "restart")))

    def _kill_instance(self) -> None:
        living = self.world.living()
        if living:
            self.rng.choice(living).die("was killed by SIGKILL")

    def _measure(self) -> None:
        sizes = tuple((each.id, self.rng.choice((50, 50, 150)) << 20) for each in self.world.living())
        self.world.supervisor.feed(sv.MemoryMeasured(sizes))

    def _kill_supervisor(self) -> None:
        if self.world.supervisor.alive:
            self.world.kill_supervisor(self.rng.uniform(0.1, 3))

    def _kill_broker(self) -> None:
        if self.world.broker.alive:
            self.world.kill_broker(self.rng.uniform(0.1, 1))


def calm_down(world: World) -> None:
    """The weather turns: nothing new goes wrong, what is under way ends."""
    world.calm = True
    world.wire.slow_down(LAG_S)
    for _ in range(3):
        world.run(4.0)
        world.wire.join()
    world.run(BOUND_S)
    for agent in world.agents.values():
        if agent.open:
            raise Violation(f"{agent.session} still waits for {agent.open}")
    _nothing_is_left(world)
    for server in world.servers.values():
        for source in SOURCES:
            for key in server.keys(source):
                world.operate(key, "start")
    world.run(POLICY.first_start_s + POLICY.give_up_after * (POLICY.max_delay_s + POLICY.first_start_s) + 12)
    if world.operations:
        raise Violation(f"operators still wait: {world.operations}")
    for source in SOURCES:
        _everything_works(world, source)
    for server in world.servers.values():  # with a limit of age there is no rest
        server.policy = replace(server.policy, limit_age_s=0.0)
    world.read_config()
    world.run(POLICY.lease_idle_s + POLICY.idle_s + 20)
    _nothing_is_left(world)
    _pools_are_at_rest(world)


def _nothing_is_left(world: World) -> None:
    broker, supervisor = world.broker.core, world.supervisor.core
    broker.check()
    supervisor.check()
    ledger, desk = broker.ledger, supervisor.desk
    _empty(
        "broker's calls",
        ledger.calls,
        ledger.backstops,
        ledger.waits,
        broker.requests.lists.waits,
        broker.requests.name_waits,
        broker.requests.listens.waits,
        *broker.parked.deadlines(),
    )
    _lists_are_no_older_than_said(world)
    _empty("supervisor's calls", desk.calls, desk.limits, desk.waits)
    _nobody_is_asked(world)
    for agent in world.agents.values():
        if any(agent.doubles.values()):
            raise Violation(f"{agent.session} got no answer to a doubled id: {agent.doubles}")
    wanted = {spec.key for spec in broker.sources.wanted().pools}
    if supervisor.pools.keys() != wanted:
        raise Violation(f"pools {set(supervisor.pools) ^ wanted} are wanted or there, not both")
    for key, pool in supervisor.pools.items():
        said = broker.states.get(key)
        if said is None or said.state != pool.state(world.supervisor.clock):
            raise Violation(f"{key} is {pool.state(world.supervisor.clock)}, and the broker was told {said}")
        if pool.catalog is not None and broker.registry.catalog(key) != pool.catalog:
            raise Violation(f"the broker has another catalog of {key}")
    if set(broker.states) - wanted:
        raise Violation(f"the broker remembers {set(broker.states) - wanted}")
    strangers = [i for i in world.living() if i.id not in supervisor.roster.instances]
    if strangers:
        raise Violation(f"{strangers} run and nobody knows")


def _nobody_is_asked(world: World) -> None:
    """No server waits for an answer, no agent owes one, no instance is held for an agent that is gone."""
    for instance in world.living():
        if instance.asker.open and not instance.mute:
            raise Violation(f"instance {instance.id} of {instance.key} waits for {instance.asker.open}")
    for agent in world.agents.values():
        if agent.asks:
            raise Violation(f"{agent.session} believes that {list(agent.asks)} are open")
    for pool in world.supervisor.core.report():
        for shown in pool.instances:
            if shown.holder and shown.holder not in world.agents:
                raise Violation(f"instance {shown.id} of {pool.key} is held for {shown.holder}, who is gone")


def _lists_are_no_older_than_said(world: World) -> None:
    """Whoever listens and has a list, and was not told that it is old, has the present one."""
    for agent in world.agents.values():
        if isinstance(agent, Party):
            view = world.broker.core.view_of(agent.session)
            present = [tool.qualified for tool in view.tools]
            for listen in agent.listens.values():
                if "tools" in listen.families and listen.tools not in (None, present):
                    raise Violation(f"{listen.person} listens and has {listen.tools}, not {present}")


def _empty(what: str, *tables: object) -> None:
    for table in tables:
        if len(table):  # type: ignore[arg-type]
            raise Violation(f"{what}: something is left: {table!r}")


def _everything_works(world: World, source: SourceId) -> None:
    """A new agent finds every good server, and gets an answer from each of its tools."""
    agent = world.agent(source)
    _all_tools_work(world, source, agent, asking=agent.capabilities.asking, stateless=False)
    party = world.party(source)
    asking = party.by[party.persons[0]].capabilities.asking
    _all_tools_work(world, source, party, asking=asking, stateless=True)


def _all_tools_work(world: World, source: SourceId, agent: Anybody, *, asking: bool, stateless: bool) -> None:
    world.broker.feed(agent.list_tools(world.now))
    world.run(POLICY.first_start_s + 10)
    world.broker.feed(agent.list_tools(world.now))
    world.run(POLICY.first_start_s)
    scope = world.broker.core.sources.scope(source, asking=asking, stateless=stateless)
    for entry in scope.servers:
        if not _good(world, entry.key):
            continue
        for tool in catalog(entry.key, world.traits(entry.key)).tools:
            name = f"{entry.server}__{tool.name}"
            if name not in agent.tools:
                raise Violation(f"{name} of {entry.key} is not listed: {agent.tools}")
            before = world.book.outcomes.get("ok", 0)
            world.call(agent, name)
            world.run(POLICY.first_start_s + 3)
            if world.book.outcomes.get("ok", 0) != before + 1:
                raise Violation(f"{name} of {entry.key} does not work: {world.book.outcomes}")
    world.leave(agent)


def _good(world: World, key: PoolKey) -> bool:
    traits = world.traits(key)
    if not traits.healthy:
        return False
    pool = world.supervisor.core.pools[key]
    return pool.catalog is None or pool.catalog == catalog(key, traits, era=pool.catalog.era)


def _pools_are_at_rest(world: World) -> None:
    for key, pool in world.supervisor.core.pools.items():
        active = [i for i in pool.instances.values() if i.state in ACTIVE]
        kept = pool.policy.min_instances
        least = kept if pool.restart.breaker == "closed" else 0  # such a pool tries again and again
        if not least <= len(active) <= kept or pool.target > kept:
            raise Violation(f"{key} rests with {len(active)} instances, target {pool.target}, least {least}")
        if len(pool.instances) != len(active) and pool.restart.breaker == "closed":
            raise Violation(f"{key} has instances that do not end")
