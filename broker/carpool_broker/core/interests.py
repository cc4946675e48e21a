"""What sessions want to hear that no request of theirs asks for: log messages and changes of resources.

Owns each session's log level and subscriptions, what follows from all of them for each pool (the most
verbose level, the union of the URIs), and who is told of what. A subscription is kept by server, not by
pool: when a server's pool is replaced it goes along. Source: MCP 2025-11-25, server/utilities/logging,
server/resources "Subscriptions".

Invariants (`check`): what was said of a pool is what sessions want of it, unless the pool is not wanted.
Knows nothing of: how an era words it, which instance logs.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from carpool_broker.core.resources import ancestors
from carpool_broker.core.scope import Scope
from carpool_protocol.ids import PoolKey, ServerName, SessionId
from carpool_protocol.messages import SetLevel, Watch

LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""RFC 5424's, the most verbose first."""

ScopeOf = Callable[[SessionId], Scope]


class Interests:
    """Levels and subscriptions of all sessions. `scope_of` is the scope in force for a session."""

    def __init__(self, scope_of: ScopeOf) -> None:
        self._scope_of = scope_of
        self._levels: dict[SessionId, int] = {}
        self._watched: dict[SessionId, dict[tuple[ServerName, str], str]] = {}
        """By server and the server's own URI: the URI as the agent spelled it."""
        self._said_levels: dict[PoolKey, str] = {}
        self._said_uris: dict[PoolKey, tuple[str, ...]] = {}

    def set_level(self, session: SessionId, level: str) -> bool:
        """False for a word that is no level."""
        if level not in LEVELS:
            return False
        self._levels[session] = LEVELS.index(level)
        return True

    def subscribe(self, session: SessionId, server: ServerName, uri: str, spelled: str) -> None:
        """The session wants to hear of changes of this resource."""
        self._watched.setdefault(session, {})[server, uri] = spelled

    def unsubscribe(self, session: SessionId, server: ServerName, uri: str) -> None:
        """It no longer does; nothing happens when it never did."""
        self._watched.get(session, {}).pop((server, uri), None)

    def forget(self, session: SessionId) -> None:
        """The session is gone."""
        self._levels.pop(session, None)
        self._watched.pop(session, None)

    def restart(self) -> None:
        """A supervisor that knows nothing came: everything is to be said again."""
        self._said_levels = {}
        self._said_uris = {}

    def news(self) -> Iterator[SetLevel | Watch]:
        """What the supervisor is to be told, in a stable order; it counts as said."""
        levels, uris = self._wanted_levels(), self._wanted_uris()
        for key in sorted(levels.keys() | self._said_levels.keys()):
            level = levels.get(key, "")
            if self._said_levels.get(key, "") != level:
                yield SetLevel(key, level)
        for key in sorted(uris.keys() | self._said_uris.keys()):
            if self._said_uris.get(key, ()) != uris.get(key, ()):
                yield Watch(key, list(uris.get(key, ())))
        self._said_levels, self._said_uris = levels, uris

    def wants_log(self, session: SessionId, level: str) -> bool:
        """Whether a log message of this level is for this session; an unknown level counts as the highest."""
        least = self._levels.get(session)
        return least is not None and (LEVELS.index(level) if level in LEVELS else len(LEVELS)) >= least

    def hearers(self, key: PoolKey, uri: str) -> Iterator[tuple[SessionId, str, bool]]:
        """Who subscribed to this resource or to what it is a part of: the URI as the agent spelled it, and
        whether that is the very resource (else the changed one is only a part of it).
        """
        for session, watched in self._watched.items():
            server = _server_of(self._scope_of(session), key)
            if server is None:
                continue
            spelled = watched.get((server, uri))
            if spelled is not None:
                yield session, spelled, True
            elif any((server, part) in watched for part in ancestors(uri)):
                yield session, uri, False

    def _wanted_levels(self) -> dict[PoolKey, str]:
        lowest: dict[PoolKey, int] = {}
        for session, level in self._levels.items():
            for entry in self._scope_of(session).servers:
                lowest[entry.key] = min(level, lowest.get(entry.key, level))
        return {key: LEVELS[level] for key, level in lowest.items()}

    def _wanted_uris(self) -> dict[PoolKey, tuple[str, ...]]:
        found: dict[PoolKey, set[str]] = {}
        for session, watched in self._watched.items():
            keys: Mapping[ServerName, PoolKey] = {e.server: e.key for e in self._scope_of(session).servers}
            for server, uri in watched:
                if server in keys:
                    found.setdefault(keys[server], set()).add(uri)
        return {key: tuple(sorted(uris)) for key, uris in found.items()}

    def check(self, sessions: Mapping[SessionId, object]) -> None:
        """Assert every invariant."""
        assert self._levels.keys() <= sessions.keys(), "a level of nobody"
        assert self._watched.keys() <= sessions.keys(), "a subscription of nobody"


def _server_of(scope: Scope, key: PoolKey) -> ServerName | None:
    return next((entry.server for entry in scope.servers if entry.key == key), None)
