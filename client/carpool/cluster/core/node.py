"""One node: its channels to the others, the sessions on them, and what everybody offers.

Owns which channel a session runs on, which node a new session goes to, and when another node is forgotten.
Every method returns the effects to perform, in order; `take_frames` gives what is to be sent. A *session*
here is named by its node and its number there (`SessionName`).

Knows nothing of: sockets, links, files, brokers and supervisors, clocks (`now` is given).
"""

from collections.abc import Callable

from msgspec import Struct

from carpool.cluster.core.channel import LOST_S, NodeChannel
from carpool.cluster.core.frames import (
    FRAME_BYTES,
    DrainRecord,
    OfferRecord,
    UnreadableFrameError,
    decode_frame,
    encode_frame,
)
from carpool.cluster.core.offers import NodeOffer, NodeServer, choose_node, read_offer, remote_servers
from carpool.cluster.core.sessions import (
    WINDOW_BYTES,
    DrainReceived,
    NearEndEffect,
    NodeEvent,
    NodeLost,
    NodeReached,
    NodeSessions,
    OfferReceived,
    SessionName,
)
from carpool_protocol.config.schema.settings_cluster import ANY_NODE


class DrainingAsked(Struct, frozen=True):
    """Another node asks this one to take no further sessions, or to take them again."""

    node: str
    is_on: bool


class OffersChanged(Struct, frozen=True):
    """The servers of other nodes are others now."""


class Report(Struct, frozen=True):
    """Something for the log."""

    text: str
    level: str = "info"


NodeEffect = NearEndEffect | DrainingAsked | OffersChanged | Report


class _Offered(Struct):
    offer: NodeOffer
    heard_at: float


class NoNodeError(Exception):
    """No node takes the session. The text says why, for people."""


