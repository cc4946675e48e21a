"""The supervisor of the simulated world, as thin as a shell can be, and the host its instances stand on.

Owns one method per effect. Broken promises of shells' contracts are a `Violation`.

Knows nothing of: what happens when, agents.
"""

from collections import deque
from collections.abc import Callable

from msgspec import Struct

from carpool_protocol.ids import Epoch, InstanceId, PoolKey, SessionId, SupervisorName
from carpool_protocol.link.messages import (
    AnswersWritten,
    AnyMessage,
    Call,
    CallAtNode,
    CallFailed,
    CancelCall,
    Message,
    Mode,
    OpenSessions,
    PoolSpec,
    SessionEnded,
    SessionStateLost,
    SetPools,
)
from carpool_protocol.link.peer import BROKER, LinkEvent, Peer, PeerDown, PeerRefused, PeerUp
from carpool_protocol.machine.journal import Journal
from carpool_protocol.machine.machine import Ticked
from carpool_supervisor.core.model import effects as sf
from carpool_supervisor.core.model import events as sv
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.sharing import Evidence
from carpool_supervisor.core.model.trace_context import LIFE_BYTES
from tests.kit.supervisor_rig import supervisor_core
from tests.world.sim.broker import WINDOW_BYTES
from tests.world.sim.oracles.asks import AskOracle
from tests.world.sim.oracles.sharing import SharingBook
from tests.world.sim.oracles.turns import TurnBook
from tests.world.sim.oracles.violation import Violation
from tests.world.sim.process import SimProcess, SimProcessHost, hello
from tests.world.sim.servers import SimInstance
from tests.world.sim.traits import Traits


