"""The link as its owner sees it, and the parts that all transports share.

Owns the interface `Link` and `PeeredLink`: the table of peers, the burst that is collected for each, events
outside of a frame, and heartbeats. A transport adds how frames travel (`zmq`, `memory`); one contract suite
tests all.

Rules: `send`, `flush` and `peer_died` are synchronous and never block; `deliver` and `settle` are only called
from within `run`, so an owner is never entered while it is sending. Messages to a peer that is down are
dropped and counted: the owner repeats what still holds when `PeerUp` comes.

Knows nothing of: the meaning of messages, the process at the other end.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Protocol

import trio
from msgspec import Struct

from carpool_protocol.link.codec import FrameData
from carpool_protocol.link.messages import AnyMessage, Hello
from carpool_protocol.link.peer import BROKER, LEFT_OVER_S, LINK_WINDOW_BYTES, LinkEvent, Peer
from carpool_protocol.runtime.pace import IDLE_S, until_due

MESSAGE_COST_BYTES: Final = 1024
"""The cost of a message beside its bytes: what its owner does for it takes time, however short it is."""

Deliver = Callable[[str, list[LinkEvent]], None]
"""Called with the peer's name and the events of one frame, in order."""

Settle = Callable[[], None]
"""Called at the end of a burst, when nothing more can be read now. The owner then flushes its messages."""


class LinkCounts(Struct, frozen=True, kw_only=True):
    """Counters of one end: frames that passed, and messages that were dropped."""

    frames_in: int
    frames_out: int
    bad_frames: int
    """Frames that could not be read, or came from a peer without a name."""
    stale_frames: int
    """Frames of another epoch, or from before the greeting."""
    unsent_messages: int
    """Messages to a peer that was down or unknown."""


