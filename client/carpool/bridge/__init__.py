"""The bridge: a stdio MCP server whose real one is reached over a URL.

A process of its own for each instance, run and watched by the supervisor like any other server. The
transports are those of the official `mcp` SDK, used at message level: what passes is JSON-RPC, and no field
is sieved out. The README of this folder has a picture.
"""
