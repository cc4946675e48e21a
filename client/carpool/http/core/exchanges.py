"""The books of what is open: streams, exchanges and HTTP requests; their opening, writing and closing.

Owns the records and what holds between them: each HTTP request is answered once, and through the exchange or
stream it waits for; a message goes to one stream of events (MCP, basic/transports); what is closed is
forgotten everywhere. `routing` says when any of this happens.

Knows nothing of: frames that come, sockets, clocks, paths and headers.
"""

from collections.abc import Callable
from typing import Any, Final

from carpool.http.core.body import INTERNAL_ERROR, PRIMING_VERSION, Message, Said, error_line
from carpool.http.core.effects import Begin, Effect, End, Rules, Tell, Write, event, refusal
from carpool.http.core.kept_messages import Kept, Room
from carpool.http.core.replay import Replay
from carpool.http.core.streams import OWN_QUESTION_S, Dialogue, Endpoint, Exchange, Stream, StreamSort
from carpool.open_requests import Unanswered
from carpool_protocol.carrier.attach import ResumeSession
from carpool_protocol.carrier.streams import Close, Open, frame_line, word_line

NO_BUFFERING: Final = (("X-Accel-Buffering", "no"),)
_MAX_ASKS: Final = 1000
"""Questions that a client leaves open. What was asked before may be asked again by a later broker."""


