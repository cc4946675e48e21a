"""Which records an event touched, and what must hold of each of them.

Owns the reading of an event and its effects for the calls and sessions that they name: whatever an event
changed for others is said by an effect. And what must hold of one record: full checks ask it of each.

Knows nothing of: what holds of all records together (`BrokerCore.check`).
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from carpool_broker.core.session import IN_FLIGHT, Session
from carpool_protocol.ids import CallId, SessionId

if TYPE_CHECKING:
    from carpool_broker.core.broker import BrokerCore
    from carpool_broker.core.ledger import Ledger


def check_touched(core: "BrokerCore", event: Struct, effects: Iterable[Struct]) -> None:
    """Assert what must hold of the records that these name. One that is over has left nothing behind."""
    calls: set[CallId] = set()
    sessions: set[SessionId] = set()
    for each in (event, *effects):
        call = getattr(each, "call", None)
        if call is not None:
            calls.add(call)
        sessions.add(getattr(each, "session", SessionId("")))
    for call in calls:
        check_call(call, core.ledger)
    for session in sessions & core.sessions.keys():
        check_session(core.sessions[session], core.ledger)


def check_call(call: CallId, ledger: "Ledger") -> None:
    """Assert that this call has the limit of its stage, and none once it is over."""
    owed = ledger.calls.get(call)
    stage = None if owed is None else owed.stage
    assert (call in ledger.backstops) == (stage == "sent"), f"call {call} has no backstop, or is over"
    waits = ledger.admission.waits
    assert (call in waits) == (stage == "waiting"), f"call {call} has no limit, or waits no more"
    if owed is not None and not owed.parked:
        assert owed.session.owed.get(owed.asked.id) is owed, f"nobody is owed call {call}"


def check_session(session: Session, ledger: "Ledger") -> None:
    """Assert that this session has no more at once than it may, and waits only for a reason."""
    admission = ledger.admission
    if session.sent > admission.most(session):  # an earlier broker's calls may be back beside its own
        ours = sum(
            1 for each in session.owed.values() if each.stage in IN_FLIGHT and each.call >= ledger.before
        )
        assert ours <= admission.most(session), f"{session.id} has more calls open than it may"
    could_go = admission.may_send(session)
    assert not (session.waiting and could_go), f"{session.id} waits without a reason"
