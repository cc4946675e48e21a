"""What goes on in a simulated world: a storm of calls and deaths, and the calm after it.

Owns the mixture, drawn from the world's seed. Knows nothing of: how events travel, what must hold at the end.
"""

from random import Random
from typing import Any

from msgspec.structs import replace

from carpool_broker.core.model import events as bv
from carpool_protocol.ids import ServerName
from carpool_protocol.link.messages import EraWish, Policy, Sharing
from carpool_supervisor.core.model import events as sv
from tests.world.sim.agents import SimAgent
from tests.world.sim.link import SimLink
from tests.world.sim.process import LAG_S
from tests.world.sim.quiesce import quiesce
from tests.world.sim.stateless_agents import AnyAgents, StatelessAgents
from tests.world.sim.traits import Speaks, Traits
from tests.world.sim.world import POLICY, SOURCES, SimServer, World

TRAITS = (
    Traits(),
    Traits(slow=0.1, progress=0.5, silent=0.02),
    Traits(dies_on_call=0.03, dies_after_call=0.02, one_at_a_time=True),
    Traits(dies_at_start=0.3, refuses=0.1, greet_s=1.0),
    Traits(doubles=0.2, unknowns=0.2, unreadable=0.1, errs=0.1, misspeaks=0.1),
    Traits(list_changes=0.7, progress=0.3),
    Traits(deaf=True, freezes=0.01, mute=0.01, closes_stdin=0.02),
    Traits(closes_stdin=0.1, slow=0.2, ignores_ping=True),
    Traits(ignores_ping=True, slow=0.2),
    Traits(never_reads=True),
    Traits(never_greets=True),
    Traits(no_command=True),
    Traits(silent=0.3, one_at_a_time=True),
    Traits(silent=1.0, ignores_ping=True),
    Traits(big=0.3, pings=0.3, progress=0.3, breeds=True, dies_after_call=0.02),
    Traits(choosy=True, misspeaks=0.3, big=0.05),
    Traits(asks=0.5, echo="exact", asks_late=0.1, asks_after_cancel=0.3, asks_twice=0.1, progress=0.3),
    Traits(asks=0.5, echo="tracer", waits=True, withdraws=0.2, slow=0.1),
    Traits(asks=0.7, waits=True, asks_about_nothing=0.1, asks_after_cancel=0.3),
    Traits(asks=0.5, as_task=True, asks_late=0.2, asks_twice=0.1, waits=True),
    Traits(asks=0.4, sends_to_urls=0.2, asks_late=0.05, silent=0.05, dies_on_call=0.01, doubles=0.1),
)
STATELESS_TRAITS = (
    Traits(speaks="stateless", asks=0.6, progress=0.3, ttl_ms=400, slow=0.05),
    Traits(speaks="stateless", asks=0.5, pauses=0.3, logs=0.3, updates=0.3, ttl_ms=0),
    Traits(speaks="stateless", list_changes=0.7, updates=0.5, ttl_ms=3000, public=True),
    Traits(speaks="both", asks=0.4, echo="exact", logs=0.3, dies_on_call=0.02, ttl_ms=200),
    Traits(speaks="both", asks=0.3, errs=0.1, silent=0.05, dies_after_call=0.02),
    Traits(shy=True, logs=0.5, updates=0.5, asks=0.3, sends_to_urls=0.3, list_changes=0.3),
)
"""Those that speak the stateless era, or have something to say on it."""
SILENT = tuple(person for person in (*TRAITS, *STATELESS_TRAITS) if not person.asks)
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


