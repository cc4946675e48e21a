"""The process that starts broker, supervisor and HTTP door, and restarts them.

The files here know nothing of: MCP, agents and servers.
"""
