"""The decisions of a node: channels, sessions over them, offers. Pure: no clock, randomness or I/O.

The files here know nothing of: sockets, links, MCP.
"""
