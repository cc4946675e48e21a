# mypy: ignore-errors
"""An agent on the official Python SDK, 2.x or 1.x: goes through a list of steps, tells what it saw.

`agent.py FILE`: JSON `{name, command, args, env, steps, roots?}`. A step is `{method, params}`, with
`progress` (ask for it), `until` (`{notification: count}` to wait for, bounded) or `cancel_after` (a count of
progress notifications after which the call is given up). Prints one JSON object `{init, steps}`; of each step
`answer` or `error`, and the `asks`, `progress` and `notices` that came during it. What it says to an ask names
the agent and what it was asked: an ask that came to the wrong one shows.

With `url` it goes there over HTTP instead, and with `transport: "sse"` the way of 2024-11-05.

With `mode` (2.x only; `legacy`, `auto` or a version of the stateless era) it is the SDK's `Client` of that mode,
and `init` is `{version, capabilities}`.
"""

import gc

gc.disable()  # the SDK's thousands of objects stay: the collector would go through them again and again

import json
import sys

import anyio
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client

try:
    from mcp import MCPError

    NEW = True
except ImportError:
    from mcp.shared.exceptions import McpError as MCPError

    NEW = False

gc.freeze()
gc.enable()
PATIENCE_S = 20.0
plan = json.loads(open(sys.argv[1]).read())
step = {}


def fresh():
    step.clear()
    step.update({"asks": [], "progress": [], "notices": []})


def say(model):
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def ask(method, params):
    step["asks"].append([method, say(params)])


async def sampling(context, params):
    ask("sampling/createMessage", params)
    content = types.TextContent(type="text", text=f"{plan['name']} on {params.messages[0].content.text}")
    return types.CreateMessageResult(role="assistant", content=content, model=plan["name"])


async def elicitation(context, params):
    ask("elicitation/create", params)
    if params.mode == "url":
        return types.ElicitResult(action="accept")
    schema = params.requested_schema if NEW else params.requestedSchema
    said = {name: f"{plan['name']} on {params.message}" for name in schema["required"]}
    return types.ElicitResult(action="accept", content=said)


async def listed_roots(context):
    step["asks"].append(["roots/list", {}])
    return types.ListRootsResult.model_validate({"roots": [{"uri": uri} for uri in plan["roots"]]})


async def heard(message):
    message = getattr(message, "root", message)
    if isinstance(message, Exception):
        step["notices"].append(["exception", str(message)])
    elif hasattr(message, "method") and message.method != "notifications/progress":
        step["notices"].append([message.method, say(message.params) if message.params else {}])


async def do(session, method, params, told):
    uri = params.get("uri")
    if uri and not NEW:
        from pydantic import AnyUrl

        uri = AnyUrl(uri)
    match method:
        case "tools/list":
            return await session.list_tools()
        case "tools/call":
            return await session.call_tool(params["name"], params.get("arguments"), progress_callback=told)
        case "prompts/list":
            return await session.list_prompts()
        case "prompts/get":
            return await session.get_prompt(params["name"], params.get("arguments"))
        case "resources/list":
            return await session.list_resources()
        case "resources/templates/list":
            return await session.list_resource_templates()
        case "resources/read":
            return await session.read_resource(uri)
        case "resources/subscribe":
            return await session.subscribe_resource(uri)
        case "resources/unsubscribe":
            return await session.unsubscribe_resource(uri)
        case "completion/complete":
            kind = {"ref/prompt": types.PromptReference, "ref/resource": types.ResourceTemplateReference}
            ref = kind[params["ref"]["type"]].model_validate(params["ref"])
            context = params.get("context", {}).get("arguments")
            return await session.complete(ref, params["argument"], context_arguments=context)
        case "logging/setLevel":
            return await session.set_logging_level(params["level"])
        case "ping":
            return await session.send_ping()
    raise ValueError(method)


async def take(session, todo):
    fresh()
    enough = anyio.Event()

    async def told(progress, total, message):
        step["progress"].append([progress, total, message])
        if len(step["progress"]) >= todo.get("cancel_after", 1 << 30):
            enough.set()

    async def give_up(scope):
        await enough.wait()
        scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(give_up, group.cancel_scope)
            wants = told if todo.get("progress") else None
            step["answer"] = say(await do(session, todo["method"], todo.get("params", {}), wants))
            group.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        step["error"] = fault(group.exceptions[0])
    if enough.is_set():
        step["cancelled"] = True
    with anyio.move_on_after(PATIENCE_S):
        for name, count in todo.get("until", {}).items():
            while sum(1 for method, _ in step["notices"] if method == name) < count:
                await anyio.sleep(0.01)
    return dict(step)


def fault(error):
    if isinstance(error, MCPError):
        return say(error.error)
    return {"raised": f"{type(error).__name__}: {error}"}


def over(url):
    if plan.get("transport") == "sse":
        from mcp.client.sse import sse_client

        return sse_client(url)
    from mcp.client.streamable_http import streamable_http_client

    return streamable_http_client(url)


async def main():
    url = plan.get("url", "")
    started = url or StdioServerParameters(command=plan["command"], args=plan["args"], env=plan["env"])
    fresh()
    rest = {"list_roots_callback": listed_roots} if "roots" in plan else {}
    rest |= {
        "sampling_callback": sampling,
        "elicitation_callback": elicitation,
        "message_handler": heard,
        "client_info": types.Implementation(name=plan["name"], version="1"),
        "sampling_capabilities": types.SamplingCapability(tools=types.SamplingToolsCapability()),
    }
    if "mode" in plan:
        from mcp import Client

        async with Client(started, mode=plan["mode"], **rest) as client:
            told = {"version": client.protocol_version, "capabilities": say(client.server_capabilities)}
            print(json.dumps({"init": told, "steps": [await take(client, todo) for todo in plan["steps"]]}))
        return
    async with (
        over(url) if url else stdio_client(started, errlog=sys.stderr) as (reads, writes, *_),
        ClientSession(reads, writes, **rest) as session,
    ):
        init = say(await session.initialize())
        print(json.dumps({"init": init, "steps": [await take(session, todo) for todo in plan["steps"]]}))


anyio.run(main)
