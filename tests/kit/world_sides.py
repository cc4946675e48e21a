"""The two processes of the simulated world, as thin as shells can be, and the wire between them.

Owns how events and effects travel: one method per effect, frames of the real link codec with lag, in order,
lost when the wire is cut. Broken promises of shells' contracts are a `Violation`.

Knows nothing of: what happens when, agents' rules.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Protocol

from msgspec import Struct

from carpool_broker.core import effects as bf
from carpool_broker.core import events as bv
from carpool_broker.core.bounds import Bounds
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.registry import Registry
from carpool_broker.era import asking
from carpool_protocol.ids import AskId, Epoch, InstanceId, PoolKey, SessionId
from carpool_protocol.journal import Journal
from carpool_protocol.machine import Ticked
from carpool_protocol.messages import (
    LINK_VERSION,
    AnyMessage,
    Call,
    Failed,
    Hello,
    Message,
    Mode,
    Operated,
    PoolSpec,
    Wanted,
)
from carpool_protocol.peer import BROKER, LinkEvent, Peer, PeerDown, PeerRefused, PeerUp
from carpool_supervisor.core import effects as sf
from carpool_supervisor.core import events as sv
from carpool_supervisor.core.sharing import Evidence, EvidenceKind
from carpool_supervisor.core.supervisor import SupervisorCore
from carpool_supervisor.core.trace import LIFE_BYTES
from tests.kit.world_agents import Book, SimAgent
from tests.kit.world_asks import AskBook, Violation
from tests.kit.world_servers import SimInstance, Traits
from tests.kit.world_sharing import SharingBook

BOUNDS = Bounds(max_open_calls=6, max_waiting_calls=8, max_waiting_bytes=2048, wait_s=4.0)
LIST_WAIT_S = 2.0
WINDOW_BYTES = 1500


class Stage(Protocol):
    """What the two sides need of their world."""

    rng: Random
    now: float
    journal: bool
    max_processes: int
    book: Book
    agents: dict[SessionId, SimAgent]
    operations: dict[int, str]
    evidence: dict[PoolKey, dict[EvidenceKind, Evidence]]
    broker: "BrokerSide"
    supervisor: "SupervisorSide"

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do it so much later."""

    def look(self, core: BrokerCore | SupervisorCore) -> None:
        """Check a core: each time, or now and then."""

    def traits(self, key: PoolKey) -> Traits:
        """How the servers of this pool behave."""

    def living(self) -> list[SimInstance]:
        """Every process that runs."""

    def asked(self, agent: SimAgent, shown: AskId) -> None:
        """An agent was asked something."""


class Wire:
    """The way between the two, in order, with lag, and cuttable."""

    def __init__(self, world: Stage) -> None:
        self.world = world
        self.up = False
        self._life = 0
        self._last = {True: 0.0, False: 0.0}

    def join(self) -> None:
        """Connect, if both ends live."""
        broker, supervisor = self.world.broker, self.world.supervisor
        if broker.alive and supervisor.alive and not self.up:
            self.up = True
            self._life += 1
            broker.heard(broker.peer.connected())
            self.flush()

    def cut(self, *, told: bool) -> None:
        """What is under way is lost. `told`: the supervisor's end learns of it too."""
        if not self.up:
            return
        self.up = False
        self._life += 1
        world = self.world
        world.operations.clear()
        world.broker.heard(world.broker.peer.disconnected("cut"))
        if told:
            world.supervisor.heard(world.supervisor.peer.disconnected("cut"))

    def flush(self) -> None:
        """Send what both ends have."""
        for side in (self.world.broker, self.world.supervisor):
            while side.alive and side.peer.has_output:
                for frame in side.peer.take_frames(self.world.now):
                    self._carry(side, frame)

    def _carry(self, side: "BrokerSide | SupervisorSide", frame: bytes) -> None:
        world, life = self.world, self._life
        down = side is world.broker
        if not self.up:
            return
        at = max(world.now + world.rng.uniform(0.0001, 0.01), self._last[down])
        self._last[down] = at

        def arrive() -> None:
            other = world.supervisor if down else world.broker
            if self.up and self._life == life and other.alive:
                other.heard(other.peer.receive(frame, world.now))

        world.later(at - world.now, arrive)


def hello(name: str, world: Stage) -> Hello:
    """A new life of a process."""
    return Hello(LINK_VERSION, Epoch(f"{name}-{world.rng.random()}"), name, 1, "test")


