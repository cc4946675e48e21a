"""The call table: every open call of every agent, and the one answer that each gets.

Owns the open calls, how a call is sent, the backstop for a silent supervisor, and the answer. A call is
answered exactly once, or cancelled without an answer. While a stateless call is parked between two rounds,
no request waits for it; `input_required` owns how it ends then.

Invariants (`invariants.check`): a call is in its session's `open_calls` under the agent's id and in `calls`
under its number, or in neither, or it is parked and in `calls` alone; the counts `sent` are right. Refuses
to know: which calls may go when (`admission`), names, views, how an answer is worded for an era, what
servers ask in rounds.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from carpool_broker.core.calls import lost_state
from carpool_broker.core.calls.audit import AuditTrail, Delivered, delivered_at
from carpool_broker.core.calls.call_counting import CallCounting
from carpool_broker.core.calls.call_listeners import CallResult, HookPoints, StatelessCallListener
from carpool_broker.core.calls.call_tracing import CallTracing
from carpool_broker.core.calls.recent_calls import WATCH_S, WatchedCalls
from carpool_broker.core.calls.resource_cache import ResourceCache
from carpool_broker.core.calls.stateless_call_message import stateless_call_message
from carpool_broker.core.limits.admission import Admission
from carpool_broker.core.limits.memory_budgets import ArgumentBudget, UnreadBudget
from carpool_broker.core.model.answers import call_reply as answer_to
from carpool_broker.core.model.answers import is_cacheable
from carpool_broker.core.model.bounds import SessionBounds
from carpool_broker.core.model.effects import AnyEffect, Reply, SendProgress
from carpool_broker.core.model.events import CallRequested
from carpool_broker.core.model.session import AT_SERVER, IN_FLIGHT, OpenCall, Session, asking_server
from carpool_broker.core.model.supervisors import SupervisorLinks
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_protocol.faults.fault_answers import fault, fault_answer, fault_of
from carpool_protocol.faults.kinds import KINDS
from carpool_protocol.ids import (
    ABSENT,
    CallId,
    PoolKey,
    RawJson,
    SessionId,
    SupervisorName,
    call_name,
    call_of,
    part_of,
)
from carpool_protocol.link.codec import MESSAGE_BYTES
from carpool_protocol.link.messages import (
    AnswersWritten,
    Call,
    CallAnswered,
    CallAtNode,
    CallFailed,
    CallProgressed,
    CallTimed,
    CancelCall,
    CancelTask,
    PoolChanged,
    PoolSpec,
    ResumeCall,
    SessionEnded,
)
from carpool_protocol.wire.asking_server import name_server_in_error
from carpool_protocol.wire.content import TooManyPartsError

Emit = Callable[[AnyEffect], None]

BACKSTOP_MARGIN_S: Final = 5.0
"""The supervisor owns the deadlines. The broker ends a call itself when this long after the last of them
nothing has come.
"""
_RULES_OF_PROFILE: Final = frozenset({"not_permitted", "too_many_servers", "too_many_a_minute"})
_RULE_OF_NODE: Final = (
    " That is the rule of node {node} for agents of other nodes (`cluster.profile` there); its operator can "
    "change it."
)


class CallTable:
    """The open calls of the broker."""

    def __init__(
        self,
        sessions: dict[SessionId, Session],
        bounds: SessionBounds,
        out: Emit,
        timers: BrokerTimers,
        life: int = 0,
        *,
        links: SupervisorLinks | None = None,
    ) -> None:
        self.before = call_of(life, 0)
        """Calls with greater numbers are this broker's own."""
        self._emit = out
        self._sent_timers = timers.of("sent_call")
        self.states: Mapping[PoolKey, PoolChanged] = {}
        """The last state of each pool that the supervisor has told."""
        self.resource_cache = ResourceCache()
        """Answers to reads of resources that are still current."""
        self.stateless_listener: StatelessCallListener | None = None
        """Acts on calls of the stateless era. `BrokerCore` sets it, because the listener needs this table."""
        self.audit_trail: AuditTrail | None = None
        """The audit, if one is kept."""
        self.counting: CallCounting | None = None
        """The counters, if calls are counted."""
        self.tracing: CallTracing | None = None
        """The traces, if calls are traced."""
        self.recent: WatchedCalls | None = None
        """The calls that have ended lately, while somebody watches them; else None."""
        self.now = 0.0
        """The time of the event that is handled. `BrokerCore` sets it."""
        self.arguments = ArgumentBudget()
        self.unread = UnreadBudget(out)
        self._unread_use = self.unread.use  # every answer asks for its sum
        self.hook_points: HookPoints | None = None
        """The hooks; None while there are none, so that calls cost nothing then."""
        self.calls: dict[CallId, OpenCall] = {}
        self.opened = 0
        """The number of calls that this broker has opened."""
        self.withdrawn = 0
        """Those of them that stood for requests which were opened anew."""
        self.backstop_s: dict[PoolKey, float] = {}
        self.links = links or SupervisorLinks()
        self.admission = Admission(sessions, bounds, self.arguments, self, timers, links=self.links)

    @property
    def newest_call(self) -> CallId:
        """The number of the newest call of this broker."""
        return CallId(self.before + self.opened)

    def answers_written(self, calls: list[CallId]) -> AnswersWritten:
        """Return the message that carriers have the answers of these calls."""
        unsent = (call for call, open_call in self.calls.items() if open_call.stage not in AT_SERVER)
        return AnswersWritten(calls, self.newest_call, next(unsent, CallId(self.newest_call + 1)))

    @property
    def bounds(self) -> SessionBounds:
        """The limits of sessions and their calls."""
        return self.admission.bounds

    @bounds.setter
    def bounds(self, bounds: SessionBounds) -> None:
        self.admission.bounds = bounds

    # --- in --------------------------------------------------------------------------------------------

    def open(self, session: Session, request: CallRequested) -> OpenCall:
        """Open a call under a new number."""
        self.opened += 1
        call = CallId(self.before + self.opened)
        open_call = self.calls[call] = session.open_calls[request.id] = OpenCall(call, session, request)
        session.calls += 1
        open_call.since = self.now
        self.arguments.call_opened(open_call)
        return open_call

    def send(self, open_call: OpenCall, now: float) -> None:
        """Send a call to the supervisor, or give it to hooks first."""
        recent = self.recent
        if not open_call.is_ready:
            open_call.is_ready = True
            if recent is not None:
                recent.call_ready(open_call, now)
        if self.hook_points is not None and self.hook_points.hold_call(open_call, now):
            return
        asked = open_call.asked
        session = open_call.session
        open_call.stage = "sent"
        open_call.sent_at, open_call.cache_version = now, self.resource_cache.change_count
        session.sent += 1
        if session.quota is not None:
            session.quota.sent += 1
        use = session.servers.get(open_call.server)
        if use is None or not use.is_called:
            for told in lost_state.server_called(session, open_call.server, self.states.get(open_call.key)):
                self._emit(told)
        if asked.by is None:
            call = Call(
                open_call.call, open_call.key, session.id, asked.method, open_call.target,
                asked.rest, asked.meta,
                bool(asked.token), asked.trace, request=asked.id, digest=asked.digest,
                principal=session.principal,
            )  # fmt: skip
        else:
            assert self.stateless_listener is not None
            self.stateless_listener.call_leaving(open_call)
            call = stateless_call_message(open_call, self.states.get(open_call.key))
        size_bytes = open_call.size_bytes + MESSAGE_BYTES
        if self.audit_trail is not None:
            named = self.audit_trail.name_call(open_call, call)
            size_bytes += len(named.meta) - len(call.meta)
            call = named
        self.links.spend(open_call.key, size_bytes)
        if self.tracing is not None:
            call = self.tracing.with_context(open_call, call)
        if recent is not None and recent.is_timed(open_call.call):
            call = replace(call, timed=True)
        self._sent_timers.arm(open_call.call, now, self.backstop_s.get(open_call.key, 1800.0))
        self._emit(call)

    def send_again(self, open_call: OpenCall, now: float) -> None:
        """Send a call once more, which the supervisor has refused before a server had it."""
        open_call.is_sent_again = True
        self._sent_timers.disarm(open_call.call)
        open_call.stage = "unresolved"
        # The supervisor takes no call whose end it has in its record.
        self._emit(self.answers_written([open_call.call]))
        self.admission.admit_again(open_call, now)

    # --- out -------------------------------------------------------------------------------------------

    def call_answered(self, answer: CallAnswered, now: float) -> None:
        """The server has answered. The answer passes unchanged; an answer after a cancel or the backstop is
        dropped.
        """
        open_call = self.calls.get(answer.call)
        if open_call is not None:
            session, asked = open_call.session, open_call.asked
            use = session.servers.get(open_call.server)
            if use is None or not use.has_run:
                session.server_use(open_call.server).has_run = True
            if self.hook_points is not None and self.hook_points.hold_answer(open_call, answer, now):
                return
            if (
                self._unread_use.total_bytes
                and not open_call.is_parked
                and not self._may_keep_answer(open_call, answer, now)
            ):
                return
            if answer.ttl_ms > 0:
                self._cache_answer(open_call, answer, now)
            if asked.by is not None:
                self._stateless_answered(open_call, answer, now)
                return
            if answer.is_error:
                error = self._error_for_agent(open_call, answer)
                if error is None:
                    self.admission.send_queued(session, now)
                    return
                answer = error
            self.note_end(open_call, "error" if answer.is_error else "ok", "yes", answer.body)
            self.close(open_call)
            if open_call.edit or asked.own:
                self._emit(answer_to(open_call, is_error=answer.is_error, body=answer.body))
            else:
                self._emit(Reply(session.id, asked.id, answer.is_error, answer.body, answer.call))
            if session.waiting or session.quota is not None:
                self.admission.send_queued(session, now)
        elif answer.task:
            self._emit(CancelTask(answer.instance, answer.task))

    def _error_for_agent(self, open_call: OpenCall, answer: CallAnswered) -> CallAnswered | None:
        """The error with the names that this agent is shown. None: its call has ended with one of ours."""
        if answer.urls_first and not open_call.session.capabilities.url:
            self.fail(open_call, "needs_url")
            return None
        try:
            body = name_server_in_error(answer.body, asking_server(open_call))
        except TooManyPartsError as error:
            self.fail(open_call, "answer_too_large", error.text)
            return None
        return replace(answer, body=body)

    def _may_keep_answer(self, open_call: OpenCall, answer: CallAnswered, now: float) -> bool:
        """Return whether the answer is kept for an agent that does not read; otherwise its call ends without
        it.
        """
        size_bytes = len(answer.body)
        if self.unread.may_keep_answer(open_call.session, size_bytes, self.bounds.unread_budget_bytes):
            return True
        self._emit(
            CancelCall(open_call.call, "unread", answered=True)
        )  # its body is nothing to keep in the record
        self.fail(open_call, "unread_answers", f"The answer had {size_bytes} bytes.")
        self.admission.send_queued(open_call.session, now)
        return False

    def unread_changed(self, session: Session, unread_bytes: int, now: float) -> None:
        """The transport reports how many bytes wait for an agent."""
        self.unread.unread_changed(session, unread_bytes)
        self.admission.send_queued(session, now)

    def _cache_answer(self, open_call: OpenCall, answer: CallAnswered, now: float) -> None:
        if is_cacheable(open_call) and not answer.is_error:
            public, session = answer.public, open_call.session.id
            # Nobody can tell agents without a token apart who share a session: a private answer is one's own.
            ttl_ms = 0 if open_call.session.anonymous and not public else answer.ttl_ms
            self.resource_cache.store(
                open_call.key, open_call.target, session, answer.body, now,
                ttl_ms=ttl_ms, public=public, since=open_call.cache_version,
            )  # fmt: skip

    def _stateless_answered(self, open_call: OpenCall, answer: CallAnswered, now: float) -> None:
        asked = open_call.asked
        assert asked.by is not None
        assert self.stateless_listener is not None
        if answer.task:
            begun = self.stateless_listener.task_created(open_call, answer, now)
            if begun is None:
                self.fail(open_call, "bad_answer", "It is a task, and the agent knows of no tasks.")
            else:
                self.note_end(open_call, "task", "yes", begun.body)
                self.end(open_call, begun)
        elif not answer.urls_first:
            self.note_end(open_call, "error" if answer.is_error else "ok", "yes", answer.body)
            self.end(open_call, CallResult(answer.is_error, answer.body, answer.ttl_ms, answer.public))
        elif not asked.by.capabilities.url or not answer.urls:
            self.fail(open_call, "needs_url")
        elif not self.stateless_listener.urls_required(open_call, answer.urls, now):
            self.fail(
                open_call, "lost", "The server wants its user to open a web page, and nobody can be asked to."
            )
        self.admission.send_queued(open_call.session, now)

    def call_failed(self, failure: CallFailed, now: float) -> None:
        """The supervisor reports that no answer will come."""
        open_call = self.calls.get(failure.call)
        if open_call is None:
            return
        if failure.fault == "state_lost":
            use = open_call.session.server_use(open_call.server)
            use.has_run = use.is_reported = False
        elif failure.fault == "unknown_task" and self.stateless_listener is not None:
            self.stateless_listener.task_lost(open_call)
        if failure.delivered == "maybe":
            open_call.session.server_use(open_call.server).has_run = True
        kind = KINDS.get(failure.fault)
        if kind is not None and kind.delivered == failure.delivered:
            self.fail(open_call, failure.fault, failure.text, failure.retry_after_s)
        else:
            if self.hook_points is not None:
                self.hook_points.call_failed(open_call, failure.fault)
            said = fault_of(
                failure, server=open_call.server, tool=open_call.tool, call=call_name(open_call.call)
            )
            outcome = CallResult(*fault_answer(said, open_call.asked.agent_method))
            self.note_end(open_call, said.slug, said.delivered, outcome.body)
            self.end(open_call, outcome)
        self.admission.send_queued(open_call.session, now)

    def call_timed(self, timed: CallTimed, now: float) -> None:
        """The supervisor reports how long the server had a traced or timed call."""
        open_call = self.calls.get(timed.call)
        if open_call is not None and self.tracing is not None and timed.span:
            self.tracing.call_timed(open_call, timed, now)
        if self.recent is not None:
            self.recent.call_timed(timed)

    def watch_recent(self, now: float) -> None:
        """Keep the calls that end from now on, until `recent_calls.WATCH_S` after the last watcher asked."""
        if self.recent is None or self.recent.until <= now:
            self.recent = WatchedCalls(now)
        self.recent.until = now + WATCH_S

    def call_at_node(self, message: CallAtNode) -> None:
        """The supervisor has handed a call to a session at another node."""
        open_call = self.calls.get(message.call)
        if open_call is not None:
            open_call.node = message.node

    def call_progressed(self, progress: CallProgressed) -> None:
        """Send progress to the agent under its own token, with the token's JSON type."""
        open_call = self.calls.get(progress.call)
        if open_call is None:
            return
        if open_call.is_parked:
            open_call.latest = progress.params
        elif open_call.asked.token:
            self.report_progress(open_call, progress.params)

    def report_progress(self, open_call: OpenCall, params: RawJson) -> None:
        """Send the agent the progress of a call."""
        asked = open_call.asked
        if not self.unread.drop_notification(open_call.session):
            self._emit(SendProgress(open_call.session.id, asked.token, params, asked.id))

    def fail(
        self, open_call: OpenCall, slug: str, detail: str = "", retry_after_s: float | None = None
    ) -> None:
        """End a call with an error of ours."""
        if self.hook_points is not None:
            self.hook_points.call_failed(open_call, slug)
        call = call_name(open_call.call)
        if open_call.session.node and slug in _RULES_OF_PROFILE and detail:
            detail += _RULE_OF_NODE.format(node=open_call.session.node)
        said = fault(
            slug,
            detail=detail,
            retry_after_s=retry_after_s,
            server=open_call.server,
            tool=open_call.tool,
            call=call,
        )
        outcome = CallResult(*fault_answer(said, open_call.asked.agent_method))
        self.note_end(open_call, slug, said.delivered, outcome.body)
        self.end(open_call, outcome)

    def note_end(
        self, open_call: OpenCall, outcome: str, delivered: Delivered, body: RawJson = ABSENT
    ) -> None:
        """Count the end of a call, and tell the audit of it. `outcome`: see `effects.WriteAudit`."""
        if self.counting is not None:
            self.counting.call_ended(open_call, outcome, body, self.now)
        if self.tracing is not None:
            self.tracing.call_ended(open_call, outcome, body, self.now)
        if self.audit_trail is not None:
            self.audit_trail.call_ended(open_call, outcome, delivered, body, self.now)
        if self.recent is not None:
            if self.now < self.recent.until:
                self.recent.call_ended(open_call, outcome, body, self.now)
            else:
                self.recent = None

    def end(self, open_call: OpenCall, outcome: CallResult) -> None:
        """End a call with this result, which the audit knows."""
        self.close(open_call)
        if not open_call.is_parked:
            self.reply(open_call, outcome)
        elif self.stateless_listener is not None:
            self.stateless_listener.parked_call_ended(open_call, outcome)

    def reply(self, open_call: OpenCall, outcome: CallResult) -> None:
        """Answer the request that waits for this call."""
        body, is_error, public = outcome.body, outcome.is_error, outcome.public
        ttl_ms, task = outcome.ttl_ms, outcome.task
        self._emit(
            answer_to(open_call, is_error=is_error, body=body, ttl_ms=ttl_ms, public=public, task=task)
        )

    def cancel(self, session: Session, request: RawJson, reason: str, now: float) -> bool:
        """Cancel the call of this request: the agent gets no answer. Returns False if there is
        no such call.
        """
        open_call = session.open_calls.get(request)
        if open_call is None:
            return False
        self.drop(open_call, reason)
        self.admission.send_queued(session, now)
        return True

    def drop(self, open_call: OpenCall, reason: str, *, leaves: bool = False) -> None:
        """Cancel a call that no request waits for. `leaves`: its session is closed, which makes the
        supervisor forget the call; then the cancel does not (`CallRecord.call_ended`).
        """
        self.note_end(open_call, "cancelled", delivered_at(open_call.stage))
        if open_call.stage == "sent":
            open_call.session.server_use(open_call.server).has_run = True
            self._emit(CancelCall(open_call.call, reason, answered=leaves))
        elif open_call.stage == "told" and not leaves:
            self._emit(self.answers_written([open_call.call]))
        elif open_call.stage == "returning":
            open_call.session.given_up.append(open_call.asked)
        self.close(open_call)

    def session_closed(self, session: Session) -> None:
        """The session has closed: cancel all its calls."""
        for open_call in list(session.open_calls.values()):
            self.drop(open_call, "the agent is gone", leaves=True)
        self.admission.session_closed(session)
        self.unread.session_closed(session)
        if self.audit_trail is not None:
            self.audit_trail.forget_caller(session)

    def adopt(self, open_call: OpenCall, call: CallId, now: float) -> None:
        """Continue a request as a call that the supervisor has under the number of an earlier broker."""
        del self.calls[open_call.call]
        self.calls[call] = open_call
        open_call.call, open_call.stage = call, "sent"
        session = open_call.session
        session.count_in_flight()
        if open_call.asked.by is not None:
            assert self.stateless_listener is not None
            self.stateless_listener.call_leaving(open_call)
            if session.shared:
                open_call.speaker = part_of(session.id, call)
        self._sent_timers.arm(call, now, self.backstop_s.get(open_call.key, 1800.0))
        self._emit(ResumeCall(call))

    def park(self, open_call: OpenCall) -> None:
        """Park a call: its request was answered with what the server asks, and no request waits until the
        retry.
        """
        del open_call.session.open_calls[open_call.asked.id]
        open_call.is_parked = True

    def resume(self, open_call: OpenCall, request: CallRequested) -> None:
        """Continue a parked call for this request."""
        assert self.stateless_listener is not None
        open_call.asked = request
        open_call.is_parked = False
        self.stateless_listener.call_leaving(open_call)
        open_call.session.open_calls[request.id] = open_call

    def close(self, open_call: OpenCall) -> None:
        """Remove a call from the table. The caller answers it, or knows that no request waits."""
        session = open_call.session
        self.arguments.call_closed(open_call)
        del self.calls[open_call.call]
        if not open_call.is_parked:
            del session.open_calls[open_call.asked.id]
        if open_call.stage == "sent":
            session.sent -= 1
            if session.quota is not None:
                session.quota.sent -= 1
            self._sent_timers.disarm(open_call.call)
        elif open_call.stage == "waiting":
            self.admission.leave_queue(open_call)
        elif open_call.stage in IN_FLIGHT:
            session.count_in_flight(-1)
        if self.hook_points is not None:
            self.hook_points.call_closed(open_call)
        if open_call.asked.by is not None:
            self._stateless_closed(open_call)

    def withdraw(self, open_call: OpenCall) -> None:
        """Remove a call that was never sent. Its request is opened anew."""
        self.withdrawn += 1
        self.close(open_call)

    def _stateless_closed(self, open_call: OpenCall) -> None:
        assert self.stateless_listener is not None
        self.stateless_listener.call_closed(open_call)
        if open_call.speaker and self.links.is_served(open_call.key):
            state = self.states.get(open_call.key)
            if state is not None and state.mode == "session":
                self._emit(
                    SessionEnded(open_call.speaker)
                )  # whatever it was given for this call is free again

    # --- the other end, and time -----------------------------------------------------------------------

    def supervisor_lost(self, name: SupervisorName) -> None:
        """This supervisor has gone. Calls that were sent to it may have run and are lost; queued calls were
        never delivered and wait on.
        """
        self.admission.supervisor_lost(name)
        sent = [open_call for open_call in self.calls.values() if open_call.stage == "sent"]
        for open_call in [each for each in sent if self.links.runs(name, each.key)]:
            open_call.session.server_use(open_call.server).has_run = True
            self.fail(open_call, "link_broken")

    def end_queued(self, calls: Iterable[CallId], now: float) -> None:
        """End the calls that were queued in their sessions for too long."""
        for call in calls:
            open_call = self.calls[call]
            overdue = self.admission.why_expired(open_call, now)
            if overdue is not None:
                self.fail(open_call, *overdue, 5.0)

    def end_sent(self, calls: Iterable[CallId], now: float) -> None:
        """End the calls about which the supervisor has been silent for too long."""
        for call in calls:
            open_call = self.calls[call]
            open_call.session.server_use(open_call.server).has_run = True
            self._emit(CancelCall(call, "overdue", answered=True))
            self.fail(open_call, "answer_overdue")
            self.admission.send_queued(open_call.session, now)

    def set_pool_timeouts(self, specs: Iterable[PoolSpec]) -> None:
        """Note how long the supervisor may take at most, per pool."""
        self.backstop_s = {
            spec.key: spec.policy.wait_s + spec.policy.max_total_s + BACKSTOP_MARGIN_S for spec in specs
        }
