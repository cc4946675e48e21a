"""Ids of requests that come through a carrier with many streams (rule 9).

Owns how such an id is told apart from that of another agent on the same stream of many: stateless requests
over HTTP all have the id 1. To the core an id is opaque bytes; on a shared session it is the agent's own with
the number of the exchange (one POST) before it. Owns also which exchange each open request of a session came
with: what belongs to a request travels on its exchange.

Knows nothing of: sockets, frames, what is asked.
"""

from carpool_protocol.ids import RawJson

_MARK = b"@"[0]
"""No JSON id begins with it."""


def tag_id(exchange: int, raw: RawJson) -> RawJson:
    """The id for the core."""
    return RawJson(b"@%d %b" % (exchange, raw))


def id_as_json(request: RawJson) -> RawJson:
    """The agent's own id, byte for byte."""
    return RawJson(request.partition(b" ")[2]) if request and request[0] == _MARK else request


def exchange_of_id(request: RawJson) -> int:
    """The exchange; 0 for an id that is not tagged."""
    if not request or request[0] != _MARK:
        return 0
    return int(request[1 : request.index(b" ")])


class OneAgentExchanges:
    """Of one agent: its request ids are unique (MCP 2025-11-25, basic, "Requests") and stay as they are."""

    shared = False

    def __init__(self) -> None:
        self._open: dict[RawJson, int] = {}
        """Of each open request; 0 where its client went away, which is no cancel (basic/transports)."""

    def tagged_id(self, raw: RawJson, exchange: int) -> RawJson:
        """The id for the core of a request that came with this exchange."""
        return raw

    def open(self, raw: RawJson, exchange: int) -> RawJson | None:
        """A request came. Its id for the core; None: one with this id is open."""
        if raw in self._open:
            return None
        self._open[raw] = exchange
        return raw

    def exchange_of(self, request: RawJson, *, last: bool) -> int:
        """Where to say what belongs to this request; 0: on none. `last`: it is the answer."""
        return self._open.pop(request, 0) if last else self._open.get(request, 0)

    def request_cancelled(self, request: RawJson) -> int:
        """The agent cancelled it: the exchange that nothing more comes for; 0: there is none."""
        exchange = self._open.pop(request, 0)
        return 0 if exchange in self._open.values() else exchange

    def close_all(self) -> None:
        """All clients went away."""
        self._open = dict.fromkeys(self._open, 0)

    def client_gone(self, exchange: int) -> list[RawJson]:
        """The client of an exchange went away: the requests that nobody waits for now."""
        for request, its in self._open.items():
            if its == exchange:
                self._open[request] = 0
        return []


class SharedExchanges:
    """Of many agents who know nothing of each other: one request in each exchange."""

    shared = True

    def __init__(self) -> None:
        self._open: dict[int, RawJson] = {}

    def tagged_id(self, raw: RawJson, exchange: int) -> RawJson:
        """See `OneAgentExchanges`."""
        return tag_id(exchange, raw)

    def open(self, raw: RawJson, exchange: int) -> RawJson | None:
        """See `OneAgentExchanges`."""
        if exchange in self._open:
            return None
        request = self._open[exchange] = tag_id(exchange, raw)
        return request

    def exchange_of(self, request: RawJson, *, last: bool) -> int:
        """See `OneAgentExchanges`."""
        exchange = exchange_of_id(request)
        if last:
            self._open.pop(exchange, None)
        return exchange

    def request_cancelled(self, request: RawJson) -> int:
        """Nobody can: a `notifications/cancelled` would be a POST of its own, which names another's id."""
        return 0

    def close_all(self) -> None:
        """See `OneAgentExchanges`."""
        self._open.clear()

    def client_gone(self, exchange: int) -> list[RawJson]:
        """See `OneAgentExchanges`. MCP 2026-07-28, basic/transports: closing the connection is the cancel."""
        request = self._open.pop(exchange, None)
        return [] if request is None else [request]


Exchanges = OneAgentExchanges | SharedExchanges
