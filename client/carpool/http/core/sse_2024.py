"""The transport of MCP 2024-11-05 ("HTTP with SSE"): one GET that hears everything, and POSTs beside it.

Knows nothing of: who may come in, what frames say.
"""

from urllib.parse import parse_qs

from carpool.http.core.body import INTERNAL_ERROR, SESSION_NOT_FOUND, BadBody, read_body
from carpool.http.core.effects import HttpRequest, Respond, body_refusal, refusal
from carpool.http.core.pages import AWAY
from carpool.http.core.quotas import PrincipalQuotas
from carpool.http.core.routing import ExchangeTable
from carpool.http.core.streams import Endpoint


class SseTransport:
    """The two paths of this transport."""

    def __init__(self, table: ExchangeTable, quotas: PrincipalQuotas) -> None:
        self._table = table
        self._quotas = quotas

    def stream(self, x: int, endpoint: Endpoint, now: float, *, linked: bool) -> Respond | None:
        """Handle a GET, which gets all messages of a session of its own."""
        if not linked:
            return refusal(x, 503, INTERNAL_ERROR, AWAY, Retry_After="1")
        if self._quotas.has_no_room(endpoint[0]):
            return refusal(x, 503, INTERNAL_ERROR, "too many sessions are open", Retry_After="10")
        self._table.open_sse_stream(x, endpoint, now)
        return None

    def post(self, x: int, request: HttpRequest, principal: str, now: float) -> Respond | None:
        """Handle a POST with messages of such a session."""
        told = parse_qs(request.query).get("session", [""])[0]
        stream = self._table.sessions.get(told)
        if stream is None or stream.sort != "sse" or stream.endpoint[0] != principal:
            return refusal(x, 404, SESSION_NOT_FOUND, "Session not found")
        body = read_body(request.body)
        if isinstance(body, BadBody):
            return body_refusal(x, body)
        for message in body if isinstance(body, list) else [body]:
            self._table.forward_message(stream, message, now)
        return Respond(x, 202, b"Accepted", media="text/plain")
