"""The supervisors' records of calls of earlier brokers, until this broker has decided about each
(docs/rules.md, rule 4).

Owns the calls and sessions of the record (`CallsRecorded`): which call a request matches, which sessions can
still come back, and what a supervisor may forget. Of a call that has ended its supervisor forgets the
answer; an open call is cancelled. A stateless call whose agent is asked for something is kept for a retry,
which can come late (rule 14).

Invariants (`check`): every call is in the index of its session once; only a call that waits for a retry has
a deadline. Refuses to know: which sessions are present, how a request goes on.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from carpool_broker.core.calls.audit import AuditTrail
from carpool_broker.core.model.effects import AnyEffect, ForgetRecordedCall
from carpool_broker.core.model.events import CallRequested
from carpool_broker.core.model.supervisors import SupervisorLinks
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_protocol.ids import CallId, RawJson, ServerName, SessionId, SupervisorName
from carpool_protocol.link.messages import AnswersWritten, CallsRecorded, CancelCall, RecordedCall


class RecordedCalls:
    """The recorded calls that are not decided about."""

    def __init__(self, out: Callable[[AnyEffect], None], timers: BrokerTimers) -> None:
        self._emit = out
        self._timers = timers
        self.trail: AuditTrail | None = None
        """The audit, if one is kept."""
        self.awaited: dict[SessionId, list[ServerName]] = {}
        """The sessions that are not back, and the servers at which each holds an instance."""
        self._recorded_by: dict[SessionId, set[SupervisorName]] = {}
        """Where there are several supervisors: those whose records have these sessions."""
        self.gone: set[SessionId] = set()
        """The sessions that were given up. If one comes back, nothing is known of its calls."""
        self._calls: dict[SessionId, dict[CallId, RecordedCall]] = {}
        self._parked: dict[CallId, SessionId] = {}
        self._until: dict[CallId, float] = {}
        """The deadlines that calls had when the supervisor went. They go on when it is back."""

    def record_received(self, record: CallsRecorded, supervisor: SupervisorName) -> None:
        """Add a part of the record of this supervisor."""
        for each in record.sessions:
            if each.gone:
                self.gone.add(each.session)
            else:
                self._await(each.session, supervisor).extend(each.held)
        for call in record.calls:
            self._await(call.session, supervisor)
            self._calls.setdefault(call.session, {})[call.call] = call

    def _await(self, session: SessionId, supervisor: SupervisorName) -> list[ServerName]:
        self._recorded_by.setdefault(session, set()).add(supervisor)
        return self.awaited.setdefault(session, [])

    def record_completed(self) -> None:
        """The record is complete: deadlines of calls that are not in it are dropped."""
        self._until = {call: until for call, until in self._until.items() if self.holds(call)}

    def calls_by_request(self, session: SessionId) -> dict[RawJson, list[RecordedCall]]:
        """Return the calls of this session by the agent's request ids; calls with one id are in the order of
        their numbers.
        """
        calls = self._calls.get(session, {})
        found: dict[RawJson, list[RecordedCall]] = {}
        for number in sorted(calls):
            found.setdefault(calls[number].request, []).append(calls[number])
        return found

    def get(self, session: SessionId, call: CallId) -> RecordedCall | None:
        """Return this call if it belongs to this session."""
        return self._calls.get(session, {}).get(call)

    def remove(self, call: RecordedCall) -> None:
        """Remove a call that goes on in the call table."""
        calls = self._calls[call.session]
        del calls[call.call]
        if not calls:
            del self._calls[call.session]
        if self._parked.pop(call.call, None) is not None:
            self._timers.disarm("recorded_call", call.call)

    def wait_for_retry(self, call: RecordedCall, now: float, park_s: float) -> None:
        """Keep this call for a retry."""
        if call.call not in self._parked:
            self._parked[call.call] = call.session
            until = self._until.pop(call.call, now + park_s)
            self._timers.arm("recorded_call", call.call, now, max(until - now, 0.0))

    def holds(self, call: CallId) -> bool:
        """True if this call is not decided about."""
        return any(call in calls for calls in self._calls.values())

    def calls_of(self, session: SessionId) -> list[RecordedCall]:
        """Return the calls of this session that are not decided about."""
        return list(self._calls.get(session, {}).values())

    def sessions(self) -> Iterator[SessionId]:
        """Return the sessions that have calls left, or are awaited."""
        yield from {**self.awaited, **self._calls}

    def release(self, call: RecordedCall, reason: str) -> None:
        """Let go of a call that no agent wants."""
        self.remove(call)
        if self.trail is not None:
            self.trail.call_released(call)
        if call.ended:
            self._emit(AnswersWritten([call.call]))
        else:
            self._emit(CancelCall(call.call, reason))

    def session_given_up(self, call: RecordedCall, reason: str) -> None:
        """Let go of a call whose session is given up. An open call is cancelled here. The supervisor forgets
        an ended one with `SessionEnded`, which comes next, and not before: if this broker died in between, a
        carrier that returns would send the request to the next broker, which would run it again.
        """
        self.remove(call)
        if self.trail is not None:
            self.trail.call_released(call)
        if not call.ended:
            self._emit(CancelCall(call.call, reason, answered=True))

    def agent_done(self, call: RecordedCall, reason: str) -> None:
        """Let go of a call whose agent is present and does not wait for it, because the agent has cancelled
        it, has the answer, or gets one that it may not have read. The supervisor remembers the call until
        its carrier has that answer. Otherwise, if this broker died now, the next one would run the request
        again.
        """
        self.remove(call)
        if not call.ended:
            if self.trail is not None:
                self.trail.call_released(call)
            self._emit(CancelCall(call.call, reason, answered=True))
        self._emit(ForgetRecordedCall(call.session, call.call))

    def end_parked(self, calls: Iterable[CallId]) -> None:
        """End the calls for which no retry has come."""
        for call in calls:
            found = self._calls[self._parked.pop(call)][call]
            self.release(found, "the agent did not bring in time what it wants")

    def supervisor_lost(self, name: SupervisorName, links: SupervisorLinks) -> None:
        """This supervisor has gone, and its record with it."""
        for session, calls in list(self._calls.items()):
            for call in [each.call for each in calls.values() if links.runs(name, each.key)]:
                del calls[call]
                if self._parked.pop(call, None) is not None:
                    until = self._timers.deadline_of("recorded_call", call)
                    assert until is not None
                    self._until[call] = until
                    self._timers.disarm("recorded_call", call)
            if not calls:
                del self._calls[session]
        for session, held in list(self.awaited.items()):
            others = self._recorded_by.get(session, set()) - {name}
            if others:
                self._recorded_by[session] = others
                held[:] = [server for server in held if not links.runs_server(name, server)]
            else:
                del self.awaited[session]
        self._recorded_by = {each: by for each, by in self._recorded_by.items() if each in self.awaited}

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
    """Return the recorded call that this request was, and whether that is certain. `calls` are those with
    its id; `is_again` is true if one of them can be an earlier request, whose answer the agent has.

    An id must be used once. Where it is not, the digest of the request tells the uses apart. Of equal
    requests the last one is meant, because an id can be taken only while no other use is open. Once that
    call has ended, it cannot be told from the one before it, whose answer was not reported as written.
    """
    alike = [each for each in calls if not (request.digest and each.digest) or each.digest == request.digest]
    if not alike:
        return None, True
    return alike[-1], not (is_again and alike[-1].ended)
