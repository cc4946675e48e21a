"""Lists of tools for model APIs, the names in them, and such lists read back."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.adapters import Toolbox, ToolListError, UnknownToolError, mcp_tools
from carpool_protocol.config.reading.tools_file import read_tools
from carpool_protocol.ids import ServerName
from tests.behaviours import behaviour

Json = dict[str, Any]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "sky__weather", "description": "Says how it is.", "inputSchema": CITY}
FREE = {"name": "sky__tell", "inputSchema": {"type": "object", "properties": {"any": {}}}}
STRICT_CITY = {**CITY, "additionalProperties": False}


def test_a_list_for_chat_completions() -> None:
    assert Toolbox([WEATHER]).openai() == [
        {
            "type": "function",
            "function": {"name": "sky__weather", "description": "Says how it is.", "parameters": CITY},
        }
    ]


def test_a_list_for_the_responses_api_says_that_it_is_not_strict() -> None:
    assert Toolbox([WEATHER]).openai_responses() == [
        {
            "type": "function",
            "name": "sky__weather",
            "description": "Says how it is.",
            "parameters": CITY,
            "strict": False,
        }
    ]


def test_a_list_for_the_messages_api() -> None:
    assert Toolbox([WEATHER, FREE]).anthropic() == [
        {"name": "sky__weather", "description": "Says how it is.", "input_schema": CITY},
        {"name": "sky__tell", "input_schema": FREE["inputSchema"]},
    ]


@behaviour("adapters:strict")
def test_a_strict_list_leaves_tools_without_a_strict_form_as_they_are_and_says_why() -> None:
    toolbox = Toolbox([WEATHER, FREE])
    weather, tell = [each["function"] for each in toolbox.openai(strict=True)]
    assert (weather["parameters"], weather["strict"]) == (STRICT_CITY, True)
    assert (tell["parameters"], "strict" in tell) == (FREE["inputSchema"], False)
    assert [each["strict"] for each in toolbox.openai_responses(strict=True)] == [True, False]
    assert toolbox.not_strict() == {"sky__tell": "any takes a value of any type"}


def test_a_rule_that_cannot_be_shown_stands_in_the_description() -> None:
    either = {**CITY, "anyOf": [{"required": ["city"]}]}
    (shown,) = Toolbox([{**WEATHER, "inputSchema": either}]).anthropic()
    assert shown["input_schema"] == CITY
    assert shown["description"].startswith("Says how it is.\n\nThe arguments must also fit")


def test_a_description_is_the_tools_or_its_title_and_is_cut_only_where_asked() -> None:
    long = {**WEATHER, "description": "a" * 2000}
    assert len(Toolbox([long]).openai()[0]["function"]["description"]) == 2000
    assert Toolbox([long]).openai(description_chars=1024)[0]["function"]["description"].endswith("a…")
    assert len(Toolbox([long]).anthropic(description_chars=1024)[0]["description"]) == 1024
    assert Toolbox([{"name": "a", "title": "T"}]).anthropic()[0]["description"] == "T"
    assert "description" not in Toolbox([{"name": "a", "description": 5}]).anthropic()[0]


@behaviour("adapters:names")
def test_names_are_made_legal_and_lead_back() -> None:
    long = "a" * 80
    toolbox = Toolbox([{"name": name} for name in ("get.page", "get_page", "a b", "", long, "fine-1")])
    shown = toolbox.names
    assert (shown["a b"], shown["fine-1"], shown[""]) == ("a_b", "fine-1", "_")
    assert re.fullmatch("a{55}_[0-9a-f]{8}", shown[long])
    assert {toolbox.original(shown[name]): name for name in shown} == {name: name for name in shown}
    assert shown["get.page"] != shown["get_page"]
    assert toolbox.original("a b") == "a b"


def test_a_name_that_is_not_in_the_list_is_refused_with_what_looks_alike() -> None:
    toolbox = Toolbox([WEATHER, {"name": "x.y"}, {"name": "x_y"}])
    with pytest.raises(UnknownToolError, match="Did you mean sky__weather"):
        toolbox.original("sky__wether")
    with pytest.raises(UnknownToolError, match=r"list\. Nothing was called"):
        toolbox.arguments("nothing_alike_at_all", {})
    with pytest.raises(UnknownToolError, match=r"Did you mean x_y_[0-9a-f]{8} or x_y_[0-9a-f]{8}"):
        toolbox.original("x_y")


def test_arguments_lead_back_to_the_tools_own_schema() -> None:
    two = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    toolbox = Toolbox([{"name": "do it", "inputSchema": two}])
    assert toolbox.arguments("do_it", {"a": "x", "b": None}) == {"a": "x"}


@behaviour("adapters:names")
def test_parameters_are_shown_by_legal_names_that_lead_back() -> None:
    text = {"type": "string"}
    keys = ["$filter", "_filter", "größe", "b" * 70, "$top", "fine.key"]
    tool = {
        "name": "find",
        "inputSchema": {"type": "object", "properties": dict.fromkeys(keys, text), "required": ["$filter"]},
    }
    toolbox = Toolbox([tool])
    schema = toolbox.anthropic()[0]["input_schema"]
    shown = list(schema["properties"])
    assert all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", key) for key in shown)
    assert (shown[1], shown[2], shown[4], shown[5]) == ("_filter", "gr__e", "_top", "fine.key")
    assert schema["required"] == [shown[0]]
    assert toolbox.arguments("find", {key: key for key in shown}) == dict(zip(keys, shown, strict=True))
    assert toolbox.openai(strict=True)[0]["function"]["parameters"]["required"] == shown
    assert toolbox.arguments("find", dict.fromkeys(shown)) == {"$filter": None}


@given(st.lists(st.text(st.characters(codec=None), max_size=70) | st.text("a._$", max_size=2), unique=True))
def test_whatever_parameters_are_called_their_shown_names_are_legal_and_distinct(keys: list[str]) -> None:
    tool = {"name": "t", "inputSchema": {"type": "object", "properties": {key: {} for key in keys}}}
    toolbox = Toolbox([tool])
    shown = list(toolbox.anthropic()[0]["input_schema"]["properties"])
    assert all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", key) for key in shown)
    assert toolbox.arguments("t", dict.fromkeys(shown, 1)) == dict.fromkeys(keys, 1)


def test_of_two_tools_of_one_name_the_first_counts_and_one_without_a_name_is_refused() -> None:
    assert Toolbox([WEATHER, {**WEATHER, "description": "other"}]).anthropic()[0]["description"][:4] == "Says"
    with pytest.raises(ToolListError, match="tool 1 of the list has no name"):
        Toolbox([WEATHER, {"name": 5}])


def test_tools_of_the_python_client_are_taken_as_they_are() -> None:
    class Tool:
        def as_mcp(self) -> Json:
            return WEATHER

    assert Toolbox([Tool()]).names == {"sky__weather": "sky__weather"}


NAMES = st.lists(st.text(st.characters(codec=None), max_size=80) | st.text("ab._", max_size=3), max_size=12)


@behaviour("adapters:names")
@given(NAMES)
def test_whatever_tools_are_called_their_shown_names_are_legal_distinct_and_lead_back(
    names: list[str],
) -> None:
    toolbox = Toolbox([{"name": name} for name in names])
    shown = toolbox.names
    assert list(shown) == list(dict.fromkeys(names))
    assert len(set(shown.values())) == len(shown)
    for own, name in shown.items():
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)
        assert toolbox.original(name) == own


# --- lists that were written for models ----------------------------------------------------------------

FUNCTION = {"name": "weather", "description": "Says how it is.", "parameters": CITY}
OPEN_CITY = {"type": "object", "properties": CITY["properties"]}


@behaviour("adapters:lists")
@pytest.mark.parametrize(
    "entry",
    [
        {"type": "function", "function": FUNCTION},
        {"type": "function", "function": {**FUNCTION, "strict": True}},
        {"type": "function", **FUNCTION, "strict": False},
        FUNCTION,
        {"name": "weather", "description": "Says how it is.", "input_schema": CITY},
        {"type": "custom", "name": "weather", "description": "Says how it is.", "input_schema": CITY},
        {"name": "weather", "description": "Says how it is.", "inputSchema": CITY},
        {**FUNCTION, "parameters": OPEN_CITY, "required": ["city"]},
        {"type": "function", "function": {**FUNCTION, "parameters": OPEN_CITY}, "required": ["city"]},
        {"type": "function", "function": {**FUNCTION, "parameters": OPEN_CITY, "required": ["city"]}},
        {**FUNCTION, "parameters": CITY["properties"], "required": ["city"]},
        {**FUNCTION, "parameters": {"properties": CITY["properties"], "required": ["city"]}},
    ],
)
def test_every_shape_of_a_function_is_read_as_the_same_tool(entry: Json) -> None:
    assert mcp_tools([entry]) == [{"name": "weather", "description": "Says how it is.", "inputSchema": CITY}]
    assert mcp_tools({"tools": [entry]}) == mcp_tools({"functions": [entry]}) == mcp_tools([entry])


@pytest.mark.parametrize("more", [{}, {"parameters": None}, {"parameters": {}}, {"input_schema": {}}])
def test_a_function_without_parameters_takes_none(more: Json) -> None:
    (tool,) = mcp_tools([{"name": "now", **more}])
    assert tool["inputSchema"].get("type") == "object"
    assert Toolbox([tool]).anthropic()[0]["input_schema"] == {"type": "object", "properties": {}}


def test_what_is_required_within_and_beside_is_required_once() -> None:
    (tool,) = mcp_tools([{**FUNCTION, "required": ["city", "day", 5]}])
    assert tool["inputSchema"]["required"] == ["city", "day"]
    (tool,) = mcp_tools([{**FUNCTION, "required": True}])
    assert tool["inputSchema"] == CITY
    assert CITY["required"] == ["city"]


def test_a_parameter_may_be_called_like_a_word_of_schemas() -> None:
    named = {"type": {"type": "string"}, "properties": {"type": "object"}, "required": {"type": "boolean"}}
    (tool,) = mcp_tools([{"name": "make", "parameters": named}])
    assert tool["inputSchema"] == {"type": "object", "properties": named}


def test_unions_and_definitions_are_kept() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/A"}]}, "b": {"type": ["x"]}},
        "$defs": {"A": {"type": "integer"}},
    }
    assert mcp_tools([{"name": "u", "parameters": schema}])[0]["inputSchema"] == schema


@pytest.mark.parametrize(
    ("given_", "why"),
    [
        ("tools", "a list of tools is needed"),
        ({"nothing": []}, "a list of tools is needed"),
        (["name"], "tool 0 is no object"),
        ([FUNCTION, {"description": "x"}], "tool 1 has no name"),
        ([{"type": "web_search"}], "tool 0 is of type 'web_search'"),
        ([{"type": "bash_20250124", "name": "bash"}], "tool 0 is of type 'bash_20250124'"),
        ([{"type": "custom", "name": "code", "format": {"type": "text"}}], "tool 0 is of type 'custom'"),
        ([{"name": "a", "parameters": []}], r"the parameters of tool 0 \(a\) are no object"),
        ([{"name": "a", "parameters": {"x": 5}}], r"tool 0 \(a\) are neither a schema nor a map"),
    ],
)
def test_a_list_that_cannot_be_read_says_where_and_why(given_: Any, why: str) -> None:
    with pytest.raises(ToolListError, match=why):
        mcp_tools(given_)


@behaviour("adapters:lists")
def test_a_list_for_models_can_be_a_tools_file() -> None:
    tools = mcp_tools([{"type": "function", "function": FUNCTION}, {"name": "now"}])
    offers = read_tools(json.dumps({"tools": tools}), "tools.json", ServerName("sky"))
    assert isinstance(offers, tuple)
    assert [json.loads(offer.definition) for offer in offers] == tools


@behaviour("adapters:lists")
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=70),
        st.dictionaries(
            st.text("abc_.-", min_size=1, max_size=5),
            st.sampled_from([{"type": "string"}, {"type": ["integer", "null"]}, {"enum": ["a"]}]),
            max_size=3,
        ),
        max_size=4,
    )
)
def test_a_list_goes_to_each_api_and_comes_back_as_it_was(named: dict[str, Json]) -> None:
    tools = [
        {
            "name": name,
            "description": f"d {name}",
            "inputSchema": {"type": "object", "properties": properties, "required": list(properties)[:1]},
        }
        for name, properties in named.items()
    ]
    toolbox = Toolbox(tools)
    for shown in (toolbox.openai(), toolbox.openai_responses(), toolbox.anthropic()):
        back = mcp_tools(json.loads(json.dumps(shown)))
        assert [{**tool, "name": toolbox.original(tool["name"])} for tool in back] == tools
