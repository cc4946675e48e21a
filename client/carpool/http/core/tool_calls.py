"""Tool calls of the stateless era, after their `Mcp-Param-*` headers are found right.

MCP 2026-07-28, basic/transports, "Custom headers from tool parameters". Owns which arguments each shared
stream's tools tell in headers: asked of the broker with the first call, for those tools alone, believed until
it says that the list has changed. A call waits for the list at most `PARAMS_WAIT_S`, then goes unchecked: the
headers are for intermediaries, and the broker goes by the body alone. What waits counts among all that waits
for its principal, and is refused beyond that.

Knows nothing of: where a request came from, the other methods.
"""

from typing import Any, Final

from carpool.http.core import own_requests
from carpool.http.core.body import HEADER_MISMATCH, ClientMessage, member_of, text_of
from carpool.http.core.effects import HttpRequest, Respond, refusal
from carpool.http.core.headers import param_mismatch
from carpool.http.core.quotas import PrincipalQuotas
from carpool.http.core.routing import ExchangeTable
from carpool.http.core.streams import BrokerStream, HeaderSchemas

PARAMS_WAIT_S: Final = 2.0
_FRESH_S: Final = 30.0
"""A list of tools is used for this long if no change is told."""


class HeaderCheckedCalls:
    """The checks of one door's calls."""

    def __init__(self, table: ExchangeTable, quotas: PrincipalQuotas) -> None:
        self._table = table
        self._quotas = quotas

    def tick(self, now: float) -> None:
        """Release calls that have waited long enough."""
        for stream in self._table.shared_streams():
            if stream.schemas is not None:
                self._release_waiting(stream.schemas, now, late_only=True)

    def handle_call(
        self, x: int, request: HttpRequest, message: ClientMessage, stream: BrokerStream, now: float
    ) -> Respond | None:
        """Handle a tool call once its `Mcp-Param-*` headers are checked."""
        schemas = stream.schemas
        if schemas is None:
            schemas = stream.schemas = HeaderSchemas()
        tools = schemas.tools
        if tools is not None and not schemas.listening and now >= schemas.stale_at:
            tools = schemas.tools = None
        if tools is None:
            headers = request.headers  # without the body, of which the message has a copy

            def go_on(now: float) -> None:
                self._resume_call(x, headers, message, stream, now)

            size = len(message.line) + len(message.params)
            refused = self._table.hold_request(x, stream.endpoint[0], size, go_on, ident=message.id)
            if refused is None:
                schemas.waiting_calls.append((now, x))
                self._fetch(stream, schemas, now)
            return refused
        return self._checked_call(x, request.headers, message, stream, now)

    def _resume_call(
        self, x: int, headers: dict[str, str], message: ClientMessage, stream: BrokerStream, now: float
    ) -> None:
        if not self._table.is_open(stream):
            found = self._table.stateless_stream(stream.endpoint, now)
            if found is None:
                self._table.out.append(self._table.no_room(x, message.id))
                return
            stream = found
        answer = self._checked_call(x, headers, message, stream, now)
        if answer is not None:
            self._table.out.append(answer)

    def _checked_call(
        self, x: int, headers: dict[str, str], message: ClientMessage, stream: BrokerStream, now: float
    ) -> Respond | None:
        tools = stream.schemas.tools if stream.schemas is not None else None
        if tools:
            name = text_of(member_of(message.params, "name"))
            wrong = param_mismatch(headers, tools.get(name or "", {}), message)
            if wrong:
                return refusal(x, 400, HEADER_MISMATCH, wrong, message.id)
        self._open(x, stream, message, now)
        return None

    def _fetch(self, stream: BrokerStream, schemas: HeaderSchemas, now: float) -> None:
        if schemas.fetching:
            return
        schemas.fetching = True
        if not schemas.listening:
            schemas.listening = self._table.next_number()

            def news(_: Any, now: float) -> None:
                schemas.listening = 0
                schemas.tools = None

            self._table.start_own_request(
                schemas.listening,
                stream,
                own_requests.await_tools_changed(),
                news,
                now,
                is_listen=True,
            )

        def found(tools: Any, now: float) -> None:
            schemas.fetching = False
            schemas.tools = tools or {}
            schemas.stale_at = now + _FRESH_S
            self._release_waiting(schemas, now)

        x = self._table.next_number()
        self._table.start_own_request(x, stream, own_requests.list_annotated(), found, now)

    def _release_waiting(self, schemas: HeaderSchemas, now: float, *, late_only: bool = False) -> None:
        parked = schemas.waiting_calls
        ready = [each for each in parked if not late_only or now - each[0] >= PARAMS_WAIT_S]
        schemas.waiting_calls = [each for each in parked if each not in ready]
        for _, x in ready:
            self._quotas.resume_request(x, now)

    def _open(self, x: int, stream: BrokerStream, message: ClientMessage, now: float) -> None:
        self._table.open_exchange(x, stream, [message], now)
