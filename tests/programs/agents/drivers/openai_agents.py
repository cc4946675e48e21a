"""An agent of openai-agents: `python openai_agents.py PROMPT`, told of servers and model by ~/agent.json."""

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
from openai import AsyncOpenAI


async def main() -> None:
    told = json.loads((Path.home() / "agent.json").read_text(encoding="utf-8"))
    set_tracing_disabled(True)
    servers = [
        MCPServerStreamableHttp(params={"url": entry["url"]}, name=name, client_session_timeout_seconds=120)
        if "url" in entry
        else MCPServerStdio(params=entry, name=name, client_session_timeout_seconds=120)
        for name, entry in told["mcpServers"].items()
    ]
    model = OpenAIChatCompletionsModel("scripted", AsyncOpenAI(base_url=told["model"], api_key="none"))
    async with AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(server)
        # Two servers may have tools of one name.
        several = {"include_server_in_tool_names": len(servers) > 1}
        agent = Agent(name="scripted", model=model, mcp_servers=servers, mcp_config=several)
        result = await Runner.run(agent, sys.argv[1], max_turns=100)
        print(result.final_output)


asyncio.run(main())
