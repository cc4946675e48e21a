"""Lists, page by page, and `server/discover`, which tells what there is to list.

Owns which of them wait for catalogs that are on their way (rule 18), what they are answered, and which lists
an agent holds. What a page of the stateless era says about its freshness is `list_freshness`'.

Knows nothing of: what a page holds (`view`), how long what waits does so (`deferred`), who is told when a
list changes.
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
from carpool_protocol.link.messages import Feature
from carpool_protocol.wire.capabilities import FEATURES
from carpool_protocol.wire.downgrade import STATELESS

MAX_SAID: Final = 64

METHODS: Final[dict[Family, str]] = {
    "tools": "tools/list",
    "prompts": "prompts/list",
    "resources": "resources/list",
    "templates": "resources/templates/list",
}


class Lists:
    """Lists of all sessions. `instructions`: what a session is told of all servers together."""

    def __init__(
        self,
        outlook: Outlook,
        hints: Hints,
        tasks: Tasks,
        out: Callable[[AnyEffect], None],
    ) -> None:
        self._outlook = outlook
        self._hints = hints
        self._tasks = tasks
        self._out = out
        self._said: set[tuple[str, int]] = set()
        """What was said of tools that are left out, by profile and number."""

    def accepts(self, session: Session, event: AgentListed) -> bool:
        """Whether this agent may list; else it is refused."""
        if event.by is None and not session.greeted:
            self._out(refusal(session, event.id, event.by, "not_initialized"))
            return False
        return True

    def answer(
        self, session: Session, event: AgentListed | AgentDiscovered, now: float, *, patient: bool
    ) -> bool:
        """A page of a list, or what there is. False: it is to wait for catalogs that are on their way, which
        later pages never do. `patient`: it may.
        """
        if isinstance(event, AgentDiscovered) or event.cursor is None:
            view = self._outlook.view(session)
            if patient and self._outlook.unsettled(session, view):
                return False
            self._outlook.miss(view)
        if isinstance(event, AgentDiscovered):
            self._describe(session, event, now)
        elif event.by is not None:
            self._answer_stateless(session, event, now)
        else:
            self._answer_page(session, event, now)
        return True

    def say_old(self, session: Session) -> None:
        """This session has come from an earlier broker. What its agent had listed there was listed again, and
        the agent has not seen that. Nobody has told it what became of these lists between the two: it hears
        that they have changed.
        """
        for notice in sorted({notice_of(family) for family in session.listed}):
            self._out(SayListChanged(session.id, notice))
        session.listed.clear()

    def _holds(self, session: Session, event: AgentListed, view: View) -> None:
        """It has read a list. One notice is of resources and of their templates: who holds either is told."""
        if event.cursor is None:
            session.listed[event.family] = view.entries(event.family)
        else:
            session.listed.setdefault(event.family)
        for family in FAMILIES:
            if notice_of(family) == notice_of(event.family):
                session.listed.setdefault(family, view.entries(family))

    def _answer_page(self, session: Session, event: AgentListed, now: float) -> None:
        view = self._outlook.view(session)
        page = view.page(event.family, event.cursor, session.version)
        if isinstance(page, BadCursor):
            self._out(refusal(session, event.id, None, "bad_cursor"))
            return
        self._holds(session, event, view)
        self._say_left_out(session, event)
        self._hints.renew(view, now)
        self._out(Reply(session.id, event.id, is_error=False, body=page.body))

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


def announced(view: View) -> tuple[Feature, ...]:
    """What is announced of a view, in a stable order."""
    features = view.capabilities()
    return tuple(feature for feature in FEATURES if feature in features)


def notice_of(family: Family) -> Notice:
    """What the `list_changed` about this family is about."""
    return "resources" if family == "templates" else family
