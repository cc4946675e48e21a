"""Finding the id of lines nobody can read, and cutting legal ones."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from carpool_protocol.wire import json_scan
from carpool_protocol.wire.json_scan import TopLevelScanner, fields, legal_id, members, without_half_pairs

any_text = st.text(st.characters(exclude_categories=()), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=20,
)
json_objects = st.dictionaries(
    st.sampled_from(["id", "method", "result", "error", "params", "x"]) | any_text, json_values, max_size=6
)
indents = st.sampled_from([None, 0, 1])
quick = settings(deadline=None, max_examples=150)


def scanned(line: bytes, size: int = 0) -> TopLevelScanner:
    scanner = TopLevelScanner()
    step = size or len(line) or 1
    for at in range(0, len(line), step):
        scanner.feed(line[at : at + step])
    return scanner


CASES = [
    (b'{"id":1}', b"1", set()),
    (b' { "id" : "a b" , "result" : 3 } ', b'"a b"', {"result"}),
    (b'{"result":{"id":9,"method":"x"},"id":2}', b"2", {"result"}),
    (b'{"params":[{"id":9}],"method":"m","id":null}', b"null", {"method"}),
    (b'{"result":"\\",\\"id\\":9,","id":3}', b"3", {"result"}),
    (b'{"result":"\xff\xfe\xed\xa0\x80","id":4}', b"4", {"result"}),
    (b'{"result":"\\ud83d","id":"\\ud83d"}', b'"\\ud83d"', {"result"}),
    (b'{"\\u0069d":5,"\\u0072esult":1}', b"5", {"result"}),
    (b'{"id":1,"id":2}', b"2", set()),
    (b'{"id":1,"id":[2]}', None, set()),
    (b'{"id":true}', None, set()),
    (b'{"id":{"a":1},"error":{}}', None, {"error"}),
    (b'{"id":01}', None, set()),
    (b'{"id":"a\x01"}', None, set()),
    (b'{"id":"\xff"}', None, set()),
    (b'{"id":"\\x"}', None, set()),
    (b'{"id":12', None, set()),
    (b'{"id":"12', None, set()),
    (b'{"id":12,"result":{"a', b"12", {"result"}),
    (b'{"id" 7,"result":{}}', None, {"result"}),
    (b'{"a" "b","id":7}', b"7", set()),
    (b'{"a":1 2 3,"id":7}', b"7", set()),
    (b'{"a"::1,"id"::7}', b"7", set()),
    (b'{,,"id":7,}', b"7", set()),
    (b'{"id":7}}}]{"id":8}', b"7", set()),
    (b'{"id":7} {"id":8}', b"7", set()),
    (b'{"a":[[[[[[[[[["]"]]]]]]]]]],"id":7}', b"7", set()),
    (b'[{"id":1}]', None, set()),
    (b'log {"id":1}', None, set()),
    (b'"id"', None, set()),
    (b'x"id":1,"result":2}', None, set()),
    (b'["id":1,"result":2]', None, set()),
    (b"", None, set()),
    (b'{"id":"' + b"x" * (json_scan.MAX_TOKEN_BYTES + 1) + b'","result":1}', None, {"result"}),
    (b'{"' + b"x" * (json_scan.MAX_TOKEN_BYTES + 1) + b'":1,"id":7}', b"7", set()),
    (b'{"k":"' + b"\\\\" * 3000 + b'\\"","id":7}', b"7", set()),
]


@pytest.mark.parametrize(("line", "raw_id", "keys"), CASES)
def test_the_id_and_the_kind_are_found_whatever_the_chunks(
    line: bytes, raw_id: bytes | None, keys: set[str]
) -> None:
    for size in (0, 1, 2, 3, 5, 64):
        scanner = scanned(line, size)
        assert scanner.id == raw_id, size
        assert scanner.keys - {"id"} == keys, size


def test_the_kind_of_message_follows_from_its_keys() -> None:
    assert scanned(b'{"method":"m","result":1}').is_answer is False
    assert scanned(b'{"error":1}').is_answer is True
    assert scanned(b'{"id":1}').is_answer is None


@pytest.mark.parametrize(
    "value",
    [
        b"[" * 1_000_000 + b"]" * 1_000_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b"[[],[" * 20_000 + b"]]" * 20_000,
        b'"' + b'\\"' * 500_000 + b'"',
        b"[" + b"[[[[[[[[1]]]]]]]]," * 50_000 + b"0]",
    ],
    ids=["bomb", "objects", "sawtooth", "escapes", "eight deep"],
)
def test_depth_and_size_neither_recurse_nor_lose_the_id(value: bytes) -> None:
    line = b'{"result":%b,"id":7}' % value
    assert scanned(line).id == b"7"
    assert scanned(line, 65536).id == b"7"
    cuts = members(line)
    assert cuts is not None
    assert [line[cut.value : cut.value_end] for cut in cuts] == [value, b"7"]


@quick
@given(json_objects, indents, st.integers(1, 9))
def test_the_scanner_reads_the_top_level_as_json_does(
    value: dict[str, Any], indent: int | None, size: int
) -> None:
    line = json.dumps(value, indent=indent).encode()
    scanner = scanned(line, size)
    assert scanner.keys == value.keys() & {"id", "method", "result", "error"}
    expected = value.get("id", [])
    if isinstance(expected, str | int | float | None) and not isinstance(expected, bool):
        assert scanner.id == json.dumps(expected).encode()
    else:
        assert scanner.id is None


@quick
@given(
    st.binary(max_size=80)
    | st.lists(
        st.sampled_from(
            [b"{", b"}", b"[", b"]", b'"', b"\\", b":", b",", b"1", b'"id"', b'{"id":', b" ", b"\xff"]
        ),
        max_size=40,
    ).map(b"".join),
    st.integers(1, 7),
)
@example(b'{"id":1\xff,"a":"\\', 1)
def test_no_bytes_raise_and_chunks_do_not_matter(line: bytes, size: int) -> None:
    whole, cut = scanned(line), scanned(line, size)
    assert (whole.id, whole.keys) == (cut.id, cut.keys)
    assert whole.id is None or legal_id(whole.id)
    members(line)
    fields(line)
    assert len(without_half_pairs(line)) == len(line)


@quick
@given(json_objects, indents)
def test_an_object_is_cut_into_what_json_reads(value: dict[str, Any], indent: int | None) -> None:
    raw = json.dumps(value, indent=indent).encode()
    found = fields(raw)
    assert found is not None
    assert {key: json.loads(part) for key, part in found.items()} == value


@quick
@given(json_values)
@example("\ud83d\ud83d\ude00\ude00")
@example("\\ud83d\ude00")
@example('\\ud83d"\\\\')
def test_a_mended_text_is_legal_for_msgspec_and_cut_alike(value: Any) -> None:
    raw = json.dumps({"a": value, "b": 1}).encode()
    msgspec.json.decode(without_half_pairs(raw))
    assert members(without_half_pairs(raw)) == members(raw)


def test_mending_makes_nothing_legal_that_was_not() -> None:
    for broken in (b'"\\x"', b'"\\\\\\x"', b"\\\\", b'"\\ud8"', b"n\\\\l", b'"\\'):
        with pytest.raises(msgspec.DecodeError):
            msgspec.json.decode(without_half_pairs(broken))


def test_a_text_built_to_cost_is_given_up_with_what_was_found() -> None:
    tower = b"[[],[" * 200_000 + b"]]" * 200_000
    assert scanned(b'{"id":7,"result":%b}' % tower, 65536).id == b"7"
    assert scanned(b'{"result":%b,"id":7}' % tower, 65536).id is None
    assert members(b'{"result":%b,"id":7}' % tower) is None


def test_a_long_line_in_tiny_chunks_is_not_given_up() -> None:
    line = b'{"result":[[["%b"]]],"id":7}' % (b"x" * 2 * json_scan.STEPS)
    assert scanned(line, 1).id == b"7"


def test_an_object_with_too_many_members_is_not_cut() -> None:
    def wide(count: int) -> bytes:
        return b"{" + b",".join(b'"%d":0' % n for n in range(count)) + b"}"

    assert len(members(wide(json_scan.MAX_MEMBERS)) or []) == json_scan.MAX_MEMBERS
    assert members(wide(json_scan.MAX_MEMBERS + 1)) is None
