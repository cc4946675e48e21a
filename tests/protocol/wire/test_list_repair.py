"""Entries of lists that are not as MCP wants them: made what typed SDKs can read, and nothing else."""

import json
from typing import Any

import pytest
from mcp.types import ListPromptsResult, ListResourcesResult, ListResourceTemplatesResult, ListToolsResult

from carpool_protocol.ids import RawJson
from carpool_protocol.wire.list_repair import Family, lost_members, repair_entry
from tests.behaviours import behaviour

RESULTS: dict[Family, tuple[Any, str]] = {
    "tools": (ListToolsResult, "tools"),
    "prompts": (ListPromptsResult, "prompts"),
    "resources": (ListResourcesResult, "resources"),
    "templates": (ListResourceTemplatesResult, "resourceTemplates"),
}
OPEN = {"type": "object"}


def mended(entry: dict[str, Any], family: Family = "tools") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(repair_entry(RawJson(json.dumps(entry).encode()), family))
    kind, member = RESULTS[family]
    kind.model_validate({member: [found]}, by_name=False)
    return found


FULL = b'{"type":"object","properties":{"x":{}},"required":["x"]}'


DEEP = 50_000
"""No Python reads so deep: 3.11 gives up below 1,000 levels, 3.13 below 10,000."""


@pytest.mark.parametrize(
    ("raw", "family"),
    [
        (b'{ "name":"a", "inputSchema":%b, "x-own":null}' % FULL, "tools"),
        (b'{"inputSchema":%b,"outputSchema":{"type":"array"}}' % FULL, "tools"),
        (b'{"inputSchema":%b,"annotations":{"readOnlyHint":true}}' % FULL, "tools"),
        (b'{"inputSchema":%b,"description":"\\ud83d","title":null}' % FULL, "tools"),
        (b'{"inputSchema":{"properties":%b1%b}}' % (b'{"a":' * DEEP, b"}" * DEEP), "tools"),
        (b'{"name":"a","arguments":[{"name":"x"}]}', "prompts"),
        (b'{"uri":"a:b","name":"b","size":15,"annotations":{"audience":["user"]}}', "resources"),
        (b'{"uriTemplate":"a:{b}","name":"b","mimeType":"text/plain"}', "templates"),
    ],
    ids=["own", "result", "hints", "half-pair", "deep", "prompt", "resource", "template"],
)
def test_what_is_as_it_should_be_or_cannot_be_read_stays_byte_for_byte(raw: bytes, family: Family) -> None:
    assert repair_entry(RawJson(raw), family) == raw


@behaviour("lists:readable")
@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (None, OPEN),
        (3, OPEN),
        ({"type": "string"}, OPEN),
        ({"anyOf": [OPEN]}, {"type": "object", "anyOf": [OPEN]}),
        ({"type": "object", "required": True, "properties": None}, OPEN),
        (
            {"properties": {"a": True, "b": False, "c": OPEN}, "$defs": {}},
            {"type": "object", "properties": {"a": {}, "b": {"not": {}}, "c": OPEN}, "$defs": {}},
        ),
    ],
)
def test_the_schema_of_arguments_is_one_of_an_object(schema: object, wanted: object) -> None:
    assert mended({"name": "a", "inputSchema": schema}) == {"name": "a", "inputSchema": wanted}


@behaviour("lists:readable")
def test_a_tool_without_a_schema_takes_any_object() -> None:
    assert mended({"name": "a"}) == {"name": "a", "inputSchema": OPEN}


@behaviour("lists:readable")
def test_members_of_another_kind_are_left_out_and_all_others_stay() -> None:
    odd: dict[str, Any] = {
        "title": None, "description": 3, "annotations": {"title": None}, "icons": [{}], "_meta": [],
        "execution": "x", "outputSchema": True,
    }  # fmt: skip
    good = {"name": "a", "inputSchema": OPEN, "x-own": None}
    assert mended({**good, **odd}) == good
    result = {"type": "array", "required": None}
    assert mended({**good, "outputSchema": result})["outputSchema"] == {"type": "array"}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@behaviour("lists:readable")
@pytest.mark.parametrize(
    ("member", "odd"),
    [
        (
            "outputSchema",
            {"type": "object", "properties": {"a": {"type": "string", "pattern": r"^[\w-.]+$"}}},
        ),
        ("outputSchema", {"type": "object", "properties": {"a": {"$ref": "#/definitions/X"}}}),
        ("outputSchema", nested(400)),
        ("execution", {"taskSupport": "maybe"}),
        ("icons", [{"src": "a:b", "theme": "blue"}]),
    ],
    ids=["pattern", "reference", "deep", "task", "theme"],
)
def test_members_that_typed_agents_refuse_are_left_out(member: str, odd: object) -> None:
    good = {"name": "a", "inputSchema": OPEN}
    assert mended({**good, member: odd}) == good


@behaviour("lists:readable")
@pytest.mark.parametrize(
    ("schema", "wanted"),
    [(nested(400), {"type": "object"}), ({**OPEN, "$schema": 7}, OPEN), (nested(50), nested(50))],
)
def test_a_schema_of_arguments_that_typed_agents_cannot_read_says_less(
    schema: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert mended({"name": "a", "inputSchema": schema}) == {"name": "a", "inputSchema": wanted}


@behaviour("lists:readable")
@pytest.mark.parametrize(
    ("family", "entry", "wanted"),
    [
        ("prompts", {"name": "a", "arguments": None}, {"name": "a"}),
        ("prompts", {"name": "a", "arguments": [{"name": "x", "required": None}]}, {"name": "a"}),
        ("resources", {"uri": "a:b", "size": "big"}, {"uri": "a:b", "name": "a:b"}),
        ("resources", {"uri": "a:b", "size": 1.5}, {"uri": "a:b", "name": "a:b"}),
        ("resources", {"uri": "a:b", "annotations": {"priority": 5}}, {"uri": "a:b", "name": "a:b"}),
        ("resources", {"uri": "a:b", "annotations": {"lastModified": "May"}}, {"uri": "a:b", "name": "a:b"}),
        ("resources", {"uri": "a:b", "name": None}, {"uri": "a:b", "name": "a:b"}),
        ("templates", {"uriTemplate": "a:{b}"}, {"uriTemplate": "a:{b}", "name": "a:{b}"}),
    ],
)
def test_prompts_and_resources_are_mended_likewise(
    family: Family, entry: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert mended(entry, family) == wanted


@behaviour("doctor:lists")
@pytest.mark.parametrize(
    ("entry", "lost"),
    [
        ({"name": "a", "inputSchema": OPEN, "title": None, "outputSchema": None}, []),
        ({"name": "a", "inputSchema": OPEN, "outputSchema": True}, ["outputSchema"]),
        (
            {"name": "a", "inputSchema": OPEN, "execution": {"taskSupport": 1}},
            ["execution"],
        ),
        ({"name": "a", "inputSchema": nested(400)}, ["inputSchema"]),
        ({"name": "a", "inputSchema": 5}, ["inputSchema"]),
        ({"name": "a", "inputSchema": {}}, []),
        ({"name": "a", "inputSchema": {"properties": {}}}, []),
        ({"name": "a"}, []),
    ],
)
def test_what_a_repair_leaves_out_is_named_and_null_is_nothing(
    entry: dict[str, Any], lost: list[str]
) -> None:
    given = RawJson(json.dumps(entry).encode())
    assert lost_members(given, repair_entry(given, "tools")) == lost
