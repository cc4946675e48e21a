"""The sessions of agents that run over one channel, in both directions.

A session begins at the node of its agent, which asks the node of its server for it, and is a stream of bytes
each way. Owns their numbers, and the credit of each direction: a sender may have `WINDOW_BYTES` of one
session under way, and reads no more of its socket until the receiver has passed some on. So a slow agent or
server holds up its own session only, and the memory of a node is bounded by its sessions.

Invariants (`check`): no session has more under way than the window; after its end nothing is sent for a
session and what comes for it is dropped. Another node that does not keep to the window, or asks for too
much, loses that session. Knows nothing of: sockets, brokers, MCP, the order on the link.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from carpool.cluster.core.channel import MAX_CLOSES, ChannelEvent, ChannelLost, ChannelOpened, NodeChannel
from carpool.cluster.core.frames import (
    CHUNK_BYTES,
    AnswerRecord,
    BytesRecord,
    CloseRecord,
    CreditRecord,
    OfferRecord,
    OpenRecord,
    RequestRecord,
)
from carpool_protocol.wire.tool_name_resolver import check_server_name

WINDOW_BYTES: Final = 512 * 1024
"""The most bytes of a session that one end has sent and the other has not passed on."""
CREDITS_PER_WINDOW: Final = 4
"""Credit is given in portions of this part of the window."""
MAX_SESSIONS: Final = 20_000
"""The most sessions of one other node. Further ones are refused."""
MAX_TEXT_CHARS: Final = 1000
"""The most characters of another node's reason that are passed on."""
_TOO_MUCH: Final = "the other node sent more than this one had room for"


class SessionName(NamedTuple):
    """A session, as this node names it."""

    node: str
    number: int
    """Positive if this node opened it."""


class OpenAtBroker(Struct, frozen=True):
    """The other node asks for a session at this node's broker: open it."""

    session: SessionName
    server: str


class PassBytes(Struct, frozen=True):
    """Pass these bytes to the near end of the session."""

    session: SessionName
    data: bytes


class ReadOn(Struct, frozen=True):
    """Read on at the near end: there is room for more."""

    session: SessionName


class EndSession(Struct, frozen=True):
    """End the near end: the other node has closed the session, or is lost."""

    session: SessionName
    text: str
    """Why, for people; empty: in the ordinary way."""
    is_final: bool = False
    """Another session is refused, too, until somebody changes something."""


NearEndEffect = OpenAtBroker | PassBytes | ReadOn | EndSession


class NodeReached(Struct, frozen=True):
    """The other node is there."""


class NodeLost(Struct, frozen=True):
    """The other node is gone; all its sessions have ended before. `text` says why."""

    text: str


class OfferReceived(Struct, frozen=True):
    """The other node says what it offers."""

    offer: bytes


class RequestReceived(Struct, frozen=True):
    """The other node asks for something (`node_requests`)."""

    number: int
    kind: str
    session: SessionName
    """For `story`: negative in number if the other node opened it; it may be no session at all."""
    call: int


class AnswerReceived(Struct, frozen=True):
    """The other node answers a request of this one."""

    number: int
    body: bytes


NodeEvent = NodeReached | NodeLost | OfferReceived | RequestReceived | AnswerReceived


class _Flow:
    """The credit of one session."""

    __slots__ = ("passed_bytes", "received_bytes", "under_way_bytes")

    def __init__(self) -> None:
        self.under_way_bytes = 0
        """Sent, and not passed on by the other end."""
        self.passed_bytes = 0
        """Passed on here, and not yet told to the other end."""
        self.received_bytes = 0
        """Received, and not yet told to be passed on."""


