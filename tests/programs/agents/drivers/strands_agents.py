"""An agent of strands: `python strands_agents.py PROMPT`, told of servers and model by ~/agent.json."""

import json
import sys
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters, stdio_client
from strands import Agent
from strands.models.openai import OpenAIModel
from strands.tools.mcp import MCPClient


def client(name: str, entry: dict[str, Any], several: bool) -> MCPClient:
    prefix = name if several else None  # two servers may have tools of one name
    if "url" in entry:
        return MCPClient(url=entry["url"], prefix=prefix)
    parameters = StdioServerParameters(command=entry["command"], args=entry["args"], env=entry["env"])
    return MCPClient(lambda: stdio_client(parameters), prefix=prefix)


def main() -> None:
    told = json.loads((Path.home() / "agent.json").read_text(encoding="utf-8"))
    servers = told["mcpServers"]
    clients = [client(name, entry, len(servers) > 1) for name, entry in servers.items()]
    model = OpenAIModel(client_args={"base_url": told["model"], "api_key": "none"}, model_id="scripted")
    agent = Agent(model=model, tools=clients, callback_handler=None)
    print(agent(sys.argv[1]))


main()
