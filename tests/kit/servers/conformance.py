# mypy: ignore-errors
"""What the official conformance suite asks of a server, on the official Python SDK 2.x: names as they are.

`conformance.py [--era legacy|modern]` over stdio: `legacy` answers only the handshake, so a probe with
`server/discover` fails and `initialize` on the same pipe still works; `modern` refuses `initialize` with -32022,
also on a pipe that then goes on with `server/discover`. Without it the first request decides, as the SDK has it.
`conformance.py --http PORT`: both eras on the SDK's own HTTP at 127.0.0.1, path /mcp.

Every tool and prompt that asks works in both eras: it sends its questions in the middle of the call where there
is a handshake, and else answers `input_required` and reads the answers from the retry (`ask`). So one file serves
both requirement sets and every mix of eras in front of it. Log levels are accepted, not heeded. No tasks: the SDK
has none.
"""

import argparse
import base64
import json
from functools import partial
from typing import Annotated

import anyio
from mcp import types
from mcp.server import MCPServer
from mcp.server.lowlevel import NotificationOptions
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventMessage, EventStore
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from pydantic import Field

MODERN = "2026-07-28"
PAUSE_S = 0.05
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC"  # one red pixel
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQIAAACAgA=="  # two samples of silence
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
RESULTS = {
    types.ElicitRequest: types.ElicitResult,
    types.CreateMessageRequest: types.CreateMessageResult,
    types.ListRootsRequest: types.ListRootsResult,
}

server = MCPServer(
    "conformance",
    version="1.0.0",
    instructions="Serves what the conformance suite asks for.",
    log_level="WARNING",
)
tool = partial(server.tool, structured_output=False)


# --- asking, in both eras


def form(message, properties, required=None):
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
    }
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def sampling(text, max_tokens=100):
    said = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=text))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[said], max_tokens=max_tokens)
    )


def roots():
    return types.ListRootsRequest()


def is_modern(ctx):
    return (ctx.protocol_version or "") >= MODERN


def good(question, answer):
    """Whether this answers the question: of its kind, and with every field that the form requires."""
    if not isinstance(answer, RESULTS[type(question)]):
        return False
    by_form = isinstance(getattr(question, "params", None), types.ElicitRequestFormParams)
    if by_form and answer.action == "accept":
        return not set(question.params.requested_schema["required"]) - set(answer.content or {})
    return True


async def ask(ctx, questions, *, state=None):
    """The answers by the keys of the questions; or an `InputRequiredResult`, to be returned as it is.

    With `state`, answers count only where that state has come back with them.
    """
    if not is_modern(ctx):
        where = ServerMessageMetadata(related_request_id=ctx.request_id)
        return {
            key: await ctx.session.send_request(question, RESULTS[type(question)], metadata=where)
            for key, question in questions.items()
        }
    told = (ctx.input_responses or {}) if ctx.request_state == state else {}
    open_ = {key: question for key, question in questions.items() if not good(question, told.get(key))}
    if open_:
        return types.InputRequiredResult(input_requests=open_, request_state=state)
    return {key: told[key] for key in questions}


def elicited(answer):
    return f"action={answer.action}, content={json.dumps(answer.content)}"


def field(answer, name):
    return (answer.content or {}).get(name, answer.action)


def unanswered(found):
    return isinstance(found, types.InputRequiredResult)


# --- tools: content


def text(said):
    return types.TextContent(type="text", text=said)


def image():
    return types.ImageContent(type="image", data=PNG, mime_type="image/png")


def embedded(uri, mime_type, said):
    contents = types.TextResourceContents(uri=uri, mime_type=mime_type, text=said)
    return types.EmbeddedResource(type="resource", resource=contents)


@tool()
def test_simple_text():
    """Answers with text."""
    return "This is a simple text response for testing."


@tool()
def test_image_content():
    """Answers with an image."""
    return image()


@tool()
def test_audio_content():
    """Answers with audio."""
    return types.AudioContent(type="audio", data=WAV, mime_type="audio/wav")


@tool()
def test_embedded_resource():
    """Answers with an embedded resource."""
    return embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")


