"""Function calling over real servers: lists in each API's form, what a model writes, what it is given back.

The models are scripts here; the shapes are those of the APIs (`carpool.adapters`).
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from carpool import Carpool
from carpool.adapters import Toolbox, answer_anthropic, answer_openai, mcp_tools
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json
from tests.kit.live import Daemon, Make, kit
from tests.live.conftest import shared_daemon

LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}")
LOOK = "here__look_up__now_"


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    yield from shared_daemon({"here": kit("functions")})


def agent(daemon: Daemon) -> Carpool:
    return Carpool(runtime_dir=daemon.directory, environ=daemon.environ, start=False)


def chat(*calls: tuple[str, str]) -> Json:
    """What a model of chat completions says when it wants tools."""
    wanted = [
        {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": None, "tool_calls": wanted}
    return {"choices": [{"finish_reason": "tool_calls", "message": message}]}


@behaviour("adapters:round-trip")
async def test_a_model_of_chat_completions_is_served(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with agent(shared) as carpool:
            toolbox = Toolbox(await carpool.tools())
            functions = {each["function"]["name"]: each["function"] for each in toolbox.openai(strict=True)}
            assert len(functions) == 5
            assert all(LEGAL.fullmatch(name) for name in functions)
            assert functions[LOOK]["parameters"]["required"] == ["city", "unit", "_in_detail", "days"]
            assert "$defs" in functions[LOOK]["parameters"]
            assert functions["here__either"]["parameters"]["properties"].keys() == {"url", "id"}
            long = next(name for name in functions if "longer" in name)
            answers = await answer_openai(
                carpool,
                chat(
                    ("here__meet", '{"count": 2}'),
                    (LOOK, '{"city": "Köln", "unit": null, "days": null}'),
                    ("here__either", '{"url": "x", "id": null}'),
                    ("here__picture", ""),
                    (long, "{}"),
                    ("here__pictures", "{}"),
                    (LOOK, '{"city": '),
                    ("here__meet", '{"count": 2}'),
                ),
                toolbox,
            )
    assert {each["role"] for each in answers} == {"tool"}
    assert [each["tool_call_id"] for each in answers] == [f"call_{at}" for at in range(8)]
    met, looked, either, picture, _, unknown, broken, again = [each["content"] for each in answers]
    assert (met, again) == ("met", "met")
    assert json.loads(looked) == ["look.up (now)", {"city": "Köln"}]
    assert json.loads(either) == ["either", {"url": "x"}]
    assert picture == "a dot\n[image: image/png, 70 bytes]\n[resource: file:///dot.png]"
    assert "Did you mean here__picture?" in unknown
    assert broken.startswith("Error: The arguments are not valid JSON")


@behaviour("adapters:round-trip")
async def test_a_model_of_the_responses_api_is_served(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with agent(shared) as carpool:
            toolbox = Toolbox(await carpool.tools(server="here"))
            assert {each["strict"] for each in toolbox.openai_responses()} == {False}
            call = {"type": "function_call", "call_id": "c1", "name": LOOK, "arguments": '{"city": "Oslo"}'}
            (answer,) = await answer_openai(carpool, {"output": [{"type": "reasoning"}, call]}, toolbox)
    assert (answer["type"], answer["call_id"]) == ("function_call_output", "c1")
    assert json.loads(answer["output"]) == ["look.up (now)", {"city": "Oslo"}]


@behaviour("adapters:round-trip")
async def test_a_model_of_the_messages_api_is_served(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with agent(shared) as carpool:
            toolbox = Toolbox(await carpool.tools())
            schemas = {each["name"]: each["input_schema"] for each in toolbox.anthropic()}
            assert {schema["type"] for schema in schemas.values()} == {"object"}
            assert not any(
                key in schema for key in ("anyOf", "oneOf", "allOf") for schema in schemas.values()
            )
            wanted = [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "u1", "name": LOOK, "input": {"city": "Rom", "_in_detail": True}},
                {"type": "tool_use", "id": "u2", "name": "here__picture", "input": {}},
                {"type": "tool_use", "id": "u3", "name": "here__either", "input": {"other": None}},
            ]
            (message,) = await answer_anthropic(carpool, {"content": wanted}, toolbox, whole=True)
    looked, picture, refused = message["content"]
    assert json.loads(looked["content"][0]["text"]) == ["look.up (now)", {"city": "Rom", "$in detail": True}]
    assert [block["type"] for block in picture["content"]] == ["text", "image", "text"]
    assert (refused["is_error"], refused["content"]) == (True, "null is not of type 'string'")


WRITTEN: dict[str, list[Json]] = {
    "openai": [
        {
            "type": "function",
            "function": {
                "name": "echo",
                "description": "Says it again.",
                "parameters": {"type": "object", "properties": {"text": {"type": ["string", "null"]}}},
                "required": ["text"],
            },
        }
    ],
    "anthropic": [
        {
            "name": "echo",
            "description": "Says it again.",
            "input_schema": {
                "type": "object",
                "properties": {"text": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
                "required": ["text"],
            },
        }
    ],
}


@behaviour("adapters:round-trip", "adapters:lists")
@pytest.mark.parametrize("form", ["openai", "anthropic"])
async def test_a_list_that_was_written_for_a_model_stands_in_for_a_server_until_it_is_called(
    daemon: Make, form: str
) -> None:
    one = daemon(up=False)
    file = one.base / "tools.json"
    file.write_text(json.dumps(mcp_tools(WRITTEN[form])))
    one.configure({"far": kit("echo", tools_file=str(file))})
    one.up()
    with trio.fail_after(LIMIT_S):
        async with agent(one) as carpool:
            toolbox = Toolbox(await carpool.tools())
            shown: list[Any] = toolbox.openai() if form == "openai" else toolbox.anthropic()
            (back,) = mcp_tools(shown)
            assert back == {**mcp_tools(WRITTEN[form])[0], "name": "far__echo"}
            if form == "openai":
                (said,) = await answer_openai(carpool, chat(("far__echo", '{"text": "twice"}')), toolbox)
            else:
                use = {"type": "tool_use", "id": "u", "name": "far__echo", "input": {"text": "twice"}}
                (said,) = (await answer_anthropic(carpool, [use], toolbox))[0]["content"]
            assert said["content"] == "twice"


class ProviderObject(SimpleNamespace):
    """An object of a provider's package, as far as a program looks at it."""

    def model_dump(self) -> Json:
        return json.loads(json.dumps(self, default=vars))  # type: ignore[no-any-return]


