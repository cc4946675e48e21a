"""Modules made of text, their tools, and what a call of one gives."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import anyio
import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult

from carpool.pymodule.server import tools_of


def module_of(source: str) -> ModuleType:
    module = ModuleType("mine")
    sys.modules["mine"] = module  # pydantic looks annotations up there
    exec(compile(source, "/somewhere/mine.py", "exec"), vars(module))
    return module


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    before, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("mine"):
            del sys.modules[name]
    sys.path[:] = path


def offered(source: str, *, strict: bool = False) -> tuple[dict[str, Any], list[str]]:
    """The tools as they are listed, by name, and what was said of functions."""
    said: list[str] = []
    tools = tools_of(module_of(source), strict=strict, say=said.append)
    return {each.name: each for each in tools}, said


def called(source: str, name: str = "f", **arguments: Any) -> CallToolResult:
    tools, _ = offered(source)
    server: MCPServer[None] = MCPServer("x")

    async def run() -> CallToolResult:
        found = await tools[name].run(arguments, Context(mcp_server=server), convert_result=True)
        assert isinstance(found, CallToolResult)
        return found

    return anyio.run(run)


def texts(result: CallToolResult) -> list[str]:
    return [str(getattr(each, "text", each)) for each in result.content]
