"""What agents ask for, once it needs to know what they see: lists, calls by name, levels, subscriptions.

Owns which server a call goes to, and how long requests wait for catalogs that are on their way (`deferred`,
rule 18): `list_wait_s` at most, and shorter for `server/discover`, which is how an agent finds out whether
anybody is there at all. Composes the parts that answer lists (`lists`), subscriptions (`subscribe`), listens
(`listen_streams`) and requests about tasks (`tasks`), and the look at calls that are late to leave
(`recheck`).

Invariants (`check`): what waits for a catalog is in `deferred`: every call that has no place, every listen
that is not granted.
Knows nothing of: how calls travel and end (`call_table`), when views change.
"""

from collections.abc import Callable, Iterable
from typing import Final

from carpool_broker.core.calls.call_listener import Outcome
from carpool_broker.core.calls.call_table import Ledger
from carpool_broker.core.calls.input_required import Parked
from carpool_broker.core.calls.tasks import Tasks
from carpool_broker.core.configuration.session_views import FAILING, RETRIED, Outlook
from carpool_broker.core.model.answers import READ, is_keepable, refusal
from carpool_broker.core.model.effects import AnyEffect
from carpool_broker.core.model.events import (
    AgentCalled,
    AgentCancelled,
    AgentDiscovered,
    AgentListed,
    AgentListened,
    AgentWatched,
)
from carpool_broker.core.model.session import UNDER_WAY, Owed, Session
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_broker.core.registry.answer_rewrites import needed
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.registry.resolve import NoTarget, Target, find, meant, stays
from carpool_broker.core.registry.view import OwnTool, View, ViewTool
from carpool_broker.core.requests.builtin_calls import OwnCalls
from carpool_broker.core.requests.deferred import Deferred, DeferredRequests, Question
from carpool_broker.core.requests.list_freshness import Hints
from carpool_broker.core.requests.lists import METHODS, Lists
from carpool_broker.core.requests.recheck import SecondLook
from carpool_broker.core.subscriptions.listen_streams import Listens
from carpool_broker.core.subscriptions.subscribe import Watching
from carpool_broker.core.subscriptions.subscription_table import Interests
from carpool_protocol.faults.faults import TOOLS_CALL
from carpool_protocol.ids import PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import Discover, Feature
from carpool_protocol.wire.request_targets import TASKS

Out = Callable[[AnyEffect], None]

_FAMILIES: Final[dict[str, Feature]] = {
    TOOLS_CALL: "tools",
    "prompts/get": "prompts",
    "resources/read": "resources",
    "completion/complete": "completions",
}

DISCOVER_WAIT_S: Final = 2.0
"""The official SDKs give a server 10 s to answer before they take it for one of the handshake era."""

UNTOLD: Final = "It has not told yet what it offers: it may still be starting."
UNVERIFIED: Final = "Its tools are pinned, and it has not told yet what they are now."


