"""Translation between agents' lines and neutral events and effects: one pure adapter per era of MCP."""
