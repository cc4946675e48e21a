"""What tools cost a model that is shown them: tokens per tool and per server.

Owns the estimate: a model reads name, description and input schema of each tool, as JSON, and four bytes
of that are about one token. Over 501 tools of 23 servers they were 4.5 bytes with o200k_base, for single
servers 4.1 to 5.2. Every model has a tokenizer of its own, and those that can be had bring tables of
megabytes or fetch them: an estimate that says so is enough to see what is expensive.

Pure. Refuses to know where tools come from.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

from carpool.terminal import display

BYTES_PER_TOKEN: Final = 4

Facts = dict[str, Any]


def tokens_of(tool: Facts) -> int:
    """Of one row of `carpool tools --json`, estimated."""
    definition: Facts = tool.get("definition") or {}
    read = {
        "name": tool["name"],
        "description": definition.get("description", tool.get("description", "")),
        "inputSchema": definition.get("inputSchema", {}),
    }
    text = json.dumps(read, ensure_ascii=False, separators=(",", ":"))
    return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)


def costs_page(tools: Iterable[Facts]) -> str:
    """Tools, servers and all of it, the most expensive first; for people."""
    costs = sorted(
        ((tokens_of(tool), tool["name"], tool["server"]) for tool in tools), key=lambda it: (-it[0], it[1])
    )
    servers: dict[str, list[int]] = {}
    for tokens, _, server in costs:
        servers.setdefault(server, []).append(tokens)
    by_server = sorted(servers.items(), key=lambda it: (-sum(it[1]), it[0]))
    right = {"TOKENS", "TOOLS"}
    parts = [
        display.columns(["TOKENS", "TOOL", "SERVER"], costs, right=right),
        display.columns(
            ["TOKENS", "TOOLS", "SERVER"],
            [[sum(its), len(its), server] for server, its in by_server],
            right=right,
        ),
        f"{sum(tokens for tokens, _, _ in costs)} tokens for {len(costs)} tools, estimated at "
        f"{BYTES_PER_TOKEN} bytes each; a profile with show: search shows three tools instead",
    ]
    return "\n\n".join(part for part in parts if part)
