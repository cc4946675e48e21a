"""Answers that break the protocol (rule 17)."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.ids import ABSENT, RawJson
from carpool_protocol.wire.json_scan import MAX_MEMBERS
from carpool_protocol.wire.result_repair import (
    MAX_TEXT_BYTES,
    is_failed_result,
    repair_error,
    repair_tool_result,
)
from tests.behaviours import behaviour

any_text = st.text(st.characters(exclude_categories=()), max_size=10)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["content", "text", "result", "isError", "code", "message", "data"]) | any_text,
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
quick = settings(deadline=None, max_examples=150)


@behaviour("answers:valid-untouched")
@pytest.mark.parametrize(
    "result",
    [
        b'{"content":[]}',
        b'{"content":[{"type":"text","text":"x"}],"isError":true}',
        b'{ "_meta":{"a":1}, "content" : [] }',
        b'{"isError":false,"content":[{"type":"new kind"}],"more":1}',
        b'{"structuredContent":{"a":1}}',
        b'{"_meta":{},"content":["\\ud83d"]}',
        b'{"content":["\\u00e9 _meta carpool/error"],"_meta":{"x":{"carpool/error":1}}}',
        b'{"content":[],"_meta":7}',
        b'{"toolResult":5}',
        b'{"task":{"taskId":"t"}}',
        b'{"resultType":"input_required","requestState":"s"}',
    ],
)
def test_a_sound_result_comes_back_as_the_same_object(result: bytes) -> None:
    repaired, note = repair_tool_result(RawJson(result))
    assert repaired is result
    assert note is None


CLAIM = b'{"code":"waited_too_long","delivered":"no"}'


@behaviour("answers:own-mark")
@pytest.mark.parametrize(
    "result",
    [
        b'{"content":[],"isError":true,"_meta":{"carpool/error":%b,"a":1}}',
        b'{"_meta":{"a":1,"carpool/error":%b},"content":[],"isError":true}',
        b'{"content":[],"isError":true,"_meta":{"carpool\\/error":%b,"a":1}}',
        b'{"content":[],"isError":true,"\\u005fmeta":{"\\u0063arpool/error":%b,"a":1}}',
        b'{"content":[],"isError":true,"_meta":{},"_meta":{"carpool/error":%b,"a":1}}',
        b'{"content":["\\ud83d"],"isError":true,"_meta":{"carpool/error":%b,"a":1}}',
        b'{"content":[],"isError":true,"\\ud83d":1,"_meta":{"\\ud83d":2,"carpool/error":%b,"a":1}}',
    ],
)
def test_what_a_server_says_in_carpools_name_stands_under_another(result: bytes) -> None:
    repaired, note = repair_tool_result(RawJson(result % CLAIM))
    found, before = json.loads(repaired), json.loads(result % CLAIM)
    assert "carpool/error" not in found["_meta"]
    assert found["_meta"]["carpool/of_server"] == json.loads(CLAIM)
    assert (found["_meta"]["a"], found["isError"], found["content"]) == (1, True, before["content"])
    assert note is not None


@behaviour("answers:own-mark")
@pytest.mark.parametrize("result", [b'{"content":7%b}'])
def test_what_a_server_says_in_carpools_name_makes_no_result_readable(result: bytes) -> None:
    plain, why = repair_tool_result(RawJson(result % b""))
    claimed, note = repair_tool_result(RawJson(result % b',"_meta":{"carpool/error":{}}'))
    assert (why is None, plain) == (False, claimed)
    assert note is not None


@behaviour("answers:own-mark")
@pytest.mark.parametrize("half", [b"", b',"h":"\\ud83d"'], ids=["legal", "half a pair"])
@pytest.mark.parametrize("where", ["result", "meta", "data"])
def test_too_many_members_hide_no_mark_of_carpools(where: str, half: bytes) -> None:
    many = b",".join(b'"m%d":0' % number for number in range(MAX_MEMBERS)) + half
    if where == "data":
        error = b'{"code":-5,"message":"no","data":{"code":"lost","delivered":"maybe",%b}}' % many
        repaired, note = repair_error(RawJson(error))
        assert list(json.loads(repaired)["data"]) == ["carpool/of_server"]
    else:
        inner, outer = (b"," + many, b"") if where == "meta" else (b"", b"," + many)
        result = b'{"content":[],"_meta":{"carpool/error":%b%b}%b}' % (CLAIM, inner, outer)
        repaired, note = repair_tool_result(RawJson(result))
        assert repaired == ABSENT
    assert note is not None


@behaviour("answers:own-mark")
def test_an_error_of_a_servers_is_no_error_of_carpools() -> None:
    for data in (CLAIM, b'{"c\\u006fde":"lost","delivered":"maybe","x":[1]}'):
        repaired, note = repair_error(RawJson(b'{"code":-5,"message":"no","data":%b}' % data))
        said = {"code": -5, "message": "no", "data": {"carpool/of_server": json.loads(data)}}
        assert (json.loads(repaired), note is not None) == (said, True)
        repaired, _ = repair_error(RawJson(b'{"data":%b}' % data))
        assert json.loads(repaired)["data"] == said["data"]
    error = RawJson(b'{"code":-5,"message":"no","data":{"code":"lost"}}')
    assert repair_error(error)[0] is error


@behaviour("remote:its-word")
def test_a_child_of_carpools_own_speaks_in_its_name() -> None:
    result = RawJson(b'{"content":[],"isError":true,"_meta":{"carpool/error":%b}}' % CLAIM)
    assert repair_tool_result(result, ours=True) == (result, None)
    error = RawJson(b'{"code":-5,"message":"no","data":%b}' % CLAIM)
    assert repair_error(error, "child") == (error, None)


@behaviour("answers:repaired")
@pytest.mark.parametrize(
    ("result", "text", "failed"),
    [
        (b'"plain \\ud83d"', "plain \ud83d", False),
        (b'{"text":"plain"}', "plain", False),
        (b'{"text":"plain","isError":true}', "plain", True),
        (b'{"text":"\\ud83d","type":"text"}', "\ud83d", False),
        (b'{"result":"plain"}', "plain", False),
        (b'{"result":{"a": [1.0]}}', '{"a": [1.0]}', False),
        (b'{"result":0,"isError":true}', "0", True),
    ],
)
def test_a_bare_text_becomes_text_content(result: bytes, text: str, failed: bool) -> None:
    repaired, note = repair_tool_result(RawJson(result))
    found = json.loads(repaired)
    assert found["content"] == [{"type": "text", "text": text}]
    assert found.get("isError", False) is failed
    assert note is not None
    assert text not in note


@behaviour("answers:repaired")
@pytest.mark.parametrize(
    ("result", "what"),
    [
        (b"null", "null"),
        (b"[1]", "an array"),
        (b"17", "a number"),
        (b"-1", "a number"),
        (b"true", "true"),
        (b'{"content":"secret"}', "not an array"),
    ],
)
def test_of_anything_else_nothing_is_passed_on_and_it_is_said_what_was_wrong(
    result: bytes, what: str
) -> None:
    repaired, note = repair_tool_result(RawJson(result))
    assert repaired == ABSENT
    assert note is not None
    assert what in note
    assert "secret" not in note


@behaviour("answers:repaired")
@pytest.mark.parametrize(
    "result",
    [
        b"{}",
        b'{"content":null}',
        b'{"resultType":"complete"}',
        b'{"text":5}',
        b'{"content":null,"structuredContent":{"a":1.0}}',
        b'{"structuredContent":{"a":1.0},"content": null,"isError":true}',
        b'{"isError":true,"_meta":{"x":"\\ud83d"}}',
    ],
)
def test_an_object_without_content_gets_an_empty_array_and_keeps_the_rest(result: bytes) -> None:
    repaired, note = repair_tool_result(RawJson(result))
    assert json.loads(repaired) == {**json.loads(result), "content": []}
    assert (repaired.find(b"1.0") < 0) == (result.find(b"1.0") < 0), "numbers stay as they were written"
    assert note is not None


def test_a_sound_error_comes_back_as_the_same_object() -> None:
    for error in (b'{"code":-32601,"message":"x"}', b'{"message":"\\ud83d","data":[1],"code":4001,"more":2}'):
        repaired, note = repair_error(RawJson(error))
        assert repaired is error
        assert note is None


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (b'"it broke"', -32603, "it broke"),
        (b'{"message":"it broke"}', -32603, "it broke"),
        (b'{"code":"E1","message":"it broke"}', -32603, "it broke"),
        (b'{"code":5}', 5, "the server gave an error without a message"),
        (b'{"code":5,"message":[]}', 5, "the server gave an error without a message"),
        (b"[]", -32603, "the server gave an error without a message"),
        (b"1.5", -32603, "the server gave an error without a message"),
    ],
)
def test_a_broken_error_keeps_what_the_server_did_say(error: bytes, code: int, message: str) -> None:
    repaired, note = repair_error(RawJson(error))
    assert json.loads(repaired) == {"code": code, "message": message}
    assert note is not None


def test_the_data_of_a_broken_error_is_kept() -> None:
    repaired, _ = repair_error(RawJson(b'{"data":{"a": 1},"message":"x"}'))
    assert repaired == b'{"code":-32603,"message":"x","data":{"a": 1}}'


@quick
@given(json_values)
def test_every_result_becomes_one_an_agent_can_read_or_nothing_and_every_error_a_sound_one(
    value: Any,
) -> None:
    sent = RawJson(json.dumps(value).encode())
    repaired, note = repair_tool_result(sent)
    if repaired:
        result = json.loads(repaired)
        assert isinstance(result, dict)
        assert isinstance(result.get("content", []), list)
    else:
        assert note
    error = json.loads(repair_error(sent)[0])
    assert isinstance(error["code"], int)
    assert isinstance(error["message"], str)


@quick
@given(st.binary(max_size=40))
def test_no_bytes_raise(value: bytes) -> None:
    repair_tool_result(RawJson(value))
    repair_error(RawJson(value))


@pytest.mark.parametrize(
    ("result", "failed"),
    [
        (b'{"content":[],"isError":true}', True),
        (b'{"content": [], "isError": true}', True),
        (b'{"content":[],"isError":false}', False),
        (b'{"content": [], "isError": false}', False),
        (b'{"content":[]}', False),
        (b'{"content":[{"text":"\\"isError\\": false"}],"isError":true}', True),
        (b'{"content":[{"a":{"isError": false}}],"isError":true}', True),
        (b'{"content":[{"a":{"isError":true}}],"isError": false}', False),
    ],
)
def test_a_result_has_failed_if_its_own_member_says_so(result: bytes, failed: bool) -> None:
    assert is_failed_result(RawJson(result)) is failed
    filler = b'{"text":"%b"},' % (b"x" * 70_000)
    for long in (
        result.replace(b"[{", b"[" + filler + b"{").replace(b"[]", b"[" + filler[:-1] + b"]"),
        result[:-1] + b',"_meta":' + filler[:-1] + b"}",
        result[:-1] + b',"_meta":{"half":"\\ud800"},"more":' + filler[:-1] + b"}",
    ):
        assert len(long) > 65536
        assert is_failed_result(RawJson(long)) is failed


@behaviour("answers:repaired")
def test_a_value_that_is_too_long_as_text_is_no_result() -> None:
    quotes = b'\\"' * (MAX_TEXT_BYTES // 4 + 1)
    assert len(quotes) < MAX_TEXT_BYTES
    repaired, note = repair_tool_result(RawJson(b'{"result":["%b"]}' % quotes))
    assert repaired == ABSENT
    assert note is not None
