"""Detached sessions: their HTTP door died, and another door may still claim them (docs/decisions/0019).

Owns how long such a session is kept, and the lines for its agent meanwhile. A door that claims one must send
its `Mcp-Session-Id` and open it in the same way. Its calls continue: by MCP a broken connection is no cancel.
Their answers have lost their exchange and are dropped.

Invariants: a session is here or on a carrier, never both; the lines kept for one are bounded, and a session
that lost a line cannot be claimed. Knows nothing of: sockets, frames, the content of lines.
"""

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from carpool_protocol.carrier.streams import OpenStream
from carpool_protocol.ids import CallId, SessionId

DETACHED_TIMEOUT_S: Final = 30.0
MAX_HELD_BYTES: Final = 1024 * 1024
"""Maximum number of bytes of kept lines of one session."""


class DetachedOutput:
    """Lines for one agent while it has no door."""

    __slots__ = ("_written", "lines", "size_bytes")

    def __init__(self, written: Callable[[CallId], None]) -> None:
        self._written = written
        self.lines: list[bytes] = []
        self.size_bytes = 0

    def write(self, line: bytes, call: CallId, *, answers: bool) -> None:
        """Keep a line for the agent. An answer is dropped."""
        if not answers:
            self.size_bytes += len(line)
            if not self.is_full:
                self.lines.append(line)
        elif call:
            self._written(call)

    @property
    def is_full(self) -> bool:
        """True if a line was dropped for lack of room."""
        return self.size_bytes > MAX_HELD_BYTES


class DetachedSession(Protocol):
    """A session without a door (`streams.SessionStream`)."""

    id: SessionId
    word: OpenStream
    held: DetachedOutput | None


S = TypeVar("S", bound=DetachedSession)


class DetachedSessions(Generic[S]):
    """All detached sessions by their `Mcp-Session-Id`."""

    def __init__(self, written: Callable[[CallId], None]) -> None:
        """`written`: called for an answer that the record need not keep any more."""
        self._written = written
        self._sessions: dict[str, S] = {}
        self._until: dict[str, float] = {}
        """The end of the waiting time, counted from the first check after the door died."""

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, public: str, session: S) -> None:
        """Keep a session whose door has died."""
        session.held = DetachedOutput(self._written)
        self._sessions[public] = session

    def claim(self, public: str, opening: OpenStream) -> S | None:
        """Hand a session over to a door that opens it with `opening`. None: there is none that fits."""
        session = self._sessions.get(public)
        if session is None or _claim_terms(session.word) != _claim_terms(opening):
            return None
        if session.held is None or session.held.is_full:
            return None
        del self._sessions[public]
        self._until.pop(public, None)
        return session

    def remove(self, session: S) -> None:
        """Forget a session that has ended before a door claimed it."""
        for public in [public for public, each in self._sessions.items() if each is session]:
            del self._sessions[public]
            self._until.pop(public, None)

    def expired(self, now: float) -> list[S]:
        """Remove and return the sessions that were not claimed in time. Called at the broker's pace."""
        late = [
            public
            for public in self._sessions
            if self._until.setdefault(public, now + DETACHED_TIMEOUT_S) <= now
        ]
        for public in late:
            del self._until[public]
        return [self._sessions.pop(public) for public in late]


def _claim_terms(opening: OpenStream) -> tuple[str, ...]:
    place = (opening.workspace, *opening.workspaces)
    return (opening.kind, opening.principal, opening.server, opening.profile, *place)