class Requests:
    """Requests of all sessions that a view decides."""

    def __init__(
        self,
        sessions: dict[SessionId, Session],
        registry: Registry,
        outlook: Outlook,
        ledger: Ledger,
        out: Out,
        *,
        parked: Parked,
        timers: BrokerTimers,
        secret: bytes,
        life: int,
        list_wait_s: float,
    ) -> None:
        self._sessions = sessions
        self._registry = registry
        self._outlook = outlook
        self._ledger = ledger
        self._parked = parked
        self._out = out
        self.interests = Interests(
            lambda session: sessions[session].scope,
            lambda session, entry, uri: (
                sessions[session].scope.rights.are_all
                or outlook.view(sessions[session]).still_readable(entry, uri)
            ),
        )
        self.hints = Hints(registry, out)
        self.tasks = Tasks(sessions, registry, outlook, ledger, out, timers=timers, secret=secret, life=life)
        self.second_look = SecondLook(sessions, outlook, ledger, self.tasks)
        self.own = OwnCalls(ledger, self.hints, out)
        self.lists = Lists(outlook, self.hints, self.tasks, out)
        self.watching = Watching(sessions, registry, outlook, self.interests, out, tell=ledger.unread.updated)
        self.listens = Listens(sessions, outlook, self.interests, self.watching, out, tasks=self.tasks)
        self.list_wait_s = list_wait_s
        """How long anything waits for a catalog."""
        self.deferred = DeferredRequests(timers)
        self._waiting = self.deferred.by_session

    def called(self, event: AgentCalled, now: float) -> bool:
        """A request for one server. False: it is a retry of a call that is not parked here."""
        session = self._sessions.get(event.session)
        if session is None or self.objects(session, event):
            return True
        if event.own:
            event = self.meant(session, event)
        by = event.by
        if by is not None and event.state:
            return self._retry_parked(session, event, now)
        if by is not None and event.method in TASKS:
            self.tasks.asked(session, event, now)
        else:
            self.place(self._ledger.open(session, event), now)
        return True

    def _retry_parked(self, session: Session, event: AgentCalled, now: float) -> bool:
        """A request that brings what its call was parked for. False: that call is not here."""
        found = self._parked.find(session, event)
        if found is None:
            return False
        owed = self._parked.retried(found, event, now)
        if owed is not None:
            self.place(owed, now)
        return True

    def meant(self, session: Session, event: AgentCalled) -> AgentCalled:
        """The request that a call of a tool of our own stands for; any other as it is."""
        return self.own.meant(self._outlook.view(session), event) if event.own else event

    def objects(self, session: Session, event: AgentCalled) -> bool:
        """Whether it cannot be taken at all: then that is its answer."""
        by = event.by
        if by is None and not session.greeted:
            self.refuse(session, event.id, "not_initialized")
            return True
        if (
            event.id in session.owed
            or (self._waiting and self._is_open(session, event.id))
            or (by and event.id in session.listens)
        ):
            self._out(refusal(session, event.id, by, "duplicate_request_id", method=event.method))
            return True
        return False

    def _is_open(self, session: Session, request: RawJson) -> bool:
        """True if an open call or a waiting request has this id."""
        return request in session.owed or self.deferred.has(session.id, request)

    def asked(self, session: Session, event: Question, now: float) -> None:
        """Answer a request from the session's view, or let it wait."""
        if self._accepts(session, event) and not self._answer(session, event, now, patient=True):
            self._defer(Deferred(session, event), now)

    def _accepts(self, session: Session, event: Question) -> bool:
        """True if the request still needs an answer; False if it was answered or refused here."""
        if isinstance(event, AgentWatched):
            return self.watching.accepts(session, event)
        if isinstance(event, AgentListed) and not self.lists.accepts(session, event):
            return False
        if self._is_open(session, event.id) or event.id in session.listens:
            self._refuse_question(session, event, "duplicate_request_id")
            return False
        return not isinstance(event, AgentListened) or self.listens.accepts(session, event)

    def _answer(self, session: Session, event: Question, now: float, *, patient: bool) -> bool:
        """Answer it. False: it must wait, which only happens if `patient`."""
        match event:
            case AgentListed() | AgentDiscovered():
                return self.lists.answer(session, event, now, patient=patient)
            case AgentWatched():
                return self.watching.answer(session, event, patient=patient)
            case AgentListened():
                return self.listens.answer(session, event, patient=patient)

    def _refuse_question(self, session: Session, event: Question, slug: str) -> None:
        by = None if isinstance(event, AgentWatched) else event.by
        self._out(refusal(session, event.id, by, slug, method=_method(event)))

    def look_outward(self, owed: Owed) -> None:
        """Find out anew whether its answer is to be changed for its agent."""
        owed.edit = needed(self._outlook.view(owed.session), owed.key, owed.version)

    def end_early(self, owed: Owed, slug: str) -> None:
        """End a call with an error of ours, be it known where it goes or not."""
        if not owed.target and owed.asked.method not in TASKS:
            asked = owed.asked
            owed.server, owed.target = meant(self._outlook.view(owed.session), asked.method, asked.name)
        self._ledger.fail(owed, slug)

    def place(self, owed: Owed, now: float) -> None:
        """Have a call that is in the books served."""
        awaited = self._resolve(owed, now, patient=True)
        if awaited is not None and not self._ledger.admission.refuses(owed):
            self._defer(Deferred(owed.session, owed), now)
            self._outlook.seek(owed.session, self._outlook.view(owed.session), awaited)

    def _resolve(self, owed: Owed, now: float, *, patient: bool) -> tuple[PoolKey, ...] | None:
        """Find the server that is meant, and have the call go there; or answer it. Otherwise it is to wait:
        then these pools are to tell their catalogs first. `patient`: it may.
        """
        view = self._outlook.view(owed.session)
        asked = owed.asked
        if asked.method == TOOLS_CALL:  # most are, and most names are qualified: one look is all it takes
            tool = view.resolve(asked.name)
            if type(tool) is ViewTool and not owed.session.rooting and stays(view, asked.name, tool):
                owed.server, owed.target, owed.key = tool.server, tool.tool, tool.key
                self._enter(owed, view, now)
                return None
            if type(tool) is OwnTool:
                return self._answer_own(owed, tool, view, now, patient=patient)
        found = find(view, asked.method, asked.name)
        if patient and self._may_change(owed.session, view, found):
            return found.suspects if isinstance(found, NoTarget) else (found.key,)
        if isinstance(found, NoTarget):
            self._fail_unresolved(owed, view, found, now)
            return None
        owed.server, owed.target, owed.key = found.server, found.subject, found.key
        if not found.verified:
            self._ledger.fail(owed, "unavailable", UNVERIFIED, retry_after_s=1.0)
        elif asked.method != READ or not self._is_current(owed, view, now):
            self._enter(owed, view, now)
        return None

    def _answer_own(
        self, owed: Owed, tool: OwnTool, view: View, now: float, *, patient: bool
    ) -> tuple[PoolKey, ...] | None:
        """A tool of our own tells of what the session sees: as lists do, it waits until that is known."""
        if patient and self._outlook.unsettled(owed.session, view):
            return ()
        self._outlook.miss(view)
        self.own.answer(owed, tool, view, now)
        return None

    def _may_change(self, session: Session, view: View, found: Target | NoTarget) -> bool:
        """Whether it is worth waiting for a better place than what was found."""
        if isinstance(found, Target):
            if found.server in self._outlook.unrooted(session):
                return True
            if not found.verified:
                return not self._outlook.is_settled(found.key)
            if found.final or not self._outlook.unsettled(session, view):
                return False
        elif self._outlook.unrooted(session):
            return True
        suspects = found.suspects if isinstance(found, NoTarget) else tuple(view.unknown)
        return any(not self._outlook.is_settled(key) for key in suspects)

    def _is_current(self, owed: Owed, view: View, now: float) -> bool:
        """Whether it was answered a moment ago, and its server has said that this may be given again."""
        hooks = self._ledger.hooks
        if not is_keepable(owed) or (hooks is not None and hooks.matches(owed)):
            return False
        current = self._ledger.fresh.find(owed.key, owed.target, owed.session.id, now)
        if current is None:
            return False
        owed.edit = needed(view, owed.key, owed.version)
        self._ledger.note_end(owed, "kept", "no", current.body)
        self._ledger.give(owed, Outcome(False, current.body, current.ttl_ms, current.public))
        return True

    def _enter(self, owed: Owed, view: View, now: float) -> None:
        """It is known where the request goes."""
        owed.edit = needed(view, owed.key, owed.version)
        away = self._outlook.states.get(owed.key) if owed.key in view.away else None
        if away is not None and away.state != "half_open":
            if away.state in RETRIED:
                self._out(Discover(owed.key))
            self._ledger.fail(owed, *self._outlook.refusal(away, now))
        elif owed.session.anonymous and self._keeps_state(owed):
            self._ledger.fail(owed, "needs_session")
        else:
            self._ledger.admission.admit(owed, now)

    def _keeps_state(self, owed: Owed) -> bool:
        """Whether its server gives each agent an instance: for nobody there is none (rule 9)."""
        state = self._outlook.states.get(owed.key)
        return state is not None and state.mode == "session"

    def _fail_unresolved(self, owed: Owed, view: View, found: NoTarget, now: float) -> None:
        """Nobody has it; or whoever may have it is failing or not here: then that is the reason."""
        asked = owed.asked
        absent = self._outlook.absent(owed.session, found.name) if found.name else None
        if absent is None:
            for key in found.suspects:
                state = self._outlook.states.get(key)
                if state is not None and state.state in FAILING:
                    owed.server = next(entry.server for entry in view.scope.servers if entry.key == key)
                    if state.state in RETRIED:
                        self._out(Discover(key))
                    self._ledger.fail(owed, *self._outlook.refusal(state, now))
                    return
            if found.name and found.suspects:
                servers = [entry.server for entry in view.scope.servers if entry.key in found.suspects]
                owed.server = max(servers, key=len)  # the name that says the most
                self._ledger.fail(owed, "unavailable", UNTOLD, retry_after_s=1.0)
                return
            absent = self._outlook.unprefixed(owed.session) if found.name else None
        if absent is not None:
            owed.server, fault, why = absent
            self._ledger.fail(owed, fault or found.fault, why)
            return
        if asked.by is not None and not asked.own and _FAMILIES[asked.method] not in view.capabilities():
            self._ledger.fail(owed, "unknown_method")  # what is not announced is not served
            return
        owed.server, owed.target = ServerName(found.server), found.subject
        self._ledger.fail(owed, found.fault, found.detail)

    def cancelled(self, session: Session, event: AgentCancelled, now: float) -> None:
        """The agent no longer wants the answer to one of its requests."""
        self.deferred.remove(session.id, event.id)
        if not self._ledger.cancel(session, event.id, event.reason, now):
            self.listens.cancelled(session, event.id)

    def refuse(self, session: Session, request: RawJson, slug: str, detail: str = "") -> None:
        """Answer a request with an error of ours."""
        self._out(refusal(session, request, None, slug, detail=detail))

    # --- requests that wait: catalogs come, time passes -----------------------------------------------

    def _defer(self, deferred: Deferred, now: float) -> None:
        """Let it wait for the catalogs of its session's view."""
        session, request = deferred.session, deferred.request
        if isinstance(request, AgentWatched) and self._is_open(session, request.id):
            self._refuse_question(session, request, "duplicate_request_id")
            return
        self._outlook.discover(session, self._outlook.view(session))
        self._wait(deferred, now)

    def _wait(self, deferred: Deferred, now: float) -> None:
        is_short = isinstance(deferred.request, AgentDiscovered)
        wait_s = min(self.list_wait_s, DISCOVER_WAIT_S) if is_short else self.list_wait_s
        self.deferred.add(deferred, now, wait_s)

    def _retry(self, deferred: Deferred, now: float, *, patient: bool) -> bool:
        """Retry it. False: it must wait longer, which only happens if `patient`."""
        session, request = deferred.session, deferred.request
        if isinstance(request, Owed):
            return self._resolve(request, now, patient=patient) is None
        if not self._answer(session, request, now, patient=patient):
            return False
        if deferred.repeated and isinstance(request, AgentListed):
            self.lists.say_old(session)
        elif deferred.repeated and isinstance(request, AgentListened):
            self.listens.say_old(session, session.listens[request.id])
        return True

    def moved(self, now: float) -> None:
        """Catalogs, pool states or roots have changed: retry the waiting requests."""
        if self._waiting:
            for deferred in self.deferred.all():
                if self._retry(deferred, now, patient=True):
                    self.deferred.remove(deferred.session.id, deferred.id)
        self.watching.moved()

    def time_out(self, which: Iterable[tuple[SessionId, RawJson]], now: float) -> None:
        """The deadline of these requests has passed: answer them from the catalogs that are known."""
        late = self.deferred.take(which)
        rootless = self._unroot({deferred.session.id for deferred in late})
        for deferred in late:
            session = deferred.session
            patient = session.id in rootless
            if not patient and not isinstance(deferred.request, AgentDiscovered):
                self._outlook.slow |= self._outlook.view(session).unknown
            if not self._retry(deferred, now, patient=patient):
                self._wait(deferred, now)

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

    # --- agents move, come back and go -----------------------------------------------------------------

    def followed(self, session: Session) -> None:
        """The session sees other pools now. Its calls that have not left yet go there, and whatever waits for
        a catalog waits for theirs. Who holds a list is to hear of what they offer.
        """
        view = self._outlook.view(session)
        self.second_look.at_line(session)
        if session.served and (session.listed or session.listens or session.id in self._waiting):
            self._outlook.discover(session, view)

    def resumed(self, session: Session) -> None:
        """This session has come from an earlier broker. What it waits for here it has asked for there too."""
        for deferred in self.deferred.of(session.id):
            deferred.repeated = True
        self.listens.resumed(session)
        self.lists.say_old(session)

    def forget(self, session: Session) -> None:
        """The agent is gone, and nothing of it waits any more."""
        self.deferred.forget(session)
        self.listens.forget(session)
        self.tasks.forget(session)
        self.watching.forget(session)
        self.interests.forget(session.id)

    def refuse_waiting(self) -> None:
        """No call leaves any more: those that wait for that, and that nobody says again, are answered."""
        for session in self._sessions.values():
            if not session.keeps:
                for owed in list(session.waiting):
                    self._ledger.fail(owed, "closing")

    def end(self, *, again: bool = False) -> None:
        """Carpool ends: what waits or is open is answered now. What has left us may have been executed.

        `again`: what was never sent is left as it is where the carrier says it anew.
        """
        for owed in list(self._ledger.calls.values()):
            if owed.stage in UNDER_WAY:
                self.end_early(owed, "cut_off")
            elif not (again and owed.session.keeps):
                self.deferred.remove(owed.session.id, owed.asked.id)
                self.end_early(owed, "closing")
        for deferred in self.deferred.all():
            session, request = deferred.session, deferred.request
            if not isinstance(request, Owed) and not (again and session.keeps):
                self.deferred.remove(session.id, deferred.id)
                self.listens.cancelled(session, deferred.id)
                self._refuse_question(session, request, "closing")

    def check(self) -> None:
        """Assert every invariant."""
        self.interests.check(self._sessions)
        self.deferred.check(self._sessions)
        self.watching.check()
        self.listens.check()
        self.tasks.check()
        waiting = self.deferred.all()
        unresolved = {owed for owed in self._ledger.calls.values() if owed.stage == "unresolved"}
        assert unresolved == {each.request for each in waiting if isinstance(each.request, Owed)}
        ungranted = {
            (session.id, request)
            for session in self._sessions.values()
            for request, listen in session.listens.items()
            if not listen.granted
        }
        listening = [each for each in waiting if isinstance(each.request, AgentListened)]
        assert ungranted == {(each.session.id, each.id) for each in listening}


def _method(event: Question) -> str:
    match event:
        case AgentListed():
            return METHODS[event.family]
        case AgentDiscovered():
            return "server/discover"
        case AgentListened():
            return "subscriptions/listen"
        case AgentWatched():
            return "resources/subscribe" if event.on else "resources/unsubscribe"
