"""What sessions want to hear that no request of theirs asks for: log messages and changes of resources.

Owns each session's log level and subscriptions, the levels of single calls (stateless era), what follows from
all of them for each pool (the most verbose level, the union of the URIs), and who is told of what. A
subscription is kept by server, not by pool: when a server's pool is replaced it goes along. Source: MCP
2025-11-25, server/utilities/logging, server/resources "Subscriptions".

The supervisor gets all subscriptions of a pool once and then only the URIs that were added or removed. All
subscriptions are read again only after scopes have changed, and for a new supervisor. The ends of
subscriptions wait, because no agent hears of what has ended: the supervisor gets them once in `ENDS_PAUSE_S`,
or together with a change that cannot wait. So an agent that subscribes and unsubscribes in a loop costs the
supervisor little.

Invariants (`check`): what was said of a pool is what sessions want of it, unless that is marked as stale.
Knows nothing of: how an era words it, which instance logs.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from carpool_broker.core.limits.memory_budgets import subscription_bytes
from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_broker.core.registry.uris import parent_uris
from carpool_protocol.ids import ABSENT, PoolKey, RawJson, ServerName, SessionId, server_of_pool
from carpool_protocol.link.messages import ChangeResourceSubscriptions, SetLevel, SetResourceSubscriptions
from carpool_protocol.wire.log_levels import LEVELS, rank
from carpool_protocol.wire.uri_normalization import MAX_CHARS

MAX_SUBSCRIPTIONS: Final = 8192
"""The greatest number of resources of one session."""

ENDS: Final = "ends"
"""The key of the timer until supervisors are told again that subscriptions have ended."""
ENDS_PAUSE_S: Final = 1.0
"""Ends of subscriptions that come so soon after others wait: agents may subscribe again meanwhile."""

Resource = tuple[ServerName, str]
"""A server, and its own URI."""
ScopeOf = Callable[[SessionId], Scope]
MayRead = Callable[[SessionId, ScopeEntry, str], bool]
CountBytes = Callable[[SessionId, int], None]
OwnerOf = Callable[[SessionId], str]


_NOBODY: Final[Mapping[RawJson, str]] = {}


class SubscriptionTable:
    """The levels and subscriptions of all sessions. `scope_of` gives the scope in force for a session;
    `may_read` tells whether it may still read this URI of the server. `count_bytes` counts what it is itself
    subscribed to, until it closes; what its listens name is counted with them (`listen_streams`). `owner_of`
    gives the token of a session, which never changes: empty for all sessions without one.
    """

    def __init__(
        self, scope_of: ScopeOf, may_read: MayRead, count_bytes: CountBytes, owner_of: OwnerOf
    ) -> None:
        self._scope_of = scope_of
        self._may_read = may_read
        self._count_bytes = count_bytes
        self._owner_of = owner_of
        self._levels: dict[SessionId, int] = {}
        self._subscriptions: dict[SessionId, dict[Resource, dict[RawJson, str]]] = {}
        """By resource: the holders within the session (the id of a listen; ABSENT is
        the session itself), each with the URI as it was spelled there.
        """
        self._subscribers: dict[Resource, dict[str, dict[SessionId, None]]] = {}
        """The sessions with a subscription to it, by owner and in order."""
        self._counted_levels: dict[SessionId, tuple[int, Scope]] = {}
        """The level of each session, and the scope in whose pools it is counted."""
        self._session_levels: dict[PoolKey, Counter[int]] = {}
        """The number of sessions that want each level of a pool."""
        self._calls: dict[PoolKey, Counter[int]] = {}
        """Open calls that want log messages (stateless era), by pool and level."""
        self.is_stale = False
        """True if the supervisor may have to be told of changes."""
        self.is_urgent = False
        """True if some of them cannot wait: all but the ends of subscriptions, of which no agent hears."""
        self.has_ends = False
        """True if subscriptions have ended since the supervisor was told last."""
        self._changed_levels: set[SessionId] = set()
        """The sessions that may want another level, or want it of other pools."""
        self._changed: dict[Resource, set[SessionId]] = {}
        """The resources that may be wanted of other pools than was sent, each with its new subscribers."""
        self._are_all_changed = False
        self._sent_levels: dict[PoolKey, str] = {}
        self._sent_pools: dict[Resource, tuple[PoolKey, ...]] = {}
        """The pools whose supervisors know of the subscription."""
        self._sent_counts: Counter[PoolKey] = Counter()
        """The number of subscriptions of each pool that were sent; no entry: none."""

    def set_level(self, session: SessionId, level: str) -> bool:
        """Set the level of a session. Returns False for a word that is no level."""
        if level not in LEVELS:
            return False
        self._levels[session] = LEVELS.index(level)
        self._changed_levels.add(session)
        self.is_stale = self.is_urgent = True
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
        if not held:
            owners = self._subscribers.setdefault((server, uri), {})
            owners.setdefault(self._owner_of(session), {})[session] = None
            self._changed.setdefault((server, uri), set()).add(session)
            self.is_stale = self.is_urgent = True
        if not holder:
            self._count_bytes(session, subscription_bytes([spelled]) - self._own_bytes(held))
        held[holder] = spelled

    def unsubscribe(self, session: SessionId, server: ServerName, uri: str, holder: RawJson = ABSENT) -> None:
        """Unsubscribe; nothing happens if it was not subscribed."""
        watched = self._subscriptions.get(session, {})
        held = watched.get((server, uri))
        if held is None or holder not in held:
            return
        if not holder:
            self._count_bytes(session, -self._own_bytes(held))
        del held[holder]
        if held:
            return
        del watched[server, uri]
        self._subscriber_left(session, (server, uri))

    def _subscriber_left(self, session: SessionId, resource: Resource) -> None:
        owners, owner = self._subscribers[resource], self._owner_of(session)
        del owners[owner][session]
        if not owners[owner]:
            del owners[owner]
        if not owners:
            del self._subscribers[resource]
        self._changed.setdefault(resource, set()).discard(session)
        self.is_stale = self.has_ends = True

    def _own_bytes(self, held: Mapping[RawJson, str]) -> int:
        return subscription_bytes([held[ABSENT]]) if ABSENT in held else 0

    def own_bytes(self, session: SessionId) -> int:
        """Return what the session is itself subscribed to."""
        return sum(map(self._own_bytes, self._subscriptions.get(session, {}).values()))

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
        said = self._level_of(key)
        if self._sent_levels.get(key, "") == said:
            return None
        self._sent_levels[key] = said
        return SetLevel(key, said)

    def session_closed(self, session: SessionId) -> None:
        """The session has closed."""
        if self._levels.pop(session, None) is not None:
            self._changed_levels.add(session)
            self.is_stale = self.is_urgent = True
        for resource in self._subscriptions.pop(session, ()):
            self._subscriber_left(session, resource)

    def scopes_changed(self) -> None:
        """Other scopes are in force: what sessions want may be of other pools."""
        self.is_stale = self.is_urgent = self._are_all_changed = True

    def mark_unsent(self, concerns: Callable[[PoolKey], bool]) -> None:
        """The supervisor of these pools knows nothing of this: all must be sent again."""
        self._sent_levels = {key: level for key, level in self._sent_levels.items() if not concerns(key)}
        unknown = {key for key in self._sent_counts if concerns(key)}
        if unknown:
            for key in unknown:
                del self._sent_counts[key]
            kept = {
                resource: tuple(key for key in keys if key not in unknown)
                for resource, keys in self._sent_pools.items()
            }
            self._sent_pools = {resource: keys for resource, keys in kept.items() if keys}
        self.scopes_changed()

    def take_changes(self) -> Iterator[SetLevel | SetResourceSubscriptions | ChangeResourceSubscriptions]:
        """Return what the supervisor must be told, in a stable order; it counts as told."""
        self.is_stale = self.is_urgent = self.has_ends = False
        if self._changed_levels or self._are_all_changed:
            yield from self._take_level_changes()
        if self._are_all_changed:
            found = self._subscribers.keys() | self._sent_pools.keys()
            wanted = {resource: self._wanting_pools(resource) for resource in found}
        else:
            wanted = {it: self._still_wanting_pools(it, added) for it, added in self._changed.items()}
        self._changed, self._are_all_changed = {}, False
        if wanted:
            yield from self._take_resource_changes(wanted)

    def _take_level_changes(self) -> Iterator[SetLevel]:
        changed, self._changed_levels = self._changed_levels, set()
        touched: set[PoolKey] = set()
        if self._are_all_changed:
            changed = changed | self._levels.keys()
            touched.update(self._sent_levels, self._calls, self._session_levels)
        for session in changed:
            touched |= self._count_level(session)
        for key in sorted(touched):
            level = self._level_of(key)
            if self._sent_levels.get(key, "") != level:
                self._sent_levels[key] = level
                yield SetLevel(key, level)
            if not level:
                self._sent_levels.pop(key, None)

    def _take_resource_changes(
        self, wanted: Mapping[Resource, tuple[PoolKey, ...]]
    ) -> Iterator[SetResourceSubscriptions | ChangeResourceSubscriptions]:
        add: dict[PoolKey, list[str]] = {}
        drop: dict[PoolKey, list[str]] = {}
        for resource, now in wanted.items():
            before = self._sent_pools.get(resource, ())
            if before == now:
                continue
            for key in now:
                if key not in before:
                    add.setdefault(key, []).append(resource[1])
            for key in before:
                if key not in now:
                    drop.setdefault(key, []).append(resource[1])
            if now:
                self._sent_pools[resource] = now
            else:
                del self._sent_pools[resource]
        for key in sorted(add.keys() | drop.keys()):
            added, dropped = sorted(add.get(key, ())), sorted(drop.get(key, ()))
            before_count = self._sent_counts[key]
            self._sent_counts[key] = before_count + len(added) - len(dropped)
            if not self._sent_counts[key]:
                del self._sent_counts[key]
                yield SetResourceSubscriptions(key, [])
            elif not before_count:
                yield SetResourceSubscriptions(key, added)
            else:
                yield ChangeResourceSubscriptions(key, added, dropped)

    def wants_log(self, session: SessionId, level: str) -> bool:
        """True if a log message of this level is for this session. An unknown level counts as the highest."""
        least = self._levels.get(session)
        return least is not None and rank(level) >= least

    def subscribed(self, key: PoolKey, uri: str) -> list[Resource]:
        """Return those of this resource and what it is a part of that somebody is subscribed to. Not all of
        their sessions need have this pool, or be allowed to read the resource.
        """
        if len(uri) > MAX_CHARS:  # nobody can subscribe to it
            return []
        server, subscribers = server_of_pool(key), self._subscribers
        found = [(server, each) for each in parent_uris(uri) if (server, each) in subscribers]
        return [(server, uri), *found] if (server, uri) in subscribers else found

    def has_few_sessions(self, resources: Iterable[Resource], few: int) -> bool:
        """True if all of these together have so many sessions subscribed at most."""
        count = 0
        for resource in resources:
            count += sum(map(len, self._subscribers[resource].values()))
        return count <= few

    def owners(self, resource: Resource) -> Iterable[str]:
        """Return whose sessions are subscribed to this very resource."""
        return self._subscribers[resource].keys()

    def subscribers(
        self, key: PoolKey, uri: str, subscribed: Sequence[Resource], owner: str | None = None
    ) -> Iterator[tuple[SessionId, Mapping[RawJson, tuple[str, str]]]]:
        """Return each session (of this owner) that is subscribed to this resource, or to what it is a part
        of, with its holders. Each holder has the URI that it is subscribed to and its own spelling of that. A
        session that may not be told has none. `subscribed`: what the method of this name returns now. Between
        two sessions subscriptions may change.
        """
        server = server_of_pool(key)
        owners = map(self._subscribers.__getitem__, subscribed)
        if owner is None:
            found = chain.from_iterable(chain.from_iterable(each.values() for each in owners))
        else:
            found = chain.from_iterable(each.get(owner, ()) for each in owners)
        for session in dict.fromkeys(found):
            holders: dict[RawJson, tuple[str, str]] = {}
            watched = self._subscriptions.get(session)
            if watched:
                entry = self._scope_of(session).entry_of(server)
                if entry is not None and entry.key == key and self._may_read(session, entry, uri):
                    for resource in subscribed:
                        for holder, spelled in watched.get(resource, _NOBODY).items():
                            if holder not in holders:
                                holders[holder] = (resource[1], spelled)
            yield session, holders

    def _count_level(self, session: SessionId) -> set[PoolKey]:
        """Count the level of this session as it is now. Returns the pools that may have another one."""
        touched: set[PoolKey] = set()
        level = self._levels.get(session)
        before = self._counted_levels.pop(session, None)
        if before is not None:
            for entry in before[1].servers:
                touched.add(entry.key)
                counts = self._session_levels[entry.key]
                counts[before[0]] -= 1
                if not counts[before[0]]:
                    del counts[before[0]]
                if not counts:
                    del self._session_levels[entry.key]
        if level is not None:
            scope = self._scope_of(session)
            self._counted_levels[session] = (level, scope)
            for entry in scope.servers:
                touched.add(entry.key)
                self._session_levels.setdefault(entry.key, Counter())[level] += 1
        return touched

    def _level_of(self, key: PoolKey) -> str:
        """Return the most verbose level that sessions and open calls want; empty if none is wanted."""
        wanted = (*self._session_levels.get(key, ()), *self._calls.get(key, ()))
        return LEVELS[min(wanted)] if wanted else ""

    def _wanting_pools(self, resource: Resource) -> tuple[PoolKey, ...]:
        """Return the pools whose server sessions want to hear of this resource, in order."""
        found: set[PoolKey] = set()
        for session in self._sessions_of(resource):
            self._add_wanting_pool(session, resource, found)
        return tuple(sorted(found))

    def _sessions_of(self, resource: Resource) -> Iterator[SessionId]:
        return chain.from_iterable(self._subscribers.get(resource, {}).values())

    def _still_wanting_pools(self, resource: Resource, added: Iterable[SessionId]) -> tuple[PoolKey, ...]:
        """Return the wanting pools where `added` are the only subscribers that came after the pools were last
        sent. The search ends as soon as it has found those pools again.
        """
        sent, found = set(self._sent_pools.get(resource, ())), set[PoolKey]()
        for session in added:
            self._add_wanting_pool(session, resource, found)
        for session in self._sessions_of(resource):
            if sent <= found:
                break
            self._add_wanting_pool(session, resource, found)
        return tuple(sorted(found))

    def _add_wanting_pool(self, session: SessionId, resource: Resource, found: set[PoolKey]) -> None:
        server, uri = resource
        scope = self._scope_of(session)
        entry = scope.entry_of(server)
        if entry is not None and entry.key not in found and scope.permits("resource", entry, uri):
            found.add(entry.key)

    def check(self, sessions: Mapping[SessionId, object]) -> None:
        """Assert every invariant."""
        assert self._levels.keys() <= sessions.keys(), "a level of nobody"
        assert self._subscriptions.keys() <= sessions.keys(), "a subscription of nobody"
        pairs = {(session, resource) for session, held in self._subscriptions.items() for resource in held}
        assert pairs == {(session, it) for it in self._subscribers for session in self._sessions_of(it)}
        for owners in self._subscribers.values():
            for owner, held in owners.items():
                assert {self._owner_of(session) for session in held} == {owner}
        levels = {
            session: (level, self._counted_levels[session][1])
            for session, level in self._levels.items()
            if session not in self._changed_levels
        }
        assert levels.items() <= self._counted_levels.items()
        assert self._session_levels == self._counted_pools()
        if not self.is_stale:
            assert levels == {it: (level, self._scope_of(it)) for it, level in self._levels.items()}
            wanted = {it: self._wanting_pools(it) for it in self._subscribers}
            assert self._sent_pools == {it: keys for it, keys in wanted.items() if keys}
        assert self._sent_counts == Counter(chain.from_iterable(self._sent_pools.values()))

    def _counted_pools(self) -> dict[PoolKey, Counter[int]]:
        found: dict[PoolKey, Counter[int]] = {}
        for level, scope in self._counted_levels.values():
            for entry in scope.servers:
                found.setdefault(entry.key, Counter())[level] += 1
        return found
