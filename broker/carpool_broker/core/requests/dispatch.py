"""Requests that depend on what the session sees: lists, calls by name, log levels, subscriptions.

Owns which server a call goes to, and how long requests wait for catalogs that are still to come (`deferred`;
docs/rules.md, rule 18): `list_wait_s` at most, and less for `server/discover`, with which agents find out
whether a server is there at all. Composes the parts that answer lists (`lists`), subscriptions
(`subscribe`), listens (`listen_streams`) and requests about tasks (`tasks`), and the second check of calls
that are sent late (`recheck`).

Invariants (`check`): every call without a server and every listen that is not granted is in `deferred`.
Refuses to know: how calls are sent and end (`call_table`), when views change.
"""

from collections.abc import Callable, Iterable
from typing import Final

from carpool_broker.core.calls.call_listeners import CallResult
from carpool_broker.core.calls.call_table import CallTable
from carpool_broker.core.calls.input_required import ParkedCalls
from carpool_broker.core.calls.tasks import AgentTasks
from carpool_broker.core.configuration.session_views import FAILING_STATES, RETRIED_STATES, SessionViews
from carpool_broker.core.limits.guess_budget import GuessBudget
from carpool_broker.core.limits.memory_budgets import SubscriptionBudget
from carpool_broker.core.model.answers import RESOURCES_READ, error_reply, is_cacheable
from carpool_broker.core.model.effects import AnyEffect
from carpool_broker.core.model.events import (
    CallRequested,
    DiscoverRequested,
    ListenRequested,
    ListPageRequested,
    RequestCancelled,
    SubscribeRequested,
)
from carpool_broker.core.model.session import UNFINISHED, OpenCall, Session
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_broker.core.registry.answer_rewrites import needs_rewrite
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.registry.request_target import (
    NoTarget,
    Target,
    error_subject,
    find_target,
    is_stable,
    with_similar_names,
)
from carpool_broker.core.registry.view import BuiltinTool, View, ViewTool
from carpool_broker.core.requests.builtin_calls import BuiltinToolCalls
from carpool_broker.core.requests.deferred import Deferred, DeferredRequests, Question
from carpool_broker.core.requests.list_freshness import ListFreshness
from carpool_broker.core.requests.lists import METHODS, ListRequests
from carpool_broker.core.requests.recheck import CallRecheck
from carpool_broker.core.subscriptions.listen_streams import ListenStreams
from carpool_broker.core.subscriptions.resource_updates import ResourceUpdates
from carpool_broker.core.subscriptions.subscribe import SubscribeRequests
from carpool_broker.core.subscriptions.subscription_table import SubscriptionTable
from carpool_protocol.faults.fault_answers import TOOLS_CALL
from carpool_protocol.ids import CallId, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import DiscoverCatalog, EndCall, Feature
from carpool_protocol.wire.request_targets import TASK_ID_KEYS

Emit = Callable[[AnyEffect], None]

_FAMILIES: Final[dict[str, Feature]] = {
    TOOLS_CALL: "tools",
    "prompts/get": "prompts",
    "resources/read": "resources",
    "completion/complete": "completions",
}

DISCOVER_WAIT_S: Final = 2.0
"""The official SDKs give a server 10 s to answer before they take it for one of the handshake era."""

CATALOG_MISSING: Final = "It has not told yet what it offers: it may still be starting."
CATALOG_MISSING_BECAUSE: Final = "It has not told yet what it offers."
"""The same before the reason that the supervisor has told."""
MAY_HAVE_URI: Final = "No server lists this URI. This one may have it, and has not told what it offers."
"""Before the reason why a server fails, for a URI that names no server."""
PINNED_NOT_TOLD: Final = "Its tools are pinned, and it has not told yet what they are now."


