"""The server half of MCP: sessions, the namespaced registry, admission, what is owed to whom."""
