"""The sessions of this machine's agents at other nodes, and of other nodes' agents here: their near ends.

Owns the table of near ends, which instance of which supervisor a session stands for, which session of the
broker belongs to which session of another node's agent, and what the core asks to be done at near ends. What
an end is made of comes from outside (`NearEndMaker`).

Pure. Knows nothing of: sockets and pipes, links, files, offers.
"""

from collections.abc import Callable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from carpool.cluster.core.node import NodeCore, NodeEffect, NoNodeError
from carpool.cluster.core.sessions import (
    MAX_SESSIONS,
    EndSession,
    OpenAtBroker,
    PassBytes,
    ReadOn,
    SessionName,
)

_DRAINING = "the node is draining"
_LEAVING = "the node is leaving the cluster"
_FULL = "the node has all the sessions of other nodes that it has descriptors for"
MAX_REPORTS: Final = 200
"""The most different reasons for refused and ended sessions that the log has."""
MAX_ENDED: Final = 1000
"""The most sessions of other nodes' agents that are known for stories after their end."""


class NearEnd(Protocol):
    """One end of a session on this machine."""

    @property
    def session(self) -> str:
        """The public id of a session at the broker; empty: none has admitted it, or it is an instance's."""

    def pass_bytes(self, data: bytes) -> None:
        """Pass bytes of the other node on."""

    def read_on(self) -> None:
        """The other node has room again."""

    def end(self, text: str) -> None:
        """The session is over."""


class NearEndEvents(Struct, frozen=True):
    """The functions that an end calls."""

    room_bytes: Callable[[], int]
    """How many bytes the other node has room for."""
    send: Callable[[bytes], None]
    passed: Callable[[int], None]
    """Called with the number of bytes of the other node that were passed on."""
    ended: Callable[[str], None]
    """This end is gone, and why; empty: in the ordinary way."""


class SessionAsker(Protocol):
    """A supervisor of this machine. Two of them are never equal."""

    def tell(self, answer: dict[str, object]) -> None:
        """Answer a request, as `carpool_supervisor.spawn.node_sessions` describes."""


class SessionRefusal(NamedTuple):
    """The reason why another node gets no session."""

    text: str
    """Empty: it gets one."""
    is_final: bool = False
    """It gets none until somebody changes something."""


class _Instance(NamedTuple):
    supervisor: SessionAsker
    number: int
    node: str
    """As it was asked for; `ANY_NODE`: any that offers the server."""
    server: str


P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)


class NearEndMaker(Protocol[P_contra]):
    """Makes near ends. `pipes`: the pipes of an instance, as its supervisor gave them."""

    def open_pipes(self, pipes: P_contra, events: NearEndEvents) -> NearEnd:
        """Return the end at these pipes, which closes them."""

    def close_pipes(self, pipes: P_contra) -> None:
        """Close the pipes of an instance that gets no session."""

    def open_at_broker(self, node: str, server: str, events: NearEndEvents) -> NearEnd:
        """Return a session at this machine's broker of an agent of that node, for one server."""


