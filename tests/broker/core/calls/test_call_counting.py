"""Counted calls: one row from the way out to the end, and one end for each call."""

from typing import Any

import pytest

from carpool_broker.core.model import events as ev
from carpool_broker.core.model.bounds import SessionBounds
from carpool_protocol.counters.call_counts import UNKNOWN, CallCounts
from carpool_protocol.counters.snapshot import CountedAgent
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, CallId, RawJson, call_of
from carpool_protocol.link.messages import CallAnswered, CallAtNode, CallFailed, PoolChanged
from tests.behaviours import behaviour
from tests.broker import recovery_rig
from tests.broker.core.test_broker import ONE, TWO, TwoServersRig

BODY = RawJson(b'{"content":[]}')
FAILED = RawJson(b'{"content":[],"isError":true}')


def rig() -> TwoServersRig:
    made = TwoServersRig()
    made.ready()
    return made


def rows(one: Any) -> dict[tuple[str, str], CallCounts]:
    """The counts by server and tool, of one agent."""
    counting = one.core.call_table.counting
    assert counting is not None
    one.core.check()
    return {(row.server, row.tool): row.counts for row in counting.snapshot()}


@behaviour("counters:every-call")
def test_a_call_counts_when_it_is_sent_and_as_an_answer_when_it_ends() -> None:
    one = rig()
    one.call("a__x")
    assert (rows(one)["a", "x"].calls, rows(one)["a", "x"].in_flight) == (1, 1)
    one.now += 1.5
    one.feed(CallAnswered(CallId(1), is_error=False, body=BODY))
    counts = rows(one)["a", "x"]
    assert (counts.calls, counts.answers, counts.tool_errors, counts.in_flight) == (1, 1, 0, 0)
    assert (counts.bytes_in, counts.bytes_out) == (len(EMPTY_OBJECT), len(BODY))
    assert (counts.waiting.count, counts.waiting.sum_s) == (1, 0.0)
    assert [counts.server.count, counts.total.count] == [1, 1]
    assert [counts.server.sum_s, counts.total.sum_s] == pytest.approx([1.5, 1.5])
    assert [counts.server.longest_s, counts.total.longest_s] == pytest.approx([1.5, 1.5])


def test_the_agent_of_a_row_is_what_is_bounded_of_it() -> None:
    one = rig()
    one.call("a__x")
    counting = one.core.call_table.counting
    assert counting is not None
    assert [row.agent for row in counting.snapshot()] == [CountedAgent("x", "", "", "shim")]


def test_two_sessions_of_one_program_share_a_row() -> None:
    one = rig()
    one.come(TWO)
    one.call("a__x")
    one.call("a__x", session=TWO)
    assert rows(one)["a", "x"].calls == 2


def test_a_tool_that_says_it_failed_has_answered() -> None:
    one = rig()
    one.call("a__x")
    one.feed(CallAnswered(CallId(1), is_error=False, body=FAILED))
    counts = rows(one)["a", "x"]
    assert (counts.answers, counts.tool_errors, counts.errors) == (1, 1, {})


def test_an_error_of_the_server_counts_by_its_code() -> None:
    one = rig()
    for number, body in enumerate([b'{"code":-32000,"message":"m"}', b'{"message":"m"}'], 1):
        one.call("a__x", str(number))
        one.feed(CallAnswered(CallId(number), is_error=True, body=RawJson(body)))
    counts = rows(one)["a", "x"]
    assert (counts.answers, counts.errors) == (0, {"-32000": 1, "0": 1})


@behaviour("counters:every-call")
def test_a_time_out_is_an_error_and_what_was_not_delivered_a_refusal() -> None:
    one = rig()
    one.call("a__x", "1")
    one.call("a__x", "2")
    one.now += 3.0
    one.feed(CallFailed(CallId(1), "timed_out", "maybe", ""))
    one.feed(CallFailed(CallId(2), "waiting_line_full", "no", ""))
    counts = rows(one)["a", "x"]
    assert (counts.errors, counts.refusals) == ({"timed_out": 1}, {"waiting_line_full": 1})
    assert counts.server.count == 0
    assert counts.total.count == 1
    assert counts.total.sum_s == pytest.approx(3.0)


@behaviour("counters:every-call")
def test_the_loss_of_a_session_s_state_is_an_error_and_no_refusal() -> None:
    one = rig()
    one.call("a__x", "1")
    one.feed(CallFailed(CallId(1), "state_lost", "no", ""))
    counts = rows(one)["a", "x"]
    assert (counts.errors, counts.refusals) == ({"state_lost": 1}, {})


def test_names_that_no_server_has_make_one_row_only() -> None:
    one = rig()
    for number in range(5):
        one.call(f"nobodys_{number}", str(number))
    assert rows(one).keys() == {(UNKNOWN, UNKNOWN)}
    assert rows(one)[UNKNOWN, UNKNOWN].refusals == {"unknown_tool": 5}


