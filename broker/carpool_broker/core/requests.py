"""What agents ask for, once it needs to know what they see: lists, calls by name, levels, subscriptions.

Owns which server a request goes to and what waits for a catalog that may still tell (rule 18): first pages
of lists, names nobody knows yet, subscriptions. Each wait is bounded by `list_wait_s`.

Invariants (`check`): what waits has a deadline and belongs to a session that is there.
Knows nothing of: how calls travel and end (`ledger`), when views change.
"""

from collections.abc import Callable

from carpool_broker.core.effects import AnyEffect, Reply
from carpool_broker.core.events import (
    AgentCalled,
    AgentCancelled,
    AgentListed,
    AgentSetLevel,
    AgentWatched,
    Notice,
)
from carpool_broker.core.interests import LEVELS, Interests
from carpool_broker.core.ledger import Ledger
from carpool_broker.core.listing import Family
from carpool_broker.core.outlook import FAILING, Outlook
from carpool_broker.core.outward import needed
from carpool_broker.core.registry import Registry
from carpool_broker.core.routing import NoTarget, Target, find
from carpool_broker.core.session import Owed, Session
from carpool_broker.core.view import BadCursor, Route, View, ViewTool
from carpool_protocol.deadlines import Deadlines
from carpool_protocol.faults import TOOLS_CALL, fault, for_method
from carpool_protocol.ids import EMPTY_OBJECT, CallId, RawJson, ServerName, SessionId

Out = Callable[[AnyEffect], None]


