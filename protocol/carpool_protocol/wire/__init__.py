"""MCP's own lines: JSON-RPC, names, URIs, repair of what servers say, translation between eras.

The files here know nothing of: who reads or writes them.
"""
