"""Era adapters, one per era of MCP: lines of a server in, neutral events out, and back. Pure."""