class RequestDispatch:
    """The requests of all sessions that depend on a view."""

    def __init__(
        self,
        sessions: dict[SessionId, Session],
        registry: Registry,
        session_views: SessionViews,
        call_table: CallTable,
        out: Emit,
        *,
        parked: ParkedCalls,
        timers: BrokerTimers,
        secret: bytes,
        life: int,
        list_wait_s: float,
    ) -> None:
        self._sessions = sessions
        self._registry = registry
        self._session_views = session_views
        self._call_table = call_table
        self._parked = parked
        self._emit = out
        self.subscription_budget = SubscriptionBudget()
        self.subscriptions = SubscriptionTable(
            lambda session: sessions[session].scope,
            lambda session, entry, uri: (
                sessions[session].scope.rights.are_all
                or session_views.view_of(sessions[session]).still_readable(entry, uri)
            ),
            lambda session, size_bytes: self.subscription_budget.count(sessions[session], size_bytes),
            lambda session: sessions[session].principal,
        )
        self.resource_updates = ResourceUpdates(
            sessions, session_views, call_table, self.subscriptions, out, timers=timers
        )
        self.list_freshness = ListFreshness(registry, out)
        self.tasks = AgentTasks(
            sessions, registry, session_views, call_table, out, timers=timers, secret=secret, life=life
        )
        self.recheck = CallRecheck(sessions, session_views, call_table, self.tasks)
        self.builtin_calls = BuiltinToolCalls(call_table, self.list_freshness, out)
        self.lists = ListRequests(session_views, self.list_freshness, self.tasks, out)
        self.subscribe = SubscribeRequests(
            sessions,
            registry,
            session_views,
            self.subscriptions,
            out,
            budget=self.subscription_budget,
            tell=self.resource_updates.tell,
        )
        self.listen_streams = ListenStreams(
            sessions,
            session_views,
            self.subscriptions,
            self.subscribe,
            out,
            budget=self.subscription_budget,
            tasks=self.tasks,
        )
        self.guess_budget = GuessBudget()
        self.list_wait_s = list_wait_s
        """The longest time that a request waits for a catalog."""
        self.deferred = DeferredRequests(timers)
        self._waiting = self.deferred.by_session

    def call_requested(self, event: CallRequested, now: float) -> bool:
        """A request for one server has come. Returns False for a retry of a call that is not parked here."""
        session = self._sessions.get(event.session)
        if session is None or self.refuse_invalid(session, event):
            return True
        if event.own:
            event = self.target_call(session, event)
        by = event.by
        if by is not None and event.state:
            return self._retry_parked(session, event, now)
        if by is not None and event.method in TASK_ID_KEYS:
            self.tasks.task_requested(session, event, now)
        else:
            self.dispatch_call(self._call_table.open(session, event), now)
        return True

    def _retry_parked(self, session: Session, event: CallRequested, now: float) -> bool:
        """Give a retry to its parked call. Returns False if that call is not here."""
        found = self._parked.find(session, event)
        if found is None:
            return False
        open_call = self._parked.retry_received(found, event, now)
        if open_call is not None:
            self.dispatch_call(open_call, now)
        return True

    def target_call(self, session: Session, event: CallRequested) -> CallRequested:
        """Return the request that a call of one of carpool's own tools stands for; any other request as it
        is.
        """
        return (
            self.builtin_calls.target_call(self._session_views.view_of(session), event)
            if event.own
            else event
        )

    def refuse_invalid(self, session: Session, event: CallRequested) -> bool:
        """Refuse a request that can never be served. Returns False if it can."""
        by = event.by
        if by is None and not session.greeted:
            self.refuse(session, event.id, "not_initialized")
            return True
        if (
            event.id in session.open_calls
            or (self._waiting and self._is_open(session, event.id))
            or (by and event.id in session.listens)
        ):
            self._emit(error_reply(session, event.id, by, "duplicate_request_id", method=event.method))
            return True
        return False

    def _is_open(self, session: Session, request: RawJson) -> bool:
        """True if an open call or a waiting request has this id."""
        return request in session.open_calls or self.deferred.has(session.id, request)

    def asked(self, session: Session, event: Question, now: float) -> None:
        """Answer a request from the session's view, or defer it."""
        if self._accepts(session, event) and not self._answer(session, event, now, patient=True):
            self._defer(Deferred(session, event), now)

    def _accepts(self, session: Session, event: Question) -> bool:
        """True if the request still needs an answer; False if it was answered or refused here."""
        if isinstance(event, SubscribeRequested):
            return self.subscribe.accepts(session, event)
        if isinstance(event, ListPageRequested) and not self.lists.accepts(session, event):
            return False
        if self._is_open(session, event.id) or event.id in session.listens:
            self._refuse_question(session, event, "duplicate_request_id")
            return False
        return not isinstance(event, ListenRequested) or self.listen_streams.accepts(session, event)

    def _answer(self, session: Session, event: Question, now: float, *, patient: bool) -> bool:
        """Answer the request. False: it must wait, which only happens if `patient`."""
        match event:
            case ListPageRequested() | DiscoverRequested():
                return self.lists.answer(session, event, now, patient=patient)
            case SubscribeRequested():
                return self.subscribe.answer(session, event, patient=patient)
            case ListenRequested():
                return self.listen_streams.answer(session, event, patient=patient)

    def _refuse_question(self, session: Session, event: Question, slug: str) -> None:
        by = None if isinstance(event, SubscribeRequested) else event.by
        self._emit(error_reply(session, event.id, by, slug, method=_method(event)))

    def update_rewrite(self, open_call: OpenCall) -> None:
        """Decide again whether the answer of this call must be rewritten for its agent."""
        open_call.edit = needs_rewrite(
            self._session_views.view_of(open_call.session), open_call.key, open_call.version
        )

    def end_call(self, open_call: OpenCall, slug: str) -> None:
        """End a call with an error of ours, whether its server is known or not."""
        if not open_call.target and open_call.asked.method not in TASK_ID_KEYS:
            asked = open_call.asked
            open_call.server, open_call.target = error_subject(
                self._session_views.view_of(open_call.session), asked.method, asked.name
            )
        self._call_table.fail(open_call, slug)

    def dispatch_call(self, open_call: OpenCall, now: float) -> None:
        """Resolve an open call and send it, answer it, or defer it."""
        awaited = self._resolve(open_call, now, patient=True)
        if awaited is not None and not self._call_table.admission.refuse_if_full(open_call):
            self._defer(Deferred(open_call.session, open_call), now)
            self._session_views.discover_first(
                open_call.session, self._session_views.view_of(open_call.session), awaited
            )

    def _resolve(self, open_call: OpenCall, now: float, *, patient: bool) -> tuple[PoolKey, ...] | None:
        """Find the server of a call and send the call there, or answer it. If it must wait, which only
        happens if `patient`, return the pools that must tell their catalogs first.
        """
        view = self._session_views.view_of(open_call.session)
        asked = open_call.asked
        if asked.method == TOOLS_CALL:  # most are, and most names are qualified: one look is all it takes
            tool = view.resolve(asked.name)
            if (
                type(tool) is ViewTool
                and not open_call.session.awaits_roots
                and is_stable(view, asked.name, tool)
            ):
                open_call.server, open_call.target, open_call.key = tool.server, tool.tool, tool.key
                self._target_found(open_call, view, now)
                return None
            if type(tool) is BuiltinTool:
                return self._answer_builtin(open_call, tool, view, now, patient=patient)
        found = find_target(view, asked.method, asked.name)
        if patient and self._may_resolve_better(open_call.session, view, found):
            return found.suspects if isinstance(found, NoTarget) else (found.key,)
        if isinstance(found, NoTarget):
            self._fail_unresolved(open_call, view, found, now)
            return None
        open_call.server, open_call.target, open_call.key = found.server, found.subject, found.key
        if not found.verified:
            self._call_table.fail(open_call, "unavailable", PINNED_NOT_TOLD, retry_after_s=1.0)
        elif asked.method != RESOURCES_READ or not self._answer_from_cache(open_call, view, now):
            self._target_found(open_call, view, now)
        return None

    def _answer_builtin(
        self, open_call: OpenCall, tool: BuiltinTool, view: View, now: float, *, patient: bool
    ) -> tuple[PoolKey, ...] | None:
        """Answer a call of one of carpool's own tools. Like lists it waits until what the session sees is
        known.
        """
        if patient and self._session_views.has_pending_servers(open_call.session, view):
            return ()
        self._session_views.report_missed(view)
        self.builtin_calls.answer_call(open_call, tool, view, now)
        return None

    def _may_resolve_better(self, session: Session, view: View, found: Target | NoTarget) -> bool:
        """True if waiting can lead to a better target than what was found."""
        if isinstance(found, Target):
            if found.server in self._session_views.servers_awaiting_roots(session):
                return True
            if not found.verified:
                return not self._session_views.is_settled(found.key)
            if found.final or not self._session_views.has_pending_servers(session, view):
                return False
        elif self._session_views.servers_awaiting_roots(session):
            return True
        suspects = found.suspects if isinstance(found, NoTarget) else tuple(view.unknown_pools)
        return any(not self._session_views.is_settled(key) for key in suspects)

    def _answer_from_cache(self, open_call: OpenCall, view: View, now: float) -> bool:
        """Answer a read of a resource from the cache, if the server has permitted that. Returns False if it
        cannot, or if the agent leaves so much unread that its calls wait.
        """
        hooks = self._call_table.hook_points
        if self._call_table.unread.is_behind(open_call.session):
            return False
        if not is_cacheable(open_call) or (hooks is not None and hooks.concerns(open_call)):
            return False
        current = self._call_table.resource_cache.find(
            open_call.key, open_call.target, open_call.session.id, now
        )
        if current is None:
            return False
        open_call.edit = needs_rewrite(view, open_call.key, open_call.version)
        self._call_table.note_end(open_call, "kept", "no", current.body)
        self._call_table.end(open_call, CallResult(False, current.body, current.ttl_ms, current.public))
        return True

    def _target_found(self, open_call: OpenCall, view: View, now: float) -> None:
        """The server of the call is known: send the call, or refuse it where the pool cannot take it."""
        open_call.edit = needs_rewrite(view, open_call.key, open_call.version)
        away = self._session_views.states.get(open_call.key) if open_call.key in view.hidden_pools else None
        if away is not None and away.state != "half_open":
            if away.state in RETRIED_STATES:
                self._emit(DiscoverCatalog(open_call.key))
            self._call_table.fail(open_call, *self._session_views.pool_refusal(away, now))
        elif open_call.session.anonymous and self._needs_instance_per_agent(open_call):
            self._call_table.fail(open_call, "needs_session")
        else:
            self._call_table.admission.admit(open_call, now)

    def _needs_instance_per_agent(self, open_call: OpenCall) -> bool:
        """True if the server gives each agent an instance of its own, which an anonymous agent cannot have
        (docs/rules.md, rule 9).
        """
        state = self._session_views.states.get(open_call.key)
        return state is not None and state.mode == "session"

    def _fail_unresolved(self, open_call: OpenCall, view: View, found: NoTarget, now: float) -> None:
        """Refuse a call whose name no server has. Where a server that may have it fails or is absent, that
        is the reason.
        """
        asked = open_call.asked
        absent = self._session_views.absent_server(open_call.session, found.name) if found.name else None
        if absent is None:
            for key in found.suspects:
                state = self._session_views.states.get(key)
                if state is not None and state.state in FAILING_STATES:
                    open_call.server = next(entry.server for entry in view.scope.servers if entry.key == key)
                    if state.state in RETRIED_STATES:
                        self._emit(DiscoverCatalog(key))
                    fault, why, retry_after_s = self._session_views.pool_refusal(state, now)
                    detail = why if found.name else f"{MAY_HAVE_URI} {why}".rstrip()
                    self._call_table.fail(open_call, fault, detail, retry_after_s)
                    return
            if found.name and found.suspects:
                servers = [entry.server for entry in view.scope.servers if entry.key in found.suspects]
                open_call.server = max(servers, key=len)  # the name that says the most
                states = [self._session_views.states.get(key) for key in found.suspects]
                whys = [each.reason for each in states if each is not None and each.state == "starting"]
                why = next((f"{CATALOG_MISSING_BECAUSE} {each}" for each in whys if each), CATALOG_MISSING)
                self._call_table.fail(open_call, "unavailable", why, retry_after_s=1.0)
                return
            absent = self._session_views.unprefixed_server(open_call.session) if found.name else None
        if absent is not None:
            open_call.server, fault, why = absent
            self._call_table.fail(open_call, fault or found.fault, why)
            return
        if asked.by is not None and not asked.own and _FAMILIES[asked.method] not in view.capabilities():
            self._call_table.fail(open_call, "unknown_method")  # what is not announced is not served
            return
        open_call.server, open_call.target = ServerName(found.server), found.subject or asked.name
        detail = found.detail
        if found.name and self.guess_budget.take(open_call.session, now):
            detail = with_similar_names(view, asked.method, found)
        is_missing = bool(found.name) or found.fault == "unknown_resource"
        broken = self._session_views.broken_files(open_call.session) if is_missing else ""
        self._call_table.fail(open_call, found.fault, " ".join(filter(None, (detail, broken))))

    def request_cancelled(self, session: Session, event: RequestCancelled, now: float) -> None:
        """The agent no longer wants the answer to one of its requests."""
        self.deferred.remove(session.id, event.id)
        if not self._call_table.cancel(session, event.id, event.reason, now):
            self.listen_streams.cancel_listen(session, event.id)

    def cancelled_by_operator(self, call: CallId, token: int, now: float) -> None:
        """An operator has cancelled a call: its agent gets an error, which says if the server may run it.

        The supervisor knows that of a call that was sent, ends it, and answers with this token. A call whose
        record is not complete goes on (`returning`).
        """
        open_call = self._call_table.calls.get(call)
        if open_call is None or open_call.stage == "returning":
            return
        if open_call.stage == "sent":
            self._emit(EndCall(call, token))
            return
        session = open_call.session
        self.deferred.remove(session.id, open_call.asked.id)
        has_run = open_call.stage == "told"
        self.end_call(open_call, "operator_cancelled" if has_run else "operator_cancelled_unsent")
        self._call_table.admission.send_queued(session, now)

    def refuse(self, session: Session, request: RawJson, slug: str, detail: str = "") -> None:
        """Answer a request with an error of ours."""
        self._emit(error_reply(session, request, None, slug, detail=detail))

    # --- requests that wait: catalogs come, time passes -----------------------------------------------

    def _defer(self, deferred: Deferred, now: float) -> None:
        """Defer a request until the catalogs of its session's view are known."""
        session, request = deferred.session, deferred.request
        if isinstance(request, SubscribeRequested) and self._is_open(session, request.id):
            self._refuse_question(session, request, "duplicate_request_id")
            return
        self._session_views.discover_catalogs(session, self._session_views.view_of(session))
        self._wait(deferred, now)

    def _wait(self, deferred: Deferred, now: float) -> None:
        is_short = isinstance(deferred.request, DiscoverRequested)
        wait_s = min(self.list_wait_s, DISCOVER_WAIT_S) if is_short else self.list_wait_s
        self.deferred.add(deferred, now, wait_s)

    def _retry(self, deferred: Deferred, now: float, *, patient: bool) -> bool:
        """Retry a request. False: it must wait longer, which only happens if `patient`."""
        session, request = deferred.session, deferred.request
        if isinstance(request, OpenCall):
            return self._resolve(request, now, patient=patient) is None
        if not self._answer(session, request, now, patient=patient):
            return False
        if deferred.repeated and isinstance(request, ListPageRequested):
            self.lists.say_old(session)
        elif deferred.repeated and isinstance(request, ListenRequested):
            self.listen_streams.say_old(session, session.listens[request.id])
        return True

    def catalogs_changed(self, now: float) -> None:
        """Catalogs, pool states or roots have changed: retry the waiting requests."""
        if self._waiting:
            with self._session_views.sharing_findings():
                for deferred in self.deferred.all():
                    if self._retry(deferred, now, patient=True):
                        self.deferred.remove(deferred.session.id, deferred.id)
        self.subscribe.catalogs_changed()

    def time_out(self, which: Iterable[tuple[SessionId, RawJson]], now: float) -> None:
        """The deadline of these requests has passed: answer them from the catalogs that are known."""
        late = self.deferred.take(which)
        rootless = self._roots_wait_expired({deferred.session.id for deferred in late})
        views = {
            self._session_views.view_of(deferred.session)
            for deferred in late
            if deferred.session.id not in rootless and not isinstance(deferred.request, DiscoverRequested)
        }
        for view in views:
            self._session_views.slow |= view.unknown_pools
        with self._session_views.sharing_findings():
            for deferred in late:
                patient = deferred.session.id in rootless
                if not self._retry(deferred, now, patient=patient):
                    self._wait(deferred, now)

    def _roots_wait_expired(self, waited: set[SessionId]) -> set[SessionId]:
        """Give up waiting for the roots of these agents. Their requests go on with what is known, and may
        wait once more for the catalogs of that.
        """
        rootless = {who for who in waited if self._sessions[who].awaits_roots}
        for who in rootless:
            session = self._sessions[who]
            session.awaits_roots = False
            self._session_views.discover_catalogs(session, self._session_views.view_of(session))
        return rootless

    # --- agents move, come back and go -----------------------------------------------------------------

    def scope_changed(self, session: Session) -> None:
        """The session sees other pools now. Its calls that are not sent go there, its deferred requests wait
        for the catalogs of those pools, and agents that hold lists are told of changes.
        """
        view = self._session_views.view_of(session)
        self.recheck.recheck_session(session)
        if session.may_use_servers and (session.listed or session.listens or session.id in self._waiting):
            self._session_views.discover_catalogs(session, view)

    def resumed(self, session: Session) -> None:
        """The session has come from an earlier broker: its deferred requests were sent to that one first."""
        for deferred in self.deferred.of(session.id):
            deferred.repeated = True
        self.listen_streams.session_resumed(session)
        self.lists.say_old(session)

    def session_closed(self, session: Session) -> None:
        """The session has closed: drop its deferred requests."""
        self.deferred.forget(session)
        self.listen_streams.session_closed(session)
        self.tasks.session_closed(session)
        self.subscribe.session_closed(session)
        self.resource_updates.session_closed(session)
        self.subscriptions.session_closed(session.id)
        self.subscription_budget.session_closed(session)

    def refuse_queued(self) -> None:
        """Refuse the deferred calls that no carrier sends again: no call is sent any more."""
        for session in self._sessions.values():
            if not session.carrier_keeps_lines:
                for open_call in list(session.waiting):
                    self._call_table.fail(open_call, "closing")

    def end_all(self, *, again: bool = False) -> None:
        """End all requests because carpool ends. What was sent may have run. `again`: requests that were
        never sent are left without an answer where the carrier sends them to the next broker.
        """
        for open_call in list(self._call_table.calls.values()):
            if open_call.stage in UNFINISHED:
                self.end_call(open_call, "cut_off")
            elif not (again and open_call.session.carrier_keeps_lines):
                self.deferred.remove(open_call.session.id, open_call.asked.id)
                self.end_call(open_call, "closing")
        for deferred in self.deferred.all():
            session, request = deferred.session, deferred.request
            if not isinstance(request, OpenCall) and not (again and session.carrier_keeps_lines):
                self.deferred.remove(session.id, deferred.id)
                self.listen_streams.cancel_listen(session, deferred.id)
                self._refuse_question(session, request, "closing")

    def check(self) -> None:
        """Assert every invariant."""
        self.subscriptions.check(self._sessions)
        self.subscription_budget.check(self._sessions.values())
        self.deferred.check(self._sessions)
        self.subscribe.check()
        self.resource_updates.check()
        self.listen_streams.check()
        self.tasks.check()
        waiting = self.deferred.all()
        unresolved = {
            open_call for open_call in self._call_table.calls.values() if open_call.stage == "unresolved"
        }
        assert unresolved == {each.request for each in waiting if isinstance(each.request, OpenCall)}
        ungranted = {
            (session.id, request)
            for session in self._sessions.values()
            for request, listen in session.listens.items()
            if not listen.granted
        }
        listening = [each for each in waiting if isinstance(each.request, ListenRequested)]
        assert ungranted == {(each.session.id, each.id) for each in listening}


def _method(event: Question) -> str:
    match event:
        case ListPageRequested():
            return METHODS[event.family]
        case DiscoverRequested():
            return "server/discover"
        case ListenRequested():
            return "subscriptions/listen"
        case SubscribeRequested():
            return "resources/subscribe" if event.on else "resources/unsubscribe"
