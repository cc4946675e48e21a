"""Streams of events (SSE) to HTTP clients, and the open HTTP requests.

Owns the open HTTP requests, the ids of events, the GET that receives a session's messages, the events
that a client with `Last-Event-ID` gets again, and the answers of an array that wait for others or for their
client, which count in the share of its principal. Source: MCP 2025-11-25, basic/transports, "Listening for
Messages" and "Resumability". Invariant: at most one HTTP request receives the messages of an exchange or a
stream.

Knows nothing of: the broker, what events say, when an answer becomes a stream of events (`routing`).
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from carpool.http.core.body import PRIMING_VERSION
from carpool.http.core.effects import BeginEvents, Effect, EndEvents, WriteEvents, event_bytes
from carpool.http.core.event_turns import EventTurns
from carpool.http.core.replay import EventReplay
from carpool.http.core.shared_budgets import BudgetShare, SharedBudget
from carpool.http.core.streams import BrokerStream, Exchange, OwnRequest

RESUMABLE_S: Final = 60.0
"""After the end of an exchange its events can be asked for again."""
MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
"""The limit of all answers of arrays that wait for others or for their client, shared by the principals."""
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
        self._waiting = SharedBudget(MAX_WAITING_BYTES)
        self._turns: dict[int, EventTurns] = {}
        """The streams of events to arrays, by HTTP request, until their last event is written."""

    def add(self, x: int, asker: Asker) -> None:
        """HTTP request `x` waits for this."""
        self._askers[x] = asker

    def remove(self, x: int) -> Asker | None:
        """HTTP request `x` is answered, or its client has disconnected. Returns what it waited for."""
        return self._askers.pop(x, None)

    def client_gone(self, x: int) -> Asker | None:
        """The client of HTTP request `x` has disconnected. Returns what it waited for."""
        self._drop_turns(x)
        return self.remove(x)

    def end(self, x: int) -> None:
        """The events of `x` are complete."""
        self._askers.pop(x, None)
        turns = self._turns.get(x)
        if turns is None:
            self._out.append(EndEvents(x))
        elif turns.end():
            del self._turns[x]

    def write(self, x: int, data: bytes) -> None:
        """Write an event to `x`, after what waits there."""
        turns = self._turns.get(x)
        if turns is None:
            self._out.append(WriteEvents(x, data))
        else:
            turns.write(data, must=True)

    # --- turns ---

    @property
    def has_unread(self) -> bool:
        """True if events wait until their client has read earlier ones."""
        return any(self._turns.values())

    def client_blocked(self, x: int) -> None:
        """The client of `x` leaves events unread."""
        if (turns := self._turns.get(x)) is not None:
            turns.client_blocked()

    def client_has_room(self, x: int) -> None:
        """The client of `x` has read all events."""
        if (turns := self._turns.get(x)) is not None and turns.client_has_room():
            del self._turns[x]

    def continue_events(self, x: int) -> None:
        """Others have had their turn since the last events of `x`."""
        if (turns := self._turns.get(x)) is not None and turns.continue_turn():
            del self._turns[x]

    def end_principals(self, stays: Callable[[str], bool]) -> None:
        """Drop what waits for principals that may no longer come in, and end its streams of which no exchange
        is open any more.
        """
        for x, turns in list(self._turns.items()):
            if not stays(turns.principal) and turns.shut_out():
                del self._turns[x]

    def _drop_turns(self, x: int) -> None:
        turns = self._turns.pop(x, None)
        if turns is not None:
            turns.drop()

    # --- answers of an array ---

    def collect(self, exchange: Exchange, message: bytes, most: int, *, must: bool = False) -> bool:
        """Keep an answer until those to the others of its array are there. Returns False if all would have
        more than `most` bytes, or there is no room for it. `must`: it is kept in any case.
        """
        share = self._share_of(exchange)
        if must:
            share.count(len(message))
        elif sum(map(len, exchange.answers), len(message)) > most or not share.reserve(len(message)):
            return False
        exchange.answers.append(message)
        return True

    def take_answers(self, exchange: Exchange) -> list[bytes]:
        """Return the answers that were kept, which are no longer."""
        answers, exchange.answers = exchange.answers, []
        self._share_of(exchange).release(sum(map(len, answers)))
        return answers

    def _share_of(self, exchange: Exchange) -> BudgetShare:
        return self._waiting.share_of(exchange.stream.endpoint[0])

    # --- exchanges ---

    def begin_exchange(self, exchange: Exchange) -> None:
        """Answer with a stream of events, if it is not one already."""
        if exchange.has_begun:
            return
        exchange.has_begun = True
        if exchange.is_batch:
            self._begin_turns(exchange.sink, exchange)
            for message in self.take_answers(exchange):
                self.write_exchange(exchange, message, must=True)
        else:
            self._begin(exchange.sink, exchange.stream, (exchange.x, 0))

    def _begin_turns(self, x: int, exchange: Exchange) -> None:
        self._turns[x] = EventTurns(x, exchange.stream.endpoint[0], self._share_of(exchange), self._out)
        self._out.append(BeginEvents(x, _NO_BUFFERING, is_watched=True, keeps_little=False))

    def _begin(self, x: int, stream: BrokerStream, primed: tuple[int, int] | None) -> None:
        self._out.append(BeginEvents(x, _NO_BUFFERING))
        if primed is not None and stream.version >= PRIMING_VERSION and stream.sort == "session":
            self._out.append(WriteEvents(x, b"id: %d-%d\ndata: \n\n" % primed))

    def write_exchange(self, exchange: Exchange, message: bytes, *, must: bool = False) -> bool:
        """A message of an exchange that has begun. Returns False if there is no room for it to wait until its
        client has read others: then it is not written. `must`: it waits in any case.
        """
        stream = exchange.stream
        number = exchange.number + 1
        is_kept = stream.sort == "session"
        data = event_bytes(message, b"%d-%d" % (exchange.x, number) if is_kept else b"")
        turns = self._turns.get(exchange.sink)
        if turns is not None:
            if not turns.write(data, must=must):
                return False
        elif exchange.sink:
            self._out.append(WriteEvents(exchange.sink, data))
        if is_kept:
            exchange.number = number
            self._replay.add(stream.endpoint[0], stream.s, exchange.x, number, data)
        return True

    def end_exchange(self, exchange: Exchange, now: float) -> None:
        """Its last event was written. It can be asked for again for a while."""
        if exchange.sink:
            self.end(exchange.sink)
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
        self._replay.add(stream.endpoint[0], stream.s, 0, stream.number, data)
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
        if running is not None and running.is_batch:
            self._begin_turns(x, running)
        else:
            self._out.append(BeginEvents(x, _NO_BUFFERING))
        for _, data in kept:
            self.write(x, data)
        if running is None:
            self._out.append(EndEvents(x))
        else:
            if running.sink:
                self._drop_turns(running.sink)  # what waits there is among what is kept
                self.end(running.sink)
            running.sink = x
            self._askers[x] = running
        return True

    # --- time and ends ---

    def write_comments(self) -> None:
        """Keep every stream of events alive."""
        for x, asker in self._askers.items():
            turns = self._turns.get(x)
            if _has_begun(asker) and (turns is None or not (turns or turns.is_held)):
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
        self._check_waiting(streams)
        for stream in streams:
            assert not stream.get_request or self._askers[stream.get_request] is stream
        for x, asker in self._askers.items():
            if isinstance(asker, Exchange):
                assert asker.sink == x, "a request is answered through its sink"
            if not isinstance(asker, BrokerStream):
                assert asker.stream.exchanges[asker.x] is asker

    def _check_waiting(self, streams: list[BrokerStream]) -> None:
        waiting: Counter[str] = Counter()
        for stream in streams:
            for exchange in stream.exchanges.values():
                if isinstance(exchange, Exchange):
                    waiting[stream.endpoint[0]] += sum(map(len, exchange.answers))
                    assert not (exchange.has_begun and exchange.answers)
        for turns in self._turns.values():
            waiting[turns.principal] += turns.size
        self._waiting.check(waiting)


def _has_begun(asker: Asker) -> bool:
    """Its HTTP request is answered with events, the first of which is written."""
    if isinstance(asker, BrokerStream):
        return asker.sort != "sse" or bool(asker.session)
    return isinstance(asker, Exchange) and asker.has_begun
