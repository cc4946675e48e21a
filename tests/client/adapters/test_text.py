"""Results as models read them: a test for each rule, and whatever else comes."""

import base64
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.types import CallToolResult, ImageContent, TextContent

from carpool.adapters import as_success, flatten
from carpool.adapters.text import MAX_LABEL_CHARS, SILENT_FAILURE, bytes_in
from carpool.api.results import Result
from tests.behaviours import behaviour

Json = dict[str, Any]
PNG = base64.b64encode(b"\x89PNG" + bytes(1230)).decode()


def text(said: str) -> Json:
    return {"type": "text", "text": said}


def result(*blocks: Any, **more: Any) -> Json:
    return {"content": list(blocks), **more}


@behaviour("adapters:flat")
def test_a_result_of_the_python_client_is_read_like_the_result_in_it() -> None:
    raw = {"content": [], "structuredContent": {"n": 1}, "_meta": {"a": 1}}
    assert flatten(Result(raw)) == flatten(raw) == '{"n": 1}'
    assert as_success(Result(raw)) == {"success": True, "output": '{"n": 1}'}
    failed = {"content": [text("no")], "isError": True}
    assert as_success(Result(failed)) == as_success(failed) == {"success": False, "output": "no"}


@behaviour("adapters:flat")
@pytest.mark.parametrize(
    ("block", "said"),
    [
        (text("plain"), "plain"),
        ({"type": "image", "mimeType": "image/png", "data": PNG}, "[image: image/png, 1234 bytes]"),
        ({"type": "audio", "mimeType": "audio/wav", "data": "AAEC"}, "[audio: audio/wav, 3 bytes]"),
        ({"type": "resource", "resource": {"uri": "file:///a", "text": "its text"}}, "its text"),
        ({"type": "resource", "resource": {"uri": "file:///a", "blob": "AAEC"}}, "[resource: file:///a]"),
        ({"type": "resource_link", "uri": "file:///b", "name": "b"}, "[resource: file:///b]"),
        ({"type": "video", "mimeType": "video/mp4", "data": "AAEC"}, "[video: video/mp4, 3 bytes]"),
        ({"type": "hologram"}, "[hologram]"),
    ],
)
def test_each_kind_of_content_has_its_text(block: Json, said: str) -> None:
    assert flatten(result(block)) == said


@dataclass
class Block:
    type: str
    text: str


@dataclass
class ResultObject:
    content: list[Block]
    is_error: bool = False


@behaviour("adapters:flat")
@pytest.mark.parametrize(
    ("given_result", "said", "success"),
    [
        ({"text": "bare text"}, "bare text", True),
        ({"result": "bare result"}, "bare result", True),
        ({"result": {"sum": 3}}, '{"result": {"sum": 3}}', True),
        ({"answer": 42, "isError": True}, '{"answer": 42}', False),
        (CallToolResult(content=[TextContent(type="text", text="of the SDK")]), "of the SDK", True),
        (
            CallToolResult(content=[ImageContent(type="image", data="AAEC", mime_type="image/png")]),
            "[image: image/png, 3 bytes]",
            True,
        ),
        (CallToolResult(content=[TextContent(type="text", text="no")], is_error=True), "no", False),
        (CallToolResult(content=[], structured_content={"a": 1}), '{"a": 1}', True),
        (ResultObject([Block("text", "an object")]), "an object", True),
        (ResultObject([Block("text", "it failed")], is_error=True), "it failed", False),
        ({"content": [Block("text", "a block object")]}, "a block object", True),
    ],
)
def test_no_result_that_says_something_becomes_an_empty_text(
    given_result: Any, said: str, success: bool
) -> None:
    assert flatten(given_result) == said
    assert as_success(given_result) == {"success": success, "output": said}


def test_parts_are_joined_by_one_line_end_in_their_order() -> None:
    blocks = (text("first\n"), {"type": "resource_link", "uri": "x:1"}, text(""), text("last"))
    assert flatten(result(*blocks)) == "first\n\n[resource: x:1]\n\nlast"


def test_structured_content_is_said_only_where_there_is_no_other() -> None:
    structured = {"city": "Köln", "sizes": [1, 2]}
    assert flatten(result(text("said"), structuredContent=structured)) == "said"
    for without in (result(structuredContent=structured), {"structuredContent": structured}):
        assert json.loads(flatten(without)) == structured
        assert "Köln" in flatten(without)
    assert flatten({"toolResult": {"a": 1}}) == '{"a": 1}'


def test_nothing_at_all_is_no_text_and_a_failure_without_words_says_so() -> None:
    assert [flatten(each) for each in ({}, result(), result(text("")), {"content": None})] == [""] * 4
    assert flatten(result(isError=True)) == flatten({"isError": True}) == SILENT_FAILURE


