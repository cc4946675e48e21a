"""What models write when they want a tool, and what they are given back."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.adapters import ModelCall, answered, anthropic_calls, failure, openai_calls
from carpool.adapters.text import SILENT_FAILURE
from tests.behaviours import behaviour

Json = dict[str, Any]
PNG = {"type": "image", "mimeType": "image/png", "data": "AAEC"}
DONE = {"content": [{"type": "text", "text": "done"}]}


def chat(*arguments: Any) -> Json:
    calls = [
        {"id": f"call_{at}", "type": "function", "function": {"name": "t", "arguments": each}}
        for at, each in enumerate(arguments)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


class Model:
    """An object of a provider's package."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def model_dump(self) -> Any:
        return self._found


@pytest.mark.parametrize("wrap", [lambda it: it, lambda it: {"choices": [{"message": it}]}, Model])
def test_calls_of_chat_completions_are_found_in_a_message_and_in_the_whole_answer(wrap: Any) -> None:
    assert openai_calls(wrap(chat('{"a": 1}', "{}"))) == [
        ModelCall("chat", "call_0", "t", {"a": 1}),
        ModelCall("chat", "call_1", "t", {}),
    ]


def test_calls_of_the_responses_api_are_found_among_other_items() -> None:
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "t", "arguments": '{"a":1}'}
    output = [{"type": "reasoning", "summary": []}, item, {"type": "message", "content": []}]
    want = [ModelCall("responses", "call_1", "t", {"a": 1})]
    assert openai_calls({"output": output}) == openai_calls(output) == want
    assert openai_calls([Model(each) for each in output]) == openai_calls(Model({"output": output})) == want


def test_calls_of_the_messages_api_are_found_among_other_blocks() -> None:
    used = {"type": "tool_use", "id": "toolu_1", "name": "t", "input": {"a": 1}}
    blocks = [{"type": "text", "text": "I look."}, used, {"type": "server_tool_use", "id": "s", "name": "w"}]
    want = [ModelCall("anthropic", "toolu_1", "t", {"a": 1})]
    assert anthropic_calls({"role": "assistant", "content": blocks}) == anthropic_calls(blocks) == want
    assert anthropic_calls([Model(each) for each in blocks]) == want


@pytest.mark.parametrize(
    "nothing",
    [None, "text", 5, {}, [], {"tool_calls": None}, {"choices": []}, {"content": "said"}, {"output": "x"}],
)
def test_an_answer_without_calls_has_none(nothing: Any) -> None:
    assert openai_calls(nothing) == anthropic_calls(nothing) == []


def test_tools_that_take_free_text_are_not_ours() -> None:
    assert openai_calls({"tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "c"}}]}) == []


@pytest.mark.parametrize("arguments", ["", "  ", None, "{}", {}])
def test_no_arguments_at_all_are_none(arguments: Any) -> None:
    assert openai_calls(chat(arguments)) == [ModelCall("chat", "call_0", "t", {})]


@behaviour("adapters:calls")
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"secret": ', "The arguments are not valid JSON (Expecting value at line 1, column 12)."),
        ("secret", "The arguments are not valid JSON (Expecting value at line 1, column 1)."),
        ('["secret"]', "The arguments are no JSON object."),
        ('"secret"', "The arguments are no JSON object."),
        ('{"secret": NaN}', "The arguments are not JSON that can be read."),
        ('{"secret": %s}' % ("9" * 5000), "The arguments are not JSON that can be read."),
        ("[" * 100_000, "The arguments are not JSON that can be read."),
        (7, "The arguments are no JSON object."),
    ],
)
def test_arguments_that_cannot_be_read_are_a_problem_for_the_model_that_repeats_none_of_them(
    arguments: Any, problem: str
) -> None:
    (call,) = openai_calls(chat(arguments))
    assert (call.id, call.name, call.arguments) == ("call_0", "t", {})
    assert call.problem.startswith(problem)
    assert "secret" not in call.problem


def test_a_call_without_a_name_is_a_problem_too() -> None:
    assert (
        openai_calls({"tool_calls": [{"id": "c"}]})[0].problem
        == "This call names no tool. Nothing was called."
    )
    assert anthropic_calls([{"type": "tool_use", "id": "c", "name": "", "input": {}}])[0].problem


@behaviour("adapters:calls")
def test_a_result_is_a_message_an_item_or_a_block() -> None:
    assert answered(ModelCall("chat", "c1", "t", {}), DONE) == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": "done",
    }
    assert answered(ModelCall("responses", "c1", "t", {}), DONE) == {
        "type": "function_call_output",
        "call_id": "c1",
        "output": "done",
    }
    assert answered(ModelCall("anthropic", "c1", "t", {}), DONE) == {
        "type": "tool_result",
        "tool_use_id": "c1",
        "content": "done",
    }


@behaviour("adapters:calls")
def test_a_failure_is_seen_by_every_model() -> None:
    for call, key in (
        (ModelCall("chat", "c1", "t", {}), "content"),
        (ModelCall("responses", "c1", "t", {}), "output"),
    ):
        assert answered(call, failure("no such file"))[key] == "Error: no such file"
        assert answered(call, {"isError": True})[key] == f"Error: {SILENT_FAILURE}"
    block = answered(ModelCall("anthropic", "c1", "t", {}), failure("no such file"))
    assert (block["content"], block["is_error"]) == ("no such file", True)


def test_images_stay_images_where_that_is_asked() -> None:
    call = ModelCall("anthropic", "c1", "t", {})
    result = {"content": [{"type": "text", "text": "see"}, PNG, {"type": "text", "text": " "}]}
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAEC"}}
    assert answered(call, result)["content"] == "see\n[image: image/png, 3 bytes]\n "
    assert answered(call, result, whole=True)["content"] == [{"type": "text", "text": "see"}, image]
    responses = answered(ModelCall("responses", "c1", "t", {}), result, whole=True)
    assert responses["output"] == [
        {"type": "input_text", "text": "see"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAEC"},
    ]
    assert isinstance(answered(ModelCall("chat", "c1", "t", {}), result, whole=True)["content"], str)
    # A failure holds text only.
    assert isinstance(answered(call, {**result, "isError": True}, whole=True)["content"], str)
    assert answered(call, {"structuredContent": {"a": 1}}, whole=True)["content"] == '{"a": 1}'


@pytest.mark.parametrize(
    "image",
    [
        {**PNG, "mimeType": "image/svg+xml"},
        {**PNG, "mimeType": ["image/png"]},
        {**PNG, "data": "AA E="},
        {**PNG, "data": "AAE"},
        {**PNG, "data": ""},
        {**PNG, "data": 5},
    ],
)
def test_an_image_that_an_api_would_refuse_is_said_instead(image: Json) -> None:
    content = answered(ModelCall("anthropic", "c", "t", {}), {"content": [image]}, whole=True)["content"]
    assert [block["type"] for block in content] == ["text"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["tool_calls", "type", "function", "name", "arguments", "id", "input", "choices", "content"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(JSON)
def test_whatever_comes_as_an_answer_or_a_result_ends_in_json(value: Any) -> None:
    for call in (*openai_calls(value), *anthropic_calls(value), ModelCall("anthropic", "c", "t", {})):
        json.dumps(answered(call, value, whole=True))
        json.dumps(answered(call, {"content": value}, whole=True))
