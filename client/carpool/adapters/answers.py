"""Runs all tool calls of a model's answer at once, and returns the messages to go on with.

Owns that every call is answered, also one that nobody can run or that ends with an exception: both APIs
refuse the next request while one is missing. Whoever has an `async call(name, arguments)` can run them.

Apart from `calls`, which is pure and needs no event loop. Refuses to know how a model is asked, and what a
call is to the one who runs it.
"""

import logging
from collections.abc import Mapping
from typing import Any, Protocol

import anyio

from carpool.adapters.calls import ModelCall, answered, anthropic_calls, failure, openai_calls
from carpool.adapters.tools import Toolbox, UnknownToolError
from carpool.errors import CarpoolError

Json = dict[str, Any]
_log = logging.getLogger(__name__)


class Caller(Protocol):
    """Interface of an object that runs calls: `carpool.Carpool`, or any other with this method."""

    async def call(self, name: str, arguments: Mapping[str, Any], /) -> Any:
        """The result of a tool: what MCP says, or an object with that as `raw`."""


async def answer_openai(
    caller: Caller, answer: object, toolbox: Toolbox | None = None, *, whole: bool = False
) -> list[Json]:
    """Run the calls in a model's answer, all at once; the messages to append behind it, in its order.

    `answer`: of chat completions (then the messages have the role `tool`) or of the Responses API (then they
    are `function_call_output` items), as JSON or as an object of the `openai` package. Empty where nothing is
    called. `toolbox`: the list that the model was given; then a name that is not in it is not called. A call
    that raises is answered with what it raised; the others go on. `whole`: images stay images, which the
    Responses API takes.
    """
    calls = openai_calls(answer)
    results = await _run(caller, calls, toolbox)
    return [answered(call, result, whole=whole) for call, result in zip(calls, results, strict=True)]


async def answer_anthropic(
    caller: Caller, answer: object, toolbox: Toolbox | None = None, *, whole: bool = False
) -> list[Json]:
    """The same for the Messages API: one user message with all results; empty where nothing is called."""
    calls = anthropic_calls(answer)
    results = await _run(caller, calls, toolbox)
    blocks = [answered(call, result, whole=whole) for call, result in zip(calls, results, strict=True)]
    return [{"role": "user", "content": blocks}] if blocks else []


async def _run(caller: Caller, calls: list[ModelCall], toolbox: Toolbox | None) -> list[Mapping[str, Any]]:
    results: list[Mapping[str, Any]] = [{}] * len(calls)

    async def run(at: int, call: ModelCall) -> None:
        results[at] = await _result(caller, call, toolbox)

    async with anyio.create_task_group() as group:
        for at, call in enumerate(calls):
            group.start_soon(run, at, call)
    return results


async def _result(caller: Caller, call: ModelCall, toolbox: Toolbox | None) -> Mapping[str, Any]:
    if call.problem:
        return failure(call.problem)
    name, arguments = call.name, call.arguments
    try:
        if toolbox is not None:
            name, arguments = toolbox.original(name), toolbox.arguments(name, arguments)
        found = await caller.call(name, arguments)
    except (CarpoolError, UnknownToolError) as error:
        return failure(str(error))  # whole sentences, for a model
    except Exception as error:  # noqa: BLE001  # the other calls have run: their answers must not be lost
        _log.warning("a call of a model ended with %s", type(error).__name__, exc_info=True)
        return failure(f"The call ended with {type(error).__name__} and may have been executed.")
    raw = found if isinstance(found, Mapping) else getattr(found, "raw", None)
    return raw if isinstance(raw, Mapping) else failure("The call gave nothing that can be read.")