@tool()
def test_multiple_content_types():
    """Answers with text, an image and a resource."""
    data = json.dumps({"test": "data", "value": 123})
    return [
        text("Multiple content types test:"),
        image(),
        embedded("test://mixed-content-resource", "application/json", data),
    ]


@tool()
def test_error_handling():
    """Always fails."""
    said = "This tool intentionally returns an error for testing"
    return types.CallToolResult(content=[text(said)], is_error=True)


@tool()
def json_schema_2020_12_tool(
    name: str = "", address: dict = {}, contactMethod: str = "", phone: str = "", email: str = ""
):
    """Tool with JSON Schema 2020-12 features"""
    return f"Reached by {contactMethod or 'nothing'}."


@tool()
def test_header_param(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]):
    """Has an argument that HTTP repeats in a header."""
    return f"In {region}."


# --- tools: what comes before the answer


async def log(ctx, said):
    await ctx.session.send_log_message(
        level="info", data=said, logger="conformance", related_request_id=ctx.request_id
    )


@tool()
async def test_tool_with_logging(ctx: Context):
    """Logs three messages."""
    for said in ("Tool execution started", "Tool processing data"):
        await log(ctx, said)
        await anyio.sleep(PAUSE_S)
    await log(ctx, "Tool execution completed")
    return "Logged three messages."


@tool()
async def test_logging_tool(ctx: Context):
    """Logs one message, for those who asked for messages."""
    await log(ctx, "Only for those who asked")
    return "Logged one message."


@tool()
async def test_tool_with_progress(ctx: Context):
    """Tells progress three times."""
    for done in (0, 50):
        await ctx.report_progress(done, 100, f"{done} of 100")
        await anyio.sleep(PAUSE_S)
    await ctx.report_progress(100, 100, "100 of 100")
    return "Told progress three times."


@tool()
async def test_reconnection(ctx: Context):
    """Closes the stream of its call, and answers on the one that the client opens next."""
    await ctx.close_sse_stream()
    await anyio.sleep(PAUSE_S)
    return "Answered after the stream was closed."


# --- tools: asking


@tool()
async def test_sampling(prompt: str, ctx: Context):
    """Asks the agent's model."""
    found = await ask(ctx, {"sampled": sampling(prompt)})
    return found if unanswered(found) else f"LLM response: {found['sampled'].content.text}"


@tool()
async def test_elicitation(message: str, ctx: Context):
    """Asks the user for a name and an address."""
    properties = {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    }
    found = await ask(ctx, {"user": form(message, properties)})
    return found if unanswered(found) else f"User response: {elicited(found['user'])}"


@tool()
async def test_elicitation_sep1034_defaults(ctx: Context):
    """Asks with a default for every kind of field."""
    properties = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    found = await ask(ctx, {"user": form("Please check these values", properties, [])})
    return found if unanswered(found) else f"Elicitation completed: {elicited(found['user'])}"


@tool()
async def test_elicitation_sep1330_enums(ctx: Context):
    """Asks with every kind of choice."""
    options = ["option1", "option2", "option3"]

    def titled(word):
        ranks = ("First", "Second", "Third")
        return [{"const": f"value{at + 1}", "title": f"{rank} {word}"} for at, rank in enumerate(ranks)]

    properties = {
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled("Option")},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled("Choice")}},
    }
    found = await ask(ctx, {"user": form("Please choose", properties, [])})
    return found if unanswered(found) else f"Elicitation completed: {elicited(found['user'])}"


@tool()
async def test_streaming_elicitation(ctx: Context):
    """Tells progress, then asks the user."""
    await ctx.report_progress(1, 2, "about to ask")
    found = await ask(ctx, {"user": form("Go on?", {"ok": {"type": "boolean"}})})
    return found if unanswered(found) else f"User response: {elicited(found['user'])}"


@tool()
async def test_missing_capability(ctx: Context):
    """Needs an agent that can be asked for a model's words."""
    declared = ctx.client_capabilities
    if declared is None or declared.sampling is None:
        needed = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "This tool needs sampling.", needed)
    return "You can be asked for a model's words."


NAME = {"name": {"type": "string"}}


@tool()
async def test_input_required_result_elicitation(ctx: Context):
    """Asks for a name."""
    found = await ask(ctx, {"user_name": form("What is your name?", NAME)})
    return found if unanswered(found) else f"Hello, {field(found['user_name'], 'name')}!"


