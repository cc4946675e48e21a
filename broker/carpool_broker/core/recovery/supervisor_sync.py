"""Sends each supervisor the pools, sessions, subscriptions and catalog requests that concern it.

Owns the order, for each supervisor: the wanted pools; then it sends its record (`recovery`); then the open
sessions and those whose pools have changed, their subscriptions and the catalogs that they need; then calls
are sent. Owns the pools that each supervisor was told to want, and the division of the limits on processes.
Refuses to know: what is in the record, why a pool is wanted, which supervisor runs a server (`supervisors`).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from msgspec.structs import replace

from carpool_broker.core.calls import lost_state
from carpool_broker.core.calls.call_table import CallTable
from carpool_broker.core.configuration.session_views import SessionViews
from carpool_broker.core.model.effects import AnyEffect, SendTo
from carpool_broker.core.model.events import RecordReceived, SupervisorConnected
from carpool_broker.core.model.session import Session
from carpool_broker.core.recovery.recovery import Recovery
from carpool_broker.core.registry.catalog_queue import CatalogQueue
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.requests.dispatch import RequestDispatch
from carpool_broker.core.requests.notifications import Notifications
from carpool_protocol.ids import PoolKey, SessionId, SupervisorName
from carpool_protocol.link.messages import DiscoverCatalog, OpenSessions, SessionPoolChanged, SetPools


class SupervisorSync:
    """The broker's side of the links to the supervisors."""

    def __init__(
        self,
        sessions: Mapping[SessionId, Session],
        registry: Registry,
        session_views: SessionViews,
        call_table: CallTable,
        requests: RequestDispatch,
        *,
        recovery: Recovery,
        hearing: Notifications,
        queue: CatalogQueue,
        out: Callable[[AnyEffect], None],
    ) -> None:
        self._sessions = sessions
        self._registry = registry
        self._session_views = session_views
        self._call_table = call_table
        self._requests = requests
        self._recovery = recovery
        self._emit = out
        self._hearing = hearing
        self._queue = queue
        self._links = call_table.links
        self._credit_bytes: dict[SupervisorName, int] = {}
        """The credit of links to supervisors whose record is not complete."""
        self.wanted_pools: set[PoolKey] = set()
        self._sent_pools: dict[SupervisorName, SetPools] = {}
        """The wanted pools as each supervisor knows them."""
        self._moved: dict[tuple[SessionId, PoolKey], SessionPoolChanged] = {}
        """The sessions that moved to another pool since its supervisor last took calls, by session and old
        pool.
        """

    # --- supervisors come and go -----------------------------------------------------------------------

    def supervisor_connected(self, event: SupervisorConnected) -> None:
        """A supervisor has connected. It is told the wanted pools; its record comes next."""
        name = event.supervisor
        self._forget_states(name)
        self._credit_bytes[name] = event.credit_bytes
        self._recovery.supervisor_connected(name, event.epoch)
        self._sent_pools[name] = self._part_of(self._all_wanted(), name)
        self._send_to(name, self._sent_pools[name])

    def record_received(self, event: RecordReceived, now: float) -> None:
        """A supervisor has sent a part of its record. After the last part it takes calls."""
        name = event.supervisor
        if name not in self._credit_bytes:
            return
        self._recovery.record_received(event.record, name)
        if not event.record.last:
            return
        self._links.supervisor_ready(name, self._credit_bytes.pop(name))
        self.send_pools()
        self._recovery.supervisor_greeted(name)
        self._send_sessions([name])
        for key in [key for key in self._moved if self._links.owner_of(key[1]) == name]:
            self._emit(self._moved.pop(key))
        self._recovery.record_completed(name, now)
        self.recovery_advanced()
        runs = partial(self._links.runs, name)
        self._requests.list_freshness.supervisor_connected(runs)
        self._send_subscriptions(runs)
        self._discover_catalogs()
        self._call_table.admission.send_queued_of_all(now)

    def supervisor_lost(self, name: SupervisorName) -> None:
        """This supervisor has gone."""
        self._credit_bytes.pop(name, None)
        self._recovery.supervisor_lost(name, self._session_views.states)

    def states_lost(self, name: SupervisorName) -> None:
        """Drop the states that this supervisor has reported of its pools."""
        self._forget_states(name)
        slow = self._session_views.slow
        self._session_views.slow = {key for key in slow if not self._links.runs(name, key)}

    def _forget_states(self, name: SupervisorName) -> None:
        states = self._session_views.states
        for key in [key for key in states if self._links.runs(name, key)]:
            del states[key]

    def is_linked(self) -> bool:
        """True if a supervisor is connected that takes calls."""
        return bool(self._links.ready)

    def accepts_subscriptions(self) -> bool:
        """True while subscriptions and log levels are sent to supervisors."""
        return self.is_linked() and not self._recovery.is_hushed

    def _send_to(self, name: SupervisorName, message: SetPools | OpenSessions) -> None:
        self._emit(message if self._links.is_single else SendTo(name, message))

    def _send_sessions(self, names: Iterable[SupervisorName]) -> None:
        expected = self._recovery.expected_sessions()
        for name in names:
            runs = partial(self._links.runs_server, name)
            told = lost_state.report_sessions(self._sessions.values(), expected, runs)
            self._send_to(name, told)

    def recovery_advanced(self) -> None:
        """Tell supervisors what recovery has decided: subscriptions, then wanted pools and sessions."""
        recovery = self._recovery
        if recovery.is_grace_over:
            recovery.is_grace_over = False
            self._send_subscriptions(lambda _: True)
        if recovery.are_sessions_known:
            recovery.are_sessions_known = False
            if self.is_linked():
                self.send_pools("no agent that uses it came back after the death of the broker")
                self._send_sessions(self._links.ready)

    def _send_subscriptions(self, concerns: Callable[[PoolKey], bool]) -> None:
        """Send all subscriptions at these pools. Their supervisor then tells what has changed while no broker
        was there.
        """
        self._requests.subscriptions.mark_unsent(concerns)
        self.say_interests()

    def say_interests(self) -> None:
        """Send the log levels and subscriptions that supervisors do not know yet."""
        if self.accepts_subscriptions():
            for news in self._requests.subscriptions.take_changes():
                self._emit(news)

    def _discover_catalogs(self) -> None:
        """Ask a new supervisor for the catalogs that sessions use, and for those of pools that shall be
        replaced.
        """
        looking = {(s.scope, s.awaits_roots): s for s in self._sessions.values() if s.may_use_servers}
        for session in looking.values():
            self._session_views.discover_catalogs(session, self._session_views.view_of(session))
        for key in self._session_views.sources.pools_to_discover():
            self._emit(DiscoverCatalog(key))

    def send_pool_changed(self, word: SessionPoolChanged) -> None:
        """Tell the supervisor that a session moved to another pool. It may hold a lease in the old one, also
        after the link was down.
        """
        if self._links.is_served(word.old):
            self._emit(word)
        else:
            self._moved[word.session, word.old] = word

    def session_closed(self, session: SessionId) -> None:
        """The session has closed."""
        self._moved = {key: word for key, word in self._moved.items() if key[0] != session}

    # --- what is wanted --------------------------------------------------------------------------------

    def _all_wanted(self) -> SetPools:
        wanted = self._session_views.sources.wanted_pools()
        return wanted if self._recovery.everybody else replace(wanted, complete=False)

    def _part_of(self, wanted: SetPools, name: SupervisorName) -> SetPools:
        """Return the wanted pools of this supervisor, and its share of the limits."""
        if self._links.is_single:
            return wanted
        among = len(self._links.names)
        pools = [spec for spec in wanted.pools if self._links.runs(name, spec.key)]
        # Servers that always run must fit, and another one beside them.
        kept = sum(spec.policy.min_instances for spec in pools)
        needed = kept + any(not spec.policy.min_instances for spec in pools)
        return replace(
            wanted,
            pools=pools,
            max_processes=max(-(-wanted.max_processes // among), needed),
            max_greeting=-(-wanted.max_greeting // among),
        )

    def send_pools(self, why_missing: str = "") -> None:
        """Send the wanted pools if they have changed. `why_missing`: see `SetPools`."""
        wanted = self._all_wanted()
        self._call_table.set_pool_timeouts(wanted.pools)
        keys = {spec.key for spec in wanted.pools}
        for key in sorted(self.wanted_pools - keys):
            state = self._session_views.states.pop(key, None)
            for told in (self._registry.told_catalog(key), state, *self._queue.drop(key)):
                if told is not None:  # while not all is said that is wanted it is not told again
                    self._recovery.keep_pool_state(told)
            self._call_table.resource_cache.forget_pool(key)
            self._session_views.retry_at.pop(key, None)
            self._hearing.tell_all(self._registry.forget_pool(key))
        self._session_views.slow &= keys
        self._requests.list_freshness.retain_pools(keys)
        if added := keys - self.wanted_pools:  # their supervisor ignored what it was told before
            self._requests.subscriptions.mark_unsent(added.__contains__)
        self.wanted_pools = keys
        self._links.retain_pools(keys)
        for name in self._links.ready:
            part = self._part_of(wanted, name)
            if part != self._sent_pools[name]:
                self._sent_pools[name] = part
                self._send_to(name, replace(part, why_missing=why_missing) if why_missing else part)
        if self.is_linked():
            self._requests.subscriptions.scopes_changed()
            for key in self._session_views.sources.pools_to_discover():
                self._emit(DiscoverCatalog(key))
