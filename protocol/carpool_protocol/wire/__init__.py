"""Lines of MCP: JSON-RPC, names, URIs, repair of servers' answers, translation between versions.

The files here know nothing of: the process that reads or writes them.
"""
