"""The table of what is open: frames of the broker become answers and events of HTTP requests.

Owns streams, exchanges, the decision between plain JSON and a stream of events, and what happens when a
client, a session or the broker goes. Three parts keep a record each: `PrincipalQuotas` counts,
`EventStreams` knows who hears what, `Resumption` what the next broker must hear. Invariants: each HTTP
request is answered once; a message goes to one stream (MCP, basic/transports); an answer is the last of its
exchange; nothing of one session reaches another; what a broker that died has not answered is asked of the
next one (docs/decisions/0019), unless it may have been run and nothing there could tell; what is closed is
forgotten everywhere.

Long, because every part of it changes the same records of streams and exchanges.

A POST is answered as JSON when its answer is the first that comes for it; otherwise, or after
`STREAM_AFTER_S` (proxies give up on silent requests), it becomes a stream. So does an array with long
answers.

Knows nothing of: sockets, clocks, paths and headers (`core`), what is asked.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from carpool.http.core.access import ANY_PRINCIPAL, GENERATED_PRINCIPAL
from carpool.http.core.body import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    PARSE_ERROR,
    SESSION_NOT_FOUND,
    UNSUPPORTED_VERSION,
    BrokerMessage,
    ClientMessage,
    error_line,
    is_unsent,
    member_of,
    read_broker_message,
    too_large_answer,
    version_of,
)
from carpool.http.core.effects import (
    BeginEvents,
    Effect,
    HoldRequest,
    HttpRules,
    Respond,
    SendToBroker,
    event_bytes,
    refusal,
)
from carpool.http.core.event_streams import EventStreams
from carpool.http.core.kept_messages import REPEATABLE, KeptMessages
from carpool.http.core.own_requests import OwnQuestion
from carpool.http.core.quotas import PrincipalQuotas
from carpool.http.core.resume import Resumption, resume_frames
from carpool.http.core.shared_budgets import SharedBudget
from carpool.http.core.streams import (
    OWN_QUESTION_S,
    BrokerStream,
    Dialogue,
    Endpoint,
    Exchange,
    OwnRequest,
    StreamSort,
)
from carpool_protocol.carrier.attach_line import ResumeSession, WorkspaceChanged
from carpool_protocol.carrier.streams import (
    CONTROL,
    MESSAGE_CAP_BYTES,
    ClientAbsent,
    CloseStream,
    ControlMessage,
    ExchangeClientGone,
    ExchangeEnded,
    OpenCallsRaised,
    OpenStream,
    ServersStateful,
    StreamClosed,
    StreamOpened,
    StreamRefused,
    SupervisorAssigned,
    control_line,
    frame_line,
    read_control,
    split_frame,
)

MAX_ARRAY_BYTES: Final = 1024 * 1024
"""Answers to an array with more bytes together are sent as events, each once it is there: they are not copied
into one text. Where the door answers with JSON only, `MESSAGE_CAP_BYTES` counts instead.
"""
STREAM_AFTER_S: Final = 15.0
KEEP_ALIVE_S: Final = 15.0
"""A comment is written to each stream of events this often."""
ABSENT_S: Final = 60.0
"""A client without an open connection for this long counts as absent."""

_STATUS: Final = {
    METHOD_NOT_FOUND: 404,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
    INVALID_REQUEST: 400,
    PARSE_ERROR: 400,
}
"""The HTTP status of error answers of the stateless era; 200 for all others (basic/transports, "Errors")."""

_COUNTED: Final = frozenset({"session", "sse", "shared"})
"""Streams of these sorts count against `http.max_sessions`."""

UNKNOWN_SESSION: Final = "Session not found: it has ended or never was; initialize a new one"
BROKER_LOST: Final = "carpool's broker ended while this was open; nothing is known of its outcome, try again"
_TOO_MUCH_WAITS: Final = "too much waits for carpool already; this was not delivered, try again in a moment"


class ExchangeTable:
    """All open streams and exchanges. Effects are appended to `out`."""

    def __init__(
        self,
        rules: HttpRules,
        quotas: PrincipalQuotas,
        events: EventStreams,
        *,
        budget: SharedBudget,
        out: list[Effect],
        first: int = 0,
        workspaces_of: Callable[[str], Sequence[str]] = lambda _principal: (),
    ) -> None:
        """`budget` is for what a later broker must hear. `first`: no earlier door used a number this high.
        `workspaces_of` returns the only workspaces that a principal may work in; none: any.
        """
        self.rules = rules
        self.out = out
        self._workspaces_of = workspaces_of
        self.sessions: dict[str, BrokerStream] = {}
        """By `Mcp-Session-Id`, or by the session of a 2024-11-05 stream."""
        self._quotas = quotas
        self._events = events
        self._budget = budget
        self._resumption = Resumption(budget)
        self._streams: dict[int, BrokerStream] = {}
        self._shared: dict[tuple[StreamSort, Endpoint], BrokerStream] = {}
        self._seeking: dict[tuple[str, Endpoint], BrokerStream] = {}
        """Sessions of an earlier door, by the client's name for them, until the broker has told of them."""
        self.is_holding = False
        """Requests that no server has are kept for the next door."""
        self._last_s = 0
        self._last_x = first
        self._commented = 0.0

    def set_rules(self, rules: HttpRules) -> None:
        """Set the rules. Streams that many agents share may have more calls open at once."""
        is_raised = rules.max_open > self.rules.max_open
        self.rules = rules
        for stream in self._shared.values():
            if is_raised and stream.sort == "shared":
                self._tell_broker(stream, OpenCallsRaised(rules.max_open))

    def next_number(self) -> int:
        """Return the number for the next HTTP request, or for a request of the door itself."""
        self._last_x += 1
        return self._last_x

    # --- opening ---

    def open_stream(
        self, sort: StreamSort, endpoint: Endpoint, now: float, resume: ResumeSession | None = None
    ) -> BrokerStream:
        """Open a session of the broker, or resume one of an earlier door. Messages may follow at once."""
        self._last_s += 1
        kept = KeptMessages(self._budget.share_of(endpoint[0]))
        stream = BrokerStream(self._last_s, sort, endpoint, kept, now)
        self._streams[stream.s] = stream
        if sort in _COUNTED:
            self._quotas.count_session(endpoint[0], 1)
        self._tell_broker(stream, self._open_message(stream, resume))
        return stream

    def _open_message(self, stream: BrokerStream, resume: ResumeSession | None = None) -> OpenStream:
        """Return the message that opens a stream at the broker."""
        principal, server, profile, workspace, length = stream.endpoint
        return OpenStream(
            kind=stream.kind,
            principal=ANY_PRINCIPAL if principal == GENERATED_PRINCIPAL else principal,
            server=server,
            profile=profile,
            workspace=workspace,
            workspaces=[*self._workspaces_of(principal)],
            tool_name_length=length,
            agent="http",
            max_open_calls=self.rules.max_open if stream.sort == "shared" else 0,
            resume=resume,
        )

    def shared_stream(self, sort: StreamSort, endpoint: Endpoint, now: float) -> BrokerStream:
        """Return the stream of this sort and endpoint, opened if there is none."""
        stream = self._shared.get((sort, endpoint))
        if stream is None:
            stream = self._shared[sort, endpoint] = self.open_stream(sort, endpoint, now)
        return stream

    def stateless_stream(self, endpoint: Endpoint, now: float) -> BrokerStream | None:
        """Return the stream for requests without a session at this endpoint; None if its principal has no
        room for another one.
        """
        if ("shared", endpoint) not in self._shared and not self.make_room(endpoint[0], now):
            return None
        return self.shared_stream("shared", endpoint, now)

    def make_room(self, principal: str, now: float) -> bool:
        """Return whether this principal may have one more session. Streams for requests without a session
        that are idle give way, the longest idle first.
        """
        while self._quotas.has_no_room(principal):
            idle = [
                stream
                for stream in self._shared.values()
                if stream.sort == "shared" and stream.endpoint[0] == principal and stream.is_idle
            ]
            if not idle:
                return False
            self.close(min(idle, key=lambda stream: stream.used_at), 502, INTERNAL_ERROR, BROKER_LOST, now)
        return True

    def no_room(self, x: int, ident: bytes = b"null") -> Respond:
        """Return the refusal of a request whose principal has no room for another session."""
        is_full = self._quotas.session_count >= self.rules.max_sessions
        whose = f"{self.rules.max_sessions} sessions" if is_full else "the sessions of this token's share"
        text = f"{whose} are open, and more are not taken"
        return refusal(x, 503, INTERNAL_ERROR, text, ident, Retry_After="10")

    def count_waiting(self, x: int, principal: str) -> Respond | None:
        """Count an HTTP request that waits for an answer of the door itself, or return its refusal."""
        if self._quotas.is_at_limit(principal):
            return refusal(x, 429, INTERNAL_ERROR, self.limit_text(), Retry_After="1")
        return self.hold_request(x, principal)

    def hold_request(
        self,
        x: int,
        principal: str,
        size: int = 0,
        go_on: Callable[[float], None] | None = None,
        *,
        ident: bytes = b"null",
    ) -> Respond | None:
        """Let an HTTP request wait (`PrincipalQuotas.hold_request`), or return its refusal."""
        if self._quotas.hold_request(x, principal, size, go_on):
            return None
        return refusal(x, 503, INTERNAL_ERROR, _TOO_MUCH_WAITS, ident, Retry_After="1")

    def release_waiting(self, x: int) -> bool:
        """Count this request no longer, because its answer is there. Returns False if its client has gone."""
        return self._quotas.release_request(x)

    def limit_text(self) -> str:
        """Return why a request is refused whose principal has as many open as it may."""
        return f"{self.rules.max_open} requests of yours are open already; wait for one of them"

    def shared_streams(self) -> list[BrokerStream]:
        """Return the open streams that many agents share."""
        return list(self._shared.values())

    def is_open(self, stream: BrokerStream) -> bool:
        """True until the stream is closed."""
        return stream.s in self._streams

    def open_exchange(
        self, x: int, stream: BrokerStream, requests: list[ClientMessage], now: float, *, array: bool = False
    ) -> None:
        """Send a client's requests to the broker; `x` gets the answers."""
        exchange = Exchange(x, stream, requests, now, array=array)
        stream.add_exchange(exchange)
        stream.used_at = now
        self._events.add(x, exchange)
        if exchange.counted:
            self._quotas.count_request(stream.endpoint[0], exchange.counted)
        for each in requests:
            self._resumption.request_sent(stream, exchange.lines, each.id, each.line)
            if stream.sort == "session":
                stream.kept.request_sent(x, each)
            self.send_to_broker(stream, each.line, x)

    def start_own_request(
        self,
        x: int,
        stream: BrokerStream,
        dialogue: Dialogue,
        on_result: Callable[[Any, float], None],
        now: float,
        *,
        is_listen: bool = False,
        is_repeatable: bool = True,
        limit_s: float = OWN_QUESTION_S,
    ) -> None:
        """Begin a request of the door itself. `on_result` gets the result, or `None`. `x` is the HTTP
        request that needs it.
        """
        request = OwnRequest(
            x,
            stream,
            dialogue,
            on_result,
            now,
            is_listen=is_listen,
            is_repeatable=is_repeatable,
            limit_s=limit_s,
        )
        stream.exchanges[x] = request
        stream.used_at = now
        self._events.add(x, request)
        self._send_own(request, next(dialogue))

    def _send_own(self, request: OwnRequest, question: OwnQuestion) -> None:
        line = question.line(request.x)
        self._resumption.request_sent(request.stream, request.lines, b"", line)
        self.send_to_broker(request.stream, line, request.x)

    def open_sse_stream(self, x: int, endpoint: Endpoint, now: float) -> None:
        """Open a session of the transport of 2024-11-05. `x` gets all its messages."""
        stream = self.open_stream("sse", endpoint, now)
        stream.get_request = x
        self._events.add(x, stream)

    def seek_session(
        self,
        x: int,
        session: str,
        endpoint: Endpoint,
        go_on: Callable[[float], None],
        now: float,
        *,
        ident: bytes,
        size: int,
    ) -> Respond | None:
        """Ask the broker for a session that an earlier door may have had, or return the refusal of the
        request. `ident`: the id of its message; `size`: its bytes.
        """
        refused = self.hold_request(x, endpoint[0], size, go_on, ident=ident)
        if refused is not None:
            return refused
        found = self._seeking.get((session, endpoint))
        if found is None:
            resume = ResumeSession(session="", secret=session)
            found = self._seeking[session, endpoint] = self.open_stream("session", endpoint, now, resume)
            found.sought_session = session
        found.seeking_requests.append((x, ident))
        return None

    def _tell_broker(self, stream: BrokerStream, word: ControlMessage) -> None:
        self.out.append(SendToBroker(control_line(stream.s, word), stream.endpoint[0]))

    def send_to_broker(self, stream: BrokerStream, line: bytes, x: int = 0) -> None:
        """Send a message to the broker, on exchange `x` (0: on none)."""
        self.out.append(SendToBroker(frame_line(stream.s, line, x), stream.endpoint[0]))

    # --- the broker ---

    def line_received(self, line: bytes, now: float) -> bool:
        """Handle a line of the broker. Returns False if it is no frame."""
        parts = split_frame(line)
        if parts is None:
            return False
        s, message, x = parts
        stream = self._streams.get(s)
        if x == CONTROL:
            word = read_control(message)
            if word is not None and stream is not None:
                self._control_received(stream, word, now)
            return word is not None
        if stream is None:
            return True
        exchange = stream.exchanges.get(x)
        if isinstance(exchange, Exchange):
            self._on_exchange(exchange, message, now)
        elif exchange is not None:
            self._on_own_request(exchange, message, now)
        elif not x:
            self._on_stream(stream, message)
        elif stream.detached_requests and (said := read_broker_message(message)).answer:
            # It was on its way when its client went. Unsettled, a later broker would run its call again.
            self._detached_answered(stream, said, message)
        return True

    def _control_received(self, stream: BrokerStream, word: ControlMessage, now: float) -> None:
        if isinstance(word, StreamOpened):
            stream.name, stream.secret, stream.epoch = word.name, word.secret, word.supervisor
            if not stream.session:
                self._stream_opened(stream, word, now)
        elif isinstance(word, SupervisorAssigned):
            stream.epoch = word.epoch
        elif isinstance(word, WorkspaceChanged):
            stream.moved = word
        elif isinstance(word, ServersStateful):
            stream.stateful = word.servers
        elif isinstance(word, StreamRefused) and stream.sought_session:
            self.close(stream, 404, SESSION_NOT_FOUND, UNKNOWN_SESSION, now, tell=False)
        elif isinstance(word, StreamRefused):
            stream.refused = word.text
            self.close(stream, 404, INVALID_REQUEST, word.text, now, tell=False)
        elif isinstance(word, StreamClosed):
            text = word.text or "carpool has ended this session"
            if stream.sort == "shared":
                self.close(stream, 502, INTERNAL_ERROR, text, now, tell=False)
            else:
                self.close(stream, 404, SESSION_NOT_FOUND, text, now, tell=False)
        elif isinstance(word, ExchangeEnded):
            exchange = stream.exchanges.get(word.exchange)
            if exchange is not None:
                self._exchange_ended(exchange, now)

    def _stream_opened(self, stream: BrokerStream, word: StreamOpened, now: float) -> None:
        stream.session = word.session
        stream.is_absent = False  # another broker has not heard of it
        if stream.sort in {"session", "sse"}:
            self.sessions[word.session] = stream
        if stream.sort == "sse" and stream.get_request:
            self._events.begin_sse(stream)
        if stream.sought_session:
            self._seeking.pop((stream.sought_session, stream.endpoint), None)
            stream.sought_session, stream.version = "", word.version
            sought, stream.seeking_requests = stream.seeking_requests, []
            for x, _ in sought:
                self._quotas.resume_request(x, now)

    def _on_exchange(self, exchange: Exchange, message: bytes, now: float) -> None:
        said = read_broker_message(message)
        if said.answer:
            self._exchange_answered(exchange, said, message, now)
            return
        if exchange.is_listen and exchange.listen_acknowledgement is None:
            self._resumption.listen_acknowledged(exchange, message)
        if self._plain_only(exchange):
            self._refuse_ask(exchange.stream, said)
        else:
            self._events.begin_exchange(exchange)
            if not self._events.write_exchange(exchange, message):
                self._refuse_ask(exchange.stream, said)  # anything else is news, which may be lost
            elif said.asks:
                self._resumption.ask_sent(exchange.stream, said.id, exchange.x)

    def _exchange_answered(self, exchange: Exchange, said: BrokerMessage, message: bytes, now: float) -> None:
        stream = exchange.stream
        if stream.kept.pending:
            stream.kept.request_answered(exchange.x, said.id, is_error=said.code is not None)
        line = self._resumption.request_answered(stream, exchange.lines, said.id, message)
        if self.is_holding and line and _may_be_held(exchange) and is_unsent(message):
            self._forget(exchange)
            self.out.append(HoldRequest(exchange.sink, line))
            if stream.sort == "once":
                self.close(stream, 404, SESSION_NOT_FOUND, "", now)
            return
        if not exchange.request_answered(said.id):
            return
        if exchange.is_batch:
            self._array_answered(exchange, said.id, message, line, now)
            return
        headers: tuple[tuple[str, str], ...] = ()
        initializes = exchange.method == "initialize" and stream.sort == "session"
        if initializes:
            stream.version = version_of(message)
            if stream.version:
                headers = (("Mcp-Session-Id", stream.session),)
        if exchange.has_begun:
            self._events.write_exchange(exchange, message)
            self._finish(exchange, now)
            return
        status = 200
        if stream.sort == "shared" and said.code is not None:
            status = _STATUS.get(said.code, 200)
        self.out.append(Respond(exchange.sink, status, message, headers))
        self._finish(exchange, now)
        if initializes and not stream.version:
            self.close(stream, 404, SESSION_NOT_FOUND, "the session was not initialized", now)

    def _array_answered(
        self, exchange: Exchange, ident: bytes, message: bytes, request: bytes, now: float
    ) -> None:
        """A request of an array has its answer. `request`: as its client wrote it; empty if that is not kept.
        Answers that are too long together for one JSON text become a stream of events, if the client accepts
        one.
        """
        events = self._events
        plain_only = self._plain_only(exchange)
        most = MESSAGE_CAP_BYTES if plain_only else MAX_ARRAY_BYTES
        if not exchange.has_begun and not events.collect(exchange, message, most):
            if plain_only:
                events.collect(exchange, too_large_answer(ident, request), most, must=True)
            else:
                events.begin_exchange(exchange)
        if exchange.has_begun and not events.write_exchange(exchange, message):
            events.write_exchange(exchange, too_large_answer(ident, request), must=True)
        if exchange.ids:
            self._count_answered(exchange)
            return
        if not exchange.has_begun:
            self.out.append(Respond(exchange.sink, 200, _json_array(events.take_answers(exchange))))
        self._finish(exchange, now)

    def _count_answered(self, exchange: Exchange) -> None:
        """One request of an array has its answer, or is cancelled, and others of it have not."""
        exchange.counted -= 1
        self._quotas.count_request(exchange.stream.endpoint[0], -1)

    def _detached_answered(self, stream: BrokerStream, said: BrokerMessage, message: bytes) -> None:
        self._resumption.detached_answered(stream, said.id, message, is_error=said.code is not None)
        self._count_detached(stream)

    def _count_detached(self, stream: BrokerStream) -> None:
        """Count the requests of a stream that are of no exchange, after a change of their record. Their calls
        run, whoever waits for them.
        """
        count = len(stream.detached_requests)
        if count != stream.detached_counted:
            self._quotas.count_request(stream.endpoint[0], count - stream.detached_counted)
            stream.detached_counted = count

    def _on_own_request(self, request: OwnRequest, message: bytes, now: float) -> None:
        """Continue a request of the door itself. Notifications concern requests that wait for news."""
        said = read_broker_message(message)
        if request.is_listen and not said.answer and request.listen_acknowledgement is None:
            self._resumption.listen_acknowledged(request, message)
        if said.asks:
            self._refuse_ask(request.stream, said)
            return
        if not said.answer and not (request.is_listen and said.method.endswith("list_changed")):
            return
        try:
            question = request.dialogue.send(message)
        except StopIteration as found:
            self._own_finished(request, found.value, now)
        else:
            request.opened_at = now
            self._resumption.forget_request(request.stream, request.lines, b"")
            self._send_own(request, question)

    def _on_stream(self, stream: BrokerStream, message: bytes) -> None:
        said = read_broker_message(message)
        if said.answer:
            self._detached_answered(stream, said, message)
        if stream.sort == "sse":
            if said.asks:
                self._resumption.ask_sent(stream, said.id, 0)
            self._events.write_sse(stream, message)
            return
        if said.answer or stream.sort == "shared":
            return  # its client is gone, and did not have an event's id to come back with
        if stream.sort != "session" or (self.rules.json_response and not stream.get_request):
            self._refuse_ask(stream, said)
            return
        if said.asks:
            self._resumption.ask_sent(stream, said.id, 0)
        self._events.write_stream(stream, message)

    def _plain_only(self, exchange: Exchange) -> bool:
        return self.rules.json_response and not exchange.is_listen

    def _refuse_ask(self, stream: BrokerStream, said: BrokerMessage) -> None:
        if said.asks:
            text = "the agent cannot be asked here: no stream of events is open to it"
            self.send_to_broker(stream, error_line(said.id, INTERNAL_ERROR, text))

    # --- ends of exchanges ---

    def _exchange_ended(self, exchange: Exchange | OwnRequest, now: float) -> None:
        """No further answer comes on the exchange."""
        if isinstance(exchange, OwnRequest):
            self._own_finished(exchange, None, now)
            return
        if exchange.has_begun:
            pass
        elif exchange.answers:
            self.out.append(Respond(exchange.sink, 200, _json_array(self._events.take_answers(exchange))))
        else:
            # A cancelled request gets no answer; a stream without events says just that.
            exchange.has_begun = True
            self.out.append(BeginEvents(exchange.sink))
        self._finish(exchange, now)

    def _finish(self, exchange: Exchange, now: float) -> None:
        """The last answer of the exchange was sent."""
        stream = exchange.stream
        if exchange.has_begun:
            self._events.end_exchange(exchange, now)
        stream.used_at = now
        self._forget(exchange)
        if stream.sort == "once" and not stream.exchanges:
            self.close(stream, 404, SESSION_NOT_FOUND, "", now)

    def _own_finished(self, request: OwnRequest, found: Any, now: float) -> None:
        self._forget(request)
        if request.is_wanted:
            request.on_result(found, now)

    def _fail(self, exchange: Exchange | OwnRequest, status: int, code: int, text: str, now: float) -> None:
        """End the exchange with this error."""
        if isinstance(exchange, OwnRequest):
            self._own_finished(exchange, None, now)
            return
        self._events.take_answers(exchange)
        self._forget(exchange)
        if exchange.stream.sort == "once" and not exchange.stream.exchanges:
            self.close(exchange.stream, status, code, text, now, tell=False)  # nobody comes back to it
        if not exchange.sink:
            return
        if exchange.has_begun:
            for ident in exchange.ids:
                self._events.write(exchange.sink, event_bytes(error_line(ident, code, text)))
            self._events.end(exchange.sink)
        else:
            self.out.append(refusal(exchange.sink, status, code, text, exchange.ids[0]))

    def _forget(self, exchange: Exchange | OwnRequest) -> None:
        stream = exchange.stream
        stream.exchanges.pop(exchange.x, None)
        self._resumption.forget_exchange(exchange)
        if isinstance(exchange, OwnRequest):
            if exchange.is_wanted:
                self._events.remove(exchange.x)
            return
        self._events.remove(exchange.sink)
        if exchange.counted:
            self._quotas.count_request(stream.endpoint[0], -exchange.counted)
            exchange.counted = 0

    # --- clients ---

    def client_gone(self, x: int, now: float) -> None:
        """The client of an HTTP request disconnected before its end."""
        self._quotas.release_request(x)
        asker = self._events.client_gone(x)
        if isinstance(asker, BrokerStream):
            asker.get_request = 0
            asker.used_at = now
            if asker.sort == "sse":
                self.close(asker, 404, SESSION_NOT_FOUND, "", now)
        elif isinstance(asker, OwnRequest):
            asker.is_wanted = False  # it goes on where others may want what it finds
            if asker.stream.sort == "once":
                self.close(asker.stream, 404, SESSION_NOT_FOUND, "", now)
        elif asker is not None:
            self._client_left(asker, now)

    def _client_left(self, exchange: Exchange, now: float) -> None:
        exchange.sink = 0
        stream = exchange.stream
        if stream.sort == "once":
            self.close(stream, 404, SESSION_NOT_FOUND, "", now)
        elif stream.sort == "shared" or not exchange.has_begun:
            # Stateless: that is the cancel. Otherwise it is none (basic/transports), but what still
            # comes has to find another way: without an event's id nobody can come back for it.
            self._tell_broker(stream, ExchangeClientGone(exchange.x))
            if stream.sort == "session":
                self._resumption.detach(exchange)
                self._count_detached(stream)
            self._events.take_answers(exchange)
            self._forget(exchange)
            if exchange.method == "initialize" and not stream.version:
                # Nobody knows the session's id, or ever will.
                self.close(stream, 404, SESSION_NOT_FOUND, "", now)

    def forward_message(self, stream: BrokerStream, message: ClientMessage, now: float) -> None:
        """Forward a message of a client that is no request."""
        stream.used_at = now
        if message.method == "notifications/cancelled":
            self._cancelled(stream, member_of(message.params, "requestId"))
        if message.sort == "answer":
            self._resumption.ask_answered(stream, message)
        elif message.sort == "request":
            self._resumption.request_sent(stream, stream.detached_requests, message.id, message.line)
            stream.kept.request_sent(0, message)
            self._count_detached(stream)
        else:
            stream.kept.notification_sent(message)
        self.send_to_broker(stream, message.line)

    def _cancelled(self, stream: BrokerStream, ident: bytes) -> None:
        """A client cancelled its own request: that gets no answer, others of the same array do."""
        self._resumption.request_cancelled(stream, 0, stream.detached_requests, ident)
        self._count_detached(stream)
        for exchange in stream.exchanges_of(ident):
            self._resumption.request_cancelled(stream, exchange.x, exchange.lines, ident)
            if exchange.is_batch and ident in exchange.ids and len(exchange.ids) > 1:
                exchange.ids.remove(ident)
                self._count_answered(exchange)
                return

    # --- ends of streams ---

    def close(
        self, stream: BrokerStream, status: int, code: int, text: str, now: float, *, tell: bool = True
    ) -> None:
        """End a stream; requests that wait for it get this error."""
        if self._streams.pop(stream.s, None) is None:
            return
        self.sessions.pop(stream.session, None)
        if stream.sort in _COUNTED:
            self._quotas.count_session(stream.endpoint[0], -1)
        if self._shared.get((stream.sort, stream.endpoint)) is stream:
            del self._shared[stream.sort, stream.endpoint]
        for x, ident in self._take_held(stream):
            if self._quotas.release_request(x):
                self.out.append(refusal(x, status, code, text, ident))
        for exchange in list(stream.exchanges.values()):
            self._fail(exchange, status, code, text, now)
        if stream.get_request:
            if stream.sort == "sse" and not stream.session:
                self._events.remove(stream.get_request)
                self.out.append(refusal(stream.get_request, status, code, text))
            else:
                if stream.sort == "sse":
                    self._fail_sse_requests(stream, code, text)
                self._events.end(stream.get_request)
            stream.get_request = 0
        self._events.forget_stream(stream)
        self._resumption.forget_stream(stream)
        self._count_detached(stream)
        if tell:
            self._tell_broker(stream, CloseStream())

    def _fail_sse_requests(
        self, stream: BrokerStream, code: int, text: str, *, unkept_only: bool = False
    ) -> None:
        """Write this error for each open request to the stream of the transport of 2024-11-05 that gets all
        answers. `unkept_only`: only for those that no later broker can hear of.
        """
        for _, ident, line in stream.detached_requests.entries():
            assert isinstance(ident, bytes)
            if not (unkept_only and line):
                self._events.write_sse(stream, error_line(ident, code, text))

    def _take_held(self, stream: BrokerStream) -> list[tuple[int, bytes]]:
        """Remove and return the HTTP requests that wait for this stream and are not sent, each with the id of
        its message, or `null`.
        """
        held = stream.seeking_requests[:]
        if stream.sought_session:
            self._seeking.pop((stream.sought_session, stream.endpoint), None)
            stream.sought_session, stream.seeking_requests = "", []
        if stream.schemas is not None:
            held += [(x, b"null") for _, x in stream.schemas.waiting_calls]
            stream.schemas.waiting_calls = []
        return held

    def broker_lost(self, now: float) -> None:
        """The broker has died. Everything waits for the next one, except what that cannot know."""
        for stream in list(self._streams.values()):
            if stream.sought_session:
                self.close(stream, 404, SESSION_NOT_FOUND, UNKNOWN_SESSION, now, tell=False)
                continue
            if (stream.version or stream.kept.has_state) and not stream.kept.is_complete:
                self.close(stream, 502, INTERNAL_ERROR, BROKER_LOST, now, tell=False)
                continue
            for exchange in list(stream.exchanges.values()):
                if not exchange.lines:
                    self._exchange_ended(exchange, now)  # its client has cancelled it
                elif not all(exchange.lines.lines()) or not _is_safe(exchange):
                    self._fail(exchange, 502, INTERNAL_ERROR, BROKER_LOST, now)
            if stream.sort == "sse":
                self._fail_sse_requests(stream, INTERNAL_ERROR, BROKER_LOST, unkept_only=True)
            self._resumption.forget_unkept(stream)
            self._count_detached(stream)
            if stream.schemas is not None and not stream.schemas.fetching:
                stream.schemas.tools = None  # whether the list has changed meanwhile, nobody says

    def broker_connected(self) -> None:
        """Another broker is connected: tell it of all that is open."""
        for stream in self._streams.values():
            frames = resume_frames(stream, self._open_message(stream))
            self.out += [SendToBroker(each, stream.endpoint[0]) for each in frames]

    def end_all(self, now: float, text: str = BROKER_LOST) -> None:
        """End everything that is open, because no broker, or no door, goes on with it."""
        for stream in list(self._streams.values()):
            self.close(stream, 502, INTERNAL_ERROR, text, now, tell=False)

    def has_open_calls(self) -> bool:
        """True if clients wait for answers. What listens for news waits for none."""
        return self._events.has_unread or any(
            stream.seeking_requests
            or (stream.schemas is not None and stream.schemas.waiting_calls)
            or (stream.sort == "sse" and stream.detached_requests)
            or any(
                isinstance(each, Exchange) and each.sink and not each.is_listen
                for each in stream.exchanges.values()
            )
            for stream in self._streams.values()
        )

    def end_principals(self, stays: Callable[[str], bool], now: float) -> None:
        """End what belongs to principals that may no longer come in."""
        text = "the token that this began with is not good any more"
        self._events.end_principals(stays)
        for stream in list(self._streams.values()):
            is_doors_own = stream.sort == "control" and not stream.endpoint[0]
            if not is_doors_own and not stays(stream.endpoint[0]):
                self.close(stream, 401, INVALID_REQUEST, text, now)

    # --- time ---

    def tick(self, now: float) -> None:
        """Handle the passing of time; to be called at each beat of the door."""
        for stream in list(self._streams.values()):
            for exchange in list(stream.exchanges.values()):
                self._check_age(exchange, now)
            self._events.expire(stream, now)
            is_kept = stream.sort not in {"session", "shared", "control"} or not stream.is_idle
            if not is_kept and now - stream.used_at >= self.rules.session_idle_s:
                self.close(stream, 404, SESSION_NOT_FOUND, "", now)
            elif stream.sort == "session" and stream.session:
                self._tell_absence(stream, is_absent=stream.is_idle and now - stream.used_at >= ABSENT_S)
        if now - self._commented >= KEEP_ALIVE_S:
            self._commented = now
            self._events.write_comments()

    def _tell_absence(self, stream: BrokerStream, *, is_absent: bool) -> None:
        if stream.is_absent != is_absent:
            stream.is_absent = is_absent
            self._tell_broker(stream, ClientAbsent(is_absent))

    def _check_age(self, exchange: Exchange | OwnRequest, now: float) -> None:
        waited_s = now - exchange.opened_at
        if isinstance(exchange, OwnRequest):
            if waited_s >= exchange.limit_s and not exchange.is_listen:
                self._own_finished(exchange, None, now)
        elif exchange.method == "initialize":
            pass  # its answer says in a header which session it is
        elif waited_s >= STREAM_AFTER_S and exchange.sink and not self._plain_only(exchange):
            self._events.begin_exchange(exchange)

    def check(self) -> None:
        """Assert every invariant."""
        streams = list(self._streams.values())
        self._events.check(streams)
        self._resumption.check(streams)
        requests: Counter[str] = Counter()
        for stream in streams:
            assert all(exchange.stream is stream for exchange in stream.exchanges.values())
            clients = [each for each in stream.exchanges.values() if isinstance(each, Exchange)]
            assert all(each.counted == (0 if each.is_listen else len(each.ids)) for each in clients)
            assert stream.detached_counted == len(stream.detached_requests)
            requests[stream.endpoint[0]] += sum(each.counted for each in clients) + stream.detached_counted
        sessions = [each.endpoint[0] for each in streams if each.sort in _COUNTED]
        self._quotas.check(sessions, requests)


def _may_be_held(exchange: Exchange) -> bool:
    """True if the client is there, has no part of an answer, waits for one request, and has no session, which
    would end before the next door.
    """
    if exchange.stream.sort == "session":
        return False
    return not exchange.has_begun and not exchange.is_batch and bool(exchange.sink)


def _json_array(answers: list[bytes]) -> bytes:
    """Return the answers to an array as one JSON text."""
    return b"[%b]" % b",".join(answers)


def _is_safe(exchange: Exchange | OwnRequest) -> bool:
    """True if a request may be sent again: the next broker knows by the stream's name how it went on."""
    if exchange.listen_acknowledgement == b"":
        return False  # it would listen to less, and its client would not know
    if isinstance(exchange, OwnRequest):
        return exchange.is_repeatable
    return bool(exchange.stream.name) or exchange.method in REPEATABLE
