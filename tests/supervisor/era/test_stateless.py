"""The adapter of the stateless era: lines in, events and lines out. Source: MCP 2026-07-28."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.carrier.remote import UNFIT_CODE
from carpool_protocol.ids import CallId, InstanceId, PoolKey, RawJson, SessionId, WireId
from carpool_protocol.link.messages import Call, Root
from carpool_protocol.wire.lines import OverlongLine
from carpool_supervisor.core.model.events import (
    AnswerUnreadable,
    CatalogRead,
    GreetingFailed,
    InstanceGreeted,
    ProbeAnswered,
    ResourceUpdated,
    ServerAnswered,
    ServerAsked,
    ServerLineRejected,
    ServerLogged,
    ServerNotReady,
    ServerProgressed,
)
from carpool_supervisor.core.model.trace_context import LIFE_BYTES
from carpool_supervisor.era.input_rounds import LONGEST_PAUSE_S, MAX_ROUNDS
from carpool_supervisor.era.server_requests import NOTHING, Declared
from carpool_supervisor.era.stateless import StatelessAdapter
from tests.behaviours import behaviour

ME = InstanceId(1)
ONE = WireId(1)
PRE = "io.modelcontextprotocol/"
ASKING = Declared(asking=True, life=b"L" * LIFE_BYTES)
FORM: dict[str, Any] = {"method": "elicitation/create", "params": {"message": "m", "requestedSchema": {}}}
URL: dict[str, Any] = {
    "method": "elicitation/create",
    "params": {"mode": "url", "message": "m", "url": "https://example.com"},
}
SAMPLE: dict[str, Any] = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}


def line(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


def call(method: str = "tools/call", params: bytes = b"{}", meta: bytes = b"", target: str = "t") -> Call:
    return Call(
        CallId(1),
        PoolKey("s:1"),
        SessionId("s1"),
        method,
        target,
        RawJson(params),
        RawJson(meta),
        wants_progress=True,
    )


class StatelessAdapterRig:
    """An adapter, and the requests it has written that are its own."""

    def __init__(self, declared: Declared = NOTHING, *, bridge: bool = False) -> None:
        self.adapter = StatelessAdapter(ME, PoolKey("s:1"), "1.0", declared, bridge=bridge)
        self.discover = json.loads(self.adapter.greeting_line())

    def say(self, *lines: bytes | OverlongLine) -> tuple[list[Any], list[dict[str, Any]]]:
        events, out = self.adapter.feed(list(lines))
        return list(events), [json.loads(each) for each in out]

    def discovered(self, **capabilities: Any) -> list[dict[str, Any]]:
        result = {
            "resultType": "complete",
            "supportedVersions": ["2026-07-28"],
            "capabilities": capabilities,
            "instructions": "Be kind.",
            "_meta": {PRE + "serverInfo": {"name": "x"}},
        }
        events, out = self.say(line(id=self.discover["id"], result=result))
        assert events == []
        return out

    def fit(self, **capabilities: Any) -> list[dict[str, Any]]:
        """Greet to the end with lists of nothing; all that was written."""
        out = self.discovered(**capabilities)
        todo = list(out)
        while todo:
            request = todo.pop(0)
            if request["method"].endswith("/list"):
                name = {"resources/templates/list": "resourceTemplates"}.get(request["method"])
                key = name or request["method"].removesuffix("/list")
                _, more = self.say(line(id=request["id"], result={"resultType": "complete", key: []}))
                todo += more
                out += more
        return out

    def call(self, one: Call | None = None, wire_id: WireId = ONE) -> dict[str, Any]:
        written: dict[str, Any] = json.loads(self.adapter.call_line(wire_id, one or call()))
        return written

    def wants(self, id_: object = 1, state: Any = None, **inputs: Any) -> tuple[list[Any], list[Any]]:
        result: dict[str, Any] = {"resultType": "input_required", "inputRequests": inputs}
        if state is not None:
            result["requestState"] = state
        return self.say(line(id=id_, result=result))

    def give(self, ask: RawJson, result: Any = None, error: Any = None) -> dict[str, Any] | None:
        body = RawJson(json.dumps(error if result is None else result).encode())
        assert self.adapter.ask_answer_line(ask, is_error=result is None, body=body) == b"", (
            "when, the core knows"
        )
        said = self.adapter.retry_line(WireId(int(ask.split(b"/")[0])))
        return json.loads(said) if said else None


# --- greeting --------------------------------------------------------------------------------------------


def test_the_greeting_is_discover_one_listen_and_the_lists() -> None:
    talk = StatelessAdapterRig()
    assert talk.discover["method"] == "server/discover"
    assert talk.discover["params"]["_meta"] == {
        PRE + "protocolVersion": "2026-07-28",
        PRE + "clientCapabilities": {},
        PRE + "clientInfo": {"name": "carpool", "version": "1.0"},
    }
    listen, tools = talk.discovered(tools={"listChanged": True}, extensions={"x/y": {}})
    assert listen["method"] == "subscriptions/listen"
    assert listen["params"]["notifications"] == {"toolsListChanged": True}
    assert tools["method"] == "tools/list"
    events, _ = talk.say(line(id=tools["id"], result={"resultType": "complete", "tools": [{"name": "a"}]}))
    (greeted,) = events
    assert isinstance(greeted, InstanceGreeted)
    catalog = greeted.catalog
    assert [tool.name for tool in catalog.tools] == ["a"]
    assert (catalog.instructions, catalog.protocol_version) == ("Be kind.", "2026-07-28")
    assert json.loads(catalog.server_info) == {"name": "x"}
    assert "extensions" not in json.loads(catalog.capabilities)


@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"code": -32601, "message": "no"}},
        {"error": 3},
        {"result": {"supportedVersions": ["2031-01-01"]}},
        {"result": {"supportedVersions": "2026-07-28"}},
        {"result": {}},
        {"result": []},
    ],
)
def test_a_server_of_another_era_fails_to_greet_and_is_told_what_to_set(answer: dict[str, Any]) -> None:
    talk = StatelessAdapterRig()
    events, _ = talk.say(line(id=talk.discover["id"], **answer))
    (failed,) = [event for event in events if isinstance(event, GreetingFailed)]
    assert 'set "era" to "legacy"' in failed.text


def test_a_bridge_that_reaches_no_server_has_its_own_sentence_for_it_in_this_era_too() -> None:
    talk = StatelessAdapterRig(bridge=True)
    (failed,), _ = talk.say(
        line(id=talk.discover["id"], error={"code": UNFIT_CODE, "message": "cannot reach x"})
    )
    assert failed.refused == "cannot reach x"


def test_declared_capabilities_go_with_every_request() -> None:
    talk = StatelessAdapterRig(Declared(asking=True, roots=(Root("file:///w"),)))
    can: dict[str, Any] = {"sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}, "roots": {}}
    assert talk.call()["params"]["_meta"][PRE + "clientCapabilities"] == can


# --- the envelope ----------------------------------------------------------------------------------------


@behaviour("eras:hop-by-hop")
def test_an_agents_meta_goes_along_but_for_what_each_hop_says_for_itself() -> None:
    talk = StatelessAdapterRig()
    meta = json.dumps(
        {
            "io.modelcontextprotocol/protocolVersion": "x",
            "IO.ModelContextProtocol/LOGLEVEL": "debug",
            "io.modelcontextprotocol/clientCapabilities": {"sampling": {}},
            "traceparent": "00-a-b-01",
            "io.modelcontextprotocol/related-task": {"taskId": "another's"},
            "io.modelcontextprotocol/else": 1,
        }
    ).replace("io.modelcontextprotocol/clientC", "io.modelcontextprotocol\\u002fclientC")
    said = talk.call(call(meta=meta.encode()))["params"]["_meta"]
    assert said.pop("progressToken") == "-1"
    assert said == {
        PRE + "protocolVersion": "2026-07-28",
        PRE + "clientCapabilities": {},
        PRE + "clientInfo": {"name": "carpool", "version": "1.0"},
        "traceparent": "00-a-b-01",
        PRE + "else": 1,
    }


@behaviour("eras:hop-by-hop")
@pytest.mark.parametrize("key", ["requestState", "inputResponses", "REQUESTSTATE", "request\\u0053tate"])
def test_no_agent_resumes_what_a_server_began_for_another(key: str) -> None:
    params = b'{"arguments":{"requestState":"the tool\'s own"},"%b":"stolen"}' % key.encode()
    said = StatelessAdapterRig().call(call(params=params))["params"]
    assert said.keys() == {"name", "arguments", "_meta"}
    assert said["arguments"] == {"requestState": "the tool's own"}


def test_the_log_level_goes_with_requests_while_an_agent_wants_logs() -> None:
    talk = StatelessAdapterRig()
    assert talk.adapter.level_line("info") == b""
    assert talk.call()["params"]["_meta"][PRE + "logLevel"] == "info"
    talk.adapter.level_line("")
    assert PRE + "logLevel" not in talk.call(wire_id=WireId(2))["params"]["_meta"]


def test_a_result_is_as_it_would_be_in_the_handshake_era() -> None:
    talk = StatelessAdapterRig()
    talk.call()
    result = (
        b'{"content":[],"x":1.0,"resultType":"complete","ttlMs":5,"cacheScope":"private","requestState":"s",'
        b'"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"x"},"kept":1e2}}'
    )
    (answered,), _ = talk.say(b'{"jsonrpc":"2.0","id":1,"result":%b}' % result)
    assert answered == ServerAnswered(
        ME, ONE, is_error=False, body=RawJson(b'{"content":[],"x":1.0,"_meta":{"kept":1e2}}')
    )
    talk.call(wire_id=WireId(2))
    (answered,), _ = talk.say(
        line(id="2", result={"content": [], "resultType": "complete", "_meta": {PRE + "serverInfo": {}}})
    )
    assert json.loads(answered.body) == {"content": []}


@pytest.mark.parametrize("said", [b'"task"', b"3", b"{}", b'"inputrequired"'])
def test_a_result_of_an_unknown_type_ends_its_call(said: bytes) -> None:
    talk = StatelessAdapterRig()
    talk.call()
    (bad,), out = talk.say(b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"resultType":%b}}' % said)
    assert isinstance(bad, AnswerUnreadable)
    assert out == []


@pytest.mark.parametrize(
    ("method", "error", "code"),
    [
        ("resources/read", {"code": -32602, "message": "m", "data": {"uri": "x:1"}}, -32002),
        ("resources/read", {"code": -32602, "message": "m"}, -32602),
        ("tools/call", {"code": -32602, "message": "m", "data": {"uri": "x:1"}}, -32602),
        ("tools/call", {"code": -32021, "message": "m", "data": {"requiredCapabilities": {}}}, -32603),
        ("tools/call", "broken", -32603),
    ],
)
def test_an_error_has_a_code_that_agents_of_the_handshake_era_know(
    method: str, error: Any, code: int
) -> None:
    talk = StatelessAdapterRig()
    talk.call(call(method))
    events, _ = talk.say(line(id=1, error=error))
    assert json.loads(events[-1].body)["code"] == code


# --- rounds ----------------------------------------------------------------------------------------------


@behaviour("eras:rounds")
def test_required_input_is_asked_of_the_agent_and_the_call_sent_again_with_it() -> None:
    talk = StatelessAdapterRig(ASKING)
    first = talk.call(call(params=b'{"arguments":{"x":1.0}}', meta=b'{"k":1}'))
    state = r'"a\u00e9\/ \"\ud83d'
    inputs = b'{"\\u0061 b":%b,"c":%b}' % (json.dumps(FORM).encode(), json.dumps(SAMPLE).encode())
    head = b'"resultType":"input_required","inputRequests":%b,"requestState":%b"' % (inputs, state.encode())
    events, out = talk.say(b'{"jsonrpc":"2.0","id":1,"result":{%b}}' % head)
    assert out == []
    assert [type(event) for event in events] == [ServerAsked, ServerAsked]
    assert [event.facts.method for event in events] == ["elicitation/create", "sampling/createMessage"]
    assert {event.facts.wire for event in events} == {ONE}
    assert [event.needs for event in events] == [("elicitation.form",), ("sampling",)]
    assert b"requestState" not in b"".join(event.params for event in events)
    assert talk.give(events[1].id, {"role": "assistant"}) is None
    assert talk.give(events[1].id, {"role": "twice"}) is None
    body = RawJson(b'{"action":"accept","content":{"n":1.0}}')
    talk.adapter.ask_answer_line(events[0].id, is_error=False, body=body)
    again = talk.adapter.retry_line(ONE)
    assert b'"requestState":%b"' % state.encode() in again
    assert b'"\\u0061 b":{"action":"accept","content":{"n":1.0}}' in again
    said = json.loads(again)
    assert said["id"] != first["id"]
    assert said["method"] == first["method"]
    assert said["params"].pop("inputResponses")["c"] == {"role": "assistant"}
    del said["params"]["requestState"]
    assert said["params"] == first["params"]
    (answered,), _ = talk.say(line(id=said["id"], result={"content": [], "resultType": "complete"}))
    assert (answered.wire, answered.is_error) == (ONE, False)


def test_a_state_that_the_server_did_not_give_is_not_sent() -> None:
    talk = StatelessAdapterRig(ASKING)
    talk.call()
    (asked,), _ = talk.wants(a=FORM)
    again = talk.give(asked.id, {"action": "accept"})
    assert again is not None
    assert "requestState" not in again["params"]


@pytest.mark.parametrize(
    ("error", "action"),
    [({"code": -1, "message": "no"}, "decline"), ({"code": -32603, "message": "gone"}, "cancel")],
)
def test_an_elicitation_that_comes_to_nothing_is_declined_or_cancelled(error: Any, action: str) -> None:
    talk = StatelessAdapterRig(ASKING)
    talk.call()
    (asked,), _ = talk.wants(a=FORM)
    again = talk.give(asked.id, error=error)
    assert again is not None
    assert again["params"]["inputResponses"] == {"a": {"action": action}}


def test_without_a_sampling_the_call_ends_with_the_agents_error() -> None:
    talk = StatelessAdapterRig(ASKING)
    talk.call()
    (form, sample), _ = talk.wants(a=FORM, b=SAMPLE)
    error = {"code": -32601, "message": "not declared"}
    assert talk.give(sample.id, error=error) is None
    (ended,) = talk.adapter.take_events()
    assert isinstance(ended, ServerAnswered)
    assert (ended.wire, ended.is_error, json.loads(ended.body)) == (ONE, True, error)
    assert talk.give(form.id, {"action": "accept"}) is None
    assert talk.adapter.take_events() == []


def test_roots_are_answered_here_where_the_configuration_says_so() -> None:
    talk = StatelessAdapterRig(Declared(roots=(Root("file:///w"),)))
    talk.call()
    events, (again,) = talk.wants(r={"method": "roots/list"})
    assert events == []
    assert again["params"]["inputResponses"]["r"]["roots"] == [{"uri": "file:///w", "name": "w"}]


@pytest.mark.parametrize("declared", [NOTHING, ASKING])
@pytest.mark.parametrize(
    "inputs",
    [
        {"r": {"method": "roots/list"}},
        {"x": {"method": "tools/call", "params": {}}},
        {"x": {"params": {}}},
        {"x": 3},
        {"x": {"method": "elicitation/create", "params": {"mode": "telepathy"}}},
        {"x": {"method": "sampling/createMessage", "params": []}},
        {str(at): FORM for at in range(65)},
        {},
    ],
)
def test_an_undeclared_or_malformed_input_request_ends_the_call(declared: Declared, inputs: Any) -> None:
    talk = StatelessAdapterRig(declared)
    talk.call()
    (bad,), out = talk.wants(**inputs)
    assert isinstance(bad, AnswerUnreadable)
    assert out == []


def test_a_plain_server_that_asks_all_the_same_ends_its_call() -> None:
    talk = StatelessAdapterRig()
    talk.call()
    (bad,), _ = talk.wants(a=FORM)
    assert isinstance(bad, AnswerUnreadable)
    assert "not declared" in bad.text


def test_input_required_for_a_completion_is_unreadable() -> None:
    talk = StatelessAdapterRig(ASKING)
    talk.call(call("completion/complete", target="{}"))
    (bad,), _ = talk.wants(a=FORM)
    assert isinstance(bad, AnswerUnreadable)


def test_a_server_that_never_has_enough_ends_its_call() -> None:
    talk = StatelessAdapterRig(ASKING)
    id_ = talk.call()["id"]
    for _ in range(MAX_ROUNDS):
        (asked,), _ = talk.wants(id_, a=FORM)
        again = talk.give(asked.id, {"action": "accept"})
        assert again is not None
        id_ = again["id"]
    (bad,), _ = talk.wants(id_, a=FORM)
    assert isinstance(bad, AnswerUnreadable)


def test_a_request_state_alone_asks_for_a_pause_each_longer_than_the_last() -> None:
    talk = StatelessAdapterRig()
    id_ = talk.call()["id"]
    pauses = []
    for _ in range(MAX_ROUNDS + 2):
        (later,), out = talk.wants(id_, state="s")
        assert isinstance(later, ServerNotReady)
        assert out == []
        pauses.append(later.pause_s)
        again = json.loads(talk.adapter.retry_line(ONE))
        assert again["params"]["requestState"] == "s"
        assert talk.adapter.retry_line(ONE) == b"", "it is said once"
        id_ = again["id"]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_S


def test_an_answer_to_a_request_that_was_answered_before_changes_nothing() -> None:
    talk = StatelessAdapterRig(ASKING)
    talk.call()
    (asked,), _ = talk.wants(a=FORM)
    for late in (line(id=1, result={"content": []}), line(id=1, error={"code": 1, "message": "m"})):
        (event,), _ = talk.say(late)
        assert isinstance(event, ServerLineRejected)
    again = talk.give(asked.id, {"action": "accept"})
    assert again is not None
    (event,), _ = talk.say(line(id=1, result={"content": []}))
    assert isinstance(event, ServerLineRejected)
    (answered,), _ = talk.say(line(id=again["id"], result={"content": []}))
    assert isinstance(answered, ServerAnswered)


def test_each_url_elicitation_gets_a_new_id_of_carpools_own() -> None:
    talk = StatelessAdapterRig(ASKING)
    talk.call()
    talk.call(wire_id=WireId(2))
    (one, other), _ = talk.wants(a=URL, b=URL)
    (third,), _ = talk.wants(2, a=URL)
    ids = {json.loads(event.params)["elicitationId"] for event in (one, other, third)}
    assert len(ids) == 3
    assert json.loads(one.params)["url"] == "https://example.com"


def test_a_cancel_names_the_request_that_is_out_and_between_two_nothing_runs() -> None:
    talk = StatelessAdapterRig(ASKING)
    talk.call()
    said = json.loads(talk.adapter.cancel_line(ONE, "why"))
    assert said["params"] == {"requestId": 1, "reason": "why"}
    assert talk.adapter.take_events() == []
    two = WireId(2)
    talk.call(wire_id=two)
    (asked,), _ = talk.wants(2, a=FORM)
    assert talk.adapter.cancel_line(two, "why") == b""
    (over,) = talk.adapter.take_events()
    assert isinstance(over, ServerAnswered)
    assert (over.wire, over.is_error) == (two, True)
    assert talk.give(asked.id, {"action": "accept"}) is None, "the call is not said again"
    three = WireId(3)
    talk.call(wire_id=three)
    (asked,), _ = talk.wants(3, a=FORM)
    again = talk.give(asked.id, {"action": "accept"})
    assert again is not None
    assert json.loads(talk.adapter.cancel_line(three, "why"))["params"]["requestId"] == again["id"]
    (late,), _ = talk.say(line(id=again["id"], result={"content": []}))
    assert late.wire == three


def test_progress_grows_over_all_rounds() -> None:
    talk = StatelessAdapterRig(ASKING)
    talk.call()

    def progress(**params: Any) -> dict[str, Any]:
        note = line(method="notifications/progress", params={"progressToken": "-1", **params})
        (event,), _ = talk.say(note)
        assert isinstance(event, ServerProgressed)
        found: dict[str, Any] = json.loads(event.params)
        return found

    assert progress(progress=40, total=100) == {"progress": 40, "total": 100}
    (asked,), _ = talk.wants(a=FORM)
    talk.give(asked.id, {"action": "accept"})
    assert progress(progress=1, total=10, message="m") == {"progress": 41, "total": 50, "message": "m"}
    assert progress(progress=2.5) == {"progress": 42.5}


def test_progress_that_is_too_large_together_is_still_a_number() -> None:
    """JSON has no infinity: an agent could not read that line."""
    talk = StatelessAdapterRig(ASKING)
    talk.call()
    huge = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"-1",%b}}'
    talk.say(huge % b'"progress":1.7e308')
    (asked,), _ = talk.wants(a=FORM)
    talk.give(asked.id, {"action": "accept"})
    for _ in range(2):
        (event,), _ = talk.say(huge % b'"progress":1.6e308,"total":1.7e308')
        assert isinstance(event, ServerProgressed)
        assert json.loads(event.params, parse_constant=float.fromhex) == {
            "progress": 1.7e308,
            "total": 1.7e308,
        }


# --- what is told unasked --------------------------------------------------------------------------------


def ack(request: dict[str, Any]) -> bytes:
    meta = {PRE + "subscriptionId": request["id"]}
    return line(method="notifications/subscriptions/acknowledged", params={"_meta": meta})


def updated(request: dict[str, Any], uri: str) -> bytes:
    params = {"uri": uri, "_meta": {PRE + "subscriptionId": request["id"]}}
    return line(method="notifications/resources/updated", params=params)


@behaviour("eras:one-listen")
def test_a_listen_is_replaced_without_a_gap_and_nothing_is_heard_twice() -> None:
    talk = StatelessAdapterRig()
    first = talk.fit(tools={"listChanged": True}, resources={"subscribe": True})[0]
    talk.say(ack(first))
    second = json.loads(talk.adapter.subscriptions_line(["x:1"], []))
    assert second["params"]["notifications"] == {"toolsListChanged": True, "resourceSubscriptions": ["x:1"]}
    assert talk.say(ack(second)) == (
        [],
        [{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": first["id"]}}],
    )
    assert talk.say(updated(first, "x:1")) == ([], [])
    (event,), _ = talk.say(updated(second, "x:1"))
    assert event == ResourceUpdated(ME, "x:1", RawJson(b'{"uri": "x:1"}'))
    changed = {"_meta": {PRE + "subscriptionId": second["id"]}}
    _, (again,) = talk.say(line(method="notifications/tools/list_changed", params=changed))
    assert again["method"] == "tools/list"
    (read,), _ = talk.say(line(id=again["id"], result={"tools": [{"name": "new"}]}))
    assert isinstance(read, CatalogRead)
    assert talk.say(line(id=first["id"], result={})) == ([], []), "the old one may say that it has ended"
    assert talk.adapter.subscriptions_line(["x:1"], []) == b"", "nothing is different"


@behaviour("subscriptions:slow-server")
def test_a_listen_that_is_not_acknowledged_yet_is_replaced_once_however_much_changes() -> None:
    talk = StatelessAdapterRig()
    first = talk.fit(tools={"listChanged": True}, resources={"subscribe": True})[0]
    for number in range(100):
        assert talk.adapter.subscriptions_line([f"x:{number}"], [f"x:{number - 1}"]) == b""
    _, (second,) = talk.say(ack(first))
    assert second["params"]["notifications"]["resourceSubscriptions"] == ["x:99"]
    assert talk.adapter.subscriptions_line(["x:100"], []) == b""
    assert talk.adapter.subscriptions_line([], ["x:100"]) == b""
    _, (cancelled, third) = talk.say(ack(second))
    assert (cancelled["params"], third["method"]) == ({"requestId": first["id"]}, "subscriptions/listen")
    _, (cancelled,) = talk.say(ack(third))
    assert cancelled["params"] == {"requestId": second["id"]}


@behaviour("subscriptions:slow-server")
def test_a_change_after_a_listen_that_is_refused_is_asked_for_all_the_same() -> None:
    talk = StatelessAdapterRig()
    first = talk.fit(tools={"listChanged": True}, resources={"subscribe": True})[0]
    talk.say(ack(first))
    second = json.loads(talk.adapter.subscriptions_line(["x:1"], []))
    assert talk.adapter.subscriptions_line(["x:2"], ["x:1"]) == b""
    _, (third,) = talk.say(line(id=second["id"], error={"code": -32602, "message": "no"}))
    assert third["params"]["notifications"]["resourceSubscriptions"] == ["x:2"]
    _, out = talk.say(line(id=third["id"], error={"code": -32602, "message": "no"}))
    assert out == []


@behaviour("eras:one-listen")
def test_a_listen_that_the_server_ends_is_opened_again_and_everything_counts_as_changed() -> None:
    talk = StatelessAdapterRig()
    first = talk.fit(tools={"listChanged": True}, resources={"subscribe": True})[0]
    talk.say(ack(first))
    second = json.loads(talk.adapter.subscriptions_line(["x:1"], []))
    talk.say(ack(second))
    ended = line(method="notifications/cancelled", params={"requestId": second["id"]})
    _, (third,) = talk.say(ended, line(id=second["id"], result={"resultType": "complete"}))
    assert third["params"]["notifications"] == second["params"]["notifications"]
    (event,), (tools,) = talk.say(ack(third))
    assert event == ResourceUpdated(ME, "x:1", RawJson(b'{"uri":"x:1"}'))
    assert tools["method"] == "tools/list"


def test_a_server_that_ends_every_listen_is_not_asked_for_ever() -> None:
    talk = StatelessAdapterRig()
    request = talk.fit(tools={"listChanged": True})[0]
    for _ in range(3):
        _, out = talk.say(ack(request), line(id=request["id"], result={}))
        (request,) = [each for each in out if each["method"] == "subscriptions/listen"]
    _, out = talk.say(ack(request), line(id=request["id"], result={}))
    assert [each["method"] for each in out if each["method"] == "subscriptions/listen"] == []
    ping = json.loads(talk.adapter.probe_line(5))
    assert ping["method"] == "server/discover"
    events, (request,) = talk.say(line(id=ping["id"], error={"code": -1, "message": "m"}))
    assert events == [ProbeAnswered(ME, 5)]
    assert request["method"] == "subscriptions/listen"


def test_a_server_that_ends_listens_now_and_then_is_listened_to_again_when_it_answers() -> None:
    """Over HTTP a proxy may cut each stream after a minute."""
    talk = StatelessAdapterRig()
    request = talk.fit(tools={"listChanged": True})[0]
    for _ in range(3):
        _, out = talk.say(ack(request), line(id=request["id"], result={}))
        (request,) = [each for each in out if each["method"] == "subscriptions/listen"]
    talk.say(ack(request), line(id=request["id"], result={}))
    asked = talk.call()
    _, (request,) = talk.say(line(id=asked["id"], result={"resultType": "complete", "content": []}))
    assert request["method"] == "subscriptions/listen"


def test_a_refused_listen_is_told_and_not_repeated() -> None:
    talk = StatelessAdapterRig()
    request = talk.fit(tools={"listChanged": True})[0]
    (event,), out = talk.say(line(id=request["id"], error={"code": -32601, "message": "no"}))
    assert isinstance(event, ServerLineRejected)
    assert out == []


def test_a_server_without_change_notifications_gets_no_listen() -> None:
    assert [each["method"] for each in StatelessAdapterRig().fit(tools={})] == ["tools/list"]


def test_a_log_message_is_passed_on_and_a_request_refused() -> None:
    talk = StatelessAdapterRig()
    (event,), _ = talk.say(line(method="notifications/message", params={"level": "info", "data": 1}))
    assert isinstance(event, ServerLogged)
    _, (refused,) = talk.say(line(id=7, method="sampling/createMessage", params={}))
    assert (refused["id"], refused["error"]["code"]) == (7, -32601)


# --- lines we cannot read --------------------------------------------------------------------------------


def test_lines_too_long_or_broken_end_the_call_they_answer() -> None:
    talk = StatelessAdapterRig(ASKING)
    talk.call()
    talk.call(wire_id=WireId(2))
    (one,), _ = talk.say(OverlongLine(id=RawJson(b"1"), size_bytes=1 << 30, is_answer=True))
    assert (one.wire, one.fault) == (1, "answer_too_large")
    (two,), _ = talk.say(b'{"jsonrpc":"2.0","id":2,"result":{}')
    assert (two.wire, two.fault) == (2, "bad_answer")
    (three,), _ = talk.say(OverlongLine(id=None, size_bytes=1 << 30, is_answer=None))
    assert isinstance(three, ServerLineRejected)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "method", "params", "mode", "é"]), inner, max_size=3)
    ),
    max_leaves=6,
)
KINDS = st.sampled_from(["complete", "input_required", "task", None, 3])
INPUTS = st.dictionaries(
    st.text(max_size=3), st.sampled_from([FORM, URL, SAMPLE, {"method": "roots/list"}]) | JSON, max_size=3
)
IDS = st.sampled_from(
    [1, 2, "1", "carpool-again-1-1", "carpool-again-2-1", "carpool-again-9-2", "carpool-again--", "x", 9**20]
)


@behaviour("eras:rounds")
@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(IDS, KINDS, INPUTS | JSON, st.text(max_size=3) | JSON, st.booleans(), st.booleans()),
        max_size=8,
    )
)
def test_whatever_a_server_says_each_call_ends_once_at_most_and_no_state_gets_out(
    said: list[tuple[Any, Any, Any, Any, bool, bool]],
) -> None:
    talk = StatelessAdapterRig(ASKING)
    open_ = {WireId(1), WireId(2)}
    for wire in sorted(open_):
        talk.call(wire_id=wire)
    asks: dict[RawJson, WireId] = {}

    def hear(events: list[Any]) -> None:
        for event in events:
            if isinstance(event, (ServerAnswered, AnswerUnreadable)):
                if isinstance(event, ServerAnswered):
                    assert b"requestState" not in bytes(event.body)
                # Late answers are for the core to drop.
                open_.discard(event.wire)
            elif isinstance(event, ServerAsked):
                assert event.facts.wire in open_, "a question of a call that has ended"
                assert event.id not in asks, "two questions under one id"
                assert b"SECRET" not in bytes(event.params)
                asks[event.id] = event.facts.wire

    for id_, kind, inputs, state, give, fails in said:
        result = {
            "resultType": kind,
            "inputRequests": inputs,
            "requestState": f"SECRET{state}",
            "content": [],
        }
        events, out = talk.adapter.feed([line(id=id_, result=result)])
        hear(list(events))
        for written in out:
            assert written.count(b"\n") == 1
            assert json.loads(written)["method"] == "tools/call"
        if give:
            for ask in list(asks):
                body = RawJson(b'{"code":-32603,"message":"m"}' if fails else b'{"action":"accept"}')
                again = talk.adapter.ask_answer_line(ask, is_error=fails, body=body)
                if again:
                    wire = asks[ask]
                    assert wire in open_, "a call that has ended is said again"
                    assert json.loads(again)["params"]["requestState"].startswith("SECRET")
                hear(list(talk.adapter.take_events()))


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=60)
    | st.text(max_size=40).map(str.encode)
    | JSON.map(lambda it: json.dumps(it).encode())
)
def test_no_bytes_raise(data: bytes) -> None:
    talk = StatelessAdapterRig(ASKING)
    talk.fit(tools={"listChanged": True})
    talk.call()
    for around in (
        b"%b",
        b'{"jsonrpc":"2.0","id":1,"result":%b}',
        b'{"jsonrpc":"2.0","id":1,"error":%b}',
        b'{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":%b}}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"-1","progress":%b}}',
        b'{"jsonrpc":"2.0","method":"notifications/resources/updated","params":%b}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%b}}',
    ):
        _, out = talk.adapter.feed([around.replace(b"%b", data)])
        assert all(each.endswith(b"\n") and each.count(b"\n") == 1 for each in out)
