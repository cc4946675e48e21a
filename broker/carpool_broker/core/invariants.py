"""What must always hold of open calls and their sessions.

Owns what must hold of one call or session, of those that an event names, and of all together. Knows nothing
of: how it comes to hold.
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
"""Timers that a call has exactly while it is in a stage."""


def check(ledger: CallTable, sessions: Mapping[SessionId, Session], timers: BrokerTimers) -> None:
    """Assert every invariant of the ledger of these sessions."""
    ledger.arguments.check(sessions.values())
    ledger.unread.check(sessions.values())
    ledger.admission.quotas.check(sessions.values())
    parked = [owed for owed in ledger.calls.values() if owed.is_parked]
    of = Counter(owed.session.id for owed in parked)
    known = sum(len(s.open_calls) for s in sessions.values()) + len(parked)
    assert known == len(ledger.calls), "a call of nobody"
    for owed in parked:
        assert owed.stage in AT_SERVER
        assert owed.asked.by is not None
        assert sessions.get(owed.session.id) is owed.session
        assert all(other is not owed for other in owed.session.open_calls.values())
    for session in sessions.values():
        sent = sum(1 for o in session.open_calls.values() if o.stage in IN_FLIGHT)
        assert session.sent == sent + of[session.id]
        assert session.waiting_bytes == sum(o.size_bytes for o in session.waiting)
        assert {*session.waiting} == {o for o in session.open_calls.values() if o.stage == "waiting"}
        check_session(session, ledger)
        for request, owed in session.open_calls.items():
            assert owed.asked.id == request
            assert ledger.calls[owed.call] is owed
    for call in ledger.calls:
        check_call(call, ledger, timers)
    for kind, stage in _STAGES:
        expected = {call for call, owed in ledger.calls.items() if owed.stage == stage}
        assert timers.keys(kind) == expected, f"{kind}: a timer that no call has, or none"


def check_touched(
    ledger: CallTable, sessions: Mapping[SessionId, Session], timers: BrokerTimers, named: Iterable[Struct]
) -> None:
    """Assert what must hold of the records that an event and its effects name: whatever an event changed for
    others is said by an effect. One that is over has left nothing behind.
    """
    calls: set[CallId] = set()
    of: set[SessionId] = set()
    for each in named:
        call = getattr(each, "call", None)
        if call is not None:
            calls.add(call)
        of.add(getattr(each, "session", SessionId("")))
    for call in calls:
        check_call(call, ledger, timers)
    for session in of & sessions.keys():
        check_session(sessions[session], ledger)


def check_call(call: CallId, ledger: CallTable, timers: BrokerTimers) -> None:
    """Assert that this call has the limit of its stage, and none once it is over."""
    owed = ledger.calls.get(call)
    stage = None if owed is None else owed.stage
    for kind, its in _STAGES:
        assert timers.has(kind, call) == (stage == its), f"call {call}: its timer is not that of {stage}"
    if owed is not None and not owed.is_parked:
        assert owed.session.open_calls.get(owed.asked.id) is owed, f"nobody is owed call {call}"


def check_session(session: Session, ledger: CallTable) -> None:
    """Assert that this session has no more at once than it may, and waits only for a reason."""
    admission = ledger.admission
    if session.sent > admission.max_open_calls(
        session
    ):  # an earlier broker's calls may be back beside its own
        ours = sum(
            1
            for each in session.open_calls.values()
            if each.stage in IN_FLIGHT and each.call >= ledger.before
        )
        assert ours <= admission.max_open_calls(session), f"{session.id} has more calls open than it may"
    could_go = admission.may_send(session)
    assert not (session.waiting and could_go), f"{session.id} waits without a reason"