class Link(Protocol):
    """One end of the link. The broker's end has a peer per supervisor; a supervisor's has one, `broker`."""

    def send(self, peer: str, message: AnyMessage) -> None:
        """Append to the peer's burst. Never blocks; dropped and counted while the peer is not up."""
        ...

    def send_later(self, peer: str, message: AnyMessage) -> None:
        """Append before the peer's next message, or some seconds later, without a burst of its own."""
        ...

    def flush(self) -> None:
        """Hand all bursts to the transport. May be called from any synchronous code of the same thread."""
        ...

    def held_bytes(self, peer: str) -> int:
        """`paid_size` of the messages that wait for the peer's credit."""
        ...

    def heard_at(self, peer: str) -> float | None:
        """Time (trio's clock) of the last frame of this peer; None for an unknown peer."""
        ...

    def peer_died(self, peer: str, why: str) -> None:
        """Report a death that the owner learned by other means: `PeerDown`, once, if the peer was up."""
        ...

    def counts(self) -> LinkCounts: ...

    async def run(
        self,
        deliver: Deliver,
        settle: Settle,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled. Reports "started" once the address is bound, or the connection is being
        tried.
        """
        ...


class PeeredLink(ABC):
    """Peers, bursts and heartbeats of one end. A transport adds how frames travel and how its task wakes."""

    def __init__(self, me: Hello, *, window_bytes: int = LINK_WINDOW_BYTES) -> None:
        self.me = me
        self._window_bytes = window_bytes
        self._peers: dict[str, Peer] = {}
        self._dirty: set[Peer] = set()
        self._announced: list[tuple[str, list[LinkEvent]]] = []
        self._heard = False
        self._frames_in = 0
        self._frames_out = 0
        self._bad_frames = 0
        self._unsent_messages = 0

    @property
    def is_broker(self) -> bool:
        return self.me.name == BROKER

    def send(self, peer: str, message: AnyMessage) -> None:
        known = self._peers.get(peer)
        if known is None:
            self._unsent_messages += 1
            return
        known.send(message)
        self._dirty.add(known)

    def send_later(self, peer: str, message: AnyMessage) -> None:
        known = self._peers.get(peer)
        if known is None:
            self._unsent_messages += 1
            return
        known.send_later(message)

    def flush(self) -> None:
        dirty = self._dirty
        if not dirty:
            return
        self._dirty = set()
        now = trio.current_time()
        for peer in dirty:
            frames = peer.take_frames(now)
            if frames:
                self._frames_out += len(frames)
                lost = self._transmit(peer.name, frames)
                if lost:
                    self._announce(peer.name, peer.connection_lost(lost))
        self._flushed()

    def held_bytes(self, peer: str) -> int:
        known = self._peers.get(peer)
        return 0 if known is None else known.held_bytes

    def heard_at(self, peer: str) -> float | None:
        known = self._peers.get(peer)
        return None if known is None else known.heard_at

    def peer_died(self, peer: str, why: str) -> None:
        known = self._peers.get(peer)
        if known is not None:
            self._announce(peer, known.peer_died(why))
            self._kick()

    def counts(self) -> LinkCounts:
        peers = self._peers.values()
        return LinkCounts(
            frames_in=self._frames_in,
            frames_out=self._frames_out,
            bad_frames=self._bad_frames + sum(peer.bad_frames for peer in peers),
            stale_frames=sum(peer.stale_frames for peer in peers),
            unsent_messages=self._unsent_messages + sum(peer.unsent_messages for peer in peers),
        )

    @abstractmethod
    async def run(
        self,
        deliver: Deliver,
        settle: Settle,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """As `Link.run`."""

    # --- for transports ----------------------------------------------------------------------------------

    @abstractmethod
    def _transmit(self, peer: str, frames: list[FrameData]) -> str:
        """Send the frames without blocking. Returns the reason if the peer cannot be reached, else `""`."""

    @abstractmethod
    def _flushed(self) -> None:
        """The transport was used outside of its task: make sure that no input waits unnoticed."""

    @abstractmethod
    def _kick(self) -> None:
        """Wake the task: there are events to announce."""

    def _frame_received(self, name: str, data: FrameData, deliver: Deliver) -> int:
        """Process one frame of this peer. Returns its cost, in bytes. The caller keeps no reference to it: a
        large frame is freed before its messages are delivered, which may copy them again.
        """
        self._frames_in += 1
        peer = self._peer(name)
        size = len(data)
        events = peer.receive(data, trio.current_time())
        del data
        if peer.has_output:
            self._dirty.add(peer)
        if self._announced:
            self._deliver_announced(deliver)  # earlier events first
        if events:
            self._heard = True
            deliver(name, events)
        return size + MESSAGE_COST_BYTES * len(events)

    def _connection_opened(self, name: str, deliver: Deliver) -> None:
        """A connection of this peer was made anew (only the listening end notices)."""
        self._frames_in += 1
        peer = self._peer(name)
        self._announce(name, peer.connection_opened())
        self._dirty.add(peer)
        self._deliver_announced(deliver)

    def _connection_lost(self, name: str, why: str) -> None:
        """The connection of this peer is lost."""
        peer = self._peers.get(name)
        if peer is not None:
            self._announce(name, peer.connection_lost(why))

    def _announce(self, name: str, events: list[LinkEvent]) -> None:
        if events:
            self._announced.append((name, events))

    def _deliver_announced(self, deliver: Deliver) -> None:
        while self._announced:
            announced, self._announced = self._announced, []
            self._heard = True
            for name, events in announced:
                deliver(name, events)

    def _settle(self, settle: Settle) -> None:
        """End a burst: let the owner settle if anything was delivered, then flush."""
        if self._heard:
            self._heard = False
            settle()
        self.flush()

    def _peer(self, name: str) -> Peer:
        peer = self._peers.get(name)
        if peer is None:
            peer = Peer(self.me, name, trio.current_time(), window_bytes=self._window_bytes)
            self._peers[name] = peer
        return peer

    async def _send_heartbeats(self) -> None:
        """Send heartbeats, and left-over credit of idle peers."""
        seen = -1
        while True:
            now = trio.current_time()
            count = self._frames_in + self._frames_out
            next_beat = now + (LEFT_OVER_S if count != seen else until_due(IDLE_S))
            seen = count
            for peer in self._peers.values():
                peer.tick(now)
                if peer.has_output:
                    self._dirty.add(peer)
            self.flush()
            for peer in self._peers.values():
                deadline = peer.next_deadline()
                if deadline is not None and now < deadline < next_beat:
                    next_beat = deadline
            await trio.sleep_until(next_beat)