class BrokerSide:
    """The broker's shell, as thin as it can be."""

    def __init__(self, world: Stage) -> None:
        self.world = world
        self.alive = True
        self.linked = False
        self.core = BrokerCore(Registry(mark="m"), BOUNDS, LIST_WAIT_S)
        self.peer = Peer(hello(BROKER, world), "main", world.now, window_bytes=WINDOW_BYTES)
        self.journal = Journal(1_000_000) if world.journal else None
        self._queue: deque[bv.AnyEvent] = deque()
        self._busy = False

    def feed(self, event: bv.AnyEvent) -> None:
        """One event; what its effects cause waits its turn, as in the pump."""
        self._queue.append(event)
        if self._busy or not self.alive:
            return
        self._busy = True
        while self._queue:
            event = self._queue.popleft()
            self._perform(event, self.core.handle(event, self.world.now))
        self._busy = False

    def next_deadline(self) -> float | None:
        """Of the core and of the link."""
        if not self.alive:
            return None
        return min(
            (at for at in (self.core.next_deadline(), self.peer.next_deadline()) if at is not None),
            default=None,
        )

    def tick(self) -> None:
        """Time has passed."""
        if self.alive:
            self.peer.tick(self.world.now)
            due = self.core.next_deadline()
            if due is not None and due <= self.world.now:
                self._perform(Ticked(), self.core.tick(self.world.now))

    def _perform(self, event: Struct, effects: list[bf.AnyEffect]) -> None:
        if self.journal is not None:
            self.journal.record(self.world.now, event, effects)
        self.world.look(self.core)
        for effect in effects:
            if isinstance(effect, Message):
                if self.linked:
                    self.peer.send(effect)
            elif not isinstance(effect, bf.Note):
                agent = self.world.agents.get(effect.session)
                if agent is None:
                    raise Violation(f"{effect} is for an agent that is gone")
                instead = asking.ask(effect) if isinstance(effect, bf.SendAsk) else b""
                if isinstance(instead, bv.AgentAnswered):
                    self.feed(instead)
                    continue
                agent.take(effect, self.world.now)
                if isinstance(effect, bf.SendAsk):
                    self.world.asked(agent, effect.ask)

    def heard(self, messages: list[LinkEvent]) -> None:
        """From the link."""
        for message in messages:
            match message:
                case PeerUp():
                    self.linked = True
                    self.feed(bv.SupervisorCame(WINDOW_BYTES))
                case PeerDown():
                    if self.linked:
                        self.linked = False
                        self.feed(bv.SupervisorWent())
                case PeerRefused():
                    raise Violation(message.text)
                case Operated():
                    if self.world.operations.pop(message.token, None) is None:
                        raise Violation(f"operator's word {message.token} was answered twice or never said")
                case _:
                    if isinstance(message, bv.LinkEvent):
                        self.feed(message)