def test_a_call_that_its_server_cannot_take_is_a_refusal_of_that_server() -> None:
    one = rig()
    one.feed(PoolChanged(key="b:1", state="given_up", reason="it broke"))  # type: ignore[arg-type]
    one.call("b__y")
    counts = rows(one)["b", "y"] if ("b", "y") in rows(one) else rows(one)["b", UNKNOWN]
    assert sum(counts.refusals.values()) == 1


@behaviour("counters:every-call")
def test_calls_that_an_agent_leaves_or_cancels_are_cancelled() -> None:
    one = rig()
    one.call("a__x", "1")
    one.call("a__x", "2")
    one.feed(ev.RequestCancelled(ONE, RawJson(b"1"), "no need"))
    assert rows(one)["a", "x"].cancelled == 1
    one.feed(ev.SessionClosed(ONE))
    counts = rows(one)["a", "x"]
    assert (counts.cancelled, counts.in_flight, counts.total.count) == (2, 0, 0)


def test_a_call_that_waits_in_its_sessions_queue_counts_once_and_its_wait_is_timed() -> None:
    one = rig()
    one.feed(ev.LimitsRead(SessionBounds(max_open_calls=1), 10.0))
    one.call("a__x", "1")
    one.call("a__x", "2")
    assert rows(one)["a", "x"].calls == 1
    one.now += 2.0
    one.feed(CallAnswered(CallId(1), is_error=False, body=BODY))
    one.feed(CallAnswered(CallId(2), is_error=False, body=BODY))
    counts = rows(one)["a", "x"]
    assert (counts.calls, counts.waiting.count) == (2, 2)
    assert counts.waiting.sum_s == pytest.approx(2.0)


def test_other_methods_count_under_their_name_whatever_they_are_about() -> None:
    one = rig()
    one.request("b__p", "1", method="prompts/get")
    assert all(tool.startswith("(") for _, tool in rows(one))


def test_switched_off_nothing_is_counted_and_switched_on_it_begins_anew() -> None:
    one = rig()
    one.call("a__x", "1")
    one.feed(ev.LimitsRead(SessionBounds(), 10.0, counts=False))
    assert one.core.call_table.counting is None
    one.call("a__x", "2")
    one.now += 1.0
    one.feed(ev.LimitsRead(SessionBounds(), 10.0, counts=True))
    one.feed(CallAnswered(CallId(1), is_error=False, body=BODY))
    one.feed(CallAnswered(CallId(2), is_error=False, body=BODY))
    counts = rows(one)["a", "x"]
    assert (counts.calls, counts.answers, counts.total.count) == (2, 2, 2)


@behaviour("counters:broker-death")
def test_a_call_that_goes_on_at_the_next_broker_counts_there_as_resumed_and_untimed() -> None:
    one = recovery_rig.RecoveryRig()
    call = recovery_rig.recorded(7)
    one.resume(ev.CallRequested(ONE, RawJson(b"1"), "a__x", EMPTY_OBJECT, ABSENT, ABSENT))
    one.link(call)
    assert (rows(one)["a", "x"].calls, rows(one)["a", "x"].resumed) == (1, 1)
    one.now += 5.0
    one.answer(call_of(0, 7))
    counts = rows(one)["a", "x"]
    assert (counts.calls, counts.resumed, counts.answers, counts.in_flight) == (1, 1, 1, 0)
    assert [counts.waiting.count, counts.server.count, counts.total.count] == [0, 0, 0]


def nodes(one: Any) -> dict[tuple[str, str], CallCounts]:
    """The counts by tool and node."""
    one.core.check()
    return {(row.tool, row.node): row.counts for row in one.core.call_table.counting.snapshot()}


@behaviour("counters:nodes")
def test_a_call_at_another_node_counts_there_and_local_ones_go_on_counting_here() -> None:
    one = rig()
    for number in (1, 2, 3, 4):
        one.call("a__x", str(number))
        if number in (2, 3):
            one.feed(CallAtNode(CallId(number), "alpha"))
        if number < 4:
            one.now += 1.0
            one.feed(CallAnswered(CallId(number), is_error=False, body=BODY))
    found = nodes(one)
    assert {key: (each.answers, each.in_flight) for key, each in found.items()} == {
        ("x", ""): (1, 1),
        ("x", "alpha"): (2, 0),
    }
    there = found["x", "alpha"]
    assert [there.waiting.counts[0], there.server.count, there.total.count] == [2, 2, 2]
    assert there.total.sum_s == pytest.approx(2.0)
    one.feed(CallAtNode(CallId(4), "beta"))
    assert nodes(one)["x", "beta"].in_flight == 1
    one.feed(CallAtNode(CallId(99), "beta"))
    assert nodes(one)["x", ""].in_flight == 0
