"""Sessions of other nodes' agents at a broker of the simulated world.

Owns the node's end of such a session: it connects, passes lines, and ends. And the session as an agent of the
broker (`NodeAgent`): each line of the other node becomes an event by the real adapter, each effect a line.
Its carrier is that of every agent of the handshake era, so it comes back after a broker's death.

Knows nothing of: channels, frames, who is behind a session.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from carpool.cluster.core.local_sessions import NearEndEvents
from carpool.cluster.near_ends import UnsentBytes
from carpool_broker.core.model import effects as bf
from carpool_broker.core.model import events as bv
from carpool_broker.era.handshake import read_line
from carpool_broker.transport.connections import NO_ASK
from carpool_broker.transport.outbound import AgentOutput
from carpool_protocol.ids import ABSENT, AskId, CallId, InstanceId, RawJson, SessionId
from tests.world.sim.agents import SimAgent
from tests.world.sim.carriers import HandshakeCarrier
from tests.world.sim.oracles.asks import SimAsk
from tests.world.sim.oracles.calls import Kind, SentCall
from tests.world.sim.oracles.violation import Violation
from tests.world.sim.traits import as_error, number_in

if TYPE_CHECKING:
    from tests.world.sim.node_carpool import NodeCarpool
    from tests.world.sim.node_process import SimNode

ATTACH_S: Final = 0.3
"""The pause between two attempts to find a broker."""
ATTEMPTS: Final = 8
UNSENT_BYTES: Final = 12_000
"""A broker's connection is not read while so much of a session waits: two windows, as in the product."""
SLOW_READER_S: Final = 4.0
"""Shorter than the default of `session.slow_reader_s`, as all limits of the world."""
PASSED_ON: Final = SimAsk(
    number=0,
    kind="form",
    instance=InstanceId(0),
    about=0,
    certain=False,
    at=0.0,
    id=ABSENT,
    token=ABSENT,
    elicitation="",
)
"""An ask that another node's agent is to answer: the oracle judges it there."""
KINDS: Final[dict[type, Kind]] = {
    bv.InitializeRequested: "greet",
    bv.ListPageRequested: "list",
    bv.CallRequested: "call",
    bv.PingRequested: "ping",
    bv.SubscribeRequested: "watch",
    bv.LogLevelRequested: "level",
}


class SimBrokerEnd:
    """The node's end of a session at its broker: a `NearEnd`."""

    session = ""

    def __init__(self, node: "SimNode", other: str, server: str, events: NearEndEvents) -> None:
        """`other`: the node of the agent."""
        self._node = node
        self._world: NodeCarpool = node.world
        self.other = other
        self.server = server
        self._events = events
        self._unsent = UnsentBytes(events)
        self._unread: deque[bytes] = deque()
        """Lines of the broker that are not read, because too much waits for the other node."""
        self._read_at = 0.0
        """When one of them was last read, or there were none."""
        self._half_line = b""
        self._early: list[bytes] = []
        """What was said before a broker was there."""
        self.is_over = False
        self.agent: NodeAgent | None = None
        self._later(0.001, lambda: self._attach(ATTEMPTS))

    def _later(self, within_s: float, act: Callable[[], None]) -> None:
        def run() -> None:
            if not self.is_over and self._node.alive:
                act()

        self._node.clock.later(self._node.rng.uniform(0.0, within_s), run)

    def _attach(self, attempts: int) -> None:
        broker = self._world.broker
        if self.is_over:
            return
        if not broker.alive:
            if attempts:
                self._later(2 * ATTACH_S, lambda: self._attach(attempts - 1))
            else:
                self.lost("carpool does not run")
        elif broker.stopped:
            broker.awake(lambda: self._attach(attempts))
        elif not self._world.has_server(self.server):
            self.lost("the configuration has no server of that name")
        else:
            self.agent = self._world.node_agent(self)
            early, self._early = self._early, []
            for line in early:
                self.agent.line_received(line)

    def line(self, line: bytes) -> None:
        """The broker has written this line."""
        if self.is_over:
            return
        if not self._unread:
            self._read_at = self._node.clock.now
            self._node.clock.later(SLOW_READER_S, self._drop_if_slow)
        self._unread.append(line)
        self._read_lines()

    def _read_lines(self) -> None:
        while self._unread and self._unsent.size_bytes < UNSENT_BYTES:
            self._read_at = self._node.clock.now
            self._unsent.add(self._unread.popleft())

    def _drop_if_slow(self) -> None:
        """The broker looks if its output is read. It drops a connection that has read nothing for so long."""
        if self.is_over or not self._unread:
            return
        broker, left_s = self._world.broker, self._read_at + SLOW_READER_S - self._node.clock.now
        if left_s > 0 or not broker.alive or broker.stopped:
            self._node.clock.later(max(left_s, 1.0), self._drop_if_slow)
            return
        assert self.agent is not None
        self._world.cluster.dropped += 1
        self._world.leave(self.agent)
        self.lost("it has not read")

    def pass_bytes(self, data: bytes) -> None:
        """See `NearEnd`."""
        if self.is_over:
            return
        *lines, self._half_line = (self._half_line + data).split(b"\n")
        for line in lines:
            if self.agent is None:
                self._early.append(line)
            else:
                self.agent.line_received(line)
        self._grant(len(data))

    def _grant(self, size_bytes: int) -> None:
        if self._world.broker.alive and self.agent is not None:
            self._events.passed(size_bytes)
        else:
            self._later(ATTACH_S, lambda: self._grant(size_bytes))

    def read_on(self) -> None:
        """See `NearEnd`."""
        if not self.is_over:
            self._unsent.send()
            self._read_lines()

    def end(self, text: str) -> None:
        """See `NearEnd`: the broker sees the end of the connection."""
        if not self.is_over:
            self.is_over = True
            if self.agent is not None:
                self._world.leave(self.agent)

    def lost(self, text: str) -> None:
        """No broker has this session any more."""
        if not self.is_over:
            self.is_over = True
            self._events.ended(text)


