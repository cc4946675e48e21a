"""The server half of MCP: sessions, the namespaced registry, admission, and the answers owed to agents."""
