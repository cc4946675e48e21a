"""Lists, page by page, and `server/discover`, which tells what there is to list.

Owns first pages that wait for catalogs which are on their way (rule 18): bounded by `wait_s`, and shorter for
`server/discover`, which is how an agent finds out whether anybody is there at all. What a page of the
stateless era says about its freshness is `list_freshness`'.

Invariant (`check`): what waits has a deadline and belongs to a session that is there.
Knows nothing of: what a page holds (`view`), who is told when a list changes.
"""

from collections.abc import Callable
from typing import Final

from carpool_broker.core.calls.tasks import Tasks
from carpool_broker.core.configuration.session_views import Outlook
from carpool_broker.core.model.answers import refusal
from carpool_broker.core.model.effects import (
    AnyEffect,
    Describe,
    Note,
    Reply,
    ReplyStateless,
    SayListChanged,
)
from carpool_broker.core.model.events import AgentDiscovered, AgentListed, Notice
from carpool_broker.core.model.pagination import FAMILIES, BadCursor, Family
from carpool_broker.core.model.session import Session
from carpool_broker.core.registry.view import View
from carpool_broker.core.requests.list_freshness import Hints
from carpool_protocol.ids import RawJson, SessionId
from carpool_protocol.link.messages import Feature
from carpool_protocol.machine.deadlines import Deadlines
from carpool_protocol.wire.capabilities import FEATURES
from carpool_protocol.wire.downgrade import STATELESS

DISCOVER_WAIT_S: Final = 2.0
"""The official SDKs give a server 10 s to answer before they take it for one of the handshake era."""

MAX_SAID: Final = 64

METHODS: Final[dict[Family, str]] = {
    "tools": "tools/list",
    "prompts": "prompts/list",
    "resources": "resources/list",
    "templates": "resources/templates/list",
}

Who = tuple[SessionId, RawJson]


