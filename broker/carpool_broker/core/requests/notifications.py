"""Who hears of what servers say outside answers: log messages, changes of resources, changes of lists.

Owns that a message reaches whoever wants it, on the request or the listen it belongs to, and nobody else. A
request of the stateless era that names no level hears none. A list that changed is told once to an agent of
the handshake era that holds it (it lists again or does not care), and each time to whoever listens. What one
event changes and changes back is no change for who holds the list: it is told of after all that.

Knows nothing of: what is wanted (`subscription_table`, `listen_streams`), which instance said it.
"""

from collections.abc import Callable, Iterable, Mapping

from carpool_broker.core.calls.call_table import Ledger
from carpool_broker.core.calls.lost_state import places
from carpool_broker.core.configuration.session_views import Outlook
from carpool_broker.core.model.effects import AnyEffect, SayListChanged, SayLog, SayUpdated
from carpool_broker.core.model.events import Notice
from carpool_broker.core.model.pagination import Entry, Family
from carpool_broker.core.model.scope import Scope
from carpool_broker.core.model.session import Session
from carpool_broker.core.registry.registry import Changes
from carpool_broker.core.requests.dispatch import Requests
from carpool_broker.core.requests.lists import notice_of
from carpool_broker.core.subscriptions.subscription_table import rank
from carpool_protocol.ids import RawJson, SessionId
from carpool_protocol.link.messages import Logged, Updated
from carpool_protocol.wire.jsonrpc import quote


class Hearing:
    """For all sessions."""

    def __init__(
        self,
        sessions: Mapping[SessionId, Session],
        outlook: Outlook,
        ledger: Ledger,
        requests: Requests,
        out: Callable[[AnyEffect], None],
    ) -> None:
        self._sessions = sessions
        self._outlook = outlook
        self._ledger = ledger
        self._interests = requests.interests
        self._listens = requests.listens
        self._astray = requests.watching.astray
        self._out = out
        self.changed: dict[SessionId, set[Notice]] = {}
        """Who may hold lists that are others now, and of which."""

    def logged(self, event: Logged) -> None:
        """A server's log message: about one call, or about some of a session."""
        owed = self._ledger.calls.get(event.call)
        wants = self._interests.wants_log
        if owed is None:
            session = self._sessions.get(event.session)
            is_wanted = session is not None and wants(event.session, event.level)
            if session is not None and is_wanted and not self._ledger.unread.leaves_out(session):
                self._out(SayLog(event.session, event.params))
            return
        by, session = owed.asked.by, owed.session
        if by is None:
            is_wanted = wants(session.id, event.level)
        else:
            is_wanted = bool(by.level) and not owed.parked and rank(event.level) >= rank(by.level)
        if is_wanted and not self._ledger.unread.leaves_out(session):
            self._out(SayLog(session.id, event.params, owed.asked.id))

    def updated(self, event: Updated) -> None:
        """A resource changed."""
        for session_id, listen, spelled, exact in self._interests.hearers(event.key, event.uri):
            session, uri = self._sessions[session_id], spelled
            if not exact:
                uri = self._outlook.view(session).outward_uri(event.key, event.uri)
            self._ledger.unread.updated(SayUpdated(session_id, uri, event.params, listen), session)

    def left(self, session: Session, scope: Scope) -> None:
        """It is in another workspace. What it is subscribed to is told as changed where another pool serves
        it from now on; where none does that is also the last that is told of it. `scope`: what it looked
        through until now.
        """
        before, now = places(scope), places(session.scope)
        for server, uri, listen, spelled in self._interests.watched_by(session.id):
            if now.get(server) != before.get(server):
                params = RawJson(b'{"uri":%b}' % quote(uri))
                self._ledger.unread.updated(SayUpdated(session.id, spelled, params, listen), session)
            if server not in now:
                self._interests.unsubscribe(session.id, server, uri, listen)
        self._astray.left(session)

    def tell(self, session: Session, families: Iterable[Family]) -> None:
        """These lists are others now."""
        notices = {notice_of(family) for family in families}
        if notices and session.listed:
            self.changed.setdefault(session.id, set()).update(notices)
        if session.listens:
            self._listens.changed(session, notices)

    def tell_all(self, changes: Changes) -> None:
        """The views of these scopes are others now."""
        if changes:
            for session in self._sessions.values():
                self.tell(session, changes.get(session.scope, ()))

    def say_changed(self) -> None:
        """That was all that happens now: who holds a list that is another one is told."""
        changed, self.changed = self.changed, {}
        for session_id, notices in changed.items():
            session = self._sessions.get(session_id)
            if session is None:
                continue
            view = self._outlook.view(session)
            old = {
                notice_of(family)
                for family, held in session.listed.items()
                if notice_of(family) in notices
                and (held is None or _definitions(held) != _definitions(view.entries(family)))
            }
            for notice in sorted(old):
                self._out(SayListChanged(session.id, notice))
            session.listed = {it: held for it, held in session.listed.items() if notice_of(it) not in old}


def _definitions(entries: Iterable[Entry]) -> list[RawJson]:
    return [entry.definition for entry in entries]
