"""Tasks towards agents of the stateless era: lines in, lines out. Source: SEP-2663 of MCP 2026-07-28."""

import json
from typing import Any

import pytest

from carpool_broker.core.model.effects import AcknowledgeListen, ReplyStateless, SendTaskStatus
from carpool_broker.core.model.events import CallRequested
from carpool_broker.era import handshake, stateless_encode
from carpool_broker.era.exchange_ids import tag_id
from carpool_broker.era.handshake import UnservableLine
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, RawJson, SessionId
from carpool_protocol.wire.content import rewrite_uris
from carpool_protocol.wire.stateless import TASKS
from tests.behaviours import behaviour

ME = SessionId("s1")
ONE = RawJson(b"1")
PRE = "io.modelcontextprotocol/"
META: dict[str, Any] = {
    PRE + "protocolVersion": "2026-07-28",
    PRE + "clientCapabilities": {"extensions": {TASKS: {}}},
}
WORDS = stateless_encode.StatelessEncoder("9.9")
WORKING: dict[str, Any] = {"taskId": "theirs", "status": "working", "ttlMs": None}


def raw(value: Any) -> RawJson:
    return RawJson(json.dumps(value).encode())


def read(method: str, params: Any, meta: Any = META) -> handshake.LineMeaning:
    said = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    return handshake.read_line(ME, json.dumps(said).encode())


# --- in --------------------------------------------------------------------------------------------------


@behaviour("tasks:relayed")
def test_a_request_about_a_task_names_it_and_what_it_brings_is_for_that_and_no_retry() -> None:
    given = {"who": {"action": "accept", "content": {}}}
    said = read("tasks/update", {"taskId": "T", "inputResponses": given, "requestState": "s", "k": 1})
    assert isinstance(said, CallRequested)
    assert (said.method, said.name, said.state, said.given, said.digest) == ("tasks/update", "T", "", (), "")
    assert json.loads(said.rest) == {"inputResponses": given, "k": 1}
    assert said.by is not None
    assert said.by.tasks
    for method in ("tasks/get", "tasks/cancel"):
        said = read(method, {"taskId": "T", "InputResponses": given, "requestState": "s"})
        assert isinstance(said, CallRequested)
        assert json.loads(said.rest) == {}


@pytest.mark.parametrize("params", [{}, {"taskId": 1}, {"taskId": None}, {"taskId": "a", "TASKID": "b"}])
def test_a_task_request_without_a_task_id_names_no_task(params: Any) -> None:
    said = read("tasks/get", params)
    assert isinstance(said, CallRequested)
    assert (said.name, said.rest, said.meta) == ("", EMPTY_OBJECT, ABSENT)


def test_tasks_of_the_handshake_era_stay_unknown() -> None:
    for method in ("tasks/result", "tasks/list"):
        said = read(method, {"taskId": "T"})
        assert isinstance(said, UnservableLine)
        assert json.loads(said.line)["error"]["code"] == -32601


# --- out -------------------------------------------------------------------------------------------------


def reply(body: Any, method: str, *, begins: bool = False) -> Any:
    effect = ReplyStateless(ME, ONE, False, raw(body), method, task="ours", begins_task=begins)
    return json.loads(WORDS.reply_line(effect))["result"]


@behaviour("tasks:own-id")
def test_a_task_has_carpools_id_for_its_agent_and_comes_as_a_task() -> None:
    begun = reply(WORKING, "tools/call", begins=True)
    assert begun.pop("_meta")[PRE + "serverInfo"]["name"] == "carpool"
    assert begun == {**WORKING, "taskId": "ours", "resultType": "task"}
    with_meta = reply({**WORKING, "_meta": {"k": 1}}, "tools/call", begins=True)
    assert (with_meta["resultType"], with_meta["_meta"]["k"]) == ("task", 1)


def test_the_status_of_a_task_keeps_its_time_its_input_requests_and_its_result() -> None:
    inputs = {"who": {"method": "elicitation/create", "params": {}}}
    said = {**WORKING, "status": "input_required", "ttlMs": 5, "inputRequests": inputs, "_meta": {"k": 1}}
    got = reply(said, "tasks/get")
    assert got["_meta"]["k"] == 1
    assert got == {**said, "taskId": "ours", "resultType": "complete", "_meta": got["_meta"]}
    assert reply({}, "tasks/cancel")["resultType"] == "complete"


@behaviour("tasks:listened")
def test_the_status_of_a_task_on_a_listen_has_carpools_id_and_the_listens() -> None:
    listen = tag_id(3, RawJson(b'"l"'))
    params = raw({**WORKING, "_meta": {PRE + "subscriptionId": "x", "k": 1}})
    line = json.loads(stateless_encode.task_status_line(SendTaskStatus(ME, "ours", params, listen), params))
    assert line["method"] == "notifications/tasks"
    meta = {"k": 1, PRE + "subscriptionId": "l"}
    assert line["params"] == {**WORKING, "taskId": "ours", "_meta": meta}
    said = json.loads(
        stateless_encode.acknowledged_line(AcknowledgeListen(ME, listen, (), (), ("ours", "mine")))
    )
    assert said["params"]["notifications"] == {"taskIds": ["ours", "mine"]}


def test_uris_in_the_result_of_a_task_are_those_that_its_agent_knows() -> None:
    link = {"type": "resource_link", "uri": "u:/x", "name": "x"}
    body = raw({**WORKING, "status": "completed", "result": {"content": [link]}})
    changed = json.loads(rewrite_uris("tasks/get", body, lambda uri: f"a+{uri}"))
    assert changed["result"]["content"][0]["uri"] == "a+u:/x"
