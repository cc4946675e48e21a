"""A server whose tools are the functions of a Python module: `python -m carpool.pymodule MODULE`.

What a server with `"python": "package.module"` is run as. A supervised child like any other; nothing else of
carpool is imported here, but for how the protocol finds the id in a line. It needs the official MCP SDK (the
extra `python`). For people: docs/python.md.
"""
