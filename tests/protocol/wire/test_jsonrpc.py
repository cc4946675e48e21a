"""What counts as a message, and that nothing of it is changed on the way."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from carpool_protocol.ids import ABSENT, RawJson
from carpool_protocol.wire import json_scan, jsonrpc
from carpool_protocol.wire.json_scan import fields
from carpool_protocol.wire.jsonrpc import (
    MAX_UNUSUAL_BYTES,
    ErrorAnswer,
    InvalidLine,
    Notification,
    Request,
    ResultAnswer,
    decode,
    quote_name,
)
from tests.behaviours import behaviour

any_text = st.text(st.characters(exclude_categories=()), max_size=12)
"""Half surrogate pairs included."""
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)
json_objects = st.dictionaries(any_text, json_values, max_size=5)
quick = settings(deadline=None, max_examples=150)

TEXTS_IN_JSON = ["\u2028", "\u2029", "\x85", "\x7f", "\U0001f600", "\u00e9"]


def raw(value: Any, *, ascii_only: bool = True) -> bytes:
    return json.dumps(value, ensure_ascii=ascii_only).encode()


def fields_of(message: jsonrpc.Message) -> list[bytes]:
    """Everything undecoded of a message."""
    return [
        value
        for name in ("id", "params", "result", "error")
        if isinstance(value := getattr(message, name, None), bytes)
    ]


# --- the four messages -----------------------------------------------------------------------------------


def test_a_request_keeps_id_and_params_byte_for_byte() -> None:
    line = b'{"jsonrpc":"2.0", "id" : 7 ,"method":"tools/call","params": {"b" :[1, 2],  "a":1.0} }\r\n'
    assert decode(line) == Request(RawJson(b"7"), "tools/call", RawJson(b'{"b" :[1, 2],  "a":1.0}'))


def test_a_message_without_id_is_a_notification() -> None:
    line = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
    assert decode(line) == Notification("notifications/initialized", ABSENT)


def test_an_answer_keeps_its_result_or_error_byte_for_byte() -> None:
    assert decode(b'{"result":{"x": 1e400},"id":"a","jsonrpc":"2.0"}') == ResultAnswer(
        RawJson(b'"a"'), RawJson(b'{"x": 1e400}')
    )
    assert decode(b'{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"no", "z":0}}') == ErrorAnswer(
        RawJson(b"2"), RawJson(b'{"code":-32601,"message":"no", "z":0}')
    )


def test_a_result_may_be_any_value_even_null() -> None:
    for value in (b"null", b'"text"', b"[]", b"0", b"false"):
        assert decode(b'{"jsonrpc":"2.0","id":1,"result":%b}' % value) == ResultAnswer(
            RawJson(b"1"), RawJson(value)
        )


@behaviour("calls:own-ids")
@pytest.mark.parametrize(
    "sent", [b"1", b'"1"', b"1.0", b"1e2", b"-0", b"123456789012345678901234567890", b'""']
)
def test_ids_stay_apart_as_they_were_sent(sent: bytes) -> None:
    message = decode(b'{"jsonrpc":"2.0","id":%b,"method":"ping"}' % sent)
    assert message == Request(RawJson(sent), "ping", ABSENT)


def test_unknown_fields_of_the_message_go_no_further() -> None:
    line = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{},"extra":{"id":2},"auth":"x"}'
    assert decode(line) == Request(RawJson(b"1"), "ping", RawJson(b"{}"))


# --- liberal where harmless ------------------------------------------------------------------------------


def test_params_null_are_no_params() -> None:
    assert decode(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":null}') == Request(
        RawJson(b"1"), "ping", ABSENT
    )


def test_a_null_beside_the_real_answer_is_not_there() -> None:
    good = decode(b'{"jsonrpc":"2.0","id":1,"result":{},"error":null}')
    bad = decode(b'{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":1,"message":"x"}}')
    assert good == ResultAnswer(RawJson(b"1"), RawJson(b"{}"))
    assert bad == ErrorAnswer(RawJson(b"1"), RawJson(b'{"code":1,"message":"x"}'))
    assert decode(b'{"jsonrpc":"2.0","id":1,"result":null,"error":null}') == ResultAnswer(
        RawJson(b"1"), RawJson(b"null")
    )


def test_a_request_with_null_result_and_error_is_a_request() -> None:
    line = b'{"jsonrpc":"2.0","id":1,"method":"ping","result":null,"error":null}'
    assert decode(line) == Request(RawJson(b"1"), "ping", ABSENT)


# --- garbage says whose call it was ----------------------------------------------------------------------

GARBAGE = [
    (b"", "not_json", None, "unknown"),
    (b" \t ", "blank", None, "unknown"),
    (b"Server listening on port 3000", "not_json", None, "unknown"),
    (b'INFO {"jsonrpc":"2.0","id":1,"result":{}}', "not_json", None, "unknown"),
    (b'{"jsonrpc":"2.0","id":5,"result":{"a":[1,2', "not_json", b"5", "answer"),
    (b'{"jsonrpc":"2.0","result":{"a":tru},"id":"x"}', "not_json", b'"x"', "answer"),
    (b'{"jsonrpc":"2.0","method":"m","params":{"a":"\xff"},"id":3}', "not_utf8", b"3", "request"),
    (b'{"jsonrpc":"2.0","id":3,"result":"\xed\xa0\xbd"}', "not_utf8", b"3", "answer"),
    (b'{"jsonrpc":"2.0","id":3,"result":"a\x01b"}', "not_json", b"3", "answer"),
    (b'{"jsonrpc":"2.0","id":3,"method":"m","params":{"a":"x\ty"}}', "not_json", b"3", "request"),
    (b'{"jsonrpc":"2.0","id":4,"result":{"a":NaN}}', "not_json", b"4", "answer"),
    (b'{"jsonrpc":"2.0","id":4,"result":{}} {}', "not_json", b"4", "answer"),
    (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', "batch", None, "unknown"),
    (b' [{"jsonrpc":"2.0","id":1,"method":"ping"}]', "batch", None, "unknown"),
    (b"17", "not_object", None, "unknown"),
    (b'"text"', "not_object", None, "unknown"),
    (b'{"id":6,"method":"ping"}', "bad_version", b"6", "request"),
    (b'{"jsonrpc":"1.0","id":6,"result":{}}', "bad_version", b"6", "answer"),
    (b'{"jsonrpc":2.0,"id":6}', "bad_version", b"6", "unknown"),
    (b'{"jsonrpc":"2.0","id":7,"method":5}', "bad_method", b"7", "request"),
    (b'{"jsonrpc":"2.0","id":7,"method":"a\\ud83d"}', "bad_method", b"7", "request"),
    (b'{"jsonrpc":"2.0","id":8,"method":"m","params":[1]}', "bad_params", b"8", "request"),
    (b'{"jsonrpc":"2.0","id":8,"method":"m","params":"x"}', "bad_params", b"8", "request"),
    (b'{"jsonrpc":"2.0","method":"m","params":3}', "bad_params", None, "request"),
    (b'{"jsonrpc":"2.0","id":null,"method":"m"}', "bad_id", b"null", "request"),
    (b'{"jsonrpc":"2.0","id":true,"method":"m"}', "bad_id", None, "request"),
    (b'{"jsonrpc":"2.0","id":[1],"method":"m"}', "bad_id", None, "request"),
    (b'{"jsonrpc":"2.0","id":{"a":1},"method":"m"}', "bad_id", None, "request"),
    (
        b'{"jsonrpc":"2.0","id":"%b","method":"m"}' % (b"i" * 1023),
        "long_id",
        b'"%b"' % (b"i" * 1023),
        "request",
    ),
    (b'{"jsonrpc":"2.0","id":%b,"method":"m"}' % (b"1" * 1025), "long_id", b"1" * 1025, "request"),
    (b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}', "bad_id", b"null", "answer"),
    (b'{"jsonrpc":"2.0","id":9,"result":{},"error":{"code":1,"message":"x"}}', "bad_answer", b"9", "answer"),
    (b'{"jsonrpc":"2.0","id":9,"error":null}', "bad_answer", b"9", "answer"),
    (b'{"jsonrpc":"2.0","result":{}}', "bad_answer", None, "answer"),
    (b'{"jsonrpc":"2.0","id":9}', "not_message", b"9", "unknown"),
    (b'{"jsonrpc":"2.0","id":9,"method":"m","result":{}}', "ambiguous", b"9", "request"),
]


@pytest.mark.parametrize(("line", "why", "raw_id", "kind"), GARBAGE)
def test_a_broken_line_is_garbage_that_says_why_and_whose(
    line: bytes, why: jsonrpc.InvalidReason, raw_id: bytes | None, kind: str
) -> None:
    found = decode(line)
    assert isinstance(found, InvalidLine)
    assert (found.why, found.id, found.kind) == (why, raw_id, kind)
    assert found.text == jsonrpc.TEXTS[why]


@behaviour("lines:depth-bombs")
def test_a_depth_bomb_is_refused_and_its_call_is_known() -> None:
    line = b'{"jsonrpc":"2.0","result":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b',"id":12}'
    found = decode(line)
    assert isinstance(found, InvalidLine)
    assert (found.why, found.id, found.kind) == ("too_complex", b"12", "answer")


def test_a_message_of_thousands_of_fields_off_the_fast_path_is_refused() -> None:
    many = b",".join(b'"k%d":"\\ud83d"' % n for n in range(json_scan.MAX_MEMBERS + 1))
    found = decode(b'{"jsonrpc":"2.0","id":1,"result":{},%b}' % many)
    assert isinstance(found, InvalidLine)
    assert (found.why, found.id) == ("too_complex", b"1")


# --- doubles ---------------------------------------------------------------------------------------------


def test_of_a_key_that_comes_twice_the_last_counts_on_both_paths() -> None:
    line = (
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":1},"\\u0069d":2,"method":"b","params":{"x":%b}}'
    )
    assert decode(line % b"2") == Request(RawJson(b"2"), "b", RawJson(b'{"x":2}'))
    assert decode(line % b'"\\ud83d"') == Request(RawJson(b"2"), "b", RawJson(b'{"x":"\\ud83d"}'))


def test_a_method_taken_back_with_null_is_taken_back_on_both_paths() -> None:
    line = b'{"jsonrpc":"2.0","id":1,"method":"a","method":null,"result":%b}'
    assert decode(line % b"{}") == ResultAnswer(RawJson(b"1"), RawJson(b"{}"))
    assert decode(line % b'"\\ud83d"') == ResultAnswer(RawJson(b"1"), RawJson(b'"\\ud83d"'))


# --- rule 1: one line for every reader -------------------------------------------------------------------


@behaviour("lines:no-control-bytes")
def test_a_bare_carriage_return_in_arguments_cannot_smuggle_a_line() -> None:
    inner = b'[0,\r{"jsonrpc":"2.0","id":99,"method":"tools/call","params":{"name":"evil"}}\r,\t1]'
    message = decode(
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"x":%b}}}' % inner
    )
    assert isinstance(message, Request)
    assert message.params.find(b"\r") == -1
    assert len(message.params.splitlines()) == 1
    assert message.params == b'{"name":"a","arguments":{"x":%b}}' % inner.replace(b"\r", b" ").replace(
        b"\t", b" "
    )


def test_white_space_becomes_blank_on_the_slow_path_too() -> None:
    message = decode(b'{"jsonrpc":"2.0",\r"id":1,"result":{"a":\t"\\ud83d",\n"b":\r1}}')
    assert message == ResultAnswer(RawJson(b"1"), RawJson(b'{"a": "\\ud83d", "b": 1}'))


@behaviour("lines:no-control-bytes")
@pytest.mark.parametrize("byte", range(0x20))
def test_no_control_byte_comes_out_wherever_it_stood(byte: int) -> None:
    for template in (b'"a%bb"', b"[1,%b2]", b'{"a%b":1}', b'"\\ud83d%b"', b'["\\ud83d",%b1]'):
        message = decode(b'{"jsonrpc":"2.0","id":1,"result":%b}' % (template % bytes([byte])))
        assert isinstance(message, ResultAnswer | InvalidLine)
        assert all(part.translate(None, bytes(range(0x20))) == part for part in fields_of(message))


@pytest.mark.parametrize("text", TEXTS_IN_JSON)
def test_separators_that_are_no_line_end_survive(text: str) -> None:
    value = raw({"a": text}, ascii_only=False)
    assert decode(b'{"jsonrpc":"2.0","id":1,"result":%b}' % value) == ResultAnswer(
        RawJson(b"1"), RawJson(value)
    )


# --- rule 16: legal JSON that msgspec refuses ------------------------------------------------------------

HALF_PAIRS = [
    b'"\\ud83d"',
    b'"\\uDE00 tail"',
    b'"\\ud83d\\ud83d\\ude00"',
    b'{"\\ud83d":"\\\\ud83d \\" \\\\"}',
    b'["\\\\\\ud83d","]}"]',
    b'"\\\\ud83d\\ude00"',
]


@behaviour("lines:lone-surrogates")
@pytest.mark.parametrize("value", HALF_PAIRS)
def test_half_surrogate_pairs_pass_byte_for_byte(value: bytes) -> None:
    assert decode(b'{"jsonrpc":"2.0","result": %b ,"id":1}' % value) == ResultAnswer(
        RawJson(b"1"), RawJson(value)
    )
    request = b'{"jsonrpc":"2.0","id":%b,"params":{"a":%b},"method":"m"}'
    assert decode(request % (b'"\\ud83d"', value)) == Request(
        RawJson(b'"\\ud83d"'), "m", RawJson(b'{"a":%b}' % value)
    )


def test_an_escaped_backslash_before_a_bad_escape_does_not_make_it_legal() -> None:
    for value in (b'"\\\\\\x"', b'"\\ud83d\\x"', b'"\\ud83"', b"\\\\ud83d", b'"\\ud83d", \\\\'):
        assert isinstance(decode(b'{"jsonrpc":"2.0","id":1,"result":%b}' % value), InvalidLine)


# --- writing ---------------------------------------------------------------------------------------------


def test_what_is_written_reads_back() -> None:
    params, one = RawJson(b'{"a":[1, 2]}'), RawJson(b'"1"')
    assert decode(jsonrpc.request_line(one, "m", params)) == Request(one, "m", params)
    assert decode(jsonrpc.request_line(17, "m", ABSENT)) == Request(RawJson(b"17"), "m", ABSENT)
    assert decode(jsonrpc.notification_line("m", params)) == Notification("m", params)
    assert decode(jsonrpc.notification_line("m", ABSENT)) == Notification("m", ABSENT)
    assert decode(jsonrpc.result_line(one, params)) == ResultAnswer(one, params)
    assert decode(jsonrpc.error_body_line(one, params)) == ErrorAnswer(one, params)


def test_our_own_errors_are_whole_error_objects() -> None:
    plain = json.loads(jsonrpc.error_line(RawJson(b"null"), -32700, 'not "JSON"\n'))
    assert plain == {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": 'not "JSON"\n'}}
    with_data = json.loads(jsonrpc.error_line(RawJson(b"1"), 5301, "x", RawJson(b'{"a":1}')))
    assert with_data["error"] == {"code": 5301, "message": "x", "data": {"a": 1}}


@quick
@given(any_text, any_text)
@example('"\n\r\x00', "\ud83d")
def test_any_text_makes_one_line_that_reads_back(method: str, message: str) -> None:
    for line in (
        jsonrpc.request_line(1, method, ABSENT),
        jsonrpc.notification_line(method, ABSENT),
        jsonrpc.error_line(RawJson(b"1"), 1, message),
    ):
        assert line.endswith(b"\n")
        assert len(line.translate(None, bytes(range(0x20)))) == len(line) - 1
        assert not isinstance(decode(line), InvalidLine)
    expected = method.encode(errors="replace").decode()
    assert decode(jsonrpc.notification_line(method, ABSENT)) == Notification(expected, ABSENT)


def test_a_byte_order_mark_before_a_message_is_skipped() -> None:
    line = b'{"jsonrpc":"2.0","id":1,"result":{"a":"\xc3\xa4"}}'
    assert decode(b"\xef\xbb\xbf" + line) == decode(line)


# --- any input -------------------------------------------------------------------------------------------


@quick
@given(json_values, st.booleans())
def test_any_json_survives_as_a_result_byte_for_byte(value: Any, ascii_only: bool) -> None:
    try:
        sent = raw(value, ascii_only=ascii_only)
    except UnicodeEncodeError:  # half a pair can only be sent as an escape
        sent = raw(value)
    assert decode(b'{"jsonrpc":"2.0","id":1,"result":%b}' % sent) == ResultAnswer(
        RawJson(b"1"), RawJson(sent)
    )


@quick
@given(json_objects, any_text | st.integers())
def test_any_object_survives_as_params_byte_for_byte(params: dict[str, Any], call_id: str | int) -> None:
    message = decode(raw({"params": params, "method": "m", "id": call_id, "jsonrpc": "2.0"}))
    assert message == Request(RawJson(raw(call_id)), "m", RawJson(raw(params)))


pieces = st.sampled_from(
    [
        *(
            b'"jsonrpc"',
            b'"2.0"',
            b'"id"',
            b'"method"',
            b'"params"',
            b'"result"',
            b'"error"',
            b"null",
            b"1",
            b"-",
        ),
        *(
            b"{",
            b"}",
            b"[",
            b"]",
            b":",
            b",",
            b'"',
            b"\\",
            b"\\u",
            b"\\ud83d",
            b"\r",
            b"\t",
            b"\x00",
            b"\xff",
            b" ",
        ),
        *(b'{"jsonrpc":"2.0",', b'"id":1', b'"method":"m"', b'"params":{', b'"result":"', b"\xc3\xa9", b"1e"),
    ]
)


@quick
@given(st.binary(max_size=80) | st.lists(pieces, max_size=25).map(b"".join))
def test_no_bytes_raise_and_what_comes_out_is_safe_to_send_on(line: bytes) -> None:
    message = decode(line)
    for part in fields_of(message):
        if part:
            json.loads(part.decode(), parse_constant=pytest.fail)
            assert not any(byte < 0x20 for byte in part)
    if (raw_id := getattr(message, "id", None)) is not None:
        assert json_scan.legal_id(raw_id)


@quick
@given(json_objects, st.data())
def test_a_damaged_line_is_a_value_and_never_an_exception(body: dict[str, Any], data: st.DataObject) -> None:
    line = raw({"jsonrpc": "2.0", "id": 1, "method": "m", "params": body})
    cut = data.draw(st.integers(0, len(line)))
    broken = line[:cut] + data.draw(st.binary(max_size=3)) + line[cut + data.draw(st.integers(0, 3)) :]
    message = decode(broken)
    assert all(not any(byte < 0x20 for byte in part) for part in fields_of(message))


@behaviour("lines:lone-surrogates")
@pytest.mark.parametrize("over", [False, True])
def test_a_line_that_a_strict_reader_refuses_is_read_up_to_a_bound(over: bool) -> None:
    head, tail = b'{"jsonrpc":"2.0","id":7,"result":{"t":"\\ud83d', b'"}}'
    line = head + b"x" * (MAX_UNUSUAL_BYTES - len(head) - len(tail) + over) + tail
    message = decode(line)
    if over:
        assert isinstance(message, InvalidLine)
        assert (message.why, message.id, message.kind) == ("too_long", b"7", "answer")
    else:
        assert isinstance(message, ResultAnswer)


@quick
@given(st.text(st.characters(exclude_categories=())))
def test_a_name_that_is_written_again_is_the_same_and_no_longer(name: str) -> None:
    raw = json.dumps(name, ensure_ascii=False).encode(errors="backslashreplace")
    [read] = fields(b"{%b:1}" % raw) or {}
    written = quote_name(read)
    assert len(written) <= len(raw)
    assert list(fields(b"{%b:1}" % written) or {}) == [read]
