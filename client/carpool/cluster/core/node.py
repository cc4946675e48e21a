"""One node: its channels to the others, the sessions on them, and what everybody offers.

Owns which channel a session runs on, which node a new session goes to, when another node is forgotten,
what another node may ask of this one, and whether this one drains.
Every method returns the effects to perform, in order; `take_frames` gives what is to be sent. A *session*
here is named by its node and its number there (`SessionName`).

Knows nothing of: sockets, links, files, brokers and supervisors, clocks (`now` is given).
"""

from collections.abc import Callable, Collection
from math import inf
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from carpool.cluster.core.channel import LOST_S, NodeChannel
from carpool.cluster.core.frames import (
    FRAME_BYTES,
    AnswerRecord,
    OfferRecord,
    RequestRecord,
    UnreadableFrameError,
    decode_frame,
    encode_frame,
)
from carpool.cluster.core.minute_counts import MINUTE_S, MinuteCounts
from carpool.cluster.core.node_requests import (
    MAX_ALL_DRAINS,
    MAX_ANSWERS,
    MAX_DRAINS,
    REQUEST_S,
    NodeAnswer,
    NodeRequestKind,
    NodeRequests,
    encode_answer,
    may_drain,
    read_answer,
)
from carpool.cluster.core.offers import (
    MAX_SERVERS,
    NodeOffer,
    NodeServer,
    choose_node,
    read_offer,
    remote_servers,
)
from carpool.cluster.core.sessions import (
    WINDOW_BYTES,
    AnswerReceived,
    NearEndEffect,
    NodeEvent,
    NodeLost,
    NodeReached,
    NodeSessions,
    OfferReceived,
    RequestReceived,
    SessionName,
)
from carpool_protocol.config.schema.settings_cluster import ANY_NODE, check_node_name

MAX_NODES: Final = 2000
"""The most other nodes. What comes from further ones is dropped."""
MAX_REPORTED: Final = 100
"""The most nodes of which the log has what is wrong with them."""
MAX_REPORTS: Final = 3
"""The most reports on one such node."""
MAX_OFFER_CHANGES: Final = 12
"""The most changes of one node's offer that are taken up within a minute."""
MAX_TURNS: Final = 20
"""So often in a minute the log says at most that a node is reached, or is lost."""


class DrainingAsked(Struct, frozen=True):
    """Another node has asked this one to take no further sessions, or to take them again. It has its answer,
    and what it asked for is done.
    """

    node: str
    is_on: bool
    is_allowed: bool
    """False: it was refused."""
    times: int = 1
    """Greater than 1: it stands for this number of refused requests, which came within a minute."""


class NodeAsked(Struct, frozen=True):
    """Another node asks for something that only the shell knows; `NodeCore.answer` takes the answer."""

    node: str
    number: int
    """This node's number of the request, which no other one has in its life."""
    kind: NodeRequestKind
    session: SessionName
    """For `story`: the session that the other node says the call ran on."""
    call: int
    """For `story`: the JSON-RPC id of the call on it."""


class NodeAnswered(Struct, frozen=True):
    """A request of this node is over."""

    number: int
    answer: NodeAnswer
    """`refused` says why there is none, too."""
    is_received: bool
    """False: the node has not answered, and may have done what it was asked for."""
    took_s: float = 0.0


class OffersChanged(Struct, frozen=True):
    """The servers of other nodes are others now."""


class OwnOfferChanged(Struct, frozen=True):
    """This node drains now, or takes sessions again: publish its offer."""


class Report(Struct, frozen=True):
    """Something for the log."""

    text: str
    level: str = "info"


NodeEffect = (
    NearEndEffect | DrainingAsked | NodeAsked | NodeAnswered | OffersChanged | OwnOfferChanged | Report
)


MAX_SILENT: Final = 100
GONE_S: Final = 10.0
"""A node that has left was not just started again if it is not back within this time."""
SESSIONS_PER_ID: Final = 1024
"""Session numbers of one table per id. Ids grow by one in a millisecond, which opens fewer sessions."""
_NOT_ANSWERED: Final = (
    f"the node has not answered within {REQUEST_S:g} s; it may have done it all the same "
    "(`carpool cluster status`)"
)


class _Offered(Struct):
    offer: NodeOffer
    heard_at: float
    received_at: float
    """When the offer came, or later figures, which a frame after it does not change."""


