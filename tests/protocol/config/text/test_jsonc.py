"""JSON with comments: what is read, where it stands, and that no text gets past as an exception."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.config.text.jsonc import MAX_DEPTH, JsonValue, parse

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def value_of(text: str) -> JsonValue:
    parsed = parse(text, "f")
    assert parsed.problems == []
    assert parsed.complete
    return parsed.value


def problem_of(text: str) -> str:
    parsed = parse(text, "f")
    assert len(parsed.problems) == 1
    return parsed.problems[0].render()


@settings(deadline=None, max_examples=150)
@given(JSON)
def test_reads_plain_json_as_the_standard_library_does(value: JsonValue) -> None:
    assert value_of(json.dumps(value)) == value
    assert value_of(json.dumps(value, ensure_ascii=False, indent=1)) == value


@settings(deadline=None, max_examples=300)
@given(st.text() | st.text(alphabet='{}[]",:/*\\ \n\t01e.-tfnu$aé\x00\x7f'))
def test_any_text_gives_a_value_or_a_problem_and_never_an_exception(text: str) -> None:
    parsed = parse(text, "f")
    assert parsed.complete or parsed.problems
    assert all(1 <= problem.line <= text.count("\n") + 1 for problem in parsed.problems)


def test_comments_and_trailing_commas_are_passed_over() -> None:
    text = """// head
    { /* a */ "a": [1, 2, /* three */ ], // "b": 0
      "url": "http://x/*y*/", /* over
      lines **/ "c": {"d": null,},
    } // tail"""
    assert value_of(text) == {"a": [1, 2], "url": "http://x/*y*/", "c": {"d": None}}


def test_every_key_and_element_has_its_line() -> None:
    parsed = parse('\n{\n "a": 1, /* \n */ "b": [\n 1,\n {"c":\n 2}]}\n', "f")
    assert parsed.lines == {
        (): 2, ("a",): 3, ("b",): 4, ("b", 0): 5, ("b", 1): 6, ("b", 1, "c"): 6,
    }  # fmt: skip


def test_a_byte_order_mark_and_windows_line_ends_are_fine() -> None:
    parsed = parse('\ufeff{\r\n"a": 1\r\n}\r\n', "f")
    assert parsed.value == {"a": 1}
    assert parsed.lines["a",] == 2


def test_a_key_written_twice_names_both_lines_and_reading_goes_on() -> None:
    parsed = parse('{"s": {\n"git": 1,\n"git": 2,\n"x": 3, "x": 4}}', "f")
    assert parsed.complete
    assert [problem.render() for problem in parsed.problems] == [
        "f:3: s.git: written twice, also on line 2; keep one",
        "f:4: s.x: written twice, also on line 4; keep one",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", 'f:1: the file is empty; write at least { "mcpServers": {} }'),
        ("\n// only this\n", 'f:3: the file is empty; write at least { "mcpServers": {} }'),
        ('{"a": 1', "f:1: this { is not closed: } is missing"),
        ('{\n"a": [1,\n2', "f:2: a: this [ is not closed: ] is missing"),
        ('{"a": 1 "b": 2}', 'f:1: expected , or }, found "\\""'),
        ('{"a"\n 1}', 'f:2: a: expected : after the key, found "1"'),
        ("{a: 1}", "f:1: expected a key in double quotes or }, found a word without double quotes"),
        ('{"a": True}', "f:1: a: expected a JSON value, found True"),
        ('{"a": 01}', 'f:1: a: expected a JSON value, found "0"'),
        ('{"a": }', 'f:1: a: expected a JSON value, found "}"'),
        ("{,}", 'f:1: expected a key in double quotes or }, found ","'),
        ('{"a": 1,,}', 'f:1: expected a key in double quotes or }, found ","'),
        (
            '{"a":\n"b\nc"}',
            'f:2: a: this string is not closed on its line: " is missing (a line break is written \\n)',
        ),
        (
            r'{"a": "\x"}',
            "f:1: a: this string holds an escape that JSON does not have (a backslash is written \\\\)",
        ),
        (r'{"a": "\ud800"}', "f:1: a: this string holds half of a surrogate pair (\\ud800 … \\udfff alone)"),
        ('{"a": 1e999}', "f:1: a: this number is too large"),
        (f'{{"a": {"9" * 5000}}}', "f:1: a: this number is too long"),
        ("{}\n}", 'f:2: "}" after the end of the value; is there a bracket too many?'),
        ("{} /* open", "f:1: this comment is not closed: */ is missing"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_what_to_do(text: str, problem: str) -> None:
    assert problem_of(text) == problem


def test_a_secret_that_lost_its_quotes_is_not_repeated() -> None:
    assert "hunter2" not in problem_of('{"env": {"TOKEN": hunter2}}')


def test_depth_is_bounded_and_the_bound_itself_is_allowed() -> None:
    assert problem_of("[" * 100_000).startswith("f:1: ")
    assert "nested deeper" in problem_of("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2))
    assert parse("[" * MAX_DEPTH + "]" * MAX_DEPTH, "f").problems == []
