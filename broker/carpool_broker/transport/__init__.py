"""Connections of agents: the socket, the attach dialogue, lines in and out, and resuming sessions.

The files here know nothing of: the meaning of a request.
"""
