"""The handshake era towards agents: lines in, events out; effects in, lines out. Source: MCP 2025-11-25."""

import json
import re
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_broker.core.model.effects import AnswerInitialize, Reply, SendProgress, SendResourceUpdated
from carpool_broker.core.model.events import (
    BadLineReceived,
    CallRequested,
    InitializedReceived,
    InitializeRequested,
    ListPageRequested,
    LogLevelRequested,
    PingRequested,
    RequestCancelled,
    RootsListChanged,
    SubscribeRequested,
)
from carpool_broker.era import handshake
from carpool_broker.era.handshake import ControlRequested, UnservableLine
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, RawJson, SessionId
from carpool_protocol.link.messages import Feature
from carpool_protocol.wire.lines import OverlongLine
from tests.behaviours import behaviour

ME = SessionId("s1")


def request(text: bytes) -> handshake.LineMeaning:
    return handshake.read_line(ME, b'{"jsonrpc":"2.0",' + text + b"}")


def test_an_agent_says_when_it_is_ready_and_that_its_roots_are_others() -> None:
    assert request(b'"method":"notifications/initialized"') == InitializedReceived(ME)
    assert request(b'"method":"notifications/roots/list_changed"') == RootsListChanged(ME)


@behaviour("calls:own-ids")
@pytest.mark.parametrize("raw", [b"1", b'"1"', b"1.0", b"1e2", b'"\\u0031"'])
def test_an_id_goes_in_and_comes_out_byte_for_byte(raw: bytes) -> None:
    meaning = request(b'"id":%b,"method":"ping"' % raw)
    assert meaning == PingRequested(ME, RawJson(raw))
    assert handshake.reply_line(Reply(ME, RawJson(raw), is_error=False, body=EMPTY_OBJECT)) == (
        b'{"jsonrpc":"2.0","id":%b,"result":{}}\n' % raw
    )


@behaviour("lines:long-ids")
@pytest.mark.parametrize(
    "call", [b'"method":"ping"', b'"method":"tools/call","params":{"name":"s__t"}'], ids=["ping", "a call"]
)
def test_a_request_with_a_very_long_id_is_refused_in_its_name(call: bytes) -> None:
    longest, longer = (b'"%b"' % (b"i" * size) for size in (1022, 1023))
    assert not isinstance(request(b'"id":%b,%b' % (longest, call)), UnservableLine)
    refused = request(b'"id":%b,%b' % (longer, call))
    assert isinstance(refused, UnservableLine)
    told = json.loads(refused.line)
    assert told["id"] == "i" * 1023
    assert told["error"]["message"] == "the id has more than 1024 bytes"


@behaviour("lines:long-ids")
@pytest.mark.parametrize("method", [b"tools/call", b"prompts/get"])
def test_a_call_with_a_very_long_progress_token_is_refused(method: bytes) -> None:
    call = b'"id":1,"method":"%b","params":{"name":"s__t","_meta":{"progressToken":"%b"}}'
    assert isinstance(request(call % (method, b"p" * 1022)), CallRequested)
    refused = request(call % (method, b"p" * 1023))
    assert isinstance(refused, BadLineReceived)
    assert "at most 1024 bytes" in refused.detail


def test_a_call_is_cut_and_nothing_in_it_is_decoded() -> None:
    meaning = request(
        b'"id":1,"method":"tools/call","params":{"name":"s__t","arguments":{"x":1.0},'
        b'"_meta":{"progressToken":"p","trace":[1.0]}}'
    )
    assert isinstance(meaning, CallRequested)
    assert (meaning.id, meaning.name, meaning.token) == (b"1", "s__t", b'"p"')
    assert b'"x":1.0' in bytes(meaning.rest)
    assert json.loads(meaning.rest) == {"arguments": {"x": 1.0}}
    assert json.loads(meaning.meta) == {"trace": [1.0]}


