"""Which calls may go to a server, when, and which wait for that.

Owns admission: the session's bound and its line (rule 3), what all of one profile or token may have
(`quotas`), the link's credit, and that nothing leaves while carpool drains. No call waits here for longer
than `wait_s`.

Invariants (`invariants.check`): what is in a session's line is `waiting`, and has a limit; nothing waits
while it could go. Knows nothing of: how a call leaves and ends (`call_table`), names, eras.
"""

from collections.abc import Mapping
from typing import Protocol

from carpool_broker.core.limits.memory_budgets import COUNTED_BYTES, UNREAD_STEP_BYTES, ArgumentBudget
from carpool_broker.core.limits.quotas import Quotas
from carpool_broker.core.model.bounds import SessionBounds
from carpool_broker.core.model.session import OpenCall, Quota, Session
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_protocol.ids import CallId, SessionId


class AdmittedCalls(Protocol):
    """What the ledger does with a call about which this has been decided."""

    def send(self, open_call: OpenCall, now: float) -> None:
        """It leaves."""

    def fail(
        self, open_call: OpenCall, slug: str, detail: str = "", retry_after_s: float | None = None
    ) -> None:
        """It ends with an error of ours."""


class Admission:
    """Of all sessions."""

    def __init__(
        self,
        sessions: Mapping[SessionId, Session],
        bounds: SessionBounds,
        arguments: ArgumentBudget,
        books: AdmittedCalls,
        timers: BrokerTimers,
    ) -> None:
        self._sessions = sessions
        self._arguments = arguments
        self._admitted_calls = books
        self._timers = timers
        self.bounds = bounds
        self.credit_bytes: int | None = None
        """What the link may still carry; None while no supervisor is there."""
        self.draining = False
        """No call leaves any more (`draining`)."""
        self.quotas = Quotas()
        self._blocked_sessions: dict[SessionId, None] = {}
        """Sessions whose line may hold calls that only the link kept back."""

    def refuse_if_full(self, open_call: OpenCall) -> bool:
        """End a call that may not wait, if this is one: its session, or all together, have too many."""
        session, bounds = open_call.session, self.bounds
        if self._arguments.exceeds(open_call, bounds.argument_budget_bytes):
            self._admitted_calls.fail(open_call, "arguments_too_many", retry_after_s=1.0)
        elif len(session.open_calls) > self.max_open_calls(session) + bounds.max_waiting_calls:
            self._admitted_calls.fail(open_call, "too_many_calls", retry_after_s=1.0)
        else:
            return False
        return True

    def admit(self, open_call: OpenCall, now: float) -> None:
        """The call knows where it goes: send it, put it in line, or refuse it."""
        session = open_call.session
        if open_call.size_bytes > COUNTED_BYTES and self.refuse_if_full(open_call):
            return
        if self.draining and not session.carrier_keeps_lines:
            self._admitted_calls.fail(open_call, "closing")
            return
        if session.quota is not None and (excess := session.quota.excess(open_call, now)) is not None:
            self._admitted_calls.fail(open_call, excess.fault, excess.detail, excess.retry_after_s)
            return
        if not session.waiting and self.may_send(session):
            self._admitted_calls.send(open_call, now)
            return
        full = len(session.waiting) >= self.bounds.max_waiting_calls
        if full or session.waiting_bytes + open_call.size_bytes > self.bounds.max_waiting_bytes:
            self._admitted_calls.fail(open_call, "too_many_calls", retry_after_s=1.0)
            return
        session.waiting.append(open_call)
        self._queue_call(open_call, now)

    def max_open_calls(self, session: Session) -> int:
        """How many calls it may have open."""
        return session.max_open_calls or self.bounds.max_open_calls

    def may_send(self, session: Session) -> bool:
        """Whether a call of it may go now."""
        most = session.max_open_calls or self.bounds.max_open_calls
        return (
            session.sent < most
            and (self.credit_bytes or 0) > 0
            and session.unread_bytes <= UNREAD_STEP_BYTES
            and not self.draining
            and (session.quota is None or session.quota.has_room)
        )

    def hooks_passed(self, open_call: OpenCall, now: float) -> None:
        """Hooks have let it pass: it leaves now, or as the first of its session's line."""
        session = open_call.session
        session.count_in_flight(-1)
        open_call.stage = "unresolved"
        refused = open_call.size_bytes > COUNTED_BYTES and self.refuse_if_full(open_call)
        if not refused and self.draining and not session.carrier_keeps_lines:
            self._admitted_calls.fail(open_call, "closing")
        elif not refused and self.may_send(session):
            self._admitted_calls.send(open_call, now)
            return
        elif not refused:
            session.waiting.appendleft(open_call)
            self._queue_call(open_call, now)
        self.send_queued(session, now)  # its place is free

    def _queue_call(self, open_call: OpenCall, now: float) -> None:
        """It is in its session's line now."""
        open_call.stage = "waiting"
        open_call.session.waiting_bytes += open_call.size_bytes
        self._timers.arm("queued_call", open_call.call, now, self.bounds.wait_s)
        self._blocked_sessions[open_call.session.id] = None

    def send_queued(self, session: Session, now: float) -> None:
        """Send what waits in this session's line, as far as it may go."""
        if session.quota is not None:
            self.send_queued_of_quota(session.quota, now)
            return
        while session.waiting and self.may_send(session):
            self._send_next(session, now)
        if session.waiting:
            self._blocked_sessions[session.id] = None  # perhaps it is the link that keeps it back now

    def send_queued_of_quota(self, quota: Quota, now: float) -> None:
        """The same for all sessions of one holder: they take turns, one call each."""
        ready = [session for session in quota.sessions.values() if session.waiting]
        while ready:
            ready = [session for session in ready if session.waiting and self.may_send(session)]
            for session in ready:
                if self.may_send(session):
                    self._send_next(session, now)
                    quota.move_last(session)
        for session in quota.sessions.values():
            if session.waiting:
                self._blocked_sessions[session.id] = None

    def _send_next(self, session: Session, now: float) -> None:
        open_call = session.waiting.popleft()
        session.waiting_bytes -= open_call.size_bytes
        self._timers.disarm("queued_call", open_call.call)
        self._admitted_calls.send(open_call, now)

    def send_queued_of_all(self, now: float) -> None:
        """The link can carry more: sessions take turns, one call each."""
        while self._blocked_sessions and (self.credit_bytes or 0) > 0 and not self.draining:
            session_id = next(iter(self._blocked_sessions))
            del self._blocked_sessions[session_id]
            session = self._sessions.get(session_id)
            if session is None or not session.waiting or not self.may_send(session):
                continue
            self._send_next(session, now)
            if session.waiting:
                self._blocked_sessions[session_id] = None

    def leave_queue(self, open_call: OpenCall) -> None:
        """It ends while it waits."""
        open_call.session.waiting.remove(open_call)
        open_call.session.waiting_bytes -= open_call.size_bytes
        self._timers.disarm("queued_call", open_call.call)

    # --- the other end, and time -----------------------------------------------------------------------

    def supervisor_lost(self) -> None:
        """What waits here was never delivered, and goes on waiting."""
        self.credit_bytes = None
        for session in self._sessions.values():
            if session.waiting:
                self._blocked_sessions[session.id] = None

    def session_closed(self, session: Session) -> None:
        """The agent is gone."""
        self._blocked_sessions.pop(session.id, None)

    def expired_calls(self, call: CallId, now: float) -> tuple[str, str] | None:
        """A call has waited too long: the fault, and why. None: it goes on waiting, for the next broker."""
        if self.draining:
            self._timers.arm("queued_call", call, now, self.bounds.wait_s)
            return None
        slug = "waited_too_long" if self.credit_bytes is not None else "supervisor_away"
        return slug, f"The call waited for {self.bounds.wait_s:g} s."
