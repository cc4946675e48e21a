"""HTTP/1.1 on one connection: requests in, whole answers or streams of events out, within limits.

Owns parsing (httptools), keep-alive, chunked streams, the sizes and times a client may take, the news that it
hung up, and the passing on of a connection that is between two requests. Invariants: one request of a
connection is worked on at a time and they are answered in order; what one turn of the loop has no room for
waits for a turn (`RequestTurns`), and until then nothing more is read; what is kept of a request that is not
complete, or waits, is bounded, alone and together (`ClientBudget`), and so is what is kept for a client that
does not read: its next request is not handled before it has read, a stream of events is cut at
`MAX_UNSENT_BYTES`, and what a principal leaves unread on all its connections is bounded, where a long part
counts as a whole until the last of it is sent; what a connection that ends has not sent within the time of a
stalled client is lost; a broken request gets its status and the connection ends; what can be read in two ways
(RFC 9112, 11.2) is broken.

It is long because reading, answering and passing on share the state of one connection.

Knows nothing of: MCP, the broker, what paths mean.
Decisions: docs/decisions/0017, 0054.
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from socket import SO_SNDBUF, SOL_SOCKET, socket
from typing import Any, Final, Literal, Protocol

import httptools

from carpool.http.client_budget import ClientBudget
from carpool.http.core.effects import SSE, HttpRequest, Respond, too_large
from carpool.http.core.limits import (
    ASK_FIRST_BYTES,
    LINGER_S,
    MAX_AHEAD,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_UNSENT_BYTES,
    MAX_URL_BYTES,
    MIN_CHUNK_BYTES,
    SMALL_CHUNKS,
    STALLED_BYTES,
    HttpLimits,
)
from carpool.http.core.request_bytes import head_bytes, request_bytes
from carpool.http.core.request_turns import PIECE_BYTES, REQUEST_COST, RequestTurns
from carpool.http.left_connections import LeftConnection

_WRITE_BUFFER_BYTES: Final = 64 * 1024
"""The unsent bytes from which on a client counts as one that does not read. Of a long part: any."""
_FIELD_BYTES: Final = 128
"""The memory of a header that was read, beside its text."""
_FREE_HEAD_BYTES: Final = 4 * 1024
"""The first bytes of an unfinished head, which do not count: few heads are longer, and most connections that
show a token are new.
"""
_REQUEST_BYTES: Final = 512
"""The memory of a request that waits, beside its headers and body."""
_LARGE_HEAD_BYTES: Final = 4 * 1024
"""Longer headers are not kept for the next request."""
_LONG_BYTES: Final = 64 * 1024
_WATCHED_SEND_BYTES: Final = 16 * 1024
"""The bytes that the system keeps for a client whose reading is watched."""


class RequestHandler(Protocol):
    """The receiver of requests, which is the door's shell."""

    limits: HttpLimits
    date: bytes
    """The `Date` header of this second."""
    body_budget: ClientBudget
    """The memory for bodies that wait, of all connections."""
    unsent_budget: ClientBudget
    """The memory for answers that clients leave unread, of all connections."""
    turns: RequestTurns
    """The turns of all connections."""

    def principal_of(self, connection: "HttpConnection", headers: dict[str, str]) -> str:
        """Return the principal for which the body of a request with these headers counts in `body_budget`."""

    def reader_of(self, headers: dict[str, str]) -> str:
        """Return the principal that is given the answer to a request with these headers."""

    def body_bound(self, connection: "HttpConnection", path: str, headers: dict[str, str]) -> int | Respond:
        """Return how long the body of a request may be, or the refusal of a client that may not send one,
        before its body is read.
        """

    def client_connected(self, connection: "HttpConnection") -> Respond | None:
        """A client has connected. Returns the refusal of one that may not come in, or is one too many."""

    def request_received(self, connection: "HttpConnection", request: HttpRequest) -> int:
        """A request has come. Returns its number, by which `client_gone` names it."""

    def client_gone(self, x: int) -> None:
        """The client of this request disconnected before the answer was complete."""

    def client_blocked(self, x: int) -> None:
        """The client of this watched stream leaves events unread."""

    def client_has_room(self, x: int) -> None:
        """The client of this watched stream has read all events."""

    def connection_closed(self, connection: "HttpConnection") -> None:
        """The connection is closed."""


