"""What sessions want to hear that no request of theirs asks for: log messages and changes of resources.

Owns each session's log level and subscriptions, the levels of single calls (stateless era), what follows from
all of them for each pool (the most verbose level, the union of the URIs), and who is told of what. A
subscription is kept by server, not by pool: when a server's pool is replaced it goes along. Source: MCP
2025-11-25, server/utilities/logging, server/resources "Subscriptions".

Invariants (`check`): what was said of a pool is what sessions want of it, unless the pool is not wanted.
Knows nothing of: how an era words it, which instance logs.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_broker.core.registry.uris import parent_uris
from carpool_protocol.ids import ABSENT, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import SetLevel, SetResourceSubscriptions

LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""The levels of RFC 5424, the most verbose first."""

MAX_SUBSCRIPTIONS: Final = 8192
"""The greatest number of resources of one session: the supervisor is told all of them with each change."""

ScopeOf = Callable[[SessionId], Scope]
MayRead = Callable[[SessionId, ScopeEntry, str], bool]


class SubscriptionTable:
    """The levels and subscriptions of all sessions. `scope_of` gives the scope in force for a session;
    `may_read` tells whether it may still read this URI of the server.
    """

    def __init__(self, scope_of: ScopeOf, may_read: MayRead) -> None:
        self._scope_of = scope_of
        self._may_read = may_read
        self._levels: dict[SessionId, int] = {}
        self._subscriptions: dict[SessionId, dict[tuple[ServerName, str], dict[RawJson, str]]] = {}
        """By server and the server's own URI: the holders within the session (the id of a listen; ABSENT is
        the session itself), each with the URI as it was spelled there.
        """
        self._session_level_base: dict[PoolKey, int] = {}
        """The level that sessions want of each pool, as last told."""
        self._calls: dict[PoolKey, Counter[int]] = {}
        """Open calls that want log messages (stateless era), by pool and level."""
        self.is_stale = False
        """True if the supervisor may have to be told of changes."""
        self._sent_levels: dict[PoolKey, str] = {}
        self._sent_uris: dict[PoolKey, tuple[str, ...]] = {}

    def set_level(self, session: SessionId, level: str) -> bool:
        """Set the level of a session. Returns False for a word that is no level."""
        if level not in LEVELS:
            return False
        self._levels[session] = LEVELS.index(level)
        self.is_stale = True
        return True

    def has_room(self, session: SessionId, *, besides: int = 0) -> bool:
        """True if the session may subscribe to one resource more. `besides` counts those that it has
        elsewhere.
        """
        return len(self._subscriptions.get(session, ())) + besides < MAX_SUBSCRIPTIONS

    def subscribe(
        self, session: SessionId, server: ServerName, uri: str, spelled: str, holder: RawJson = ABSENT
    ) -> None:
        """Subscribe the session to this resource. `holder` is the listen that asks for it."""
        held = self._subscriptions.setdefault(session, {}).setdefault((server, uri), {})
        self.is_stale = self.is_stale or not held
        held[holder] = spelled

    def unsubscribe(self, session: SessionId, server: ServerName, uri: str, holder: RawJson = ABSENT) -> None:
        """Unsubscribe; nothing happens if it was not subscribed."""
        watched = self._subscriptions.get(session, {})
        held = watched.get((server, uri))
        if held is None or held.pop(holder, None) is None or held:
            return
        del watched[server, uri]
        self.is_stale = True

    def subscribed_spelling(
        self, session: SessionId, server: ServerName, uri: str, holder: RawJson
    ) -> str | None:
        """Return how the URI was spelled there; None if this holder is not subscribed."""
        return self._subscriptions.get(session, {}).get((server, uri), {}).get(holder)

    def subscriptions_of(self, session: SessionId) -> list[tuple[ServerName, str, RawJson, str]]:
        """Return its subscriptions: server, the server's own URI, the listen, the URI as it was spelled."""
        watched = self._subscriptions.get(session, {})
        return [
            (server, uri, holder, spelled)
            for (server, uri), held in watched.items()
            for holder, spelled in held.items()
        ]

    def holders(self, session: SessionId) -> set[RawJson]:
        """Return the listens of this session that have a subscription."""
        watched = self._subscriptions.get(session, {})
        return {holder for held in watched.values() for holder in held if holder}

    def count_call(self, key: PoolKey, level: str, *, on: bool) -> SetLevel | None:
        """Count a call that wants log messages, when it begins or ends. Returns what the supervisor must be
        told, which counts as told.
        """
        counts = self._calls.setdefault(key, Counter())
        counts[LEVELS.index(level)] += 1 if on else -1
        counts += Counter()  # drops what is zero
        if not counts:
            del self._calls[key]
        said = self._level_of(key, self._session_level_base.get(key))
        if self._sent_levels.get(key, "") == said:
            return None
        self._sent_levels[key] = said
        return SetLevel(key, said)

    def session_closed(self, session: SessionId) -> None:
        """The session has closed."""
        self._levels.pop(session, None)
        self._subscriptions.pop(session, None)
        self.is_stale = True

    def mark_unsent(self, concerns: Callable[[PoolKey], bool]) -> None:
        """The supervisor of these pools knows nothing of this: all must be sent again."""
        self._sent_levels = {key: level for key, level in self._sent_levels.items() if not concerns(key)}
        self._sent_uris = {key: uris for key, uris in self._sent_uris.items() if not concerns(key)}
        self.is_stale = True

    def take_changes(self) -> Iterator[SetLevel | SetResourceSubscriptions]:
        """Return what the supervisor must be told, in a stable order; it counts as told."""
        self.is_stale = False
        levels, uris = self._wanted_levels(), self._wanted_uris()
        for key in sorted(levels.keys() | self._sent_levels.keys()):
            level = levels.get(key, "")
            if self._sent_levels.get(key, "") != level:
                yield SetLevel(key, level)
        for key in sorted(uris.keys() | self._sent_uris.keys()):
            if self._sent_uris.get(key, ()) != uris.get(key, ()):
                yield SetResourceSubscriptions(key, list(uris.get(key, ())))
        self._sent_levels, self._sent_uris = levels, uris

    def wants_log(self, session: SessionId, level: str) -> bool:
        """True if a log message of this level is for this session. An unknown level counts as the highest."""
        least = self._levels.get(session)
        return least is not None and rank(level) >= least

    def subscribers(self, key: PoolKey, uri: str) -> Iterator[tuple[SessionId, RawJson, str, bool]]:
        """Return the subscribers of this resource, or of what it is a part of: session, listen, the URI as
        the agent spelled it, and whether that is the very resource.
        """
        parts = None
        for session, watched in self._subscriptions.items():
            scope = self._scope_of(session)
            server = scope.server_of(key)
            entry = None if server is None else scope.entry_of(server)
            if server is None or entry is None or not self._may_read(session, entry, uri):
                continue
            told = watched.get((server, uri), {})
            for holder, spelled in told.items():
                yield session, holder, spelled, True
            parts = parts if parts is not None else list(parent_uris(uri))
            inexact = {holder for part in parts for holder in watched.get((server, part), ())}
            for holder in sorted(inexact - told.keys()):
                yield session, holder, uri, False

    def _wanted_levels(self) -> dict[PoolKey, str]:
        lowest: dict[PoolKey, int] = {}
        for session, level in self._levels.items():
            for entry in self._scope_of(session).servers:
                lowest[entry.key] = min(level, lowest.get(entry.key, level))
        self._session_level_base = lowest
        return {key: self._level_of(key, lowest.get(key)) for key in lowest.keys() | self._calls.keys()}

    def _level_of(self, key: PoolKey, of_sessions: int | None) -> str:
        """Return the most verbose level that sessions and open calls want; empty if none is wanted."""
        of_calls = min(self._calls.get(key, ()), default=None)
        wanted = [level for level in (of_sessions, of_calls) if level is not None]
        return LEVELS[min(wanted)] if wanted else ""

    def _wanted_uris(self) -> dict[PoolKey, tuple[str, ...]]:
        found: dict[PoolKey, set[str]] = {}
        for session, watched in self._subscriptions.items():
            scope = self._scope_of(session)
            entries = {entry.server: entry for entry in scope.servers}
            for server, uri in watched:
                if server in entries and scope.permits("resource", entries[server], uri):
                    found.setdefault(entries[server].key, set()).add(uri)
        return {key: tuple(sorted(uris)) for key, uris in found.items()}

    def check(self, sessions: Mapping[SessionId, object]) -> None:
        """Assert every invariant."""
        assert self._levels.keys() <= sessions.keys(), "a level of nobody"
        assert self._subscriptions.keys() <= sessions.keys(), "a subscription of nobody"


def rank(level: str) -> int:
    """Return the rank of a level, greater for what matters more. An unknown level counts as the highest."""
    return LEVELS.index(level) if level in LEVELS else len(LEVELS)
