"""What carriers and broker say to each other beside MCP: the attach line and streams of many sessions.

The files here know nothing of: sockets.
"""
