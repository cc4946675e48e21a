"""What agents make the broker keep: arguments of open calls, and answers that they leave unread."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_broker.core import invariants
from carpool_broker.core.calls.call_table import CallTable
from carpool_broker.core.limits.memory_budgets import (
    COUNTED_BYTES,
    GUARANTEED_BYTES,
    PRINCIPAL_UNREAD_BYTES,
    SMALL_ANSWER_BYTES,
    UNREAD_STEP_BYTES,
    SubscriptionBudget,
)
from carpool_broker.core.model import events as ev
from carpool_broker.core.model.bounds import SessionBounds
from carpool_broker.core.model.effects import LogLine, Reply
from carpool_broker.core.model.events import CallRequested, SourceId
from carpool_broker.core.model.session import Session
from carpool_broker.core.model.supervisors import ONLY
from carpool_broker.core.model.timer_kinds import ORDER, BrokerTimers
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, CallId, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import Call, CallAnswered, CallProgressed, CancelCall
from carpool_protocol.machine.timers import Timers
from tests.behaviours import behaviour
from tests.broker.core.test_broker import TwoServersRig, code

MIB = 1024 * 1024
BUDGET = 8 * MIB
BOUNDS = SessionBounds(argument_budget_bytes=BUDGET, unread_budget_bytes=BUDGET)
ONE, TWO, THREE = (SessionId(name) for name in ("s1", "s2", "s3"))


class MemoryBudgetRig:
    """A ledger with three sessions and more credit than anybody needs."""

    def __init__(self) -> None:
        self.effects: list[Any] = []
        self.sessions = {name: Session(name, SourceId("daemon"), "", 1, "shim") for name in (ONE, TWO, THREE)}
        self.timers: BrokerTimers = Timers(ORDER)
        self.ledger = CallTable(self.sessions, BOUNDS, self.effects.append, self.timers)
        self.ledger.links.supervisor_ready(ONLY, 1 << 40)
        self.count = 0

    def call(self, session: SessionId, size_bytes: int = 0) -> list[Any]:
        self.count += 1
        params, id_ = RawJson(b" " * size_bytes), RawJson(b"%d" % self.count)
        asked = CallRequested(session, id_, "s__t", params, ABSENT, token=id_)
        open_call = self.ledger.open(self.sessions[session], asked)
        open_call.key, open_call.server, open_call.target = PoolKey("s:1"), ServerName("s"), "t"
        self.ledger.admission.admit(open_call, 0.0)
        return self.done()

    def flood(self, session: SessionId, size_bytes: int) -> int:
        """Call until a call is refused; how many were not."""
        taken = 0
        while isinstance(said := self.call(session, size_bytes)[0], Call):
            taken += 1
        assert b'"arguments_too_many"' in said.body
        assert b'"delivered":"no"' in said.body
        assert b'"retry_after_s":1' in said.body
        return taken

    def answer(self, call: int, size_bytes: int = 2) -> list[Any]:
        self.ledger.call_answered(
            CallAnswered(CallId(call), is_error=False, body=RawJson(b" " * size_bytes)), 0.0
        )
        said = self.done()
        dropped = [each for each in said if isinstance(each, CancelCall)]
        replies = [each for each in said if not isinstance(each, CancelCall)]
        # A body that no agent will read is none for the supervisor to keep.
        unread = [e for e in replies if isinstance(e, Reply) and b'"unread_answers"' in bytes(e.body)]
        assert len(dropped) == len(unread)
        return replies

    def unread(self, session: SessionId, size_bytes: int) -> list[Any]:
        self.ledger.unread_changed(self.sessions[session], size_bytes, 0.0)
        return self.done()

    def done(self) -> list[Any]:
        invariants.check(self.ledger, self.sessions, self.timers)
        done, self.effects[:] = list(self.effects), []
        return done


@behaviour("pressure:arguments")
def test_a_session_with_large_arguments_gets_half_of_the_budget_and_the_next_half_of_the_rest() -> None:
    rig = MemoryBudgetRig()
    assert rig.flood(ONE, MIB) == 4
    assert rig.flood(TWO, MIB) == 2
    assert rig.flood(THREE, MIB) == 1
    assert rig.ledger.arguments.size_bytes < BUDGET


@behaviour("pressure:arguments")
def test_small_calls_get_in_whatever_others_keep_open() -> None:
    rig = MemoryBudgetRig()
    for session in (ONE, TWO):
        while isinstance(rig.call(session, GUARANTEED_BYTES)[0], Call):
            pass
    assert isinstance(rig.call(THREE, GUARANTEED_BYTES)[0], Call), "each session is sure of so much"
    for _ in range(30):
        assert isinstance(rig.call(ONE, COUNTED_BYTES)[0], Call), "small ones are not even counted"


def test_arguments_are_kept_no_more_once_their_call_is_answered_cancelled_or_its_agent_gone() -> None:
    rig = MemoryBudgetRig()
    rig.flood(ONE, MIB)
    rig.answer(1)
    assert isinstance(rig.call(ONE, MIB)[0], Call)
    rig.ledger.cancel(rig.sessions[ONE], RawJson(b"2"), "why", 0.0)
    assert isinstance(rig.call(ONE, MIB)[-1], Call)
    rig.ledger.session_closed(rig.sessions[ONE])
    assert rig.ledger.arguments.size_bytes == 0


@behaviour("pressure:bounded-calls")
def test_calls_that_wait_for_a_catalog_are_bounded_as_all_others() -> None:
    rig = TwoServersRig()
    rig.core.call_table.bounds = SessionBounds(max_open_calls=2, max_waiting_calls=3)
    rig.come()
    refused: list[bytes] = []
    for n in range(7):
        said = rig.call("a__x", str(n), SessionId("s1"))
        refused += [each.id for each in said if isinstance(each, Reply) and code(each) == "too_many_calls"]
    assert refused == [b"5", b"6"]


@behaviour("pressure:unread-answers")
def test_calls_of_an_agent_that_does_not_read_wait_until_it_reads() -> None:
    rig = MemoryBudgetRig()
    assert rig.unread(ONE, UNREAD_STEP_BYTES + 1) == []
    assert rig.call(ONE) == []
    assert isinstance(rig.call(TWO)[0], Call), "nobody else waits"
    (sent,) = rig.unread(ONE, 0)
    assert sent.call == 1


@behaviour("pressure:unread-answers")
def test_in_place_of_large_answers_beyond_its_share_an_agent_that_does_not_read_gets_an_error() -> None:
    rig = MemoryBudgetRig()
    for _ in range(20):
        rig.call(ONE)
    rig.unread(ONE, 1)
    said = [rig.answer(n, MIB)[0] for n in range(1, 20)]
    assert [b'"unread_answers"' in each.body for each in said] == [False] * 4 + [True] * 15
    assert b'"delivered":"maybe"' in said[-1].body
    assert len(rig.answer(20, SMALL_ANSWER_BYTES)[0].body) == SMALL_ANSWER_BYTES, "what is small is kept"
    rig.call(TWO)
    assert len(rig.answer(21, 64 * MIB)[0].body) == 64 * MIB, "who reads gets everything"


@behaviour("pressure:unread-answers")
def test_all_sessions_of_a_principal_have_one_share_of_the_unread_answers() -> None:
    rig = MemoryBudgetRig()
    rig.sessions[ONE].principal = rig.sessions[TWO].principal = "ann"
    rig.sessions[THREE].principal = "bob"
    for session in (ONE, TWO, THREE):
        for _ in range(3):
            rig.call(session)
    rig.unread(ONE, 4 * MIB)
    assert b'"unread_answers"' in rig.answer(4, MIB)[0].body, "though this session reads"
    assert len(rig.answer(5, SMALL_ANSWER_BYTES)[0].body) == SMALL_ANSWER_BYTES
    assert len(rig.answer(7, MIB)[0].body) == MIB, "another principal has its own"
    rig.unread(THREE, MIB)
    assert len(rig.answer(8, MIB)[0].body) == MIB, "also while it leaves something unread"
    rig.unread(ONE, 0)
    assert len(rig.answer(6, MIB)[0].body) == MIB


@behaviour("pressure:unread-answers")
def test_small_answers_share_twice_the_budget() -> None:
    rig = MemoryBudgetRig()
    for _ in range(2):
        rig.call(ONE)
        rig.call(TWO)
    rig.unread(ONE, BUDGET)
    assert b'"unread_answers"' in rig.answer(1, SMALL_ANSWER_BYTES)[0].body
    rig.unread(TWO, UNREAD_STEP_BYTES)
    assert len(rig.answer(2, SMALL_ANSWER_BYTES)[0].body) == SMALL_ANSWER_BYTES
    rig.unread(ONE, 2 * BUDGET)
    rig.unread(TWO, UNREAD_STEP_BYTES)
    assert len(rig.answer(4, SMALL_ANSWER_BYTES)[0].body) == SMALL_ANSWER_BYTES, "a few are always kept"


@behaviour("pressure:unread-answers")
def test_progress_is_left_out_while_the_sessions_of_a_principal_leave_much_unread_together() -> None:
    rig = MemoryBudgetRig()
    rig.sessions[ONE].principal = rig.sessions[TWO].principal = "ann"
    for session in (ONE, TWO, THREE):
        rig.call(session)
    rig.unread(ONE, PRINCIPAL_UNREAD_BYTES + 1)
    for call in (2, 3):
        rig.ledger.call_progressed(CallProgressed(CallId(call), EMPTY_OBJECT))
    (progress,) = rig.done()
    assert progress.session == THREE
    rig.unread(ONE, 0)
    rig.ledger.call_progressed(CallProgressed(CallId(2), EMPTY_OBJECT))
    (progress,) = rig.done()
    assert progress.session == TWO
    rig.ledger.session_closed(rig.sessions[TWO])
    (note,) = [each for each in rig.done() if isinstance(each, LogLine)]
    assert "1 messages to s2 (progress, logs, tasks)" in note.text


@behaviour("pressure:unread-answers")
def test_progress_is_left_out_while_an_agent_does_not_read_and_the_log_says_how_much() -> None:
    rig = MemoryBudgetRig()
    rig.call(ONE)
    rig.unread(ONE, UNREAD_STEP_BYTES + 1)
    for _ in range(3):
        rig.ledger.call_progressed(CallProgressed(CallId(1), EMPTY_OBJECT))
    assert rig.done() == []
    (note,) = rig.unread(ONE, 0)
    assert isinstance(note, LogLine)
    assert "3 messages to s1" in note.text
    rig.ledger.call_progressed(CallProgressed(CallId(1), EMPTY_OBJECT))
    assert len(rig.done()) == 1


def test_a_closed_session_counts_no_bytes() -> None:
    rig = MemoryBudgetRig()
    rig.call(ONE)
    rig.unread(ONE, 5 * MIB)
    rig.ledger.call_progressed(CallProgressed(CallId(1), EMPTY_OBJECT))
    rig.ledger.session_closed(rig.sessions[ONE])
    assert any(isinstance(each, LogLine) for each in rig.done())
    assert rig.ledger.unread.use.total_bytes == 0


@behaviour("pressure:unread-answers")
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([ONE, TWO, THREE]), st.integers(0, 6 * MIB)), max_size=60))
def test_unread_bytes_of_all_agents_stay_within_the_budget(answers: list[tuple[SessionId, int]]) -> None:
    rig = MemoryBudgetRig()
    for session in (ONE, TWO, THREE):
        rig.unread(session, 1)
    for session, size_bytes in answers:
        rig.sessions[session].unread_bytes = max(1, rig.sessions[session].unread_bytes)
        unread_before = rig.sessions[session].unread_bytes
        rig.unread(session, 1)  # so that the call goes out
        rig.call(session)
        rig.unread(session, unread_before)
        assert len(rig.answer(rig.count, size_bytes)) == 1, "one answer, whichever"
        assert rig.ledger.unread.use.total_bytes <= BUDGET + len(answers) * SMALL_ANSWER_BYTES


def test_unread_bytes_reported_for_a_session_are_counted_until_it_closes() -> None:
    rig = TwoServersRig()
    rig.come()
    rig.feed(ev.UnreadChanged(SessionId("s1"), 3 * MIB))
    assert rig.core.call_table.unread.use.total_bytes == 3 * MIB
    rig.feed(ev.SessionClosed(SessionId("s1")))
    assert rig.core.call_table.unread.use.total_bytes == 0


@behaviour("subscriptions:bounded")
def test_subscriptions_of_one_token_leave_as_much_for_all_others_and_end_with_the_session() -> None:
    budget = SubscriptionBudget()
    ann, too, bob, cid = (
        Session(SessionId(name), SourceId("d"), "", 1, "http") for name in ("ann", "too", "bob", "cid")
    )
    ann.principal = too.principal = "ann"

    def fill(session: Session) -> int:
        before = session.subscription_bytes
        while budget.has_room(session, MIB):
            budget.count(session, MIB)
        return (session.subscription_bytes - before) // MIB

    assert [fill(each) for each in (ann, too, bob, cid)] == [8, 0, 4, 2]
    budget.check((ann, too, bob, cid))
    assert budget.has_room(too, MIB, is_granted=True), "it was granted before, and there is room"
    assert not budget.has_room(too, 3 * MIB, is_granted=True)
    for _ in range(2):
        budget.session_closed(ann)
        budget.check((too, bob, cid))
    assert fill(too) == 5
