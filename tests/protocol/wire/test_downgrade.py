"""What agents of older versions are given instead of what they cannot know."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_types import CallToolResult, Tool

from carpool_protocol.ids import RawJson
from carpool_protocol.wire import content, downgrade, json_scan
from carpool_protocol.wire.content import TooManyPartsError
from carpool_protocol.wire.downgrade import (
    MAX_MIRRORED_BYTES,
    CannotDowngrade,
    downgrade_ask,
    downgrade_result,
    downgrade_tool,
    tool_edit,
)
from carpool_protocol.wire.json_scan import MAX_PARTS
from tests.behaviours import behaviour

VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
AUDIO = {"type": "audio", "data": "QUJD" * 100, "mimeType": "audio/wav", "annotations": {"priority": 1}}
LINK = {
    "type": "resource_link",
    "uri": "file:///a",
    "name": "a.txt",
    "mimeType": "text/plain",
    "description": "The a.",
}
TEXT = {"type": "text", "text": 'says "audio" and "resource_link"'}
EMBEDDED = {"type": "resource", "resource": {"uri": "x:1", "text": "t"}}


def raw(value: object) -> RawJson:
    return RawJson(json.dumps(value).encode())


def result(version: str, value: object, method: str = "tools/call") -> Any:
    return json.loads(downgrade_result(method, version, raw(value)))


def kinds(version: str) -> list[str]:
    content = result(version, {"content": [TEXT, AUDIO, LINK, EMBEDDED]})["content"]
    assert content[0] == TEXT
    assert content[3] == EMBEDDED
    return [block["type"] for block in content[1:3]]


# --- results -----------------------------------------------------------------------------------------------


def test_a_result_or_block_with_too_many_members_to_be_read_does_not_pass_as_it_is() -> None:
    more = {f"m{n}": 0 for n in range(1001)}
    for value in ({"content": [LINK | more]}, {"content": [LINK]} | more):
        with pytest.raises(TooManyPartsError):
            result("2024-11-05", value)
        assert result("2025-11-25", value) == value


@behaviour("downgrade:content")
def test_blocks_become_text_below_the_version_that_brought_them() -> None:
    assert [kinds(version) for version in VERSIONS] == [
        ["text", "text"],
        ["audio", "text"],
        ["audio", "resource_link"],
        ["audio", "resource_link"],
        ["audio", "resource_link"],
    ]


def test_the_text_says_what_stood_there() -> None:
    audio, link = result("2024-11-05", {"content": [AUDIO, LINK]})["content"]
    assert audio["text"] == "[Audio (audio/wav, about 300 bytes): this agent's version of MCP has no audio.]"
    assert audio["annotations"] == {"priority": 1}
    assert link["text"] == "[Resource link] a.txt: file:///a (text/plain)\nThe a."
    assert result("2024-11-05", {"content": [{"type": "resource_link"}, {"type": "audio"}]})["content"] == [
        {"type": "text", "text": "[Resource link] Resource: "},
        {
            "type": "text",
            "text": "[Audio (of unknown type, about 0 bytes): this agent's version of MCP has no audio.]",
        },
    ]


def test_the_one_block_of_a_prompts_message_is_downgraded_too() -> None:
    messages = [{"role": "user", "content": AUDIO}, {"role": "assistant", "content": TEXT}]
    seen = result("2024-11-05", {"messages": messages}, "prompts/get")["messages"]
    assert seen[0]["role"] == "user"
    assert seen[0]["content"]["type"] == "text"
    assert seen[1] == messages[1]


@behaviour("downgrade:structured")
@pytest.mark.parametrize("version", VERSIONS[:4])
@pytest.mark.parametrize("value", [[1], "s", 1, None, True])
def test_structured_content_that_is_no_object_goes_in_the_handshake_era(version: str, value: object) -> None:
    assert result(version, {"content": [TEXT], "structuredContent": value}) == {"content": [TEXT]}


def test_structured_content_that_goes_leaves_its_text_where_there_is_no_other() -> None:
    mirror = {"content": [{"type": "text", "text": "[1, 2]"}]}
    assert result("2025-11-25", {"structuredContent": [1, 2], "content": []}) == mirror
    assert result("2025-11-25", {"structuredContent": [1, 2]}) == mirror
    assert result("2025-11-25", {"structuredContent": [1, 2], "isError": True}) == {**mirror, "isError": True}


@pytest.mark.parametrize("version", VERSIONS)
def test_an_object_stays_and_so_does_any_value_in_the_stateless_era(version: str) -> None:
    sound = raw({"content": [TEXT], "structuredContent": {"structuredContent": [1]}})
    assert downgrade_result("tools/call", version, sound) is sound
    odd = raw({"content": [], "structuredContent": [1]})
    assert downgrade_result("tools/call", "2026-07-28", odd) is odd


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("method", ["tools/call", "prompts/get", "resources/read", "completion/complete"])
def test_a_result_in_which_nothing_is_to_be_done_is_the_same_object(version: str, method: str) -> None:
    values: list[Any] = [
        {"content": [TEXT, EMBEDDED]},
        {"messages": [{"role": "user", "content": TEXT}]},
        {},
        [],
        None,
    ]
    for value in values:
        untouched = raw(value)
        assert downgrade_result(method, version, untouched) is untouched
    audio_elsewhere = raw({"contents": [AUDIO]})
    assert downgrade_result(method, version, audio_elsewhere) is audio_elsewhere


def test_every_other_byte_of_a_result_stays() -> None:
    line = b'{"x":1.00, "content":[ {"type":"text","text":"\\u00fc\\ud83d"} , {"type":"audio"}],'
    line += b'"content2":[{"type":"audio"}]}'
    seen = downgrade_result("tools/call", "2024-11-05", RawJson(line))
    assert seen.startswith(b'{"x":1.00,"content":[{"type":"text","text":"\\u00fc\\ud83d"},{"type":"text"')
    assert seen.endswith(b',"content2":[{"type":"audio"}]}')


blocks = st.sampled_from([TEXT, AUDIO, LINK, EMBEDDED, {"type": "new"}, {}, None, 7, [AUDIO]])


@given(st.lists(blocks, max_size=4), st.sampled_from(VERSIONS), st.sampled_from([{}, [1], None, "x"]))
@settings(deadline=None)
def test_what_was_downgraded_once_stays_as_it_is(
    content: list[Any], version: str, structured: object
) -> None:
    once = downgrade_result("tools/call", version, raw({"content": content, "structuredContent": structured}))
    assert downgrade_result("tools/call", version, once) is once
    seen = json.loads(once)["content"]
    assert len(seen) >= len(content)
    known = [block for block in seen if block in (TEXT, EMBEDDED)]
    assert [block for block in content if block in (TEXT, EMBEDDED)] == known


@behaviour("downgrade:content")
def test_a_downgraded_result_is_one_that_a_strict_reader_of_its_version_takes() -> None:
    CallToolResult.model_validate(result("2024-11-05", {"content": [AUDIO, LINK], "structuredContent": 3}))


# --- tools -------------------------------------------------------------------------------------------------


def tool(**rest: object) -> dict[str, object]:
    return {"name": "t", "inputSchema": {"type": "object", "x": 1.0}, **rest}


def seen_tool(version: str, **rest: object) -> dict[str, object]:
    definition = raw(tool(**rest))
    seen = downgrade_tool(version, definition)
    assert len(seen) <= len(definition)
    found: dict[str, object] = json.loads(seen)
    Tool.model_validate(found)
    return found


@behaviour("tasks:hidden")
def test_execution_is_for_agents_of_the_version_that_has_it() -> None:
    optional = {"taskSupport": "optional"}
    for version in VERSIONS:
        expected = tool(execution=optional) if version == "2025-11-25" else tool()
        assert seen_tool(version, execution=optional) == expected


@behaviour("tasks:hidden")
def test_a_tool_that_must_be_a_task_looks_like_any_other_since_we_drive_the_task() -> None:
    for version in VERSIONS:
        assert seen_tool(version, execution={"taskSupport": "required"}) == tool()
    described = tool(description='"taskSupport": "required"', execution={"taskSupport": "forbidden"})
    assert json.loads(downgrade_tool("2025-11-25", raw(described))) == described


@behaviour("downgrade:structured")
def test_an_output_schema_of_no_object_goes_in_the_handshake_era() -> None:
    sound = {"type": "object", "properties": {}}
    for version in VERSIONS:
        is_stateless = version == "2026-07-28"
        assert seen_tool(version, outputSchema=sound) == tool(outputSchema=sound)
        for odd in ({"type": "array"}, {}, {"type": ["object", "null"]}, {"anyOf": [sound]}):
            definition = raw(tool(outputSchema=odd))
            expected = tool(outputSchema=odd) if is_stateless else tool()
            assert json.loads(downgrade_tool(version, definition)) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_a_plain_tool_is_the_same_object(version: str) -> None:
    definition = raw(tool(outputSchema={"type": "object"}, description='mentions "execution" in passing'))
    assert downgrade_tool(version, definition) is definition


def test_versions_that_see_the_same_share_one_edit() -> None:
    assert tool_edit("2024-11-05") is tool_edit("2025-06-18")
    assert tool_edit("2025-06-18") is not tool_edit("2025-11-25")


# --- asks --------------------------------------------------------------------------------------------------


def ask(version: str, method: str, params: object) -> Any:
    seen = downgrade_ask(version, method, raw(params))
    return seen if isinstance(seen, CannotDowngrade) else json.loads(seen)


def sampling(*contents: object, **rest: object) -> dict[str, object]:
    return {
        "messages": [{"role": "user", "content": it, "_meta": {}} for it in contents],
        "maxTokens": 9,
        **rest,
    }


def test_content_in_several_blocks_becomes_a_message_for_each() -> None:
    asked = sampling([TEXT, AUDIO], TEXT, [], systemPrompt="s")
    assert ask("2025-06-18", "sampling/createMessage", asked) == sampling(TEXT, AUDIO, TEXT, systemPrompt="s")
    assert ask("2025-11-25", "sampling/createMessage", asked) == asked


def test_audio_in_sampling_becomes_text_for_the_version_that_has_none() -> None:
    seen = ask("2024-11-05", "sampling/createMessage", sampling(AUDIO, TEXT))
    assert [message["content"]["type"] for message in seen["messages"]] == ["text", "text"]
    plain = raw(sampling(AUDIO, TEXT))
    assert downgrade_ask("2025-03-26", "sampling/createMessage", plain) is plain


@behaviour("downgrade:asks")
@pytest.mark.parametrize(
    "asked",
    [
        sampling(TEXT, tools=[{"name": "t"}]),
        sampling({"type": "tool_use", "id": "1"}),
        sampling([TEXT, {"type": "tool_result", "toolUseId": "1", "content": []}]),
    ],
)
def test_sampling_with_tools_is_refused_as_the_specification_says(asked: object) -> None:
    refusal = ask("2025-06-18", "sampling/createMessage", asked)
    assert isinstance(refusal, CannotDowngrade)
    assert refusal.code == -32602
    assert ask("2025-11-25", "sampling/createMessage", asked) == asked


def test_an_offer_of_no_tools_is_left_out() -> None:
    asked = sampling(TEXT, tools=[], toolChoice={"mode": "none"})
    assert ask("2025-06-18", "sampling/createMessage", asked) == sampling(TEXT)


def form(required: list[str] | None = None, **properties: object) -> dict[str, object]:
    schema: dict[str, object] = {"type": "object", "properties": properties}
    if required is not None:
        schema["required"] = required
    return {"message": "m", "requestedSchema": schema}


PLAIN = {"type": "string", "format": "email", "default": "a@b"}
TITLED = {
    "type": "string",
    "title": "T",
    "oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": ""}],
}
MULTI = {"type": "array", "items": {"type": "string", "enum": ["a"]}}


def test_a_form_of_old_parts_is_the_same_object() -> None:
    forms: list[Any] = [
        form(name=PLAIN, n={"type": "integer"}),
        {"mode": "form", **form(["name"], name=PLAIN)},
        {},
        [],
    ]
    for asked in forms:
        plain = raw(asked)
        assert downgrade_ask("2025-06-18", "elicitation/create", plain) is plain


@behaviour("downgrade:asks")
def test_a_titled_enum_is_said_in_the_older_way() -> None:
    asked = form(["c"], c=TITLED, name=PLAIN)
    expected = {"enum": ["a", "b"], "enumNames": ["A", "b"], "type": "string", "title": "T"}
    assert ask("2025-06-18", "elicitation/create", asked) == form(["c"], c=expected, name=PLAIN)
    assert ask("2025-11-25", "elicitation/create", asked) == asked


def test_a_multi_select_is_left_out_unless_it_is_required() -> None:
    assert ask("2025-06-18", "elicitation/create", form(["name"], m=MULTI, name=PLAIN)) == form(
        ["name"], name=PLAIN
    )
    refusal = ask("2025-06-18", "elicitation/create", form(["m"], m=MULTI))
    assert isinstance(refusal, CannotDowngrade)
    assert refusal.code == -32602


@behaviour("downgrade:asks")
def test_elicitation_by_url_and_elicitation_before_its_time_are_refused() -> None:
    by_url = ask("2025-06-18", "elicitation/create", {"mode": "url", "url": "https://x", "message": "m"})
    assert (type(by_url), by_url.code) == (CannotDowngrade, -32602)
    too_early = ask("2025-03-26", "elicitation/create", form(name=PLAIN))
    assert (type(too_early), too_early.code) == (CannotDowngrade, -32601)


@given(st.binary(max_size=20), st.sampled_from(VERSIONS))
@settings(deadline=None)
def test_bytes_raise_nothing_but_that_they_cannot_be_changed(junk: bytes, version: str) -> None:
    for text in (
        junk,
        b'{"content":' + junk + b"}",
        b'{"content":[{"type":"audio","mimeType":' + junk + b"}]}",
        b'{"structuredContent":' + junk + b"}",
        b'{"outputSchema":' + junk + b',"execution":' + junk + b"}",
        b'{"messages":' + junk + b',"tools":' + junk + b"}",
        b'{"requestedSchema":{"properties":{"oneOf":' + junk + b'},"required":' + junk + b"}}",
    ):
        raw_text = RawJson(text)
        for method in ("tools/call", "prompts/get"):
            with suppress(TooManyPartsError):
                downgrade_result(method, version, raw_text)
        downgrade_tool(version, raw_text)
        downgrade_ask(version, "sampling/createMessage", raw_text)
        downgrade_ask(version, "elicitation/create", raw_text)


# --- bounds ----------------------------------------------------------------------------------------------


@behaviour("answers:bounded-rewrite")
@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
def test_a_result_that_takes_too_long_to_downgrade_is_refused(method: str) -> None:
    block = b'{"type":"audio"}' if method == "tools/call" else b'{"content":{"type":"audio"}}'
    many = RawJson(b'{"content":[%b]}' % b",".join([block] * MAX_PARTS))
    many = RawJson(many.replace(b'"content":[', b'"messages":[')) if method == "prompts/get" else many
    with pytest.raises(TooManyPartsError):
        downgrade_result(method, "2024-11-05", many)
    assert downgrade_result(method, "2025-11-25", many) is many, "its agents know all of it"


def test_an_odd_structure_of_many_megabytes_is_refused() -> None:
    long = RawJson(b'{"structuredContent":"%b"}' % (b"a" * MAX_MIRRORED_BYTES))
    with pytest.raises(TooManyPartsError):
        downgrade_result("tools/call", "2025-11-25", long)


@behaviour("answers:bounded-rewrite")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("sampling/createMessage", {"messages": [{"content": TEXT}] * MAX_PARTS}),
        ("sampling/createMessage", {"messages": [{"content": [TEXT] * MAX_PARTS}]}),
        ("sampling/createMessage", {"messages": [{"x": "x" * 100_000, "content": [TEXT] * 100}]}),
        ("elicitation/create", form(["a"] * MAX_PARTS, m=MULTI)),
        ("elicitation/create", form(m={"type": "string", "oneOf": [{"const": "a"}] * MAX_PARTS})),
    ],
)
def test_an_ask_that_takes_too_long_to_downgrade_is_answered_with_an_error(
    method: str, params: object
) -> None:
    refusal = ask("2025-06-18", method, params)
    assert isinstance(refusal, CannotDowngrade)
    assert refusal.code == -32602
    assert "too long" in refusal.text


def test_a_message_is_cut_once_and_not_again_for_each_of_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_bytes = 0

    def counted(raw: bytes) -> list[json_scan.Member] | None:
        nonlocal cut_bytes
        cut_bytes += len(raw)
        return members(raw)

    members = json_scan.members
    for module in (json_scan, content, downgrade):
        monkeypatch.setattr(module, "members", counted)
    asked = raw(sampling([TEXT] * 1000))
    downgrade_ask("2025-06-18", "sampling/createMessage", asked)
    assert cut_bytes < 20 * len(asked)
