"""A carrier with many streams (rule 9): one connection, many sessions.

Owns which stream of a connection is which session, and on which exchange each line to an agent travels. A
request gets its exchange when it is read (`placed`); after that its id tells.

Invariants: each session here is one stream of its connection, and the other way round; a line that belongs to
an open request goes to the exchange that the request came with, or to none when the client of that went away.
A frame that is none is a bug of our own door: the connection ends.

Knows nothing of: HTTP, what a session may do, sockets.
"""

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from carpool_broker.core import events
from carpool_broker.core.effects import NO_CALL
from carpool_broker.era.exchange import Exchanges, OwnExchanges, SharedExchanges
from carpool_broker.era.handshake import Batch, Meaning, Unservable
from carpool_protocol.attach import Attach
from carpool_protocol.faults import fault, for_method
from carpool_protocol.ids import CallId, RawJson, SessionId
from carpool_protocol.jsonrpc import error_body_line
from carpool_protocol.lines import OverlongLine
from carpool_protocol.streams import (
    WORD,
    Close,
    Gone,
    Open,
    Opened,
    Over,
    Refused,
    frame_line,
    read_word,
    split_frame,
    word_line,
)

log = logging.getLogger("carpool.broker")

TOKEN_BYTES: Final = 16
"""Of `Mcp-Session-Id`: whoever guesses it has the session."""


class StreamHost(Protocol):
    """What a carrier needs of the shell."""

    def objection(self, attach: Attach) -> Refused | None:
        """Why this session cannot be; None: it can."""

    def welcome(
        self, session: SessionId, attach: Attach, environment: dict[str, str], stream: Open | None = None
    ) -> None:
        """The session begins: its messages come next."""

    def take_message(
        self, stream: "Stream", message: bytes, exchange: int, burst: list[events.AnyEvent]
    ) -> None:
        """A message of a session on a stream. An event may join `burst`, those before it that are not fed
        yet; what is none has them fed first.
        """

    def feed(self, burst: list[events.AnyEvent]) -> None:
        """Handle what has been gathered, and empty it."""

    def give_up(self, session: SessionId, request: RawJson) -> None:
        """The client of a request went away, and with it whoever wanted the answer."""

    def farewell(self, session: SessionId) -> None:
        """The session is over."""


class WriteFrame(Protocol):
    """Takes a frame for the door."""

    def __call__(self, frame: bytes, call: CallId = NO_CALL, /) -> None:
        """`call`: the frame is the answer to it."""


class Stream:
    """One session on a carrier."""

    __slots__ = ("carrier", "exchanges", "id", "number")

    def __init__(self, session: SessionId, number: int, carrier: "Carrier", exchanges: Exchanges) -> None:
        self.id = session
        self.number = number
        self.carrier = carrier
        self.exchanges = exchanges

    def frame(self, line: bytes, about: RawJson, *, last: bool) -> bytes:
        """The frame of a line to the agent. `about`: the request it belongs to; `last`: it is the answer."""
        return frame_line(self.number, line, self.exchanges.of(about, last=last) if about else 0)

    def say(self, line: bytes, exchange: int) -> None:
        """A line for this very exchange."""
        self.carrier.write(frame_line(self.number, line, exchange))

    def cancelled(self, request: RawJson) -> None:
        """The agent has cancelled this request of its own: no answer comes."""
        exchange = self.exchanges.cancelled(request)
        if exchange:
            self.carrier.write(word_line(self.number, Over(exchange)))


class Carrier:
    """One connection with many streams."""

    def __init__(
        self,
        connection: SessionId,
        attach: Attach,
        host: StreamHost,
        streams: dict[SessionId, Stream],
        *,
        mint: Callable[[], SessionId],
        write: WriteFrame,
        drop: Callable[[str], None],
    ) -> None:
        """`streams`: of all carriers; those of this one are entered there. `mint` gives a fresh session's id,
        `write` takes a frame for the door, `drop` ends the connection.
        """
        self.id = connection
        """Of the connection, which is no session."""
        self.write = write
        self._attach = attach
        self._host = host
        self._all = streams
        self._mint = mint
        self._drop = drop
        self._streams: dict[int, Stream] = {}
        self._last = 0
        """The stream opened last, refused ones included."""
        self._ended = False

    def take(self, lines: Sequence[bytes | OverlongLine]) -> None:
        """Lines of the door."""
        streams, take_message = self._streams, self._host.take_message
        burst: list[events.AnyEvent] = []
        why = ""
        for line in lines:
            cut = split_frame(line) if isinstance(line, bytes) else None
            if cut is None:
                why = "it sent a line that is no frame"
                break
            number, message, exchange = cut
            stream = streams.get(number)
            if exchange == WORD:
                self._host.feed(burst)
                why = "" if self._ended else self._word(number, message)
            elif stream is not None:
                take_message(stream, message, exchange, burst)
            elif number > self._last:
                why = "it sent a message on a stream that was never open"
            if why or self._ended:
                break
        self._host.feed(burst)
        if why and not self._ended:
            self._drop(why)

    def _word(self, number: int, raw: bytes) -> str:
        word = read_word(raw)
        stream = self._streams.get(number)
        match word:
            case Open() if number > self._last:
                self._last = number
                self._open(number, word)
            case Gone() if stream is not None:
                for request in stream.exchanges.gone(word.exchange):
                    self._host.give_up(stream.id, request)
            case Close() if stream is not None:
                self._forget(stream)
            case Gone() | Close() if number <= self._last:
                pass  # it crossed with our refusal
            case _:
                return "it said of a stream what cannot be"
        return ""

    def _open(self, number: int, word: Open) -> None:
        attach = msgspec.structs.replace(
            self._attach,
            cwd=word.cwd,
            agent=word.agent or word.principal or ("anonymous" if word.kind == "shared" else ""),
            profile=word.profile,
            server=word.server,
            control=word.kind == "control",
        )
        refused = self._host.objection(attach)
        if refused is not None:
            self.write(word_line(number, refused))
            return
        exchanges = SharedExchanges() if word.kind == "shared" else OwnExchanges()
        stream = Stream(self._mint(), number, self, exchanges)
        self.write(word_line(number, Opened(secrets.token_urlsafe(TOKEN_BYTES), stream.id)))
        if self._ended:
            return  # that line was one too many for a door that does not read
        self._streams[number] = self._all[stream.id] = stream
        self._host.welcome(stream.id, attach, {}, word)

    def _forget(self, stream: Stream) -> None:
        del self._streams[stream.number]
        del self._all[stream.id]
        self._host.farewell(stream.id)

    def left(self) -> None:
        """The connection is gone, and every session on it."""
        self._ended = True
        if self._streams:
            log.warning("the door %s is gone, and %d sessions with it", self.id, len(self._streams))
        for stream in list(self._streams.values()):
            self._forget(stream)


def placed(stream: Stream, meaning: Meaning, exchange: int) -> Meaning:
    """What a message means once its request belongs to an exchange.

    On a shared stream nothing but requests counts: a notification or an answer would be one agent's word
    about what another one does.
    """
    exchanges = stream.exchanges
    if meaning is None or isinstance(meaning, (Unservable, Batch)):
        return meaning
    raw = None if isinstance(meaning, events.AgentCancelled) else getattr(meaning, "id", None)
    if raw is None:
        return None if exchanges.shared else meaning
    request = exchanges.enter(raw, exchange)
    if request is None:
        _, body = for_method(fault("duplicate_request_id"), "")
        return Unservable(error_body_line(raw, body))
    return meaning if request is raw else msgspec.structs.replace(meaning, id=request)
