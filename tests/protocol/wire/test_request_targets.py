"""The subject of a request: taken out, put back in another spelling, all else byte for byte."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, RawJson
from carpool_protocol.wire.params import ParamsError
from carpool_protocol.wire.request_targets import TARGET_KEYS, RequestTarget, split_target, with_target
from tests.behaviours import behaviour

KEYS = {"name", "uri", "ref", "_meta", "arguments", "meta", "argument", "context"}
METHODS = st.sampled_from(sorted(TARGET_KEYS))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
strangers = st.dictionaries(
    st.text(max_size=8).filter(lambda it: it.casefold() not in KEYS), values, max_size=4
)


def raw(value: Any, *, ascii_only: bool = False) -> RawJson:
    return RawJson(json.dumps(value, ensure_ascii=ascii_only).encode())


def split(method: str, params: RawJson) -> RequestTarget:
    found = split_target(method, params)
    assert isinstance(found, RequestTarget), found
    return found


def test_a_prompt_is_taken_apart() -> None:
    params = b'{"_meta":{"progressToken":7,"x":1.0},"name":"a\\u00e9","arguments":{"b":1.50,"b":"\\u00e9"}}'
    assert split("prompts/get", RawJson(params)) == RequestTarget(
        "aé", RawJson(b'{"arguments":{"b":1.50,"b":"\\u00e9"}}'), RawJson(b'{"x":1.0}'), RawJson(b"7")
    )


def test_a_resource_is_taken_apart() -> None:
    assert split("resources/read", RawJson(b'{"uri":"file:///x"}')) == RequestTarget(
        "file:///x", EMPTY_OBJECT, ABSENT, ABSENT
    )


def test_a_reference_stays_the_json_it_was() -> None:
    ref = b'{"type":"ref/prompt", "name":"\\u0061", "title":null}'
    params = b'{"ref":%b,"argument":{"name":"n","value":"v"},"context":{"arguments":{}}}' % ref
    found = split("completion/complete", RawJson(params))
    assert found.text == ref.decode()
    assert found.rest == b'{"argument":{"name":"n","value":"v"},"context":{"arguments":{}}}'


@pytest.mark.parametrize("method", sorted(TARGET_KEYS))
@pytest.mark.parametrize(
    "params", ["", "{}", "[]", '{"name":null,"uri":7,"ref":"ref/prompt"}', '{"_meta":7}']
)
def test_params_without_a_subject_are_refused_in_words_about_their_form(method: str, params: str) -> None:
    found = split_target(method, RawJson(params.encode()))
    assert isinstance(found, ParamsError)
    assert found.text


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("prompts/get", '{"name":"a","Name":"b"}'),
        ("prompts/get", '{"name":"a","_META":{}}'),
        ("resources/read", '{"uri":"a","URI":"b"}'),
        (
            "completion/complete",
            '{"ref":{"type":"ref/prompt","name":"a"},"Ref":{"type":"ref/prompt","name":"b"}}',
        ),
    ],
)
def test_a_second_subject_for_readers_that_ignore_case_is_refused(method: str, params: str) -> None:
    assert isinstance(split_target(method, RawJson(params.encode())), ParamsError)


@behaviour("names:reference")
@pytest.mark.parametrize("key", ["Name", "NAME", "n\\u0041me", "Type", "Uri", "URI"])
@pytest.mark.parametrize("kind", ["prompt", "resource"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_second_subject_within_a_reference_is_refused_too(key: str, kind: str, is_first: bool) -> None:
    own = "name" if kind == "prompt" else "uri"
    plain = f'"type":"ref/{kind}","{own}":"open"'
    other = f'"{key}":"secret"'
    ref = ",".join([other, plain] if is_first else [plain, other])
    found = split_target("completion/complete", RawJson(b'{"ref":{%b}}' % ref.encode()))
    assert isinstance(found, ParamsError)
    assert "secret" not in found.text


def test_a_reference_with_one_member_twice_is_written_anew_with_the_last_of_them() -> None:
    params = RawJson(b'{"ref":{"type":"ref/prompt","name":"seen","name":"meant"}}')
    assert split("completion/complete", params).text == '{"type":"ref/prompt","name":"meant"}'


@pytest.mark.parametrize(
    "ref",
    [
        '{"type":"ref/prompt","name":"p"}',
        '{"type":"ref/prompt","name":"p","x":[\n{"jsonrpc":"2.0","id":1,"method":"tools/call"}\n]}',
        '{"type":"ref/prompt","name":"p"},"ref":{"type":"ref/prompt","name":"q"}',
    ],
)
def test_a_string_that_reads_like_a_reference_is_none(ref: str) -> None:
    """Put back as it reads, it would end the line and smuggle another message to the server."""
    assert isinstance(split_target("completion/complete", raw({"ref": ref})), ParamsError)


def test_a_subject_that_comes_twice_leaves_once() -> None:
    found = split("prompts/get", RawJson(b'{"name":"seen","x":1,"name":"meant"}'))
    assert found.text == "meant"
    assert with_target("prompts/get", "own", found.rest) == b'{"name":"own","x":1}'


@pytest.mark.parametrize("name", ['"\\ud83d"', '"a\\ud83db"'])
def test_half_a_surrogate_pair_is_no_name(name: str) -> None:
    params = RawJson(b'{"name":%b,"uri":%b}' % (name.encode(), name.encode()))
    for method in ("prompts/get", "resources/read"):
        assert isinstance(split_target(method, params), ParamsError)


def test_half_a_surrogate_pair_beside_the_subject_goes_through() -> None:
    params = b'{"uri":"a:b","x":"\\ud83d","k\\u00e9":2}'
    found = split("resources/read", RawJson(params))
    written = with_target("resources/read", "c:d", found.rest)
    assert written.count(b'"x":"\\ud83d"') == 1
    assert json.loads(written) == {"uri": "c:d", "x": "\ud83d", "ké": 2}


def test_two_members_whose_names_hold_half_pairs_stay_two_or_none() -> None:
    found = split("resources/read", RawJson(b'{"uri":"a:b","\\ud83d":1,"?":2}'))
    assert json.loads(found.rest).get("?") == 2


def test_another_method_has_no_subject() -> None:
    assert with_target("tools/call", "t", RawJson(b'{"x":1}')) == b'{"x":1}'


@settings(deadline=None, max_examples=150)
@given(METHODS, st.text(), st.text(), strangers, st.booleans())
def test_what_is_put_back_says_the_other_subject_and_all_the_rest(
    method: str, subject: str, own: str, rest: dict[str, Any], ascii_only: bool
) -> None:
    key = TARGET_KEYS[method]

    def said(text: str) -> Any:
        return {"type": "ref/prompt", "name": text} if key == "ref" else text

    items = list(rest.items())
    params = dict([*items[:1], (key, said(subject)), *items[1:]])
    found = split(method, raw(params, ascii_only=ascii_only))
    assert (json.loads(found.text) if key == "ref" else found.text) == said(subject)
    assert json.loads(found.rest) == rest
    text = json.dumps(said(own)) if key == "ref" else own
    assert json.loads(with_target(method, text, found.rest)) == {key: said(own), **rest}


@settings(deadline=None, max_examples=150)
@given(METHODS, st.binary(max_size=40) | values.map(raw) | strangers.map(raw))
def test_no_bytes_raise(method: str, params: bytes) -> None:
    found = split_target(method, RawJson(params))
    if isinstance(found, RequestTarget):
        assert with_target(method, found.text, found.rest)


@settings(deadline=None, max_examples=100)
@given(METHODS, st.sampled_from(["7", '"7"', '""', "-1", '"\\u00e9\\/"', "18446744073709551616"]), strangers)
def test_tokens_keep_their_bytes_and_meta_its_members(method: str, token: str, meta: dict[str, Any]) -> None:
    subject = '{"type":"ref/prompt"}' if TARGET_KEYS[method] == "ref" else '"s"'
    inner = raw(meta).decode()[1:-1]
    comma = "," if inner else ""
    text = f'{{"{TARGET_KEYS[method]}":{subject},"_meta":{{"progressToken":{token}{comma}{inner}}}}}'
    meta_has_own = any(name.casefold() == "progresstoken" for name in meta)
    found = split_target(method, RawJson(text.encode()))
    if not meta_has_own:
        assert isinstance(found, RequestTarget)
        assert found.token == token.encode()
        assert json.loads(found.meta) == meta
