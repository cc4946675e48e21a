"""Sessions whose door has died, until another door asks for them (docs/decisions/0019).

Owns how long such a session is kept, and what is said to its agent meanwhile. Whoever asks for one must show
its `Mcp-Session-Id` and want the same of it. What it has in flight goes on: MCP says that a connection that
broke is no cancel. The answers have lost the exchange that they belong to, and nobody gets them.

Invariants: a session is here or on a carrier, never both; what is kept for one is bounded, and one for which
more was said is not given back.
Knows nothing of: sockets, frames, what lines hold.
"""

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from carpool_protocol.carrier.streams import OpenStream
from carpool_protocol.ids import CallId, SessionId

DETACHED_TIMEOUT_S: Final = 30.0
MAX_HELD_BYTES: Final = 1024 * 1024
"""Of one session."""


class DetachedOutput:
    """What was said to one agent while it had no door."""

    __slots__ = ("_written", "lines", "size_bytes")

    def __init__(self, written: Callable[[CallId], None]) -> None:
        self._written = written
        self.lines: list[bytes] = []
        self.size_bytes = 0

    def write(self, line: bytes, call: CallId, *, answers: bool) -> None:
        """A line for the agent. An answer is for nobody."""
        if not answers:
            self.size_bytes += len(line)
            if not self.is_full:
                self.lines.append(line)
        elif call:
            self._written(call)

    @property
    def is_full(self) -> bool:
        """Something was left out."""
        return self.size_bytes > MAX_HELD_BYTES


class DetachedSession(Protocol):
    """A session without a door (`multiplexed.Stream`)."""

    id: SessionId
    word: OpenStream
    held: DetachedOutput | None


S = TypeVar("S", bound=DetachedSession)


class DetachedSessions(Generic[S]):
    """All of them, by their `Mcp-Session-Id`."""

    def __init__(self, written: Callable[[CallId], None]) -> None:
        """`written`: an answer needs to be kept no longer."""
        self._written = written
        self._sessions: dict[str, S] = {}
        self._until: dict[str, float] = {}
        """Counted from the first look after its door died."""

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, public: str, session: S) -> None:
        """Its door has died."""
        session.held = DetachedOutput(self._written)
        self._sessions[public] = session

    def claim(self, public: str, opening: OpenStream) -> S | None:
        """The session that another door asks for with `opening`. It is that door's now."""
        session = self._sessions.get(public)
        if session is None or _claim_terms(session.word) != _claim_terms(opening):
            return None
        if session.held is None or session.held.is_full:
            return None
        del self._sessions[public]
        self._until.pop(public, None)
        return session

    def expired(self, now: float) -> list[S]:
        """Those that nobody has asked for in time; they are here no longer. For every second or so."""
        late = [
            public
            for public in self._sessions
            if self._until.setdefault(public, now + DETACHED_TIMEOUT_S) <= now
        ]
        for public in late:
            del self._until[public]
        return [self._sessions.pop(public) for public in late]


def _claim_terms(opening: OpenStream) -> tuple[str, ...]:
    return (opening.kind, opening.principal, opening.server, opening.profile, opening.workspace)
