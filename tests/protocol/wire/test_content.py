"""Content blocks and URIs in messages: cut out and replaced, everything else byte for byte."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.ids import RawJson
from carpool_protocol.wire.content import (
    MAX_COMMAS,
    TooManyPartsError,
    change_blocks,
    change_members,
    elements,
    rewrite_uris,
    text_of,
    value_of,
    with_uri,
)
from carpool_protocol.wire.json_scan import MAX_MEMBERS, MAX_PARTS
from tests.behaviours import behaviour

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def shout(uri: str) -> str:
    return uri.upper() if uri.startswith("x:") else uri


@given(st.lists(json_values, max_size=4), st.sampled_from([None, 1]))
@settings(deadline=None)
def test_the_elements_of_an_array_are_its_own_bytes(values: list[object], indent: int | None) -> None:
    raw = json.dumps(values, indent=indent).replace("\n", " ").encode()
    found = elements(raw)
    assert found is not None
    assert [json.loads(element) for element in found] == values
    assert all(element in raw and element == element.strip() for element in found)


def test_half_a_surrogate_pair_does_not_keep_an_array_from_being_cut() -> None:
    raw = rb'[ {"text":"\ud83d, [\\"} , "\udc00" ,1.50]'
    assert elements(raw) == [rb'{"text":"\ud83d, [\\"}', rb'"\udc00"', b"1.50"]


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"[", b"[1,", b'"x"', b"[" * 100_000, b"[1" + b",1" * (MAX_COMMAS + 1) + b"]"]
)
def test_what_is_no_array_or_too_large_is_not_cut(raw: bytes) -> None:
    assert elements(raw) is None


def test_a_member_is_changed_or_taken_out_and_all_else_stays() -> None:
    raw = b'{ "a" : 1.0 ,"b":{"a":2},"\\u0061":3, "c":[ ]}'
    assert change_members(raw, {"a": lambda _: b"9"}) == b'{"a":9,"b":{"a":2},"\\u0061":9,"c":[ ]}'
    assert change_members(raw, {"a": None}) == b'{"b":{"a":2},"c":[ ]}'
    assert change_members(raw, {"a": lambda value: value, "z": None}) is raw
    assert change_members(b"{}", {"a": None}) == b"{}"
    for other in (b"", b"[]", b"null", b'{"a"', b"{"):
        assert change_members(other, {"a": None}) is other


def test_the_last_of_two_members_counts() -> None:
    assert value_of(b'{"a":1,"a": 2 }', "a") == b"2"
    assert text_of(b'{"a":"x","a":1}', "a") is None
    assert text_of(b'{"a":"\\u0078"}', "a") == "x"


def test_a_definition_gets_another_uri_and_keeps_every_other_byte() -> None:
    raw = RawJson(b'{"uri":"x://1","name":"n","n":1.00,"_meta":{"uri":"x://1"}}')
    expected = b'{"uri":"y\\"","name":"n","n":1.00,"_meta":{"uri":"x://1"}}'
    assert with_uri(raw, "uri", 'y"') == expected


def test_links_and_embedded_resources_of_a_result_get_the_uris_that_agents_see() -> None:
    result = {
        "content": [
            {"type": "resource_link", "uri": "x:a", "name": "x:a"},
            {"type": "resource", "resource": {"uri": "x:b", "text": "x:b"}},
            {"type": "text", "text": "x:c", "uri": "x:c"},
            "odd",
        ],
        "structuredContent": {"uri": "x:d"},
    }
    expected = json.loads(json.dumps(result))
    expected["content"][0]["uri"] = "X:A"
    expected["content"][1]["resource"]["uri"] = "X:B"
    assert json.loads(rewrite_uris("tools/call", RawJson(json.dumps(result).encode()), shout)) == expected
    prompt = {"messages": [{"role": "user", "content": block} for block in result["content"]]}
    seen = json.loads(rewrite_uris("prompts/get", RawJson(json.dumps(prompt).encode()), shout))
    assert [message["content"] for message in seen["messages"]] == expected["content"]


def test_what_was_read_and_what_was_updated_gets_the_uri_that_agents_see() -> None:
    read = RawJson(b'{"contents":[{"uri":"x:a","text":"x:a"},{"uri":"y:b","blob":""}]}')
    assert rewrite_uris("resources/read", read, shout) == read.replace(b'"uri":"x:a"', b'"uri":"X:A"')
    updated = RawJson(b'{"uri":"x:a","_meta":{"uri":"x:a"}}')
    expected = b'{"uri":"X:A","_meta":{"uri":"x:a"}}'
    assert rewrite_uris("notifications/resources/updated", updated, shout) == expected


@pytest.mark.parametrize("method", ["tools/call", "prompts/get", "resources/read", "completion/complete", ""])
@pytest.mark.parametrize(
    "body",
    [
        b'{"content":[{"type":"text","text":"uri"}]}',
        b'{"content":[{"type":"resource_link","uri":"y:1"}],"messages":[],"contents":[{"uri":"y:1"}]}',
        b'{"content":{"type":"resource_link","uri":1},"contents":[{"uri":null}],"messages":"uri"}',
        b'["uri"]',
        b"",
    ],
)
def test_a_body_in_which_nothing_is_to_be_changed_comes_back_as_the_same_object(
    method: str, body: bytes
) -> None:
    raw = RawJson(body)
    assert rewrite_uris(method, raw, shout) is raw
    assert change_blocks(method, raw, lambda block: block) is raw


@given(st.binary(max_size=30))
@settings(deadline=None)
def test_bytes_raise_nothing_but_that_they_cannot_be_changed(raw: bytes) -> None:
    for text in (raw, b'{"content":' + raw + b"}", b'{"content":[{"uri":' + raw + b"}]}"):
        with suppress(TooManyPartsError):
            rewrite_uris("tools/call", RawJson(text), shout)
        with suppress(TooManyPartsError):
            change_blocks("tools/call", RawJson(text), lambda _: b"0")
        value_of(text, "content")


def crowded(text: bytes) -> bytes:
    """The object with so many more members that it is not cut."""
    return text[:-1] + b"".join(b',"m%d":0' % n for n in range(MAX_MEMBERS + 1)) + b"}"


LINK = b'{"type":"resource_link","uri":"x:a"}'


@behaviour("answers:bounded-rewrite")
@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("tools/call", crowded(b'{"content":[%b]}' % LINK)),
        ("tools/call", b'{"content":[%b]}' % crowded(LINK)),
        ("tools/call", b'{"content":[{"type":"resource","resource":%b}]}' % crowded(b'{"uri":"x:a"}')),
        ("prompts/get", b'{"messages":[%b]}' % crowded(b'{"content":%b}' % LINK)),
        ("resources/read", b'{"contents":[%b]}' % crowded(b'{"uri":"x:a"}')),
        ("tasks/get", crowded(b'{"result":{"content":[%b]}}' % LINK)),
        ("notifications/resources/updated", crowded(b'{"uri":"x:a"}')),
    ],
)
def test_an_object_with_more_members_than_are_cut_is_refused_and_never_passed_as_it_is(
    method: str, body: bytes
) -> None:
    with pytest.raises(TooManyPartsError):
        rewrite_uris(method, RawJson(body), shout)


@behaviour("answers:bounded-rewrite")
@pytest.mark.parametrize(
    ("method", "begin", "element", "end"),
    [
        ("tools/call", b'{"content":[', b'{"type":"resource_link","uri":"x:a"}', b"]}"),
        ("prompts/get", b'{"messages":[', b'{"content":{"type":"resource_link","uri":"x:a"}}', b"]}"),
        ("resources/read", b'{"contents":[', b'{"uri":"x:a"}', b"]}"),
        ("tasks/get", b'{"result":{"content":[', b'{"type":"resource_link","uri":"x:a"}', b"]}}"),
    ],
)
def test_an_array_that_takes_too_long_to_change_is_refused_and_never_passed_as_it_is(
    method: str, begin: bytes, element: bytes, end: bytes
) -> None:
    def result(count: int) -> RawJson:
        return RawJson(begin + b",".join([element] * count) + end)

    assert rewrite_uris(method, result(100), shout).count(b"x:a") == 0
    with pytest.raises(TooManyPartsError):
        rewrite_uris(method, result(MAX_PARTS), shout)


def test_what_is_not_looked_at_does_not_count() -> None:
    other = b",".join([b'{"uri":"x:a"}'] * MAX_PARTS)
    text = b"1,2," * MAX_PARTS
    body = b'{"structuredContent":{"a":[%b]},"content":[{"type":"text","text":"%b"}]}' % (other, text)
    raw = RawJson(body)
    assert rewrite_uris("tools/call", raw, shout) is raw
