"""What must always hold of the ledger: the invariants that its own page states.

Owns nothing. Knows nothing of: how it comes to hold.
"""

from collections import Counter
from collections.abc import Mapping

from carpool_broker.core.ledger import Ledger
from carpool_broker.core.session import AT_SERVER, IN_FLIGHT, Session
from carpool_broker.core.touched import check_call, check_session
from carpool_protocol.ids import SessionId


def check(ledger: Ledger, sessions: Mapping[SessionId, Session]) -> None:
    """Assert every invariant of the ledger of these sessions."""
    ledger.arguments.check(sessions.values())
    ledger.unread.check(sessions.values())
    ledger.admission.quotas.check(sessions.values())
    parked = [owed for owed in ledger.calls.values() if owed.parked]
    of = Counter(owed.session.id for owed in parked)
    known = sum(len(s.owed) for s in sessions.values()) + len(parked)
    assert known == len(ledger.calls), "a call of nobody"
    for owed in parked:
        assert owed.stage in AT_SERVER
        assert owed.asked.by is not None
        assert sessions.get(owed.session.id) is owed.session
        assert all(other is not owed for other in owed.session.owed.values())
    for session in sessions.values():
        sent = sum(1 for o in session.owed.values() if o.stage in IN_FLIGHT)
        assert session.sent == sent + of[session.id]
        assert session.waiting_bytes == sum(o.size_bytes for o in session.waiting)
        assert {*session.waiting} == {o for o in session.owed.values() if o.stage == "waiting"}
        check_session(session, ledger)
        for request, owed in session.owed.items():
            assert owed.asked.id == request
            assert ledger.calls[owed.call] is owed
    for call in ledger.calls:
        check_call(call, ledger)
    assert len(ledger.backstops) == sum(1 for owed in ledger.calls.values() if owed.stage == "sent")
    assert len(ledger.admission.waits) == sum(1 for owed in ledger.calls.values() if owed.stage == "waiting")
