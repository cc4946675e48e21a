"""What follows when catalogs, states of pools or configurations change.

Owns the order: the registry learns the change; sessions go to the scope that is in force for them and hear
which lists changed; the supervisor is told which pools are wanted; deferred requests go on. While a long
catalog is learned in slices (`catalog_queue`), all other events pass. Refuses to know: what a source or a
catalog holds, which requests wait, how a change is told.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from carpool_broker.core.calls import lost_state
from carpool_broker.core.calls.call_table import CallTable
from carpool_broker.core.configuration.session_views import ScopeChanged, SessionViews
from carpool_broker.core.configuration.unused_sources import UnusedSources
from carpool_broker.core.model.effects import AnyEffect
from carpool_broker.core.model.events import (
    PinsApproved,
    SessionSourceChanged,
    SourceDropped,
    SourceId,
    SourceRead,
    SourceUnused,
)
from carpool_broker.core.model.session import Session
from carpool_broker.core.recovery.recovery import Recovery
from carpool_broker.core.recovery.supervisor_sync import SupervisorSync
from carpool_broker.core.registry.catalog_queue import CatalogQueue, Learned
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.requests.dispatch import RequestDispatch
from carpool_broker.core.requests.notifications import Notifications
from carpool_broker.core.requests.roots import AgentRoots
from carpool_protocol.ids import PoolKey, SessionId
from carpool_protocol.link.messages import Catalog, PoolChanged

AWAY_STATES: Final = frozenset({"given_up", "stopped", "breaker_open", "half_open", "offline"})
"""The states in which a server leaves every list."""


class Updates:
    """The updates of all sessions."""

    def __init__(
        self,
        sessions: Mapping[SessionId, Session],
        registry: Registry,
        session_views: SessionViews,
        call_table: CallTable,
        requests: RequestDispatch,
        *,
        hearing: Notifications,
        roots: AgentRoots,
        recovery: Recovery,
        linking: SupervisorSync,
        queue: CatalogQueue,
        unused_sources: UnusedSources,
        out: Callable[[AnyEffect], None],
    ) -> None:
        self._sessions = sessions
        self._registry = registry
        self._session_views = session_views
        self._sources = session_views.sources
        self._call_table = call_table
        self._requests = requests
        self._notifications = hearing
        self._roots = roots
        self._recovery = recovery
        self._linking = linking
        self._queue = queue
        self._unused_sources = unused_sources
        self._emit = out

    # --- what happens ----------------------------------------------------------------------------------

    def catalog_received(self, event: Catalog, now: float) -> None:
        """The supervisor tells the catalog of a pool."""
        self._queue.add(event, now)
        if len(self._queue) == 1 and self._queue.is_due(now):
            self.learn_slice(now)

    def pool_changed(self, event: PoolChanged, now: float) -> None:
        """The supervisor tells the state of a pool."""
        if self._queue.holds(event.key):
            self._queue.add(event, now)
        else:
            self._apply_pool_state(event, now)

    def learn_slice(self, now: float) -> None:
        """Learn the next slice of the catalogs that were told."""
        for told in self._queue.advance(now):
            if isinstance(told, PoolChanged):
                self._apply_pool_state(told, now)
            else:
                self._catalogs_applied(told, now)

    def finish_slices(self, now: float) -> None:
        """Learn all that was told at once, because the supervisor has gone."""
        while self._queue:
            self.learn_slice(now)

    def _catalogs_applied(self, learned: Learned, now: float) -> None:
        for event, came in learned.catalogs:
            self._session_views.slow.discard(event.key)
            self._requests.list_freshness.catalog_received(event, came)
            self._call_table.resource_cache.forget_pool(event.key)
        if learned.has_first:
            self._notifications.first_lists_told(learned.changes, now)
        else:
            self._notifications.tell_all(learned.changes)
        if self._registry.approvals.approved:
            self._requests.recheck.recheck_held()
        self._recovery.catalogs_changed()
        self._catalogs_changed(now, *(event.key for event, _ in learned.catalogs))

    def _apply_pool_state(self, event: PoolChanged, now: float) -> None:
        was = self._session_views.states.get(event.key)
        self._session_views.state_changed(event, now)
        if event.mode == "session" and (was is None or was.mode != "session"):
            for each in lost_state.pool_became_stateful(self._sessions.values(), event):
                self._emit(each)
        self._call_table.resource_cache.forget_pool(event.key)
        hidden = event.state in AWAY_STATES
        self._notifications.tell_all(
            self._registry.hide_pool(event.key) if hidden else self._registry.show_pool(event.key)
        )
        self._catalogs_changed(now, event.key)

    def sources_read(self, readings: Sequence[SourceRead], now: float) -> None:
        """Configurations were read. The supervisor hears once which pools are wanted after all of them."""
        for reading in readings:
            self._registry.approvals.pins_read(reading.pins)
            self._notifications.tell_all(self._sources.source_read(reading))
        self.update_scopes()
        sources = {reading.source for reading in readings}
        for each in self._sessions.values():
            if each.source in sources:
                self._roots.recheck(each)
        self._catalogs_changed(now)

    def source_unused(self, event: SourceUnused, now: float) -> None:
        """No session uses this configuration."""
        self._unused_sources.source_unused(event.source, now)

    def source_dropped(self, event: SourceDropped) -> None:
        """This configuration is forgotten."""
        self._unused_sources.source_dropped(event.source)
        self._notifications.tell_all(self._sources.drop_source(event.source))
        self._linking.send_pools(event.why)

    def agent_came(self, source: SourceId) -> None:
        """An agent uses this configuration."""
        self._unused_sources.agent_came(source)
        if self._sources.agent_came(source):
            self._linking.send_pools()

    def agent_left(self, source: SourceId, now: float) -> None:
        """An agent uses this configuration no more."""
        if self._release_source(source, now):
            self.update_scopes()

    def _release_source(self, source: SourceId, now: float) -> bool:
        """Count one agent less. Returns True if other scopes are in force or other pools wanted."""
        has_changed = self._sources.agent_left(source)
        if not self._sources.sources[source].agents:
            self._unused_sources.last_agent_left(source, now)
        return has_changed

    def tools_approved(self, event: PinsApproved, now: float) -> None:
        """Held tools were approved."""
        self._notifications.tell_all(self._registry.approve(event.pin, event.tools))
        self._requests.catalogs_changed(now)

    def session_source_changed(self, session: Session, event: SessionSourceChanged, now: float) -> None:
        """The session's configuration comes from another source. It keeps its calls, and other pools serve
        it.
        """
        if self._call_table.audit_trail is not None:
            self._call_table.audit_trail.forget_caller(session)
        session.awaits_roots = False
        left, session.source = session.source, event.source
        if not session.control:
            self.agent_came(event.source)
            self._release_source(left, now)  # the scopes are updated below
        if (session.asking or session.stateless) and not session.control:
            self._sources.add_variant(event.source, asking=session.asking, stateless=session.stateless)
        before = session.scope
        self.update_scopes(session)
        if event.elsewhere:
            self._notifications.workspace_left(session, before)
        self._roots.recheck(session)
        if session.may_use_servers:
            self._session_views.discover_catalogs(session, self._session_views.view_of(session))
        self._catalogs_changed(now)

    # --- what comes of it ------------------------------------------------------------------------------

    def update_scopes(self, gone: Session | None = None) -> None:
        """Other scopes are in force, or other pools wanted: move sessions to them and tell the supervisor.
        `gone` is the session that moved by its own action.
        """
        self._registry.approve_unmet()
        moved = self._session_views.apply_scopes(self._sessions.values())
        self._linking.send_pools()
        self._sessions_rescoped(moved, gone)

    def class_changed(self, session: Session) -> None:
        """The session belongs to another class of agents now and sees what that class sees (docs/rules.md,
        rule 12).
        """
        if self._sources.add_variant(session.source, asking=session.asking, stateless=session.stateless):
            self.update_scopes(session)
        else:
            self._sessions_rescoped(self._session_views.apply_scopes([session]), session)

    def _catalogs_changed(self, now: float, *keys: PoolKey) -> None:
        """Catalogs or states of pools (of `keys`) have changed: requests that wait for them may go on."""
        if self._sources.pools_changed(keys):
            self.update_scopes()
        self._requests.catalogs_changed(now)

    def _sessions_rescoped(self, moved: list[ScopeChanged], gone: Session | None) -> None:
        if moved:
            self._requests.subscriptions.scopes_changed()
            self._requests.resource_updates.pools_left(
                {(old, new) for *_, left in moved for _, old, new in left if new}
            )
        for session, _, _, left in moved:
            for word in lost_state.scope_changed(session, left):
                # A pool that nobody has any more gives its leases back by itself, and lets them finish.
                if session is gone or self._sources.is_still_used(session.source, word.old, word.new):
                    self._linking.send_pool_changed(word)
        with self._session_views.sharing_findings():
            for session, _, families, _ in moved:
                self._notifications.lists_changed(session, families)
                self._requests.scope_changed(session)