class Books:
    """All that is open. Methods append to `out`, which whoever called takes."""

    def __init__(self, rules: Rules, first: int = 0) -> None:
        """`first`: no door before this one had so high a number."""
        self.rules = rules
        self.out: list[Effect] = []
        self.sessions: dict[str, Stream] = {}
        """By `Mcp-Session-Id`, or the session of a 2024-11-05 stream."""
        self.session_count = 0
        self.share = rules.max_sessions
        """Sessions that each principal may have open, so that none takes all."""
        self._sessions_of: dict[str, int] = {}
        self._streams: dict[int, Stream] = {}
        self._shared: dict[tuple[StreamSort, Endpoint], Stream] = {}
        self._seeking: dict[tuple[str, Endpoint], Stream] = {}
        """By what a client called its session: those of a door that died, until the broker has told."""
        self._clients: dict[int, Exchange | Stream] = {}
        """HTTP requests that are open: a POST's exchange, or the stream that a GET listens to."""
        self._open: dict[str, int] = {}
        """Counted requests by principal."""
        self._held: dict[int, str] = {}
        """HTTP requests that wait before they go to the broker, and their principals."""
        self._replay = Replay()
        self._room = Room()
        self._last_s = 0
        self._last_x = first
        self._commented = 0.0

    def number(self) -> int:
        """The next HTTP request's number, or that of a question of our own."""
        self._last_x += 1
        return self._last_x

    def crowded(self, principal: str) -> bool:
        """Whether this principal has as many requests open as it may."""
        return self._open.get(principal, 0) >= self.rules.max_open

    def has_no_room(self, principal: str) -> bool:
        """No session can be opened, for anybody or for this principal."""
        return (
            self.session_count >= self.rules.max_sessions or self._sessions_of.get(principal, 0) >= self.share
        )

    def _count_session(self, sort: StreamSort, principal: str, more: int) -> None:
        if sort in {"session", "sse"}:
            self.session_count += more
            count = self._sessions_of.pop(principal, 0) + more
            if count:
                self._sessions_of[principal] = count

    # --- opening ---

    def open_stream(
        self, sort: StreamSort, endpoint: Endpoint, now: float, resume: ResumeSession | None = None
    ) -> Stream:
        """A new session of the broker, or one of a door that died. Messages may follow at once."""
        self._last_s += 1
        stream = Stream(self._last_s, sort, endpoint, Kept(self._room), now)
        self._streams[stream.s] = stream
        self._count_session(sort, endpoint[0], 1)
        self.out.append(Tell(word_line(stream.s, self.opening(stream, resume))))
        return stream

    def opening(self, stream: Stream, resume: ResumeSession | None = None) -> Open:
        """How the broker is told of a stream."""
        principal, server, profile, workspace, length = stream.endpoint
        return Open(
            kind=stream.kind,
            principal=principal,
            server=server,
            profile=profile,
            workspace=workspace,
            tool_name_length=length,
            agent="http",
            max_open_calls=self.rules.max_open if stream.sort == "shared" else 0,
            resume=resume,
        )

    def shared(self, sort: StreamSort, endpoint: Endpoint, now: float) -> Stream:
        """The one stream of this sort and endpoint, opened where there is none."""
        stream = self._shared.get((sort, endpoint))
        if stream is None:
            stream = self._shared[sort, endpoint] = self.open_stream(sort, endpoint, now)
        return stream

    def open_exchange(
        self, x: int, stream: Stream, requests: list[Message], now: float, *, array: bool = False
    ) -> None:
        """A client's requests go to the broker; `x` is answered when they are."""
        exchange = Exchange(x, stream, [each.id for each in requests], now)
        exchange.array = array
        exchange.method = "" if array else requests[0].method
        stream.exchanges[x] = self._clients[x] = exchange
        stream.used = now
        if exchange.method != "subscriptions/listen":
            exchange.counted = True
            self._count(stream.endpoint[0], 1)
        for each in requests:
            self._remember(exchange.lines, each.id, each.line)
            if stream.sort == "session":
                stream.kept.asked(x, each)
            self.out.append(Tell(frame_line(stream.s, each.line, x)))

    def _remember(self, lines: Unanswered, ident: bytes, line: bytes) -> None:
        lines.said(ident, self._room.take(line))

    def answered(self, lines: Unanswered, ident: bytes, answer: bytes) -> None:
        """A later broker need not hear of the request that has this answer."""
        self._room.give(lines.answered(ident, answer))

    def done(self, lines: Unanswered, ident: bytes) -> None:
        """A later broker need not hear of what has this id."""
        for line in lines.ended(ident):
            self._room.give(line)

    def send(self, stream: Stream, message: Message) -> None:
        """What a client says apart from an exchange goes to the broker."""
        if message.sort == "answer":
            self._given(stream, message)
        elif message.sort == "request":
            self._remember(stream.loose, message.id, message.line)
            stream.kept.asked(0, message)
        else:
            stream.kept.said(message)
        self.tell(stream, message.line)

    def _given(self, stream: Stream, message: Message) -> None:
        x = stream.asks.pop(message.id, None)
        exchange = stream.exchanges.get(x) if x else None
        if exchange is not None:
            exchange.given = (*exchange.given, self._room.take(message.line))
        elif x == 0 and stream.loose:
            stream.given = (*stream.given, self._room.take(message.line))

    def loosen(self, exchange: Exchange) -> None:
        """Its client has gone; what is still answered is so on no exchange."""
        stream = exchange.stream
        stream.kept.loosened(exchange.x)
        for _, ident, line in exchange.lines.entries():
            stream.loose.said(ident, line)
        stream.given += exchange.given
        exchange.lines, exchange.given = Unanswered(), ()
        stream.asks = {ask: 0 if x == exchange.x else x for ask, x in stream.asks.items()}

    def asked(self, stream: Stream, ident: bytes, x: int) -> None:
        """A question goes to the client, on exchange `x` or on none."""
        if len(stream.asks) >= _MAX_ASKS:
            del stream.asks[next(iter(stream.asks))]
        stream.asks[ident] = x

    def settled(self, stream: Stream, ident: bytes, answer: bytes, *, is_error: bool) -> None:
        """The answer to a request that is of no exchange."""
        stream.kept.answered(0, ident, is_error=is_error)
        self.answered(stream.loose, ident, answer)
        if not stream.loose:
            for line in stream.given:
                self._room.give(line)
            stream.given = ()

    def inquire(
        self,
        x: int,
        stream: Stream,
        dialogue: Dialogue,
        then: Callable[[Any, float], None],
        now: float,
        *,
        method: str = "",
        limit_s: float = OWN_QUESTION_S,
    ) -> None:
        """A question of our own; `then` gets what it found, or `None`. `x`: that of whoever wants it."""
        exchange = Exchange(x, stream, [b""], now)
        exchange.method, exchange.limit_s = method, limit_s
        exchange.dialogue, exchange.then = dialogue, then
        stream.exchanges[x] = self._clients[x] = exchange
        stream.used = now
        line = next(dialogue)
        self._remember(exchange.lines, b"", line)
        self.tell(stream, line, x)

    def tell(self, stream: Stream, line: bytes, x: int = 0) -> None:
        """A message for the broker, of exchange `x` (0: of none)."""
        self.out.append(Tell(frame_line(stream.s, line, x)))

    def open_old(self, x: int, endpoint: Endpoint, now: float) -> None:
        """A session of the transport of 2024-11-05: `x` hears all of it, once it is open."""
        stream = self.open_stream("sse", endpoint, now)
        stream.get = x
        self._clients[x] = stream

    def hold(self, x: int, stream: Stream) -> None:
        """A request waits here, and nothing of it is at the broker yet."""
        self._held[x] = stream.endpoint[0]
        self._count(stream.endpoint[0], 1)

    def release(self, x: int) -> bool:
        """It goes on. False: its client has gone."""
        principal = self._held.pop(x, None)
        if principal is not None:
            self._count(principal, -1)
        return principal is not None

    def has(self, stream: Stream) -> bool:
        """Whether the stream is open."""
        return stream.s in self._streams

    def shared_streams(self) -> list[Stream]:
        """The open streams that many agents share."""
        return list(self._shared.values())

    # --- events ---

    def begin(self, exchange: Exchange) -> None:
        """Answer with a stream of events, if it is not one already."""
        if exchange.begun:
            return
        exchange.begun = True
        self._begin(exchange.sink, exchange.stream, (exchange.x, 0))
        for message in exchange.answers:
            self._event(exchange, message)
        exchange.answers = []

    def _begin(self, x: int, stream: Stream, primed: tuple[int, int] | None) -> None:
        headers = NO_BUFFERING
        self.out.append(Begin(x, headers))
        if primed is not None and stream.version >= PRIMING_VERSION and stream.sort == "session":
            self.out.append(Write(x, b"id: %d-%d\ndata: \n\n" % primed))

    def _event(self, exchange: Exchange, message: bytes) -> None:
        if exchange.stream.sort == "session":
            exchange.number += 1
            data = event(message, b"%d-%d" % (exchange.x, exchange.number))
            self._replay.keep(exchange.stream.s, exchange.x, exchange.number, data)
        else:
            data = event(message)
        if exchange.sink:
            self.out.append(Write(exchange.sink, data))

    def _plain_only(self, exchange: Exchange) -> bool:
        return self.rules.json_response and exchange.method != "subscriptions/listen"

    def _refuse_ask(self, stream: Stream, said: Said) -> None:
        if said.asks:
            text = "the agent cannot be asked here: no stream of events is open to it"
            self.tell(stream, error_line(said.id, INTERNAL_ERROR, text))

    # --- ends ---

    def close(
        self, stream: Stream, status: int, code: int, text: str, now: float, *, tell: bool = True
    ) -> None:
        """End a stream; what waits on it is answered with this error."""
        if self._streams.pop(stream.s, None) is None:
            return
        self.sessions.pop(stream.session, None)
        self._count_session(stream.sort, stream.endpoint[0], -1)
        if self._shared.get((stream.sort, stream.endpoint)) is stream:
            del self._shared[stream.sort, stream.endpoint]
        held = [x for x, _ in stream.sought]
        if stream.seeks:
            self._seeking.pop((stream.seeks, stream.endpoint), None)
            stream.seeks, stream.sought = "", []
        if stream.schemas is not None:
            held += [x for _, x, _ in stream.schemas.parked]
            stream.schemas.parked = []
        for x in held:
            if self.release(x):
                self.out.append(refusal(x, status, code, text))
        for exchange in list(stream.exchanges.values()):
            self._break(exchange, status, code, text, now)
        if stream.get:
            if stream.sort == "sse" and not stream.session:
                self._clients.pop(stream.get, None)
                self.out.append(refusal(stream.get, status, code, text))
            else:
                self._end(stream.get)
            stream.get = 0
        self._replay.forget(stream.s)
        stream.kept.clear()
        for line in (*stream.loose.lines(), *stream.given):
            self._room.give(line)
        stream.loose, stream.given = Unanswered(), ()
        if tell:
            self.out.append(Tell(word_line(stream.s, Close())))

    def _break(self, exchange: Exchange, status: int, code: int, text: str, now: float) -> None:
        if exchange.dialogue is not None:
            self._settle(exchange, None, now)
            return
        self._forget(exchange)
        if exchange.stream.sort == "once" and not exchange.stream.exchanges:
            self.close(exchange.stream, status, code, text, now, tell=False)  # nobody comes back to it
        if not exchange.sink:
            return
        if exchange.begun:
            for ident in exchange.ids:
                self.out.append(Write(exchange.sink, event(error_line(ident, code, text))))
            self.out.append(End(exchange.sink))
        else:
            self.out.append(refusal(exchange.sink, status, code, text, exchange.ids[0]))

    def _settle(self, exchange: Exchange, found: Any, now: float) -> None:
        self._forget(exchange)
        if exchange.then is not None:
            exchange.then(found, now)

    def _forget(self, exchange: Exchange) -> None:
        stream = exchange.stream
        stream.exchanges.pop(exchange.x, None)
        self._clients.pop(exchange.sink, None)
        for line in exchange.lines.lines():
            self._room.give(line)
        for line in (*exchange.given, exchange.granted or b""):
            self._room.give(line)
        exchange.lines, exchange.given, exchange.granted = Unanswered(), (), None
        if stream.asks:
            stream.asks = {ask: x for ask, x in stream.asks.items() if x != exchange.x}
        if stream.kept.pending:
            stream.kept.unanswered(exchange.x)
        if exchange.counted:
            exchange.counted = False
            self._count(exchange.stream.endpoint[0], -1)

    def _count(self, principal: str, more: int) -> None:
        now_open = self._open.get(principal, 0) + more
        if now_open:
            self._open[principal] = now_open
        else:
            del self._open[principal]

    def _end(self, x: int) -> None:
        self._clients.pop(x, None)
        self.out.append(End(x))

    def check(self) -> None:
        """Assert what always holds."""
        self._replay.check()
        kept = 0
        for stream in self._streams.values():
            lines = [*stream.loose.lines(), *stream.given]
            for exchange in stream.exchanges.values():
                lines += [*exchange.lines.lines(), *exchange.given, exchange.granted or b""]
            kept += stream.kept.size_bytes + sum(map(len, lines))
            assert all(x in stream.exchanges or x == 0 for x in stream.asks.values())
            assert stream.loose or not stream.given
        assert kept == self._room.used_bytes
        for stream in self._streams.values():
            assert all(exchange.stream is stream for exchange in stream.exchanges.values())
            assert not stream.get or self._clients[stream.get] is stream
        for x, client in self._clients.items():
            if isinstance(client, Exchange):
                assert client.sink == x, "a request is answered through its sink"
                assert client.stream.exchanges[client.x] is client
        counted: dict[str, int] = {}
        for principal in self._held.values():
            counted[principal] = counted.get(principal, 0) + 1
        for stream in self._streams.values():
            for exchange in stream.exchanges.values():
                if exchange.counted:
                    counted[stream.endpoint[0]] = counted.get(stream.endpoint[0], 0) + 1
        assert counted == self._open
        sessions = [each for each in self._streams.values() if each.sort in {"session", "sse"}]
        assert self.session_count == len(sessions) == sum(self._sessions_of.values())
        assert set(self._sessions_of) == {each.endpoint[0] for each in sessions}
