"""Nodes of a cluster on virtual time, over links that lose frames and are cut.

Each session carries text that names it and counts up, so that any byte in a wrong place shows. The far end of
a session returns each byte that it gets, as a server's answers would come back.

Owns the links between the cores, and what each end of a session has sent and received.
"""

from collections import deque
from typing import Final

import msgspec

from carpool.cluster.core.node import NodeCore, NodeEffect, NoNodeError
from carpool.cluster.core.offers import NodeOffer, ServerOffer
from carpool.cluster.core.sessions import EndSession, OpenAtBroker, PassBytes, ReadOn, SessionName
from carpool_protocol.config.schema.settings_cluster import ANY_NODE

SERVER: Final = "echo"
MAX_STEPS: Final = 20_000
MAX_ROUNDS: Final = 5000


class SessionText:
    """One session of an agent: what was sent at its near end, and what came back."""

    def __init__(self, node: str, name: SessionName, label: str) -> None:
        self.node = node
        self.name = name
        self.label = label
        self.wanted = b""
        """What the agent wants to send; the first `sent` bytes of it are sent."""
        self.sent = 0
        self.returned = b""
        self.end = ""
        """Why it ended; empty: it is open."""


class NodeWorld:
    """The nodes `names`, each of which offers the server `echo`."""

    def __init__(
        self,
        *names: str,
        offers: bool = True,
        frame_bytes: int = 2000,
        drain_by: tuple[str, ...] = (ANY_NODE,),
    ) -> None:
        """`offers`: False if there is no store in which nodes find each other's. `drain_by`: of all nodes."""
        self.drain_by = drain_by
        self.frame_bytes = frame_bytes
        self.has_offers = offers
        self.now = 0.0
        self.lives = 0
        self.cores: dict[str, NodeCore] = {}
        self.queues: dict[tuple[str, str], deque[bytes]] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.sessions: list[SessionText] = []
        self.served: dict[tuple[str, SessionName], bytearray] = {}
        """What the far end of each session got, and has not returned."""
        self.texts: dict[tuple[str, SessionName], bytes] = {}
        """Everything that the far end got."""
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        """Start a node, again if it ran: everything in it is gone."""
        for each in self.sessions:
            if each.node == name and not each.end:
                each.end = "its own node died"
        for key in [key for key in self.served if key[0] == name]:
            del self.served[key], self.texts[key]
        self.lives += 1
        life, ids = self.lives, iter(range(1, 1_000_000))
        self.cores[name] = NodeCore(
            name,
            str(life),
            lambda: life * 1_000_000 + next(ids),
            frame_bytes=self.frame_bytes,
            drain_by=self.drain_by,
        )
        self.offer_all()

    def offer_all(self) -> None:
        """Tell each node what the others offer, as the store of offers does."""
        for name, core in self.cores.items() if self.has_offers else ():
            for other in self.cores:
                if other != name and not {(other, name), (name, other)} & self.cuts:
                    offer = NodeOffer(
                        node=other, epoch="", release="", servers=[ServerOffer(name=SERVER, launch="x")]
                    )
                    self.perform(name, core.offer_received(other, msgspec.json.encode(offer), self.now))

    # --- agents ----------------------------------------------------------------------------------------

    def open(self, node: str, other: str) -> SessionText | None:
        """Open a session; None if the other node takes none."""
        try:
            name = self.cores[node].open_session(other, SERVER)
        except NoNodeError:
            return None
        session = SessionText(node, name, f"<{node}-{name.node}-{len(self.sessions)}>")
        self.sessions.append(session)
        return session

    def say(self, session: SessionText, times: int) -> None:
        """Let the agent say its text so many times."""
        session.wanted += session.label.encode() * times
        self._send(session)

    def _send(self, session: SessionText) -> None:
        core = self.cores[session.node]
        room = core.room_bytes(session.name)
        if room > 0 and not session.end:
            data = session.wanted[session.sent : session.sent + room]
            session.sent += len(data)
            core.send(session.name, data)

    def close(self, session: SessionText) -> None:
        """Let the agent leave."""
        session.end = "closed"
        self.cores[session.node].close(session.name)

    # --- time and links --------------------------------------------------------------------------------

    def perform(self, node: str, effects: list[NodeEffect]) -> None:
        """Do what a core asks for."""
        for effect in effects:
            match effect:
                case OpenAtBroker():
                    self.served[node, effect.session] = bytearray()
                    self.texts[node, effect.session] = b""
                case PassBytes():
                    self._pass(node, effect.session, effect.data)
                case ReadOn():
                    self._read_on(node, effect.session)
                case EndSession():
                    self._ended(node, effect.session, effect.text or "the other end closed")
                case _:
                    pass

    def _pass(self, node: str, name: SessionName, data: bytes) -> None:
        self.cores[node].bytes_passed(name, len(data))
        if (node, name) in self.served:
            self.served[node, name] += data
            self.texts[node, name] += data
            self._read_on(node, name)
            return
        session = self._session(node, name)
        assert session is not None, "bytes for a session that nobody has"
        session.returned += data
        assert session.wanted.startswith(session.returned), f"{session.label} got bytes that are not its own"

    def _read_on(self, node: str, name: SessionName) -> None:
        core = self.cores[node]
        if (waiting := self.served.get((node, name))) is not None:
            data = bytes(waiting[: core.room_bytes(name)])
            del waiting[: len(data)]
            core.send(name, data)
        elif (session := self._session(node, name)) is not None:
            self._send(session)

    def _ended(self, node: str, name: SessionName, text: str) -> None:
        if self.served.pop((node, name), None) is None and (session := self._session(node, name)) is not None:
            session.end = text
        self.texts.pop((node, name), None)

    def _session(self, node: str, name: SessionName) -> SessionText | None:
        found = [each for each in self.sessions if (each.node, each.name, each.end) == (node, name, "")]
        return found[0] if found else None

    def flush(self) -> None:
        """Let all cores send what is due."""
        for name, core in self.cores.items():
            self.perform(name, core.tick(self.now))
            for other, frame in core.take_frames(self.now):
                if (name, other) not in self.cuts:
                    self.queues.setdefault((name, other), deque()).append(frame)

    def deliver(self, pair: tuple[str, str], *, lose: bool = False) -> None:
        """Deliver the next frame from one node to another, or lose it."""
        queue = self.queues.get(pair)
        if queue:
            frame = queue.popleft()
            if not lose:
                self.perform(pair[1], self.cores[pair[1]].frame_received(pair[0], frame, self.now))

    def run(self, duration_s: float) -> None:
        """Let time pass, with everything delivered that is not cut."""
        end = self.now + duration_s
        offered = self.now
        for _ in range(MAX_STEPS):
            self.flush()
            rounds = 0
            while any(self.queues.values()):
                for pair in list(self.queues):
                    self.deliver(pair)
                self.flush()
                rounds += 1
                assert rounds < MAX_ROUNDS, "the nodes answer each other without end"
            if self.now >= end:
                return
            if self.now >= offered + 5.0:
                self.offer_all()
                offered = self.now
            due = min(core.next_deadline() for core in self.cores.values())
            self.now = min(max(due, self.now + 0.01), end)
        raise AssertionError("the nodes never come to rest")

    def check(self) -> None:
        """Assert the invariants of all nodes, and that each far end got its own session's bytes."""
        for core in self.cores.values():
            core.check()
        for (node, name), text in self.texts.items():
            labels = {
                each.label.encode()
                for each in self.sessions
                if each.name.node == node and each.node == name.node and each.name.number == -name.number
            }
            assert not text or any(
                (label * (len(text) // len(label) + 1)).startswith(text) for label in labels
            )