@tool()
async def test_input_required_result_sampling(ctx: Context):
    """Asks the agent's model for a capital."""
    found = await ask(ctx, {"capital_question": sampling("What is the capital of France?")})
    return found if unanswered(found) else found["capital_question"].content.text


@tool()
async def test_input_required_result_list_roots(ctx: Context):
    """Asks for the agent's roots."""
    found = await ask(ctx, {"client_roots": roots()})
    return found if unanswered(found) else " ".join(str(root.uri) for root in found["client_roots"].roots)


CONFIRM = {"ok": {"type": "boolean"}}


@tool()
async def test_input_required_result_request_state(ctx: Context):
    """Asks, and wants its state back with the answer."""
    found = await ask(ctx, {"confirm": form("Please confirm", CONFIRM)}, state="asked to confirm")
    return found if unanswered(found) else f"state-ok, ok={field(found['confirm'], 'ok')}"


@tool()
async def test_input_required_result_tampered_state(ctx: Context):
    """Asks, and takes no state but its own: the SDK seals what leaves and refuses what was changed."""
    found = await ask(ctx, {"confirm": form("Please confirm", CONFIRM)}, state="sealed")
    return found if unanswered(found) else "The state is the one that was sent."


@tool()
async def test_input_required_result_multiple_inputs(ctx: Context):
    """Asks the user, the model and for roots at once."""
    questions = {
        "user_name": form("What is your name?", NAME),
        "greeting": sampling("Generate a greeting", 50),
        "client_roots": roots(),
    }
    found = await ask(ctx, questions, state="asked for three")
    if unanswered(found):
        return found
    name, greeting = field(found["user_name"], "name"), found["greeting"].content.text
    return f"{greeting} {name}, you have {len(found['client_roots'].roots)} roots."


@tool()
async def test_input_required_result_multi_round(ctx: Context):
    """Asks twice, the second time with another state."""
    second = "step 2, asked "
    if (ctx.request_state or "").startswith(second):
        name = ctx.request_state.removeprefix(second)
    else:
        found = await ask(ctx, {"step1": form("Step 1: What is your name?", NAME)}, state="step 1")
        if unanswered(found):
            return found
        name = field(found["step1"], "name")
    question = form("Step 2: What is your favorite color?", {"color": {"type": "string"}})
    found = await ask(ctx, {"step2": question}, state=f"{second}{name}")
    return found if unanswered(found) else f"{name} likes {field(found['step2'], 'color')}."


@tool()
async def test_input_required_result_capabilities(ctx: Context):
    """Asks only what the agent has declared."""
    declared = ctx.client_capabilities or types.ClientCapabilities()
    questions = {}
    if declared.sampling is not None:
        questions["greeting"] = sampling("Generate a greeting")
    if declared.elicitation is not None:
        questions["user_name"] = form("What is your name?", NAME)
    found = await ask(ctx, questions)
    return found if unanswered(found) else f"Answered: {', '.join(found) or 'nothing was asked'}."


# --- lists that change: a new description, so that names and order stay


@tool()
def test_changing_tool():
    """Revision 0."""
    return "I am what changes."


@server.prompt()
def test_changing_prompt():
    """Revision 0."""
    return "I am what changes."


def revise(item):
    item.description = f"Revision {int(item.description.strip('.').split()[1]) + 1}."


@tool()
async def test_trigger_tool_change(ctx: Context):
    """Changes the list of tools and says so."""
    revise(server._tool_manager.get_tool("test_changing_tool"))
    await (ctx.notify_tools_changed() if is_modern(ctx) else ctx.session.send_tool_list_changed())
    return "The tools have changed."


@tool()
async def test_trigger_prompt_change(ctx: Context):
    """Changes the list of prompts and says so."""
    revise(server._prompt_manager.get_prompt("test_changing_prompt"))
    await (ctx.notify_prompts_changed() if is_modern(ctx) else ctx.session.send_prompt_list_changed())
    return "The prompts have changed."


# --- prompts, resources, completions


@server.prompt()
def test_simple_prompt():
    """No arguments."""
    return "This is a simple prompt for testing."


