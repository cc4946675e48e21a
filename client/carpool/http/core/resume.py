"""Resumption of streams at the broker after the one that died (docs/decisions/0019).

Owns the record of what a later broker must hear again beside the parts of a session (`kept_messages`):
requests without an answer, what clients answered to questions, and which questions are open. Owns also the
order in which it hears them: the stream with what resumes its session, then what makes the session what it is
(a listen behind what acknowledged it), then what has no answer. Pure.

Knows nothing of: when a broker dies, what becomes of a stream that cannot go on (`routing`).
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from carpool.http.core.body import ClientMessage, text_of
from carpool.http.core.shared_budgets import SharedBudget
from carpool.http.core.streams import BrokerStream, Exchange, OwnRequest
from carpool.open_requests import OpenRequests
from carpool_protocol.bootstrap.carrier_contract import name_of
from carpool_protocol.carrier.attach_line import ResumeSession
from carpool_protocol.carrier.streams import OpenStream, control_line, frame_line

_END: Final = b"\n"
_MAX_ASKS: Final = 1000
"""The greatest number of asks that a client may leave open. A later broker may ask others again."""


class Resumption:
    """What a later broker must hear, of all streams, within one budget of bytes that principals share."""

    def __init__(self, budget: SharedBudget) -> None:
        self._budget = budget

    def request_sent(self, stream: BrokerStream, requests: OpenRequests, ident: bytes, line: bytes) -> None:
        """A request goes to the broker."""
        requests.request_sent(ident, line if stream.room.reserve(len(line)) else b"")

    def request_answered(
        self, stream: BrokerStream, requests: OpenRequests, ident: bytes, answer: bytes
    ) -> bytes:
        """A later broker need not hear of the request with this answer. Returns the request; empty where
        there was no room for it.
        """
        line = requests.request_answered(ident, answer)
        stream.room.release(len(line))
        return line

    def forget_request(self, stream: BrokerStream, requests: OpenRequests, ident: bytes) -> None:
        """A later broker need not hear of the request with this id."""
        _release(stream, requests.request_ended(ident))

    def request_cancelled(self, stream: BrokerStream, x: int, requests: OpenRequests, ident: bytes) -> None:
        """The client has cancelled its request with this id on exchange `x` (0: on none)."""
        self.forget_request(stream, requests, ident)
        if stream.kept.pending:
            stream.kept.request_ended(x, ident)
        _forget_ask_answers(stream)

    def forget_unkept(self, stream: BrokerStream) -> None:
        """The broker has died: no later one hears of requests on no exchange that there was no room for."""
        for _, ident, line in stream.detached_requests.entries():
            if not line:
                assert isinstance(ident, bytes)
                stream.kept.request_ended(0, ident)
        stream.detached_requests.forget_unkept()
        _forget_ask_answers(stream)

    def detached_answered(self, stream: BrokerStream, ident: bytes, answer: bytes, *, is_error: bool) -> None:
        """A request that belongs to no exchange was answered."""
        stream.kept.request_answered(0, ident, is_error=is_error)
        self.request_answered(stream, stream.detached_requests, ident, answer)
        _forget_ask_answers(stream)

    def detach(self, exchange: Exchange) -> None:
        """The client of an exchange is gone; its later answers belong to no exchange."""
        stream = exchange.stream
        stream.kept.exchange_detached(exchange.x)
        for _, ident, line in exchange.lines.entries():
            stream.detached_requests.request_sent(ident, line)
        exchange.lines.clear()
        stream.detached_ask_answers += exchange.ask_answers
        exchange.ask_answers = ()
        stream.asks = {ask: 0 if x == exchange.x else x for ask, x in stream.asks.items()}

    def listen_acknowledged(self, exchange: Exchange | OwnRequest, message: bytes) -> None:
        """Note the first message of a listen, which says what it listens to."""
        exchange.listen_acknowledgement = _kept(exchange.stream, message)

    def ask_sent(self, stream: BrokerStream, ident: bytes, x: int) -> None:
        """An ask goes to the client, on exchange `x` or on none."""
        if len(stream.asks) >= _MAX_ASKS:
            del stream.asks[next(iter(stream.asks))]
        stream.asks[ident] = x

    def ask_answered(self, stream: BrokerStream, message: ClientMessage) -> None:
        """The client has answered an ask."""
        x = stream.asks.pop(message.id, None)
        exchange = stream.exchanges.get(x) if x else None
        if isinstance(exchange, Exchange):
            exchange.ask_answers = (*exchange.ask_answers, _kept(stream, message.line))
        elif x == 0 and stream.detached_requests:
            stream.detached_ask_answers = (*stream.detached_ask_answers, _kept(stream, message.line))

    def forget_exchange(self, exchange: Exchange | OwnRequest) -> None:
        """The exchange is over."""
        stream = exchange.stream
        if (
            exchange.lines
            or exchange.listen_acknowledgement
            or (isinstance(exchange, Exchange) and exchange.ask_answers)
        ):
            _release(stream, kept_lines(exchange))
            exchange.lines.clear()
            exchange.listen_acknowledgement = None
            if isinstance(exchange, Exchange):
                exchange.ask_answers = ()
        if stream.asks:
            stream.asks = {ask: x for ask, x in stream.asks.items() if x != exchange.x}
        if stream.kept.pending:
            stream.kept.exchange_ended(exchange.x)

    def forget_stream(self, stream: BrokerStream) -> None:
        """The stream is closed, and with it every exchange of it."""
        stream.kept.clear()
        _release(stream, (*stream.detached_requests.lines(), *stream.detached_ask_answers))
        stream.detached_requests.clear()
        stream.detached_ask_answers = ()

    def check(self, streams: list[BrokerStream]) -> None:
        """Assert that the budget counts what is kept of each principal, and nothing else."""
        kept: Counter[str] = Counter()
        for stream in streams:
            lines = [*stream.detached_requests.lines(), *stream.detached_ask_answers]
            for exchange in stream.exchanges.values():
                lines += kept_lines(exchange)
            kept[stream.endpoint[0]] += stream.kept.size_bytes + sum(map(len, lines))
            assert all(x in stream.exchanges or x == 0 for x in stream.asks.values())
            assert stream.detached_requests or not stream.detached_ask_answers
            for x, ids in stream.kept.pending.items():
                requests = stream.exchanges[x].lines if x else stream.detached_requests
                assert ids.keys() <= {ident for _, ident, _ in requests.entries()}
        self._budget.check(kept)


def _kept(stream: BrokerStream, line: bytes) -> bytes:
    """Return the line if there is room to keep it; otherwise an empty one."""
    return line if stream.room.reserve(len(line)) else b""


def _release(stream: BrokerStream, lines: Iterable[bytes]) -> None:
    """These lines are not kept any more."""
    stream.room.release(sum(map(len, lines)))


def _forget_ask_answers(stream: BrokerStream) -> None:
    """Forget the client's answers to asks of no exchange if no request is open to which such an ask could
    belong.
    """
    if stream.detached_ask_answers and not stream.detached_requests:
        _release(stream, stream.detached_ask_answers)
        stream.detached_ask_answers = ()


def kept_lines(exchange: Exchange | OwnRequest) -> list[bytes]:
    """Return the lines of one exchange that count against the budget."""
    given = exchange.ask_answers if isinstance(exchange, Exchange) else ()
    return [*exchange.lines.lines(), *given, exchange.listen_acknowledgement or b""]


def resume_frames(stream: BrokerStream, opening: OpenStream) -> list[bytes]:
    """Return the frames for the next broker. `opening`: how the stream is opened when nothing is resumed."""
    s = stream.s
    kept = [(line, 0) for line in stream.kept.lines()]
    left, again = _unanswered(stream.detached_requests, 0, [], 0)
    given = [(line, 0) for line in stream.detached_ask_answers if line]
    for exchange in stream.exchanges.values():
        if exchange.listen_acknowledgement:
            kept += [
                (exchange.listen_acknowledgement, exchange.x),
                *((line, exchange.x) for line in exchange.lines.lines()),
            ]
        else:
            more, again = _unanswered(exchange.lines, exchange.x, again, len(left))
            left += more
        if isinstance(exchange, Exchange):
            given += [(line, 0) for line in exchange.ask_answers if line]
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
        opening = replace(opening, resume=resume)
    return [control_line(s, opening), *(frame_line(s, line, x) for line, x in said)]


def _unanswered(
    requests: OpenRequests, x: int, again: list[int], before: int
) -> tuple[list[tuple[bytes, int]], list[int]]:
    """Return the unanswered requests of exchange `x`, and the places of those that use an id again. `again`
    counts the requests before them.
    """
    used_again = requests.reused_ids()
    entries = requests.entries()
    places = [before + place for place, (number, _, _) in enumerate(entries) if number in used_again]
    return [(line, x) for _, _, line in entries], again + places
