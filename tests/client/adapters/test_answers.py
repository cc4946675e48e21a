"""The calls of a model's answer, run by whoever can."""

from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from carpool import Refused
from carpool.adapters import Toolbox, answer_anthropic, answer_openai
from tests.behaviours import behaviour

Json = dict[str, Any]
BOTH = pytest.mark.parametrize("backend", ["asyncio", "trio"])


class AnswersRig:
    """Answers with its own words; `meet` ends once so many of its calls are inside."""

    def __init__(self) -> None:
        self.called: list[tuple[str, Json]] = []
        self._inside = 0
        self._met = anyio.Event()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        self.called.append((name, dict(arguments)))
        match name:
            case "meet":
                self._inside += 1
                if self._inside == arguments["count"]:
                    self._met.set()
                with anyio.fail_after(20):
                    await self._met.wait()
            case "refused":
                raise Refused("The profile does not allow this tool. Nothing was called.", kind="denied")
            case "broken":
                raise KeyError("a secret")
            case "nothing":
                return None
            case _:
                pass
        return {"content": [{"type": "text", "text": f"{name} done"}]}


def chat(*calls: tuple[str, str]) -> Json:
    return {
        "role": "assistant",
        "tool_calls": [
            {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for at, (name, arguments) in enumerate(calls)
        ],
    }


def said(backend: str, desk: AnswersRig, answer: Any, toolbox: Toolbox | None = None) -> list[str]:
    messages: list[Json] = anyio.run(answer_openai, desk, answer, toolbox, backend=backend)
    return [str(message["content"]) for message in messages]


@BOTH
def test_calls_of_one_answer_run_at_once_and_are_answered_in_its_order(backend: str) -> None:
    answer = chat(("meet", '{"count": 3}'), ("plain", ""), ("meet", '{"count": 3}'), ("meet", '{"count": 3}'))
    messages = anyio.run(answer_openai, AnswersRig(), answer, backend=backend)
    assert [message["tool_call_id"] for message in messages] == ["c0", "c1", "c2", "c3"]
    assert [message["content"] for message in messages] == ["meet done", "plain done"] + ["meet done"] * 2


@behaviour("adapters:calls")
@BOTH
def test_a_call_that_fails_is_answered_and_costs_no_other(backend: str) -> None:
    answer = chat(("refused", "{}"), ("broken", "{}"), ("plain", "x"), ("nothing", "{}"), ("plain", "{}"))
    desk = AnswersRig()
    assert said(backend, desk, answer) == [
        "Error: The profile does not allow this tool. Nothing was called.",
        "Error: The call ended with KeyError and may have been executed.",
        "Error: The arguments are not valid JSON (Expecting value at line 1, column 1). Nothing was called;"
        " call again with an object.",
        "Error: The call gave nothing that can be read.",
        "plain done",
    ]
    assert len(desk.called) == 4


def test_with_a_toolbox_names_lead_back_and_others_are_not_called() -> None:
    optional = {"type": "object", "properties": {"a": {"type": "string"}}}
    toolbox = Toolbox([{"name": "look.up", "inputSchema": optional}])
    desk = AnswersRig()
    assert said("trio", desk, chat(("look_up", '{"a": null}'), ("look_op", "{}")), toolbox) == [
        "look.up done",
        "Error: There is no tool of this name in the list. Did you mean look_up? Nothing was called.",
    ]
    assert desk.called == [("look.up", {})]


@BOTH
def test_results_of_the_messages_api_are_one_user_message(backend: str) -> None:
    blocks = [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "u1", "name": "plain", "input": {}},
        {"type": "tool_use", "id": "u2", "name": "refused", "input": {}},
    ]
    (message,) = anyio.run(answer_anthropic, AnswersRig(), {"content": blocks}, backend=backend)
    assert message["role"] == "user"
    assert [block["tool_use_id"] for block in message["content"]] == ["u1", "u2"]
    assert [block.get("is_error") for block in message["content"]] == [None, True]


def test_an_answer_without_calls_wants_no_message() -> None:
    text = {"role": "assistant", "content": "42"}
    assert (
        anyio.run(answer_openai, AnswersRig(), text) == anyio.run(answer_anthropic, AnswersRig(), text) == []
    )
