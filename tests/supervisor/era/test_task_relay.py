"""Tasks that agents poll themselves, at one stateless server. Source: SEP-2663 of MCP 2026-07-28."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from carpool_protocol.ids import RawJson, WireId
from carpool_supervisor.core.model.events import (
    AnswerUnreadable,
    ServerAnswered,
    ServerLineRejected,
    TaskChanged,
)
from carpool_supervisor.era.list_hints import MAX_DIGITS
from carpool_supervisor.era.task_relay import MAX_DROPPED
from tests.behaviours import behaviour
from tests.supervisor.era.test_stateless import ME, ONE, PRE, StatelessAdapterRig, call, line

TASKS = PRE + "tasks"
KNOWS: dict[str, Any] = {"tools": {}, "extensions": {TASKS: {}}}
WORKING: dict[str, Any] = {"taskId": "T", "status": "working", "ttlMs": 60_000, "pollIntervalMs": 5}


def talk(**capabilities: Any) -> StatelessAdapterRig:
    found = StatelessAdapterRig()
    found.fit(**(capabilities or KNOWS))
    return found


def declared(written: bytes) -> Any:
    message = json.loads(written)
    return message["params"]["_meta"][PRE + "clientCapabilities"].get("extensions")


def said(method: str = "tools/call", **more: Any) -> Any:
    return replace(call(method, target="T" if method != "tools/call" else "t"), tasks=True, can=[], **more)


def answer(one: StatelessAdapterRig, result: Any, wire: int = 1) -> Any:
    [event], _ = one.say(line(id=wire, result=result))
    return event


@behaviour("tasks:relayed")
def test_a_task_is_told_with_its_id_and_its_time_and_without_members_of_the_hop() -> None:
    one = talk()
    assert declared(one.adapter.call_line(ONE, said())) == {TASKS: {}}
    meta = {PRE + "serverInfo": {"name": "x"}, "k": 1}
    event = answer(one, {"resultType": "task", **WORKING, "requestState": "s", "_meta": meta})
    assert (event.task, event.task_ttl_ms, event.is_error, event.task_over) == ("T", 60_000, False, False)
    assert json.loads(event.body) == {**WORKING, "_meta": {"k": 1}}


@pytest.mark.parametrize("ttl", [None, -1, "1", 1.5, 10**MAX_DIGITS])
def test_an_invalid_ttl_counts_as_absent(ttl: Any) -> None:
    one = talk()
    one.adapter.call_line(ONE, said())
    assert (
        answer(one, {"resultType": "task", "taskId": "T", "status": "working", "ttlMs": ttl}).task_ttl_ms
        == -1
    )


@behaviour("tasks:undeclared")
def test_an_agent_that_knows_of_no_tasks_declares_none_and_gets_none() -> None:
    one = talk()
    assert declared(one.adapter.call_line(ONE, call())) is None
    assert isinstance(answer(one, {"resultType": "task", **WORKING}), AnswerUnreadable)


def test_a_task_that_was_begun_for_a_cancelled_call_is_told_so_that_it_can_be_cancelled_too() -> None:
    one = talk()
    one.adapter.call_line(ONE, said())
    one.adapter.cancel_line(ONE, "not wanted")
    event = answer(one, {"resultType": "task", **WORKING})
    assert (type(event), event.task) == (ServerAnswered, "T")
    assert isinstance(answer(one, {"resultType": "task", **WORKING}), AnswerUnreadable), "said twice"


def test_memory_of_cancelled_calls_is_bounded() -> None:
    one = talk()
    for number in range(1, MAX_DROPPED + 2):
        one.adapter.call_line(WireId(number), said())
        one.adapter.cancel_line(WireId(number), "not wanted")
    assert isinstance(answer(one, {"resultType": "task", **WORKING}, 1), AnswerUnreadable)
    assert answer(one, {"resultType": "task", **WORKING}, 2).task == "T"


def test_a_server_that_has_not_announced_tasks_is_told_of_none_and_may_begin_none() -> None:
    one = talk(tools={})
    assert declared(one.adapter.call_line(ONE, said())) is None
    assert isinstance(answer(one, {"resultType": "task", **WORKING}), AnswerUnreadable)


def test_only_a_tool_call_may_become_a_task_and_the_task_needs_an_id() -> None:
    one = talk()
    one.adapter.call_line(ONE, replace(said(), method="prompts/get"))
    assert isinstance(answer(one, {"resultType": "task", **WORKING}), AnswerUnreadable)
    for bad in ({}, {"taskId": ""}, {"taskId": 1}, {"taskId": "\ud800"}, {"taskId": "x" * 2000}):
        one.adapter.call_line(WireId(2), said())
        assert isinstance(
            answer(one, {"resultType": "task", "status": "working", **bad}, 2), AnswerUnreadable
        )


@behaviour("tasks:relayed")
@pytest.mark.parametrize("kind", ["complete", "task"])
def test_the_status_of_a_task_passes_with_its_input_requests_and_result(kind: str) -> None:
    one = talk()
    written = json.loads(one.adapter.call_line(ONE, said("tasks/get")))
    assert written["params"]["taskId"] == "T"
    inputs = {"who": {"method": "elicitation/create", "params": {"message": "m"}}}
    wanting = {**WORKING, "status": "input_required", "inputRequests": inputs}
    event = answer(one, {"resultType": kind, **wanting})
    assert json.loads(event.body) == wanting
    assert not event.task_over


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_the_end_of_a_task_is_seen_where_it_is_told(status: str) -> None:
    one = talk()
    one.adapter.call_line(ONE, said("tasks/get"))
    assert answer(one, {"resultType": "complete", **WORKING, "status": status}).task_over
    one.adapter.call_line(WireId(2), said("tasks/update"))
    assert not answer(one, {"resultType": "complete"}, 2).task_over
    one.adapter.call_line(WireId(3), said("tasks/cancel"))
    assert answer(one, {"resultType": "complete"}, 3).task_over


def test_a_task_that_its_server_does_not_know_has_ended() -> None:
    one = talk()
    for wire, code, over in ((1, -32602, True), (2, -32603, False)):
        one.adapter.call_line(WireId(wire), said("tasks/get"))
        [event], _ = one.say(line(id=wire, error={"code": code, "message": "m"}))
        assert isinstance(event, ServerAnswered)
        assert (event.is_error, event.task_over, json.loads(event.body)["code"]) == (True, over, code)


@pytest.mark.parametrize(
    "result", [{"resultType": "input_required", "requestState": "x"}, {"resultType": "y"}]
)
def test_input_required_in_answer_to_a_task_request_is_unreadable(result: Any) -> None:
    one = talk()
    one.adapter.call_line(ONE, said("tasks/get"))
    assert isinstance(answer(one, result), AnswerUnreadable)


def test_input_for_a_task_reaches_its_server_and_a_request_state_does_not() -> None:
    one = talk()
    params = RawJson(b'{"inputResponses":{"who":{"action":"accept"}},"RequestState":"s"}')
    written = json.loads(one.adapter.call_line(ONE, replace(said("tasks/update"), params=params)))["params"]
    assert written["inputResponses"] == {"who": {"action": "accept"}}
    assert not [key for key in written if key.lower() == "requeststate"]
    other = json.loads(one.adapter.call_line(WireId(2), replace(said("tasks/get"), params=params)))["params"]
    assert set(other) == {"taskId", "_meta"}


def test_a_request_about_a_task_is_cancelled_like_any_other_and_its_task_goes_on() -> None:
    one = talk()
    one.adapter.call_line(ONE, said("tasks/get"))
    assert json.loads(one.adapter.cancel_line(ONE, "gone"))["params"]["requestId"] == 1


def test_an_unclaimed_task_is_cancelled_and_the_answer_to_that_is_dropped() -> None:
    one = talk()
    written = json.loads(one.adapter.cancel_task_line("é"))
    assert (written["method"], written["params"]["taskId"]) == ("tasks/cancel", "é")
    assert declared(one.adapter.cancel_task_line("x")) == {TASKS: {}}
    assert one.say(line(id=written["id"], result={"resultType": "complete"})) == ([], [])
    assert one.say(line(id=written["id"], error={"code": -32602, "message": "m"})) == ([], [])


# --- listens ---------------------------------------------------------------------------------------------


def acknowledged(one: StatelessAdapterRig, listen: Any) -> None:
    meta = {PRE + "subscriptionId": listen["id"]}
    one.say(
        line(method="notifications/subscriptions/acknowledged", params={"_meta": meta, "notifications": {}})
    )


@behaviour("tasks:listened")
def test_watched_tasks_are_in_the_one_listen_and_what_comes_on_it_is_told() -> None:
    one = talk()
    listen = json.loads(one.adapter.task_subscriptions_line(["T", "S"]))
    assert listen["params"]["notifications"] == {"taskIds": ["S", "T"]}
    assert declared(json.dumps(listen).encode()) == {TASKS: {}}
    assert one.adapter.task_subscriptions_line(["S", "T"]) == b""
    acknowledged(one, listen)
    meta = {PRE + "subscriptionId": listen["id"]}
    events, _ = one.say(
        line(method="notifications/tasks", params={**WORKING, "_meta": meta}),
        line(
            method="notifications/tasks", params={**WORKING, "status": "completed", "_meta": {**meta, "k": 1}}
        ),
        line(method="notifications/tasks", params={**WORKING, "taskId": 1, "_meta": meta}),
        line(method="notifications/tasks", params=WORKING),
    )
    assert [type(each) for each in events] == [TaskChanged, TaskChanged]
    assert events[0] == TaskChanged(ME, "T", False, events[0].params)
    assert json.loads(events[0].params) == WORKING
    assert events[1].over
    assert json.loads(events[1].params)["_meta"] == {"k": 1}


def test_after_the_last_task_the_listen_is_what_it_was() -> None:
    one = talk()
    acknowledged(one, json.loads(one.adapter.task_subscriptions_line(["T"])))
    ended = json.loads(one.adapter.task_subscriptions_line([]))
    assert ended["method"] == "notifications/cancelled"


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_task = st.fixed_dictionaries(
    {},
    optional={
        "resultType": st.sampled_from(["task", "complete", "x"]) | _json,
        "taskId": st.text() | _json,
        "status": st.sampled_from(["working", "completed"]) | _json,
        "ttlMs": _json,
        "_meta": _json,
    },
)


@settings(max_examples=200)
@given(_task | _json, st.sampled_from(["tools/call", "tasks/get", "tasks/update", "tasks/cancel"]))
def test_whatever_a_server_answers_its_call_ends_once(result: Any, method: str) -> None:
    one = talk()
    one.adapter.call_line(ONE, said(method))
    events, _ = one.say(line(id=1, result=result))
    ends = [each for each in events if isinstance(each, ServerAnswered | AnswerUnreadable)]
    assert len(ends) == 1 or (isinstance(result, dict) and result.get("resultType") == "input_required")


def test_a_repaired_error_about_a_task_is_noted() -> None:
    one = talk()
    one.adapter.call_line(ONE, said("tasks/get"))
    events, _ = one.say(line(id=1, error="no"))
    assert [type(event) for event in events] == [ServerLineRejected, ServerAnswered]
