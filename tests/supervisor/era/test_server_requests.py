"""Asks of a server as its adapter reads them. Source: MCP 2025-11-25, client/*, basic/utilities/tasks."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.ids import ABSENT, InstanceId, PoolKey, RawJson, WireId
from carpool_protocol.link.messages import Root
from carpool_protocol.wire.lines import OverlongLine
from carpool_supervisor.core.model.events import (
    ElicitationCompleted,
    ServerAnswered,
    ServerAsked,
    ServerCancelledAsk,
    ServerLineRejected,
    UrlElicitationRequired,
)
from carpool_supervisor.core.model.trace_context import LIFE_BYTES, mint, next_hop
from carpool_supervisor.era.handshake import HandshakeAdapter
from carpool_supervisor.era.server_requests import (
    MAX_ELICITATION_CHARS,
    MAX_RELATED_BYTES,
    NOTHING,
    Declared,
    roots_result,
    with_task,
)
from tests.behaviours import behaviour

ME = InstanceId(1)
LIFE = b"L" * LIFE_BYTES
ASKING = Declared(asking=True, life=LIFE)
RELATED = "io.modelcontextprotocol/related-task"
SAMPLING = b'"messages":[{"role":"user","content":{"type":"text","text":"1.0"}}],"maxTokens":1e2'


def adapter(declared: Declared = ASKING) -> HandshakeAdapter:
    return HandshakeAdapter(ME, PoolKey("s:1"), "1.0", declared)


def ask(params: bytes, *, id_: bytes = b"1", method: bytes = b"sampling/createMessage") -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"method":"%b","params":%b}' % (id_, method, params)


def asked(line: bytes, declared: Declared = ASKING) -> ServerAsked:
    [event], out = adapter(declared).feed([line])
    assert out == []
    assert isinstance(event, ServerAsked)
    return event


def refusal(line: bytes, declared: Declared = ASKING) -> int:
    events, [out] = adapter(declared).feed([line])
    assert events == []
    code: int = json.loads(out)["error"]["code"]
    return code


# --- what is declared ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "capabilities"),
    [
        (NOTHING, {}),
        (ASKING, {"sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}}),
        (Declared(roots=()), {"roots": {}}),
        (
            Declared(asking=True, roots=(Root("file:///w"),)),
            {"sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}, "roots": {}},
        ),
    ],
)
@behaviour("roots:declared-where-configured")
def test_a_server_is_told_what_its_class_and_its_configuration_say_and_no_more(
    declared: Declared, capabilities: dict[str, Any]
) -> None:
    assert json.loads(adapter(declared).greeting_line())["params"]["capabilities"] == capabilities


def test_the_same_is_declared_when_a_server_wants_another_version() -> None:
    one = adapter(Declared(asking=True, roots=()))
    hello = json.loads(one.greeting_line())
    error = {"code": -32602, "message": "no", "data": {"supported": ["2025-03-26"]}}
    _, [again] = one.feed([json.dumps({"jsonrpc": "2.0", "id": hello["id"], "error": error}).encode()])
    assert json.loads(again)["params"]["capabilities"] == hello["params"]["capabilities"]


# --- roots -----------------------------------------------------------------------------------------------


@behaviour("roots:declared-where-configured")
def test_roots_are_answered_here_before_the_greeting_is_over_and_outside_any_call() -> None:
    one = adapter(
        Declared(roots=(Root("file:///home/u/my%20work/"), Root("file:///x", "Mine"), Root("file:///")))
    )
    one.greeting_line()
    events, [out] = one.feed([b'{"jsonrpc":"2.0","id":"r\\u0000","method":"roots/list"}'])
    assert events == []
    assert b'"id":"r\\u0000"' in out
    assert json.loads(out)["result"] == {
        "roots": [
            {"uri": "file:///home/u/my%20work/", "name": "my work"},
            {"uri": "file:///x", "name": "Mine"},
            {"uri": "file:///"},
        ]
    }


def test_no_roots_is_an_answer_and_not_declared_is_a_refusal() -> None:
    _, [out] = adapter(Declared(roots=())).feed([ask(b"{}", method=b"roots/list")])
    assert json.loads(out)["result"] == {"roots": []}
    assert refusal(ask(b"{}", method=b"roots/list")) == -32601


def test_a_root_that_is_no_uri_breaks_nothing() -> None:
    assert json.loads(roots_result([Root("http://["), Root("x")])) == {
        "roots": [{"uri": "http://["}, {"uri": "x", "name": "x"}]
    }


# --- asks ------------------------------------------------------------------------------------------------


@behaviour("classes:declared")
@pytest.mark.parametrize("method", [b"sampling/createMessage", b"elicitation/create"])
def test_a_server_that_was_told_of_no_agents_is_refused_at_once(method: bytes) -> None:
    assert refusal(ask(b"{%b}" % SAMPLING, method=method), Declared(roots=())) == -32601


@pytest.mark.parametrize("method", [b"tasks/get", b"tasks/result", b"tools/list", b"Sampling/createMessage"])
@behaviour("asks:never-left-waiting")
def test_a_request_that_no_agent_can_answer_is_refused_at_once(method: bytes) -> None:
    assert refusal(ask(b'{"taskId":"t"}', method=method)) == -32601


@behaviour("asks:ids:hostile")
@pytest.mark.parametrize(
    "raw",
    [b"1", b"1.0", b"-0", b'"1"', b'"\\u0031"', b'"carpool-ping-1"', b'"\\ud83d"', b"9" * 1000, b"1e999"],
)
def test_the_servers_own_id_comes_back_byte_for_byte_whatever_it_looks_like(raw: bytes) -> None:
    one = adapter()
    [event], _ = one.feed([ask(b"{%b}" % SAMPLING, id_=raw)])
    assert isinstance(event, ServerAsked)
    assert event.id == raw
    assert one.ask_answer_line(event.id, is_error=False, body=RawJson(b'{"x":1.0}')) == (
        b'{"jsonrpc":"2.0","id":%b,"result":{"x":1.0}}\n' % raw
    )
    error = RawJson(b'{"code":-1,"message":"no"}')
    assert one.ask_answer_line(event.id, is_error=True, body=error) == (
        b'{"jsonrpc":"2.0","id":%b,"error":{"code":-1,"message":"no"}}\n' % raw
    )


def test_a_question_passes_byte_for_byte_without_its_token_and_its_task() -> None:
    meta = b'{"progressToken": "p" , "%b":{"taskId":"T"},"x":1.0}' % RELATED.encode()
    event = asked(ask(b'{%b,"_meta":%b, "new":12345678901234567890123}' % (SAMPLING, meta)))
    assert event.params == b'{%b,"new":12345678901234567890123,"_meta":{"x":1.0}}' % SAMPLING
    assert event.token == b'"p"'
    assert event.facts.related_task == "T"
    assert event.facts.method == "sampling/createMessage"


@pytest.mark.parametrize(
    "meta", [b"null", b"{}", b'{"progressToken":7}', b'{"%b":{"taskId":"T"}}' % RELATED.encode()]
)
def test_a_meta_with_nothing_left_in_it_is_left_out(meta: bytes) -> None:
    assert asked(ask(b'{%b,"_meta":%b}' % (SAMPLING, meta))).params == b"{%b}" % SAMPLING


def test_carpools_own_trace_context_is_recognised_and_a_foreign_one_is_not() -> None:
    for life, ours in ((LIFE, True), (b"M" * LIFE_BYTES, False)):
        meta = b'{"traceparent":"%b"}' % mint(life, 5).encode()
        facts = asked(ask(b'{%b,"_meta":%b}' % (SAMPLING, meta))).facts
        assert facts.trace is not None
        assert facts.ours is ours


def test_an_agent_sees_its_own_trace_and_none_that_carpool_began() -> None:
    minted = b'{"traceparent":"%b","x":1}' % mint(LIFE, 5).encode()
    assert asked(ask(b'{%b,"_meta":%b}' % (SAMPLING, minted))).params == b'{%b,"_meta":{"x":1}}' % SAMPLING
    theirs = f"00-{'a' * 32}-{'b' * 16}-01"
    hopped = b'{"traceparent":"%b"}' % next_hop(theirs, LIFE, 5)[0].encode()
    assert asked(ask(b'{%b,"_meta":%b}' % (SAMPLING, hopped))).params == b'{%b,"_meta":%b}' % (
        SAMPLING,
        hopped,
    )


def test_a_refused_second_use_of_an_id_leaves_the_first_question_its_task() -> None:
    one = adapter()
    meta = b'{%b,"_meta":{"%b":{"taskId":"K"}}}' % (SAMPLING, RELATED.encode())
    for _ in range(2):
        one.feed([ask(meta)])
    one.ask_answer_line(RawJson(b"1"), is_error=True, body=RawJson(b'{"code":-32600,"message":"twice"}'))
    line = one.ask_answer_line(RawJson(b"1"), is_error=False, body=RawJson(b"{}"))
    assert json.loads(line)["result"]["_meta"] == {RELATED: {"taskId": "K"}}


def test_the_last_of_doubled_keys_counts_for_carpool_and_for_the_agent() -> None:
    meta = b'{"%b":{"taskId":"A"},"%b":{"taskId":"B"}}' % ((RELATED.encode(),) * 2)
    event = asked(ask(b'{"maxTokens":1,"_meta":{"progressToken":1},"maxTokens":2,"_meta":%b}' % meta))
    assert event.params == b'{"maxTokens":2}'
    assert (event.facts.related_task, event.token) == ("B", ABSENT)


def test_control_bytes_between_tokens_do_not_pass() -> None:
    event = asked(ask(b'{"maxTokens":\t[1,\r\n2]}'))
    assert event.params == b'{"maxTokens":[1,  2]}'


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage"}',
        ask(b'{"_meta":7}'),
        ask(b'{"_meta":{"progressToken":{}}}'),
        ask(b'{"_META":{"progressToken":1}}'),
        ask(b'{"_meta":{"progresstoken":1}}'),
    ],
)
@behaviour("asks:never-left-waiting")
def test_params_that_cannot_be_read_are_the_servers_fault_at_once(line: bytes) -> None:
    assert refusal(line) == -32602


@behaviour("asks:never-left-waiting")
def test_an_ask_above_the_line_limit_is_refused_under_its_id() -> None:
    events, [out] = adapter().feed([OverlongLine(id=RawJson(b'"big"'), is_answer=False, size_bytes=99)])
    assert [type(event) for event in events] == [ServerLineRejected]
    answer = json.loads(out)
    assert (answer["id"], answer["error"]["code"]) == ("big", -32600)


@pytest.mark.parametrize(
    ("params", "elicitation"),
    [
        (b'{"mode":"url","elicitationId":"e\\u0031","url":"https://x"}', "e1"),
        (b'{"mode":"url","elicitationId":7}', ""),
        (b'{"mode":"form","elicitationId":"e1"}', ""),
        (b'{"elicitationId":"e1"}', ""),
    ],
)
@behaviour("asks:elicitation:completion")
def test_the_elicitation_id_counts_in_url_mode_only(params: bytes, elicitation: str) -> None:
    assert asked(ask(params, method=b"elicitation/create")).elicitation == elicitation


@pytest.mark.parametrize(
    ("method", "params", "needs"),
    [
        (b"sampling/createMessage", b"{%b}" % SAMPLING, ("sampling",)),
        (
            b"sampling/createMessage",
            b'{%b,"tools":[{"name":"t"}]}' % SAMPLING,
            ("sampling", "sampling.tools"),
        ),
        (b"elicitation/create", b'{"message":"?","_meta":{"mode":"url"}}', ("elicitation.form",)),
        (b"elicitation/create", b'{"mode":"url","url":"https://x"}', ("elicitation.url",)),
    ],
)
@behaviour("asks:capability:lacking")
def test_a_question_says_what_its_agent_must_have_declared(
    method: bytes, params: bytes, needs: tuple[str, ...]
) -> None:
    assert asked(ask(params, method=method)).needs == needs


@behaviour("asks:never-left-waiting")
def test_a_mode_of_elicitation_that_no_server_was_told_of_is_refused_at_once() -> None:
    assert refusal(ask(b'{"mode":"telepathy","message":"?"}', method=b"elicitation/create")) == -32602


def test_progress_of_an_ask_carries_the_servers_own_token() -> None:
    line = adapter().ask_progress_line(RawJson(b'"p\\u0001"'), RawJson(b'{"progress":1.0}'))
    assert line == (
        b'{"jsonrpc":"2.0","method":"notifications/progress",'
        b'"params":{"progressToken":"p\\u0001","progress":1.0}}\n'
    )


# --- what follows a question -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "meta"),
    [
        (b'{"action":"accept"}', {}),
        (b'{"_meta":null,"action":"accept"}', {}),
        (b'{"action":"accept","_meta":{}}', {}),
        (b'{"action":"accept","_meta":{"x":1}}', {"x": 1}),
        (b'{"action":"accept","_meta":{"%b":{"taskId":"other"},"x":1}}' % RELATED.encode(), {"x": 1}),
    ],
)
def test_the_answer_to_a_question_of_a_task_names_the_task(answer: bytes, meta: dict[str, int]) -> None:
    one = adapter()
    one.feed([ask(b'{"_meta":{"%b":{"taskId":"T"}}}' % RELATED.encode(), id_=b'"a"')])
    said = json.loads(one.ask_answer_line(RawJson(b'"a"'), is_error=False, body=RawJson(answer)))["result"]
    assert said == {"action": "accept", "_meta": {RELATED: {"taskId": "T"}, **meta}}
    again = one.ask_answer_line(RawJson(b'"a"'), is_error=False, body=RawJson(b"{}"))
    assert json.loads(again)["result"] == {}, "the id may be used again, for another question"


@pytest.mark.parametrize("body", [b"null", b'"x"', b"[1]", b"7"])
def test_an_answer_that_is_no_object_is_left_as_it_is(body: bytes) -> None:
    assert with_task(RawJson(body), b'{"taskId":"T"}') == body


@pytest.mark.parametrize("raw", [b"1", b'"1"', b"1.0", b'"carpool-ping-1"'])
@behaviour("asks:withdrawn:by-server")
def test_a_withdrawn_question_is_named_by_the_servers_own_id(raw: bytes) -> None:
    line = (
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%b,"reason":"r"}}' % raw
    )
    assert adapter().feed([line]) == ([ServerCancelledAsk(ME, RawJson(raw), "r")], [])
    assert adapter(NOTHING).feed([line]) == ([], [])


@pytest.mark.parametrize("params", [b"{}", b'{"requestId":null}', b'{"requestId":[1]}', b'{"reason":"r"}'])
def test_a_cancel_that_names_nothing_is_passed_over(params: bytes) -> None:
    line = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":%b}' % params
    assert adapter().feed([line]) == ([], [])
    assert adapter().feed([b'{"jsonrpc":"2.0","method":"notifications/cancelled"}']) == ([], [])


@behaviour("asks:elicitation:completion")
def test_the_end_of_an_elicitation_is_told_with_all_the_server_said() -> None:
    begin = b'{"jsonrpc":"2.0","method":"notifications/elicitation/complete"'
    params = b'{"elicitationId":"e1","x":1.0}'
    told = ElicitationCompleted(ME, "e1", RawJson(params))
    assert adapter().feed([begin + b',"params":%b}' % params]) == ([told], [])
    for odd in (b"}", b',"params":{}}', b',"params":{"elicitationId":1}}'):
        assert adapter().feed([begin + odd]) == ([], [])


@behaviour("asks:elicitation:32042")
def test_an_error_that_sends_to_urls_first_names_them_before_the_answer() -> None:
    entries = b'[{"mode":"url","elicitationId":"a","url":"u"},7,{"elicitationId":3},{"elicitationId":"b"}]'
    error = b'{"code":-32042,"message":"m","data":{"elicitations":%b}}' % entries
    events, _ = adapter().feed([b'{"jsonrpc":"2.0","id":5,"error":%b}' % error])
    assert events == [
        UrlElicitationRequired(
            ME,
            WireId(5),
            ("a", "b"),
            (RawJson(b'{"mode":"url","elicitationId":"a","url":"u"}'), RawJson(b'{"elicitationId":"b"}')),
        ),
        ServerAnswered(ME, WireId(5), is_error=True, body=RawJson(error)),
    ]


@pytest.mark.parametrize(
    "error",
    [
        b'{"code":-1,"message":"-32042","data":{"elicitations":[{"elicitationId":"a"}]}}',
        b'{"code":-32042,"message":"m"}',
        b'{"code":-32042,"message":"m","data":[]}',
        b'{"code":-32042,"message":"m","data":{"elicitations":{"elicitationId":"a"}}}',
        b'{"code":-32042,"message":"m","data":{"elicitations":[]}}',
    ],
)
def test_an_error_without_urls_is_an_error_only(error: bytes) -> None:
    events, _ = adapter().feed([b'{"jsonrpc":"2.0","id":5,"error":%b}' % error])
    assert [type(event) for event in events] == [ServerAnswered]


# --- anything --------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("\ud83d"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
META = st.dictionaries(st.sampled_from(["progressToken", "traceparent", RELATED, "x"]), JSON, max_size=4)
PARAMS = st.dictionaries(
    st.sampled_from(["mode", "elicitationId", "messages", "requestId", "reason", "_meta"]), JSON, max_size=4
) | META.map(lambda meta: {"_meta": meta, "messages": [1.0]})
METHODS = [
    "sampling/createMessage",
    "elicitation/create",
    "roots/list",
    "tasks/get",
    "notifications/cancelled",
    "notifications/elicitation/complete",
    "notifications/tasks/status",
]


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(METHODS), PARAMS | JSON, st.none() | st.integers() | st.text(max_size=5))
def test_every_request_is_asked_on_or_answered_once_and_nothing_raises(
    method: str, params: Any, number: Any
) -> None:
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    if number is not None:
        message["id"] = number
    line = json.dumps(message).encode()
    if b"NaN" in line or b"Infinity" in line:
        return
    one = adapter(Declared(asking=True, roots=(Root("file:///w"),), life=LIFE))
    events, out = one.feed([line])
    asks = [event for event in events if isinstance(event, ServerAsked)]
    if number is None:
        assert out == []
        assert asks == []
        return
    assert len(asks) + len(out) == 1
    for event in asks:
        told = json.loads(event.params)
        meta = told.pop("_meta", {"something": "is left"})
        assert meta
        assert not {"progressToken", RELATED} & meta.keys()
        assert told == {key: value for key, value in params.items() if key != "_meta"}
        out.append(one.ask_answer_line(event.id, is_error=False, body=RawJson(b"{}")))
    assert json.loads(out[0])["id"] == number


@behaviour("catalogs:bounded")
def test_no_id_of_a_server_that_is_kept_is_longer_than_a_limit() -> None:
    url = b'{"mode":"url","message":"m","url":"https://x","elicitationId":"%b"}'
    related = b'{%b,"_meta":{"' + RELATED.encode() + b'":{"taskId":"%b"}}}'
    most = b"i" * MAX_ELICITATION_CHARS
    assert asked(ask(url % most, method=b"elicitation/create")).elicitation == most.decode()
    assert refusal(ask(url % (most + b"i"), method=b"elicitation/create")) == -32602
    assert asked(ask(related % (SAMPLING, b"t" * 1024))).facts.related_task == "t" * 1024
    assert refusal(ask(related % (SAMPLING, b"t" * MAX_RELATED_BYTES))) == -32602


def test_an_error_that_sends_its_agent_to_urls_passes_without_overlong_ids() -> None:
    entries = b'{"elicitationId":"%b"},{"elicitationId":"b"}' % (b"i" * (MAX_ELICITATION_CHARS + 1))
    error = b'{"code":-32042,"message":"m","data":{"elicitations":[%b]}}' % entries
    events, _ = adapter().feed([b'{"jsonrpc":"2.0","id":5,"error":%b}' % error])
    urls, answered = events
    assert isinstance(urls, UrlElicitationRequired)
    assert urls.elicitations == ("b",)
    assert isinstance(answered, ServerAnswered)
    assert answered.body == error
