"""The simulated world: both cores, a link, agents, servers and bad luck, on virtual time from one seed.

Owns the two processes around the cores as thin as they can be (one method per effect), the wire between them,
and what must hold when all is quiet. No trio, no sleep; the same seed gives the same run. `agents` holds the
rules about answers. A world is one carpool; several share a clock and a book (`cluster`).

Knows nothing of: cores' insides while running (their `check` does); at the end it looks everywhere.
"""

import os
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model import events as bv
from carpool_broker.core.model.capabilities import Capabilities, StatelessAgent
from carpool_broker.core.model.events import SourceId
from carpool_broker.core.model.scope import ScopeEntry
from carpool_broker.core.model.supervisors import ONLY
from carpool_protocol.ids import AskId, PoolKey, ServerName, SessionId, SupervisorName, supervisor_name
from carpool_protocol.link.messages import Call, Era, EraWish, NodeTarget, Operate, Policy, PoolSpec
from carpool_protocol.machine.machine import FULL_CHECK_EVERY
from carpool_supervisor.core.model import effects as sf
from carpool_supervisor.core.model.sharing import Evidence, EvidenceKind
from carpool_supervisor.core.supervisor import SupervisorCore
from tests.world.sim.agents import SimAgent
from tests.world.sim.broker import BOUNDS, LIST_WAIT_S, SimBroker
from tests.world.sim.broker_deaths import BrokerDeaths
from tests.world.sim.carriers import CarrierFate, HandshakeCarrier
from tests.world.sim.clock import SimClock
from tests.world.sim.link import SimLink
from tests.world.sim.oracles.calls import CallBook
from tests.world.sim.profiles import Profiles
from tests.world.sim.servers import SimInstance
from tests.world.sim.stateless_agents import AnyAgents, StatelessAgents, StateToken
from tests.world.sim.stateless_carriers import AnyCarrier, StatelessCarrier
from tests.world.sim.supervisor import SimSupervisor
from tests.world.sim.traits import Traits

POLICY = Policy(
    max_instances=2,
    idle_s=6.0,
    first_start_s=6.0,
    start_s=4.0,
    timeout_s=3.0,
    max_total_s=12.0,
    wait_s=4.0,
    max_waiting_calls=12,
    max_waiting_bytes=8192,
    max_in_flight=4,
    scale_up_at=2,
    give_up_after=4,
    first_delay_s=0.2,
    max_delay_s=1.0,
    healthy_after_s=5.0,
    probe_s=1.5,
    drain_s=5.0,
    ask_timeout_s=3.0,
    lease_idle_s=12.0,
    open_s=3.0,
)
BOUND_S = LIST_WAIT_S + BOUNDS.wait_s + POLICY.wait_s + POLICY.max_total_s + 5.0 + 1.0
"""No request may take longer: a name, the broker's line, then the backstop; and a second for lag."""
SOURCES = (SourceId("daemon"), SourceId("other"))
SEARCHED = SOURCES[1]
"""Its agents are shown tools that find and call tools, and no others."""
THOROUGH = os.environ.get("CARPOOL_WORLD_THOROUGH") == "1"


class SimServer(Struct):
    """One configured server."""

    name: str
    traits: Traits
    version: int = 0
    per_source: bool = False
    """Each source has a pool of its own."""
    stop_first: bool = False
    configured: bool = True
    twins: bool = False
    """Agents that can be asked have a pool of their own (rule 12); else all have one that may ask."""
    era: EraWish = "handshake"
    """As its pools are spoken to. With `auto` and `newest`, which are the same here, agents of the stateless
    era may have a pool of their own.
    """
    policy: Policy = POLICY
    target: NodeTarget | None = None
    """It is a server of other nodes."""

    def key(self, source: SourceId) -> PoolKey:
        """The pool key as this source sees it."""
        mark = f":{source}" if self.per_source else ""
        launch = self.version if self.target is None else f"{self.target.node}/{self.target.server}"
        return PoolKey(f"{self.name}:{launch}{mark}")

    def twin(self, source: SourceId) -> PoolKey:
        """The key of the pool for agents that can be asked."""
        return PoolKey(f"{self.key(source)}:asking")

    def newest(self, source: SourceId) -> PoolKey:
        """The key of the pool for agents of the stateless era."""
        return PoolKey(f"{self.key(source)}:newest")

    def keys(self, source: SourceId) -> tuple[PoolKey, ...]:
        """All of them."""
        return (self.key(source), self.twin(source), self.newest(source))