@behaviour("asks:trace:agents-own")
@pytest.mark.parametrize(
    ("method", "subject"),
    [
        ("tools/call", '"name":"t"'),
        ("prompts/get", '"name":"p"'),
        ("resources/read", '"uri":"u:/"'),
        ("completion/complete", '"ref":{"type":"ref/prompt","name":"p"}'),
    ],
)
def test_a_call_says_the_trace_that_its_agent_works_in(method: str, subject: str) -> None:
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    for said, read in ((trace, trace), ("garbage", "")):
        line = '"id":1,"method":"%s","params":{%s,"_meta":{"progressToken":1,"traceparent":"%s"}}'
        meaning = request((line % (method, subject, said)).encode())
        assert isinstance(meaning, CallRequested)
        assert (meaning.method, meaning.trace) == (method, read)
        assert json.loads(meaning.meta) == {"traceparent": said}, "it is not taken out"


def test_a_call_without_token_and_meta_has_none() -> None:
    meaning = request(b'"id":1,"method":"tools/call","params":{"name":"t"}')
    assert isinstance(meaning, CallRequested)
    assert (meaning.meta, meaning.token) == (ABSENT, ABSENT)


@pytest.mark.parametrize(
    "params", [b"", b',"params":{}', b',"params":{"name":3}', b',"params":{"name":"t","_meta":1}']
)
def test_a_call_with_wrong_params_gets_an_error_under_its_id(params: bytes) -> None:
    meaning = request(b'"id":1,"method":"tools/call"' + params)
    assert isinstance(meaning, BadLineReceived)
    assert (meaning.id, meaning.fault) == (b"1", "bad_params")
    assert re.fullmatch(r"[A-Z_].*[^.]\.", meaning.detail), "a sentence, since it stands behind another one"


def test_initialize_list_cancel_and_control_mean_what_they_say() -> None:
    params = b'{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x"}}'
    assert request(b'"id":1,"method":"initialize","params":' + params) == InitializeRequested(
        ME, RawJson(b"1"), "2025-06-18", "x"
    )
    assert request(b'"id":1,"method":"tools/list"') == ListPageRequested(ME, RawJson(b"1"), None)
    assert request(b'"id":1,"method":"tools/list","params":{"cursor":"c"}') == ListPageRequested(
        ME, RawJson(b"1"), "c"
    )
    assert request(
        b'"method":"notifications/cancelled","params":{"requestId":"1","reason":"r"}'
    ) == RequestCancelled(ME, RawJson(b'"1"'), "r")
    assert isinstance(request(b'"id":1,"method":"carpool/status"'), ControlRequested)
    assert request(b'"id":1,"method":"no/such"') == BadLineReceived(ME, RawJson(b"1"), "unknown_method", "")


def test_unknown_notifications_and_answers_are_dropped() -> None:
    assert request(b'"method":"notifications/of-the-future"') is None
    assert request(b'"method":"notifications/anything"') is None
    assert request(b'"id":1,"result":{}') is None
    assert request(b'"id":1,"error":{"code":1,"message":"m"}') is None
    assert request(b'"method":"notifications/cancelled","params":{}') is None


def test_an_unreadable_line_is_answered_with_its_id_if_one_was_found() -> None:
    nothing = handshake.read_line(ME, b"nonsense")
    assert isinstance(nothing, UnservableLine)
    assert (json.loads(nothing.line)["id"], json.loads(nothing.line)["error"]["code"]) == (None, -32700)
    half = request(b'"id":5,"method":7')
    assert isinstance(half, UnservableLine)
    assert (json.loads(half.line)["id"], json.loads(half.line)["error"]["code"]) == (5, -32600)


def test_an_overlong_request_gets_a_definite_answer_and_an_overlong_answer_none() -> None:
    found = handshake.read_overlong(ME, OverlongLine(id=RawJson(b"7"), is_answer=False, size_bytes=99), 10)
    assert found == BadLineReceived(
        ME, RawJson(b"7"), "too_large", "The line had 99 bytes; carpool reads up to 10."
    )
    assert (
        handshake.read_overlong(ME, OverlongLine(id=RawJson(b"7"), is_answer=True, size_bytes=99), 10) is None
    )
    lost = handshake.read_overlong(ME, OverlongLine(id=None, is_answer=None, size_bytes=99), 10)
    assert isinstance(lost, UnservableLine)
    assert json.loads(lost.line)["id"] is None


