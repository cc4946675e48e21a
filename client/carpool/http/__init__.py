"""The HTTP door: MCP's Streamable HTTP of both eras in front of the broker, in a process of its own.

`connection` speaks HTTP/1.1, `broker_link` the frames of the broker; between them stands `core`, which
decides and does no I/O. Needs the extra `http` (`carpool_protocol.bootstrap.extras`).
"""
