"""What a process needs before it imports anything large, the shim for all its life.

Paths, trusted places, the contract with carriers. The standard library only. The files here know nothing of:
messages, configuration, MCP.
"""