class NoNodeError(Exception):
    """No node takes the session. The text says why, for people. `is_final`: none will, until somebody changes
    something.
    """

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final


class NotReachedError(Exception):
    """A node cannot be asked. The text says why, for people."""


class NodeCore:
    """The node of this machine. `epoch`: names this life of it. `new_id`: as in `NodeChannel`. `drain_by`:
    the nodes that may make this one drain, or `*`. `max_servers`: the most servers that are used of one node.
    """

    def __init__(
        self,
        name: str,
        epoch: str,
        new_id: Callable[[], int],
        *,
        frame_bytes: int = FRAME_BYTES,
        window_bytes: int = WINDOW_BYTES,
        drain_by: Collection[str] = (ANY_NODE,),
        max_servers: int = MAX_SERVERS,
    ) -> None:
        self.name = name
        self.epoch = epoch
        self._new_id = new_id
        self._frame_bytes = frame_bytes
        self._window_bytes = window_bytes
        self._drain_by = frozenset(drain_by)
        self._max_servers = max_servers
        self._offer_changes = MinuteCounts(MAX_OFFER_CHANGES)
        self._is_draining = False
        self._requests = NodeRequests()
        self._drains = MinuteCounts(MAX_DRAINS, MAX_ALL_DRAINS)
        self._refused_drains: dict[tuple[str, bool], int] = {}
        """The drains (True) and undrains that came too often, by node: one effect a minute tells them."""
        self._refused_due = inf
        self._turns = MinuteCounts(MAX_TURNS)
        self._nodes: dict[str, NodeSessions] = {}
        self._offered: dict[str, _Offered] = {}
        self._introduced: dict[str, float] = {}
        """Nodes that are configured, with the time since which they are tried."""
        self._reported: dict[str, set[str]] = {}
        """The reports on nodes whose frames or offers cannot be read."""
        self._own_offer = b""
        self._is_own_seen = False
        """This life's own offer has come back from the store of the link."""
        self._namesakes: set[str] = set()
        """Epochs of other nodes of this name that were reported."""
        self._namesake_heard_at = -inf
        self._silent: dict[str, float] = {}
        """Nodes that were there and have not left, with the time at which they were last heard."""
        self._left: dict[str, float] = {}
        """Nodes that have just left, with the time of that."""
        self._gone: dict[str, None] = {}
        """Nodes that have left and were not just started again."""
        self._unreadable: dict[str, str] = {}
        """Nodes whose last frame could not be read, and why."""

    # --- offers ----------------------------------------------------------------------------------------

    @property
    def offers(self) -> dict[str, NodeOffer]:
        """The offers of the other nodes, by name."""
        return {name: each.offer for name, each in sorted(self._offered.items())}

    def reached(self) -> list[str]:
        """Return the nodes with an open channel, sorted."""
        return sorted(name for name, node in self._nodes.items() if node.channel.is_open)

    def silent(self, now: float) -> dict[str, float]:
        """Return the nodes that are configured, or were there and have not left, and are not heard: for how
        many seconds, sorted by name. A configured one is counted from its introduction.
        """
        heard = {**self._introduced, **self._silent}
        return {
            name: now - at
            for name, at in sorted(heard.items())
            if name not in self._offered and not (name in self._nodes and self._nodes[name].channel.is_open)
        }

    def offer_age_s(self, node: str, now: float) -> float:
        """Return the seconds since the offer of another node came; 0 if there is none."""
        return now - self._offered[node].received_at if node in self._offered else 0.0

    def has_namesake(self, now: float) -> bool:
        """Return True if another node of this name was heard lately."""
        return now < self._namesake_heard_at + LOST_S

    def opened_at(self, node: str) -> int:
        """Return the number of open sessions that this node's agents have at another one."""
        return self._nodes[node].opened if node in self._nodes else 0

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

    @property
    def is_draining(self) -> bool:
        """True if this node takes no further sessions of other nodes."""
        return self._is_draining

    def set_draining(self, *, is_on: bool) -> list[NodeEffect]:
        """Take no further sessions of other nodes, or take them again."""
        if is_on == self._is_draining:
            return []
        self._is_draining = is_on
        return [OwnOfferChanged()]

    def set_offer(self, offer: bytes) -> None:
        """Set the offer that channels carry to the other nodes, on a link that does not store offers."""
        self._own_offer = offer
        for node in self._nodes.values():
            node.channel.send(OfferRecord(offer))

    def offer_received(self, node: str, data: bytes, now: float) -> list[NodeEffect]:
        """An offer of another node has come. Empty data: the node has left."""
        if node == self.name:
            return self._own_offer_received(data, now)
        if not data:
            self._silent.pop(node, None)
            if self._offered.pop(node, None) is None:
                return []
            if len(self._left) < MAX_NODES:
                self._left[node] = now
            return [OffersChanged()]
        if not self._is_possible(node):
            return []
        offer = read_offer(data)
        if offer is None or offer.node != node:
            return self._report(node, "its offer cannot be read; is it another carpool?")
        reports: list[NodeEffect] = []
        if (offered := len(offer.servers)) > self._max_servers:
            offer = replace(offer, servers=offer.servers[: self._max_servers])
            reports = self._report(
                node,
                f"it offers {offered} servers, and agents here get {self._max_servers} of them "
                "(`cluster.max_servers_per_node`)",
            )
        before = self._offered.get(node)
        known = before is not None and _lasting(before.offer) == _lasting(offer)
        if before is not None and not known and not self._offer_changes.allows(node, now):
            # Each change makes agents list again. The node tells its offer again, so a later one counts.
            reports += self._report(node, "its offer changes too often: some changes are taken up later")
            offer = replace(offer, servers=before.offer.servers)
            known = True
        self._offered[node] = _Offered(offer, now, now)
        for absent in (self._silent, self._left, self._gone):
            absent.pop(node, None)
        self._session_table(node, now)
        return reports if known else [*reports, OffersChanged()]

    def _own_offer_received(self, data: bytes, now: float) -> list[NodeEffect]:
        """An offer under this node's own name. What comes after the own one, and is of another life, is of
        another node of this name.
        """
        offer = read_offer(data)
        if offer is None or offer.epoch == self.epoch:
            self._is_own_seen = self._is_own_seen or offer is not None
            return []
        if not self._is_own_seen:
            return []
        self._namesake_heard_at = now
        if offer.epoch in self._namesakes or len(self._namesakes) >= MAX_NODES:
            return []
        self._namesakes.add(offer.epoch)
        text = f"another node is called {self.name} too: give one another name"
        return [Report(f"{text} (`cluster.node`, `carpool up --node NAME`)", "error")]

    # --- requests of one node to another ---------------------------------------------------------------

    def request(
        self, node: str, kind: NodeRequestKind, now: float, *, session: int = 0, call: int = 0
    ) -> int:
        """Ask another node for something and return the number; `NodeAnswered` follows. Raises
        `NotReachedError`.
        """
        if node not in self._nodes or not self._nodes[node].channel.is_open:
            raise NotReachedError(f"node {node} is not reached (`carpool cluster status`)")
        number = self._requests.begin(node, now)
        self._nodes[node].channel.send(RequestRecord(number, kind, session, call))
        return number

    def answer(self, node: str, number: int, answer: NodeAnswer) -> None:
        """Answer a request that was reported as `NodeAsked`."""
        theirs = self._requests.finish(node, number)
        if theirs is not None and node in self._nodes:
            self._nodes[node].channel.send(AnswerRecord(theirs, encode_answer(answer)))

    def _request_received(self, node: str, event: RequestReceived, now: float) -> list[NodeEffect]:
        if self._nodes[node].channel.waiting(AnswerRecord) >= MAX_ANSWERS:
            return []
        asked = self._requests.accept(node, event.number)
        if not asked:
            refusal = NodeAnswer(refused=f"node {self.name} has too many requests of node {node} in work")
            self._nodes[node].channel.send(AnswerRecord(event.number, encode_answer(refusal)))
            if event.kind in {"drain", "undrain"}:
                self._count_refused(node, event.kind == "drain", now)
            return []
        match event.kind:
            case "drain" | "undrain":
                return self._drain_requested(node, event, asked, now)
            case "ping" | "figures" | "story":
                return [NodeAsked(node, asked, event.kind, event.session, event.call)]
            case _:
                refusal = NodeAnswer(refused=f"node {self.name} does not know this request")
                self.answer(node, asked, refusal)
                return []

    def _drain_requested(self, node: str, event: RequestReceived, asked: int, now: float) -> list[NodeEffect]:
        is_on, is_allowed = event.kind == "drain", may_drain(node, self._drain_by)
        if not self._drains.allows(node, now):
            refusal = f"node {node} asks node {self.name} for this too often: wait a minute"
            self.answer(node, asked, NodeAnswer(refused=refusal))
            self._count_refused(node, is_on, now)
            return self._report(node, "it asks this one to drain too often; refused")
        if is_allowed:
            self.answer(node, asked, NodeAnswer())
            changed = self.set_draining(is_on=is_on)
            what = "drain" if is_on else "take sessions again"
            told = [Report(f"node {node} asks this one to {what}")] if changed else []
            return [*changed, *told, DrainingAsked(node, is_on, is_allowed=True)]
        refusal = f"node {self.name} does not let node {node} do that (`cluster.drain_by` there)"
        self.answer(node, asked, NodeAnswer(refused=refusal))
        refused = self._report(
            node, "it asks this one to drain, or to end that; refused (`cluster.drain_by`)"
        )
        return [*refused, DrainingAsked(node, is_on, is_allowed=False)]

    def _count_refused(self, node: str, is_on: bool, now: float) -> None:
        key = (node, is_on)
        if key not in self._refused_drains and len(self._refused_drains) >= MAX_NODES:
            return
        self._refused_drains[key] = self._refused_drains.get(key, 0) + 1
        self._refused_due = min(self._refused_due, now + MINUTE_S)

    def _tell_refused(self, now: float) -> list[DrainingAsked]:
        if now < self._refused_due:
            return []
        told = [
            DrainingAsked(node, is_on, is_allowed=False, times=times)
            for (node, is_on), times in self._refused_drains.items()
        ]
        self._refused_drains.clear()
        self._refused_due = inf
        return told

    def _answer_received(self, node: str, event: AnswerReceived, now: float) -> list[NodeEffect]:
        took_s = self._requests.answered(node, event.number, now)
        if took_s is None:
            return []
        answer = read_answer(event.body)
        self._note_figures(node, answer, now)
        return [NodeAnswered(event.number, answer, is_received=True, took_s=took_s)]

    def _note_figures(self, node: str, answer: NodeAnswer, now: float) -> None:
        """Take load and open calls of an answer into the offer, which had earlier ones."""
        if answer.load >= 0 and answer.open_calls >= 0 and node in self._offered:
            known = self._offered[node]
            known.offer = replace(known.offer, load=answer.load, open_calls=answer.open_calls)
            known.received_at = now

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
            raise self._no_offer(node)
        found = remote_servers(offers.values(), ()).get(server)
        if found is None and node != ANY_NODE:
            why = offers[node].kept_local.get(server, "it has no such server, or it is disabled")
            raise NoNodeError(f"node {node} does not offer {server}: {why}", is_final=True)
        if found is None:
            raise NoNodeError(f"no node offers {server} now (`carpool cluster status`)")
        reached = {name: each for name, each in offers.items() if self._nodes[name].channel.is_open}
        chosen = choose_node(found, reached, {name: self._nodes[name].opened for name in reached})
        if not chosen:
            if all(each in self._unreadable for each in found.nodes):
                raise self._cannot_read(found.nodes[0])
            names = ", ".join(found.nodes)
            raise NoNodeError(f"the nodes with {server} are not reached, or are draining: {names}")
        return chosen

    def _no_offer(self, node: str) -> NoNodeError:
        if node in self._unreadable:
            return self._cannot_read(node)
        if node in self._gone:
            text = f"node {node} has left the cluster; `carpool restart --all` there joins again"
            return NoNodeError(text, is_final=True)
        return NoNodeError(f"node {node} is not in the cluster now (`carpool cluster status`)")

    def _cannot_read(self, node: str) -> NoNodeError:
        return NoNodeError(f"node {node}: {self._unreadable[node]}", is_final=True)

    def is_only_choice(self, node: str, server: str) -> bool:
        """Return True if no other node offers the server to a session that is asked for so."""
        found = self.servers().get(server)
        return node != ANY_NODE or found is None or len(found.nodes) == 1

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

    def close(self, session: SessionName, text: str = "", *, is_final: bool = False) -> None:
        """The near end of a session is gone. `is_final`: as of `CloseRecord`."""
        if (node := self._nodes.get(session.node)) is not None:
            node.close(session.number, text, is_final=is_final)

    # --- the link --------------------------------------------------------------------------------------

    def frame_received(self, node: str, data: bytes, now: float) -> list[NodeEffect]:
        """A frame of another node has come."""
        if not self._is_possible(node):
            return []
        try:
            frame = decode_frame(data)
        except UnreadableFrameError as error:
            if node in self._unreadable or len(self._unreadable) < MAX_NODES:
                self._unreadable[node] = str(error)
            return self._report(node, str(error))
        self._unreadable.pop(node, None)
        sessions = self._session_table(node, now)
        if node in self._offered:
            self._offered[node].heard_at = now
        return self._translate(node, sessions.received(sessions.channel.frame_received(frame, now)), now)

    def _is_possible(self, node: str) -> bool:
        """True if there can be such a node: what comes from elsewhere must not make tables grow."""
        return node in self._nodes or (
            bool(node) and check_node_name(node) is None and len(self._nodes) < MAX_NODES
        )

    def _report(self, node: str, text: str) -> list[NodeEffect]:
        """Report what is wrong with a node, once, and not too much of one node."""
        if node not in self._reported and len(self._reported) >= MAX_REPORTED:
            return []
        reported = self._reported.setdefault(node, set())
        if text in reported or len(reported) >= MAX_REPORTS:
            return []
        reported.add(text)
        return [Report(f"node {node}: {text}", "warning")]

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
        effects: list[NodeEffect] = [
            NodeAnswered(number, NodeAnswer(refused=_NOT_ANSWERED), is_received=False)
            for number in self._requests.expired(now)
        ]
        effects += self._tell_refused(now)
        for name, node in list(self._nodes.items()):
            effects += self._translate(name, node.received(node.channel.tick(now)), now)
        gone = [name for name, each in self._offered.items() if now >= each.heard_at + LOST_S]
        for name in gone:
            self._silent[name] = self._offered.pop(name).heard_at
            if len(self._silent) > MAX_SILENT:
                del self._silent[next(iter(self._silent))]
        for name in [name for name, at in self._left.items() if now >= at + GONE_S]:
            del self._left[name]
            self._gone[name] = None
            if len(self._gone) > MAX_SILENT:
                del self._gone[next(iter(self._gone))]
        for name in self._nodes.keys() - self._offered.keys() - self._introduced.keys():
            if not self._nodes[name].channel.is_open:
                del self._nodes[name]
        return [*effects, OffersChanged()] if gone else effects

    def next_deadline(self) -> float:
        """Return when `tick` and `take_frames` are due."""
        due = [node.channel.next_deadline() for node in self._nodes.values()]
        due += [self._requests.next_deadline(), self._refused_due]
        due += [at + GONE_S for at in self._left.values()]
        return min([*due, *(each.heard_at + LOST_S for each in self._offered.values())], default=inf)

    def introduce(self, node: str, now: float) -> None:
        """Begin a channel to a node that is known by name only, and try it as long as this node runs."""
        self._introduced[node] = now
        self._session_table(node, now)

    def _session_table(self, node: str, now: float) -> NodeSessions:
        found = self._nodes.get(node)
        if found is None:
            channel = NodeChannel(self._new_id, now, self._frame_bytes)
            # A number never comes back, not even in the next process of this node: a story is of one session.
            after = self._new_id() * SESSIONS_PER_ID
            found = self._nodes[node] = NodeSessions(node, channel, self._window_bytes, after=after)
        return found

    def _translate(self, node: str, events: list[NodeEvent | NearEndEffect], now: float) -> list[NodeEffect]:
        effects: list[NodeEffect] = []
        for event in events:
            match event:
                case NodeReached():
                    if self._turns.allows(node, now):
                        effects.append(Report(f"node {node} is reached"))
                    if self._own_offer:
                        self._nodes[node].channel.send(OfferRecord(self._own_offer))
                case NodeLost():
                    if self._turns.allows(node, now):
                        effects.append(Report(f"node {node} is lost: {event.text}", "warning"))
                    lost = NodeAnswer(refused=f"node {node} was lost before it answered")
                    effects += [
                        NodeAnswered(each, lost, is_received=False) for each in self._requests.node_lost(node)
                    ]
                case RequestReceived():
                    effects += self._request_received(node, event, now)
                case AnswerReceived():
                    effects += self._answer_received(node, event, now)
                case OfferReceived():
                    effects += self.offer_received(node, event.offer, now)
                case _:
                    effects.append(event)
        return effects

    def check(self) -> None:
        """Assert the invariants."""
        self._requests.check()
        for node in self._nodes.values():
            node.check()


def _lasting(offer: NodeOffer) -> tuple[object, ...]:
    """Return the part of an offer that decides which servers there are."""
    return offer.epoch, offer.is_draining, offer.servers