class NodeSessions:
    """The sessions over the channel to one other node. Numbers are those of this end: positive for sessions
    that it opened.
    """

    def __init__(
        self, node: str, channel: NodeChannel, window_bytes: int = WINDOW_BYTES, *, after: int = 0
    ) -> None:
        """`window_bytes`: the same at both nodes. `after`: the number before the first session's."""
        self._node = node
        self._window_bytes = window_bytes
        self.channel: Final = channel
        self._flows: dict[int, _Flow] = {}
        self._last = after

    def __len__(self) -> int:
        return len(self._flows)

    @property
    def opened(self) -> int:
        """Return the number of sessions that this node has at the other one."""
        return sum(session > 0 for session in self._flows)

    @property
    def served(self) -> int:
        """Return the number of sessions that the other node has at this one."""
        return len(self._flows) - self.opened

    # --- towards the other node ------------------------------------------------------------------------

    def open(self, server: str) -> int:
        """Ask the other node for a session at this server and return its number. 0: the node is away."""
        if not self.channel.is_open:
            return 0
        self._last += 1
        self._flows[self._last] = _Flow()
        self.channel.send(OpenRecord(self._last, server))
        return self._last

    def room_bytes(self, session: int) -> int:
        """Return how many bytes of this session may be sent now."""
        flow = self._flows.get(session)
        return 0 if flow is None else self._window_bytes - flow.under_way_bytes

    def send(self, session: int, data: bytes) -> None:
        """Send bytes of a session, at most `room_bytes`."""
        flow = self._flows.get(session)
        if flow is None:
            return
        flow.under_way_bytes += len(data)
        for at in range(0, len(data), CHUNK_BYTES):
            self.channel.send(BytesRecord(session, data[at : at + CHUNK_BYTES]))

    def bytes_passed(self, session: int, size_bytes: int) -> None:
        """The near end has taken so many received bytes of this session: the other node may send as many
        more.
        """
        flow = self._flows.get(session)
        if flow is None:
            return
        flow.passed_bytes += size_bytes
        if flow.passed_bytes >= self._window_bytes // CREDITS_PER_WINDOW:
            self.channel.send(CreditRecord(session, flow.passed_bytes))
            flow.received_bytes -= flow.passed_bytes
            flow.passed_bytes = 0

    def close(self, session: int, text: str = "", *, is_final: bool = False) -> None:
        """End a session. Bytes that were sent before still arrive. `is_final`: as of `CloseRecord`."""
        if self._flows.pop(session, None) is not None:
            self.channel.send(CloseRecord(session, text, is_final))

    def _name(self, session: int) -> SessionName:
        return SessionName(self._node, session)

    # --- from the other node ---------------------------------------------------------------------------

    def received(self, events: list[ChannelEvent]) -> list[NodeEvent | NearEndEffect]:
        """Return what follows from the events of the channel, in order."""
        return [each for event in events for each in self._received(event)]

    def _received(self, event: ChannelEvent) -> Sequence[NodeEvent | NearEndEffect]:
        match event:
            case ChannelOpened():
                return [NodeReached()]
            case ChannelLost():
                ended = [EndSession(self._name(each), event.text) for each in self._flows]
                self._flows.clear()
                return [*ended, NodeLost(event.text)]
            case OpenRecord():
                return self._requested(-event.session, event.server)
            case BytesRecord():
                return self._bytes_received(-event.session, event.data)
            case CreditRecord():
                return self._credited(-event.session, event.size_bytes)
            case CloseRecord():
                known = self._flows.pop(-event.session, None) is not None
                text = event.text[:MAX_TEXT_CHARS]
                return [EndSession(self._name(-event.session), text, event.is_final)] if known else []
            case OfferRecord():
                return [OfferReceived(event.offer)]
            case RequestRecord():
                session = self._name(-event.session)
                return [RequestReceived(event.number, event.kind, session, event.call)]
            case AnswerRecord():
                return [AnswerReceived(event.number, event.body)]

    def _requested(self, session: int, server: str) -> list[OpenAtBroker]:
        is_flood = self.channel.waiting(CloseRecord) > MAX_CLOSES  # the channel ends with the next tick
        if session >= 0 or session in self._flows or is_flood:
            return []
        if check_server_name(server) is not None:
            self.channel.send(CloseRecord(session, "there can be no server of that name", is_final=True))
            return []
        if len(self._flows) >= MAX_SESSIONS:
            self.channel.send(CloseRecord(session, f"the node has {MAX_SESSIONS} sessions of this one open"))
            return []
        self._flows[session] = _Flow()
        return [OpenAtBroker(self._name(session), server)]

    def _bytes_received(self, session: int, data: bytes) -> Sequence[NearEndEffect]:
        flow = self._flows.get(session)
        if flow is None or not data:
            return []
        flow.received_bytes += len(data)
        if flow.received_bytes > self._window_bytes:
            self.close(session, _TOO_MUCH)
            return [EndSession(self._name(session), _TOO_MUCH)]
        return [PassBytes(self._name(session), data)]

    def _credited(self, session: int, size_bytes: int) -> list[ReadOn]:
        flow = self._flows.get(session)
        if flow is None:
            return []
        flow.under_way_bytes = max(flow.under_way_bytes - max(size_bytes, 0), 0)
        return [ReadOn(self._name(session))]

    def check(self) -> None:
        """Assert the invariants."""
        self.channel.check()
        for flow in self._flows.values():
            assert 0 <= flow.under_way_bytes <= self._window_bytes
            assert flow.received_bytes <= self._window_bytes
        assert self.channel.is_open or not self._flows
