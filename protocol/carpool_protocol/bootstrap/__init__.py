"""Small modules that a process needs before it imports anything large. The shim uses only these.

Owns paths, trusted places and the contract with carriers; standard library only. The files here know nothing
of: messages, configuration, MCP.
"""
