"""Admission: whether a call goes to the supervisor now, waits, or is refused.

`Admission.decide` has the whole decision, in the order of its rules. It comes after `dispatch` has found a
server that may be called, and before `CallTable.send`, where hooks can hold the call. Owns the queue of each
session, the bounds of sessions (docs/rules.md, rule 3), the quotas of profiles and tokens (`quotas`), the
credit of links, and that nothing is sent while carpool drains. No call waits here for longer than `wait_s`.

Invariants (`invariants.check`): a call in a session's queue is `waiting` and has a time limit; no call waits
that could go. Refuses to know: which server a call is for (`dispatch`), hooks (`hook_points`), how a call is
sent and ends (`call_table`), names, eras.
"""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, Protocol

from carpool_broker.core.limits.memory_budgets import COUNTED_BYTES, UNREAD_STEP_BYTES, ArgumentBudget
from carpool_broker.core.limits.quotas import Quotas
from carpool_broker.core.model.bounds import SessionBounds
from carpool_broker.core.model.session import OpenCall, Quota, Session
from carpool_broker.core.model.supervisors import SupervisorLinks
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_protocol.ids import SessionId, SupervisorName

Step = Literal["send", "wait"]


class Refusal(NamedTuple):
    """Why a call is refused: a fault of ours, more about it, and when a retry can succeed."""

    fault: str
    detail: str = ""
    retry_after_s: float | None = None


CLOSING: Final = Refusal("closing")
TOO_MANY_CALLS: Final = Refusal("too_many_calls", retry_after_s=1.0)


class AdmittedCalls(Protocol):
    """What the call table does with a call once admission has decided."""

    def send(self, open_call: OpenCall, now: float) -> None:
        """Send the call to the supervisor, or give it to hooks first."""

    def fail(
        self, open_call: OpenCall, slug: str, detail: str = "", retry_after_s: float | None = None
    ) -> None:
        """End the call with an error of ours."""