class Requests:
    """Requests of all sessions that a view decides."""

    def __init__(
        self,
        sessions: dict[SessionId, Session],
        registry: Registry,
        outlook: Outlook,
        ledger: Ledger,
        out: Out,
    ) -> None:
        self._sessions = sessions
        self._registry = registry
        self._outlook = outlook
        self._ledger = ledger
        self._out = out
        self.interests = Interests(lambda session: sessions[session].scope)
        self.list_wait_s = 10.0
        self.list_waits: Deadlines[tuple[SessionId, RawJson]] = Deadlines()
        self.name_waits: Deadlines[CallId] = Deadlines()
        self._nameless: dict[CallId, Owed] = {}
        self.watch_waits: Deadlines[tuple[SessionId, RawJson]] = Deadlines()
        self._early: dict[tuple[SessionId, RawJson], AgentWatched] = {}
        """Subscriptions to resources of a server that may not have told its catalog yet."""

    def listed(self, session: Session, event: AgentListed, now: float) -> None:
        """A page of a list; the first one waits for catalogs that are on their way, for a while."""
        if not session.greeted:
            self.refuse(session, event.id, "not_initialized", "")
            return
        if event.id in session.lists or event.id in session.owed:
            self.refuse(session, event.id, "duplicate_request_id", "")
            return
        view = self._outlook.view(session)
        if event.cursor is None and self._outlook.unsettled(session, view):
            self._outlook.discover(session, view)
            session.lists[event.id] = event.family
            self.list_waits.arm((session.id, event.id), now, self.list_wait_s)
            return
        self._answer_list(session, event.id, event.family, event.cursor)

    def _answer_list(
        self, session: Session, request: RawJson, family: Family, cursor: str | None = None
    ) -> None:
        page = self._outlook.view(session).page(family, cursor, session.version)
        if isinstance(page, BadCursor):
            self.refuse(session, request, "bad_cursor", "")
            return
        session.listed.add(notice_of(family))
        self._out(Reply(session.id, request, is_error=False, body=page.body))

    def called(self, event: AgentCalled, now: float) -> None:
        """A request for one server."""
        session = self._sessions.get(event.session)
        if session is None:
            return
        if not session.greeted:
            self.refuse(session, event.id, "not_initialized", "")
            return
        if event.id in session.owed or event.id in session.lists:
            self.refuse(session, event.id, "duplicate_request_id", "")
            return
        owed = self._ledger.open(session, event)
        self._resolve(owed, now, patient=True)

    def _resolve(self, owed: Owed, now: float, *, patient: bool) -> None:
        """Find the server that is meant. `patient`: a catalog that is on its way may still tell."""
        view = self._outlook.view(owed.session)
        asked = owed.asked
        if asked.method == TOOLS_CALL:  # most are, and most names are qualified: one look is all it takes
            tool = view.resolve(asked.name)
            if type(tool) is ViewTool and not owed.session.rooting:
                owed.server, owed.target, owed.key = tool.server, tool.tool, tool.key
                self._enter(owed, view, now)
                return
        found = find(view, asked.method, asked.name)
        if patient and self._may_change(owed.session, view, found):
            if owed.call not in self.name_waits:
                self._outlook.discover(owed.session, view)
                self._nameless[owed.call] = owed
                self.name_waits.arm(owed.call, now, self.list_wait_s)
            return
        if isinstance(found, Target):
            owed.server, owed.target, owed.key = found.server, found.subject, found.key
            self._enter(owed, view, now)
            return
        self._resolved(owed)
        self._fail_unresolved(owed, view, found)

    def _may_change(self, session: Session, view: View, found: Target | NoTarget) -> bool:
        """Whether it is worth waiting for a better place than what was found."""
        if isinstance(found, Target):
            if found.server in self._outlook.unrooted(session):
                return True
            if found.final or not self._outlook.unsettled(session, view):
                return False
        elif self._outlook.unrooted(session):
            return True
        suspects = found.suspects if isinstance(found, NoTarget) else tuple(view.unknown)
        return any(not self._outlook.is_settled(key) for key in suspects)

    def _enter(self, owed: Owed, view: View, now: float) -> None:
        """It is known where the request goes."""
        if self._nameless:
            self._resolved(owed)
        owed.edit = needed(view, owed.key, owed.session.version)
        away = self._outlook.states.get(owed.key) if owed.key in view.away else None
        if away is not None:
            self._ledger.fail(owed, away.state, away.reason, away.retry_after_s)
        else:
            self._ledger.admit(owed, now)

    def _fail_unresolved(self, owed: Owed, view: View, found: NoTarget) -> None:
        """Nobody has it; or whoever may have it is failing: then that is the reason."""
        for key in found.suspects:
            state = self._outlook.states.get(key)
            if state is not None and state.state in FAILING:
                owed.server = next(entry.server for entry in view.scope.servers if entry.key == key)
                self._ledger.fail(owed, state.state, state.reason, state.retry_after_s)
                return
        owed.server, owed.target = ServerName(found.server), found.subject
        detail = found.detail
        for server, why in self._outlook.sources.misconfigured(owed.session.source).items():
            if owed.asked.name.startswith(server):
                detail = f"The server {server} is misconfigured: {why}."
        self._ledger.fail(owed, found.fault, detail)

    def _resolved(self, owed: Owed) -> None:
        """Its name no longer waits for a catalog."""
        self._nameless.pop(owed.call, None)
        self.name_waits.disarm(owed.call)

    def cancelled(self, session: Session, event: AgentCancelled, now: float) -> None:
        """The agent no longer wants the answer to one of its requests."""
        owed = session.owed.get(event.id)
        if owed is not None:
            self._resolved(owed)
            self._ledger.cancel(session, event.id, event.reason, now)
        elif event.id in session.lists:
            del session.lists[event.id]
            self.list_waits.disarm((session.id, event.id))
        else:
            self._forget_early((session.id, event.id))

    def set_level(self, session: Session, event: AgentSetLevel) -> None:
        """Which log messages the session wants."""
        if not session.greeted:
            self.refuse(session, event.id, "not_initialized", "")
        elif not self.interests.set_level(session.id, event.level):
            self.refuse(session, event.id, "bad_params", f"A level is one of {', '.join(LEVELS)}.")
        else:
            self._out(Reply(session.id, event.id, is_error=False, body=EMPTY_OBJECT))
            self.say_interests()

    def watched(self, event: AgentWatched, now: float, *, patient: bool) -> None:
        """A subscription, or its end. It is answered here and kept up whatever instance serves."""
        session = self._sessions[event.session]
        if not session.greeted:
            self.refuse(session, event.id, "not_initialized", "")
            return
        view = self._outlook.view(session)
        route = view.route(event.uri)
        final = isinstance(route, Route) and route.by in ("listed", "named")
        if isinstance(route, Route) and route.server in self._outlook.unrooted(session):
            final = False
        who = (session.id, event.id)
        if patient and not final and self._outlook.unsettled(session, view):
            if who not in self._early:
                self._outlook.discover(session, view)
                self._early[who] = event
                self.watch_waits.arm(who, now, self.list_wait_s)
            return
        self._forget_early(who)
        if not isinstance(route, Route):
            self.refuse(session, event.id, "unknown_resource", "")
            return
        catalog = self._registry.catalog(route.key)
        if catalog is not None and "resources.subscribe" not in catalog.features:
            self.refuse(session, event.id, "unknown_method", f"{route.server} knows no subscriptions.")
            return
        if event.on:
            self.interests.subscribe(session.id, route.server, route.uri, event.uri)
        else:
            self.interests.unsubscribe(session.id, route.server, route.uri)
        self._out(Reply(session.id, event.id, is_error=False, body=EMPTY_OBJECT))
        self.say_interests()

    def _forget_early(self, who: tuple[SessionId, RawJson]) -> None:
        self._early.pop(who, None)
        self.watch_waits.disarm(who)

    def say_interests(self) -> None:
        """Tell the supervisor what it does not know yet of levels and subscriptions."""
        if self._ledger.credit_bytes is not None:
            for news in self.interests.news():
                self._out(news)

    def refuse(self, session: Session, request: RawJson, slug: str, detail: str = "") -> None:
        """Answer a request with an error of ours."""
        is_error, body = for_method(fault(slug, detail=detail), "")
        self._out(Reply(session.id, request, is_error, body))

    # --- time passes, catalogs come, agents go ---------------------------------------------------------

    def overdue(self, now: float) -> None:
        """What has waited long enough is decided by what is known."""
        lists, watches = list(self.list_waits.due(now)), list(self.watch_waits.due(now))
        names = [self._nameless.pop(call) for call in self.name_waits.due(now)]
        late = {*(who[0] for who in (*lists, *watches)), *(owed.session.id for owed in names)}
        rootless = self._unroot(late)
        for session_id, request in lists:
            session = self._sessions[session_id]
            if session_id in rootless and self._outlook.unsettled(session, self._outlook.view(session)):
                self.list_waits.arm((session_id, request), now, self.list_wait_s)
                continue
            self._outlook.slow |= self._outlook.view(session).unknown
            self._answer_list(session, request, session.lists.pop(request))
        for who in watches:
            self.watched(self._early.pop(who), now, patient=who[0] in rootless)
        for owed in names:
            self._outlook.slow |= self._outlook.view(owed.session).unknown
            self._resolve(owed, now, patient=owed.session.id in rootless)

    def _unroot(self, waited: set[SessionId]) -> set[SessionId]:
        """Agents that have not said their roots in time: what waited for that goes on with what is known, and
        may wait once more for the catalogs of that.
        """
        rootless = {who for who in waited if self._sessions[who].rooting}
        for who in rootless:
            session = self._sessions[who]
            session.rooting = False
            self._outlook.discover(session, self._outlook.view(session))
        return rootless

    def moved(self, now: float) -> None:
        """Catalogs or pool states are others now: what waited for that may go on."""
        if self.list_waits:
            for session in self._sessions.values():
                if session.lists and not self._outlook.unsettled(session, self._outlook.view(session)):
                    for request in list(session.lists):
                        self.list_waits.disarm((session.id, request))
                        self._answer_list(session, request, session.lists.pop(request))
        for owed in list(self._nameless.values()):
            self._resolve(owed, now, patient=True)
        for early in list(self._early.values()):
            self.watched(early, now, patient=True)

    def followed(self, session: Session) -> None:
        """The session sees other pools now. Its calls that have not left yet go there, and whatever waits for
        a catalog waits for theirs. Who holds a list is to hear of what they offer.
        """
        view = self._outlook.view(session)
        keys = {entry.server: entry.key for entry in session.scope.servers}
        for owed in session.waiting:
            key = keys.get(owed.server, owed.key)
            if key != owed.key:
                owed.key = key
                owed.edit = needed(view, key, session.version)
        if session.greeted and (
            session.lists
            or session.listed
            or any(owed.stage == "unresolved" for owed in session.owed.values())
            or any(who[0] == session.id for who in self._early)
        ):
            self._outlook.discover(session, view)

    def forget(self, session: Session) -> None:
        """The agent is gone, and nothing of it waits any more."""
        for request in session.lists:
            self.list_waits.disarm((session.id, request))
        for owed in session.owed.values():
            self._resolved(owed)
        for who in [who for who in self._early if who[0] == session.id]:
            self._forget_early(who)
        self.interests.forget(session.id)

    def next_deadline(self) -> float | None:
        """When something has waited long enough."""
        waits = (self.list_waits, self.name_waits, self.watch_waits)
        return min((at for each in waits if (at := each.next_deadline()) is not None), default=None)

    def check(self) -> None:
        """Assert every invariant."""
        self.interests.check(self._sessions)
        for session in self._sessions.values():
            for request in session.lists:
                assert (session.id, request) in self.list_waits
        unresolved = {call for call, owed in self._ledger.calls.items() if owed.stage == "unresolved"}
        assert unresolved == set(self._nameless)
        assert all(call in self.name_waits for call in unresolved)
        assert all(who in self.watch_waits and who[0] in self._sessions for who in self._early)


def notice_of(family: Family) -> Notice:
    """What the `list_changed` about this family is about."""
    return "resources" if family == "templates" else family
