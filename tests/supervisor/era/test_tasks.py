"""Calls that run as tasks of the handshake era. Source: MCP 2025-11-25, basic/utilities/tasks."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.ids import ABSENT, CallId, InstanceId, PoolKey, RawJson, SessionId, WireId
from carpool_protocol.link.messages import Call
from carpool_protocol.wire.lines import OverlongLine
from carpool_supervisor.core.model.events import (
    AnswerUnreadable,
    OwnEvent,
    ProbeAnswered,
    ServerAnswered,
    ServerLineRejected,
    ServerProgressed,
    TaskCreated,
    UrlElicitationRequired,
)
from carpool_supervisor.era.handshake import HandshakeAdapter
from carpool_supervisor.era.odd_lines import ANSWERED_TWICE
from carpool_supervisor.era.tasks import MAX_ID_CHARS, MAX_OVER
from tests.behaviours import behaviour

ME = InstanceId(1)
DECLARED: dict[str, Any] = {"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}}
RELATED = {"io.modelcontextprotocol/related-task": {"taskId": "T"}}
TOOLS = [
    {"name": "long", "execution": {"taskSupport": "required"}},
    {"name": "may", "execution": {"taskSupport": "optional"}},
    {"name": "plain"},
    {"name": "taskSupport", "description": '"taskSupport":"required"'},
]
GOOD = {"content": [{"type": "text", "text": "done"}]}
FAULT = {"code": -32603, "message": "no"}


class TasksRig:
    """A greeted adapter."""

    def __init__(self, capabilities: dict[str, Any] = DECLARED, version: str = "2025-11-25") -> None:
        self.adapter = HandshakeAdapter(ME, PoolKey("s:1"), "1.0", max_total_s=100.0)
        hello = json.loads(self.adapter.greeting_line())
        result = {"protocolVersion": version, "capabilities": capabilities}
        _, out = self.say(id=hello["id"], result=result)
        self.say(id=out[1]["id"], result={"tools": TOOLS})

    def say(self, **message: Any) -> tuple[list[OwnEvent], list[dict[str, Any]]]:
        return self.take(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def take(self, line: bytes | OverlongLine) -> tuple[list[OwnEvent], list[dict[str, Any]]]:
        events, out = self.adapter.feed([line])
        return list(events), [json.loads(each) for each in out]

    def call(self, wire: int = 7, tool: str = "long", params: bytes = b'{"arguments":{"x":1.0}}') -> bytes:
        call = Call(
            CallId(wire),
            PoolKey("s:1"),
            SessionId("s1"),
            "tools/call",
            tool,
            RawJson(params),
            ABSENT,
            wants_progress=True,
        )
        return self.adapter.call_line(WireId(wire), call)

    def cancel(self, wire: int = 7) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.adapter.cancel_line(WireId(wire), "enough"))
        return said

    def begin(self, wire: int = 7, task: str = "T") -> tuple[list[OwnEvent], list[dict[str, Any]]]:
        self.call(wire)
        return self.say(id=wire, result={"task": {"taskId": task, "status": "working"}})

    def status(self, status: str, **rest: Any) -> tuple[list[OwnEvent], list[dict[str, Any]]]:
        return self.say(method="notifications/tasks/status", params={"taskId": "T", "status": status, **rest})

    def progress(self, value: Any) -> tuple[list[OwnEvent], list[dict[str, Any]]]:
        return self.say(method="notifications/progress", params={"progressToken": "-7", "progress": value})


@behaviour("tasks:hidden")
def test_a_task_that_an_agent_names_reaches_no_server() -> None:
    for tool, method in (("long", "tools/call"), ("plain", "tools/call"), ("p", "prompts/get")):
        for key in (b"io.modelcontextprotocol/related-task", b"io.modelcontextprotocol\\/related\\u002dtask"):
            meta = RawJson(b'{"%b":{"taskId":"T"},"x":1}' % key)
            call = Call(
                CallId(7), PoolKey("s:1"), SessionId("s1"), method, tool, RawJson(b"{}"), meta,
                wants_progress=False,
            )  # fmt: skip
            line = json.loads(TasksRig().adapter.call_line(WireId(7), call))
            assert line["params"]["_meta"] == {"progressToken": "-7", "x": 1}


def test_an_error_of_a_task_that_sends_its_agent_to_urls_first_says_so() -> None:
    talk = TasksRig()
    talk.begin()
    urls = [{"mode": "url", "elicitationId": "e1", "url": "https://x", "message": "m"}]
    error = {"code": -32042, "message": "u", "data": {"elicitations": urls}}
    talk.say(id="carpool-task-result-7", error=error)
    events, _ = talk.say(id="carpool-task-get-7", result={"taskId": "T", "status": "failed"})
    assert [type(each) for each in events] == [UrlElicitationRequired, ServerAnswered]


def test_a_repeated_request_about_a_task_has_a_new_id_and_a_late_answer_to_the_first_is_dropped() -> None:
    talk = TasksRig()
    _, [wait] = talk.begin()
    talk.say(id=wait["id"], error=FAULT)
    talk.say(id="carpool-task-get-7", result={"taskId": "T", "status": "working"})
    _, [again] = talk.status("completed")
    assert again["method"] == "tasks/result"
    assert again["id"] != wait["id"]
    assert talk.say(id=wait["id"], result=GOOD) == ([], [])
    [answered], _ = talk.say(id=again["id"], result=GOOD)
    assert isinstance(answered, ServerAnswered)


def test_cancelled_tasks_leave_nothing_behind_but_the_latest() -> None:
    talk = TasksRig()
    for wire in range(1, 5000):
        talk.call(wire)
        talk.cancel(wire)
    assert len(talk.adapter._tasks) <= MAX_OVER
    assert not talk.adapter._others


def test_a_tool_that_needs_a_task_is_called_with_one_that_outlives_the_call() -> None:
    line = TasksRig().call()
    assert b'"arguments":{"x":1.0}' in line
    params = json.loads(line)["params"]
    assert params["task"] == {"ttl": 160_000}
    assert params["_meta"] == {"progressToken": "-7"}


@pytest.mark.parametrize("params", [b"{}", b"{ }", b'{"task":{"ttl":1},"arguments":{}}', b'{"x":1,"task":7}'])
def test_the_task_member_is_carpools_own_whatever_the_agent_sent(params: bytes) -> None:
    line = TasksRig().call(params=params)
    assert line.count(b'"task"') == 1
    assert json.loads(line)["params"]["task"] == {"ttl": 160_000}


@pytest.mark.parametrize("tool", ["may", "plain", "taskSupport", "unknown"])
def test_every_other_tool_is_called_plainly(tool: str) -> None:
    assert b'"task"' not in TasksRig().call(tool=tool)


@pytest.mark.parametrize(
    ("capabilities", "version"),
    [
        ({"tools": {}}, "2025-11-25"),
        ({"tools": {}, "tasks": {"requests": {"tools": {}}}}, "2025-11-25"),
        ({"tools": {}, "tasks": {"requests": {"tools": {"call": None}}}}, "2025-11-25"),
        ({"tools": {}, "tasks": True}, "2025-11-25"),
        (DECLARED, "2025-06-18"),
    ],
)
def test_a_tools_task_support_does_not_count_without_the_capability(
    capabilities: dict[str, Any], version: str
) -> None:
    assert b'"task"' not in TasksRig(capabilities, version).call()


@behaviour("tasks:driven")
def test_a_task_is_waited_for_and_its_result_is_the_answer_of_the_call() -> None:
    talk = TasksRig()
    events, [wait] = talk.begin()
    assert events == [TaskCreated(ME, WireId(7), "T")]
    assert (wait["method"], wait["params"]) == ("tasks/result", {"taskId": "T"})
    events, out = talk.say(id=wait["id"], result={**GOOD, "_meta": RELATED})
    assert out == []
    [answered] = events
    assert isinstance(answered, ServerAnswered)
    assert (answered.wire, answered.is_error, json.loads(answered.body)) == (7, False, GOOD)


def test_only_the_task_is_removed_from_the_meta_of_a_result() -> None:
    talk = TasksRig()
    _, [wait] = talk.begin()
    [answered], _ = talk.say(id=wait["id"], result={"_meta": {**RELATED, "x": 1}, **GOOD})
    assert isinstance(answered, ServerAnswered)
    assert json.loads(answered.body) == {**GOOD, "_meta": {"x": 1}}


@behaviour("asks:attribution:task")
def test_tasks_of_several_calls_do_not_meet() -> None:
    talk = TasksRig()
    waits = {wire: talk.begin(wire, f"T{wire}")[1][0] for wire in (1, 2, 3)}
    for wire in (2, 3, 1):
        content = {"content": [{"type": "text", "text": str(wire)}]}
        [answered], _ = talk.say(id=waits[wire]["id"], result=content)
        assert isinstance(answered, ServerAnswered)
        assert (answered.wire, json.loads(answered.body)) == (wire, content)


def test_a_server_that_answers_at_once_has_answered() -> None:
    talk = TasksRig()
    talk.call()
    [answered], out = talk.say(id=7, result=GOOD)
    assert isinstance(answered, ServerAnswered)
    assert json.loads(answered.body) == GOOD
    assert out == []


def test_a_call_refused_with_an_error_has_that_answer() -> None:
    talk = TasksRig()
    talk.call()
    [answered], out = talk.say(id=7, error=FAULT)
    assert isinstance(answered, ServerAnswered)
    assert answered.is_error
    assert out == []
    assert talk.cancel()["method"] == "notifications/cancelled"


@pytest.mark.parametrize("task", [{}, {"taskId": 7}, 7, None, {"taskId": None}])
def test_a_task_without_an_id_is_no_answer(task: Any) -> None:
    talk = TasksRig()
    talk.call()
    [unreadable], out = talk.say(id=7, result={"task": task})
    assert isinstance(unreadable, AnswerUnreadable)
    assert unreadable.wire == 7
    assert out == []


# --- it ends badly ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [MAX_ID_CHARS, MAX_ID_CHARS + 1])
def test_a_task_with_a_longer_id_than_its_bound_is_no_answer(length: int) -> None:
    rig = TasksRig()
    events, out = rig.begin(task="é" * length)
    if length <= MAX_ID_CHARS:
        assert events == [TaskCreated(ME, WireId(7), "é" * length)]
        assert len(out) == 1
    else:
        [event] = events
        assert isinstance(event, AnswerUnreadable)
        assert (event.fault, event.text) == (
            "bad_answer",
            "It is a task with an id of more than 1024 characters.",
        )
        assert out == []


@pytest.mark.parametrize("wire_id", ["7", '"7"'])
@pytest.mark.parametrize(
    "rest",
    [
        '"result":{"task":{"taskId":"U","status":"working"}}',
        '"result":{"content":[]}',
        '"result":3',
        '"error":{"code":-32603,"message":"no"}',
        '"result":{',
        None,
    ],
)
def test_a_second_answer_to_a_call_that_runs_as_a_task_is_one_to_nothing(
    wire_id: str, rest: str | None
) -> None:
    rig = TasksRig()
    _, [asked] = rig.begin()
    for _ in range(3):
        if rest is None:
            events, out = rig.take(OverlongLine(RawJson(wire_id.encode()), True, 99))
        else:
            events, out = rig.take(f'{{"jsonrpc":"2.0","id":{wire_id},{rest}}}'.encode())
        assert events == [ServerLineRejected(ME, ANSWERED_TWICE)]
        assert out == []
    events, out = rig.say(id=asked["id"], result=GOOD)  # the task is still the first one
    assert out == []
    [event] = events
    assert isinstance(event, ServerAnswered)
    assert json.loads(event.body) == GOOD


def test_a_second_answer_to_a_cancelled_call_whose_task_is_known_is_one_to_nothing() -> None:
    rig = TasksRig()
    rig.begin()
    rig.cancel()
    events, out = rig.say(id=7, result={"task": {"taskId": "U", "status": "working"}})
    assert events == [ServerLineRejected(ME, ANSWERED_TWICE)]
    assert out == []


def test_an_error_of_a_task_that_has_ended_is_the_answer_of_the_call() -> None:
    talk = TasksRig()
    _, [wait] = talk.begin()
    events, [look] = talk.say(id=wait["id"], error=FAULT)
    assert events == []
    assert (look["method"], look["params"]) == ("tasks/get", {"taskId": "T"})
    [answered], out = talk.say(id=look["id"], result={"taskId": "T", "status": "failed"})
    assert isinstance(answered, ServerAnswered)
    assert answered.is_error
    assert json.loads(answered.body) == FAULT
    assert out == []


def test_an_error_of_an_unknown_task_falls_back_to_the_earlier_error() -> None:
    talk = TasksRig()
    _, [wait] = talk.begin()
    _, [look] = talk.say(id=wait["id"], error=FAULT)
    [answered], _ = talk.say(id=look["id"], error={"code": -32602, "message": "what task"})
    assert isinstance(answered, ServerAnswered)
    assert json.loads(answered.body) == FAULT


@pytest.mark.parametrize(
    ("status", "said", "text"),
    [
        ("failed", "broken", "broken"),
        ("failed", None, "The task of this tool failed."),
        ("cancelled", None, "The task of this tool was cancelled."),
    ],
)
def test_a_failed_task_without_a_result_tells_the_model_what_the_server_said(
    status: str, said: str | None, text: str
) -> None:
    # The Python SDK 1.29 answers `tasks/result` of a task whose function raised with `_meta` alone.
    talk = TasksRig()
    _, [wait] = talk.begin()
    _, [look] = talk.say(id=wait["id"], result={"_meta": RELATED})
    message = {} if said is None else {"statusMessage": said}
    [answered], _ = talk.say(id=look["id"], result={"taskId": "T", "status": status, **message})
    assert isinstance(answered, ServerAnswered)
    assert json.loads(answered.body) == {"content": [{"type": "text", "text": text}], "isError": True}


def test_a_completed_task_without_a_result_is_no_answer() -> None:
    talk = TasksRig()
    _, [wait] = talk.begin()
    _, [look] = talk.say(id=wait["id"], result={})
    [unreadable], _ = talk.say(id=look["id"], result={"status": "completed"})
    assert isinstance(unreadable, AnswerUnreadable)


@pytest.mark.parametrize("what", ["result", "get"])
def test_an_unreadable_or_overlong_line_about_a_task_ends_its_call(what: str) -> None:
    for line in (
        b'{"jsonrpc":"2.0","id":"carpool-task-%b-7","result":{},"error":{}}' % what.encode(),
        OverlongLine(id=RawJson(b'"carpool-task-%b-7"' % what.encode()), is_answer=True, size_bytes=99),
    ):
        talk = TasksRig()
        talk.begin()
        events, _ = talk.take(line)
        assert [(type(event), getattr(event, "wire", None)) for event in events] == [(AnswerUnreadable, 7)]


def test_a_repaired_result_is_noted() -> None:
    talk = TasksRig()
    _, [wait] = talk.begin()
    events, _ = talk.say(id=wait["id"], result={"text": "t"})
    assert [type(event) for event in events] == [ServerLineRejected, ServerAnswered]


def test_a_repaired_error_is_noted() -> None:
    talk = TasksRig()
    _, [wait] = talk.begin()
    [noted], [look] = talk.say(id=wait["id"], error="no")
    assert isinstance(noted, ServerLineRejected)
    [answered], _ = talk.say(id=look["id"], result={"taskId": "T", "status": "failed"})
    assert isinstance(answered, ServerAnswered)


# --- a server that does not wait -------------------------------------------------------------------------


@pytest.mark.parametrize("nudge", ["ping", "completed", "input_required"])
def test_a_task_that_still_runs_is_asked_for_again_when_there_is_reason_to(nudge: str) -> None:
    talk = TasksRig()
    _, [wait] = talk.begin()
    _, [look] = talk.say(id=wait["id"], error=FAULT)
    assert talk.say(id=look["id"], result={"status": "working"}) == ([], [])
    assert talk.status("working")[1] == []
    if nudge == "ping":
        ping = json.loads(talk.adapter.probe_line(5))
        events, [again] = talk.say(id=ping["id"], result={})
        assert events == [ProbeAnswered(ME, 5)]
    else:
        _, [again] = talk.status(nudge)
    assert again["method"] == "tasks/result"
    ping = json.loads(talk.adapter.probe_line(5))
    assert talk.say(id=ping["id"], result={}) == ([ProbeAnswered(ME, 5)], []), "it is asked once at a time"
    [answered], _ = talk.say(id=again["id"], result=GOOD)
    assert isinstance(answered, ServerAnswered)


def test_a_status_notification_causes_no_request_while_the_task_result_is_awaited() -> None:
    talk = TasksRig()
    talk.begin()
    for status in ("working", "input_required", "completed"):
        assert talk.status(status)[1] == []


# --- cancel ----------------------------------------------------------------------------------------------


@behaviour("tasks:cancelled")
def test_a_cancel_of_a_call_that_runs_as_a_task_cancels_the_task() -> None:
    talk = TasksRig()
    _, [wait] = talk.begin()
    said = talk.cancel()
    assert (said["method"], said["params"]) == ("tasks/cancel", {"taskId": "T"})
    assert talk.say(id=said["id"], result={"taskId": "T", "status": "cancelled"}) == ([], [])
    [late], out = talk.say(id=wait["id"], error=FAULT)
    assert isinstance(late, ServerAnswered), "now it runs no more"
    assert out == []


@behaviour("tasks:cancelled")
def test_a_cancel_before_the_task_is_known_cancels_the_call_and_then_the_task() -> None:
    talk = TasksRig()
    talk.call()
    said = talk.cancel()
    assert said["method"] == "notifications/cancelled"
    assert said["params"] == {"requestId": 7, "reason": "enough"}
    events, [cancel] = talk.say(id=7, result={"task": {"taskId": "T"}})
    assert events == [TaskCreated(ME, WireId(7), "T")]
    assert (cancel["method"], cancel["params"]) == ("tasks/cancel", {"taskId": "T"})
    [over], out = talk.say(id=cancel["id"], error=FAULT)
    assert isinstance(over, ServerAnswered)
    assert out == []


def test_a_cancelled_task_tells_no_progress_and_is_not_asked_for_again() -> None:
    talk = TasksRig()
    talk.begin()
    talk.cancel()
    assert talk.status("working", statusMessage="on") == ([], [])
    assert talk.status("cancelled") == ([], [])


def test_tasks_that_never_end_are_forgotten_in_the_end() -> None:
    talk = TasksRig()
    for wire in range(1, 3000):
        talk.begin(wire, f"T{wire}")
        talk.cancel(wire)
    assert len(talk.adapter._tasks._open) <= 1024
    assert len(talk.adapter._tasks._by_id) <= 1024


# --- progress --------------------------------------------------------------------------------------------


def told(events: list[OwnEvent]) -> list[Any]:
    return [json.loads(event.params) for event in events if isinstance(event, ServerProgressed)]


@behaviour("tasks:progress")
def test_changes_of_status_are_progress_that_grows() -> None:
    talk = TasksRig()
    talk.begin()
    said = told(talk.status("working", statusMessage="a")[0]) + told(talk.status("input_required")[0])
    assert [each.get("message") for each in said] == ["a", None]
    assert 0 < said[0]["progress"] < said[1]["progress"] < 0.001
    assert told(talk.status("completed")[0]) == []


@behaviour("tasks:progress")
def test_once_the_server_counts_its_numbers_alone_are_passed_on() -> None:
    talk = TasksRig()
    talk.begin()
    assert told(talk.progress(0)[0]) == [{"progress": 0}]
    assert told(talk.status("working", statusMessage="a")[0]) == []
    assert told(talk.progress(1)[0]) == [{"progress": 1}]


def test_a_number_below_what_was_told_is_left_out() -> None:
    talk = TasksRig()
    talk.begin()
    talk.status("working")
    assert told(talk.progress(0)[0]) == []
    assert told(talk.progress(0.5)[0]) == [{"progress": 0.5}]


@behaviour("tasks:progress")
def test_progress_between_call_and_task_is_the_calls() -> None:
    talk = TasksRig()
    talk.call()
    assert told(talk.progress(1)[0]) == [{"progress": 1}]


@pytest.mark.parametrize("task", ["other", 7, None, ["T"]])
def test_the_status_of_an_unknown_task_is_dropped(task: Any) -> None:
    talk = TasksRig()
    talk.begin()
    params = {"taskId": task, "status": "completed"}
    assert talk.say(method="notifications/tasks/status", params=params) == ([], [])
    assert talk.say(method="notifications/tasks/status") == ([], [])


# --- anything --------------------------------------------------------------------------------------------

STEP = st.sampled_from(
    ["call", "create", "result", "error", "empty", "get", "cancel", "status", "ping", "junk"]
)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.tuples(STEP, st.integers(1, 3), st.sampled_from(["working", "completed", "failed"])), max_size=30
    )
)
def test_each_call_gets_at_most_one_answer_in_any_order_of_lines(steps: list[tuple[str, int, str]]) -> None:
    talk = TasksRig()
    called: list[int] = []
    ended: list[int] = []
    created: set[int] = set()
    for step, nth, status in steps:
        wire = called[-nth] if len(called) >= nth else 0
        events: list[OwnEvent] = []
        match step:
            case "call":
                called.append(len(called) + 1)
                talk.call(called[-1])
            case "create" if wire and wire not in created:  # a second answer is for the core to drop
                created.add(wire)
                events, _ = talk.say(id=wire, result={"task": {"taskId": f"T{wire}"}})
            case "cancel" if wire and wire not in ended:
                talk.adapter.cancel_line(WireId(wire), "")
            case "ping":
                events, _ = talk.say(id=json.loads(talk.adapter.probe_line(5))["id"], result={})
            case "status":
                params = {"taskId": f"T{wire}", "status": status}
                events, _ = talk.say(method="notifications/tasks/status", params=params)
            case "result" | "empty":
                result = GOOD if step == "result" else {}
                events, _ = talk.say(id=f"carpool-task-result-{wire}", result=result)
            case "error":
                events, _ = talk.say(id=f"carpool-task-result-{wire}", error=FAULT)
            case "get":
                events, _ = talk.say(id=f"carpool-task-get-{wire}", result={"status": status})
            case "junk":
                events, _ = talk.say(id=f"carpool-task-cancel-{wire}", result=7)
            case _:
                pass
        ended += [event.wire for event in events if isinstance(event, ServerAnswered | AnswerUnreadable)]
    assert len(ended) == len(set(ended))
    assert set(ended) <= created
