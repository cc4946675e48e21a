"""What the supervisor remembers of the brokers before this one, until it is settled here (rule 4).

Owns the calls and sessions of the record as told (`CallsRecorded`): which call a request is found as, which
sessions may still come back, and that the supervisor hears what it need not remember any longer: of a call
that has ended it forgets the answer, one that is open is cancelled. Calls whose agent is asked for something
(stateless era) are kept for a retry, which may come as long as any (rule 14).

Invariants (`check`): every call is in the index of its session, once; only what a retry may come for has a
deadline.
Knows nothing of: who is here, what becomes of a request.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from carpool_broker.core.calls.audit import AuditTrail
from carpool_broker.core.model.effects import AnyEffect, ForgetRecordedCall
from carpool_broker.core.model.events import CallRequested
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_protocol.ids import CallId, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import AnswersWritten, CallsRecorded, CancelCall, RecordedCall


class RecordedCalls:
    """The record, as far as it is not settled."""

    def __init__(self, out: Callable[[AnyEffect], None], timers: BrokerTimers) -> None:
        self._emit = out
        self._timers = timers
        self.trail: AuditTrail | None = None
        """Where an audit is kept."""
        self.awaited: dict[SessionId, list[ServerName]] = {}
        """Sessions that are not back, and of which servers they hold something."""
        self.gone: set[SessionId] = set()
        """Sessions that were given up: if one comes back all the same, nothing is known of its calls."""
        self._calls: dict[SessionId, dict[CallId, RecordedCall]] = {}
        self._parked: dict[CallId, SessionId] = {}
        self._until: dict[CallId, float] = {}
        """Until when calls waited for a retry as the supervisor went: their time goes on when it is back."""

    def record_received(self, record: CallsRecorded) -> None:
        """A part of it."""
        for each in record.sessions:
            if each.gone:
                self.gone.add(each.session)
                continue
            self.awaited[each.session] = each.held
        for call in record.calls:
            self.awaited.setdefault(call.session, [])
            self._calls.setdefault(call.session, {})[call.call] = call

    def record_completed(self) -> None:
        """All of it was told: times of calls that are not in it are no longer needed."""
        self._until = {call: until for call, until in self._until.items() if self.holds(call)}

    def calls_by_request(self, session: SessionId) -> dict[RawJson, list[RecordedCall]]:
        """The calls of this session by the agent's own ids, those with one id in the order in which they were
        made.
        """
        calls = self._calls.get(session, {})
        found: dict[RawJson, list[RecordedCall]] = {}
        for number in sorted(calls):
            found.setdefault(calls[number].request, []).append(calls[number])
        return found

    def get(self, session: SessionId, call: CallId) -> RecordedCall | None:
        """This call, if it is this session's."""
        return self._calls.get(session, {}).get(call)

    def remove(self, call: RecordedCall) -> None:
        """It is in the books now."""
        calls = self._calls[call.session]
        del calls[call.call]
        if not calls:
            del self._calls[call.session]
        if self._parked.pop(call.call, None) is not None:
            self._timers.disarm("recorded_call", call.call)

    def wait_for_retry(self, call: RecordedCall, now: float, park_s: float) -> None:
        """A retry may come for it."""
        if call.call not in self._parked:
            self._parked[call.call] = call.session
            until = self._until.pop(call.call, now + park_s)
            self._timers.arm("recorded_call", call.call, now, max(until - now, 0.0))

    def holds(self, call: CallId) -> bool:
        """Whether it is not settled what becomes of this call."""
        return any(call in calls for calls in self._calls.values())

    def calls_of(self, session: SessionId) -> list[RecordedCall]:
        """All of it that is not settled."""
        return list(self._calls.get(session, {}).values())

    def sessions(self) -> Iterator[SessionId]:
        """Those that anything is left of."""
        yield from {**self.awaited, **self._calls}

    def release(self, call: RecordedCall, reason: str) -> None:
        """Nobody wants it."""
        self.remove(call)
        if self.trail is not None:
            self.trail.call_released(call)
        if call.ended:
            self._emit(AnswersWritten([call.call]))
        else:
            self._emit(CancelCall(call.call, reason))

    def session_given_up(self, call: RecordedCall, reason: str) -> None:
        """Its session is given up: one that is open is cancelled, and `SessionEnded`, which comes next, makes
        the supervisor forget it. Not before: if we died between the two, a carrier that comes back all the
        same would say it to the next broker, and it would be taken for a new one.
        """
        self.remove(call)
        if self.trail is not None:
            self.trail.call_released(call)
        if not call.ended:
            self._emit(CancelCall(call.call, reason, answered=True))

    def agent_done(self, call: RecordedCall, reason: str) -> None:
        """Its agent is here and does not wait for it: it has cancelled it, or has an answer, or is to have
        one that was said and may be unread. Until that is with its carrier the supervisor remembers that the
        call was there: else, if we died now, it would be said to the next broker and taken for a new one.
        """
        self.remove(call)
        if not call.ended:
            if self.trail is not None:
                self.trail.call_released(call)
            self._emit(CancelCall(call.call, reason, answered=True))
        self._emit(ForgetRecordedCall(call.session, call.call))

    def end_parked(self, calls: Iterable[CallId]) -> None:
        """Calls that no retry came for."""
        for call in calls:
            found = self._calls[self._parked.pop(call)][call]
            self.release(found, "the agent did not bring in time what it wants")

    def clear(self) -> None:
        """Whoever remembered it is gone."""
        for call in self._parked:
            until = self._timers.deadline_of("recorded_call", call)
            assert until is not None
            self._until[call] = until
            self._timers.disarm("recorded_call", call)
        self.awaited.clear()
        self._calls.clear()
        self._parked.clear()

    def check(self) -> None:
        """Assert every invariant."""
        assert self._timers.keys("recorded_call") == self._parked.keys()
        for call, session in self._parked.items():
            assert self._calls[session][call].parked or self._calls[session][call].ended
        for session, calls in self._calls.items():
            assert calls, "an empty index"
            assert all(each.call == call and each.session == session for call, each in calls.items())


def match_request(
    request: CallRequested, calls: Sequence[RecordedCall], *, is_again: bool
) -> tuple[RecordedCall | None, bool]:
    """The call of the record that was this request, and whether that is certain. `calls`: those with its id;
    `is_again`: one of these may be an earlier request, which its agent has an answer to.

    An id is to be used once. Where it is not, what was asked tells the uses apart. Of equal ones the last is
    meant: an id is taken only where no other use is open. Only whether it is that one, or the one before it
    whose answer was not reported as written, nobody can tell once it has ended.
    """
    alike = [each for each in calls if not (request.digest and each.digest) or each.digest == request.digest]
    if not alike:
        return None, True
    return alike[-1], not (is_again and alike[-1].ended)
