"""The HTTP door as a pure core: exchanges, streams, routing, headers, resumption.

The files here know nothing of: sockets and clocks.
"""
