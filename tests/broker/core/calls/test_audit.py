"""The audit of calls: one record each, when it ends, and what it may say."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_broker.core.calls.audit import audit_subject, bare_uri, with_call_id
from carpool_broker.core.model import events as ev
from carpool_broker.core.model.effects import Reply, WriteAudit
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, CallId, RawJson, call_of
from carpool_protocol.link.messages import Call, CallAnswered, CallFailed, CallOrigin, RecordedCall
from tests.behaviours import behaviour
from tests.broker import recovery_rig
from tests.broker.core.test_broker import ONE, TwoServersRig

BODY = RawJson(b'{"content":[]}')


def audited(effects: list[Any]) -> list[WriteAudit]:
    return [each for each in effects if isinstance(each, WriteAudit)]


def rig() -> TwoServersRig:
    made = TwoServersRig()
    made.core.audit(True)
    made.ready()
    return made


@behaviour("audit:every-call")
def test_a_call_has_one_record_when_its_server_has_answered_and_it_comes_before_the_answer() -> None:
    one = rig()
    assert audited(one.call("a__x")) == []
    one.now += 1.5
    effects = one.feed(CallAnswered(CallId(1), is_error=False, body=BODY))
    (record,) = audited(effects)
    assert [type(each) for each in effects] == [WriteAudit, Reply]
    assert (record.server, record.target, record.method) == ("a", "x", "tools/call")
    assert (record.outcome, record.delivered, record.call) == ("ok", "yes", 1)
    assert record.duration_s == pytest.approx(1.5)
    assert (record.who.session, record.who.agent, record.who.pid) == (ONE, "x", 1)
    assert (record.bytes_in, record.body) == (len(EMPTY_OBJECT), BODY)


def test_an_error_of_the_server_is_told_from_a_result() -> None:
    one = rig()
    one.call("a__x")
    (record,) = audited(one.feed(CallAnswered(CallId(1), is_error=True, body=RawJson(b"{}"))))
    assert (record.outcome, record.delivered) == ("error", "yes")


@behaviour("audit:refusals")
def test_a_call_that_is_refused_has_a_record_with_the_name_that_its_agent_used() -> None:
    one = rig()
    (record,) = audited(one.call("nobodys"))
    assert (record.outcome, record.delivered) == ("unknown_tool", "no")
    assert (record.server, record.target) == ("", "nobodys")


def test_a_call_that_failed_says_whether_a_server_can_have_seen_it() -> None:
    one = rig()
    one.call("a__x")
    (record,) = audited(one.feed(CallFailed(CallId(1), "instance_died", "maybe", "It died.")))
    assert (record.outcome, record.delivered) == ("instance_died", "maybe")


def test_a_cancelled_call_and_one_whose_agent_left_have_records() -> None:
    one = rig()
    one.call("a__x", "1")
    one.call("b__y", "2")
    (cancelled,) = audited(one.feed(ev.RequestCancelled(ONE, RawJson(b"1"), "no more")))
    (left,) = audited(one.feed(ev.SessionClosed(ONE)))
    assert [(each.outcome, each.delivered) for each in (cancelled, left)] == [("cancelled", "maybe")] * 2
    assert (cancelled.server, left.server) == ("a", "b")


def test_without_a_trail_nothing_is_said_and_it_can_be_switched_on_between_two_calls() -> None:
    one = TwoServersRig()
    one.ready()
    one.call("a__x", "1")
    one.core.audit(True)
    one.call("b__y", "2")
    (first,) = audited(one.feed(CallAnswered(CallId(1), is_error=False, body=BODY)))
    (second,) = audited(one.feed(CallAnswered(CallId(2), is_error=False, body=BODY)))
    assert first.duration_s >= 0, "every call knows when it came"
    assert second.duration_s == 0
    one.core.audit(False)
    one.call("a__x", "3")
    assert audited(one.feed(CallAnswered(CallId(3), is_error=False, body=BODY))) == []


@behaviour("audit:broker-death")
def test_a_call_that_an_earlier_broker_opened_is_put_down_under_its_old_id_by_the_one_that_ends_it() -> None:
    one = recovery_rig.RecoveryRig()
    one.core.audit(True)
    call = recovery_rig.recorded(3)
    asked = ev.CallRequested(recovery_rig.ONE, RawJson(b"1"), "a__x", EMPTY_OBJECT, ABSENT, ABSENT)
    one.resume(asked)
    one.link(call)
    (record,) = audited(one.answer(call.call))
    assert (record.call, record.server, record.target) == (call_of(0, 3), "a", "x")
    assert (record.outcome, record.duration_s) == ("ok", -1.0)


@behaviour("audit:broker-death")
def test_an_unclaimed_call_of_an_earlier_broker_is_audited_with_the_facts_known() -> None:
    one = recovery_rig.RecoveryRig()
    one.core.audit(True)
    caller = CallOrigin(recovery_rig.ONE, "claude", 42, "shim", "ci", "reader")
    one.link(
        recovery_rig.recorded(3, method="tools/call", caller=caller),
        recovery_rig.recorded(4, request="2", ended=True),
    )
    records = audited(one.wait(recovery_rig.RETURN_S + 1))
    assert sorted((each.call, each.outcome, each.server) for each in records) == [
        (3, "cancelled", "a"),
        (4, "unclaimed", "a"),
    ]
    (known,) = (each for each in records if each.call == 3)
    assert (known.who, known.method, known.target) == (caller, "tools/call", "x")


@behaviour("audit:broker-death")
def test_a_call_names_its_caller_to_the_supervisor_only_while_the_audit_is_on() -> None:
    one = rig()
    sent = one.call("a__x", "1")
    (call,) = (each for each in sent if isinstance(each, Call))
    assert call.caller is not None
    assert call.caller.session == ONE
    one.core.audit(False)
    (call,) = (each for each in one.call("a__x", "2") if isinstance(each, Call))
    assert call.caller is None


@behaviour("audit:broker-death")
def test_a_uri_of_an_earlier_broker_is_audited_without_the_parts_that_may_be_values() -> None:
    one = recovery_rig.RecoveryRig()
    one.core.audit(True)
    uri = "https://user@example.org/page?token=1"
    read = RecordedCall(
        call_of(0, 3), recovery_rig.ONE, RawJson(b"1"), recovery_rig.A, uri, method="resources/read"
    )
    one.link(read)
    (record,) = audited(one.wait(recovery_rig.RETURN_S + 1))
    assert record.target == "https://example.org/page"


@pytest.mark.parametrize(
    ("uri", "bare"),
    [
        ("file:///a/b", "file:///a/b"),
        ("https://me:secret@host:8/x?token=1#frag", "https://host:8/x"),
        ("memo:today?key=1", "memo:today"),
        ("data:text/plain,secret", "data:"),
        ("/just/a/path?x", "/just/a/path"),
        ("http://[broken", ""),
    ],
)
def test_a_bare_uri_has_no_part_that_may_be_a_value(uri: str, bare: str) -> None:
    assert bare_uri(uri) == bare


@behaviour("audit:no-values")
@given(st.text())
def test_no_query_of_a_uri_is_ever_said(text: str) -> None:
    said = audit_subject("resources/read", f"x://host/path?{text}&secret=hunter2")
    assert "hunter2" not in said
    assert "?" not in said


def test_a_completion_is_about_its_prompt_or_its_template_and_a_task_is_not_named() -> None:
    assert audit_subject("completion/complete", '{"type":"ref/prompt","name":"greet"}') == "greet"
    assert audit_subject("completion/complete", '{"type":"ref/resource","uri":"x:///{a}?b"}') == "x:///{a}"
    assert audit_subject("tasks/get", "task-1") == ""


@pytest.mark.parametrize(
    ("meta", "sent"),
    [
        (b"", b'{"carpool/call":"c7"}'),
        (b"{}", b'{"carpool/call":"c7"}'),
        (b'{"a":1}', b'{"carpool/call":"c7","a":1}'),
        (b'{"carpool/call":"c1","a":1}', b'{"carpool/call":"c7","a":1}'),
        (b'{"Carpool/CALL":"c1"}', b'{"carpool/call":"c7"}'),
        (b'{"\\u0063arpool/call":"c1","a":1}', b'{"carpool/call":"c7","a":1}'),
    ],
)
@behaviour("audit:one-id")
def test_a_server_is_told_which_call_it_is_and_no_agent_can_say_that_itself(meta: bytes, sent: bytes) -> None:
    found = with_call_id(RawJson(meta), "c7")
    assert json.loads(found) == json.loads(sent)
    assert found.count(b"arpool/") == 1
    assert len(found) == len(with_call_id(RawJson(b" " * len(meta)), "c7")), "a journal replays with blanks"


def test_members_that_carpool_adds_to_a_call_count_against_the_credit() -> None:
    one, other = rig(), TwoServersRig()
    other.ready()
    before, others = one.core.links.credit_bytes(), other.core.links.credit_bytes()
    (call,) = [each for each in one.call("a__x") if isinstance(each, Call)]
    other.call("a__x")
    assert call.meta == b'{"carpool/call":"c1"}'
    assert before - (one.core.links.credit_bytes()) == len(call.meta) + others - (
        other.core.links.credit_bytes()
    )