class World:
    """See the module."""

    def __init__(
        self,
        seed: int,
        servers: list[SimServer],
        *,
        max_processes: int = 6,
        journal: bool = False,
        profiles: bool = False,
        supervisors: int = 1,
        clock: SimClock | None = None,
        book: CallBook | None = None,
        mark: str = "a",
    ) -> None:
        """`profiles`: agents of the second source have one, which changes whenever the file does. `clock` and
        `book`: those of a cluster, in which the ids of sessions here begin with `mark`.
        """
        self.seed = seed
        self.profiles = Profiles(seed, SOURCES[1:] if profiles else ())
        self.rng = Random(seed)
        self.clock = clock or SimClock()
        self.clock.parts.append(self)
        self.mark = mark
        self.servers = {server.name: server for server in servers}
        self.max_processes = max_processes
        self.book = book or CallBook(BOUND_S, POLICY.ask_timeout_s)
        self.agents: dict[SessionId, AnyAgents] = {}
        self.carriers: dict[SessionId, AnyCarrier] = {}
        """Of agents that are at a broker."""
        self.away: list[AnyCarrier] = []
        """Those whose broker has died, and who will come back."""
        self.spent: list[StateToken] = []
        """Of sessions that are gone."""
        self.calm = False
        self.sources: Sequence[SourceId] = SOURCES
        """Where agents come from."""
        self.events = 0
        self.journal = journal
        self._traits: dict[PoolKey, Traits] = {}
        self._wishes: dict[PoolKey, EraWish] = {}
        """A key stands for a launch: it keeps what that was first configured with."""
        self.sessions = 0
        self.words = 0
        self.operations: dict[int, SupervisorName] = {}
        """Words of operators that are not answered, and the supervisors that they were said to."""
        self.paused: frozenset[ServerName] = frozenset()
        """The servers that an operator has paused."""
        self.evidence: dict[PoolKey, dict[EvidenceKind, Evidence]] = {}
        self.eras: dict[str, Era] = {}
        self.supervisor_names: Sequence[SupervisorName] = [
            supervisor_name(number) for number in range(supervisors)
        ]
        self.wires = {name: SimLink(self, name) for name in self.supervisor_names}
        self.deaths = BrokerDeaths(self)
        self.broker = self.new_broker()
        self.supervisors = {name: SimSupervisor(self, name) for name in self.supervisor_names}
        self.read_config()
        self.join()

    @property
    def wire(self) -> SimLink:
        """The link, where there is one."""
        [wire] = self.wires.values()
        return wire

    @property
    def supervisor(self) -> SimSupervisor:
        """The supervisor, where there is one."""
        [supervisor] = self.supervisors.values()
        return supervisor

    def any_name(self) -> SupervisorName:
        """One of the supervisors."""
        return (
            self.supervisor_names[0]
            if len(self.supervisor_names) == 1
            else self.rng.choice(self.supervisor_names)
        )

    def join(self) -> None:
        """Connect all that live."""
        for wire in self.wires.values():
            wire.join()

    def owner(self, key: PoolKey) -> SimSupervisor:
        """The supervisor of this pool."""
        return self.supervisors[self.broker.core.links.owner_of(key)]

    def new_broker(self, before: SimBroker | None = None) -> SimBroker:
        """The first one, or the one after `before`."""
        return SimBroker(self, before)

    # --- time -------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The time."""
        return self.clock.now

    @property
    def node_names(self) -> Sequence[str]:
        """All other nodes of its cluster."""
        return ()

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do it so much later."""
        self.clock.later(delay_s, act)

    def run(self, duration_s: float) -> None:
        """Let so much time pass."""
        self.clock.run(duration_s)

    def _sides(self) -> tuple[SimBroker | SimSupervisor, ...]:
        return (self.broker, *self.supervisors.values())

    def next_deadline(self) -> float | None:
        """See `TimedPart`."""
        return min((at for side in self._sides() if (at := side.next_deadline()) is not None), default=None)

    def tick(self) -> None:
        """See `TimedPart`."""
        for side in self._sides():
            side.tick()

    def settle(self) -> None:
        """The burst is over: what it caused leaves."""
        for wire in self.wires.values():
            wire.flush()

    def look(self, core: BrokerCore | SupervisorCore, event: Struct, effects: Sequence[Any]) -> None:
        """Check a core: what was touched each time, all of it now and then."""
        self.events += 1
        core.check_touched(event, effects)
        self.profiles.look(core, effects)
        if isinstance(core, BrokerCore):
            self.broker.lists.look(core, event, effects)
        if THOROUGH or self.events % FULL_CHECK_EVERY == 0:
            core.check()

    # --- configuration ----------------------------------------------------------------------------------

    def traits(self, key: PoolKey) -> Traits:
        """How the servers of this pool behave."""
        traits = self._traits[key]
        return traits.calm() if self.calm else traits

    def see(self, key: PoolKey, traits: Traits) -> None:
        """A pool is configured: it is of servers like this for as long as the world stands."""
        self._traits.setdefault(key, traits)

    def server_names(self) -> list[str]:
        """The servers that agents may have heard of."""
        return [f"s{number}" for number in range(len(self.servers))]

    def served_at(self, key: PoolKey) -> "list[tuple[World, PoolKey]]":
        """Where the servers of this pool run, and the keys of their pools there."""
        return [(self, key)]

    def operable(self) -> list[PoolKey]:
        """Pools that an operator may name."""
        return [key for server in self.servers.values() for source in SOURCES for key in server.keys(source)]

    def rest(self) -> None:
        """Nothing has a limit of age any more: with one there is no rest."""
        for server in self.servers.values():
            server.policy = replace(server.policy, limit_age_s=0.0)
        self.read_config()

    def read_config(self) -> None:
        """The broker reads the configuration (again), for every source."""
        for told in self.profiles.changed(BOUNDS, LIST_WAIT_S, calm=self.calm):
            self.broker.feed(told)
        self.broker.feed(bv.SourcesRead(tuple(self.readings())))

    def readings(self) -> list[bv.SourceRead]:
        """What each source reads now."""
        return [self.reading(source, self.configured()) for source in SOURCES]

    def configured(self) -> list[SimServer]:
        """The servers in the configuration."""
        return [server for server in self.servers.values() if server.configured]

    def reading(self, source: SourceId, servers: list[SimServer]) -> bv.SourceRead:
        """What a source reads that has these servers."""
        for server in servers:
            self._wishes.setdefault(server.key(source), server.era)
            for key in server.keys(source):
                self.see(key, server.traits)
        wishes: dict[PoolKey, EraWish] = {
            key: "auto" if wish == "newest" else wish for key, wish in self._wishes.items()
        }
        entries = [ScopeEntry(server=ServerName(s.name), key=s.key(source)) for s in servers]
        specs = [
            PoolSpec(
                key=s.key(source),
                server=ServerName(s.name),
                argv=[s.name],
                env={"SECRET": "x"},
                cwd="/",
                policy=s.policy,
                asking=not s.twins,
                era=wishes[s.key(source)],
                bridge=s.target is not None,
                target=s.target,
            )
            for s in servers
        ]
        return bv.SourceRead(
            source=source,
            scope=replace(self.profiles.scope(entries, source), search=source == SEARCHED),
            specs=tuple(specs),
            misconfigured={},
            stop_first=frozenset(ServerName(s.name) for s in servers if s.stop_first),
            max_processes=self.max_processes,
            max_greeting=3 * len(self.supervisor_names),
            twins={
                spec.key: replace(spec, key=s.twin(source), asking=True)
                for s, spec in zip(servers, specs, strict=True)
                if s.twins
            },
            stateless={
                spec.key: replace(spec, key=s.newest(source), asking=True, era="newest")
                for s, spec in zip(servers, specs, strict=True)
                if self._wishes[spec.key] in ("auto", "newest")
            },
        )

    # --- agents and operators ---------------------------------------------------------------------------

    def agent(
        self,
        source: SourceId = SOURCES[0],
        *,
        careless: bool = False,
        capabilities: Capabilities | None = None,
    ) -> SimAgent:
        """A new agent that has greeted, with these or with any capabilities."""
        self.sessions += 1
        session = SessionId(f"{self.mark}{self.sessions}")
        agent = self.agents[session] = SimAgent(self.book, self.rng, session, careless=careless)
        agent.capabilities = capabilities or agent.capabilities
        came = bv.SessionOpened(session=session, source=source, agent="sim", pid=1, carrier="shim")
        self._comes(HandshakeCarrier(agent, self.profiles.brought(came)))
        self.broker.feed(agent.greet(self.now))
        return agent

    def _comes(self, carrier: AnyCarrier) -> None:
        session = carrier.came.session
        self.carriers[session] = carrier
        carrier.secret, carrier.epoch = self.broker.heritage.resume_secret(session), self.broker.served
        self.broker.feed(carrier.came)

    def stateless_agents(
        self,
        source: SourceId = SOURCES[0],
        *,
        count: int = 1,
        anonymous: bool = False,
        asker: StatelessAgent | None = None,
    ) -> StatelessAgents:
        """Agents of the stateless era: one, or several who share a session."""
        self.sessions += 1
        session = SessionId(f"{self.mark}{self.sessions}")
        group = StatelessAgents(self.book, self.rng, session, count=count, park_s=BOUNDS.park_s)
        self.agents[session] = group
        if asker is not None:
            group.by = dict.fromkeys(group.persons, asker)
        came = bv.SessionOpened(session=session, source=source, agent="people", pid=1, carrier="shim")
        if count > 1:
            came = replace(came, carrier="door", shared=True, anonymous=anonymous, max_open_calls=12)
        self._comes(StatelessCarrier(group, self.profiles.brought(came)))
        return group

    def wanted(self, group: StatelessAgents, token: StateToken) -> None:
        """A request was answered with what is wanted: its agent says it again, well, badly, twice, never."""
        roll = self.rng.random() if not self.calm else 1.0
        if roll < 0.08:
            return
        if roll < 0.1:
            self.later(self.rng.uniform(0, 0.5), lambda: self.leave(group))
            return
        delay_s = self.rng.uniform(0.01, 0.6) if roll > 0.15 else self.rng.uniform(4.5, 5.5)
        some = roll < 0.3
        self.say_later(delay_s, group, lambda: group.retry(token, self.now, some=some))
        if roll < 0.25:
            again_s = delay_s + self.rng.choice((0.0, 0.1, 6.0))
            self.say_later(again_s, group, lambda: group.retry(token, self.now))
        thieves = [each for each in self.agents.values() if isinstance(each, StatelessAgents)]
        if roll < 0.4 and thieves:
            thief = self.rng.choice(thieves)
            stolen = self.rng.choice(self.spent) if self.spent and self.rng.random() < 0.2 else token
            self.say_later(delay_s / 2, thief, lambda: thief.misuse(stolen, self.now))

    def leave(self, agent: AnyAgents) -> None:
        """The agent vanishes, if it is still there."""
        gone = [carrier for carrier in self.away if carrier.agent is agent]
        if gone:
            self.away.remove(gone[0])
            self.spend(agent)
            agent.leave(self.now)
            self.deaths.forgive(agent)
        elif self.broker.stopped:
            self.broker.awake(lambda: self.leave(agent))
        elif self.agents.pop(agent.session, None) is not None:
            self.spend(agent)
            self.carriers.pop(agent.session, None)
            self.broker.feed(agent.leave(self.now))

    def spend(self, agent: AnyAgents) -> None:
        """Its tokens are known to others from now on."""
        if isinstance(agent, StatelessAgents):
            self.spent += agent.tokens[-3:]

    def call(self, agent: AnyAgents, name: str, **more: int) -> None:
        """The agent calls a tool."""
        if agent.session in self.agents:
            self.broker.feed(
                agent.call(name, self.now, size_bytes=more.get("size_bytes", 0), progress=bool(more))
            )

    def asked(self, agent: SimAgent, shown: AskId) -> None:
        """An agent was asked something: it answers well, badly, twice, never, or leaves."""
        roll = self.rng.random() if not self.calm else 1.0
        if roll < 0.08 or agent.silent:
            return
        if roll < 0.1:
            self.later(self.rng.uniform(0, 0.5), lambda: self.leave(agent))
            return
        self._answer_later(agent, shown)
        if roll < 0.2:
            self._answer_later(agent, shown)
        elif roll < 0.3:
            self._answer_later(agent, self.rng.choice(list(self.book.asks.shown)))
        if roll < 0.5:
            self.say_later(0.0, agent, lambda: agent.progress(shown, self.book.asks.shown[shown]))

    def _answer_later(self, agent: SimAgent, shown: AskId) -> None:
        ask = self.book.asks.shown[shown]
        self.say_later(self.rng.uniform(0.01, 0.6), agent, lambda: agent.answer(shown, ask))

    def say_later(self, delay_s: float, agent: AnyAgents, say: Callable[[], bv.AnyEvent]) -> None:
        """Nobody is heard by a broker that is stopped: who would speak then speaks when it goes on."""

        def speak() -> None:
            away = [carrier for carrier in self.away if carrier.agent is agent]
            if away:
                away[0].pipe.append(lambda: self.broker.feed(say()))
            elif agent.session in self.agents:
                self.broker.awake(lambda: self.broker.feed(say()) if agent.session in self.agents else None)

        self.later(delay_s, speak)

    def operate(self, key: PoolKey, verb: str) -> None:
        """An operator's word, if it can be said now."""
        name = self.owner(key).name
        if name in self.broker.linked and self.broker.alive and not self.broker.stopped:
            self.words += 1
            self.operations[self.words] = name
            self.broker.peers[name].send(Operate(self.words, key, verb))  # type: ignore[arg-type]

    def pause_servers(self, servers: frozenset[ServerName]) -> None:
        """An operator pauses these servers, and resumes all others."""
        self.paused = servers
        if self.broker.alive:  # else the next one reads it as it is then
            broker = self.broker
            broker.awake(lambda: broker.feed(bv.PausedServersChanged(servers)))

    def resume_servers(self) -> None:
        """No server is paused from now on."""
        self.pause_servers(frozenset())

    # --- deaths -----------------------------------------------------------------------------------------

    def kill_broker(self, away_s: float, *, fate: CarrierFate | None = None, dies_in: int = 1) -> None:
        """See `Deaths.kill`."""
        self.deaths.kill(away_s, fate=fate, dies_in=dies_in)

    def kill_supervisor(self, away_s: float, name: SupervisorName = ONLY) -> None:
        """A supervisor dies, and with it every instance that it has; a new one comes."""
        self.book.mishaps += 1
        dead = self.supervisors[name]
        self.wires[name].cut(told=True)
        dead.alive = False
        if not self.broker.alive or self.broker.knows.get(name) != dead.epoch:
            dead.sharing.forget()
        for instance in dead.instances.values():
            instance.alive = False

        def again() -> None:
            self.supervisors[name] = SimSupervisor(self, name, dead.sharing)
            self.wires[name].join()

        self.later(away_s, again)

    def never_returns(self, agent: AnyAgents) -> None:
        """Its broker has died, and it does not come to the next one."""
        self.spend(agent)

    # --- what servers of other nodes need (`node_carpool`) ---------------------------------------------

    def new_instance(self, supervisor: SimSupervisor, effect: sf.Spawn, spec: PoolSpec | None) -> SimInstance:
        """An instance is started."""
        sure = spec is None or spec.era in ("handshake", "stateless")
        return SimInstance(supervisor, effect.instance, effect.key, effect.era, sure=sure)

    def heard_since(self, session: SessionId) -> float:
        """Since when whatever this session's agent says comes to the broker at once."""
        return 0.0

    def executed(self, instance: SimInstance, call: Call) -> None:
        """A server runs a call."""

    def living(self) -> list[SimInstance]:
        """Every process that runs, as the operating system would say."""
        every = (each.instances.values() for each in self.supervisors.values())
        return [instance for instances in every for instance in instances if instance.alive]