class LocalSessions(Generic[P]):
    """The near ends of all sessions of this node."""

    def __init__(
        self,
        core: NodeCore,
        maker: NearEndMaker[P],
        *,
        refusal: Callable[[str], SessionRefusal],
        flush_soon: Callable[[], None],
        log: Callable[[str, str], None],
        max_served: int = MAX_SESSIONS,
    ) -> None:
        """`refusal`: why a server is not offered to other nodes. `flush_soon`: sends what
        follows. `log`: takes a text and its level. `max_served`: the most sessions of other nodes' agents.
        """
        self._core = core
        self._maker = maker
        self._refusal = refusal
        self._flush_soon = flush_soon
        self._log = log
        self._ends: dict[SessionName, NearEnd] = {}
        self._max_served = max_served
        self._served = 0
        """How many of them are sessions of other nodes' agents."""
        self._told: set[tuple[str, str]] = set()
        """Nodes with the reasons for which they were refused or lost a session, as the log has them."""
        self._asked: dict[tuple[SessionAsker, int], SessionName] = {}
        """The sessions that stand for instances, by supervisor and instance."""
        self._instances: dict[SessionName, _Instance] = {}
        self._ended: dict[SessionName, str] = {}
        """The broker's ids of sessions that have ended, the oldest first."""

    def __len__(self) -> int:
        return len(self._ends)

    def broker_session(self, name: SessionName) -> str:
        """Return the id of this node's broker for a session that another node's agent has here, or had.
        Empty: there was none. So a node learns of its own sessions only: the link says which node asks.
        """
        end = self._ends.get(name)
        return self._ended.get(name, "") if end is None else end.session

    def open_for(self, supervisor: SessionAsker, instance: int, node: str, server: str, pipes: P) -> None:
        """Open a session for an instance of a supervisor."""
        try:
            name = self._core.open_session(node, server)
        except NoNodeError as error:
            self._maker.close_pipes(pipes)
            supervisor.tell({"failed": instance, "text": str(error), "is_final": error.is_final})
            return
        self._asked[supervisor, instance] = name
        self._instances[name] = _Instance(supervisor, instance, node, server)
        supervisor.tell({"opened": instance, "node": name.node, "session": name.number})
        self._ends[name] = self._maker.open_pipes(pipes, self._events_of(name))
        self._flush_soon()

    def end_instance(self, supervisor: SessionAsker, instance: int) -> None:
        """End the session of an instance of a supervisor."""
        name = self._asked.get((supervisor, instance))
        if name is not None:
            self._core.close(name)
            self._end(name, "", has_ended=False)
            self._flush_soon()

    def supervisor_gone(self, supervisor: SessionAsker) -> None:
        """A supervisor has ended, and with it all of its instances."""
        for key in [key for key in self._asked if key[0] is supervisor]:
            name = self._asked.pop(key)
            del self._instances[name]
            self._core.close(name)
            if (end := self._ends.pop(name, None)) is not None:
                end.end("")
        self._flush_soon()

    def perform(self, effect: NodeEffect) -> None:
        """Do what the core asks for at a near end."""
        match effect:
            case PassBytes():
                if (end := self._ends.get(effect.session)) is not None:
                    end.pass_bytes(effect.data)
            case ReadOn():
                if (end := self._ends.get(effect.session)) is not None:
                    end.read_on()
            case OpenAtBroker():
                self._open_at_broker(effect.session, effect.server)
            case EndSession():
                self._end(effect.session, effect.text, has_ended=False, is_final=effect.is_final)
            case _:
                pass

    def close(self) -> None:
        """End all sessions: the node leaves the cluster."""
        for name, end in list(self._ends.items()):
            self._core.close(name, _LEAVING)
            end.end(_LEAVING)
        self._ends.clear()

    def _open_at_broker(self, name: SessionName, server: str) -> None:
        why, is_final = SessionRefusal(_DRAINING) if self._core.is_draining else self._refusal(server)
        why = why or (_FULL if self._served >= self._max_served else "")
        if why:
            text = f"node {name.node} asked for {server}, and was refused: {why}"
            self._log_once(name.node, why, text, "warning")
            self._core.close(name, why, is_final=is_final)
            return
        self._served += 1
        self._ends[name] = self._maker.open_at_broker(name.node, server, self._events_of(name))

    def _log_once(self, node: str, why: str, text: str, level: str) -> None:
        """Log it, unless the log has this reason for this node: the node may ask again and again."""
        if (node, why) not in self._told and len(self._told) < MAX_REPORTS:
            self._told.add((node, why))
            self._log(text, level)

    def _events_of(self, name: SessionName) -> NearEndEvents:
        def send(data: bytes) -> None:
            self._core.send(name, data)
            self._flush_soon()

        def passed(size_bytes: int) -> None:
            self._core.bytes_passed(name, size_bytes)
            self._flush_soon()

        def ended(text: str) -> None:
            if name.number < 0 and text:
                self._log_once(name.node, text, f"a session of node {name.node} ended: {text}", "info")
                text = f"node {self._core.name}: {text}"
            self._core.close(name, text)
            self._end(name, text, has_ended=True)
            self._flush_soon()

        return NearEndEvents(lambda: self._core.room_bytes(name), send, passed, ended)

    def _end(self, name: SessionName, text: str, *, has_ended: bool, is_final: bool = False) -> None:
        """The session is over. `has_ended`: its near end said so itself. `is_final`: as of `EndSession`."""
        end = self._ends.pop(name, None)
        if end is not None and name.number < 0:
            self._served -= 1
        if end is not None and end.session:
            self._ended.pop(name, None)
            self._ended[name] = end.session
            if len(self._ended) > MAX_ENDED:
                del self._ended[next(iter(self._ended))]
        if end is not None and not has_ended:
            end.end(text)
        instance = self._instances.pop(name, None)
        if instance is not None:
            del self._asked[instance[:2]]
            is_final = is_final and self._core.is_only_choice(instance.node, instance.server)
            instance.supervisor.tell({"ended": instance.number, "text": text, "is_final": is_final})

    def check(self) -> None:
        """Assert the invariants: each session of an instance is known from both sides."""
        assert {name: key for key, name in self._asked.items()} == {
            name: each[:2] for name, each in self._instances.items()
        }
