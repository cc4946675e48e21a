"""What agents ask for, once it needs to know what they see: lists, calls by name, levels, subscriptions.

Owns which server a call goes to and names that nobody knows yet, which wait for a catalog that may still
tell (rule 18), bounded by `list_wait_s`. Composes what waits likewise: first pages (`lists`), subscriptions
(`subscribe`, `listen_streams`); what goes to a server without a name: requests about tasks (`tasks`); and
the look at calls that are late to leave (`recheck`).

Invariants (`check`): what waits has a deadline and belongs to a session that is there.
Knows nothing of: how calls travel and end (`call_table`), when views change.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from carpool_broker.core.calls.call_listener import Outcome
from carpool_broker.core.calls.call_table import Ledger
from carpool_broker.core.calls.tasks import Tasks
from carpool_broker.core.configuration.session_views import FAILING, RETRIED, Outlook
from carpool_broker.core.model.answers import READ, is_keepable, refusal
from carpool_broker.core.model.effects import AnyEffect
from carpool_broker.core.model.events import AgentCalled, AgentCancelled
from carpool_broker.core.model.session import UNDER_WAY, Owed, Session
from carpool_broker.core.registry.answer_rewrites import needed
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.registry.resolve import NoTarget, Target, find, meant, stays
from carpool_broker.core.registry.view import OwnTool, View, ViewTool
from carpool_broker.core.requests.builtin_calls import OwnCalls
from carpool_broker.core.requests.list_freshness import Hints
from carpool_broker.core.requests.lists import Lists
from carpool_broker.core.requests.recheck import SecondLook
from carpool_broker.core.subscriptions.listen_streams import Listens
from carpool_broker.core.subscriptions.subscribe import Watching
from carpool_broker.core.subscriptions.subscription_table import Interests
from carpool_protocol.faults.faults import TOOLS_CALL
from carpool_protocol.ids import CallId, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import Discover, Feature
from carpool_protocol.machine.deadlines import Deadlines
from carpool_protocol.wire.request_targets import TASKS

Out = Callable[[AnyEffect], None]

_FAMILIES: Final[dict[str, Feature]] = {
    TOOLS_CALL: "tools",
    "prompts/get": "prompts",
    "resources/read": "resources",
    "completion/complete": "completions",
}


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
    ) -> None:
        self._sessions = sessions
        self._registry = registry
        self._outlook = outlook
        self._ledger = ledger
        self._out = out
        self.interests = Interests(
            lambda session: sessions[session].scope,
            lambda session, entry, uri: (
                sessions[session].scope.rights.are_all
                or outlook.view(sessions[session]).still_readable(entry, uri)
            ),
        )
        self.hints = Hints(registry, out)
        self.tasks = Tasks(sessions, registry, outlook, ledger, out)
        self.second_look = SecondLook(sessions, outlook, ledger, self.tasks)
        self.own = OwnCalls(ledger, self.hints, out)
        self.lists = Lists(sessions, outlook, self.hints, self.tasks, out)
        self.watching = Watching(sessions, registry, outlook, self.interests, out)
        self.watching.linked = lambda: ledger.admission.credit_bytes is not None
        self.listens = Listens(sessions, outlook, self.interests, self.watching, out, tasks=self.tasks)
        self.retried: Callable[[Session, AgentCalled, float], None] = lambda *_: None
        """What becomes of a call that brings what it was asked for."""
        self.name_waits: Deadlines[CallId] = Deadlines()
        self._nameless: dict[CallId, Owed] = {}

    @property
    def list_wait_s(self) -> float:
        """How long anything waits for a catalog."""
        return self.lists.wait_s

    @list_wait_s.setter
    def list_wait_s(self, wait_s: float) -> None:
        self.lists.wait_s = self.watching.wait_s = self.listens.wait_s = wait_s

    def called(self, event: AgentCalled, now: float) -> None:
        """A request for one server."""
        session = self._sessions.get(event.session)
        if session is None:
            return
        if self.objects(session, event):
            return
        if event.own:
            event = self.meant(session, event)
        by = event.by
        if by is not None and event.state:
            self.retried(session, event, now)
            return
        if by is not None and event.method in TASKS:
            self.tasks.asked(session, event, now)
            return
        self._resolve(self._ledger.open(session, event), now, patient=True)

    def meant(self, session: Session, event: AgentCalled) -> AgentCalled:
        """The request that a call of a tool of our own stands for; any other as it is."""
        return self.own.meant(self._outlook.view(session), event) if event.own else event

    def objects(self, session: Session, event: AgentCalled) -> bool:
        """Whether it cannot be taken at all: then that is its answer."""
        by = event.by
        if by is None and not session.greeted:
            self.refuse(session, event.id, "not_initialized")
            return True
        if event.id in session.owed or event.id in session.lists or (by and event.id in session.listens):
            self._out(refusal(session, event.id, by, "duplicate_request_id", method=event.method))
            return True
        return False

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
        self._resolve(owed, now, patient=True)

    def _resolve(self, owed: Owed, now: float, *, patient: bool) -> None:
        """Find the server that is meant. `patient`: a catalog that is on its way may still tell."""
        view = self._outlook.view(owed.session)
        asked = owed.asked
        if asked.method == TOOLS_CALL:  # most are, and most names are qualified: one look is all it takes
            tool = view.resolve(asked.name)
            if type(tool) is ViewTool and not owed.session.rooting and stays(view, asked.name, tool):
                owed.server, owed.target, owed.key = tool.server, tool.tool, tool.key
                self._enter(owed, view, now)
                return
            if type(tool) is OwnTool:
                self._answer_own(owed, tool, view, now, patient=patient)
                return
        found = find(view, asked.method, asked.name)
        if patient and self._may_change(owed.session, view, found):
            if self._waits(owed, view, now):
                suspects = found.suspects if isinstance(found, NoTarget) else (found.key,)
                self._outlook.seek(owed.session, view, suspects)
            return
        if isinstance(found, Target):
            owed.server, owed.target, owed.key = found.server, found.subject, found.key
            if not found.verified:
                self._resolved(owed)
                self._ledger.fail(owed, "unavailable", UNVERIFIED, retry_after_s=1.0)
                return
            if asked.method != READ or not self._is_current(owed, view, now):
                self._enter(owed, view, now)
            return
        self._resolved(owed)
        self._fail_unresolved(owed, view, found, now)

    def _waits(self, owed: Owed, view: View, now: float) -> bool:
        """Have it wait for the catalogs of this view; whether it does, and did not before."""
        if owed.call in self.name_waits or self._ledger.admission.refuses(owed):
            return False
        self._outlook.discover(owed.session, view)
        self._nameless[owed.call] = owed
        self.name_waits.arm(owed.call, now, self.lists.wait_s)
        return True

    def _answer_own(self, owed: Owed, tool: OwnTool, view: View, now: float, *, patient: bool) -> None:
        """A tool of our own tells of what the session sees: as lists do, it waits until that is known."""
        if patient and self._outlook.unsettled(owed.session, view):
            self._waits(owed, view, now)
            return
        self._resolved(owed)
        self._outlook.miss(view)
        self.own.answer(owed, tool, view, now)

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
        self._resolved(owed)
        owed.edit = needed(view, owed.key, owed.version)
        self._ledger.note_end(owed, "kept", "no", current.body)
        self._ledger.give(owed, Outcome(False, current.body, current.ttl_ms, current.public))
        return True

    def _enter(self, owed: Owed, view: View, now: float) -> None:
        """It is known where the request goes."""
        if self._nameless:
            self._resolved(owed)
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
        elif not self.lists.cancelled(session, event.id) and not self.listens.cancelled(session, event.id):
            self.watching.cancelled(session, event.id)

    def refuse(self, session: Session, request: RawJson, slug: str, detail: str = "") -> None:
        """Answer a request with an error of ours."""
        self._out(refusal(session, request, None, slug, detail=detail))

    # --- time passes, catalogs come, agents go ---------------------------------------------------------

    def overdue(self, now: float) -> None:
        """What has waited long enough is decided by what is known."""
        self.tasks.overdue(now)
        lists, watches = list(self.lists.waits.due(now)), list(self.watching.waits.due(now))
        listens = list(self.listens.waits.due(now))
        names = [self._nameless.pop(call) for call in self.name_waits.due(now)]
        late = {who[0] for who in (*lists, *watches, *listens)} | {owed.session.id for owed in names}
        rootless = self._unroot(late)
        for who in lists:
            session = self._sessions[who[0]]
            if who[0] in rootless and self._outlook.unsettled(session, self._outlook.view(session)):
                self.lists.again(who, now)
            else:
                self.lists.waited(who, now)
        for who in watches:
            self.watching.waited(who, now, patient=who[0] in rootless)
        for who in listens:
            self.listens.waited(who, now, patient=who[0] in rootless)
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
        self.lists.moved(now)
        for owed in list(self._nameless.values()):
            self._resolve(owed, now, patient=True)
        self.watching.moved(now)
        self.listens.moved(now)

    def followed(self, session: Session) -> None:
        """The session sees other pools now. Its calls that have not left yet go there, and whatever waits for
        a catalog waits for theirs. Who holds a list is to hear of what they offer.
        """
        view = self._outlook.view(session)
        self.second_look.at_line(session)
        if session.served and (
            session.lists
            or session.listed
            or session.listens
            or any(owed.stage == "unresolved" for owed in session.owed.values())
            or self.watching.has_early(session)
        ):
            self._outlook.discover(session, view)

    def forget(self, session: Session) -> None:
        """The agent is gone, and nothing of it waits any more."""
        self.lists.forget(session)
        self.listens.forget(session)
        self.tasks.forget(session)
        self.watching.forget(session)
        for owed in session.owed.values():
            self._resolved(owed)
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
                self._resolved(owed)
                self.end_early(owed, "closing")
        for session in self._sessions.values():
            if not (again and session.keeps):
                for request, event in list(session.lists.items()):
                    self.lists.cancelled(session, request)
                    self._out(refusal(session, request, event.by, "closing"))

    def deadlines(self) -> Iterable[Deadlines[Any]]:
        """When something has waited long enough."""
        waits = (self.lists.waits, self.name_waits, self.watching.waits, self.listens.waits)
        return (*waits, self.tasks.expiring)

    def check(self) -> None:
        """Assert every invariant."""
        self.interests.check(self._sessions)
        self.lists.check()
        self.watching.check()
        self.listens.check()
        self.tasks.check()
        unresolved = {call for call, owed in self._ledger.calls.items() if owed.stage == "unresolved"}
        assert unresolved == set(self._nameless)
        assert all(call in self.name_waits for call in unresolved)
