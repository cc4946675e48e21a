"""A server of every feature on the official Python SDK, whose stdin is read with universal newlines (rule 1).

Tools, prompts with arguments, resources, a template and completions; `grow` adds a prompt and a resource.
"""

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.prompts.base import AssistantMessage, Message, Prompt, UserMessage
from mcp.server.mcpserver.resources import TextResource
from mcp.types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ResourceTemplateReference,
)

server: MCPServer[None] = MCPServer("sdk", instructions="Serves everything.")
count = 0


@server.tool()
def echo(items: list[int]) -> str:
    """Count the items and this server's calls."""
    global count
    count += 1
    return f"{len(items)} items, call {count}"


@server.tool()
def reset() -> str:
    """What nobody may call by smuggling."""
    global count
    count = -1000
    return "reset"


@server.tool()
async def grow(context: Context[None, None]) -> str:
    """Offer one prompt and one resource more, and say so."""
    server.add_prompt(Prompt.from_function(lambda: "grown", name="grown", description="New."))
    server.add_resource(TextResource(uri="sdk://grown", name="grown", text="grown"))
    await context.session.send_prompt_list_changed()
    await context.session.send_resource_list_changed()
    return "grown"


@server.prompt(title="A review")
def review(code: str, tone: str = "kind") -> list[Message]:
    """Ask for a review."""
    return [UserMessage(f"Review this ({tone}): {code}"), AssistantMessage("Gladly. ☂")]


@server.prompt()
def plain() -> str:
    """No arguments."""
    return "Say something."


@server.resource("sdk://notes", mime_type="text/markdown", description="Notes.")
def notes() -> str:
    return "# Notes\n\né and 😀"


@server.resource("sdk://picture", mime_type="image/png")
def picture() -> bytes:
    return bytes(range(256))


@server.resource("sdk://users/{user}/profile", description="One user.")
def profile(user: str) -> str:
    return f"The profile of {user}"


@server.completion()  # type: ignore[no-untyped-call, untyped-decorator]
async def complete(
    ref: PromptReference | ResourceTemplateReference,
    argument: CompletionArgument,
    context: CompletionContext | None,
) -> Completion:
    subject = ref.name if isinstance(ref, PromptReference) else ref.uri
    before = sorted((context.arguments if context else None) or {})
    return Completion(values=[subject, argument.name, argument.value, *before], total=9, has_more=True)


if __name__ == "__main__":
    server.run("stdio")