def test_success_is_what_the_tool_says_of_itself() -> None:
    assert as_success(result(text("done"))) == {"success": True, "output": "done"}
    assert as_success(result(text("no such file"), isError=True)) == {
        "success": False,
        "output": "no such file",
    }
    assert as_success(result(text("done"), isError="false"))["success"] is True


def test_contents_of_a_resource_read_like_embedded_ones() -> None:
    contents = [{"uri": "file:///a", "text": "one"}, {"uri": "file:///b", "blob": "AAEC"}]
    assert flatten({"contents": contents}) == "one\n[resource: file:///b]"


@pytest.mark.parametrize("size_bytes", range(8))
def test_a_size_is_that_of_the_decoded_bytes(size_bytes: int) -> None:
    data = base64.b64encode(bytes(range(250, 250 + size_bytes)[:6]) + bytes(max(0, size_bytes - 6))).decode()
    assert bytes_in(data) == bytes_in(data.rstrip("=")) == bytes_in(f"\n{data}\n") == size_bytes


@behaviour("adapters:flat")
@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"type": "image", "mimeType": "image/png", "data": "!"}, "[image: image/png, unreadable]"),
        ({"type": "image", "mimeType": 7, "data": "AAAAA"}, "[image: unreadable]"),
        ({"type": "image", "data": None}, "[image: unreadable]"),
        ({"type": "audio"}, "[audio: unreadable]"),
        ({"type": "text", "text": 5}, "[text: unreadable]"),
        ({"type": "text"}, "[text: unreadable]"),
        ({"text": "without a kind"}, "without a kind"),
        ({"type": ["list"]}, "[content]"),
        ({}, "[content]"),
        ({"type": "resource"}, "[resource]"),
        ({"type": "resource", "resource": "file:///a"}, "[resource]"),
        ({"type": "resource", "resource": {"text": 3, "uri": "file:///a"}}, "[resource: file:///a]"),
        ({"type": "resource_link", "uri": 3}, "[resource]"),
        ({"type": "a\nb"}, "[a b]"),
        ("bare", "bare"),
        (None, "null"),
        (3.5, "3.5"),
        ([1], "[1]"),
    ],
)
def test_broken_blocks_are_said_as_well_as_can_be(block: Any, said: str) -> None:
    assert flatten(result(block)) == said


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("bare", "bare"),
        (None, "null"),
        ([1, "a"], '[1, "a"]'),
        ({"content": "bare"}, "bare"),
        ({"content": text("one block")}, "one block"),
        ({"content": 5}, "5"),
        ({"contents": "file"}, "[resource]"),
        ({"structuredContent": 10**5000}, "[result: unreadable]"),
        ({"structuredContent": {1, 2}}, "[result: unreadable]"),
    ],
)
def test_broken_results_are_said_as_well_as_can_be(broken: Any, said: str) -> None:
    assert flatten(broken) == said
    assert as_success(broken) == {"success": True, "output": said}


def test_depth_and_circles_are_refused_not_followed() -> None:
    deep: Any = "bottom"
    for _ in range(100_000):
        deep = [deep]
    circle: Json = {}
    circle["itself"] = circle
    for value in (deep, circle):
        assert flatten({"structuredContent": value}) in {
            "[result: nested too deep]",
            "[result: unreadable]",
        }
    while isinstance(deep, list):  # taken apart by hand: Python's own way down is recursive as well
        deep = deep[0]


def test_half_a_surrogate_pair_becomes_a_sign_that_can_be_sent() -> None:
    assert flatten(result(text("cut \ud83d"))) == "cut \ufffd"
    assert flatten(result(text("\ud83d\ude00"))) == "\U0001f600"
    assert flatten({"structuredContent": {"a": "\ude00"}}) == '{"a": "\ufffd"}'


def test_a_uri_that_holds_a_file_is_cut() -> None:
    said = flatten(result({"type": "resource_link", "uri": "data:text/plain," + "a" * 9000}))
    assert said.endswith("a…]")
    assert len(said) == len("[resource: ]") + MAX_LABEL_CHARS


WORDS = st.sampled_from(
    ["type", "text", "data", "mimeType", "uri", "resource", "content", "isError", "structuredContent", "blob"]
) | st.text(st.characters(codec=None), max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.sampled_from(["image", PNG]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=20,
)


@behaviour("adapters:flat")
@given(VALUES)
def test_whatever_comes_as_a_result_is_a_text_that_can_be_sent(value: Any) -> None:
    for broken in (value, {"content": value}, {"content": [value]}, {"structuredContent": value}):
        said = flatten(broken)
        said.encode()
        assert as_success(broken)["output"] == said