def storm(
    seed: int,
    *,
    journal: bool = False,
    asks: bool = True,
    profiles: bool = False,
    operators: bool = False,
    supervisors: int = 1,
    make: type[World] = World,
) -> World:
    """Thirty seconds of storm, then calm. Raises what is wrong. Odd seeds cut links and kill daemons."""
    rng = Random(seed)
    persons = (*TRAITS, *STATELESS_TRAITS) if asks else SILENT
    servers = servers_of(rng, rng.randint(2, 5), persons)
    most = rng.choice((4, 6, 24)) * supervisors  # each supervisor has its share
    world = make(
        seed, servers, max_processes=most, journal=journal, profiles=profiles, supervisors=supervisors
    )
    agents, disasters = rng.randint(2, 8), seed % 2 == 1
    Storm(world, persons, agents=agents, duration_s=30, disasters=disasters, operators=operators)
    world.run(30)
    quiesce(world)
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
        self,
        world: World,
        persons: tuple[Traits, ...],
        *,
        agents: int,
        duration_s: float,
        disasters: bool,
        operators: bool = False,
        pace_s: float = 0.1,
        arrive_s: float = 3.0,
    ) -> None:
        """`operators`: they pause servers and cancel calls. `pace_s`: the time between two acts of an agent.
        `arrive_s`: the time between two agents.
        """
        self.world = world
        self.pace_s = pace_s
        self.rng = world.rng
        self.persons = persons
        self.until = world.now + duration_s
        for _ in range(agents):
            self._arrive()
        self._repeat(arrive_s, self._arrive)
        self._repeat(4.0, self._change_config)
        self._repeat(3.0, self._operate)
        if operators:
            self._repeat(4.0, self._pause_server)
            self._repeat(2.0, self._cancel_call)
        self._repeat(2.0, self._kill_instance)
        self._repeat(0.5, self._measure)
        self._repeat(4.0, self._pause_reading)
        self._repeat(6.0, lambda: self._wire().slow_down(self.rng.choice((LAG_S, LAG_S, SLOW_LAG_S))))
        if disasters:
            self._repeat(9.0, lambda: self._wire().cut(told=self.rng.random() < 0.5))
            self._repeat(2.0, world.join)
            self._repeat(15.0, lambda: self._wire().join_again())
            self._repeat(15.0, lambda: world.broker.stop(self.rng.uniform(0.05, 2.0)))
            self._repeat(15.0, self._stop_supervisor)
            self._repeat(25.0, self._kill_supervisor)
            self._repeat(12.0, self._kill_broker)

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
        source, pace_s = self.rng.choice(self.world.sources), self.rng.expovariate(1 / self.pace_s)
        if self.rng.random() < 0.5:
            self._work(self.world.agent(source, careless=self.rng.random() < 0.3), pace_s)
        else:
            count = self.rng.choice((1, 1, 4))
            group = self.world.stateless_agents(
                source, count=count, anonymous=count > 1 and self.rng.random() < 0.5
            )
            self._work(group, pace_s)

    def _work(self, agent: AnyAgents, pace_s: float) -> None:
        world = self.world

        def step() -> None:
            if world.now < self.until and world.deaths.has(agent):
                if world.broker.stopped or agent.session not in world.agents:
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

    def _act_stateless(self, group: StatelessAgents) -> None:
        world, dice = self.world, self.rng.random()
        feed = world.broker.feed
        uris = tuple(f"sim://{name}/r" for name in world.server_names() if self.rng.random() < 0.5)
        if dice < 0.1:
            feed(group.list_tools(world.now))
        elif dice < 0.13:
            feed(group.discover(world.now))
        elif dice < 0.18:
            feed(group.listen((*uris, "sim://nobody/r"), world.now))
        elif dice < 0.28:
            event = group.cancel(world.now, listens=self.rng.random() < 0.2)
            if event is not None:
                feed(event)
        elif dice < 0.285:
            world.leave(group)
        elif dice < 0.35:
            feed(group.read(self.rng.choice((*uris, "sim://nobody/r")), world.now))
        else:
            for _ in range(self.rng.choice((1, 1, 1, 1, 12))):
                self._call(group)

    def _call(self, agent: AnyAgents) -> None:
        names = self.world.server_names()
        names.append(f"s{len(names)}")
        name = f"{names[self.rng.randrange(len(names))]}__t{self.rng.randrange(3)}"
        if agent.tools and self.rng.random() < 0.8:
            name = self.rng.choice(agent.tools)
        size = self.rng.choice((0, 0, 0, 50, 700))
        self.world.broker.feed(
            agent.call(name, self.world.now, size_bytes=size, progress=self.rng.random() < 0.3)
        )

    def _change_config(self) -> None:
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
        if self.world.broker.alive:  # else the next one reads it as it is then
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

    def _pause_server(self) -> None:
        """An operator pauses a server, or resumes all of them."""
        names = self.rng.sample(
            list(self.world.servers), min(self.rng.choice((0, 0, 1)), len(self.world.servers))
        )
        self.world.pause_servers(frozenset(map(ServerName, names)))

    def _cancel_call(self) -> None:
        """An operator cancels a call."""
        broker = self.world.broker
        if broker.alive and not broker.stopped and (calls := list(broker.core.call_table.calls)):
            broker.feed(bv.CallCancelledByOperator(self.rng.choice(calls)))

    def _kill_instance(self) -> None:
        living = [each for each in self.world.living() if not each.is_remote]
        if living:
            self.rng.choice(living).die("was killed by SIGKILL")

    def _pause_reading(self) -> None:
        """The broker is slow, or others write long lines. What is said about a call by its moment (an ask, a
        log) stays out of this: the books judge by when it was said.
        """
        timeless = [
            each
            for each in self.world.living()
            if not (
                each.is_remote
                or self.world.traits(each.key).asks
                or self.world.traits(each.key).logs
                or self.world.traits(each.key).updates
                or self.world.traits(each.key).sends_to_urls
            )
        ]
        if timeless:
            self.rng.choice(timeless).pause_reading(self.rng.choice((0.2, 2.0, 8.0)))

    def _measure(self) -> None:
        for supervisor in list(self.world.supervisors.values()):
            running = [each for each in supervisor.instances.values() if each.alive and not each.is_remote]
            sizes = tuple((each.id, self.rng.choice((50, 50, 150)) << 20) for each in running)
            supervisor.feed(sv.MemoryMeasured(sizes))

    def _wire(self) -> SimLink:
        return self.world.wires[self.world.any_name()]

    def _stop_supervisor(self) -> None:
        supervisor = self.world.supervisors[self.world.any_name()]
        supervisor.stop(self.rng.choice((0.1, 1.0, 3.0, 8.0)))

    def _kill_supervisor(self) -> None:
        name = self.world.any_name()
        if self.world.supervisors[name].alive:
            self.world.kill_supervisor(self.rng.uniform(0.1, 3), name)

    def _kill_broker(self) -> None:
        if self.world.broker.alive:
            self.world.deaths.choke(0.3)
            away_s, dies_in = self.rng.uniform(0.1, 1), self.rng.choice((1, 1, self.rng.randint(2, 12)))
            self.world.later(
                self.rng.uniform(0.0, 0.3), lambda: self.world.kill_broker(away_s, dies_in=dies_in)
            )