def test_the_greeting_names_carpool_and_announces_served_capabilities() -> None:
    features: tuple[Feature, ...] = ("tools", "tools.listChanged", "completions")
    line = handshake.initialize_line(
        AnswerInitialize(ME, RawJson(b'"g"'), "2025-11-25", "Be kind.", features), "1.2"
    )
    result: dict[str, Any] = json.loads(line)["result"]
    assert result["protocolVersion"] == "2025-11-25"
    assert result["capabilities"] == {"tools": {"listChanged": True}, "completions": {}}
    assert result["serverInfo"]["version"] == "1.2"
    assert result["instructions"] == "Be kind."
    old = json.loads(
        handshake.initialize_line(AnswerInitialize(ME, RawJson(b"1"), "2024-11-05", "", features), "1.2")
    )["result"]
    assert set(old["serverInfo"]) == {"name", "version"}
    assert "instructions" not in old


def test_errors_and_progress_are_worded_with_the_agents_own_id_and_token() -> None:
    error = RawJson(b'{"code":-1,"message":"m"}')
    assert (
        json.loads(handshake.reply_line(Reply(ME, RawJson(b"1"), is_error=True, body=error)))["error"]["code"]
        == -1
    )
    line = handshake.progress(SendProgress(ME, RawJson(b'"tok"'), RawJson(b'{"progress":1}')))
    assert json.loads(line)["params"] == {"progressToken": "tok", "progress": 1}


@settings(deadline=None, max_examples=200)
@given(
    st.binary(max_size=80)
    | st.builds(lambda text: b'{"jsonrpc":"2.0","id":1,"method":%b}' % text, st.binary(max_size=20))
)
def test_no_bytes_of_an_agent_raise(line: bytes) -> None:
    handshake.read_line(ME, line.replace(b"\n", b" "))


@behaviour("batches:split")
def test_a_batch_is_its_messages_and_a_refusal_for_whoever_may_not_send_one() -> None:
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    found = handshake.read_line(ME, b"[" + ping + b", " + ping + b"]")
    assert isinstance(found, handshake.LineBatch)
    assert found.lines == [ping, ping]
    assert json.loads(found.refusal)["error"]["code"] == -32600
    assert isinstance(handshake.read_line(ME, b"[%b]" % b",".join([ping] * 1001)), handshake.UnservableLine)


@pytest.mark.parametrize("half", [b"", b'"\\ud83d",'])
def test_of_an_array_with_too_many_messages_none_is_kept(half: bytes) -> None:
    array = b"[%b%b0]" % (half, b"0," * 500_000)
    tracemalloc.start()
    found = handshake.read_line(ME, array)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(found, handshake.UnservableLine)
    assert most_bytes < 8 * len(array)


def test_levels_and_subscriptions_are_read_and_bad_ones_refused() -> None:
    def read(method: str, params: str) -> object:
        return handshake.read_line(
            ME, f'{{"jsonrpc":"2.0","id":7,"method":"{method}","params":{params}}}'.encode()
        )

    assert read("logging/setLevel", '{"level":"info"}') == LogLevelRequested(ME, RawJson(b"7"), "info")
    assert read("logging/setLevel", '{"level":5}') == LogLevelRequested(ME, RawJson(b"7"), "")
    assert read("resources/subscribe", '{"uri":"x:1"}') == SubscribeRequested(
        ME, RawJson(b"7"), "x:1", on=True
    )
    assert read("resources/unsubscribe", '{"uri":"x:1"}') == SubscribeRequested(
        ME, RawJson(b"7"), "x:1", on=False
    )
    assert isinstance(read("resources/subscribe", "{}"), BadLineReceived)


def test_a_change_is_told_under_the_uri_that_the_agent_knows() -> None:
    params = RawJson(b'{"uri":"file:///x","more":1}')
    line = json.loads(
        handshake.resource_updated_line(SendResourceUpdated(ME, "carpool+fs+file:///x", params))
    )
    assert line["method"] == "notifications/resources/updated"
    assert line["params"] == {"uri": "carpool+fs+file:///x", "more": 1}


def test_a_line_of_blanks_means_nothing() -> None:
    assert handshake.read_line(ME, b" \t ") is None
