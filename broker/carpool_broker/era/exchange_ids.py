"""Ids of requests that come through a carrier with many streams (rule 9).

Owns how such an id is distinguished from the same id of another agent on one shared stream: stateless
requests over HTTP all have the id 1. For the core an id is opaque bytes; on a shared session it is the
agent's own id with the number of the exchange (one POST) before it: `@7 1`. Also owns the exchange of each
open request: messages about a request travel on its exchange.

Knows nothing of: sockets, frames, the content of requests.
"""

from carpool_protocol.ids import RawJson

_MARK = b"@"[0]
"""No JSON id begins with this byte."""


def tag_id(exchange: int, raw: RawJson) -> RawJson:
    """The id for the core: exchange 7, id `1` → `@7 1`."""
    return RawJson(b"@%d %b" % (exchange, raw))


def id_as_json(request: RawJson) -> RawJson:
    """The agent's own id, byte for byte: `@7 1` → `1`."""
    return RawJson(request.partition(b" ")[2]) if request and request[0] == _MARK else request


def exchange_of_id(request: RawJson) -> int:
    """The exchange of a tagged id; 0 for any other."""
    if not request or request[0] != _MARK:
        return 0
    return int(request[1 : request.index(b" ")])


class OneAgentExchanges:
    """Exchanges of one agent. Its request ids are unique (MCP 2025-11-25, basic, "Requests") and stay
    unchanged.
    """

    shared = False

    def __init__(self) -> None:
        self._open: dict[RawJson, int] = {}
        """Request → exchange; 0 if its client went away, which is no cancel (basic/transports)."""

    def tagged_id(self, raw: RawJson, exchange: int) -> RawJson:
        """The id for the core of a request that came with this exchange."""
        return raw

    def open(self, raw: RawJson, exchange: int) -> RawJson | None:
        """Register a request. Returns its id for the core; None: a request with this id is open."""
        if raw in self._open:
            return None
        self._open[raw] = exchange
        return raw

    def exchange_of(self, request: RawJson, *, last: bool) -> int:
        """The exchange for messages about this request; 0: none. `last`: the message is the answer."""
        return self._open.pop(request, 0) if last else self._open.get(request, 0)

    def request_cancelled(self, request: RawJson) -> int:
        """The agent cancelled a request. Returns the exchange that gets no more messages; 0: none."""
        exchange = self._open.pop(request, 0)
        return 0 if exchange in self._open.values() else exchange

    def close_all(self) -> None:
        """All clients went away."""
        self._open = dict.fromkeys(self._open, 0)

    def client_gone(self, exchange: int) -> list[RawJson]:
        """The client of an exchange went away. Returns the requests that are thereby cancelled."""
        for request, own_exchange in self._open.items():
            if own_exchange == exchange:
                self._open[request] = 0
        return []


class SharedExchanges:
    """Exchanges of many agents that do not know of each other: one request in each exchange."""

    shared = True

    def __init__(self) -> None:
        self._open: dict[int, RawJson] = {}

    def tagged_id(self, raw: RawJson, exchange: int) -> RawJson:
        """As `OneAgentExchanges.tagged_id`."""
        return tag_id(exchange, raw)

    def open(self, raw: RawJson, exchange: int) -> RawJson | None:
        """As `OneAgentExchanges.open`."""
        if exchange in self._open:
            return None
        request = self._open[exchange] = tag_id(exchange, raw)
        return request

    def exchange_of(self, request: RawJson, *, last: bool) -> int:
        """As `OneAgentExchanges.exchange_of`."""
        exchange = exchange_of_id(request)
        if last:
            self._open.pop(exchange, None)
        return exchange

    def request_cancelled(self, request: RawJson) -> int:
        """Always 0: a `notifications/cancelled` would be a POST of its own and name another agent's id."""
        return 0

    def close_all(self) -> None:
        """As `OneAgentExchanges.close_all`."""
        self._open.clear()

    def client_gone(self, exchange: int) -> list[RawJson]:
        """As `OneAgentExchanges.client_gone`. Closing the connection is the cancel (MCP 2026-07-28,
        basic/transports).
        """
        request = self._open.pop(exchange, None)
        return [] if request is None else [request]


Exchanges = OneAgentExchanges | SharedExchanges
