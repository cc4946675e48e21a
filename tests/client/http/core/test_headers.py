"""Headers that repeat arguments: which arguments they may be, and what is read of a call to compare them."""

import tracemalloc

import msgspec
import pytest

from carpool.http.core.body import ClientMessage, read_body
from carpool.http.core.headers import (
    MAX_ACCEPT_CHARS,
    MAX_ANNOTATED,
    Annotated,
    accepts,
    annotated_arguments,
    is_json,
    param_mismatch,
)
from carpool.http.core.limits import MAX_HEAD_BYTES
from carpool_protocol.carrier.streams import MESSAGE_CAP_BYTES
from tests.behaviours import behaviour

_ANNOTATED: Annotated = {"region": ("region",), "floor": ("place", "floor"), "room": ("place", "room")}


def _call(arguments: bytes) -> ClientMessage:
    line = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":%b}}' % arguments
    found = read_body(line)
    assert isinstance(found, ClientMessage)
    return found


class UncutText(str):
    """A text that is not taken into parts."""

    __slots__ = ()

    def split(self, *_: object) -> list[str]:
        raise AssertionError


def test_an_accept_header_has_a_bound_and_a_longer_one_is_not_read() -> None:
    good = "application/json, text/event-stream"
    needed = ("application/json", "text/event-stream")
    longest = good + "," * (MAX_ACCEPT_CHARS - len(good))
    assert accepts(good, needed)
    assert accepts(longest, needed)
    assert not accepts(UncutText(longest + ","), needed)
    assert not accepts(None, needed)


def test_little_is_remembered_of_long_headers() -> None:
    tracemalloc.start()
    for number in range(200):
        long = f"{number}".rjust(MAX_HEAD_BYTES)
        assert not accepts(long, ("application/json",))
        assert not is_json(long)
        del long
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 3 * 1024 * 1024


@pytest.mark.parametrize(
    ("arguments", "told", "good"),
    [
        (
            b'{"region":"eu","place":{"floor":3,"room":"a"}}',
            {"region": "eu", "floor": "3", "room": "a"},
            True,
        ),
        (b'{"re\\u0067ion":"e\\u0075"}', {"region": "eu"}, True),
        (b'{"region":"us","region":"eu"}', {"region": "eu"}, True),
        (b'{"region":"eu","region":"us"}', {"region": "eu"}, False),
        (b'{"region":"eu","x":"\\ud83d"}', {"region": "eu"}, True),
        (b'{"region":"\\ud83d"}', {"region": "=?base64?77+9?="}, True),
        (b'{"place":7}', {}, True),
        (b'{"place":7}', {"floor": "7"}, False),
        (b'{"place":{"floor":3.0}}', {"floor": "3"}, True),
        (b'{"place":{"floor":' + b"9" * 5000 + b"}}", {"floor": "9"}, False),
        (b'{"region":["eu"]}', {"region": "eu"}, False),
        (b'{"region":{}}', {}, False),
        (b"[]", {}, True),
        (b"[]", {"region": "eu"}, False),
    ],
)
@behaviour("http:stateless:headers")
def test_headers_are_compared_with_what_the_arguments_say(
    arguments: bytes, told: dict[str, str], good: bool
) -> None:
    headers = {f"mcp-param-{name}": value for name, value in told.items()}
    assert (param_mismatch(headers, _ANNOTATED, _call(arguments)) == "") is good


def test_arguments_that_no_header_repeats_are_passed_over() -> None:
    message = _call(b'{"region":"eu","rest":[' + b"[]," * 100_000 + b"[]]}")
    assert param_mismatch({"mcp-param-region": "eu"}, _ANNOTATED, message) == ""  # what is cached, is
    tracemalloc.start()
    try:
        assert param_mismatch({"mcp-param-region": "eu"}, _ANNOTATED, message) == ""
        assert tracemalloc.get_traced_memory()[1] < 2 * len(message.line)
    finally:
        tracemalloc.stop()


def test_objects_that_hold_each_other_are_not_read_without_end() -> None:
    deep = ("a",) * 8
    long = b'{"a":' * 8 + b'"' + b"x" * (MESSAGE_CAP_BYTES // 4) + b'"' + b"}" * 8
    assert "exceed" in param_mismatch({"mcp-param-deep": "x"}, {"deep": deep}, _call(long))
    short = b'{"a":' * 8 + b'"x"' + b"}" * 8
    assert param_mismatch({"mcp-param-deep": "x"}, {"deep": deep}, _call(short)) == ""


def test_a_tool_has_no_more_annotations_than_a_request_may_have_headers() -> None:
    def schema(count: int) -> object:
        names = [f"a{at}" for at in range(count)]
        return {"properties": {each: {"type": "string", "x-mcp-header": each} for each in names}}

    assert len(annotated_arguments(schema(MAX_ANNOTATED))) == MAX_ANNOTATED
    assert annotated_arguments(schema(MAX_ANNOTATED + 1)) == {}


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "\ud83d"])
def test_arguments_whose_names_cannot_be_searched_for_are_not_checked(name: str) -> None:
    schema = {"properties": {name: {"type": "string", "x-mcp-header": "Region"}}}
    assert annotated_arguments(schema) == {}


@pytest.mark.parametrize("name", ["", "ü", "a b", "\x7f", "m0", "__init__"])
def test_arguments_have_any_other_name(name: str) -> None:
    found = annotated_arguments({"properties": {name: {"type": "string", "x-mcp-header": "Region"}}})
    message = _call(msgspec.json.encode({name: "eu"}))
    assert param_mismatch({"mcp-param-region": "eu"}, found, message) == ""
    assert param_mismatch({"mcp-param-region": "us"}, found, message) != ""
