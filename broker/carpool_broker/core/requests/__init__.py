"""Requests of agents: initialize, lists, and the way from a name to a server.

The files here know nothing of: lines and connections.
"""
