"""Which agent is owed which answer.

Owns the books: every open call of every agent, how it leaves, the backstop, and the one answer that it gets.
A call is answered exactly once, or cancelled without a word. While a call of the stateless era is between two
rounds nobody waits for it; how it ends then is `input_required`'s.

Invariants (`invariants.check`): a call is in its session's `open_calls` under its own id and in `calls`
under its number, or in neither, or it is parked and in `calls` alone; `sent` counts are right.

Knows nothing of: which calls may go when (`admission`), names, views, how an answer is worded for an era,
what calls want in rounds.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from carpool_broker.core.calls import lost_state
from carpool_broker.core.calls.audit import AuditTrail, Delivered
from carpool_broker.core.calls.call_listeners import CallResult, HookPoints, StatelessCallListener
from carpool_broker.core.calls.resource_cache import ResourceCache
from carpool_broker.core.calls.stateless_call_message import stateless_call_message
from carpool_broker.core.limits.admission import Admission
from carpool_broker.core.limits.memory_budgets import ArgumentBudget, UnreadBudget
from carpool_broker.core.model.answers import call_reply as answer_to
from carpool_broker.core.model.answers import is_cacheable
from carpool_broker.core.model.bounds import SessionBounds
from carpool_broker.core.model.effects import AnyEffect, Reply, SendProgress
from carpool_broker.core.model.events import CallRequested
from carpool_broker.core.model.session import AT_SERVER, IN_FLIGHT, OpenCall, Session
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_protocol.faults.faults import fault, fault_answer, fault_of
from carpool_protocol.faults.kinds import KINDS
from carpool_protocol.ids import ABSENT, CallId, PoolKey, RawJson, SessionId, call_name, call_of, part_of
from carpool_protocol.link.codec import MESSAGE_BYTES
from carpool_protocol.link.messages import (
    AnswersWritten,
    Call,
    CallAnswered,
    CallFailed,
    CallProgressed,
    CancelCall,
    CancelTask,
    PoolChanged,
    PoolSpec,
    ResumeCall,
    SessionEnded,
)

Emit = Callable[[AnyEffect], None]

BACKSTOP_MARGIN_S: Final = 5.0
"""The supervisor owns the deadlines; the broker acts when it is silent this long after the last."""


class CallTable:
    """All open calls of the broker."""

    def __init__(
        self,
        sessions: dict[SessionId, Session],
        bounds: SessionBounds,
        out: Emit,
        timers: BrokerTimers,
        life: int = 0,
    ) -> None:
        self.before = call_of(life, 0)
        """Calls of greater numbers are this broker's own."""
        self._emit = out
        self._sent_timers = timers.of("sent_call")
        self.states: Mapping[PoolKey, PoolChanged] = {}
        """What the supervisor last said of each pool."""
        self.resource_cache = ResourceCache()
        """What was read a moment ago and is current still."""
        self.stateless_listener: StatelessCallListener | None = None
        """Of calls of the stateless era; there are none before it is set."""
        self.audit_trail: AuditTrail | None = None
        """Where an audit is kept."""
        self.arguments = ArgumentBudget()
        self.unread = UnreadBudget(out)
        self.hook_points: HookPoints | None = None
        """None: there are none."""
        self.calls: dict[CallId, OpenCall] = {}
        self.opened = 0
        """All calls since this broker began."""
        self.backstop_s: dict[PoolKey, float] = {}
        self.admission = Admission(sessions, bounds, self.arguments, self, timers)

    @property
    def newest_call(self) -> CallId:
        """The last call that was read."""
        return CallId(self.before + self.opened)

    def answers_written(self, calls: list[CallId]) -> AnswersWritten:
        """The message that the answers of these calls are with their carriers."""
        unsent = (call for call, open_call in self.calls.items() if open_call.stage not in AT_SERVER)
        return AnswersWritten(calls, self.newest_call, next(unsent, CallId(self.newest_call + 1)))

    @property
    def bounds(self) -> SessionBounds:
        """What sessions and their calls may take, in numbers."""
        return self.admission.bounds

    @bounds.setter
    def bounds(self, bounds: SessionBounds) -> None:
        self.admission.bounds = bounds

    # --- in --------------------------------------------------------------------------------------------

    def open(self, session: Session, request: CallRequested) -> OpenCall:
        """Enter a call into the books under a fresh number."""
        self.opened += 1
        call = CallId(self.before + self.opened)
        open_call = self.calls[call] = session.open_calls[request.id] = OpenCall(call, session, request)
        session.calls += 1
        if self.audit_trail is not None:
            self.audit_trail.call_opened(open_call)
        self.arguments.call_opened(open_call)
        return open_call

    def send(self, open_call: OpenCall, now: float) -> None:
        """A call that may go leaves, unless hooks are to look at it first."""
        if self.hook_points is not None and self.hook_points.hold_call(open_call, now):
            return
        asked = open_call.asked
        session = open_call.session
        open_call.stage = "sent"
        open_call.sent_at = self.resource_cache.change_count()
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
        line = self.admission
        line.credit_bytes = (line.credit_bytes or 0) - open_call.size_bytes - MESSAGE_BYTES
        if self.audit_trail is not None:
            named = self.audit_trail.name_call(open_call, call)
            line.credit_bytes -= len(named.meta) - len(call.meta)
            call = named
        self._sent_timers.arm(open_call.call, now, self.backstop_s.get(open_call.key, 1800.0))
        self._emit(call)

    # --- out -------------------------------------------------------------------------------------------

    def call_answered(self, answer: CallAnswered, now: float) -> None:
        """The server's own answer passes untouched. One after a cancel or the backstop is dropped."""
        open_call = self.calls.get(answer.call)
        if open_call is not None:
            session, asked = open_call.session, open_call.asked
            session.server_use(open_call.server).has_run = True
            if self.hook_points is not None and self.hook_points.hold_answer(open_call, answer, now):
                return
            if (
                session.unread_bytes
                and not open_call.is_parked
                and not self._may_keep_answer(open_call, answer, now)
            ):
                return
            if answer.ttl_ms > 0:
                self._cache_answer(open_call, answer, now)
            if asked.by is not None:
                self._stateless_answered(open_call, answer, now)
                return
            if answer.urls_first and not session.capabilities.url:
                self.fail(open_call, "needs_url")
                self.admission.send_queued(session, now)
                return
            if self.audit_trail is not None:
                self.audit_trail.call_answered(open_call, answer.body, is_error=answer.is_error)
            self.close(open_call)
            if open_call.edit or asked.own:
                self._emit(answer_to(open_call, is_error=answer.is_error, body=answer.body))
            else:
                self._emit(Reply(session.id, asked.id, answer.is_error, answer.body, answer.call))
            if session.waiting or session.quota is not None:
                self.admission.send_queued(session, now)
        elif answer.task:
            self._emit(CancelTask(answer.instance, answer.task))

    def _may_keep_answer(self, open_call: OpenCall, answer: CallAnswered, now: float) -> bool:
        """Whether the answer is kept for an agent that does not read; else its call ends without it."""
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
        """The door says how much waits for an agent."""
        self.unread.unread_changed(session, unread_bytes)
        self.admission.send_queued(session, now)

    def _cache_answer(self, open_call: OpenCall, answer: CallAnswered, now: float) -> None:
        if is_cacheable(open_call) and not answer.is_error:
            public, session = answer.public, open_call.session.id
            # Nobody can tell agents without a token apart who share a session: a private answer is one's own.
            ttl_ms = 0 if open_call.session.anonymous and not public else answer.ttl_ms
            self.resource_cache.store(
                open_call.key, open_call.target, session, answer.body, now,
                ttl_ms=ttl_ms, public=public, since=open_call.sent_at,
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
                self.audit_end(open_call, "task", "yes", begun.body)
                self.end(open_call, begun)
        elif not answer.urls_first:
            if self.audit_trail is not None:
                self.audit_trail.call_answered(open_call, answer.body, is_error=answer.is_error)
            self.end(open_call, CallResult(answer.is_error, answer.body, answer.ttl_ms, answer.public))
        elif not asked.by.capabilities.url or not answer.urls:
            self.fail(open_call, "needs_url")
        elif not self.stateless_listener.urls_required(open_call, answer.urls, now):
            self.fail(
                open_call, "lost", "The server wants its user to open a web page, and nobody can be asked to."
            )
        self.admission.send_queued(open_call.session, now)

    def call_failed(self, failure: CallFailed, now: float) -> None:
        """The supervisor says that no answer comes."""
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
            self.audit_end(open_call, said.slug, said.delivered, outcome.body)
            self.end(open_call, outcome)
        self.admission.send_queued(open_call.session, now)

    def call_progressed(self, progress: CallProgressed) -> None:
        """Progress goes to the agent under its own token, with its JSON type."""
        open_call = self.calls.get(progress.call)
        if open_call is None:
            return
        if open_call.is_parked:
            open_call.latest = progress.params
        elif open_call.asked.token:
            self.report_progress(open_call, progress.params)

    def report_progress(self, open_call: OpenCall, params: RawJson) -> None:
        """Tell how far a call is."""
        asked = open_call.asked
        if not self.unread.drop_notification(open_call.session):
            self._emit(SendProgress(open_call.session.id, asked.token, params, asked.id))

    def fail(
        self, open_call: OpenCall, slug: str, detail: str = "", retry_after_s: float | None = None
    ) -> None:
        """End a call with our own words."""
        if self.hook_points is not None:
            self.hook_points.call_failed(open_call, slug)
        call = call_name(open_call.call)
        said = fault(
            slug,
            detail=detail,
            retry_after_s=retry_after_s,
            server=open_call.server,
            tool=open_call.tool,
            call=call,
        )
        outcome = CallResult(*fault_answer(said, open_call.asked.agent_method))
        self.audit_end(open_call, slug, said.delivered, outcome.body)
        self.end(open_call, outcome)

    def audit_end(
        self, open_call: OpenCall, outcome: str, delivered: Delivered, body: RawJson = ABSENT
    ) -> None:
        """For the audit: it ends like this. Of a server's own answer the trail is told itself."""
        if self.audit_trail is not None:
            self.audit_trail.call_ended(open_call, outcome, delivered, body)

    def end(self, open_call: OpenCall, outcome: CallResult) -> None:
        """End a call like this, of which the audit has been told."""
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
        """The agent no longer wants this answer: it gets none. False when nothing is owed under this id."""
        open_call = session.open_calls.get(request)
        if open_call is None:
            return False
        self.drop(open_call, reason)
        self.admission.send_queued(session, now)
        return True

    def drop(self, open_call: OpenCall, reason: str, *, leaves: bool = False) -> None:
        """Nobody waits for this call any more: it is cancelled. `call_leaving`: its session is gone, and
        that makes the supervisor forget the call, not this (`Record.call_closed`).
        """
        if self.audit_trail is not None:
            self.audit_trail.call_dropped(open_call)
        if open_call.stage == "sent":
            open_call.session.server_use(open_call.server).has_run = True
            self._emit(CancelCall(open_call.call, reason, answered=leaves))
        elif open_call.stage == "told" and not leaves:
            self._emit(self.answers_written([open_call.call]))
        elif open_call.stage == "returning":
            open_call.session.given_up.append(open_call.asked)
        self.close(open_call)

    def session_closed(self, session: Session) -> None:
        """The agent is gone: everything of it is cancelled."""
        for open_call in list(session.open_calls.values()):
            self.drop(open_call, "the agent is gone", leaves=True)
        self.admission.session_closed(session)
        self.unread.session_closed(session)
        if self.audit_trail is not None:
            self.audit_trail.forget_caller(session)

    def adopt(self, open_call: OpenCall, call: CallId, now: float) -> None:
        """What came back is this call, which is at the supervisor under the number of an earlier broker."""
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
        """Its request was answered with what it wants: nobody waits for it until the retry comes."""
        del open_call.session.open_calls[open_call.asked.id]
        open_call.is_parked = True

    def resume(self, open_call: OpenCall, request: CallRequested) -> None:
        """A parked call is owed under this request now."""
        assert self.stateless_listener is not None
        open_call.asked = request
        open_call.is_parked = False
        self.stateless_listener.call_leaving(open_call)
        open_call.session.open_calls[request.id] = open_call

    def close(self, open_call: OpenCall) -> None:
        """Take a call out of the books. Whoever does that answers it, or knows that nobody waits."""
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

    def _stateless_closed(self, open_call: OpenCall) -> None:
        assert self.stateless_listener is not None
        self.stateless_listener.call_closed(open_call)
        if open_call.speaker and self.admission.credit_bytes is not None:
            state = self.states.get(open_call.key)
            if state is not None and state.mode == "session":
                self._emit(
                    SessionEnded(open_call.speaker)
                )  # whatever it was given for this call is free again

    # --- the other end, and time -----------------------------------------------------------------------

    def supervisor_lost(self) -> None:
        """What it had is lost, maybe executed; what waits here was never delivered and goes on waiting."""
        self.admission.supervisor_lost()
        for open_call in [open_call for open_call in self.calls.values() if open_call.stage == "sent"]:
            open_call.session.server_use(open_call.server).has_run = True
            self.fail(open_call, "link_broken")

    def end_queued(self, calls: Iterable[CallId], now: float) -> None:
        """These have waited too long in the lines of their sessions."""
        for call in calls:
            overdue = self.admission.expired_calls(call, now)
            if overdue is not None:
                self.fail(self.calls[call], *overdue, 5.0)

    def end_sent(self, calls: Iterable[CallId], now: float) -> None:
        """These the supervisor has forgotten."""
        for call in calls:
            open_call = self.calls[call]
            open_call.session.server_use(open_call.server).has_run = True
            self._emit(CancelCall(call, "overdue", answered=True))
            self.fail(open_call, "answer_overdue")
            self.admission.send_queued(open_call.session, now)

    def set_pool_timeouts(self, specs: Iterable[PoolSpec]) -> None:
        """How long the supervisor may take at most, per pool."""
        self.backstop_s = {
            spec.key: spec.policy.wait_s + spec.policy.max_total_s + BACKSTOP_MARGIN_S for spec in specs
        }