def model(*answers: ProviderObject) -> Any:
    """A client of either provider that gives these answers, and keeps what it was asked."""
    left, asked = list(answers), []

    async def create(**request: Any) -> ProviderObject:
        asked.append({**request, "messages": list(request["messages"])})
        return left.pop(0)

    by_openai = SimpleNamespace(completions=SimpleNamespace(create=create))
    return SimpleNamespace(chat=by_openai, messages=SimpleNamespace(create=create), asked=asked)


@behaviour("adapters:round-trip")
async def test_the_page_does_what_it_says(shared: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs" / "function-calling.md"
    program: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(compile(block, str(page), "exec"), program)
    for name, value in shared.environ.items():
        monkeypatch.setenv(name, value)
    call = {"id": "c1", "type": "function", "function": {"name": LOOK, "arguments": '{"city": "Bern"}'}}
    use = {"type": "tool_use", "id": "u1", "name": "here__picture", "input": {}}
    wants, done = (
        ProviderObject(tool_calls=[call], content=None),
        ProviderObject(content="Cold.", tool_calls=None),
    )
    openai = model(
        ProviderObject(choices=[ProviderObject(message=wants)]),
        ProviderObject(choices=[ProviderObject(message=done)]),
    )
    claude = model(
        ProviderObject(content=[ProviderObject(**use)]),
        ProviderObject(content=[ProviderObject(type="text", text="A dot.")]),
    )
    with trio.fail_after(LIMIT_S):
        assert await program["ask_openai"](openai, "How is it?") == "Cold."
        assert await program["ask_claude"](claude, "What is it?") == "A dot."
    assert json.loads(openai.asked[1]["messages"][-1]["content"])[1] == {"city": "Bern"}
    assert claude.asked[1]["messages"][-1]["content"][0]["content"][1]["type"] == "image"
    source, target = shared.base / "functions.json", shared.base / "tools.json"
    source.write_text(json.dumps(WRITTEN["openai"]))
    program["convert"](source, target)
    assert json.loads(target.read_text())["tools"] == mcp_tools(WRITTEN["openai"])
