"""Finding the id of lines nobody can read, and cutting legal ones."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from carpool_protocol.wire import json_scan, jsonrpc
from carpool_protocol.wire.json_scan import (
    ENDS_BYTES,
    MAX_PARTS,
    TopLevelScanner,
    fields,
    has_too_many_parts,
    legal_id,
    members,
    replace_half_pairs,
    scan_ends,
    without_half_pairs,
)
from tests.behaviours import behaviour
from tests.kit.bytecodes import count_bytecodes
from tests.kit.costly_values import COSTLY

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
        b"[[],[" * 2_000 + b"]]" * 2_000,
        b'"' + b'\\"' * 500_000 + b'"',
        b"[" + b"[[[[[[[[1]]]]]]]]," * 3_000 + b"0]",
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


@pytest.mark.parametrize("broken", [b'"\0\0"', b'"\0\0n"', b'"\\ud83d\0"'])
def test_replaced_half_pairs_make_nothing_legal_that_was_not(broken: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(replace_half_pairs(broken))


def test_replacing_very_many_half_pairs_takes_no_step_of_python_for_each() -> None:
    raw = b'"\\\\%b"' % (rb"\ud83d" * 10_000)
    assert count_bytecodes(lambda: replace_half_pairs(raw)) < 5_000
    assert replace_half_pairs(raw) == raw.replace(rb"\ud83d", rb"\ufffd")


def test_a_text_built_to_cost_is_given_up_with_what_was_found() -> None:
    tower = b"[[],[" * 200_000 + b"]]" * 200_000
    assert scanned(b'{"id":7,"result":%b}' % tower, 65536).id == b"7"
    assert scanned(b'{"result":%b,"id":7}' % tower, 65536).id is None
    assert members(b'{"result":%b,"id":7}' % tower) is None


@behaviour("lines:bounded-scan")
@pytest.mark.parametrize("end", [b"", rb',"b":"\ud83d"'], ids=["legal", "half a pair"])
@pytest.mark.parametrize("value", COSTLY.values(), ids=COSTLY)
def test_to_cut_a_long_object_costs_steps_for_its_members_only(value: bytes, end: bytes) -> None:
    line = b'{"jsonrpc":"2.0","a":%b%b,"id":7}' % (value, end)
    found: list[dict[str, bytes] | None] = []
    assert count_bytecodes(lambda: found.append(fields(line))) < 5_000
    [cut] = found
    assert cut is not None
    assert (cut["a"], cut["id"]) == (value, b"7")


@behaviour("lines:bounded-scan")
@pytest.mark.parametrize("value", COSTLY.values(), ids=COSTLY)
def test_the_scan_of_a_line_costs_a_bounded_number_of_steps(value: bytes) -> None:
    line = b'{"result":%b,"id":7' % value
    scanner = TopLevelScanner()
    assert count_bytecodes(lambda: scanner.feed(line)) < 1_000_000
    assert scan_ends(line + b"}")[0] == b"7"


@pytest.mark.parametrize("end", ["", ' \n,"a":"\\ud83d"'], ids=["legal", "half a pair"])
@pytest.mark.parametrize("long", [False, True])
@quick
@given(json_objects, indents, json_objects)
def test_a_long_object_is_cut_as_a_short_one(
    long: bool, end: str, value: dict[str, Any], indent: int | None, more: dict[str, Any]
) -> None:
    """Doubles, escaped keys and blanks included."""
    pad = "x" * json_scan.LONG_BYTES if long else ""
    first, second = (json.dumps(each, indent=indent).strip()[1:-1].strip() for each in (value, more))
    members_text = [each for each in (first, second, f'"\\u0061" : "{pad}"', '"a":[1,{}]', first) if each]
    raw = (" { " + " , ".join(members_text) + end + "\t} ").encode()
    cuts = members(raw)
    assert cuts is not None
    pairs = [(json.loads(raw[cut.key : cut.key_end]), raw[cut.value : cut.value_end]) for cut in cuts]
    expected: list[tuple[str, Any]] = json.JSONDecoder(object_pairs_hook=list).decode(raw.decode().strip())
    assert [key for key, _ in pairs] == [key for key, _ in expected]
    assert [json.loads(text, object_pairs_hook=list) for _, text in pairs] == [it for _, it in expected]


def test_a_long_line_in_tiny_chunks_is_not_given_up() -> None:
    line = b'{"result":[[["%b"]]],"id":7}' % (b"x" * 2 * json_scan.STEPS)
    assert scanned(line, 1).id == b"7"


def test_an_object_with_too_many_members_is_not_cut() -> None:
    def wide(count: int) -> bytes:
        return b"{" + b",".join(b'"%d":0' % n for n in range(count)) + b"}"

    assert len(members(wide(json_scan.MAX_MEMBERS)) or []) == json_scan.MAX_MEMBERS
    assert members(wide(json_scan.MAX_MEMBERS + 1)) is None


@pytest.mark.parametrize("half", ["", rb'"\ud83d"'.decode()])
def test_no_more_members_of_a_long_object_are_read_than_are_cut(half: str) -> None:
    keys = [f'"{n}"' for n in range(500_000)]
    raw = ("{" + f'"a":{half or 0},' + ":0,".join(keys) + ":0}").encode()
    assert count_bytecodes(lambda: members(raw)) < 30_000
    assert members(raw) is None


@behaviour("lines:bounded-scan")
@pytest.mark.parametrize("deep", [False, True], ids=["flat", "too deep for msgspec"])
@pytest.mark.parametrize(
    "name", [b"x", b"\\n", "ΐ".encode(), rb"\ud83d"], ids=["plain", "escaped", "long", "half"]
)
def test_an_object_with_names_of_too_many_bytes_is_not_cut(name: bytes, deep: bool) -> None:
    value = b"[" * 5_000 + b"]" * 5_000 if deep else b"1"
    most = json_scan.MAX_NAMES_BYTES - len(b'"""v"') - 10
    fits = b'{"%b":1,"v":%b}' % (name * (most // len(name)), value)
    assert [name.value_end - name.value for name in members(fits) or ()] == [1, len(value)]
    assert members(b'{"%b":1,"v":%b}' % (name * json_scan.MAX_NAMES_BYTES, value)) is None
    many = b",".join(b'"%b%d":1' % (name * (most // len(name) // 2), n) for n in range(3))
    assert members(b'{%b,"v":%b}' % (many, value)) is None, "all names together"


@settings(deadline=None, max_examples=200)
@given(st.text(st.sampled_from(["\\", "a", '"', "\ud83d", "\ude00", "\n", "u", "d"]), max_size=12))
def test_a_text_without_half_pairs_reads_as_before_with_replacement_characters(text: str) -> None:
    raw = json.dumps({"t": text}).encode()
    joined: str = json.loads(raw)["t"]  # two halves that stand beside each other
    expected = "".join("\ufffd" if "\ud800" <= each <= "\udfff" else each for each in joined)
    assert msgspec.json.decode(replace_half_pairs(raw))["t"] == expected


@pytest.mark.parametrize(
    ("begin", "part", "end"),
    [
        (b"[0", b",0", b"]"),
        (b"[0", b',"[,{"', b"]"),
        (b"[{", b',"a":0', b"}]"),
        (b'{"a":[{', b',"":{}', b"}]}"),
    ],
)
def test_parts_are_counted_at_any_depth(begin: bytes, part: bytes, end: bytes) -> None:
    def value(parts: int) -> bytes:
        return begin + part * parts + end

    each = part.count(b",", 0, 1) + part.count(b"{}")
    fitting = (MAX_PARTS - begin.count(b"[") - begin.count(b"{") - 1) // each
    assert not has_too_many_parts(value(fitting))
    assert has_too_many_parts(value(fitting + 1))


def test_a_text_is_one_part_whatever_it_holds() -> None:
    text = rb"1,2,{\"a\":[3,\\," * MAX_PARTS
    assert not has_too_many_parts(b'[{"type":"text","text":"' + text + b'"}]')
    assert has_too_many_parts(b'["' + text + b'"' + b",0" * MAX_PARTS + b"]")


@pytest.mark.parametrize("part", [b"[],", b'"x",'])
def test_the_limit_of_parts_may_be_another_one(part: bytes) -> None:
    most = 50 * MAX_PARTS
    assert not has_too_many_parts(b"[" + b'"x",' * (most - 2) + b"0]", most)
    assert has_too_many_parts(b"[" + part * most + b"0]", most)


LONG = b"x" * 3 * ENDS_BYTES


@behaviour("lines:bounded-scan")
@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"id":7,"result":"%b"' % LONG, (b"7", True)),
        (b'{"result":"%b","id":7}' % LONG, (b"7", True)),
        (b'{"result":"%b","id" : "a b" , "jsonrpc":"2.0"} ' % LONG, (b'"a b"', True)),
        (b'{"method":"%b","id":7}' % LONG, (b"7", False)),
        (b'{"result":{"a":"%b","id":7}}' % LONG, (None, True)),
        (b'{"result":["%b",{"id":7}' % LONG, (None, True)),
        (b'{"result":"%b\\","id":7}' % LONG, (b"7", True)),
        (b'{"a":"%b,\\"id":7}' % LONG, (None, None)),
        (b'{"result":"%b","id":7,"b":{}}' % LONG, (None, True)),
        (b'{"result":"%b","id":7,"b":"%b"}' % (LONG, LONG), (None, True)),
        (b'{"result":1} %b,"id":7}' % LONG, (None, True)),
        (b'[{"result":"%b","id":7}' % LONG, (None, None)),
        (b'{"id":8,"result":"%b","id":7}' % LONG, (b"8", True)),
    ],
)
def test_the_id_of_a_long_line_is_found_near_its_ends_and_nowhere_else(line: bytes, found: object) -> None:
    assert scan_ends(line) == found


@behaviour("lines:bounded-scan")
def test_of_a_long_line_a_bounded_part_is_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    scanned_bytes: list[int] = []

    class Scanner(TopLevelScanner):
        def feed(self, chunk: bytes) -> None:
            scanned_bytes.append(len(chunk))
            super().feed(chunk)

    monkeypatch.setattr(json_scan, "TopLevelScanner", Scanner)
    line = b'{"x":' + b'[1,"a",{"b":["x"]}],' * 200_000
    assert isinstance(jsonrpc.decode(line), jsonrpc.InvalidLine)
    assert sum(scanned_bytes) == ENDS_BYTES < len(line)


@quick
@given(json_values, st.integers(0, 3))
def test_the_last_id_of_legal_json_is_the_one_at_the_top_level(value: object, kind: int) -> None:
    head = b'{"pad":"%b","result":%b' % (b"x" * ENDS_BYTES, json.dumps(value).encode())
    line = head + (b"}", b',"id":5}', b',"id":"five" , "jsonrpc":"2.0"}', b',"a":{"id":6}}')[kind]
    assert scan_ends(line)[0] == (None, b"5", b'"five"', None)[kind]
