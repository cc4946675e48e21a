"""A carrier with many streams (rule 9): one connection, many sessions.

Owns which stream of a connection is which session, and on which exchange each line to an agent travels. A
request gets its exchange when it is read (`placed`); after that its id tells. Sessions outlive a broker and a
door that dies: a stream may be opened as one of them (docs/decisions/0019).

Invariants: each session here is one stream of its connection, and the other way round; a line that belongs to
an open request goes to the exchange that the request came with, or to none when the client of that went away.
A frame that is none is a bug of our own door: the connection ends.

Knows nothing of: HTTP, what a session may do, sockets.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from carpool_broker.core import events
from carpool_broker.core.effects import NO_CALL
from carpool_broker.era.exchange import Exchanges, OwnExchanges, SharedExchanges
from carpool_broker.era.handshake import Batch, Meaning, Unservable
from carpool_broker.heritage import Heritage
from carpool_broker.lingering import Held, Lingering
from carpool_broker.returning import Returning
from carpool_protocol.attach import Attach, Moved, ResumeSession
from carpool_protocol.faults import fault, for_method
from carpool_protocol.ids import CallId, Epoch, RawJson, SessionId
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
    Served,
    Stateful,
    frame_line,
    read_word,
    split_frame,
    word_line,
)

log = logging.getLogger("carpool.broker")


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

    def take_back_message(
        self, stream: "Stream", message: bytes, exchange: int, returning: Returning
    ) -> None:
        """A message that the door has kept of a session."""

    def resumed(self, session: SessionId, returning: Returning) -> None:
        """All that was kept of a session is there."""

    def version_of(self, session: SessionId) -> str:
        """The protocol version that was negotiated; empty for none."""

    def feed(self, burst: list[events.AnyEvent]) -> None:
        """Handle what has been gathered, and empty it."""

    def give_up(self, session: SessionId, request: RawJson) -> None:
        """The client of a request went away, and with it whoever wanted the answer."""

    def farewell(self, session: SessionId) -> None:
        """The session is over."""


class WriteFrame(Protocol):
    """Takes a frame for the door."""

    def __call__(self, frame: bytes, call: CallId = NO_CALL, /) -> None:
        """`call`: the frame is the answer to it; an empty one is none, and what went before was all."""


class Stream:
    """One session on a carrier."""

    __slots__ = (
        "_silent", "_write", "epoch", "exchanges", "held", "id", "number", "returning", "word",
    )  # fmt: skip

    def __init__(
        self, session: SessionId, number: int, word: Open, write: "WriteFrame", epoch: Epoch
    ) -> None:
        self.id = session
        self.number = number
        self.word = word
        """How it was opened."""
        self.exchanges: Exchanges = SharedExchanges() if word.kind == "shared" else OwnExchanges()
        self.epoch = epoch
        """Of the supervisor that serves it."""
        self.returning: Returning | None = None
        """It was here at an earlier broker, and not all that its door has kept has come."""
        self.held: Held | None = None
        """Its door has died."""
        self._write = write
        self._silent: set[RawJson] = set()
        """Requests that are replayed: the first line about one is not for the agent."""

    def write(self, line: bytes, about: RawJson, *, last: bool, call: CallId) -> None:
        """A line to the agent. `about`: the request it belongs to; `last`: it is the answer, of `call`."""
        if self._silent and about in self._silent:
            self._silent.discard(about)
            # A listen that cannot be had any more: its agent does not know that.
            if not (last and self.exchanges.shared):
                self.exchanges.of(about, last=last)
                return
        exchange = self.exchanges.of(about, last=last) if about else 0
        if self.held is not None:
            self.held.say(line, call, answers=last)
        elif call:
            self._write(frame_line(self.number, line, exchange), call)
        else:
            self._write(frame_line(self.number, line, exchange))

    def say(self, line: bytes, exchange: int) -> None:
        """A line for this very exchange."""
        self._write(frame_line(self.number, line, exchange))

    def cancelled(self, request: RawJson) -> None:
        """The agent has cancelled this request of its own: no answer comes."""
        exchange = self.exchanges.cancelled(request)
        if exchange:
            self._write(word_line(self.number, Over(exchange)))

    def replayed(self, meaning: events.Event) -> None:
        """Something that its agent said at an earlier broker is said again, and was answered there."""
        request = None if isinstance(meaning, events.AgentCancelled) else getattr(meaning, "id", None)
        if request is not None:
            self._silent.add(request)

    def let_go(self, call: CallId) -> None:
        """The record may forget this call when all that was said so far is with the door."""
        if self.held is not None:
            self.held.say(b"", call, answers=True)
        else:
            self._write(b"", call)

    def served_by(self, epoch: Epoch) -> None:
        """All that is open, and all that comes, goes to this supervisor."""
        if epoch != self.epoch:
            self.epoch = epoch
            if self.held is None:
                self._write(word_line(self.number, Served(epoch)))

    def moved(self, moved: Moved) -> None:
        """Its session is in another workspace."""
        if self.held is None:
            self._write(word_line(self.number, moved))

    def stateful_at(self, servers: Sequence[str]) -> None:
        """Its session may have state there. (To a door that takes it over it is said no more: that does not
        bring it back to a later broker.)
        """
        if self.held is None:
            self._write(word_line(self.number, Stateful([*servers])))

    def taken_over(self, number: int, write: "WriteFrame") -> list[bytes]:
        """Another door has it now. What was said meanwhile."""
        held, self.held = self.held, None
        self.number, self._write = number, write
        return [] if held is None else held.lines


class Carrier:
    """One connection with many streams."""

    def __init__(
        self,
        connection: SessionId,
        attach: Attach,
        host: StreamHost,
        streams: dict[SessionId, Stream],
        *,
        lingering: Lingering[Stream],
        heritage: Heritage,
        enter: Callable[[ResumeSession | None], tuple[SessionId, Epoch]],
        write: WriteFrame,
        drop: Callable[[str], None],
    ) -> None:
        """`streams`: of all carriers; those of this one are entered there, and those `lingering`. `enter`
        gives the id of a session that begins or comes back, and the epoch that its requests were sent under;
        `write` takes a frame for the door, `drop` ends the connection.
        """
        self.id = connection
        """Of the connection, which is no session."""
        self.write = write
        self._attach = attach
        self._host = host
        self._all = streams
        self._lingering = lingering
        self._heritage = heritage
        self._enter = enter
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
                if stream.returning is None:
                    take_message(stream, message, exchange, burst)
                else:
                    self._host.feed(burst)
                    self._take_back(stream, stream.returning, message, exchange)
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
                if word.resume is not None and not word.resume.session:
                    self._take_over(number, word, word.resume.secret)
                else:
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
        resume = word.resume
        attach = msgspec.structs.replace(
            self._attach,
            cwd=word.cwd,
            agent=word.agent or word.principal or ("anonymous" if word.kind == "shared" else ""),
            workspace=word.workspace,
            profile=word.profile,
            resume=resume,
            server=word.server,
            control=word.kind == "control",
        )
        refused = self._host.objection(attach)
        if refused is not None:
            self.write(word_line(number, refused))
            return
        session, epoch = self._enter(resume)
        stream = Stream(session, number, word, self.write, epoch)
        self._tell_opened(stream)
        if self._ended:
            return  # that line was one too many for a door that does not read
        self._streams[number] = self._all[stream.id] = stream
        self._host.welcome(stream.id, attach, {}, word)
        if resume is not None:
            stream.returning = Returning(
                session, epoch, resume.asks,
                kept=resume.kept, unsettled=resume.open, stateful=resume.stateful,
            )  # fmt: skip
            self._look(stream, stream.returning)

    def _take_back(self, stream: Stream, returning: Returning, message: bytes, exchange: int) -> None:
        self._host.take_back_message(stream, message, exchange, returning)
        self._look(stream, returning)

    def _look(self, stream: Stream, returning: Returning) -> None:
        if returning.is_over:
            stream.returning = None
            self._host.resumed(stream.id, returning)

    def _take_over(self, number: int, word: Open, public: str) -> None:
        """A session of a door that died."""
        stream = self._lingering.take(public, word)
        if stream is None:
            self.write(word_line(number, Refused("there is no such session", "unknown_session")))
            return
        log.info("%s is back through another door", stream.id)
        said = stream.taken_over(number, self.write)
        self._host.feed([events.AgentCarried(stream.id, self._attach.pid)])
        self._streams[number] = stream
        self._tell_opened(stream, self._host.version_of(stream.id))
        for line in said:
            stream.say(line, 0)

    def _tell_opened(self, stream: Stream, version: str = "") -> None:
        opened = Opened(
            self._heritage.public_id(stream.id),
            stream.id,
            self._heritage.secret_of(stream.id),
            stream.epoch,
            version,
        )
        self.write(word_line(stream.number, opened))

    def _forget(self, stream: Stream) -> None:
        del self._streams[stream.number]
        del self._all[stream.id]
        self._host.farewell(stream.id)

    def dropped(self) -> None:
        """The connection is ended by us, and every session on it."""
        self._ended = True
        for stream in list(self._streams.values()):
            self._forget(stream)

    def left(self) -> None:
        """The door is gone. Sessions that another may ask for linger."""
        self._ended = True
        if self._streams:
            log.warning("the door %s is gone, and %d streams with it", self.id, len(self._streams))
        for stream in list(self._streams.values()):
            if stream.word.kind == "session" and stream.returning is None:
                del self._streams[stream.number]
                stream.exchanges.abandon()
                self._lingering.keep(self._heritage.public_id(stream.id), stream)
                self._host.feed([events.AgentCarried(stream.id, 0)])
            else:
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
