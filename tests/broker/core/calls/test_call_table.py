"""Which agent is owed what: admission, credit, and the one end of each call."""

from typing import Any

from carpool_broker.core import invariants
from carpool_broker.core.calls.call_table import CallTable
from carpool_broker.core.model.bounds import SessionBounds
from carpool_broker.core.model.effects import Reply, SendProgress
from carpool_broker.core.model.events import CallRequested, SourceId
from carpool_broker.core.model.session import Session
from carpool_broker.core.model.supervisors import ONLY
from carpool_broker.core.model.timer_kinds import ORDER, BrokerTimers
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, CallId, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import (
    Call,
    CallAnswered,
    CallFailed,
    CallProgressed,
    CancelCall,
    Policy,
    PoolSpec,
)
from carpool_protocol.machine.timers import Timers
from tests.behaviours import behaviour

KEY = PoolKey("s:1")
ONE, TWO = SessionId("s1"), SessionId("s2")
BOUNDS = SessionBounds(max_open_calls=2, max_waiting_calls=2, max_waiting_bytes=100, wait_s=4.0)


class CallTableRig:
    def __init__(self, credit: int | None = 10_000) -> None:
        self.effects: list[Any] = []
        self.sessions = {name: Session(name, SourceId("daemon"), "", 1, "shim") for name in (ONE, TWO)}
        self.timers: BrokerTimers = Timers(ORDER)
        self.ledger = CallTable(self.sessions, BOUNDS, self.effects.append, self.timers)
        if credit is not None:
            self.ledger.links.supervisor_ready(ONLY, credit)
        self.now = 100.0

    def call(
        self, request: str, session: SessionId = ONE, size: int = 0, token: RawJson = ABSENT
    ) -> list[Any]:
        asked = CallRequested(session, RawJson(request.encode()), "s__t", RawJson(b" " * size), ABSENT, token)
        open_call = self.ledger.open(self.sessions[session], asked)
        open_call.key, open_call.server, open_call.target = KEY, ServerName("s"), "t"
        self.ledger.admission.admit(open_call, self.now)
        return self.done()

    def done(self) -> list[Any]:
        invariants.check(self.ledger, self.sessions, self.timers)
        done = list(self.effects)
        self.effects.clear()
        return done

    def answer(self, call: int) -> list[Any]:
        self.ledger.call_answered(CallAnswered(CallId(call), is_error=False, body=EMPTY_OBJECT), self.now)
        return self.done()

    def wait(self, duration_s: float) -> list[Any]:
        self.now += duration_s
        for kind, calls in self.timers.due(self.now):
            (self.ledger.end_queued if kind == "queued_call" else self.ledger.end_sent)(calls, self.now)
        return self.done()


def calls(effects: list[Any]) -> list[int]:
    return [effect.call for effect in effects if isinstance(effect, Call)]


def test_a_session_that_brings_a_bound_of_its_own_has_that_one() -> None:
    rig = CallTableRig()
    rig.sessions[ONE].max_open_calls = 3
    assert [calls(rig.call(str(n))) for n in range(4)] == [[1], [2], [3], []]
    assert [calls(rig.call(str(n), TWO)) for n in range(3)] == [[5], [6], []]
    assert calls(rig.answer(1)) == [4]


def test_an_answer_goes_back_under_the_agents_own_id_and_once() -> None:
    rig = CallTableRig()
    assert calls(rig.call("1.0")) == [1]
    assert rig.answer(1) == [Reply(ONE, RawJson(b"1.0"), is_error=False, body=EMPTY_OBJECT, call=CallId(1))]
    assert rig.answer(1) == []


@behaviour("pressure:bounded-calls")
def test_calls_over_the_bound_wait_and_go_in_order_and_past_the_line_are_refused() -> None:
    rig = CallTableRig()
    assert [calls(rig.call(str(n))) for n in range(4)] == [[1], [2], [], []]
    (refused,) = rig.call("4")
    assert refused.id == b"4"
    assert b'"too_many_calls"' in refused.body
    assert b'"delivered":"no"' in refused.body
    assert calls(rig.answer(2)) == [3]
    assert calls(rig.answer(1)) == [4]


def test_the_line_is_bounded_in_bytes_too() -> None:
    rig = CallTableRig(credit=None)
    assert rig.call("1", size=60) == []
    (refused,) = rig.call("2", size=60)
    assert b'"too_many_calls"' in refused.body


def test_a_session_never_waits_for_another_sessions_bound() -> None:
    rig = CallTableRig()
    for n in range(4):
        rig.call(str(n))
    assert calls(rig.call("1", TWO)) == [5]


