"""The invariants of open calls and their sessions.

Owns what must hold of one call or session, of those that an event names, and of all together. Refuses to
know: which part makes it hold.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from carpool_broker.core.calls.call_table import CallTable
from carpool_broker.core.model.session import AT_SERVER, IN_FLIGHT, Session, Stage
from carpool_broker.core.model.timer_kinds import BrokerTimers, TimerKind
from carpool_protocol.ids import CallId, SessionId

_STAGES: Final[tuple[tuple[TimerKind, Stage], ...]] = (("sent_call", "sent"), ("queued_call", "waiting"))
"""The timers that a call has exactly while it is in a stage."""


def check(call_table: CallTable, sessions: Mapping[SessionId, Session], timers: BrokerTimers) -> None:
    """Assert the invariants of all calls of these sessions."""
    call_table.arguments.check(sessions.values())
    call_table.unread.check(sessions.values())
    call_table.admission.quotas.check(sessions.values())
    parked = [open_call for open_call in call_table.calls.values() if open_call.is_parked]
    of = Counter(open_call.session.id for open_call in parked)
    known = sum(len(s.open_calls) for s in sessions.values()) + len(parked)
    assert known == len(call_table.calls), "a call of nobody"
    for open_call in parked:
        assert open_call.stage in AT_SERVER
        assert open_call.asked.by is not None
        assert sessions.get(open_call.session.id) is open_call.session
        assert all(other is not open_call for other in open_call.session.open_calls.values())
    for session in sessions.values():
        sent = sum(1 for o in session.open_calls.values() if o.stage in IN_FLIGHT)
        assert session.sent == sent + of[session.id]
        assert session.waiting_bytes == sum(o.size_bytes for o in session.waiting)
        assert {*session.waiting} == {o for o in session.open_calls.values() if o.stage == "waiting"}
        check_session(session, call_table)
        for request, open_call in session.open_calls.items():
            assert open_call.asked.id == request
            assert call_table.calls[open_call.call] is open_call
    for call in call_table.calls:
        check_call(call, call_table, timers)
    if call_table.counting is not None:
        call_table.counting.check()
    if call_table.recent is not None:
        call_table.recent.check()
    for kind, stage in _STAGES:
        expected = {call for call, open_call in call_table.calls.items() if open_call.stage == stage}
        assert timers.keys(kind) == expected, f"{kind}: a timer that no call has, or none"


def check_touched(
    call_table: CallTable,
    sessions: Mapping[SessionId, Session],
    timers: BrokerTimers,
    named: Iterable[Struct],
) -> None:
    """Assert what must hold of the records that an event and its effects name. A change of another record is
    told by an effect. A record that is gone has left nothing behind.
    """
    calls: set[CallId] = set()
    of: set[SessionId] = set()
    for each in named:
        call = getattr(each, "call", None)
        if call is not None:
            calls.add(call)
        of.add(getattr(each, "session", SessionId("")))
    for call in calls:
        check_call(call, call_table, timers)
    for session in of & sessions.keys():
        check_session(sessions[session], call_table)


def check_call(call: CallId, call_table: CallTable, timers: BrokerTimers) -> None:
    """Assert that this call has the time limit of its stage, and none once it is over."""
    open_call = call_table.calls.get(call)
    stage = None if open_call is None else open_call.stage
    for kind, its in _STAGES:
        assert timers.has(kind, call) == (stage == its), f"call {call}: its timer is not that of {stage}"
    if open_call is not None and not open_call.is_parked:
        assert open_call.session.open_calls.get(open_call.asked.id) is open_call, (
            f"nobody is owed call {call}"
        )


def check_session(session: Session, call_table: CallTable) -> None:
    """Assert that this session is within its limits, and that its calls wait only for a reason."""
    admission = call_table.admission
    if session.sent > admission.max_open_calls(
        session
    ):  # an earlier broker's calls may be back beside its own
        ours = sum(
            1
            for each in session.open_calls.values()
            if each.stage in IN_FLIGHT and each.call >= call_table.before
        )
        assert ours <= admission.max_open_calls(session), f"{session.id} has more calls open than it may"
    assert admission.next_queued(session) is None, f"{session.id} waits without a reason"