class SimSupervisor(SimProcess):
    """The supervisor's shell, as thin as it can be. Also the host on which its instances stand."""

    def __init__(
        self, world: SimProcessHost, name: SupervisorName, before: SharingBook | None = None
    ) -> None:
        super().__init__(world)
        self.name = name
        self.rng = world.rng
        self.life = world.rng.randbytes(LIFE_BYTES)
        self.core = supervisor_core(self.life, world.supervisor_names.index(name))
        self.asks: AskOracle = world.book.asks
        self.sharing = SharingBook(before)
        self.turns = TurnBook()
        greeting = hello(name, world)
        self.epoch = greeting.epoch
        self.peer = Peer(greeting, BROKER, world.now, window_bytes=WINDOW_BYTES)
        self._broker = Epoch("")
        self.was_told = False
        """By any broker: who has lost what with the supervisor before it."""
        self.journal = Journal(1_000_000) if world.journal else None
        self.instances: dict[InstanceId, SimInstance] = {}
        self._specs: dict[PoolKey, PoolSpec] = {}
        self._most = 0
        """The most processes that it may run."""
        self._queue: deque[sv.AnyEvent] = deque()
        self._busy = False

    def feed(self, event: sv.AnyEvent) -> None:
        """One event; what its effects cause waits its turn, as in the pump."""
        if self.stopped:
            self._unread.append(lambda: self.feed(event))
            return
        self._queue.append(event)
        if self._busy or not self.alive:
            return
        self._busy = True
        while self._queue:
            event = self._queue.popleft()
            if isinstance(event, sv.ProbeAnswered) and (found := self.instances.get(event.instance)):
                found.stopped |= found.told_at_ping.pop(event.number, frozenset())
            self._perform(event, self.core.handle(event, self.clock))
        self._busy = False

    def next_deadline(self) -> float | None:
        """Of the core and of the link."""
        return self._earliest(self.core.next_deadline(), self.peer.next_deadline())

    def tick(self) -> None:
        """Time has passed."""
        if not self.alive or self.stopped:
            return
        self.peer.tick(self.clock)
        due = self.core.next_deadline()
        if due is not None and due <= self.clock:
            self._busy = True
            self._perform(Ticked(), self.core.tick(self.clock))
            self._busy = False
            if self._queue:
                self.feed(self._queue.popleft())

    def _perform(self, event: Struct, effects: list[sf.AnyEffect]) -> None:
        if self.journal is not None:
            self.journal.record(self.clock, event, effects)
        self.world.look(self.core, event, effects)
        if isinstance(event, sv.StdinBroken) and event.instance in self.instances:
            self.instances[event.instance].is_known_as_deaf = True
        if isinstance(event, (SetPools, sv.KnowledgeChanged, sv.InstanceGreeted, sv.CatalogRead)):
            self._look_at_modes()
        for effect in effects:
            if isinstance(effect, CallAtNode):
                self.peer.send_later(effect)
            elif isinstance(effect, Message):
                self.peer.send(effect)
                if isinstance(effect, CallFailed):
                    self.sharing.failed(effect)
                    (self.turns.told if effect.fault == "state_lost" else self.turns.over)(effect.call)
            elif isinstance(effect, sf.Spawn):
                self._spawn(effect)
            elif isinstance(effect, sf.RecordEvidence):
                self._observe(effect)
            elif isinstance(effect, sf.RecordEra):
                self._observe_era(effect)
            elif not isinstance(effect, sf.WriteLogLine):
                self._do(self.instances[effect.instance], effect)

    def _do(self, instance: SimInstance, effect: sf.OwnEffect) -> None:  # noqa: C901 - an arm per effect
        match effect:
            case sf.WriteCall() if instance.is_known_as_deaf:
                raise Violation(f"instance {instance.id} cannot read, and call {effect.call.call} is written")
            case sf.WriteCall():
                self.world.book.hand_over(effect.call)
                self.sharing.placed(instance, effect.call, self.mode_of(instance))
                self.turns.placed(effect.call, alike=self._all_alike(effect.call.key, instance))
                instance.write(effect.wire, effect.call)
            case sf.WriteCancel():
                instance.told.add(effect.wire)
                instance.cancel(effect.wire)
            case sf.WriteProbe():
                instance.told_at_ping[effect.number] = frozenset(instance.told)
                instance.probe(effect.number)
            case sf.CloseStdin():
                instance.close_stdin()
            case sf.SignalGroup():
                self._judge_silence(instance)
                instance.signal(effect.signal)
            case sf.ReleaseInstance():
                if instance.alive:
                    raise Violation(f"instance {instance.id} is forgotten while it runs")
                del self.instances[instance.id]
            case sf.WriteAskAnswer():
                instance.ask_answered(effect.id, effect.is_error, effect.body)
            case sf.WriteAskProgress():
                instance.ask_progressed(effect.token, effect.params)
            case sf.WriteLevel():
                instance.set_level(effect.level)
            case sf.WriteSubscriptions():
                instance.watch(effect.add, effect.drop)
            case sf.WriteRetry():
                self.sharing.said_again(instance, effect.wire, self.mode_of(instance))
                instance.again(effect.wire)
            case sf.RereadLists():
                instance.relist(is_calm=effect.is_calm)
            case sf.GiveUpListRequest():
                instance.give_up_list(effect.after_s)
            case sf.GreetInOtherEra() | sf.KeepServerLog():
                pass
            case _:
                raise Violation(f"{type(effect).__name__} is not for an instance that runs in here")

    def _judge_silence(self, instance: SimInstance) -> None:
        """Nothing that lies unread and nobody's long thinking is held against an instance."""
        known = self.core.instances.by_id[instance.id]
        if known.state is InstanceState.TERMINATING and (known.failure or "").startswith("was silent"):
            if instance.is_well:
                raise Violation(f"instance {instance.id} is well and is ended for its silence")
            if known.asks:
                raise Violation(f"instance {instance.id} waits for an agent and is ended for its silence")

    def _all_alike(self, key: PoolKey, taker: SimInstance) -> bool:
        pool = self.core.pools.get(key)
        leased = any(each.leased for each in self.instances.values())
        if pool is None or pool.mode != "concurrent" or leased:
            return False
        load = len(self.core.instances.by_id[taker.id].in_flight)
        return load <= pool.open_places  # the last places are not for everybody

    def mode_of(self, instance: SimInstance) -> Mode:
        """How its pool is shared."""
        return self.core.instances.by_id[instance.id].pool.mode

    def kept_mode(self, key: PoolKey) -> Mode:
        """How a pool is shared as far as state goes: servers of other nodes may keep none for an agent."""
        pool = self.core.pools[key]
        return pool.mode if pool.keeps_state else "concurrent"

    def _observe(self, seen: sf.RecordEvidence) -> None:
        """Evidence is kept for good, and what is known told again."""
        known = self.world.evidence.setdefault(seen.key, {})
        known[seen.kind] = Evidence(kind=seen.kind, first="then", last="now", detail=seen.detail)
        self.later(self.rng.uniform(0.0, 0.1), lambda: self._tell(seen.key))

    def _tell(self, key: PoolKey) -> None:
        evidence = self.world.evidence.get(key, {})
        era = self.world.eras.get(_launch_of(key))
        self.feed(sv.KnowledgeChanged((sv.PoolKnowledge(key, None, tuple(evidence.values()), era),)))

    def _observe_era(self, seen: sf.RecordEra) -> None:
        """Where it was found out, it is kept for good, and told of every pool of the launch."""
        launch = _launch_of(seen.key)
        if seen.why and self.world.eras.get(launch) != seen.era:
            self.world.eras[launch] = seen.era
            for key in [key for key in self._specs if _launch_of(key) == launch]:
                self._tell(key)

    def _look_at_modes(self) -> None:
        pools = self.core.pools
        for key, pool in pools.items():
            wanted = pool.policy.sharing
            if wanted not in ("auto", pool.mode):
                raise Violation(f"{key} is shared as {pool.mode}, not {wanted}")
        self.sharing.modes(
            {key: self.kept_mode(key) for key in pools},
            {key: pool.server for key, pool in pools.items()},
        )

    def _spawn(self, effect: sf.Spawn) -> None:
        world = self.world
        spec = self._specs.get(effect.key)
        instance = world.new_instance(self, effect, spec)
        self.instances[effect.instance] = instance
        if spec is None:
            instance.alive = False
            self.feed(sv.SpawnFailed(effect.instance, "its configuration is gone", 0.5))
            return
        after = spec.start_after
        if after not in self._specs and any(other.key == after for other in world.living()):
            raise Violation(f"{effect.key} starts although {after} still runs")
        running = sum(each.alive and not each.is_remote for each in self.instances.values())
        if running > self._most + 1:
            raise Violation(f"{running} processes run at {self.name}")

    def heard(self, messages: list[LinkEvent]) -> None:
        """From the link."""
        for message in messages:
            match message:
                case PeerUp():
                    same = message.hello.epoch == self._broker
                    self.turns.forget()
                    self.feed(sv.BrokerConnected(same=same))
                    self._broker = message.hello.epoch
                    if same:
                        self.sharing.cut()
                    else:
                        self.sharing.broker_came()
                case PeerDown() | PeerRefused():
                    pass
                case SetPools():
                    new = [s.key for s in message.pools if s.key not in self._specs]
                    self._specs = {spec.key: spec for spec in message.pools}
                    self._most = message.max_processes
                    self.feed(message)
                    for key in new:
                        self._tell(key)
                case _:
                    self._feed_message(message)

    def _feed_message(self, message: AnyMessage) -> None:
        if isinstance(message, Call):
            self.turns.came(message)
        elif isinstance(message, CancelCall):
            self.turns.over(message.call)
            if not message.answered:
                self.sharing.cancelled(message.call)
        if isinstance(message, sv.LinkEvent):
            self.feed(message)
        if isinstance(message, OpenSessions):
            self.was_told = True
            for note in message.live:
                self.sharing.noted(note.session, note.bereft)
        if isinstance(message, AnswersWritten):
            self.sharing.confirmed(message.calls, message.newest)
        if isinstance(message, SessionStateLost):
            self.sharing.bereft(message)
        if isinstance(message, SessionEnded):
            self._holds_nothing(message.session)

    def _holds_nothing(self, session: SessionId) -> None:
        """Nothing is leased to whoever is gone, from now on."""
        for instance in self.instances:
            if self.core.leases.holder(instance) == session:
                raise Violation(f"{session} is gone and holds instance {instance}")

    def _jumped(self) -> None:
        self.feed(sv.ClockJumped())

    # --- as host ---------------------------------------------------------------------------------------

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """See `Ground`."""
        self.world.later(delay_s, lambda: act() if self.alive else None)

    @property
    def now(self) -> float:
        """See `Ground`."""
        return self.world.now

    def executed(self, instance: SimInstance, call: Call) -> None:
        """See `Ground`."""
        self.world.book.execute(call, public=self.traits(instance.key).public)
        self.sharing.executed(instance, call, self.mode_of(instance))
        self.world.executed(instance, call)

    def worked(self, call: Call) -> None:
        """See `Ground`."""
        wire = self.world.wires[self.name]
        if wire.up:
            since = max(wire.joined_at, self.world.heard_since(call.session))
            self.world.book.worked(call, self.world.now, since)

    def traits(self, key: PoolKey) -> Traits:
        """See `Ground`."""
        return self.world.traits(key)


def _launch_of(key: PoolKey) -> str:
    """The key of its plain pool."""
    return key.removesuffix(":asking").removesuffix(":newest")
