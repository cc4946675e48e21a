"""Who hears of what servers say outside answers: log messages and changes of lists.

Owns that a message reaches whoever wants it, on the request or the listen it belongs to, and nobody else. A
request of the stateless era that names no level hears none. An agent of the handshake era is told once that a
list has changed, until it lists again; an agent with an open listen is told of each change. Agents are told
after the whole event, so a change that the same event takes back is not told. Servers that start together
list one after the other: the broker gathers these changes and tells them as one.

Knows nothing of: what is wanted (`subscription_table`, `listen_streams`), which instance said it, when a
change of a resource is told (`resource_updates`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from carpool_broker.core.calls.call_table import CallTable
from carpool_broker.core.configuration.session_views import SessionViews
from carpool_broker.core.model.effects import AnyEffect, SendListChanged, SendLog, SendResourceUpdated
from carpool_broker.core.model.events import ListNotification
from carpool_broker.core.model.pagination import Family, ListComparison
from carpool_broker.core.model.scope import Scope, pools_of
from carpool_broker.core.model.session import Session
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_broker.core.registry.registry import ChangedLists
from carpool_broker.core.requests.dispatch import RequestDispatch
from carpool_broker.core.requests.lists import notification_of
from carpool_protocol.ids import RawJson, SessionId
from carpool_protocol.link.messages import LogForSession
from carpool_protocol.wire.jsonrpc import quote
from carpool_protocol.wire.log_levels import rank

GATHER_QUIET_S: Final = 2.0
"""Gathered changes are told once no server has told its first list for so long."""
GATHER_S: Final = 10.0
"""No change is gathered for longer."""
GATHERED: Final = "gathered"
"""The key of the timer after which gathered changes are told."""


class Notifications:
    """The notifications for all sessions."""

    def __init__(
        self,
        sessions: Mapping[SessionId, Session],
        session_views: SessionViews,
        call_table: CallTable,
        requests: RequestDispatch,
        out: Callable[[AnyEffect], None],
        *,
        timers: BrokerTimers,
    ) -> None:
        self._sessions = sessions
        self._session_views = session_views
        self._call_table = call_table
        self._subscriptions = requests.subscriptions
        self._listen_streams = requests.listen_streams
        self._unplaced = requests.subscribe.unplaced
        self._resource_updates = requests.resource_updates
        self._emit = out
        self.changed: dict[SessionId, set[ListNotification]] = {}
        """The sessions that may hold lists that have changed, and which lists."""
        self._timers = timers
        self.gathered: dict[SessionId, set[ListNotification]] = {}
        """The same for changes that are told later, because more servers are starting."""
        self._gathering_since = 0.0

    def log_received(self, event: LogForSession) -> None:
        """A server has sent a log message, about one call or about some calls of a session."""
        open_call = self._call_table.calls.get(event.call)
        wants = self._subscriptions.wants_log
        if open_call is None:
            session = self._sessions.get(event.session)
            is_wanted = session is not None and wants(event.session, event.level)
            if session is not None and is_wanted and not self._call_table.unread.drop_notification(session):
                self._emit(SendLog(event.session, event.params))
            return
        by, session = open_call.asked.by, open_call.session
        if by is None:
            is_wanted = wants(session.id, event.level)
        else:
            is_wanted = bool(by.level) and not open_call.is_parked and rank(event.level) >= rank(by.level)
        if is_wanted and not self._call_table.unread.drop_notification(session):
            self._emit(SendLog(session.id, event.params, open_call.asked.id))

    def workspace_left(self, session: Session, scope: Scope) -> None:
        """The session has moved to another workspace. Its subscribed resources are told as changed where
        another pool serves them now. Where no pool does, that is also the last it hears of them. `scope` is
        what it saw before.
        """
        before, now = pools_of(scope), pools_of(session.scope)
        for server, uri, listen, spelled in self._subscriptions.subscriptions_of(session.id):
            if now.get(server) != before.get(server):
                params = RawJson(b'{"uri":%b}' % quote(uri))
                self._resource_updates.tell(SendResourceUpdated(session.id, spelled, params, listen), session)
            if server not in now:
                self._subscriptions.unsubscribe(session.id, server, uri, listen)
        self._unplaced.workspace_left(session)

    def lists_changed(self, session: Session, families: Iterable[Family]) -> None:
        """These lists of the session have changed."""
        notices = {notification_of(family) for family in families}
        if notices and session.id in self.gathered:
            self.gathered[session.id] |= notices
        else:
            self._lists_changed(session, notices)

    def _lists_changed(self, session: Session, notices: Collection[ListNotification]) -> None:
        if notices and session.listed:
            self.changed.setdefault(session.id, set()).update(notices)
        if session.listens:
            self._listen_streams.lists_changed(session, notices)

    def tell_all(self, changes: ChangedLists) -> None:
        """Tell the sessions of these scopes that their views have changed."""
        if changes:
            for session in self._sessions.values():
                self.lists_changed(session, changes.get(session.scope, ()))

    def first_lists_told(self, changes: ChangedLists, now: float) -> None:
        """Servers have told lists for the first time. A session for which other servers are still starting
        gets one notification for all of them.
        """
        if not changes:
            return
        if not self.gathered:
            self._gathering_since = now
        with self._session_views.sharing_findings():
            for session in self._sessions.values():
                families = changes.get(session.scope)
                if not families:
                    continue
                notices = {notification_of(family) for family in families}
                if self._session_views.has_starting_servers(self._session_views.view_of(session)):
                    if session.listed or session.listens:
                        self.gathered.setdefault(session.id, set()).update(notices)
                else:
                    self._lists_changed(session, notices | self.gathered.pop(session.id, set()))
        self._timers.disarm("catalogs", GATHERED)
        if self.gathered:
            wait_s = min(GATHER_QUIET_S, self._gathering_since + GATHER_S - now)
            self._timers.arm("catalogs", GATHERED, now, max(0.0, wait_s))

    def tell_gathered(self) -> None:
        """Tell the gathered changes."""
        gathered, self.gathered = self.gathered, {}
        for session_id, notices in gathered.items():
            session = self._sessions.get(session_id)
            if session is not None:
                self._lists_changed(session, notices)

    def send_list_changes(self) -> None:
        """Send the notifications about changed lists, at the end of an event."""
        changed, self.changed = self.changed, {}
        compare = ListComparison()
        for session_id, notices in changed.items():
            session = self._sessions.get(session_id)
            if session is None:
                continue
            view = self._session_views.view_of(session)
            old = {
                notification_of(family)
                for family, held in session.listed.items()
                if notification_of(family) in notices
                and (held is None or not compare.look_equal(held, view.entries(family)))
            }
            for notice in sorted(old):
                self._emit(SendListChanged(session.id, notice))
            session.listed = {
                it: held for it, held in session.listed.items() if notification_of(it) not in old
            }

    def check(self) -> None:
        """Assert that gathered changes are told some time."""
        assert bool(self.gathered) == self._timers.has("catalogs", GATHERED)