class HttpConnection(asyncio.Protocol):
    """One client's connection."""

    def __init__(
        self, taker: RequestHandler, clock: Callable[[], float], left_data: bytes | None = None
    ) -> None:
        """`left_data`: the bytes that an earlier door has read of this connection and not answered; None: no
        earlier door had it.
        """
        self._handler = taker
        self._turns = taker.turns
        self._left_data = left_data
        self._clock = clock
        self._transport: Any = None
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: dict[str, str] = {}
        self._fields: list[tuple[bytes, bytes]] = []
        """The headers as they came."""
        self._read: tuple[list[tuple[bytes, bytes]], dict[str, str], int] = ([], {}, 0)
        """The headers of the request before, how they were read, and their bytes."""
        self._has_large_head = False
        """These are not kept once the connection is idle."""
        self._body: bytes | bytearray = b""
        self._size = 0
        self._body_limit = 0
        """The bound of the body that is read."""
        self._chunks = 0
        """The chunks of that body so far."""
        self._moved = False
        self._still = 0
        """The bytes since the parser last returned something: it keeps what does not end."""
        self._kept = 0
        """The bytes of bodies here, which `body_budget` counts."""
        self._principal = ""
        """The principal for which they count."""
        self._unfinished = 0
        """The bytes of reads that did not bring a head, or trailers, to the end."""
        self._unfinished_kept = 0
        """The bytes of these, with the memory for their headers, that `body_budget` counts."""
        self._phase: Literal["between", "head", "body"] = "between"
        self._failed = False
        self._held: bytes | memoryview | None = None
        """The bytes that came while it is not known whether this client may come in, or that wait for their
        turn; None: none wait. `body_budget` counts them.
        """
        self._is_paused = False
        """It is not known whether this client may come in."""
        self._is_waiting = False
        """The connection stands in a line of `RequestTurns`."""
        self._has_turn = False
        """A request may be handled at once: it is the first of a read, which has brought all of it."""
        self._earlier = 0
        """The bytes that reads before the last one have brought of the request that is read."""
        self._ahead: deque[tuple[HttpRequest, bool, bool]] = deque()
        self._ahead_bytes: deque[int] = deque()
        """The bytes of the heads of these requests, which `body_budget` counts as well."""
        self._x = 0
        """The number of the request that is handled; 0 if none is."""
        self._modern = True
        """True if the request that is read is of HTTP/1.1."""
        self._chunked = False
        self._bare = False
        """True if the answer has no body, because the request is HEAD."""
        self._last_keeps = True
        self.request_head: tuple[str, str, str, dict[str, str]] = ("", "", "", {})
        """Method, path, query and headers of the request that is handled."""
        self.due = clock() + taker.limits.head_s
        """The time at which the client is disconnected if it does nothing; `inf`: never."""
        self._arrives_by = float("inf")
        """The time by which the request that is read must have arrived, also behind one that is open."""
        self._awaited: Literal["between", "head", "body"] = "between"
        """The part of that request to which this time belongs; `between`: there is none yet."""
        self._stalled = float("inf")
        """The time at which the client must have read something, while it is stalled."""
        self._is_stalled = False
        """The client leaves much unread."""
        self._unsent = 0
        """The unsent bytes at the last check, while the client is stalled."""
        self._unsent_by: tuple[str, int] = ("", 0)
        """The principal and the bytes that `unsent_budget` counts while the client is stalled."""
        self._readers: set[str] = set()
        """The principals of answers before that to `request_head`, as far as they may be unread."""
        self._write_limit = _WRITE_BUFFER_BYTES
        """The unsent bytes from which on a client is stalled if nothing of a long part is unsent."""
        self._long_bytes = 0
        """The bytes of the long parts that were written since all was sent; 0: nothing of one is unsent."""
        self._longest = 0
        """The bytes of the longest of them."""
        self._has_enough = False
        """Nothing more is read before the requests are handled that have come."""
        self._watched = 0
        """The number of a request whose client's reading the handler is told of; 0 if there is none."""

    # --- the transport's side ---

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=self._write_limit)
        refused = self._handler.client_connected(self)
        left_data, self._left_data = self._left_data, None
        if refused is not None:
            self.refuse(refused)
        elif left_data is not None:
            self.due = self._clock() + self._handler.limits.keep_s
            if left_data:  # before the loop reads the socket, where later bytes may wait
                self.data_received(left_data)

    def data_received(self, data: bytes | memoryview) -> None:
        if self._failed:
            return
        if self._held is not None or len(data) > PIECE_BYTES or not self._turns.spend(len(data)):
            self._hold(data)
        else:
            self._parse(data)

    def _parse(self, data: bytes | memoryview) -> None:
        self._moved = False
        self._has_turn = not self._earlier
        rest: bytes | memoryview = data
        try:
            while rest:
                try:
                    self._parser.feed_data(rest)
                    break
                except httptools.HttpParserUpgrade as stop:
                    rest = memoryview(rest)[stop.args[0] :]
                    self._decline_upgrade()
        except httptools.HttpParserError as error:
            if not self._failed:  # otherwise it is our own refusal
                self._fail(400, f"the request is not HTTP/1.1 ({type(error).__name__})")
            return
        if self._fields and len(self._fields) > MAX_HEADERS:
            self._fail(431, _TOO_MANY_HEADERS)
        if self._moved:
            self._still = 0
        else:
            self._still += len(data)
            if self._still > MAX_HEAD_BYTES:
                self._fail(431, f"there are more than {MAX_HEAD_BYTES} bytes of headers")
        if self._phase != "between" or self._still or self._unfinished:
            self._note_part(len(data))
        if self._ahead and len(self._ahead) > MAX_AHEAD:
            if self._x:
                self.abort()
            else:  # many came at once, or their client reads no answers
                self._has_enough = True
                self._transport.pause_reading()

    def _note_part(self, size: int) -> None:
        """These bytes have brought a part of a request, or the rest of one."""
        self._earlier += size
        if self._phase not in {self._awaited, "between"}:
            self._awaited = self._phase
            limits = self._handler.limits
            self._arrives_by = self._clock() + (limits.head_s if self._phase == "head" else limits.body_s)
        in_trailers = self._phase == "body" and self._fields
        if self._phase == "head" or in_trailers or self._still:
            self._count_unfinished(size)
        elif self._unfinished:
            self._forget_unfinished()

    def _count_unfinished(self, size: int) -> None:
        """Count a head, or trailers, that have not come to their end: the parser and this connection keep
        them.
        """
        self._unfinished += size
        memory = self._unfinished + _FIELD_BYTES * len(self._fields)
        if memory > _FREE_HEAD_BYTES and not self._failed:
            more, self._unfinished_kept = memory - self._unfinished_kept, memory
            if not self._has_room_before_head(more):
                self._fail(503, _NO_ROOM)

    def _forget_unfinished(self) -> None:
        self._give_back(self._unfinished_kept)
        self._unfinished = self._unfinished_kept = 0

    def _decline_upgrade(self) -> None:
        """Decline an upgrade: clients in Java offer h2c with every request. The request goes on
        as HTTP/1.1.
        """
        method, url = self._parser.get_method(), self._url
        if method == b"CONNECT":
            self._fail(501, "this is no proxy")
            self._parser = httptools.HttpRequestParser(self)
            return
        headers = {name: value for name, value in self._headers.items() if name != "upgrade"}
        head = head_bytes(method, url, self._parser.get_http_version(), headers)
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(head)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._stalled = self._clock() + self._handler.limits.stalled_s
        self._unsent = self._transport.get_write_buffer_size()
        self._is_stalled = True
        self._unsent_by = (self._handler.principal_of(self, self.request_head[3]), 0)
        if self._count_unsent() and self._watched:
            self._handler.client_blocked(self._watched)

    def resume_writing(self) -> None:
        self._release_unsent()
        if self._long_bytes:
            self._long_bytes = self._longest = 0
            self._transport.set_write_buffer_limits(high=self._write_limit)
        self._await_turn()
        if self._watched:
            self._handler.client_has_room(self._watched)

    def _count_unsent(self) -> bool:
        """Count in `unsent_budget` all that a stalled client has unread now: more may have been written since
        it stalled. Returns False if there is no room for it; the connection is cut then.
        """
        principal, counted = self._unsent_by
        unsent = self._unsent_memory()
        self._unsent_by = (principal, unsent)
        if unsent <= counted:
            self._handler.unsent_budget.release(principal, counted - unsent)
        elif not self._handler.unsent_budget.reserve(principal, unsent - counted):
            self.abort()
            return False
        return True

    def _unsent_memory(self) -> int:
        """Return the bytes that the transport keeps in memory: a long part as a whole while any of it is
        unsent. Parts are sent in order, so it is more than the unsent bytes by what was sent of one.
        """
        unsent: int = self._transport.get_write_buffer_size()
        return max(unsent, min(self._long_bytes, unsent + self._longest)) if unsent else 0

    def _release_unsent(self) -> None:
        if self._is_stalled:
            self._stalled, self._is_stalled = float("inf"), False
            self._handler.unsent_budget.release(*self._unsent_by)

    def connection_lost(self, _error: Exception | None) -> None:
        self._failed = True
        self._held = None
        self._ahead.clear()
        self._ahead_bytes.clear()
        self._release_body()
        self._release_unsent()
        x, self._x = self._x, 0
        if x:
            self._handler.client_gone(x)
        self._handler.connection_closed(self)
        # It leads back here: what stands in no circle is freed now, not when the collector comes.
        del self._parser

    def _release_body(self) -> None:
        self._body = b""
        self._unfinished = self._unfinished_kept = 0
        self._give_back(self._kept)

    def _give_back(self, size: int) -> None:
        self._kept -= size
        self._handler.body_budget.release(self._principal, size)

    # --- turns ---

    def _hold(self, data: bytes | memoryview) -> None:
        """Keep these bytes until it is the turn of this connection. Until then nothing more is read, so that
        it hears of a hang-up.
        """
        self._held = bytes(self._held) + data if self._held else data
        self._transport.pause_reading()
        if not self._has_room_before_head(len(data)):
            self._fail(503, _NO_ROOM)
        self._await_turn()

    def _await_turn(self) -> None:
        """Wait for a turn, if there is something to do in it: a turn of the principal for which it counts."""
        if not self._is_waiting and (self._can_handle or self._can_parse):
            self._is_waiting = True
            self._turns.add(self, self._principal)

    @property
    def _can_handle(self) -> bool:
        return bool(self._ahead) and not self._x and not self._is_stalled and not self._failed

    @property
    def _can_parse(self) -> bool:
        return bool(self._held) and not self._is_paused and not self._has_enough and not self._failed

    def take_turn(self) -> int:
        """Handle one request that waits, or parse one piece of what waits. Returns what it cost."""
        self._is_waiting = False
        cost = 0
        if self._transport.is_closing():
            return cost
        if self._can_handle:
            cost = self._handle_waiting()
        elif self._can_parse:
            cost = self._parse_waiting()
        self._await_turn()
        return cost

    def _handle_waiting(self) -> int:
        head = self._ahead_bytes.popleft()
        self._give_back(head)
        request, keeps, modern = self._ahead.popleft()
        self._handle_request(request, keeps, modern)
        if self._has_enough and not self._ahead and not self._failed:
            self._has_enough = False
            if self._held is None:
                self._transport.resume_reading()
        return head + len(request.body) + REQUEST_COST

    def _parse_waiting(self) -> int:
        held = memoryview(self._held or b"")
        piece, rest = held[:PIECE_BYTES], held[PIECE_BYTES:]
        self._held = rest or None
        if not rest:
            self._transport.resume_reading()
        self._give_back(len(piece))
        self._parse(piece)
        return len(piece) + REQUEST_COST

    def _has_room_before_head(self, size: int) -> bool:
        """Count bytes that are not read as headers yet."""
        if not self._kept:
            self._principal = self._handler.principal_of(self, self._shown_headers())
        self._kept += size
        return self._handler.body_budget.reserve(self._principal, size)

    def _shown_headers(self) -> dict[str, str]:
        """Return headers of what waits that tell whose it is, as far as they have come."""
        if self._ahead:
            return self._ahead[0][0].headers
        if self._phase == "body":
            return self._headers
        return _token_in(self._fields, bytes((self._held or b"")[:PIECE_BYTES]))

    # --- the parser's side ---

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = {}
        self._fields = []
        self._body = b""
        self._size = 0
        self._moved = True
        self._phase = "head"
        self._awaited = "between"

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > MAX_URL_BYTES:
            self._fail(414, f"the URL has more than {MAX_URL_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        # Read when there are no more of them. What comes later is a trailer, which no rule that was checked
        # at the head may depend on (RFC 9110, 6.5.1): nobody looks at it.
        self._fields.append((name, value))

    def _read_headers(self) -> None:
        fields = self._fields
        if fields == self._read[0]:  # of most clients all requests have the same
            self._headers = self._read[1]
            return
        headers = self._headers
        size = 0
        for name, value in fields:
            size += len(name) + len(value)
            key = name.decode("latin-1").lower()
            text = value.decode("latin-1").strip(" \t")
            known = headers.get(key)
            headers[key] = text if known is None else f"{known}, {text}"
        if size > MAX_HEAD_BYTES:
            self._fail(431, f"there are more than {MAX_HEAD_BYTES} bytes of headers")
            return
        self._read = (fields, headers, size)
        self._has_large_head |= size > _LARGE_HEAD_BYTES

    def on_headers_complete(self) -> None:
        if self._unfinished:
            self._forget_unfinished()
        if len(self._fields) > MAX_HEADERS:
            self._fail(431, _TOO_MANY_HEADERS)
        else:
            self._read_headers()
            self._fields = []  # a trailer is none of those that were read
        if self._failed or self._parser.should_upgrade():
            return
        self._phase = "body"
        self._moved = True
        version, headers = self._parser.get_http_version(), self._headers
        self._modern = version == "1.1"
        coded = headers.get("transfer-encoding")
        if version not in {"1.1", "1.0"}:
            self._fail(505, "HTTP/1.1 is spoken here")
        elif coded is not None and (coded.lower() != "chunked" or not self._modern):
            self._fail(501, "bodies come as they are or chunked (HTTP/1.1)")
        else:
            self._expect_body(headers, chunked=coded is not None)

    def _expect_body(self, headers: dict[str, str], *, chunked: bool) -> None:
        limit = self._handler.limits.body_bytes
        length = headers.get("content-length", "")
        size = int(length[-20:]) if length.isdecimal() else 0  # the parser takes no more but zeros before
        waits = headers.get("expect", "").lower() == "100-continue"
        if size > ASK_FIRST_BYTES or chunked or waits:
            path = self._url.decode("latin-1").partition("?")[0]
            bound = self._handler.body_bound(self, path, headers)
            if isinstance(bound, Respond):
                self.refuse(bound)
                return
            limit = bound
            self._chunks = 0
        if size > limit:
            self.refuse(too_large(0, limit))
            return
        self._body_limit = limit
        if waits and not self._x:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_chunk_complete(self) -> None:
        self._chunks += 1
        if self._chunks > SMALL_CHUNKS + self._size // MIN_CHUNK_BYTES:
            self._fail(400, _SMALL_CHUNKS)
        elif self._fields and len(self._fields) > MAX_HEADERS:  # they are trailers
            self._fail(431, _TOO_MANY_HEADERS)

    def on_body(self, body: bytes) -> None:
        if self._failed:
            return
        self._moved = True
        self._size += len(body)
        has_room = self._has_room(len(body))
        if self._size > self._body_limit:
            self.refuse(too_large(0, self._body_limit))
        elif not has_room:
            self._fail(503, _NO_ROOM)
        elif not self._body:
            self._body = body
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += body

    def _has_room(self, size: int) -> bool:
        """Count these bytes in `body_budget`."""
        if not self._kept:  # of one connection all count for the first, while any of them waits
            self._principal = self._handler.principal_of(self, self._headers)
        self._kept += size
        return self._handler.body_budget.reserve(self._principal, size)

    def on_message_complete(self) -> None:
        if self._failed or self._parser.should_upgrade():
            return
        path, _, query = self._url.decode("latin-1").partition("?")
        method = self._parser.get_method().decode("latin-1")
        request = HttpRequest(method, path, query, self._headers, bytes(self._body))
        self._body = b""
        self._phase = "between"
        self._arrives_by = float("inf")
        self._moved = True
        keep = self._modern and self._parser.should_keep_alive()
        if (
            not (self._x or self._ahead or self._is_stalled)
            and self._size <= PIECE_BYTES
            and (self._has_turn or self._charge_earlier())
        ):
            self._has_turn = False
            self._handle_request(request, keep, self._modern)
            return
        self._earlier = 0
        self._ahead.append((request, keep, self._modern))
        self._ahead_bytes.append(len(self._url) + self._read[2] + _REQUEST_BYTES)
        if not self._has_room(self._ahead_bytes[-1]):
            self._fail(503, _NO_ROOM)
        self._await_turn()

    def _charge_earlier(self) -> bool:
        """Count what earlier reads have brought of a request that is complete now. Returns False if that is
        nothing.
        """
        earlier, self._earlier = self._earlier, 0
        self._turns.charge(earlier)
        return bool(earlier)

    def _handle_request(self, request: HttpRequest, keep: bool, chunked: bool) -> None:
        self._last_keeps, self._chunked = keep, chunked
        if request.headers is not self.request_head[3]:  # its token may be another one
            self._note_readers()
        self.request_head = (request.method, request.path, request.query, request.headers)
        self._bare = request.method == "HEAD"
        self._give_back(len(request.body))
        self.due = float("inf")
        self._x = -1  # answered from within `request_received`, perhaps
        x = self._handler.request_received(self, request)
        if self._x == -1:
            self._x = x

    # --- the answer's side ---

    def respond(
        self, status: int, body: bytes, media: str, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Send the whole answer to the request that is handled."""
        more = "".join([f"{name}: {value}\r\n" for name, value in headers]) if headers else ""
        if body:
            more += f"Content-Type: {media}\r\n"
        if not self._last_keeps:
            more += "Connection: close\r\n"
        head = b"HTTP/1.1 %d %b\r\n%bContent-Length: %d\r\n%b\r\n" % (
            status,
            _REASONS.get(status, b""),
            self._handler.date,
            len(body),
            more.encode("latin-1"),
        )
        if self._bare:
            self._transport.write(head)
        elif len(body) < _LONG_BYTES:
            self._transport.write(head + body)
        else:
            self._write_parts(head, body)
        self._response_complete()

    def watch_reading(self, x: int, *, closely: bool = True) -> None:
        """Tell the handler when the client of request `x` leaves something unread, and when not any more.
        `closely`: anything, and the system keeps little for it, so that it is soon known.
        """
        self._watched = x
        if not closely:
            return
        self._write_limit = 0
        self._transport.set_write_buffer_limits(high=0)
        with contextlib.suppress(OSError):
            self.socket.setsockopt(SOL_SOCKET, SO_SNDBUF, _WATCHED_SEND_BYTES)

    def begin_stream(self, headers: tuple[tuple[str, str], ...]) -> None:
        """Begin a stream of events as the answer."""
        more = "".join([f"{name}: {value}\r\n" for name, value in headers])
        if self._chunked:
            more += "Transfer-Encoding: chunked\r\n"
        if not self._last_keeps or not self._chunked:
            more += "Connection: close\r\n"
        fixed = f"HTTP/1.1 200 OK\r\nContent-Type: {SSE}\r\nCache-Control: no-cache, no-transform\r\n{more}"
        self._transport.write(fixed.encode("latin-1") + self._handler.date + b"\r\n")

    def write(self, data: bytes) -> None:
        """Send events. A client that leaves too much unread is disconnected, which
        `client_gone` then tells.
        """
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.abort()
            return
        if len(data) >= _LONG_BYTES:
            parts = (b"%x\r\n" % len(data), data, b"\r\n") if self._chunked else (b"", data)
            self._write_parts(*parts)
            return
        if self._chunked:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            self._transport.write(data)
        if self._is_stalled:
            self._count_unsent()

    def _write_parts(self, head: bytes, data: bytes, tail: bytes = b"") -> None:
        """Send the three. Long data is not copied into one piece with the others, nor by the transport when
        only a part of it can be sent at once: each copy holds up all other clients. So the client is stalled
        as long as any of it is unsent.
        """
        self._transport.write(head)
        self._long_bytes += len(data)
        self._longest = max(self._longest, len(data))
        self._transport.write(memoryview(data))
        if self._transport.get_write_buffer_size():
            self._transport.set_write_buffer_limits(high=0)
        else:
            self._long_bytes = self._longest = 0
        self._transport.write(tail)
        if self._is_stalled:  # since the first of the three, perhaps
            self._count_unsent()

    def end(self) -> None:
        """End the stream of events."""
        if self._chunked:
            self._transport.write(b"0\r\n\r\n")
        else:
            self._last_keeps = False
        self._response_complete()

    def _response_complete(self) -> None:
        self._x = 0
        if self._watched:
            self._watched = 0
            self._write_limit = _WRITE_BUFFER_BYTES
            if not self._long_bytes:
                self._transport.set_write_buffer_limits(high=self._write_limit)
        if not self._last_keeps:
            self.close_after_write()
            return
        self.due = self._clock() + self._handler.limits.keep_s
        if self._has_large_head and self._phase == "between":
            self._has_large_head = False
            self._note_readers()
            self._read = ([], {}, 0)
            self._headers = {}
            self.request_head = ("", "", "", {})
        if self._ahead:
            self._await_turn()

    def _note_readers(self) -> None:
        """Note whose answers are unread, before the headers of the last request are forgotten."""
        if self._transport.get_write_buffer_size():
            self._readers.add(self._handler.reader_of(self.request_head[3]))
        else:
            self._readers.clear()

    def _fail(self, status: int, text: str) -> None:
        """Refuse what cannot be parsed. The rest of the connection has no meaning."""
        self.refuse(Respond(0, status, text.encode(), media="text/plain; charset=utf-8"))

    def refuse(self, answer: Respond) -> None:
        """Send this answer and read nothing more."""
        if self._failed:
            return
        self._failed = True
        if self._held is not None:
            self._held = None
            self._transport.resume_reading()  # what is left unread would take the answer along
        if self._x or self._ahead:  # the answer before it is not to be mixed up with this one
            self.abort()
            return
        self._release_body()
        self._fields = []
        head = f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, b'').decode()}\r\n"
        head += f"Content-Type: {answer.media}\r\n"
        head += "".join([f"{name}: {value}\r\n" for name, value in answer.headers])
        head += f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
        self._transport.write(head.encode("latin-1") + answer.body)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self.due = self._clock() + LINGER_S

    # --- the shell's side ---

    @property
    def socket(self) -> socket:
        """Return the socket of the connection, for questions about its other end."""
        found: socket = self._transport.get_extra_info("socket")
        return found

    @property
    def is_paused(self) -> bool:
        """True between `pause_requests` and `resume_requests`."""
        return self._is_paused

    @property
    def address(self) -> str:
        """Return the address of the client; empty if it is not known any more."""
        found = self._transport.get_extra_info("peername")
        return str(found[0]) if isinstance(found, tuple) and found else ""

    def pause_requests(self) -> None:
        """Handle no request before `resume_requests`."""
        self._is_paused = True
        self._held = b""

    def resume_requests(self) -> None:
        """Go on after `pause_requests`, with what has come meanwhile."""
        if not self._is_paused or self._failed or self._transport.is_closing():
            return
        self._is_paused = False
        self.due = self._clock() + self._handler.limits.head_s
        if self._held:
            self._await_turn()
        else:
            self._held = None
            self._transport.resume_reading()

    def leave(self, waiting: HttpRequest | None) -> LeftConnection | None:
        """Give the connection up for the next door, with what has come on it. `waiting`: the request that is
        handled, if nothing of its answer was sent. None: the connection is not between two requests.
        """
        if not self.may_be_left or bool(self._x) != (waiting is not None):
            return None
        self._transport.pause_reading()
        requests = [(waiting, True, self._chunked)] if waiting is not None else []
        requests += self._ahead
        data = b"".join([request_bytes(request, modern=modern) for request, _, modern in requests])
        try:
            left = LeftConnection(os.dup(self.socket.fileno()), data + bytes(self._held or b""))
        except OSError:  # no descriptor is to be had, or the connection is closed
            return None
        self._x = 0  # nobody is gone
        self.abort()
        return left

    @property
    def may_be_left(self) -> bool:
        """True if no request is arriving and everything that was answered is sent."""
        unsent = self._transport.get_write_buffer_size()
        is_open = not self._failed and not self._transport.is_closing()
        return is_open and self._phase == "between" and not unsent

    @property
    def is_arriving(self) -> bool:
        """True if a part of a request has come."""
        return not self._failed and self._phase != "between"

    @property
    def is_failed(self) -> bool:
        """True if nothing more is read from the connection."""
        return self._failed

    @property
    def unread_by(self) -> set[str]:
        """Return the principals with answers that their client has not read: not only the last one, as one
        connection can carry requests with several tokens.
        """
        if not self._transport.get_write_buffer_size():
            return set()
        return {*self._readers, self._handler.reader_of(self.request_head[3])}

    def close_after_answer(self) -> None:
        """Make the answer to the request that is handled the last one."""
        self._last_keeps = False

    def abort(self) -> None:
        """End the connection now; what was not sent is lost."""
        self._failed = True
        self._transport.abort()
        self._release_unsent()  # at once: the others are not cut for what is lost

    def close_after_write(self) -> None:
        """End the connection after what is written, which its client has to read in time; `client_gone` tells
        of an unfinished answer.
        """
        self._failed = True
        self.due = self._clock() + self._handler.limits.stalled_s
        self._transport.close()

    def check_timeout(self, now: float) -> None:
        """End the connection if its client's time is over."""
        if now >= self._stalled:
            unsent = self._transport.get_write_buffer_size()
            if self._unsent - unsent < STALLED_BYTES:
                self.abort()
            else:
                self._stalled, self._unsent = now + self._handler.limits.stalled_s, unsent
        elif now >= self.due and (self._phase == "between" or self._failed):
            if not self._transport.is_closing():
                self.close_after_write()
            elif not self._is_stalled:  # otherwise it has time while it goes on reading
                self.abort()
        elif now >= self._arrives_by and not self._failed:
            self._fail(408, "the request took too long to arrive")


def _token_in(fields: list[tuple[bytes, bytes]], more: bytes) -> dict[str, str]:
    """Return the header with the token from headers that were read and the bytes that follow; empty if it has
    not come.
    """
    values = [value for name, value in fields if name.lower() == b"authorization"]
    at = more.lower().find(_TOKEN_HEADER)
    if at >= 0:
        values.append(more[at + len(_TOKEN_HEADER) :].partition(b"\r\n")[0])
    return {"authorization": values[0].decode("latin-1").strip(" \t")} if values else {}


_TOKEN_HEADER: Final = b"\r\nauthorization:"
_TOO_MANY_HEADERS: Final = f"there are more than {MAX_HEADERS} headers"
_SMALL_CHUNKS: Final = (
    f"the body comes in more than {SMALL_CHUNKS} chunks of less than {MIN_CHUNK_BYTES} bytes on average; "
    "send it in longer chunks, or with a Content-Length"
)
_NO_ROOM: Final = "too many long requests are arriving; try again in a moment"
_REASONS: Final = {each.value: each.phrase.encode() for each in HTTPStatus} | {421: b"Misdirected Request"}
