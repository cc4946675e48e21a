"""An agent of langchain: `python langchain_agent.py PROMPT`, told of servers and model by ~/agent.json."""

import asyncio
import json
import sys
from pathlib import Path

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_openai import ChatOpenAI


async def main() -> None:
    told = json.loads((Path.home() / "agent.json").read_text(encoding="utf-8"))
    connections = {
        name: {"transport": "streamable_http" if "url" in entry else "stdio", **entry}
        for name, entry in told["mcpServers"].items()
    }
    # Two servers may have tools of one name.
    client = MultiServerMCPClient(connections, tool_name_prefix=len(connections) > 1)
    model = ChatOpenAI(model="scripted", base_url=told["model"], api_key="none")
    agent = create_agent(model, await client.get_tools())
    messages = [{"role": "user", "content": sys.argv[1]}]
    result = await agent.ainvoke({"messages": messages}, {"recursion_limit": 100})
    print(result["messages"][-1].content)


asyncio.run(main())