def test_without_credit_nothing_goes_and_then_sessions_take_turns() -> None:
    rig = CallTableRig(credit=0)
    for n in range(2):
        rig.call(str(n), ONE)
    rig.call("0", TWO)
    rig.ledger.links.supervisor_ready(ONLY, 100)
    rig.ledger.admission.send_queued_of_all(rig.now)
    assert [(e.session, e.call) for e in rig.done()] == [(ONE, 1), (TWO, 3)]


def test_a_session_that_was_at_its_bound_when_credit_came_is_not_forgotten_when_it_comes_again() -> None:
    rig = CallTableRig(credit=100)
    rig.call("1")
    rig.call("2")
    rig.ledger.links.supervisor_ready(ONLY, 0)
    rig.call("3")
    rig.ledger.links.supervisor_ready(ONLY, 64)
    rig.ledger.admission.send_queued_of_all(rig.now)
    rig.ledger.links.supervisor_ready(ONLY, 0)
    rig.answer(1)
    rig.ledger.links.supervisor_ready(ONLY, 64)
    rig.ledger.admission.send_queued_of_all(rig.now)
    assert calls(rig.done()) == [3]


def test_waiting_ends_as_not_delivered_with_the_reason_that_holds() -> None:
    rig = CallTableRig(credit=None)
    rig.call("1")
    (reply,) = rig.wait(4.0)
    assert b'"supervisor_away"' in reply.body
    rig = CallTableRig(credit=0)
    rig.call("1")
    (reply,) = rig.wait(4.0)
    assert b'"waited_too_long"' in reply.body


@behaviour("backstop:broker")
def test_the_backstop_ends_a_forgotten_call_as_maybe_and_drops_its_late_answer() -> None:
    rig = CallTableRig()
    spec = PoolSpec(
        key=KEY, server=ServerName("s"), argv=[], env={}, cwd="/", policy=Policy(wait_s=1.0, max_total_s=10.0)
    )
    rig.ledger.set_pool_timeouts([spec])
    rig.call("1")
    assert rig.wait(15.9) == []
    cancel, reply = rig.wait(0.2)
    assert cancel == CancelCall(CallId(1), "overdue", answered=True)
    assert b'"answer_overdue"' in reply.body
    assert b'"delivered":"maybe"' in reply.body
    assert rig.answer(1) == []


def test_a_cancel_is_silent_and_goes_on_only_if_the_call_had_gone() -> None:
    rig = CallTableRig()
    for n in range(3):
        rig.call(str(n))
    session = rig.sessions[ONE]
    assert rig.ledger.cancel(session, RawJson(b"2"), "why", rig.now) is True
    assert rig.done() == []
    assert rig.ledger.cancel(session, RawJson(b"0"), "why", rig.now) is True
    assert rig.done() == [CancelCall(CallId(1), "why")]
    assert rig.ledger.cancel(session, RawJson(b"0"), "why", rig.now) is False
    assert rig.answer(1) == []


@behaviour("failure:agent-gone")
def test_everything_of_an_agent_that_is_gone_is_cancelled() -> None:
    rig = CallTableRig()
    for n in range(3):
        rig.call(str(n))
    rig.ledger.session_closed(rig.sessions[ONE])
    assert rig.done() == [CancelCall(CallId(n), "the agent is gone", answered=True) for n in (1, 2)]
    assert not rig.ledger.calls


@behaviour("calls:honest-delivery")
def test_when_the_supervisor_went_what_had_gone_is_maybe_and_what_waits_waits_on() -> None:
    rig = CallTableRig()
    for n in range(3):
        rig.call(str(n))
    rig.ledger.supervisor_lost(ONLY)
    replies = rig.done()
    assert [(r.id, b'"link_broken"' in r.body) for r in replies] == [(b"0", True), (b"1", True)]
    rig.ledger.links.supervisor_ready(ONLY, 1000)
    rig.ledger.admission.send_queued_of_all(rig.now)
    assert calls(rig.done()) == [3]


@behaviour("progress:by-token")
def test_progress_reaches_only_who_gave_a_token() -> None:
    rig = CallTableRig()
    rig.call("1", token=RawJson(b'"tok"'))
    rig.call("2")
    for n in (1, 2, 9):
        rig.ledger.call_progressed(CallProgressed(CallId(n), EMPTY_OBJECT))
    assert rig.done() == [SendProgress(ONE, RawJson(b'"tok"'), EMPTY_OBJECT, RawJson(b"1"))]


def test_a_fault_of_another_release_keeps_its_honest_half() -> None:
    rig = CallTableRig()
    rig.call("1")
    rig.ledger.call_failed(CallFailed(CallId(1), "not_known_here", "maybe", "It fell."), rig.now)
    (reply,) = rig.done()
    assert b'"delivered":"maybe"' in reply.body
    assert b"It fell." in reply.body
