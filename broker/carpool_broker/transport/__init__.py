"""Connections of agents: the socket, the attach dialogue, lines in and out, and their resumption.

The files here know nothing of: what a request means.
"""
