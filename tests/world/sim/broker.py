"""The broker of the simulated world, as thin as a shell can be.

Owns one method per effect. Broken promises of shells' contracts are a `Violation`.

Knows nothing of: what happens when, agents' rules.
"""

from collections import deque
from collections.abc import Callable

from msgspec import Struct

from carpool_broker.core.model import effects as bf
from carpool_broker.core.model import events as bv
from carpool_broker.core.model.bounds import SessionBounds
from carpool_broker.core.recovery.recovery import joint_epoch
from carpool_broker.core.supervisor_routes import SupervisorRoutes
from carpool_broker.era import server_requests
from carpool_broker.transport.incarnation import Incarnation
from carpool_protocol.ids import CallId, Epoch, SessionId, SupervisorName
from carpool_protocol.link.messages import (
    AnswersWritten,
    AnyMessage,
    AskOpened,
    Call,
    CallFailed,
    CallsRecorded,
    Credit,
    Message,
    OperationEnded,
)
from carpool_protocol.link.peer import BROKER, LinkEvent, Peer, PeerDown, PeerRefused, PeerUp
from carpool_protocol.machine.journal import Journal
from carpool_protocol.machine.machine import Ticked
from tests.kit.broker_rig import broker_core
from tests.world.sim.carriers import WrittenLine
from tests.world.sim.oracles.counters import CounterBook
from tests.world.sim.oracles.lists import ListBook
from tests.world.sim.oracles.violation import Violation
from tests.world.sim.process import SimProcess, SimProcessHost, hello
from tests.world.sim.stateless_agents import StatelessAgents, StateToken
from tests.world.sim.stateless_carriers import AnyCarrier

BOUNDS = SessionBounds(
    max_open_calls=6, max_waiting_calls=8, max_waiting_bytes=2048, wait_s=4.0, park_s=5.0, return_s=10.0
)
LIST_WAIT_S = 2.0
WINDOW_BYTES = 1500
WRITTEN_S = 1.0
"""The most that it takes until the supervisor is told that an answer is with its agent."""


