"""What the broker tells a supervisor that connects, and keeps telling it.

Owns the order: the wanted pools; then the supervisor sends its record (`recovery`); then the open sessions
and those whose pools have changed, their subscriptions and the catalogs that they need; then calls are sent.
Owns the pools that the supervisor was told to want. Refuses to know: what is in the record, why a pool is
wanted.
"""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from carpool_broker.core.calls import lost_state
from carpool_broker.core.calls.call_table import CallTable
from carpool_broker.core.configuration.session_views import SessionViews
from carpool_broker.core.model.effects import AnyEffect
from carpool_broker.core.model.events import SupervisorConnected
from carpool_broker.core.model.session import Session
from carpool_broker.core.recovery.recovery import Recovery
from carpool_broker.core.registry.catalog_queue import CatalogQueue
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.requests.dispatch import RequestDispatch
from carpool_broker.core.requests.notifications import Notifications
from carpool_protocol.ids import PoolKey, SessionId
from carpool_protocol.link.messages import CallsRecorded, DiscoverCatalog, SessionPoolChanged, SetPools


class SupervisorSync:
    """The broker's side of the link to the supervisor."""

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
        self._credit_bytes: int | None = None
        """The credit of the link, until the record is complete."""
        self.wanted_pools: set[PoolKey] = set()
        self._sent_pools: SetPools | None = None
        """The wanted pools as the supervisor knows them."""
        self._moved: dict[tuple[SessionId, PoolKey], SessionPoolChanged] = {}
        """The sessions that moved to another pool since a supervisor last took calls, by session and old
        pool.
        """

    # --- supervisors come and go -----------------------------------------------------------------------

    def supervisor_connected(self, event: SupervisorConnected) -> None:
        """The supervisor has connected. It is told the wanted pools; its record comes next."""
        self._session_views.states.clear()
        self._credit_bytes = event.credit_bytes
        self._recovery.supervisor_connected(event.epoch)
        self._sent_pools = self._all_wanted()
        self._emit(self._sent_pools)

    def record_received(self, event: CallsRecorded, now: float) -> None:
        """The supervisor has sent a part of its record. After the last part it takes calls."""
        if self._credit_bytes is None:
            return
        self._recovery.record_received(event)
        if not event.last:
            return
        self._call_table.admission.credit_bytes, self._credit_bytes = self._credit_bytes, None
        self.send_pools()
        self._recovery.supervisor_greeted()
        self._send_sessions()
        for word in self._moved.values():
            self._emit(word)
        self._moved.clear()
        self._recovery.record_completed(now)
        self.recovery_advanced()
        self._requests.list_freshness.supervisor_connected()
        self._send_subscriptions()
        self._discover_catalogs()
        self._call_table.admission.send_queued_of_all(now)

    def supervisor_lost(self) -> None:
        """The supervisor has gone."""
        self._credit_bytes = None
        self._recovery.supervisor_lost(self._session_views.states)

    def is_linked(self) -> bool:
        """True if a supervisor is connected that takes calls."""
        return self._call_table.admission.credit_bytes is not None

    def accepts_subscriptions(self) -> bool:
        """True if the supervisor is told of subscriptions and log levels now."""
        return self.is_linked() and not self._recovery.is_hushed

    def _send_sessions(self) -> None:
        self._emit(lost_state.report_sessions(self._sessions.values(), self._recovery.expected_sessions()))

    def recovery_advanced(self) -> None:
        """Tell the supervisor what recovery has decided: subscriptions, then wanted pools and sessions."""
        recovery = self._recovery
        if recovery.is_grace_over:
            recovery.is_grace_over = False
            self._send_subscriptions()
        if recovery.are_sessions_known:
            recovery.are_sessions_known = False
            if self.is_linked():
                self.send_pools()
                self._send_sessions()

    def _send_subscriptions(self) -> None:
        """Send all subscriptions. The supervisor then tells what has changed while no broker was there."""
        self._requests.subscriptions.mark_all_unsent()
        self.say_interests()

    def say_interests(self) -> None:
        """Send the log levels and subscriptions that the supervisor does not know yet."""
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
        if self.is_linked():
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

    def send_pools(self) -> None:
        """Send the wanted pools if they have changed."""
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
        self.wanted_pools = keys
        if self.is_linked():
            if wanted != self._sent_pools:
                self._sent_pools = wanted
                self._emit(wanted)
            self._requests.subscriptions.is_stale = True
            for key in self._session_views.sources.pools_to_discover():
                self._emit(DiscoverCatalog(key))
