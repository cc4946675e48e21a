"""The adapter of the handshake era: lines in, events and lines out. Source: MCP 2025-11-25."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.carrier.remote import UNFIT_CODE
from carpool_protocol.ids import ABSENT, CallId, InstanceId, PoolKey, RawJson, SessionId, WireId
from carpool_protocol.link.messages import Call
from carpool_protocol.machine.journal import Journal
from carpool_protocol.wire.json_scan import MAX_PARTS
from carpool_protocol.wire.lines import OverlongLine
from carpool_supervisor.core.model.events import (
    AnswerUnreadable,
    CatalogRead,
    GreetingFailed,
    InstanceGreeted,
    ProbeAnswered,
    ServerAnswered,
    ServerLineRejected,
    ServerProgressed,
    VersionRefused,
)
from carpool_supervisor.core.model.version_offers import VERSIONS
from carpool_supervisor.era.handshake import HandshakeAdapter
from carpool_supervisor.era.stateless import StatelessAdapter
from tests.behaviours import behaviour

ME = InstanceId(1)
SECRET = "5ec2e7"


def line(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


def sent(lines: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(each) for each in lines]


def call(number: int = 1, *, progress: bool = False, method: str = "tools/call") -> Call:
    rest = RawJson(b'{"arguments":{"x":1.0}}')
    return Call(
        CallId(number), PoolKey("s:1"), SessionId("s1"), method, "t", rest, ABSENT, wants_progress=progress
    )


class HandshakeRig:
    """An adapter and the ids of its own requests."""

    def __init__(self, *, bridge: bool = False, version: str = VERSIONS[0]) -> None:
        self.adapter = HandshakeAdapter(
            ME, PoolKey("s:1"), "1.0", bridge=bridge, secret=SECRET, version=version
        )
        self.initialize = json.loads(self.adapter.greeting_line())

    def say(self, *lines: bytes | OverlongLine) -> tuple[list[Any], list[dict[str, Any]]]:
        events, out = self.adapter.feed(list(lines))
        return list(events), sent(out)

    def accept(
        self, version: str = "2025-11-25", **capabilities: Any
    ) -> tuple[list[Any], list[dict[str, Any]]]:
        result = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": {"name": "x"}}
        return self.say(line(id=self.initialize["id"], result=result))

    def fit(self, *tools: str) -> None:
        _, out = self.accept(tools={})
        self.say(line(id=out[1]["id"], result={"tools": [{"name": tool} for tool in tools]}))


def test_the_greeting_is_initialize_initialized_and_all_pages_of_tools() -> None:
    talk = HandshakeRig()
    assert talk.initialize["method"] == "initialize"
    assert talk.initialize["params"]["protocolVersion"] == "2025-11-25"
    assert talk.initialize["params"]["capabilities"] == {}
    events, out = talk.accept(tools={"listChanged": True})
    assert events == []
    assert [message["method"] for message in out] == ["notifications/initialized", "tools/list"]
    tool = {"name": "a", "new": 1, "inputSchema": {"type": "object"}}
    events, out = talk.say(line(id=out[1]["id"], result={"tools": [tool], "nextCursor": "p2"}))
    assert events == []
    assert out[0]["params"] == {"cursor": "p2"}
    (greeted,), _ = talk.say(line(id=out[0]["id"], result={"tools": [{"name": "b"}, {"name": "a"}]}))
    assert isinstance(greeted, InstanceGreeted)
    assert [offer.name for offer in greeted.catalog.tools] == ["a", "b"]
    assert json.loads(greeted.catalog.tools[0].definition) == tool


@behaviour("versions:negotiated-apart")
def test_an_older_version_that_we_know_is_accepted_and_an_unknown_one_is_not() -> None:
    talk = HandshakeRig()
    _, out = talk.accept("2024-11-05", tools={})
    (greeted,), _ = talk.say(line(id=out[-1]["id"], result={"tools": []}))
    assert greeted.catalog.protocol_version == "2024-11-05"
    (failed,), _ = HandshakeRig().accept("1999-01-01")
    assert isinstance(failed, GreetingFailed)


def test_a_version_refused_with_a_list_of_others_is_tried_again_with_one_of_them() -> None:
    talk = HandshakeRig()
    error = {
        "code": -32602,
        "message": "no",
        "data": {"supported": ["2025-03-26"], "requested": "2025-11-25"},
    }
    events, out = talk.say(line(id=talk.initialize["id"], error=error))
    assert events == [VersionRefused(ME, "2025-11-25", "2025-03-26")]
    assert out[0]["params"]["protocolVersion"] == "2025-03-26"


@behaviour("versions:refused")
@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        ({"code": -32602, "message": "Invalid params"}, "2025-06-18"),
        ({"code": -32602, "message": "no", "data": {"expected": "2025-03-26"}}, "2025-03-26"),
        ({"code": -32602, "message": "only 2024-11-05"}, "2024-11-05"),
        ({"code": -32600, "message": "Unsupported protocol version: 2025-11-25"}, "2025-06-18"),
        ({"code": -32000, "message": "bad version", "data": ["2025-06-18", "2024-11-05"]}, "2025-06-18"),
    ],
)
def test_a_version_refused_without_a_list_is_followed_by_one_named_or_the_next_older(
    error: dict[str, Any], wanted: str
) -> None:
    talk = HandshakeRig()
    events, out = talk.say(line(id=talk.initialize["id"], error=error))
    assert events == [VersionRefused(ME, "2025-11-25", wanted)]
    assert out[0]["params"]["protocolVersion"] == wanted


@behaviour("versions:exit")
def test_any_other_refusal_ends_this_greeting_and_names_the_refused_version_for_the_next_one() -> None:
    talk = HandshakeRig(version="2025-06-18")
    assert talk.initialize["params"]["protocolVersion"] == "2025-06-18"
    error = {"code": -32600, "message": "Invalid Request"}
    [refused, failed], out = talk.say(line(id=talk.initialize["id"], error=error))
    assert out == []
    assert refused == VersionRefused(ME, "2025-06-18", "")
    assert isinstance(failed, GreetingFailed)


@behaviour("versions:exit")
def test_an_error_of_carpools_bridge_is_no_refusal_of_a_version() -> None:
    talk = HandshakeRig(bridge=True)
    error = {"code": UNFIT_CODE, "message": "cannot be reached"}
    [failed], _ = talk.say(line(id=talk.initialize["id"], error=error))
    assert isinstance(failed, GreetingFailed)


@behaviour("versions:refused")
def test_each_version_is_offered_once_and_then_the_greeting_has_failed() -> None:
    talk = HandshakeRig()
    offered = []
    request = talk.initialize
    while True:
        offered.append(request["params"]["protocolVersion"])
        events, out = talk.say(line(id=request["id"], error={"code": -32602, "message": "Invalid params"}))
        if not out:
            break
        [request] = out
    assert offered == ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]
    assert [type(event) for event in events] == [VersionRefused, GreetingFailed]


@behaviour("lists:undeclared")
@pytest.mark.parametrize("declared", [{}, {"experimental": {"x": {}}}, {"tools": None}])
def test_a_server_that_declares_nothing_is_asked_for_its_tools(declared: dict[str, Any]) -> None:
    talk = HandshakeRig()
    events, out = talk.accept(**declared)
    assert events == []
    assert [each["method"] for each in out] == ["notifications/initialized", "tools/list"]
    (greeted,), _ = talk.say(line(id=out[1]["id"], result={"tools": [{"name": "a"}]}))
    assert [offer.name for offer in greeted.catalog.tools] == ["a"]
    assert greeted.catalog.features == ["tools"]


@behaviour("lists:undeclared")
def test_a_server_that_declares_only_other_capabilities_is_asked_for_its_tools_last() -> None:
    talk = HandshakeRig()
    _, out = talk.accept(prompts={}, logging={})
    assert out[-1]["method"] == "prompts/list"
    _, out = talk.say(line(id=out[-1]["id"], result={"prompts": [{"name": "p"}]}))
    assert out[-1]["method"] == "tools/list"
    (greeted,), _ = talk.say(line(id=out[-1]["id"], result={"tools": [{"name": "a"}]}))
    assert [offer.name for offer in greeted.catalog.tools] == ["a"]
    assert [offer.name for offer in greeted.catalog.prompts] == ["p"]
    assert greeted.catalog.features == ["tools", "prompts", "logging"]


@behaviour("lists:undeclared")
@pytest.mark.parametrize("how", ["refused", "silent"])
def test_a_server_that_declares_only_other_capabilities_and_has_no_tools_is_asked_once(how: str) -> None:
    talk = HandshakeRig()
    _, out = talk.accept(logging={})
    if how == "refused":
        error = {"code": -32601, "message": "Method not found"}
        events, out = talk.say(line(id=out[-1]["id"], error=error))
    else:
        events, _ = talk.adapter.list_timed_out(3.0)
    [greeted] = events
    assert isinstance(greeted, InstanceGreeted), "nothing is wrong"
    assert greeted.catalog.features == ["logging"]
    assert talk.adapter.relist_line() == b""


@behaviour("lists:undeclared")
@pytest.mark.parametrize("how", ["refused", "silent", "unreadable"])
def test_a_server_that_declares_nothing_and_lists_nothing_serves_with_a_warning(how: str) -> None:
    talk = HandshakeRig()
    _, out = talk.accept()
    assert talk.adapter.open_list_request[1] != "tools/list", "the limit of other lists holds for it"
    if how == "refused":
        events, _ = talk.say(line(id=out[1]["id"], error={"code": -32601, "message": "what?"}))
    elif how == "silent":
        events, _ = talk.adapter.list_timed_out(3.0)
    else:
        events, _ = talk.say(b'{"jsonrpc":"2.0","id":"%b"}' % out[1]["id"].encode())
    [greeted] = [each for each in events if isinstance(each, InstanceGreeted)]
    assert greeted.catalog.features == []
    assert not any(isinstance(each, GreetingFailed) for each in events)
    assert any(getattr(each, "text", "") for each in events), "it is told"


@pytest.mark.parametrize(
    "half",
    [
        '"capabilities":{"tools":{},"\\ud83d":{}}',
        '"capabilities":{"tools":{"\\ud83d":1}}',
        '"capabilities":{"tools":{}},"serverInfo":{"\\ud83d":"\\udc00"}',
        '"capabilities":{"tools":{}},"instructions":"cut \\ud83d"',
        '"capabilities":{"tools":{}},"\\ud83d":1',
    ],
    ids=["name of a capability", "within a capability", "server", "instructions", "unknown member"],
)
def test_a_greeting_with_half_of_a_surrogate_pair_anywhere_is_read(half: str) -> None:
    talk = HandshakeRig()
    id_ = json.dumps(talk.initialize["id"]).encode()
    result = b'{"protocolVersion":"2025-11-25",%b}' % half.encode()
    _, out = talk.say(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id_, result))
    assert [each["method"] for each in out] == ["notifications/initialized", "tools/list"]
    request = out[1]["id"]
    events, _ = talk.say(line(id=request, result={"tools": []}))
    (catalog,) = [each.catalog for each in events if isinstance(each, InstanceGreeted)]
    for text in (catalog.capabilities, catalog.server_info, catalog.instructions.encode()):
        assert b"\\ud83d" not in text, "every reader of it can decode it"


@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"code": -1, "message": "go away"}},
        {"result": {}},
        {"result": []},
        {"result": {"protocolVersion": 3}},
        {"result": {"protocolVersion": "2025-11-25", "capabilities": {"x": [0] * MAX_PARTS}}},
    ],
)
def test_an_unusable_answer_to_initialize_is_a_failed_greeting(answer: dict[str, Any]) -> None:
    talk = HandshakeRig()
    events, _ = talk.say(line(id=talk.initialize["id"], **answer))
    assert [type(event) for event in events if not isinstance(event, VersionRefused)] == [GreetingFailed]


@pytest.mark.parametrize(
    ("bridge", "code", "text"),
    [
        (True, UNFIT_CODE, "cannot reach far.example (why)"),
        (True, -1, "refused initialize: cannot reach far.example (why) (-1)"),
        (False, UNFIT_CODE, f"refused initialize: cannot reach far.example (why) ({UNFIT_CODE})"),
    ],
)
def test_a_bridge_that_reaches_no_server_has_its_own_sentence_for_it(
    bridge: bool, code: int, text: str
) -> None:
    talk = HandshakeRig(bridge=bridge)
    error = {"code": code, "message": "cannot reach far.example (why)"}
    (*_, failed), _ = talk.say(line(id=talk.initialize["id"], error=error))
    assert failed == GreetingFailed(ME, text, "")


def test_a_server_that_refuses_tools_list_has_not_greeted() -> None:
    talk = HandshakeRig()
    _, out = talk.accept(tools={})
    events, _ = talk.say(line(id=out[1]["id"], error={"code": -32603, "message": "later"}))
    assert GreetingFailed in [type(event) for event in events]


def test_pages_that_go_round_in_a_circle_end() -> None:
    talk = HandshakeRig()
    _, out = talk.accept(tools={})
    page = {"tools": [{"name": "a"}], "nextCursor": "again"}
    _, out = talk.say(line(id=out[1]["id"], result=page))
    events, out = talk.say(line(id=out[0]["id"], result=page))
    assert [type(event) for event in events] == [ServerLineRejected, InstanceGreeted]
    assert out == []


def test_a_call_goes_out_under_its_wire_id_with_its_params_untouched() -> None:
    talk = HandshakeRig()
    written = talk.adapter.call_line(WireId(7), call())
    assert b'"arguments":{"x":1.0}' in written
    message = json.loads(written)
    assert (message["id"], message["method"]) == (7, "tools/call")
    assert message["params"]["name"] == "t"
    assert message["params"]["_meta"] == {"progressToken": f"{SECRET}-7"}


@behaviour("progress:asked-for")
@pytest.mark.parametrize("wants", [True, False])
def test_every_call_asks_for_progress_whether_or_not_its_agent_did(wants: bool) -> None:
    for method in ("tools/call", "prompts/get", "resources/read"):
        written = HandshakeRig().adapter.call_line(WireId(7), call(progress=wants, method=method))
        assert json.loads(written)["params"]["_meta"] == {"progressToken": f"{SECRET}-7"}


@behaviour("progress:by-token")
@pytest.mark.parametrize("token", [7, "7", "other-7", f"{SECRET}-", f"{SECRET}-x", f"{SECRET}--7", SECRET])
def test_progress_with_a_token_that_the_server_made_up_is_nobodys(token: object) -> None:
    talk = HandshakeRig()
    talk.fit("t")
    talk.adapter.call_line(WireId(7), call())
    params = {"progressToken": token, "progress": 1}
    assert talk.say(line(method="notifications/progress", params=params)) == ([], [])


@behaviour("progress:by-token")
def test_answers_errors_and_progress_are_known_by_their_wire_id() -> None:
    talk = HandshakeRig()
    talk.fit("t")
    events, out = talk.say(
        b'{"jsonrpc":"2.0","id":7,"result":{"content":[],"x":1.0}}',
        b'{"jsonrpc":"2.0","id":8,"error":{"code":1,"message":"m"}}',
        b'{"jsonrpc":"2.0","id":"9","result":{"content":[]}}',
        line(method="notifications/progress", params={"progressToken": f"{SECRET}-7", "progress": 1}),
    )
    assert out == []
    assert events[:3] == [
        ServerAnswered(ME, WireId(7), is_error=False, body=RawJson(b'{"content":[],"x":1.0}')),
        ServerAnswered(ME, WireId(8), is_error=True, body=RawJson(b'{"code":1,"message":"m"}')),
        ServerAnswered(ME, WireId(9), is_error=False, body=RawJson(b'{"content":[]}')),
    ]
    assert isinstance(events[3], ServerProgressed)
    assert b"progressToken" not in bytes(events[3].params)


@behaviour("remote:its-word")
@pytest.mark.parametrize("make", [HandshakeAdapter, StatelessAdapter])
def test_a_bridge_is_taken_at_its_word_and_no_server_is(make: Any) -> None:
    mark = {"carpool/error": {"code": "lost", "delivered": "maybe"}}
    answers = [
        line(id=1, result={"resultType": "complete", "content": [], "_meta": mark}),
        line(id=2, error={"code": 5400, "message": "m", "data": mark["carpool/error"]}),
    ]
    for bridge in (True, False):
        adapter = make(ME, PoolKey("s:1"), "1.0", bridge=bridge)
        for number in (1, 2):
            adapter.call_line(WireId(number), call(number))
        events, _ = adapter.feed(answers)
        bodies = [bytes(each.body) for each in events if isinstance(each, ServerAnswered)]
        assert [b"carpool/of_server" in each for each in bodies] == [not bridge] * 2
        assert (len(events) == 2) == bridge, "a server's word is noted"


def test_an_answer_without_content_is_repaired_and_noted_only_for_tool_calls() -> None:
    talk = HandshakeRig()
    talk.fit("t")
    talk.adapter.call_line(WireId(1), call())
    talk.adapter.call_line(WireId(2), call(method="prompts/get"))
    events, _ = talk.say(line(id=1, result="plain"), line(id=2, result={"messages": []}))
    assert [type(event) for event in events] == [ServerLineRejected, ServerAnswered, ServerAnswered]
    assert json.loads(events[1].body)["content"][0]["text"] == "plain"
    assert json.loads(events[2].body) == {"messages": []}


@behaviour("ping:answered-here")
def test_a_ping_is_answered_and_any_other_request_is_refused_at_once() -> None:
    talk = HandshakeRig()
    _, out = talk.say(line(id="p", method="ping"), line(id=1, method="roots/list"))
    assert out[0] == {"jsonrpc": "2.0", "id": "p", "result": {}}
    assert out[1]["error"]["code"] == -32601


def test_any_answer_to_our_ping_is_a_sign_of_life() -> None:
    talk = HandshakeRig()
    ping = json.loads(talk.adapter.probe_line(5))
    assert talk.say(line(id=ping["id"], error={"code": -32601, "message": "what"}))[0] == [
        ProbeAnswered(ME, 5)
    ]


def test_a_changed_list_is_read_again_and_a_change_while_reading_once_more() -> None:
    talk = HandshakeRig()
    talk.fit("a")
    changed = line(method="notifications/tools/list_changed")
    _, out = talk.say(changed, changed)
    assert [message["method"] for message in out] == ["tools/list"]
    events, out = talk.say(line(id=out[0]["id"], result={"tools": [{"name": "old"}]}))
    assert events == []
    (read,), _ = talk.say(line(id=out[0]["id"], result={"tools": [{"name": "new"}]}))
    assert isinstance(read, CatalogRead)
    assert [offer.name for offer in read.catalog.tools] == ["new"]


@behaviour("lines:over-the-cap")
def test_an_unreadable_or_overlong_answer_ends_its_call() -> None:
    talk = HandshakeRig()
    talk.fit("t")
    events, _ = talk.say(
        b'{"jsonrpc":"2.0","id":3,"result":{},"error":{}}',
        OverlongLine(id=RawJson(b"4"), is_answer=True, size_bytes=99),
        OverlongLine(id=None, is_answer=None, size_bytes=99),
    )
    assert [(type(e), getattr(e, "wire", None)) for e in events] == [
        (AnswerUnreadable, 3),
        (AnswerUnreadable, 4),
        (ServerLineRejected, None),
    ]


@pytest.mark.parametrize("digits", [19, 400, 5000])
def test_an_unknown_id_of_any_number_of_digits_is_dropped_without_a_crash(digits: int) -> None:
    huge = b"9" * digits
    talk = HandshakeRig()
    talk.fit("t")
    events, _ = talk.say(
        b'{"jsonrpc":"2.0","id":%b,"result":{"content":[]}}' % huge,
        b'{"jsonrpc":"2.0","id":%b,"error":{"code":1,"message":"m"}}' % huge,
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"5ec2e7-%b","progress":1}}'
        % huge,
    )
    assert [type(event) for event in events] == [ServerLineRejected, ServerLineRejected]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "1.0"]) | JSON,
        "id": st.sampled_from([1, "1", "carpool-initialize-1", "carpool-tools-2", "carpool-ping-1"]) | JSON,
        "method": st.sampled_from(["ping", "notifications/progress", "notifications/tools/list_changed"])
        | JSON,
        "params": JSON,
        "result": JSON | st.fixed_dictionaries({"tools": JSON, "protocolVersion": st.just("2025-11-25")}),
        "error": JSON,
    },
)


@settings(deadline=None, max_examples=150)
@given(st.lists(FIELDS.map(json.dumps).map(str.encode) | st.binary(max_size=30), max_size=6))
def test_whatever_a_server_writes_nothing_raises_and_what_goes_back_is_json(lines: list[bytes]) -> None:
    talk = HandshakeRig()
    talk.say(*[each.replace(b"\n", b" ") for each in lines])
    talk.accept(tools={})
    talk.say(*[each.replace(b"\n", b" ") for each in lines])


@behaviour("private:no-secret-is-told")
def test_a_journal_keeps_nothing_of_what_a_server_answers_or_says() -> None:
    secret = "hunter2-hunter2"
    talk = HandshakeRig()
    talk.fit("t")
    for number in (1, 2, 3):
        talk.adapter.call_line(WireId(number), call(number, progress=True))
    ask = {"id": 9, "method": "sampling/createMessage", "params": {"messages": [secret], "maxTokens": 1}}
    said: list[dict[str, Any]] = [
        {
            "method": "notifications/progress",
            "params": {"progressToken": f"{SECRET}-1", "progress": 1, "message": secret},
        },
        {"method": "notifications/message", "params": {"level": "info", "data": secret}},
        ask,
        {"method": "notifications/cancelled", "params": {"requestId": 9, "reason": secret}},
        {"id": 1, "result": {"content": [{"type": "text", "text": secret}]}},
        {"id": 2, "error": {"code": -1, "message": secret}},
        {"id": 3, "result": [secret]},
        {"id": 99, "result": {"x": secret}},
        {"method": ["no method", secret]},
    ]
    journal = Journal()
    for each in said:
        events, _ = talk.say(line(**each))
        for event in events:
            journal.record(1.0, event, [event])
    assert len(journal) >= len(said) - 2  # the question, and that it is taken back, are not for agents here
    assert secret not in journal.dump().decode()
