"""A server on the official Python SDK, whose stdin is read with universal newlines (rule 1)."""

from mcp.server import MCPServer

server: MCPServer[None] = MCPServer("sdk")
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


if __name__ == "__main__":
    server.run("stdio")
