"""Lists, page by page, and `server/discover`, which tells what there is to list.

Owns which of them wait for catalogs that are on their way (rule 18), what they are answered, and which lists
an agent holds. What a page of the stateless era says about its freshness is `list_freshness`'.

Knows nothing of: what a page holds (`view_of`), how long what waits does so (`deferred`), who is told when a
list changes.
"""

from collections.abc import Callable
from typing import Final

from carpool_broker.core.calls.tasks import AgentTasks
from carpool_broker.core.configuration.session_views import SessionViews
from carpool_broker.core.model.answers import error_reply
from carpool_broker.core.model.effects import (
    AnswerDiscover,
    AnyEffect,
    LogLine,
    Reply,
    ReplyStateless,
    SendListChanged,
)
from carpool_broker.core.model.events import DiscoverRequested, ListNotification, ListPageRequested
from carpool_broker.core.model.pagination import FAMILIES, BadCursor, Family
from carpool_broker.core.model.session import Session
from carpool_broker.core.registry.view import View
from carpool_broker.core.requests.list_freshness import ListFreshness
from carpool_protocol.carrier.streams import ANNOTATED_TOOLS
from carpool_protocol.link.messages import Feature
from carpool_protocol.wire.capabilities import FEATURES
from carpool_protocol.wire.downgrade import STATELESS

MAX_LOGGED: Final = 64

METHODS: Final[dict[Family, str]] = {
    "tools": "tools/list",
    "prompts": "prompts/list",
    "resources": "resources/list",
    "templates": "resources/templates/list",
}


class ListRequests:
    """The list requests of all sessions. `instructions` gives the merged instructions of a session."""

    def __init__(
        self,
        session_views: SessionViews,
        hints: ListFreshness,
        tasks: AgentTasks,
        out: Callable[[AnyEffect], None],
    ) -> None:
        self._session_views = session_views
        self._list_freshness = hints
        self._tasks = tasks
        self._emit = out
        self._logged_counts: set[tuple[str, int]] = set()
        """What was logged about tools that are left out, by profile and number."""

    def accepts(self, session: Session, event: ListPageRequested) -> bool:
        """Return whether this agent may list; otherwise the request is refused."""
        if event.by is None and not session.greeted:
            self._emit(error_reply(session, event.id, event.by, "not_initialized"))
            return False
        return True

    def answer(
        self, session: Session, event: ListPageRequested | DiscoverRequested, now: float, *, patient: bool
    ) -> bool:
        """Answer a page of a list, or `server/discover`. False: it must wait for catalogs that are still to
        come, which only happens if `patient` and never to later pages.
        """
        if isinstance(event, DiscoverRequested) or event.cursor in {None, ANNOTATED_TOOLS}:
            view = self._session_views.view_of(session)
            if patient and self._session_views.has_pending_servers(session, view):
                return False
            self._session_views.report_missed(view)
        if isinstance(event, DiscoverRequested):
            self._answer_discover(session, event, now)
        elif event.by is not None:
            self._answer_stateless(session, event, now)
        else:
            self._answer_page(session, event, now)
        return True

    def say_old(self, session: Session) -> None:
        """Tell a session that has come from an earlier broker that its lists have changed. Its list requests
        were answered twice, and nobody has told the agent what changed in between.
        """
        for notice in sorted({notification_of(family) for family in session.listed}):
            self._emit(SendListChanged(session.id, notice))
        session.listed.clear()

    def _list_read(self, session: Session, event: ListPageRequested, view: View) -> None:
        """Note that the session has read a list. One notification is about resources and their templates, so
        readers of either are told.
        """
        if event.cursor is None:
            session.listed[event.family] = view.entries(event.family)
        else:
            session.listed.setdefault(event.family)
        for family in FAMILIES:
            if notification_of(family) == notification_of(event.family):
                session.listed.setdefault(family, view.entries(family))

    def _answer_page(self, session: Session, event: ListPageRequested, now: float) -> None:
        view = self._session_views.view_of(session)
        page = view.page(event.family, event.cursor, session.version)
        if isinstance(page, BadCursor):
            self._emit(error_reply(session, event.id, None, "bad_cursor"))
            return
        self._list_read(session, event, view)
        self._log_dropped_tools(session, event)
        self._list_freshness.request_renewal(view, now)
        self._emit(Reply(session.id, event.id, is_error=False, body=page.body))

    def _answer_stateless(self, session: Session, event: ListPageRequested, now: float) -> None:
        view, method = self._session_views.view_of(session), METHODS[event.family]
        if notification_of(event.family) not in view.capabilities():  # what is not announced is not served
            self._emit(error_reply(session, event.id, event.by, "unknown_method", method=method))
            return
        page = view.page(event.family, event.cursor, STATELESS)
        if isinstance(page, BadCursor):
            self._emit(error_reply(session, event.id, event.by, "bad_cursor", method=method))
            return
        self._log_dropped_tools(session, event)
        ttl_ms, public = self._list_freshness.ttl_of(view, (event.family,), now)
        self._list_freshness.request_renewal(view, now)
        self._emit(
            ReplyStateless(
                session.id,
                event.id,
                False,
                page.body,
                method,
                ttl_ms=ttl_ms,
                public=public and not session.is_authenticated,
            )
        )

    def _log_dropped_tools(self, session: Session, event: ListPageRequested) -> None:
        """Log that tools are left out, once for each number: whoever sets `max_tools` must see its effect."""
        left_out = self._session_views.view_of(session).dropped_tools
        if event.family != "tools" or not left_out or (session.profile, left_out) in self._logged_counts:
            return
        if len(self._logged_counts) >= MAX_LOGGED:
            self._logged_counts.clear()
        self._logged_counts.add((session.profile, left_out))
        whose = f" of agents with the profile {session.profile}" if session.profile else ""
        self._emit(LogLine("warning", f"max_tools leaves {left_out} tools out of the list{whose}"))

    def _answer_discover(self, session: Session, event: DiscoverRequested, now: float) -> None:
        view = self._session_views.view_of(session)
        ttl_ms, public = self._list_freshness.ttl_of(view, FAMILIES, now)
        instructions = self._session_views.instructions(session)
        features = announced_features(view)
        tasks = self._tasks.is_served(view)
        public = public and not session.is_authenticated
        self._emit(AnswerDiscover(session.id, event.id, instructions, features, tasks, ttl_ms, public))


def announced_features(view: View) -> tuple[Feature, ...]:
    """Return the features that are announced of a view, in a stable order."""
    features = view.capabilities()
    return tuple(feature for feature in FEATURES if feature in features)


def notification_of(family: Family) -> ListNotification:
    """Return the subject of the `list_changed` notification about this family."""
    return "resources" if family == "templates" else family