@server.prompt()
def test_prompt_with_arguments(
    arg1: Annotated[str, Field(description="First test argument")],
    arg2: Annotated[str, Field(description="Second test argument")],
):
    """Two arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt()
def test_prompt_with_embedded_resource(
    resourceUri: Annotated[str, Field(description="URI of the resource to embed")],
):
    """Embeds a resource."""
    return [
        UserMessage(embedded(resourceUri, "text/plain", "Embedded resource content for testing.")),
        UserMessage("Please process the embedded resource above."),
    ]


@server.prompt()
def test_prompt_with_image():
    """Has an image."""
    return [UserMessage(image()), UserMessage("Please analyze the image above.")]


@server.prompt()
async def test_input_required_result_prompt(ctx: Context):
    """Asks the user what it shall be about."""
    question = form("What context should the prompt use?", {"context": {"type": "string"}})
    found = await ask(ctx, {"user_context": question})
    return found if unanswered(found) else f"Use this context: {field(found['user_context'], 'context')}"


@server.resource("test://static-text", mime_type="text/plain", description="Text.")
def static_text():
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png", description="Bytes.")
def static_binary():
    return base64.b64decode(PNG)


@server.resource("test://watched-resource", mime_type="text/plain", description="To be subscribed to.")
def watched_resource():
    return "Watched."


@server.resource("test://template/{id}/data", mime_type="application/json", description="Says the id.")
def template_data(id: str):
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@server.completion()
async def complete(ref, argument, context):
    values = [value for value in ("paris", "park", "party") if value.startswith(argument.value)]
    return types.Completion(values=values, total=len(values), has_more=False)


async def accept(ctx, params):
    return types.EmptyResult()


low = server._lowlevel_server
low.add_request_handler("resources/subscribe", types.SubscribeRequestParams, accept)
low.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, accept)
low.add_request_handler("logging/setLevel", types.SetLevelRequestParams, accept)
server._tool_manager.get_tool("json_schema_2020_12_tool").parameters = SCHEMA


# --- how it is reached


class Events(EventStore):
    """What was sent on streams of the handshake era, to be sent again to those who reconnect."""

    def __init__(self):
        self.kept = []

    async def store_event(self, stream_id, message):
        self.kept.append((stream_id, message))
        return str(len(self.kept))

    async def replay_events_after(self, last_event_id, send_callback):
        at = int(last_event_id)
        stream_id = self.kept[at - 1][0]
        for number, (stream, message) in enumerate(self.kept[at:], at + 1):
            if stream == stream_id and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream_id


def options():
    changes = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
    return low.create_initialization_options(changes)


async def refuse_handshakes(came, went, passed):
    """Answer `initialize` here, so that it does not decide which era the SDK's loop serves."""
    async with passed:
        async for item in came:
            message = getattr(item, "message", None)
            if isinstance(message, types.JSONRPCRequest) and message.method == "initialize":
                wanted = (message.params or {}).get("protocolVersion")
                error = types.ErrorData(
                    code=types.UNSUPPORTED_PROTOCOL_VERSION,
                    message="This server speaks 2026-07-28 only.",
                    data={"supported": [MODERN], "requested": wanted},
                )
                refusal = types.JSONRPCError(jsonrpc="2.0", id=message.id, error=error)
                await went.send(SessionMessage(refusal))
            else:
                await passed.send(item)


async def over_stdio(era):
    async with stdio_server() as (came, went):
        if era == "legacy":
            async with low.lifespan(low) as state:
                await serve_loop(low, came, went, lifespan_state=state, init_options=options())
        elif era == "modern":
            passed, kept = anyio.create_memory_object_stream(0)
            async with anyio.create_task_group() as group:
                group.start_soon(refuse_handshakes, came, went, passed)
                await low.run(kept, went, options())
        else:
            await low.run(came, went, options())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What the conformance suite asks of a server.")
    parser.add_argument("--era", choices=["both", "legacy", "modern"], default="both")
    parser.add_argument("--http", type=int, metavar="PORT")
    chosen = parser.parse_args()
    if chosen.http is None:
        anyio.run(over_stdio, chosen.era)
    else:
        server.run("streamable-http", port=chosen.http, event_store=Events(), retry_interval=100)
