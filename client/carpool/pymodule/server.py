"""A module as a server on the official SDK.

Owns the server: the tools of all public functions, the module's docstring as instructions, `__version__` as
its version; and what is said of functions that are no good tools: a warning each, or under `strict` the end.

Knows nothing of: how the module was found, which descriptors are the wire.
"""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import TextIO

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver.tools import Tool

from carpool.pymodule.function_choice import public_functions, untyped_text, without_types
from carpool.pymodule.messages import messages
from carpool.pymodule.tools import CannotOfferError, read_tags, tool_of


class UntypedModuleError(Exception):
    """`strict` is set, and not every function is a typed tool; or there is no tool at all."""


def tools_of(module: ModuleType, *, strict: bool, say: Callable[[str], None]) -> list[Tool]:
    """The module's tools. `say`: for what is wrong with single functions. Raises `UntypedModuleError`."""
    tools: list[Tool] = []
    wrong: list[str] = []
    for chosen in public_functions(module):
        try:
            tool = tool_of(chosen.name, chosen.function, tags=read_tags(module))
            if bare := without_types(chosen.function):
                wrong.append(untyped_text(chosen.where, chosen.name, bare, strict=strict))
                say(wrong[-1])
            tools.append(tool)
        except CannotOfferError as error:
            wrong.append(f"{chosen.where}: {chosen.name}: is no tool: {error}")
            say(wrong[-1])
    if strict and wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise UntypedModuleError(
            f"{wrong[0]}{more}; with `strict` that keeps {module.__name__} from starting"
        )
    if not tools and wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise UntypedModuleError(f"{module.__name__} has no function that can be offered: {wrong[0]}{more}")
    if not tools:
        raise UntypedModuleError(
            f"{module.__name__} has no functions to offer: defined in it, or named in its `__all__`, and "
            "without an underscore in front"
        )
    return tools


def serve(module: ModuleType, tools: list[Tool], source: TextIO, sink: TextIO) -> None:
    """Until the wire ends."""
    version = getattr(module, "__version__", "")
    server: MCPServer[None] = MCPServer(
        module.__name__,
        instructions=inspect.getdoc(module),
        version=version if isinstance(version, str) else "",
        tools=tools,
        log_level="WARNING",
    )

    async def run() -> None:
        # MCPServer's own way to stdio takes the descriptors, which are taken already, and drops lines.
        lowlevel = server._lowlevel_server  # noqa: SLF001
        async with messages(anyio.wrap_file(source), anyio.wrap_file(sink)) as (incoming, outgoing):
            await lowlevel.run(incoming, outgoing, lowlevel.create_initialization_options())

    anyio.run(run)
