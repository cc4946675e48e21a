"""An agent of mcp-use: `python mcp_use_agent.py PROMPT`, told of servers and model by ~/agent.json."""

import asyncio
import json
import sys
from pathlib import Path

from langchain_openai import ChatOpenAI
from mcp_use import MCPAgent, MCPClient


async def main() -> None:
    told = json.loads((Path.home() / "agent.json").read_text(encoding="utf-8"))
    client = MCPClient.from_dict({"mcpServers": told["mcpServers"]})
    model = ChatOpenAI(model="scripted", base_url=told["model"], api_key="none")
    agent = MCPAgent(llm=model, client=client, max_steps=100)
    print(await agent.run(sys.argv[1]))
    await client.close_all_sessions()


asyncio.run(main())
