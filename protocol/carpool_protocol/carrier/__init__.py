"""The dialogue of carriers and broker beside MCP: the attach line and the frames of multiplexed connections.

The files here know nothing of: sockets.
"""
