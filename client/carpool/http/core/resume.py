"""Resumption of streams at the broker after the one that died (docs/decisions/0019).

Owns the record of what a later broker must hear again beside the parts of a session (`kept_messages`):
requests without an answer, what clients answered to questions, and which questions are open. Owns also the
order in which it hears them: the stream with what resumes its session, then what makes the session what it is
(a listen behind what acknowledged it), then what has no answer. Pure.

Knows nothing of: when a broker dies, what becomes of a stream that cannot go on (`routing`).
"""

from typing import Final

from msgspec.structs import replace

from carpool.http.core.body import Message, text_of
from carpool.http.core.kept_messages import Room
from carpool.http.core.streams import Exchange, OwnRequest, Stream
from carpool.open_requests import Unanswered
from carpool_protocol.bootstrap.carrier_contract import name_of
from carpool_protocol.carrier.attach import ResumeSession
from carpool_protocol.carrier.streams import Open, frame_line, word_line

_END: Final = b"\n"
_MAX_ASKS: Final = 1000
"""Questions that a client leaves open. What was asked before may be asked again by a later broker."""


class Resumption:
    """The record of all streams, within one budget of bytes."""

    def __init__(self, room: Room) -> None:
        self._room = room

    def request_sent(self, requests: Unanswered, ident: bytes, line: bytes) -> None:
        """A request goes to the broker."""
        requests.said(ident, self._room.take(line))

    def request_answered(self, requests: Unanswered, ident: bytes, answer: bytes) -> None:
        """A later broker need not hear of the request that has this answer."""
        self._room.give(requests.answered(ident, answer))

    def forget_request(self, requests: Unanswered, ident: bytes) -> None:
        """A later broker need not hear of what has this id."""
        for line in requests.ended(ident):
            self._room.give(line)

    def detached_answered(self, stream: Stream, ident: bytes, answer: bytes, *, is_error: bool) -> None:
        """The answer to a request that is of no exchange."""
        stream.kept.answered(0, ident, is_error=is_error)
        self.request_answered(stream.loose, ident, answer)
        if not stream.loose:
            for line in stream.given:
                self._room.give(line)
            stream.given = ()

    def detach(self, exchange: Exchange) -> None:
        """Its client has gone; what is still answered is so on no exchange."""
        stream = exchange.stream
        stream.kept.loosened(exchange.x)
        for _, ident, line in exchange.lines.entries():
            stream.loose.said(ident, line)
        exchange.lines.clear()
        stream.given += exchange.given
        exchange.given = ()
        stream.asks = {ask: 0 if x == exchange.x else x for ask, x in stream.asks.items()}

    def listen_acknowledged(self, exchange: Exchange | OwnRequest, message: bytes) -> None:
        """The first message of a listen says what it listens to."""
        exchange.granted = self._room.take(message)

    def ask_sent(self, stream: Stream, ident: bytes, x: int) -> None:
        """A question goes to the client, on exchange `x` or on none."""
        if len(stream.asks) >= _MAX_ASKS:
            del stream.asks[next(iter(stream.asks))]
        stream.asks[ident] = x

    def ask_answered(self, stream: Stream, message: Message) -> None:
        """A client answers a question."""
        x = stream.asks.pop(message.id, None)
        exchange = stream.exchanges.get(x) if x else None
        if isinstance(exchange, Exchange):
            exchange.given = (*exchange.given, self._room.take(message.line))
        elif x == 0 and stream.loose:
            stream.given = (*stream.given, self._room.take(message.line))

    def forget_exchange(self, exchange: Exchange | OwnRequest) -> None:
        """The exchange is over."""
        stream = exchange.stream
        if exchange.lines or exchange.granted or (isinstance(exchange, Exchange) and exchange.given):
            for line in kept_lines(exchange):
                self._room.give(line)
            exchange.lines.clear()
            exchange.granted = None
            if isinstance(exchange, Exchange):
                exchange.given = ()
        if stream.asks:
            stream.asks = {ask: x for ask, x in stream.asks.items() if x != exchange.x}
        if stream.kept.pending:
            stream.kept.unanswered(exchange.x)

    def forget_stream(self, stream: Stream) -> None:
        """The stream is closed, and every exchange of it before."""
        stream.kept.clear()
        for line in (*stream.loose.lines(), *stream.given):
            self._room.give(line)
        stream.loose.clear()
        stream.given = ()

    def check(self, streams: list[Stream]) -> None:
        """Assert that the budget counts what is kept, and nothing else."""
        kept = 0
        for stream in streams:
            lines = [*stream.loose.lines(), *stream.given]
            for exchange in stream.exchanges.values():
                lines += kept_lines(exchange)
            kept += stream.kept.size_bytes + sum(map(len, lines))
            assert all(x in stream.exchanges or x == 0 for x in stream.asks.values())
            assert stream.loose or not stream.given
        assert kept == self._room.used_bytes


def kept_lines(exchange: Exchange | OwnRequest) -> list[bytes]:
    """All lines of one exchange that count against the budget."""
    given = exchange.given if isinstance(exchange, Exchange) else ()
    return [*exchange.lines.lines(), *given, exchange.granted or b""]


def comeback(stream: Stream, word: Open) -> list[bytes]:
    """The frames. `word`: how the stream is opened when nothing is resumed."""
    s = stream.s
    kept = [(line, 0) for line in stream.kept.lines()]
    left, again = _left(stream.loose, 0, [], 0)
    given = [(line, 0) for line in stream.given if line]
    for exchange in stream.exchanges.values():
        if exchange.granted:
            kept += [(exchange.granted, exchange.x), *((line, exchange.x) for line in exchange.lines.lines())]
        else:
            more, again = _left(exchange.lines, exchange.x, again, len(left))
            left += more
        if isinstance(exchange, Exchange):
            given += [(line, 0) for line in exchange.given if line]
    said = [*kept, *left, *given]
    if stream.name and stream.sort != "control":
        asks = [ask for ask in map(text_of, stream.asks) if ask is not None]
        resume = ResumeSession(
            session=stream.name,
            secret=stream.secret,
            supervisor=stream.epoch,
            kept=len(kept),
            open=len(left) + len(given),
            last=f"{name_of(said[-1][0].removesuffix(_END)):x}" if said else "",
            # On a stream of many agents the exchange is a part of the name: no id is used again.
            again=[] if stream.kind == "shared" else again,
            asks=asks,
            moved=stream.moved,
            stateful=stream.stateful,
        )
        word = replace(word, resume=resume)
    return [word_line(s, word), *(frame_line(s, line, x) for line, x in said)]


def _left(
    requests: Unanswered, x: int, again: list[int], before: int
) -> tuple[list[tuple[bytes, int]], list[int]]:
    """Requests without an answer, of exchange `x`, and the places of all that use an id again. `again`: of
    those before them, which are so many.
    """
    used_again = requests.used_again()
    entries = requests.entries()
    places = [before + place for place, (number, _, _) in enumerate(entries) if number in used_again]
    return [(line, x) for _, _, line in entries], again + places