class NodeCore:
    """The node of this machine. `epoch`: names this life of it. `new_id`: as in `NodeChannel`."""

    def __init__(
        self,
        name: str,
        epoch: str,
        new_id: Callable[[], int],
        frame_bytes: int = FRAME_BYTES,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self.name = name
        self.epoch = epoch
        self._new_id = new_id
        self._frame_bytes = frame_bytes
        self._window_bytes = window_bytes
        self._nodes: dict[str, NodeSessions] = {}
        self._offered: dict[str, _Offered] = {}
        self._introduced: set[str] = set()
        self._reported: dict[str, str] = {}
        """The last report on each node whose frames cannot be read."""
        self._own_offer = b""
        self._is_own_seen = False
        """This life's own offer has come back from the store of the link."""
        self._namesakes: set[str] = set()
        """Epochs of other nodes of this name that were reported."""

    # --- offers ----------------------------------------------------------------------------------------

    @property
    def offers(self) -> dict[str, NodeOffer]:
        """The offers of the other nodes, by name."""
        return {name: each.offer for name, each in sorted(self._offered.items())}

    def reached(self) -> list[str]:
        """Return the nodes with an open channel, sorted."""
        return sorted(name for name, node in self._nodes.items() if node.channel.is_open)

    def sessions_of(self, node: str) -> int:
        """Return the number of open sessions with a node, in both directions."""
        return len(self._nodes[node]) if node in self._nodes else 0

    @property
    def served(self) -> int:
        """Return the number of sessions that other nodes have here."""
        return sum(node.served for node in self._nodes.values())

    def servers(self, own: frozenset[str] = frozenset()) -> dict[str, NodeServer]:
        """Return the servers of other nodes by their names here. `own`: names that are taken."""
        return remote_servers(self.offers.values(), own)

    def ask_to_drain(self, node: str, *, is_on: bool) -> bool:
        """Ask another node to take no further sessions, or to take them again. False: it is not reached."""
        if node not in self._nodes or not self._nodes[node].channel.is_open:
            return False
        self._nodes[node].channel.send(DrainRecord(is_on))
        return True

    def set_offer(self, offer: bytes) -> None:
        """Set the offer that channels carry to the other nodes, on a link that does not store offers."""
        self._own_offer = offer
        for node in self._nodes.values():
            node.channel.send(OfferRecord(offer))

    def offer_received(self, node: str, data: bytes, now: float) -> list[NodeEffect]:
        """An offer of another node has come. Empty data: the node has left."""
        if node == self.name:
            return self._own_offer_received(data)
        if not data:
            return [OffersChanged()] if self._offered.pop(node, None) is not None else []
        offer = read_offer(data)
        if offer is None or offer.node != node:
            return [Report(f"node {node}: its offer cannot be read; is it another carpool?", "warning")]
        before = self._offered.get(node)
        self._offered[node] = _Offered(offer, now)
        self._session_table(node, now)
        known = before is not None and _lasting(before.offer) == _lasting(offer)
        return [] if known else [OffersChanged()]

    def _own_offer_received(self, data: bytes) -> list[NodeEffect]:
        """An offer under this node's own name. What comes after the own one, and is of another life, is of
        another node of this name.
        """
        offer = read_offer(data)
        if offer is None or offer.epoch == self.epoch:
            self._is_own_seen = self._is_own_seen or offer is not None
            return []
        if not self._is_own_seen or offer.epoch in self._namesakes:
            return []
        self._namesakes.add(offer.epoch)
        text = f"another node is called {self.name} too: give one another name"
        return [Report(f"{text} (`cluster.node`, `carpool up --node NAME`)", "error")]

    # --- sessions of this node's agents ----------------------------------------------------------------

    def open_session(self, node: str, server: str) -> SessionName:
        """Ask for a session at another node. Raises `NoNodeError`."""
        chosen = self._choose(node, server)
        number = self._nodes[chosen].open(server) if chosen in self._nodes else 0
        if not number:
            raise NoNodeError(f"node {chosen} is not reached at the moment")
        return SessionName(chosen, number)

    def _choose(self, node: str, server: str) -> str:
        offers = {name: each for name, each in self.offers.items() if node in {ANY_NODE, name}}
        if not offers and node != ANY_NODE:
            raise NoNodeError(f"node {node} is not in the cluster now (`carpool cluster status`)")
        found = remote_servers(offers.values(), ()).get(server)
        if found is None:
            raise NoNodeError(f"no node offers {server} now (`carpool cluster status`)")
        reached = {name: each for name, each in offers.items() if self._nodes[name].channel.is_open}
        chosen = choose_node(found, reached, {name: self._nodes[name].opened for name in reached})
        if not chosen:
            names = ", ".join(found.nodes)
            raise NoNodeError(f"the nodes with {server} are not reached, or are draining: {names}")
        return chosen

    def room_bytes(self, session: SessionName) -> int:
        """Return how many bytes the near end of a session may send now."""
        node = self._nodes.get(session.node)
        return 0 if node is None else node.room_bytes(session.number)

    def send(self, session: SessionName, data: bytes) -> None:
        """Send bytes from the near end, at most `room_bytes`."""
        if (node := self._nodes.get(session.node)) is not None:
            node.send(session.number, data)

    def bytes_passed(self, session: SessionName, size_bytes: int) -> None:
        """The near end has taken so many bytes."""
        if (node := self._nodes.get(session.node)) is not None:
            node.bytes_passed(session.number, size_bytes)

    def close(self, session: SessionName, text: str = "") -> None:
        """The near end of a session is gone."""
        if (node := self._nodes.get(session.node)) is not None:
            node.close(session.number, text)

    # --- the link --------------------------------------------------------------------------------------

    def frame_received(self, node: str, data: bytes, now: float) -> list[NodeEffect]:
        """A frame of another node has come."""
        try:
            frame = decode_frame(data)
        except UnreadableFrameError as error:
            text = f"node {node}: {error}"
            known, self._reported[node] = self._reported.get(node), text
            return [] if known == text else [Report(text, "warning")]
        sessions = self._session_table(node, now)
        if node in self._offered:
            self._offered[node].heard_at = now
        return self._translate(node, sessions.received(sessions.channel.frame_received(frame, now)), now)

    def link_restored(self, now: float, frame_bytes: int) -> None:
        """The link works, for the first time or again. `frame_bytes`: the size that a frame may have now."""
        self._frame_bytes = frame_bytes
        for node in self._nodes.values():
            node.channel.frame_bytes = frame_bytes
            node.channel.link_restored(now)

    def take_frames(self, now: float) -> list[tuple[str, bytes]]:
        """Return the frames to send now, each with its node."""
        return [
            (name, encode_frame(frame))
            for name, node in self._nodes.items()
            for frame in node.channel.take_frames(now)
        ]

    def tick(self, now: float) -> list[NodeEffect]:
        """Time has passed."""
        effects: list[NodeEffect] = []
        for name, node in list(self._nodes.items()):
            effects += self._translate(name, node.received(node.channel.tick(now)), now)
        gone = [name for name, each in self._offered.items() if now >= each.heard_at + LOST_S]
        for name in gone:
            del self._offered[name]
        for name in self._nodes.keys() - self._offered.keys() - self._introduced:
            if not self._nodes[name].channel.is_open:
                del self._nodes[name]
        return [*effects, OffersChanged()] if gone else effects

    def next_deadline(self) -> float:
        """Return when `tick` and `take_frames` are due."""
        due = [node.channel.next_deadline() for node in self._nodes.values()]
        return min([*due, *(each.heard_at + LOST_S for each in self._offered.values())], default=float("inf"))

    def introduce(self, node: str, now: float) -> None:
        """Begin a channel to a node that is known by name only, and try it as long as this node runs."""
        self._introduced.add(node)
        self._session_table(node, now)

    def _session_table(self, node: str, now: float) -> NodeSessions:
        found = self._nodes.get(node)
        if found is None:
            channel = NodeChannel(self._new_id, now, self._frame_bytes)
            found = self._nodes[node] = NodeSessions(node, channel, self._window_bytes)
        return found

    def _translate(self, node: str, events: list[NodeEvent | NearEndEffect], now: float) -> list[NodeEffect]:
        effects: list[NodeEffect] = []
        for event in events:
            match event:
                case NodeReached():
                    effects.append(Report(f"node {node} is reached"))
                    if self._own_offer:
                        self._nodes[node].channel.send(OfferRecord(self._own_offer))
                case NodeLost():
                    effects.append(Report(f"node {node} is lost: {event.text}", "warning"))
                case DrainReceived():
                    effects.append(DrainingAsked(node, event.is_on))
                case OfferReceived():
                    effects += self.offer_received(node, event.offer, now)
                case _:
                    effects.append(event)
        return effects

    def check(self) -> None:
        """Assert the invariants."""
        for node in self._nodes.values():
            node.check()


def _lasting(offer: NodeOffer) -> tuple[object, ...]:
    """Return the part of an offer that decides which servers there are."""
    return offer.epoch, offer.is_draining, offer.servers