class Lists:
    """Lists of all sessions. `instructions`: what a session is told of all servers together."""

    def __init__(
        self,
        sessions: dict[SessionId, Session],
        outlook: Outlook,
        hints: Hints,
        tasks: Tasks,
        out: Callable[[AnyEffect], None],
    ) -> None:
        self._sessions = sessions
        self._outlook = outlook
        self._hints = hints
        self._tasks = tasks
        self._out = out
        self.wait_s = 10.0
        self.waits: Deadlines[Who] = Deadlines()
        self._said: set[tuple[str, int]] = set()
        """What was said of tools that are left out, by profile and number."""

    def listed(self, session: Session, event: AgentListed, now: float) -> None:
        """A page of a list; the first one waits for catalogs that are on their way, for a while."""
        if event.by is None and not session.greeted:
            self._out(refusal(session, event.id, event.by, "not_initialized"))
        elif self._is_free(session, event):
            if event.cursor is None and self._wait(session, event, now, self.wait_s):
                return
            self._answer(session, event, now)

    def resumed(self, session: Session) -> None:
        """This session has come from an earlier broker. What its agent had listed there was listed again, and
        the agent has not seen that. Nobody has told it what became of these lists between the two: it hears
        that they have changed.
        """
        session.unseen.update(id_ for id_, each in session.lists.items() if isinstance(each, AgentListed))
        self._say_old(session)

    def _holds(self, session: Session, event: AgentListed, view: View) -> None:
        """It has read a list. One notice is of resources and of their templates: who holds either is told."""
        if event.cursor is None:
            session.listed[event.family] = view.entries(event.family)
        else:
            session.listed.setdefault(event.family)
        for family in FAMILIES:
            if notice_of(family) == notice_of(event.family):
                session.listed.setdefault(family, view.entries(family))

    def _say_old(self, session: Session) -> None:
        for notice in sorted({notice_of(family) for family in session.listed}):
            self._out(SayListChanged(session.id, notice))
        session.listed.clear()

    def discovered(self, session: Session, event: AgentDiscovered, now: float) -> None:
        """What there is; it waits as a list does, but not as long."""
        if self._is_free(session, event):
            wait_s = min(self.wait_s, DISCOVER_WAIT_S)
            if not self._wait(session, event, now, wait_s):
                self._answer(session, event, now)

    def _is_free(self, session: Session, event: AgentListed | AgentDiscovered) -> bool:
        """Whether the id names no other open request; else it is refused."""
        if event.id in session.lists or event.id in session.owed or event.id in session.listens:
            self._out(refusal(session, event.id, event.by, "duplicate_request_id", method=_method(event)))
            return False
        return True

    def _wait(
        self, session: Session, event: AgentListed | AgentDiscovered, now: float, wait_s: float
    ) -> bool:
        view = self._outlook.view(session)
        if not self._outlook.unsettled(session, view):
            self._outlook.miss(view)
            return False
        self._outlook.discover(session, view)
        session.lists[event.id] = event
        self.waits.arm((session.id, event.id), now, wait_s)
        return True

    def _answer(self, session: Session, event: AgentListed | AgentDiscovered, now: float) -> None:
        if isinstance(event, AgentDiscovered):
            self._describe(session, event, now)
        elif event.by is not None:
            self._answer_stateless(session, event, now)
        else:
            view = self._outlook.view(session)
            page = view.page(event.family, event.cursor, session.version)
            if isinstance(page, BadCursor):
                self._out(refusal(session, event.id, None, "bad_cursor"))
                return
            self._holds(session, event, view)
            self._say_left_out(session, event)
            self._hints.renew(view, now)
            self._out(Reply(session.id, event.id, is_error=False, body=page.body))
            if event.id in session.unseen:
                session.unseen.discard(event.id)
                self._say_old(session)

    def _answer_stateless(self, session: Session, event: AgentListed, now: float) -> None:
        view, method = self._outlook.view(session), METHODS[event.family]
        if notice_of(event.family) not in view.capabilities():  # what is not announced is not served
            self._out(refusal(session, event.id, event.by, "unknown_method", method=method))
            return
        page = view.page(event.family, event.cursor, STATELESS)
        if isinstance(page, BadCursor):
            self._out(refusal(session, event.id, event.by, "bad_cursor", method=method))
            return
        self._say_left_out(session, event)
        ttl_ms, public = self._hints.of(view, (event.family,), now)
        self._hints.renew(view, now)
        self._out(
            ReplyStateless(
                session.id,
                event.id,
                False,
                page.body,
                method,
                ttl_ms=ttl_ms,
                public=public and not session.named,
            )
        )

    def _say_left_out(self, session: Session, event: AgentListed) -> None:
        """Once for each number of them: whoever has set `max_tools` is to see what it does."""
        left_out = self._outlook.view(session).left_out
        if event.family != "tools" or not left_out or (session.profile, left_out) in self._said:
            return
        if len(self._said) >= MAX_SAID:
            self._said.clear()
        self._said.add((session.profile, left_out))
        whose = f" of agents with the profile {session.profile}" if session.profile else ""
        self._out(Note("warning", f"max_tools leaves {left_out} tools out of the list{whose}"))

    def _describe(self, session: Session, event: AgentDiscovered, now: float) -> None:
        view = self._outlook.view(session)
        ttl_ms, public = self._hints.of(view, FAMILIES, now)
        instructions = self._outlook.instructions(session)
        features = announced(view)
        tasks = self._tasks.served(view)
        public = public and not session.named
        self._out(Describe(session.id, event.id, instructions, features, tasks, ttl_ms, public))

    # --- waiting ---------------------------------------------------------------------------------------

    def cancelled(self, session: Session, request: RawJson) -> bool:
        """Whether this id was one that waits; it does no more."""
        session.unseen.discard(request)
        if session.lists.pop(request, None) is None:
            return False
        self.waits.disarm((session.id, request))
        return True

    def waited(self, who: Who, now: float) -> None:
        """It has waited long enough: it gets what is known. No list waits twice for what did not come."""
        session = self._sessions[who[0]]
        event = session.lists.pop(who[1])
        if isinstance(event, AgentListed):
            self._outlook.slow |= self._outlook.view(session).unknown
        self._answer(session, event, now)

    def again(self, who: Who, now: float) -> None:
        """Let it wait once more."""
        self.waits.arm(who, now, self.wait_s)

    def moved(self, now: float) -> None:
        """Catalogs or pool states are others now: what waited for that may go on."""
        if not self.waits:
            return
        for session in self._sessions.values():
            if session.lists and not self._outlook.unsettled(session, self._outlook.view(session)):
                for request in list(session.lists):
                    self.waits.disarm((session.id, request))
                    self._answer(session, session.lists.pop(request), now)

    def forget(self, session: Session) -> None:
        """The agent is gone."""
        for request in session.lists:
            self.waits.disarm((session.id, request))

    def check(self) -> None:
        """Assert every invariant."""
        waiting = {(s.id, request) for s in self._sessions.values() for request in s.lists}
        assert len(self.waits) == len(waiting)
        assert all(who in self.waits for who in waiting)
        assert all(session.unseen <= session.lists.keys() for session in self._sessions.values())


def announced(view: View) -> tuple[Feature, ...]:
    """What is announced of a view, in a stable order."""
    features = view.capabilities()
    return tuple(feature for feature in FEATURES if feature in features)


def notice_of(family: Family) -> Notice:
    """What the `list_changed` about this family is about."""
    return "resources" if family == "templates" else family


def _method(event: AgentListed | AgentDiscovered) -> str:
    return METHODS[event.family] if isinstance(event, AgentListed) else "server/discover"
