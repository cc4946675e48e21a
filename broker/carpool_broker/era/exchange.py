"""Ids of requests that come through a carrier with many streams (rule 9).

Owns how such an id is told apart from that of another agent on the same stream of many: stateless requests
over HTTP all have the id 1. To the core an id is opaque bytes; on a shared session it is the agent's own with
the number of the exchange (one POST) before it.

Knows nothing of: sockets, frames, what is asked.
"""

from carpool_protocol.ids import RawJson

_MARK = b"@"[0]
"""No JSON id begins with it."""


def tagged(exchange: int, raw: RawJson) -> RawJson:
    """The id for the core."""
    return RawJson(b"@%d %b" % (exchange, raw))


def raw_of(request: RawJson) -> RawJson:
    """The agent's own id, byte for byte."""
    return RawJson(request.partition(b" ")[2]) if request and request[0] == _MARK else request


def exchange_of(request: RawJson) -> int:
    """The exchange; 0 for an id that is not tagged."""
    if not request or request[0] != _MARK:
        return 0
    return int(request[1 : request.index(b" ")])
