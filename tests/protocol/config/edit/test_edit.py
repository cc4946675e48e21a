"""A configuration file is edited where it must be, and nowhere else."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.config.edit.edit import (
    CannotEditError,
    MemberSwap,
    remove_member,
    set_member,
    set_members,
    swap_members,
)
from carpool_protocol.config.text.jsonc import parse
from tests.behaviours import behaviour

FILE = """\
// mine
{
  "max_instances": 9, // enough
  "mcpServers": {
    // the first
    "a": { "command": "x" }, // of two
    "b": {
      "command": "y" /* why not */
    } // the last
  }
}
"""


@behaviour("config:edited")
def test_a_server_is_added_behind_the_others_and_every_comment_stays() -> None:
    after = set_member(FILE, ("mcpServers", "c"), {"command": "z", "args": ["1"]})
    assert after == FILE.replace(
        "    } // the last\n",
        """\
    }, // the last
    "c": {
      "command": "z",
      "args": [
        "1"
      ]
    }
""",
    )


@behaviour("config:edited")
def test_a_server_is_taken_out_with_its_lines_and_what_was_added_leaves_no_trace() -> None:
    added = set_member(FILE, ("mcpServers", "c"), {"command": "z"})
    assert remove_member(added, ("mcpServers", "c")) == FILE
    assert remove_member(FILE, ("mcpServers", "a")) == FILE.replace(
        '    "a": { "command": "x" }, // of two\n',
        """\
     // of two
""",
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{}", '{\n  "m": {\n    "a": 1\n  }\n}'),
        ('{"m": {"b": 2}}', '{"m": {"b": 2, "a": 1}}'),
        ('{"m": {"b": 2,}}', '{"m": {"b": 2, "a": 1}}'),
        ('{"m": {"a": 2}}\n', '{"m": {"a": 1}}\n'),
        ('{\n"m": {\n  }\n}', '{\n"m": {\n  "a": 1\n  }\n}'),
        ('{"m": {// none\n}}', '{"m": {// none\n  "a": 1\n}}'),
    ],
)
def test_a_member_finds_its_place_in_any_layout(before: str, after: str) -> None:
    assert set_member(before, ("m", "a"), 1) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{}", '{\n  "m": {\n    "a": 1,\n    "c": {\n      "d": 3\n    }\n  }\n}'),
        ('{"m": {"b": 2}}', '{"m": {"b": 2, "a": 1, "c": {"d": 3}}}'),
        ('{"m": {"a": 7, "b": 2}}', '{"m": {"a": 1, "b": 2, "c": {"d": 3}}}'),
        (
            '{\n  "m": {\n    "b": 2, "a": 5 // why\n  }\n}',
            '{\n  "m": {\n    "b": 2, "a": 1, // why\n    "c": {\n      "d": 3\n    }\n  }\n}',
        ),
    ],
)
def test_several_members_find_their_places_at_once(before: str, after: str) -> None:
    assert set_members(before, ("m",), {"a": 1, "c": {"d": 3}}) == after


@pytest.mark.parametrize(
    "text",
    [
        '{"m": {"b": 2}}',
        '{ "m": { "b": 2 } // why\n}',
        '{\n  "m": {\n    "b": 2 // why\n  }\n}\n',
        '{"m": {"b": [\n2]\n}}',
    ],
)
def test_what_is_added_and_taken_out_again_leaves_every_byte_as_it_was(text: str) -> None:
    assert remove_member(set_member(text, ("m", "a"), value=True), ("m", "a")) == text


@pytest.mark.parametrize("text", ["", "[]", '{"m": []}', '{"m": {"a": 1, "a": 2}}', "{", "3"])
def test_what_cannot_be_edited_is_left_to_a_person(text: str) -> None:
    with pytest.raises(CannotEditError):
        set_member(text, ("m", "b"), 1)
    with pytest.raises(CannotEditError):
        remove_member(text, ("m", "b"))


KEYS = st.sampled_from(["a", "b", "m", "\u00e4", 'q"'])
COMMENTED = {"{": "{ // }\n", ",": "/* } */, // {\n", "}": "/* , */}"}
OBJECTS = st.dictionaries(
    KEYS, st.dictionaries(KEYS, st.integers() | st.lists(st.booleans(), max_size=2), max_size=3), max_size=3
)


@behaviour("config:edited")
@settings(deadline=None, max_examples=150)
@given(OBJECTS, st.tuples(KEYS, KEYS), st.sampled_from([None, 1, 4]), st.booleans())
def test_whatever_the_layout_only_the_one_member_changes(
    held: dict[str, Any], path: tuple[str, str], indent: int | None, comments: bool
) -> None:
    text = json.dumps(held, indent=indent)
    if comments:
        text = re.sub("[,{}]", lambda mark: COMMENTED[mark.group()], text)
    changed = set_member(text, path, {"x": [1]})
    expected = {**held, path[0]: {**held.get(path[0], {}), path[1]: {"x": [1]}}}
    assert parse(changed, "").value == expected
    del expected[path[0]][path[1]]
    assert parse(remove_member(changed, path), "").value == expected


LONG = """\
{\r
\t"history": [ { "mcpServers": {} } ], // of years\r
\t"deep": { "mcpServers": {\r
\t\t"a": { "command": "x" }, // of two\r
\t\t// nobody's\r
\t\t"b": {\r
\t\t\t"command": "y"\r
\t\t}\r
\t} },\r
\t"last": 1.50\r
}"""


@behaviour("config:edited")
def test_members_are_swapped_in_the_file_s_own_indentation_and_ends_of_lines() -> None:
    text = swap_members(LONG, {("deep", "mcpServers"): MemberSwap(["a", "b"], {"c": {"command": "z"}})})
    before, _, rest = LONG.partition('\t\t"a"')
    assert text == (
        before + "\t\t // of two\r\n\t\t// nobody's\r\n"
        '\t\t"c": {\r\n\t\t\t"command": "z"\r\n\t\t}\r\n' + rest[rest.index("\t} },") :]
    )


def test_only_the_named_members_are_swapped() -> None:
    text = swap_members(LONG, {("deep", "mcpServers"): MemberSwap(["b"], {})})
    assert text == LONG.replace(", // of two", " // of two").replace(
        '\t\t"b": {\r\n\t\t\t"command": "y"\r\n\t\t}\r\n', ""
    )


def test_several_objects_are_swapped_at_once() -> None:
    text = '{"a": {"x": 1, "y": 2}, "b": {"p": {"z": [3]}}, "c": 0}'
    swaps = {("b", "p"): MemberSwap(["z"], {}), ("a",): MemberSwap(["x"], {"n": 4})}
    assert swap_members(text, swaps) == '{"a": { "y": 2, "n": 4}, "b": {"p": {}}, "c": 0}'


@pytest.mark.parametrize(
    ("path", "out", "new"),
    [
        (("none",), [], {"a": 1}),
        (("last",), [], {"a": 1}),
        (("deep", "mcpServers"), ["c"], {}),
        (("deep", "mcpServers"), [], {"a": 1}),
        (("deep", "mcpServers"), [], {str(n): 1 for n in range(501)}),
    ],
)
def test_members_that_cannot_be_swapped_are_left_to_a_person(
    path: tuple[str, ...], out: list[str], new: dict[str, Any]
) -> None:
    with pytest.raises(CannotEditError):
        swap_members(LONG, {path: MemberSwap(out, new)})
