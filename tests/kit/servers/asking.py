# mypy: ignore-errors
"""Asks back, on the official Python SDK: 2.x, or 1.x where that is what the interpreter has.

Tools: `echo`, `add` (structured), `form`, `url`, `sample`, `sample_with_tools` (each asks the agent and tells
what it said), `both` (samples, then elicits, once `party` calls have come to `room`), `steps` (progress), `log`,
`sleep`, `touch` (a resource has changed), `who` (the process), `waiting` (calls inside `both` and `sleep`),
`roots`. Resources with a template, prompts, completions; subscriptions on 2.x only: 1.x announces
`subscribe: false` whatever is registered.
"""

import gc

gc.disable()  # the SDK's thousands of objects stay: the collector would go through them again and again

import json
import os
import sys

import anyio
import pydantic
from mcp import types

try:
    from mcp.server import MCPServer as Server
    from mcp.server.mcpserver import Context

    NEW = True
except ImportError:
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as Server

    NEW = False

gc.freeze()
gc.enable()
server = Server("asking", instructions="Asks back.")
inside = 0
rooms = {}


class TextAnswer(pydantic.BaseModel):
    answer: str


def say(model):
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def sampled(ctx, text, **more):
    content = types.TextContent(type="text", text=text)
    message = types.SamplingMessage(role="user", content=content)
    found = await ctx.session.create_message(
        [message], max_tokens=10, related_request_id=ctx.request_id, **more
    )
    return say(found)


async def elicited(ctx, text):
    found = await ctx.elicit(text, TextAnswer)
    return {"action": found.action, **({"answer": found.data.answer} if found.action == "accept" else {})}


@server.tool()
def echo(text: str) -> str:
    """The same text."""
    return text


@server.tool(title="Adds")
def add(a: int, b: int) -> dict[str, int]:
    """A sum, structured."""
    return {"sum": a + b}


@server.tool()
async def form(text: str, ctx: Context) -> str:
    """Elicit a form."""
    return json.dumps(await elicited(ctx, text))


@server.tool()
async def url(text: str, ctx: Context) -> str:
    """Send the user to a URL, and say when it is done there."""
    found = await ctx.elicit_url(text, f"https://example.org/{text}", f"id-{text}")
    if found.action == "accept":
        await ctx.session.send_elicit_complete(f"id-{text}", related_request_id=ctx.request_id)
    return found.action


@server.tool()
async def sample(text: str, ctx: Context) -> str:
    """Ask the agent's model."""
    return json.dumps(await sampled(ctx, text))


@server.tool()
async def sample_with_tools(text: str, ctx: Context) -> str:
    """Ask the agent's model and lend it a tool."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    lent = types.Tool.model_validate({"name": "weather", "inputSchema": schema})
    return json.dumps(await sampled(ctx, text, tools=[lent], tool_choice=types.ToolChoice(mode="auto")))


@server.tool()
async def both(text: str, ctx: Context, room: str = "", party: int = 1) -> str:
    """Wait until the party is in the room, then sample, then elicit."""
    global inside
    inside += 1
    rooms[room] = rooms.get(room, 0) + 1
    try:
        while rooms[room] < party:
            await anyio.sleep(0.01)
        model = await sampled(ctx, text)
        return json.dumps([text, model["content"]["text"], (await elicited(ctx, text)).get("answer")])
    finally:
        inside -= 1


@server.tool()
async def steps(count: int, ctx: Context) -> str:
    """Tell progress."""
    for at in range(count):
        await ctx.report_progress(at + 1, count, f"step {at + 1}")
        await anyio.sleep(0.02)  # the TypeScript client drops a progress that comes with the answer
    return f"{count} steps"


@server.tool()
async def log(level: str, text: str, ctx: Context) -> str:
    """Log a line."""
    await ctx.session.send_log_message(
        level=level, data=text, logger="asking", related_request_id=ctx.request_id
    )
    return "logged"


@server.tool()
async def sleep(seconds: float, until: str = "", note: str = "") -> str:
    """Answer late, or once there is a file `until`, and write a file `note` as it does; heeds cancels."""
    global inside
    inside += 1
    try:
        await anyio.sleep(seconds)
        while until and not os.path.exists(until):
            await anyio.sleep(0.01)
    finally:
        inside -= 1
    if note:
        open(note, "x").close()
    return "slept"


@server.tool()
def who() -> str:
    """This process."""
    return str(os.getpid())


@server.tool()
def waiting() -> str:
    """How many calls are inside."""
    return str(inside)


@server.tool()
async def roots(ctx: Context) -> str:
    """What the agent calls its roots."""
    return json.dumps(say(await ctx.session.list_roots())["roots"])


@server.tool()
async def touch(uri: str, ctx: Context) -> str:
    """Say that a resource has changed."""
    await ctx.session.send_resource_updated(uri)
    return "touched"


@server.prompt(title="A review")
def review(code: str, tone: str = "kind") -> str:
    """Ask for a review."""
    return f"Review this ({tone}): {code}"


@server.resource("asking://notes", mime_type="text/markdown")
def notes() -> str:
    """Notes."""
    return "# Notes é 😀"


@server.resource("asking://users/{user}")
def user_of(user: str) -> str:
    """One user."""
    return f"The profile of {user}"


@server.completion()
async def complete(ref, argument, context):
    before = sorted((context.arguments if context else None) or {})
    return types.Completion(values=[argument.name, argument.value, *before], total=9)


if NEW:

    async def done(ctx, params):
        return types.EmptyResult()

    low = server._lowlevel_server
    low.add_request_handler("resources/subscribe", types.SubscribeRequestParams, done)
    low.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, done)
    low.add_request_handler("logging/setLevel", types.SetLevelRequestParams, done)
else:

    @server._mcp_server.set_logging_level()
    async def level(level):
        pass


if __name__ == "__main__":
    if len(sys.argv) == 1:
        server.run("stdio")
    else:  # asking.py http|sse PORT
        import uvicorn

        uvicorn.run(
            server.sse_app() if sys.argv[1] == "sse" else server.streamable_http_app(),
            host="127.0.0.1",
            port=int(sys.argv[2]),
            log_level="error",
        )
