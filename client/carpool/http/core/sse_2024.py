"""The transport of MCP 2024-11-05 ("HTTP with SSE"): one GET that hears everything, and POSTs beside it.

The stream of a session ends with its door, and no later door resumes it: while the door holds requests for
the next one, new streams are held, and calls of open ones are refused as not delivered. What is refused is
told on the stream, as every answer: some clients end with the first POST that has another status than 202.

Knows nothing of: who may come in, what frames say.
"""

from carpool.http.core.body import (
    INTERNAL_ERROR,
    SESSION_NOT_FOUND,
    BadBody,
    ClientMessage,
    error_line,
    read_body,
    unsent_answer,
)
from carpool.http.core.effects import HoldRequest, HttpRequest, Respond, body_refusal, refusal
from carpool.http.core.event_streams import EventStreams
from carpool.http.core.kept_messages import REPEATABLE
from carpool.http.core.pages import AWAY
from carpool.http.core.quotas import PrincipalQuotas
from carpool.http.core.routing import ExchangeTable
from carpool.http.core.streams import Endpoint


class SseTransport:
    """The two paths of this transport."""

    def __init__(self, table: ExchangeTable, events: EventStreams, quotas: PrincipalQuotas) -> None:
        self._table = table
        self._events = events
        self._quotas = quotas

    def stream(self, x: int, endpoint: Endpoint, now: float, *, linked: bool) -> Respond | None:
        """Handle a GET, which gets all messages of a session of its own."""
        if not linked:
            return refusal(x, 503, INTERNAL_ERROR, AWAY, Retry_After="1")
        if not self._table.make_room(endpoint[0], now):
            return self._table.no_room(x)
        if self._table.is_holding:
            self._table.out.append(HoldRequest(x, b""))
        else:
            self._table.open_sse_stream(x, endpoint, now)
        return None

    def post(self, x: int, request: HttpRequest, session: str, principal: str, now: float) -> Respond | None:
        """Handle a POST with messages of this session."""
        stream = self._table.sessions.get(session)
        if stream is None or stream.sort != "sse" or stream.endpoint[0] != principal:
            return refusal(x, 404, SESSION_NOT_FOUND, "Session not found")
        body = read_body(request.body)
        if isinstance(body, BadBody):
            return body_refusal(x, body)
        for message in body if isinstance(body, list) else [body]:
            if self._must_refuse(message):
                self._events.write_sse(stream, unsent_answer(message))
            elif message.sort == "request" and self._quotas.is_at_limit(principal):
                text = self._table.limit_text()
                self._events.write_sse(stream, error_line(message.id, INTERNAL_ERROR, text))
            else:
                self._table.forward_message(stream, message, now)
        return Respond(x, 202, b"Accepted", media="text/plain")

    def _must_refuse(self, message: ClientMessage) -> bool:
        """Return whether this message is a call that would outlive the stream of its answer."""
        return self._table.is_holding and message.sort == "request" and message.method not in REPEATABLE