class SimBroker(SimProcess):
    """The broker's shell, as thin as it can be."""

    def __init__(self, world: SimProcessHost, before: "SimBroker | None" = None) -> None:
        """`before`: the one that died."""
        super().__init__(world)
        self.linked: set[SupervisorName] = set()
        self.served = Epoch("")
        """The epochs of all supervisors together, as carriers remember them."""
        self._epochs: dict[SupervisorName, Epoch] = {}
        self.knows: dict[SupervisorName, Epoch] = {}
        """The last supervisors whose records it has heard."""
        self.dies_in = 0
        """So many effects later; 0: it lives on."""
        self.secret: bytes = world.rng.randbytes(32) if before is None else before.secret
        self._began = world.now
        self.mishaps = world.book.mishaps
        """Before it."""
        life = since = 0
        if before is not None:  # as the launcher counts
            life = before.life + 1
            since = before.life if world.now - before._began >= BOUNDS.return_s else before._since
        self.life: int = life
        self._since: int = since
        self.heritage = Incarnation(self.secret, life, since)
        self.core = broker_core(
            BOUNDS,
            LIST_WAIT_S,
            secret=self.secret,
            life=life,
            audits=True,
            supervisors=world.supervisor_names,
        )
        self.routes = SupervisorRoutes(self.core.links, self.core.call_table.calls)
        self.core.handle(bv.PausedServersChanged(world.paused), world.now)
        self.lists = ListBook()
        self.counters = CounterBook(world.node_names)
        self._losses: set[CallId] = set()
        self._soon: list[Callable[[], None]] = []
        """What the link is told once everything that an event has caused is done."""
        self._depth = 0
        """Calls that were told `state_lost`."""
        self.audited: set[CallId] = set()
        """Calls that have ended here."""
        me = hello(BROKER, world)
        self.peers = {
            name: Peer(me, name, world.now, window_bytes=WINDOW_BYTES) for name in world.supervisor_names
        }
        self.journal = Journal(1_000_000) if world.journal else None
        self._queue: deque[bv.AnyEvent] = deque()
        self._busy = False

    def feed(self, event: bv.AnyEvent) -> None:
        """One event; what its effects cause waits its turn, as in the pump."""
        carrier = self.world.deaths.carrier_of(getattr(event, "session", SessionId("")))
        if carrier is not None:
            carrier.says(event)
        if self.stopped:
            self._unread.append(lambda: self.feed(event))
            return
        self._queue.append(event)
        if self._busy or not self.alive:
            return
        self._busy = True
        while self._queue and self.alive:
            event = self._queue.popleft()
            self._perform(event, self.core.handle(event, self.clock))
        self._busy = False

    def next_deadline(self) -> float | None:
        """Of the core and of the link."""
        peers = (peer.next_deadline() for peer in self.peers.values())
        return self._earliest(self.core.next_deadline(), *peers)

    def tick(self) -> None:
        """Time has passed."""
        if self.alive and not self.stopped:
            for peer in self.peers.values():
                peer.tick(self.clock)
            due = self.core.next_deadline()
            if due is not None and due <= self.clock:
                self._perform(Ticked(), self.core.tick(self.clock))

    def _perform(self, event: Struct, effects: list[bf.AnyEffect]) -> None:
        if self.journal is not None:
            self.journal.record(self.clock, event, effects)
        self.world.look(self.core, event, effects)
        self.counters.look(event, effects)
        self._depth += 1
        self._perform_all(effects)
        self._depth -= 1
        while self._soon and not self._depth:
            self._soon.pop(0)()

    def _perform_all(self, effects: list[bf.AnyEffect]) -> None:
        for effect in effects:
            if self.dies_in == 1:
                self.world.deaths.now()
                return
            self.dies_in -= self.dies_in > 0
            if isinstance(effect, bf.SendTo):
                self._send(effect.supervisor, effect.message)
            elif isinstance(effect, Message):
                for name, message in self.routes.of(effect):
                    self._send(name, message)
            elif isinstance(effect, bf.WriteAudit):
                if effect.call in self.audited:
                    raise Violation(f"call {effect.call} is in the audit twice")
                self.audited.add(effect.call)
            elif not isinstance(effect, bf.LogLine | bf.BeginHook | bf.EndHook):
                self._write(effect)

    def _send(self, name: SupervisorName, message: AnyMessage) -> None:
        if name not in self.linked:
            return
        sharing = self.world.supervisors[name].sharing
        if isinstance(message, AnswersWritten):
            for call in message.calls:
                sharing.written(call, message.newest)
        if isinstance(message, Call):
            sharing.sent(message)
        self.peers[name].send(message)

    def _write(self, effect: bf.LocalEffect) -> None:
        agent = self.world.agents.get(effect.session)  # type: ignore[union-attr]  # a note is for nobody
        if agent is None:
            raise Violation(f"{effect} is for an agent that is gone")
        if (
            isinstance(effect, bf.Reply | bf.ReplyRewritten | bf.ReplyStateless)
            and effect.call not in self.audited
            and effect.call != bf.NO_CALL
        ):
            raise Violation(f"call {effect.call} is answered and not in the audit")
        instead = server_requests.ask_line(effect) if isinstance(effect, bf.SendAsk) else b""
        carrier = self.world.carriers[agent.session]
        if isinstance(instead, bv.AskAnswered):
            self.feed(instead)
        elif carrier.is_silent(effect):
            self._written(effect)
        elif carrier.choked is not None:
            carrier.choked.append(WrittenLine(effect, self.world.now))
        else:
            self.deliver(carrier, WrittenLine(effect, self.world.now))
            self._written(effect)

    def deliver(self, carrier: AnyCarrier, line: WrittenLine) -> None:
        """The agent reads this."""
        effect, agent = line.effect, carrier.agent
        for_agent = not isinstance(
            effect, bf.SetSupervisorEpoch | bf.SetStatefulServers | bf.ForgetRecordedCall
        )
        said = agent.take(effect, line.at) if for_agent else None
        carrier.passed(effect, self.world.book.mishaps)
        if isinstance(agent, StatelessAgents):
            if isinstance(said, StateToken):
                self.world.wanted(agent, said)
        elif isinstance(effect, bf.SendAsk):
            self.world.asked(agent, effect.ask)

    def _written(self, effect: bf.LocalEffect) -> None:
        """An answer is with its carrier: the record hears that some time."""
        call: CallId = getattr(effect, "call", bf.NO_CALL)
        if call != bf.NO_CALL:
            told = self.served

            def say() -> None:
                is_same = len(self.peers) > 1 or self.served == told
                if self.alive and not self.stopped and is_same:
                    # Not every loss is in `_losses`: an earlier broker may have written its answer.
                    for name in self.peers:
                        self._send(name, self.core.call_table.answers_written([call]))

            if call in self._losses:
                for each in self.world.supervisors.values():
                    each.sharing.written(call, self.core.call_table.newest_call)
                if self._depth:
                    self._soon.append(say)
                else:
                    say()
                return
            self.world.later(self.world.rng.uniform(0.0, WRITTEN_S), lambda: self.awake(say))

    def may_resume(self) -> bool:
        """Whether carriers of an earlier broker are waited for."""
        return self.core.recovery.may_return

    def heard(self, name: SupervisorName, messages: list[LinkEvent]) -> None:
        """From the link to this supervisor."""
        for message in messages:
            if not self.alive:
                return  # one of these was its last
            match message:
                case PeerUp():
                    self.linked.add(name)
                    self._epochs[name] = message.hello.epoch
                    self.served = joint_epoch([self._epochs.get(each, Epoch("")) for each in self.peers])
                    self.feed(bv.SupervisorConnected(WINDOW_BYTES, message.hello.epoch, name))
                case PeerDown():
                    if name in self.linked:
                        self.linked.discard(name)
                        del self._epochs[name]
                        self.served = joint_epoch([self._epochs.get(each, Epoch("")) for each in self.peers])
                        self.routes.supervisor_lost(name)
                        self.feed(bv.SupervisorLost(name))
                case PeerRefused():
                    raise Violation(message.text)
                case OperationEnded():
                    if self.world.operations.pop(message.token, None) is None:
                        raise Violation(f"operator's word {message.token} was answered twice or never said")
                case _:
                    if isinstance(message, CallFailed) and message.fault == "state_lost":
                        self._losses.add(message.call)
                    self._feed_message(name, message)

    def _feed_message(self, name: SupervisorName, message: LinkEvent) -> None:
        """A supervisor says something that the core takes."""
        if isinstance(message, AskOpened):
            self.routes.ask_opened(message.ask, name)
        if isinstance(message, CallsRecorded):
            if message.last:
                self.knows[name] = self._epochs[name]
            self.feed(bv.RecordReceived(message, name))
        elif isinstance(message, Credit):
            self.feed(bv.CreditReceived(message.size_bytes, name))
        elif isinstance(message, bv.LinkEvent):
            self.feed(message)
