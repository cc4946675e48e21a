"""Which agent is owed which answer.

Owns the books: every open call of every agent, how it leaves, the backstop, and the one answer that it gets.
A call is answered exactly once, or cancelled without a word. While a call of the stateless era is between two
rounds nobody waits for it; how it ends then is `input_required`'s.

Invariants (`invariants.check`): a call is in its session's `owed` under its own id and in `calls` under its
number, or in neither, or it is parked and in `calls` alone; `sent` counts are right.

Knows nothing of: which calls may go when (`admission`), names, views, how an answer is worded for an era,
what calls want in rounds.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from carpool_broker.core.calls import lost_state
from carpool_broker.core.calls.audit import Reached, Trail
from carpool_broker.core.calls.call_listener import Aftermath, Outcome
from carpool_broker.core.calls.hook_interface import HookPoints
from carpool_broker.core.calls.resource_cache import Fresh
from carpool_broker.core.calls.stateless_calls import stateless_call
from carpool_broker.core.limits.admission import Admission
from carpool_broker.core.limits.memory_budgets import Arguments, Unread
from carpool_broker.core.model.answers import answer as answer_to
from carpool_broker.core.model.answers import is_keepable
from carpool_broker.core.model.bounds import Bounds
from carpool_broker.core.model.effects import AnyEffect, Reply, ReportProgress
from carpool_broker.core.model.events import AgentCalled
from carpool_broker.core.model.session import AT_SERVER, IN_FLIGHT, Owed, Session
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_protocol.faults.faults import fault, fault_of, for_method
from carpool_protocol.faults.kinds import KINDS
from carpool_protocol.ids import ABSENT, CallId, PoolKey, RawJson, SessionId, call_name, call_of, part_of
from carpool_protocol.link.codec import MESSAGE_BYTES
from carpool_protocol.link.messages import (
    Answered,
    Call,
    CancelCall,
    CancelTask,
    Failed,
    PoolChanged,
    PoolSpec,
    Progressed,
    Resume,
    SessionGone,
    Written,
)

Out = Callable[[AnyEffect], None]

BACKSTOP_MARGIN_S: Final = 5.0
"""The supervisor owns the deadlines; the broker acts when it is silent this long after the last."""


class Ledger:
    """All open calls of the broker."""

    def __init__(
        self,
        sessions: dict[SessionId, Session],
        bounds: Bounds,
        out: Out,
        timers: BrokerTimers,
        life: int = 0,
    ) -> None:
        self.before = call_of(life, 0)
        """Calls of greater numbers are this broker's own."""
        self._out = out
        self._sent_timers = timers.of("sent_call")
        self.states: Mapping[PoolKey, PoolChanged] = {}
        """What the supervisor last said of each pool."""
        self.fresh = Fresh()
        """What was read a moment ago and is current still."""
        self.aftermath: Aftermath | None = None
        """Of calls of the stateless era; there are none before it is set."""
        self.trail: Trail | None = None
        """Where an audit is kept."""
        self.arguments = Arguments()
        self.unread = Unread(out)
        self.hooks: HookPoints | None = None
        """None: there are none."""
        self.calls: dict[CallId, Owed] = {}
        self.opened = 0
        """All calls since this broker began."""
        self.backstop_s: dict[PoolKey, float] = {}
        self.admission = Admission(sessions, bounds, self.arguments, self, timers)

    @property
    def newest(self) -> CallId:
        """The last call that was read."""
        return CallId(self.before + self.opened)

    def written(self, calls: list[CallId]) -> Written:
        """The message that the answers of these calls are with their carriers."""
        unsent = (call for call, owed in self.calls.items() if owed.stage not in AT_SERVER)
        return Written(calls, self.newest, next(unsent, CallId(self.newest + 1)))

    @property
    def bounds(self) -> Bounds:
        """What sessions and their calls may take, in numbers."""
        return self.admission.bounds

    @bounds.setter
    def bounds(self, bounds: Bounds) -> None:
        self.admission.bounds = bounds

    # --- in --------------------------------------------------------------------------------------------

    def open(self, session: Session, asked: AgentCalled) -> Owed:
        """Enter a call into the books under a fresh number."""
        self.opened += 1
        call = CallId(self.before + self.opened)
        owed = self.calls[call] = session.owed[asked.id] = Owed(call, session, asked)
        session.calls += 1
        if self.trail is not None:
            self.trail.began(owed)
        self.arguments.enter(owed)
        return owed

    def send(self, owed: Owed, now: float) -> None:
        """A call that may go leaves, unless hooks are to look at it first."""
        if self.hooks is not None and self.hooks.holds(owed, now):
            return
        asked = owed.asked
        session = owed.session
        owed.stage = "sent"
        owed.sent_at = self.fresh.moment()
        session.sent += 1
        if session.quota is not None:
            session.quota.sent += 1
        if owed.server not in session.used:
            for told in lost_state.used(session, owed.server, self.states.get(owed.key)):
                self._out(told)
        if asked.by is None:
            call = Call(
                owed.call, owed.key, session.id, asked.method, owed.target, asked.rest, asked.meta,
                bool(asked.token), asked.trace, request=asked.id, digest=asked.digest,
                principal=session.principal,
            )  # fmt: skip
        else:
            assert self.aftermath is not None
            self.aftermath.leaves(owed)
            call = stateless_call(owed, self.states.get(owed.key))
        line = self.admission
        line.credit_bytes = (line.credit_bytes or 0) - owed.size_bytes - MESSAGE_BYTES
        if self.trail is not None:
            named = self.trail.named(owed, call)
            line.credit_bytes -= len(named.meta) - len(call.meta)
            call = named
        self._sent_timers.arm(owed.call, now, self.backstop_s.get(owed.key, 1800.0))
        self._out(call)

    # --- out -------------------------------------------------------------------------------------------

    def answered(self, answer: Answered, now: float) -> None:
        """The server's own answer passes untouched. One after a cancel or the backstop is dropped."""
        owed = self.calls.get(answer.call)
        if owed is not None:
            session, asked = owed.session, owed.asked
            session.called.add(owed.server)
            if self.hooks is not None and self.hooks.takes(owed, answer, now):
                return
            if session.unread_bytes and not owed.parked and not self._kept(owed, answer, now):
                return
            if answer.ttl_ms > 0:
                self._keep(owed, answer, now)
            if asked.by is not None:
                self._answered_stateless(owed, answer, now)
                return
            if answer.urls_first and not session.capabilities.url:
                self.fail(owed, "needs_url")
                self.admission.pump(session, now)
                return
            if self.trail is not None:
                self.trail.answered(owed, answer.body, is_error=answer.is_error)
            self.close(owed)
            if owed.edit or asked.own:
                self._out(answer_to(owed, is_error=answer.is_error, body=answer.body))
            else:
                self._out(Reply(session.id, asked.id, answer.is_error, answer.body, answer.call))
            if session.waiting or session.quota is not None:
                self.admission.pump(session, now)
        elif answer.task:
            self._out(CancelTask(answer.instance, answer.task))

    def _kept(self, owed: Owed, answer: Answered, now: float) -> bool:
        """Whether the answer is kept for an agent that does not read; else its call ends without it."""
        size_bytes = len(answer.body)
        if self.unread.keeps(owed.session, size_bytes, self.bounds.unread_budget_bytes):
            return True
        self._out(CancelCall(owed.call, "unread", answered=True))  # its body is nothing to keep in the record
        self.fail(owed, "unread_answers", f"The answer had {size_bytes} bytes.")
        self.admission.pump(owed.session, now)
        return False

    def has_read(self, session: Session, unread_bytes: int, now: float) -> None:
        """The door says how much waits for an agent."""
        self.unread.told(session, unread_bytes)
        self.admission.pump(session, now)

    def _keep(self, owed: Owed, answer: Answered, now: float) -> None:
        if is_keepable(owed) and not answer.is_error:
            public, session = answer.public, owed.session.id
            # Nobody can tell agents without a token apart who share a session: a private answer is one's own.
            ttl_ms = 0 if owed.session.anonymous and not public else answer.ttl_ms
            self.fresh.keep(
                owed.key, owed.target, session, answer.body, now,
                ttl_ms=ttl_ms, public=public, since=owed.sent_at,
            )  # fmt: skip

    def _answered_stateless(self, owed: Owed, answer: Answered, now: float) -> None:
        asked = owed.asked
        assert asked.by is not None
        assert self.aftermath is not None
        if answer.task:
            begun = self.aftermath.task_began(owed, answer, now)
            if begun is None:
                self.fail(owed, "bad_answer", "It is a task, and the agent knows of no tasks.")
            else:
                self.note_end(owed, "task", "yes", begun.body)
                self.give(owed, begun)
        elif not answer.urls_first:
            if self.trail is not None:
                self.trail.answered(owed, answer.body, is_error=answer.is_error)
            self.give(owed, Outcome(answer.is_error, answer.body, answer.ttl_ms, answer.public))
        elif not asked.by.capabilities.url or not answer.urls:
            self.fail(owed, "needs_url")
        elif not self.aftermath.sent_to_urls(owed, answer.urls, now):
            self.fail(
                owed, "lost", "The server wants its user to open a web page, and nobody can be asked to."
            )
        self.admission.pump(owed.session, now)

    def failed(self, failure: Failed, now: float) -> None:
        """The supervisor says that no answer comes."""
        owed = self.calls.get(failure.call)
        if owed is None:
            return
        if failure.fault == "state_lost":
            owed.session.called.discard(owed.server)
            owed.session.marked.discard(owed.server)
        elif failure.fault == "unknown_task" and self.aftermath is not None:
            self.aftermath.task_lost(owed)
        if failure.delivered == "maybe":
            owed.session.called.add(owed.server)
        kind = KINDS.get(failure.fault)
        if kind is not None and kind.delivered == failure.delivered:
            self.fail(owed, failure.fault, failure.text, failure.retry_after_s)
        else:
            if self.hooks is not None:
                self.hooks.ended(owed, failure.fault)
            said = fault_of(failure, server=owed.server, tool=owed.tool, call=call_name(owed.call))
            outcome = Outcome(*for_method(said, owed.asked.said))
            self.note_end(owed, said.slug, said.delivered, outcome.body)
            self.give(owed, outcome)
        self.admission.pump(owed.session, now)

    def progressed(self, progress: Progressed) -> None:
        """Progress goes to the agent under its own token, with its JSON type."""
        owed = self.calls.get(progress.call)
        if owed is None:
            return
        if owed.parked:
            owed.latest = progress.params
        elif owed.asked.token:
            self.report(owed, progress.params)

    def report(self, owed: Owed, params: RawJson) -> None:
        """Tell how far a call is."""
        asked = owed.asked
        if not self.unread.leaves_out(owed.session):
            self._out(ReportProgress(owed.session.id, asked.token, params, asked.id))

    def fail(self, owed: Owed, slug: str, detail: str = "", retry_after_s: float | None = None) -> None:
        """End a call with our own words."""
        if self.hooks is not None:
            self.hooks.ended(owed, slug)
        call = call_name(owed.call)
        said = fault(
            slug, detail=detail, retry_after_s=retry_after_s, server=owed.server, tool=owed.tool, call=call
        )
        outcome = Outcome(*for_method(said, owed.asked.said))
        self.note_end(owed, slug, said.delivered, outcome.body)
        self.give(owed, outcome)

    def note_end(self, owed: Owed, outcome: str, delivered: Reached, body: RawJson = ABSENT) -> None:
        """For the audit: it ends like this. Of a server's own answer the trail is told itself."""
        if self.trail is not None:
            self.trail.ended(owed, outcome, delivered, body)

    def give(self, owed: Owed, outcome: Outcome) -> None:
        """End a call like this, of which the audit has been told."""
        self.close(owed)
        if not owed.parked:
            self.say(owed, outcome)
        elif self.aftermath is not None:
            self.aftermath.ended(owed, outcome)

    def say(self, owed: Owed, outcome: Outcome) -> None:
        """Answer the request that waits for this call."""
        body, is_error, public = outcome.body, outcome.is_error, outcome.public
        ttl_ms, task = outcome.ttl_ms, outcome.task
        self._out(answer_to(owed, is_error=is_error, body=body, ttl_ms=ttl_ms, public=public, task=task))

    def cancel(self, session: Session, request: RawJson, reason: str, now: float) -> bool:
        """The agent no longer wants this answer: it gets none. False when nothing is owed under this id."""
        owed = session.owed.get(request)
        if owed is None:
            return False
        self.drop(owed, reason)
        self.admission.pump(session, now)
        return True

    def drop(self, owed: Owed, reason: str, *, leaves: bool = False) -> None:
        """Nobody waits for this call any more: it is cancelled. `leaves`: its session is gone, and that makes
        the supervisor forget the call, not this (`Record.leave`).
        """
        if self.trail is not None:
            self.trail.dropped(owed)
        if owed.stage == "sent":
            owed.session.called.add(owed.server)
            self._out(CancelCall(owed.call, reason, answered=leaves))
        elif owed.stage == "told" and not leaves:
            self._out(self.written([owed.call]))
        elif owed.stage == "returning":
            owed.session.given_up.append(owed.asked)
        self.close(owed)

    def forget(self, session: Session) -> None:
        """The agent is gone: everything of it is cancelled."""
        for owed in list(session.owed.values()):
            self.drop(owed, "the agent is gone", leaves=True)
        self.admission.forget(session)
        self.unread.forget(session)
        if self.trail is not None:
            self.trail.forget(session)

    def adopt(self, owed: Owed, call: CallId, now: float) -> None:
        """What came back is this call, which is at the supervisor under the number of an earlier broker."""
        del self.calls[owed.call]
        self.calls[call] = owed
        owed.call, owed.stage = call, "sent"
        session = owed.session
        session.hold_place()
        if owed.asked.by is not None:
            assert self.aftermath is not None
            self.aftermath.leaves(owed)
            if session.shared:
                owed.speaker = part_of(session.id, call)
        self._sent_timers.arm(call, now, self.backstop_s.get(owed.key, 1800.0))
        self._out(Resume(call))

    def park(self, owed: Owed) -> None:
        """Its request was answered with what it wants: nobody waits for it until the retry comes."""
        del owed.session.owed[owed.asked.id]
        owed.parked = True

    def resume(self, owed: Owed, asked: AgentCalled) -> None:
        """A parked call is owed under this request now."""
        assert self.aftermath is not None
        owed.asked = asked
        owed.parked = False
        self.aftermath.leaves(owed)
        owed.session.owed[asked.id] = owed

    def close(self, owed: Owed) -> None:
        """Take a call out of the books. Whoever does that answers it, or knows that nobody waits."""
        session = owed.session
        self.arguments.leave(owed)
        del self.calls[owed.call]
        if not owed.parked:
            del session.owed[owed.asked.id]
        if owed.stage == "sent":
            session.sent -= 1
            if session.quota is not None:
                session.quota.sent -= 1
            self._sent_timers.disarm(owed.call)
        elif owed.stage == "waiting":
            self.admission.leave_line(owed)
        elif owed.stage in IN_FLIGHT:
            session.hold_place(-1)
        if self.hooks is not None:
            self.hooks.closed(owed)
        if owed.asked.by is not None:
            self._closed_stateless(owed)

    def _closed_stateless(self, owed: Owed) -> None:
        assert self.aftermath is not None
        self.aftermath.closed(owed)
        if owed.speaker and self.admission.credit_bytes is not None:
            state = self.states.get(owed.key)
            if state is not None and state.mode == "session":
                self._out(SessionGone(owed.speaker))  # whatever it was given for this call is free again

    # --- the other end, and time -----------------------------------------------------------------------

    def supervisor_went(self) -> None:
        """What it had is lost, maybe executed; what waits here was never delivered and goes on waiting."""
        self.admission.supervisor_went()
        for owed in [owed for owed in self.calls.values() if owed.stage == "sent"]:
            owed.session.called.add(owed.server)
            self.fail(owed, "link_broken")

    def end_queued(self, calls: Iterable[CallId], now: float) -> None:
        """These have waited too long in the lines of their sessions."""
        for call in calls:
            overdue = self.admission.overdue(call, now)
            if overdue is not None:
                self.fail(self.calls[call], *overdue, 5.0)

    def end_sent(self, calls: Iterable[CallId], now: float) -> None:
        """These the supervisor has forgotten."""
        for call in calls:
            owed = self.calls[call]
            owed.session.called.add(owed.server)
            self._out(CancelCall(call, "overdue", answered=True))
            self.fail(owed, "answer_overdue")
            self.admission.pump(owed.session, now)

    def learn_limits(self, specs: Iterable[PoolSpec]) -> None:
        """How long the supervisor may take at most, per pool."""
        self.backstop_s = {
            spec.key: spec.policy.wait_s + spec.policy.max_total_s + BACKSTOP_MARGIN_S for spec in specs
        }
