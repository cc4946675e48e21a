"""Streams of events (SSE) to HTTP clients, and the open HTTP requests.

Owns the open HTTP requests, the ids of events, the GET that receives a session's messages, and the events
that a client with `Last-Event-ID` gets again. Source: MCP 2025-11-25, basic/transports, "Listening for
Messages" and "Resumability". Invariant: at most one HTTP request receives the messages of an exchange or a
stream.

Knows nothing of: the broker, what events say, when an answer becomes a stream of events (`routing`).
"""

from typing import Final

from carpool.http.core.body import PRIMING_VERSION
from carpool.http.core.effects import BeginEvents, Effect, EndEvents, WriteEvents, event_bytes
from carpool.http.core.replay import EventReplay
from carpool.http.core.streams import BrokerStream, Exchange, OwnRequest

RESUMABLE_S: Final = 60.0
"""After the end of an exchange its events can be asked for again."""
_NO_BUFFERING: Final = (("X-Accel-Buffering", "no"),)
_COMMENT: Final = b":\n"
"""Keeps a connection alive. No empty line after it: httpx-sse, under the Python SDK, makes an event of one as
soon as an event with an id has gone before, and SDK 1.9 tells its user of an event that is no JSON."""

Asker = Exchange | OwnRequest | BrokerStream
"""An HTTP request waits for an exchange, a request of the HTTP door, or (a GET) the messages of a stream."""


class EventStreams:
    """The open HTTP requests. Effects are appended to `out`."""

    def __init__(self, out: list[Effect]) -> None:
        self._out = out
        self._replay = EventReplay()
        self._askers: dict[int, Asker] = {}

    def add(self, x: int, asker: Asker) -> None:
        """HTTP request `x` waits for this."""
        self._askers[x] = asker

    def remove(self, x: int) -> Asker | None:
        """HTTP request `x` is answered, or its client has disconnected. Returns what it waited for."""
        return self._askers.pop(x, None)

    def end(self, x: int) -> None:
        """The events of `x` are complete."""
        self._askers.pop(x, None)
        self._out.append(EndEvents(x))

    # --- exchanges ---

    def begin_exchange(self, exchange: Exchange) -> None:
        """Answer with a stream of events, if it is not one already."""
        if exchange.has_begun:
            return
        exchange.has_begun = True
        self._begin(exchange.sink, exchange.stream, (exchange.x, 0))
        for message in exchange.answers:
            self.write_exchange(exchange, message)
        exchange.answers = []

    def _begin(self, x: int, stream: BrokerStream, primed: tuple[int, int] | None) -> None:
        self._out.append(BeginEvents(x, _NO_BUFFERING))
        if primed is not None and stream.version >= PRIMING_VERSION and stream.sort == "session":
            self._out.append(WriteEvents(x, b"id: %d-%d\ndata: \n\n" % primed))

    def write_exchange(self, exchange: Exchange, message: bytes) -> None:
        """A message of an exchange that has begun."""
        if exchange.stream.sort == "session":
            exchange.number += 1
            data = event_bytes(message, b"%d-%d" % (exchange.x, exchange.number))
            self._replay.add(exchange.stream.s, exchange.x, exchange.number, data)
        else:
            data = event_bytes(message)
        if exchange.sink:
            self._out.append(WriteEvents(exchange.sink, data))

    def end_exchange(self, exchange: Exchange, now: float) -> None:
        """Its last event was written. It can be asked for again for a while."""
        if exchange.sink:
            self._out.append(EndEvents(exchange.sink))
        if exchange.stream.sort == "session" and exchange.number:
            exchange.stream.resumable_exchanges[exchange.x] = (exchange.number, now + RESUMABLE_S)

    # --- messages of no exchange ---

    def begin_sse(self, stream: BrokerStream) -> None:
        """The session of a GET of the transport of 2024-11-05 is open: where its POSTs go."""
        self._out.append(BeginEvents(stream.get_request, _NO_BUFFERING))
        where = f"/messages?session={stream.session}".encode()
        self._out.append(WriteEvents(stream.get_request, event_bytes(where, name=b"endpoint")))

    def write_sse(self, stream: BrokerStream, message: bytes) -> None:
        """Any message of such a session."""
        if stream.get_request:
            self._out.append(WriteEvents(stream.get_request, event_bytes(message)))

    def write_stream(self, stream: BrokerStream, message: bytes) -> None:
        """A message of no exchange, for the GET of the session, also a later one."""
        stream.number += 1
        data = event_bytes(message, b"0-%d" % stream.number)
        self._replay.add(stream.s, 0, stream.number, data)
        if stream.get_request:
            self._out.append(WriteEvents(stream.get_request, data))
            stream.last_delivered = stream.number

    def listen(self, x: int, stream: BrokerStream) -> None:
        """A GET hears what belongs to no exchange. A newer one replaces an older one."""
        if stream.get_request:
            self.end(stream.get_request)
        stream.get_request = x
        self._askers[x] = stream
        missed = self._replay.after(stream.s, 0, stream.last_delivered, stream.number) or []
        self._begin(x, stream, (0, stream.number) if not missed else None)
        for _, data in missed:
            self._out.append(WriteEvents(x, data))
        stream.last_delivered = stream.number

    def resume(self, x: int, stream: BrokerStream, exchange: int, number: int) -> bool:
        """A GET with `Last-Event-ID`. False: what it asks for is not there any more."""
        if exchange == 0:
            # What is forgotten of it is news that a list shows as well: no reason to refuse.
            kept = self._replay.after(stream.s, 0, number, stream.number)
            stream.last_delivered = number if kept is not None else stream.number
            self.listen(x, stream)
            return True
        running = stream.exchanges.get(exchange)
        if isinstance(running, Exchange) and running.has_begun:
            last = running.number
        elif exchange in stream.resumable_exchanges:
            running, last = None, stream.resumable_exchanges[exchange][0]
        else:
            return False
        kept = self._replay.after(stream.s, exchange, number, last)
        if kept is None:
            return False
        self._out.append(BeginEvents(x, _NO_BUFFERING))
        self._out += [WriteEvents(x, data) for _, data in kept]
        if running is None:
            self._out.append(EndEvents(x))
        else:
            if running.sink:
                self.end(running.sink)
            running.sink = x
            self._askers[x] = running
        return True

    # --- time and ends ---

    def write_comments(self) -> None:
        """Keep every stream of events alive."""
        for x, asker in self._askers.items():
            if _has_begun(asker):
                self._out.append(WriteEvents(x, _COMMENT))

    def expire(self, stream: BrokerStream, now: float) -> None:
        """Forget exchanges that ended long enough ago."""
        for x in [x for x, (_, until) in stream.resumable_exchanges.items() if until <= now]:
            del stream.resumable_exchanges[x]
            self._replay.exchange_closed(stream.s, x)

    def forget_stream(self, stream: BrokerStream) -> None:
        """The stream is closed."""
        self._replay.session_closed(stream.s)

    def check(self, streams: list[BrokerStream]) -> None:
        """Assert what always holds."""
        self._replay.check()
        for stream in streams:
            assert not stream.get_request or self._askers[stream.get_request] is stream
        for x, asker in self._askers.items():
            if isinstance(asker, Exchange):
                assert asker.sink == x, "a request is answered through its sink"
            if not isinstance(asker, BrokerStream):
                assert asker.stream.exchanges[asker.x] is asker


def _has_begun(asker: Asker) -> bool:
    """Its HTTP request is answered with events, the first of which is written."""
    if isinstance(asker, BrokerStream):
        return asker.sort != "sse" or bool(asker.session)
    return isinstance(asker, Exchange) and asker.has_begun