class NodeCarrier(HandshakeCarrier):
    """What the node's process keeps of such a session (`carpool.api.connection`)."""

    @property
    def is_closed(self) -> bool:
        """See `BaseCarrier`."""
        assert isinstance(self.agent, NodeAgent)
        return self.agent.end.is_over

    def again(self, session: SessionId, mishaps: int | None) -> Iterator[bv.AnyEvent]:
        """See `BaseCarrier`."""
        assert isinstance(self.agent, NodeAgent)
        self.agent.back_at = self.agent.world.now
        yield from super().again(session, mishaps)


class NodeAgent(SimAgent):
    """A session of an agent of another node, as its broker has it."""

    def __init__(self, world: "NodeCarpool", session: SessionId, end: SimBrokerEnd) -> None:
        super().__init__(world.book, world.rng, session, careless=False)
        self.world = world
        self.end = end
        self.back_at = world.now
        """Since when it is at this broker."""
        self._given_up: set[RawJson] = set()
        """Cancelled requests: a broker that is stopped has not read of that yet, and may answer."""
        self._output: AgentOutput | None = None
        self._of = world.broker
        self._line = b""

    # --- what it says -----------------------------------------------------------------------------------

    def line_received(self, line: bytes) -> None:
        """Its node has sent this line."""
        meaning = read_line(self.session, line)
        if not isinstance(meaning, bv.BrokerEvent):
            raise Violation(f"{self.session} of {self.end.other} says what has no meaning: {line!r}")
        kind = KINDS.get(type(meaning))
        if isinstance(meaning, bv.BadLineReceived):
            raise Violation(f"{self.session} of {self.end.other} says a bad line: {line!r}")
        if kind is not None:
            number = number_in(meaning.rest) if isinstance(meaning, bv.CallRequested) else 0
            id_: RawJson = meaning.id  # type: ignore[union-attr]  # each of `KINDS` has one
            if id_ in self.open:
                raise Violation(f"{self.session} of {self.end.other} uses id {id_!r} twice")
            self.open[id_] = SentCall(number, kind, self.world.now)
        if isinstance(meaning, bv.RequestCancelled):
            self.open.pop(meaning.id, None)
            self._given_up.add(meaning.id)
        if isinstance(meaning, bv.AskAnswered):
            self.asks.pop(meaning.ask, None)
        event: bv.AnyEvent = meaning
        self.world.says(self, lambda: replace(event, session=self.session))

    def leave(self, now: float) -> bv.AnyEvent:
        """It is gone. Whether anybody wants its answers is its node's matter."""
        return bv.SessionClosed(self.session)

    # --- what it is told --------------------------------------------------------------------------------

    def take(self, effect: bf.LocalEffect, now: float) -> str:
        """What the broker writes to it."""
        match effect:
            case bf.AnswerInitialize():
                self._close(effect.id)
                self.greeted = True
            case bf.Reply() | bf.ReplyRewritten() | bf.AnswerBuiltin():
                self._close(effect.id)
                if isinstance(effect, bf.Reply) and effect.is_error:
                    effect = replace(effect, body=as_error(effect.body))
            case bf.SendAsk():
                self.asks[effect.ask] = PASSED_ON
            case bf.WithdrawAsk():
                self.asks.pop(effect.ask, None)
            case bf.ApplyRoots() | bf.LogLine():
                return "note"
            case _:
                pass
        handler = self._handlers().get(type(effect))
        if handler is None:
            raise Violation(f"{self.session} of {self.end.other} got {type(effect).__name__}")
        self._line = b""
        handler(effect)
        if self._line:
            self.end.line(self._line)
        return "line"

    def _close(self, request: RawJson) -> SentCall:
        if request in self._given_up and request not in self.open:
            return SentCall(0, "call", self.world.now)
        return super()._close(request)

    def _handlers(self) -> Mapping[type, Callable[..., None]]:
        if self._output is None or self._of is not self.world.broker:
            self._of = self.world.broker
            self._output = AgentOutput(self._of.core, "sim", self._written, self._of.feed)
        return self._output.handlers

    def _written(
        self,
        session: SessionId,
        line: bytes,
        about: RawJson = ABSENT,
        *,
        answers: bool = False,
        call: CallId = bf.NO_CALL,
        ask: AskId = NO_ASK,
        withdrawn: AskId = NO_ASK,
    ) -> None:
        self._line += line