class SupervisorSide:
    """The supervisor's shell, as thin as it can be. Also the ground on which its instances stand."""

    def __init__(self, world: Stage, before: SharingBook | None = None) -> None:
        self.world = world
        self.rng = world.rng
        self.alive = True
        self.life = world.rng.randbytes(LIFE_BYTES)
        self.core = SupervisorCore(self.life)
        self.asks: AskBook = world.book.asks
        self.sharing = SharingBook(before)
        self.peer = Peer(hello("main", world), BROKER, world.now, window_bytes=WINDOW_BYTES)
        self._broker = Epoch("")
        self.journal = Journal(1_000_000) if world.journal else None
        self.instances: dict[InstanceId, SimInstance] = {}
        self._specs: dict[PoolKey, PoolSpec] = {}
        self._queue: deque[sv.AnyEvent] = deque()
        self._busy = False

    def feed(self, event: sv.AnyEvent) -> None:
        """One event; what its effects cause waits its turn, as in the pump."""
        self._queue.append(event)
        if self._busy or not self.alive:
            return
        self._busy = True
        while self._queue:
            event = self._queue.popleft()
            self._perform(event, self.core.handle(event, self.world.now))
        self._busy = False

    def next_deadline(self) -> float | None:
        """Of the core and of the link."""
        if not self.alive:
            return None
        return min(
            (at for at in (self.core.next_deadline(), self.peer.next_deadline()) if at is not None),
            default=None,
        )

    def tick(self) -> None:
        """Time has passed."""
        if not self.alive:
            return
        self.peer.tick(self.world.now)
        due = self.core.next_deadline()
        if due is not None and due <= self.world.now:
            self._busy = True
            self._perform(Ticked(), self.core.tick(self.world.now))
            self._busy = False
            if self._queue:
                self.feed(self._queue.popleft())

    def _perform(self, event: Struct, effects: list[sf.AnyEffect]) -> None:
        if self.journal is not None:
            self.journal.record(self.world.now, event, effects)
        self.world.look(self.core)
        if isinstance(event, (Wanted, sv.PoolKnown, sv.InstanceGreeted, sv.CatalogRead)):
            self._look_at_modes()
        for effect in effects:
            if isinstance(effect, Message):
                self.peer.send(effect)
                if isinstance(effect, Failed):
                    self.sharing.failed(effect)
            elif isinstance(effect, sf.Spawn):
                self._spawn(effect)
            elif isinstance(effect, sf.Observe):
                self._observe(effect)
            elif not isinstance(effect, sf.Note):
                self._do(self.instances[effect.instance], effect)

    def _do(self, instance: SimInstance, effect: sf.OwnEffect) -> None:
        match effect:
            case sf.WriteCall():
                self.world.book.hand_over(effect.call)
                self.sharing.placed(instance, effect.call, self._mode(instance))
                instance.write(effect.wire, effect.call)
            case sf.WriteCancel():
                instance.cancel(effect.wire)
            case sf.Probe():
                instance.probe()
            case sf.CloseStdin():
                instance.close_stdin()
            case sf.SignalGroup():
                instance.signal(effect.signal)
            case sf.Forget():
                if instance.alive:
                    raise Violation(f"instance {instance.id} is forgotten while it runs")
                del self.instances[instance.id]
            case sf.WriteAskAnswer():
                instance.ask_answered(effect.id, effect.is_error, effect.body)
            case sf.WriteAskProgress():
                instance.ask_progressed(effect.token, effect.params)
            case sf.WriteLevel() | sf.WriteWatch() | sf.KeepLog() | sf.WriteAgain():
                raise Violation("nobody here wants logs or watches resources, or speaks the stateless era")
            case sf.Spawn() | sf.Note() | sf.Observe():
                pass

    def _mode(self, instance: SimInstance) -> Mode:
        return self.core.roster.instances[instance.id].pool.mode

    def _observe(self, seen: sf.Observe) -> None:
        """Evidence is kept for good, and what is known told again."""
        known = self.world.evidence.setdefault(seen.key, {})
        known[seen.kind] = Evidence(kind=seen.kind, first="then", last="now", detail=seen.detail)
        self.later(self.rng.uniform(0.0, 0.1), lambda: self._tell(seen.key))

    def _tell(self, key: PoolKey) -> None:
        self.feed(sv.PoolKnown(key, None, tuple(self.world.evidence[key].values())))

    def _look_at_modes(self) -> None:
        pools = self.core.pools
        for key, pool in pools.items():
            wanted = pool.policy.sharing
            if wanted not in ("auto", pool.mode):
                raise Violation(f"{key} is shared as {pool.mode}, not {wanted}")
        self.sharing.modes(
            {key: pool.mode for key, pool in pools.items()},
            {key: pool.server for key, pool in pools.items()},
            {each for key, pool in pools.items() if pool.wanted for each in (key, *pool.older)},
        )

    def _spawn(self, effect: sf.Spawn) -> None:
        world = self.world
        instance = self.instances[effect.instance] = SimInstance(self, effect.instance, effect.key)
        if effect.key not in self._specs:
            instance.alive = False
            self.feed(sv.SpawnFailed(effect.instance, "its configuration is gone", 0.5))
            return
        after = self._specs[effect.key].start_after
        if any(other.key == after for other in world.living()):
            raise Violation(f"{effect.key} starts although {after} still runs")
        if len(world.living()) > world.max_processes + 1:
            raise Violation(f"{len(world.living())} processes run")

    def heard(self, messages: list[LinkEvent]) -> None:
        """From the link."""
        for message in messages:
            match message:
                case PeerUp():
                    self.feed(sv.BrokerCame(same=message.hello.epoch == self._broker))
                    self._broker = message.hello.epoch
                case PeerDown() | PeerRefused():
                    pass
                case Wanted():
                    new = [s.key for s in message.pools if s.key not in self._specs]
                    self._specs = {spec.key: spec for spec in message.pools}
                    self.feed(message)
                    for key in new:
                        if key in self.world.evidence:
                            self._tell(key)
                case _:
                    self._feed_message(message)

    def _feed_message(self, message: AnyMessage) -> None:
        if isinstance(message, Call):
            self.sharing.came(message)
        if isinstance(message, sv.LinkEvent):
            self.feed(message)

    # --- as ground ---------------------------------------------------------------------------------------

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """See `Ground`."""
        self.world.later(delay_s, lambda: act() if self.alive else None)

    @property
    def now(self) -> float:
        """See `Ground`."""
        return self.world.now

    def executed(self, instance: SimInstance, call: Call) -> None:
        """See `Ground`."""
        self.world.book.execute(call)
        self.sharing.executed(instance, call, self._mode(instance))

    def traits(self, key: PoolKey) -> Traits:
        """See `Ground`."""
        return self.world.traits(key)
