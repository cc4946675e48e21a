"""Agents of Python packages: each is a small program in `drivers`, run by the environment of its package."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.programs.agents.mcp_servers import mcp_servers, write_json
from tests.programs.program import Entry, Home, Program

_DRIVERS: Final = Path(__file__).with_name("drivers")


def configure(home: Home, servers: Mapping[str, Entry], model: str) -> None:
    write_json(home.path / "agent.json", {"model": f"{model}/v1", "mcpServers": mcp_servers(servers)})


def _program(
    name: str,
    title: str,
    driver: str,
    entry: str,
    *notes: str,
    package: str = "",
    asks_progress: bool = False,
) -> Program:
    return Program(
        name=name,
        title=title,
        kind="agent",
        api="chat",
        executable=lambda directory: [str(directory / name / "bin/python"), str(_DRIVERS / driver)],
        configure=configure,
        arguments=lambda prompt: [prompt],
        environ=lambda _: {"MCP_USE_ANONYMIZED_TELEMETRY": "false", "OTEL_SDK_DISABLED": "true"},
        entry=entry,
        package=f"PyPI {package or title}",
        asks_progress=asks_progress,
        notes=notes,
    )


OPENAI_AGENTS: Final = _program(
    "openai-agents",
    "openai-agents",
    "openai_agents.py",
    'MCPServerStdio(params={"command": "{command}", "args": ["connect"]}, cache_tools_list=True)\n',
    "openai-agents asks `server/discover` first and needs no session.",
    "openai-agents gives the instructions of servers to no model.",
)
PYDANTIC_AI: Final = _program(
    "pydantic-ai",
    "pydantic-ai",
    "pydantic_agent.py",
    'MCPToolset(StdioTransport(command="{command}", args=["connect"]))\n',
    "pydantic-ai gives the instructions of servers to the model only with `include_instructions=True`.",
    package="pydantic-ai-slim",
    asks_progress=True,
)
STRANDS: Final = _program(
    "strands",
    "strands-agents",
    "strands_agents.py",
    'MCPClient(lambda: stdio_client(StdioServerParameters(command="{command}", args=["connect"])))\n',
    "strands gives the instructions of servers to no model.",
)
LANGCHAIN: Final = _program(
    "langchain",
    "langchain-mcp-adapters",
    "langchain_agent.py",
    'carpool = {"transport": "stdio", "command": "{command}", "args": ["connect"]}\n'
    'MultiServerMCPClient({"carpool": carpool})\n',
    "langchain-mcp-adapters starts the entry again for each call.",
    "langchain-mcp-adapters gives the instructions of servers to no model.",
)
MCP_USE: Final = _program(
    "mcp-use",
    "mcp-use",
    "mcp_use_agent.py",
    'MCPClient.from_dict({"mcpServers": {"carpool": {"command": "{command}", "args": ["connect"]}}})\n',
    "mcp-use refuses an entry without `args`.",
)
PROGRAMS: Final = (OPENAI_AGENTS, PYDANTIC_AI, STRANDS, LANGCHAIN, MCP_USE)
