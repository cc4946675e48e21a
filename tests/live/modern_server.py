"""A server of the stateless era (2026-07-28) on the official Python SDK: whatever one can ask and tell there.

It asks by answering a call with `InputRequiredResult`; what it has to remember rides in `requestState`.
"""

import os
from typing import Any

import anyio
import mcp_types as types
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.resources import TextResource
from mcp.types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ResourceTemplateReference,
)

server: MCPServer[None] = MCPServer("modern", instructions="Serves everything.")
running: set[str] = set()
cancelled: list[str] = []

Ctx = Context[None, None]


def given(context: Ctx) -> Any:
    """What the agent said, by key; empty at first."""
    return context.input_responses or {}


def form(message: str) -> types.ElicitRequest:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def sample(text: str) -> types.CreateMessageRequest:
    said = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=text))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[said], max_tokens=10))


@server.tool()
def echo(text: str) -> str:
    return text


@server.tool()
def pid() -> int:
    return os.getpid()


@server.tool()
def said(context: Ctx) -> list[str]:
    """The `_meta` keys of this very request."""
    meta = context.request_context.meta
    return sorted(meta or {})


@server.tool()
async def count(to: int, context: Ctx) -> str:
    for at in range(to):
        await context.report_progress(at + 1, to, f"{at + 1} of {to}")
    return f"counted to {to}"


@server.tool()
async def both(text: str, context: Ctx) -> str | types.InputRequiredResult:
    """Ask by sampling and by a form in one round, then by a form once more."""
    told = given(context)
    if context.request_state is None:
        asks: dict[str, Any] = {"draft": sample(text), "who é": form(text)}
        return types.InputRequiredResult(input_requests=asks, request_state=f"first of {text}")
    if context.request_state == f"first of {text}":
        drafted, named = told["draft"], told["who é"]
        state = f"second of {text}\n{drafted.content.text}\n{named.action}: {named.content}"
        return types.InputRequiredResult(input_requests={"sure": form(text)}, request_state=state)
    await context.report_progress(1, 2)
    return f"{context.request_state}\n{told['sure'].action}"


@server.tool()
async def visit(context: Ctx) -> str | types.InputRequiredResult:
    """Send the user to a URL."""
    if told := given(context):
        return str(told["site"].action)
    params = types.ElicitRequestURLParams(message="Go there.", url="https://example.com/")
    return types.InputRequiredResult(input_requests={"site": types.ElicitRequest(params=params)})


@server.tool()
async def whereabouts(context: Ctx) -> str | types.InputRequiredResult:
    """Ask for roots."""
    if told := given(context):
        return ",".join(str(root.uri) for root in told["roots"].roots)
    return types.InputRequiredResult(input_requests={"roots": types.ListRootsRequest()})


@server.tool()
async def later(times: int, context: Ctx) -> str | types.InputRequiredResult:
    """Want to be called again so many times before there is an answer."""
    seen = int(context.request_state or "0")
    if seen < times:
        return types.InputRequiredResult(request_state=str(seen + 1))
    return f"after {seen} pauses"


@server.tool()
async def sleep(name: str) -> str:
    """Until cancelled."""
    running.add(name)
    try:
        await anyio.sleep_forever()
    finally:
        running.discard(name)
        cancelled.append(name)
    return ""


@server.tool()
def asleep() -> list[str]:
    return sorted(running)


@server.tool()
def woken() -> list[str]:
    return cancelled


@server.tool()
async def grow(context: Ctx) -> str:
    """Offer a tool, a prompt and a resource more, and say so."""
    server.add_prompt(Prompt.from_function(lambda: "grown", name="grown", description="New."))
    server.add_resource(TextResource(uri="modern://grown", name="grown", text="grown"))
    server.add_tool(echo, name="grown")
    await context.notify_prompts_changed()
    await context.notify_resources_changed()
    await context.notify_tools_changed()
    return "grown"


@server.tool()
async def touch(uri: str, context: Ctx) -> str:
    await context.notify_resource_updated(uri)
    return "touched"


@server.prompt()
async def review(code: str, context: Ctx) -> str | types.InputRequiredResult:
    """Ask who reviews."""
    if told := given(context):
        return f"Review {code} as {told['who'].content['name']}"
    return types.InputRequiredResult(input_requests={"who": form(code)})


@server.resource("modern://notes", mime_type="text/markdown", description="Notes.")
def notes() -> str:
    return "# Notes\n\né and 😀"


@server.resource("modern://users/{user}/profile", description="One user.")
def profile(user: str) -> str:
    return f"The profile of {user}"


@server.completion()  # type: ignore[no-untyped-call, untyped-decorator]
async def complete(
    ref: PromptReference | ResourceTemplateReference,
    argument: CompletionArgument,
    context: CompletionContext | None,
) -> Completion:
    return Completion(values=[argument.name, argument.value], total=2, has_more=False)


if __name__ == "__main__":
    server.run("stdio")
