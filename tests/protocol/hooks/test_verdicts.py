"""What a hook is told and says: verdicts that are sound, and everything else."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.hooks import HookCall, allow, deny, rewrite
from carpool_protocol.hooks.verdicts import (
    ARGUMENTS_CAP_BYTES,
    MAX_REASON_CHARS,
    HookDescription,
    HookOutput,
    arguments_of,
    clean_reason,
    has_duplicate_keys,
    is_plain,
    read_verdict,
    with_arguments,
)
from carpool_protocol.ids import RawJson
from tests.behaviours import behaviour

CALL, PROMPT, READ = "tools/call", "prompts/get", "resources/read"
METHODS = st.sampled_from([CALL, PROMPT, READ])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def said(value: Any, method: str = CALL, *, before: bool = True) -> HookOutput:
    return read_verdict(json.dumps(value).encode(), method, before=before)


def test_verdicts_that_functions_make_are_verdicts() -> None:
    encode = msgspec.json.encode
    assert read_verdict(encode(allow()), CALL, before=True) == HookOutput("allow")
    assert read_verdict(encode(deny("no")), CALL, before=False) == HookOutput("deny", "no")
    rewritten = read_verdict(encode(rewrite(arguments={"a": 1})), CALL, before=True)
    assert rewritten == HookOutput("rewrite", body=RawJson(b'{"a":1}'))


@pytest.mark.parametrize(
    ("value", "before"),
    [
        ({}, True),
        ([], True),
        ({"verdict": "perhaps"}, True),
        ({"verdict": "allow", "why": "a typing error"}, True),
        ({"verdict": "allow", "arguments": {}}, True),
        ({"verdict": "deny", "result": {"content": []}}, False),
        ({"verdict": "rewrite"}, True),
        ({"verdict": "rewrite", "result": {"content": []}}, True),
        ({"verdict": "rewrite", "arguments": {}}, False),
        ({"verdict": "rewrite", "arguments": {}, "result": {"content": []}}, True),
        ({"verdict": "rewrite", "arguments": [1]}, True),
        ({"verdict": "rewrite", "arguments": "text"}, True),
        ({"verdict": "rewrite", "arguments": {"a": "x" * ARGUMENTS_CAP_BYTES}}, True),
        ({"verdict": "rewrite", "result": {}}, False),
        ({"verdict": "rewrite", "result": {"content": "text"}}, False),
        ({"verdict": "rewrite", "result": "text"}, False),
    ],
)
def test_what_is_no_sound_verdict_is_a_failure_whose_reason_holds_no_value(value: Any, before: bool) -> None:
    found = said(value, before=before)
    assert found.verdict == "failed"
    assert "typing error" not in found.reason
    assert found.body == b""


def test_a_result_has_the_form_that_its_method_has() -> None:
    for method, member in ((PROMPT, "messages"), (READ, "contents")):
        right = {"verdict": "rewrite", "result": {member: []}}
        assert said(right, method, before=False).verdict == "rewrite"
        wrong = {"verdict": "rewrite", "result": {"content": []}}
        assert said(wrong, method, before=False).verdict == "failed"
    arguments = {"verdict": "rewrite", "arguments": {}}
    assert said(arguments, READ).verdict == "failed", "a URI has been judged already"


@behaviour("lines:no-smuggling")
def test_rewritten_bytes_stay_one_line_for_every_reader() -> None:
    smuggled = b'{"verdict":"rewrite","arguments":{"a":[1,\r{"jsonrpc":"2.0"}\r]}}'
    found = read_verdict(smuggled, CALL, before=True)
    assert found == HookOutput("rewrite", body=RawJson(b'{"a":[1, {"jsonrpc":"2.0"} ]}'))
    bad = b'{"verdict":"rewrite","arguments":{"a":"\xff"}}'
    assert read_verdict(bad, CALL, before=True).verdict == "failed"


@given(raw=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()), method=METHODS)
def test_no_bytes_raise(raw: bytes, method: str) -> None:
    for before in (True, False):
        assert read_verdict(raw, method, before=before).verdict in {"allow", "deny", "rewrite", "failed"}


@given(arguments=st.dictionaries(st.text(max_size=5), JSON, max_size=3))
def test_arguments_come_through_as_they_were_written(arguments: dict[str, Any]) -> None:
    raw = json.dumps({"verdict": "rewrite", "arguments": arguments}).encode()
    found = read_verdict(raw, CALL, before=True)
    if found.verdict == "rewrite":  # half a surrogate pair is passed on by nobody
        assert json.loads(found.body) == arguments
        assert not any(byte < 0x20 for byte in found.body)


def test_a_bomb_of_brackets_is_a_failure() -> None:
    raw = b'{"verdict":"rewrite","arguments":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    assert read_verdict(raw, CALL, before=True).verdict == "failed"


@given(text=st.text())
def test_a_reason_is_one_short_line_of_what_can_be_printed(text: str) -> None:
    clean = clean_reason(text)
    assert len(clean) <= MAX_REASON_CHARS
    assert clean == "" or clean.isprintable()


def test_params_keep_what_is_not_arguments() -> None:
    rest = RawJson(b'{"arguments":{"a":1.0},"x":[1]}')
    assert arguments_of(rest) == b'{"a":1.0}'
    assert json.loads(with_arguments(rest, RawJson(b'{"b":2}'))) == {"arguments": {"b": 2}, "x": [1]}
    assert arguments_of(RawJson(b"")) == arguments_of(RawJson(b'{"arguments":3}')) == b"{}"
    assert with_arguments(RawJson(b"{}"), RawJson(b"{}")) == b'{"arguments":{}}'


@pytest.mark.parametrize(
    ("raw", "twice"),
    [
        (b'{"a":1,"b":{"a":2}}', False),
        (b'{"a":{"x":1,"\\u0078":2}}', True),
        (b'{"a":[{"":1,"":1}]}', True),
        (b'{"a":%b,"b":1e999}' % (b"9" * 5000), False),
        (b'{"\\ud800":1,"\\ud800":2}', True),
    ],
    ids=["once", "spelled", "below", "large", "surrogates"],
)
def test_a_name_that_stands_twice_is_seen_however_deep_and_however_spelled(raw: bytes, twice: bool) -> None:
    assert has_duplicate_keys(raw) is twice


def test_params_are_plain_only_where_each_name_stands_once() -> None:
    assert is_plain(RawJson(b""))
    assert is_plain(RawJson(b'{"arguments":{},"x":1}'))
    assert not is_plain(RawJson(b'{"arguments":{},"\\u0061rguments":{"a":1}}'))
    many = b",".join(b'"k%d":0' % each for each in range(200_000))
    assert not is_plain(RawJson(b'{%b,"arguments":{"a":1}}' % many)), "more than is cut is not told either"


def test_what_is_written_for_a_hook_is_what_a_function_is_given() -> None:
    telling = HookDescription(
        hook="h", phase="after", call="c1", method=CALL, server="s", name="n", session="s1", agent="a",
        profile="p", workspace="/w", outcome="answered",
        arguments=msgspec.Raw(b'{"a":1}'), result=msgspec.Raw(b'{"content":[]}'),
    )  # fmt: skip
    call = msgspec.json.decode(msgspec.json.encode(telling), type=HookCall)
    assert (call.arguments, call.result, call.error) == ({"a": 1}, {"content": []}, None)
    assert set(HookCall.__struct_fields__) == set(HookDescription.__struct_fields__)
