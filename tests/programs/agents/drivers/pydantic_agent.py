"""An agent of pydantic-ai: `python pydantic_agent.py PROMPT`, told of servers and model by ~/agent.json."""

import asyncio
import json
import sys
from pathlib import Path

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


async def main() -> None:
    told = json.loads((Path.home() / "agent.json").read_text(encoding="utf-8"))
    clients = {
        name: entry["url"]
        if "url" in entry
        else StdioTransport(command=entry["command"], args=entry["args"], env=entry["env"])
        for name, entry in told["mcpServers"].items()
    }
    toolsets = [
        MCPToolset(client, tool_error_behavior="failed").prefixed(name)
        if len(clients) > 1  # two servers may have tools of one name
        else MCPToolset(client, tool_error_behavior="failed")
        for name, client in clients.items()
    ]
    model = OpenAIChatModel("scripted", provider=OpenAIProvider(base_url=told["model"], api_key="none"))
    agent = Agent(model, toolsets=toolsets)
    async with agent:
        result = await agent.run(sys.argv[1], usage_limits=UsageLimits(request_limit=100))
    print(result.output)


asyncio.run(main())