class Admission:
    """The admission of calls of all sessions."""

    def __init__(
        self,
        sessions: Mapping[SessionId, Session],
        bounds: SessionBounds,
        arguments: ArgumentBudget,
        books: AdmittedCalls,
        timers: BrokerTimers,
        *,
        links: SupervisorLinks,
    ) -> None:
        self._sessions = sessions
        self.links = links
        self._arguments = arguments
        self._admitted_calls = books
        self._timers = timers
        self.bounds = bounds
        self.draining = False
        """True while carpool drains: no call is sent any more (`drain`)."""
        self.quotas = Quotas()
        self._blocked_sessions: dict[SessionId, None] = {}
        """The sessions whose queues may hold calls that only the credit of links holds back."""

    # --- does this call go now? ------------------------------------------------------------------------

    def decide(self, open_call: OpenCall, now: float) -> Step | Refusal:
        """Decide what a call that knows its server does next. The first rule that applies counts.

        1. Its arguments are large, and too many calls or arguments are open (`excess`): it is refused.
        2. carpool drains, and the agent's carrier cannot bring the call to the next broker: it is refused.
        3. The profile's quota is used up: it is refused. Otherwise the quota counts it from now on.
        4. The session may send it (`may_send`), and no call that waits in the session could go before: it
           goes.
        5. The session's queue is full: it is refused.
        6. It waits, for `wait_s` at most.
        """
        session, bounds = open_call.session, self.bounds
        if open_call.size_bytes > COUNTED_BYTES and (refusal := self.excess(open_call)) is not None:
            return refusal
        if self.draining and not session.carrier_keeps_lines:
            return CLOSING
        if session.quota is not None and (excess := session.quota.excess(open_call, now)) is not None:
            return Refusal(excess.fault, excess.detail, excess.retry_after_s)
        may_send = self._has_room(session) and self.links.has_credit(open_call.key)
        if may_send and (not session.waiting or self.next_queued(session) is None):
            return "send"
        full = len(session.waiting) >= bounds.max_waiting_calls
        if full or session.waiting_bytes + open_call.size_bytes > bounds.max_waiting_bytes:
            return TOO_MANY_CALLS
        return "wait"

    def decide_again(self, open_call: OpenCall) -> Step | Refusal:
        """Decide the same for a call that was in flight, and that goes before all that wait.

        Its quota has counted it, and its place in the queue was given: rules 3 and 5 do not apply again.
        """
        session = open_call.session
        if open_call.size_bytes > COUNTED_BYTES and (refusal := self.excess(open_call)) is not None:
            return refusal
        if self.draining and not session.carrier_keeps_lines:
            return CLOSING
        return "send" if self.may_send(open_call) else "wait"

    def excess(self, open_call: OpenCall) -> Refusal | None:
        """Return why no room is left for this call; None where there is room."""
        session, bounds = open_call.session, self.bounds
        if self._arguments.exceeds(open_call, bounds.argument_budget_bytes):
            return Refusal("arguments_too_many", retry_after_s=1.0)
        if len(session.open_calls) > self.max_open_calls(session) + bounds.max_waiting_calls:
            return TOO_MANY_CALLS
        return None

    def may_send(self, open_call: OpenCall) -> bool:
        """True if this call may go to its supervisor now."""
        return self.links.has_credit(open_call.key) and self._has_room(open_call.session)

    def next_queued(self, session: Session) -> OpenCall | None:
        """Return the first queued call of this session that may go now: one whose supervisor is away, or has
        no credit, holds back none for another supervisor.
        """
        if not session.waiting or not self._has_room(session) or not self.links.has_any_credit:
            return None
        has_credit = self.links.has_credit
        return next((open_call for open_call in session.waiting if has_credit(open_call.key)), None)

    def _has_room(self, session: Session) -> bool:
        """True if the limits of this session let another call go."""
        most = session.max_open_calls or self.bounds.max_open_calls
        return (
            session.sent < most
            and not session.awaits_records
            and session.unread_bytes <= UNREAD_STEP_BYTES
            and not self.draining
            and (session.quota is None or session.quota.has_room)
        )

    # --- and what follows ------------------------------------------------------------------------------

    def admit(self, open_call: OpenCall, now: float) -> None:
        """Send a call that knows its server, queue it, or refuse it."""
        match self.decide(open_call, now):
            case "send":
                self._admitted_calls.send(open_call, now)
            case "wait":
                open_call.session.waiting.append(open_call)
                self._queue_call(open_call, now)
            case refusal:
                self._refuse(open_call, refusal)

    def admit_again(self, open_call: OpenCall, now: float) -> None:
        """A call is in flight and at no server, because hooks have let it pass or its pool was replaced: send
        it, make it the first of its session's queue, or refuse it.
        """
        session = open_call.session
        session.count_in_flight(-1)
        open_call.stage = "unresolved"
        match self.decide_again(open_call):
            case "send":
                self._admitted_calls.send(open_call, now)
                return
            case "wait":
                session.waiting.appendleft(open_call)
                self._queue_call(open_call, now)
            case refusal:
                self._refuse(open_call, refusal)
        self.send_queued(session, now)  # its place is free

    def refuse_if_full(self, open_call: OpenCall) -> bool:
        """Refuse a call for which no room is left. Returns False if there is room."""
        refusal = self.excess(open_call)
        if refusal is not None:
            self._refuse(open_call, refusal)
        return refusal is not None

    def _refuse(self, open_call: OpenCall, refusal: Refusal) -> None:
        self._admitted_calls.fail(open_call, refusal.fault, refusal.detail, refusal.retry_after_s)

    def max_open_calls(self, session: Session) -> int:
        """Return how many calls this session may have open."""
        return session.max_open_calls or self.bounds.max_open_calls

    def _queue_call(self, open_call: OpenCall, now: float) -> None:
        """Put a call into its session's queue, with a time limit."""
        session = open_call.session
        open_call.stage = "waiting"
        session.waiting_bytes += open_call.size_bytes
        if session.quota is not None:
            session.quota.queued.setdefault(session.id, session)
        self._timers.arm("queued_call", open_call.call, now, self.bounds.wait_s)
        self._blocked_sessions[session.id] = None

    def send_queued(self, session: Session, now: float) -> None:
        """Send queued calls of this session, as many as may go."""
        if session.quota is not None:
            self.send_queued_of_quota(session.quota, now)
            return
        while (open_call := self.next_queued(session)) is not None:
            self._send_queued_call(open_call, now)
        if session.waiting:
            self._blocked_sessions[session.id] = None  # perhaps it is the link that keeps it back now

    def send_queued_of_quota(self, quota: Quota, now: float) -> None:
        """Send queued calls of all sessions of one quota: the sessions take turns, one call each. It costs
        nothing while the quota has no room, however many sessions share it.
        """
        held_back: dict[SessionId, Session] = {}
        while quota.queued and quota.has_room and self.links.has_any_credit:
            session = next(iter(quota.queued.values()))
            open_call = self.next_queued(session)
            if open_call is None:
                held_back[session.id] = quota.queued.pop(session.id)
            else:
                self._send_queued_call(open_call, now)
        if held_back:
            quota.queued = {**held_back, **quota.queued}  # they keep their turns
        if quota.has_room:
            self._blocked_sessions.update(dict.fromkeys(quota.queued))

    def _send_queued_call(self, open_call: OpenCall, now: float) -> None:
        self.leave_queue(open_call)
        session = open_call.session
        if session.quota is not None and session.waiting:
            session.quota.move_last(session)
        self._admitted_calls.send(open_call, now)

    def send_queued_of_all(self, now: float) -> None:
        """Send queued calls of all sessions while links have credit: sessions take turns, one call each."""
        without_credit: list[SessionId] = []
        while self._blocked_sessions and self.links.has_any_credit and not self.draining:
            session_id = next(iter(self._blocked_sessions))
            del self._blocked_sessions[session_id]
            session = self._sessions.get(session_id)
            if session is None or not session.waiting or not self._has_room(session):
                continue
            if (open_call := self.next_queued(session)) is None:
                without_credit.append(session_id)
                continue
            self._send_queued_call(open_call, now)
            if session.waiting:
                self._blocked_sessions[session_id] = None
        self._blocked_sessions.update(dict.fromkeys(without_credit))

    def records_settled(self, session: Session) -> None:
        """The requests of a session that is back are decided about: its queued calls may go."""
        session.awaits_records = False
        if session.waiting:
            self._blocked_sessions[session.id] = None

    def leave_queue(self, open_call: OpenCall) -> None:
        """Remove a call that is sent, or that ends while it is queued."""
        session = open_call.session
        session.waiting.remove(open_call)
        session.waiting_bytes -= open_call.size_bytes
        if session.quota is not None and not session.waiting:
            del session.quota.queued[session.id]
        self._timers.disarm("queued_call", open_call.call)

    # --- the other end, and time -----------------------------------------------------------------------

    def supervisor_lost(self, name: SupervisorName) -> None:
        """This supervisor has gone. Queued calls were never delivered and stay queued."""
        self.links.supervisor_lost(name)
        for session in self._sessions.values():
            if session.waiting:
                self._blocked_sessions[session.id] = None

    def session_closed(self, session: Session) -> None:
        """The session has closed."""
        self._blocked_sessions.pop(session.id, None)

    def why_expired(self, open_call: OpenCall, now: float) -> tuple[str, str] | None:
        """Return the fault and the detail for a call that was queued for too long. None: it stays, for the
        next broker.
        """
        if self.draining:
            self._timers.arm("queued_call", open_call.call, now, self.bounds.wait_s)
            return None
        slug = "waited_too_long" if self.links.is_served(open_call.key) else "supervisor_away"
        return slug, f"The call waited for {self.bounds.wait_s:g} s."
