# mypy: ignore-errors
"""The conformance fixture and what it lacks for a matrix of eras: `both_eras.py [--era legacy|modern]` over stdio.

More tools: `who` (the process), `add` (structured), `say` (logs at a level), `rest` (until cancelled), `resting`,
`rested`, `touch` (a resource has changed), `visit` (asks by URL), `sign_in` (the error -32042 where there was a
handshake, else a round), `home` (asks for roots). Whatever can be subscribed to is told only to who subscribed.
"""

import gc

gc.disable()  # the SDK's thousands of objects stay: the collector would go through them again and again

import os
import sys
import uuid

import anyio
from conformance import ask, is_modern, low, options, over_stdio, roots, server, tool, unanswered  # noqa: F401
from mcp import types
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import UrlElicitationRequiredError

gc.freeze()
gc.enable()
resting = set()
rested = []


@tool()
def who():
    """This process."""
    return str(os.getpid())


@server.tool()
def add(a: int, b: int) -> dict[str, int]:
    """A sum, structured."""
    return {"sum": a + b}


@tool()
async def say(level: str, text: str, ctx: Context):
    """Log a line."""
    await ctx.session.send_log_message(
        level=level, data=text, logger="eras", related_request_id=ctx.request_id
    )
    return "said"


@tool()
async def rest(name: str):
    """Until cancelled."""
    resting.add(name)
    try:
        await anyio.sleep_forever()
    finally:
        resting.discard(name)
        rested.append(name)


@tool(name="resting")
def resting_now():
    """Names of the calls of `rest` that run."""
    return " ".join(sorted(resting))


@tool(name="rested")
def rested_before():
    """Names of the calls of `rest` that were cancelled."""
    return " ".join(rested)


@tool()
async def touch(uri: str, ctx: Context):
    """Say that a resource has changed."""
    await (ctx.notify_resource_updated(uri) if is_modern(ctx) else ctx.session.send_resource_updated(uri))
    return "touched"


def site(ctx, text):
    own = {} if is_modern(ctx) else {"elicitation_id": uuid.uuid4().hex}
    return types.ElicitRequestURLParams(message=text, url=f"https://example.org/{text}", **own)


@tool()
async def visit(text: str, ctx: Context):
    """Send the user to a URL."""
    found = await ask(ctx, {"site": types.ElicitRequest(params=site(ctx, text))})
    return found if unanswered(found) else found["site"].action


signed = set()


@tool()
async def sign_in(text: str, ctx: Context):
    """Refuse, once for each text, until the user has been at a URL."""
    if is_modern(ctx):
        found = await ask(ctx, {"site": types.ElicitRequest(params=site(ctx, text))})
        return found if unanswered(found) else f"signed in: {text}"
    if text not in signed:
        signed.add(text)
        raise UrlElicitationRequiredError([site(ctx, text)])
    return f"signed in: {text}"


@tool()
async def home(ctx: Context):
    """Ask for the agent's roots."""
    found = await ask(ctx, {"roots": roots()})
    return found if unanswered(found) else " ".join(str(root.uri) for root in found["roots"].roots)


if __name__ == "__main__":
    anyio.run(over_stdio, sys.argv[2] if len(sys.argv) > 2 else "both")
