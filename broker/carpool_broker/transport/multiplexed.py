"""A carrier with many streams (rule 9): one connection, many sessions.

Owns which stream of a connection is which session, and on which exchange each line to an agent travels. A
request gets its exchange when it is read (`placed`); after that its id tells. Sessions outlive a broker and a
door that dies: a stream may be opened as one of them (docs/decisions/0019). Owns also the frames of streams
that wait to open, within a bound: the workspace of each must be scanned first.

Invariants: each session here is one stream of its connection, and the other way round; a line that belongs to
an open request goes to the exchange that the request came with, or to none when the client of that went away.
A frame that is none is a bug of our own door: the connection ends.

Knows nothing of: HTTP, what a session may do, sockets.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec

from carpool_broker.core.model import events
from carpool_broker.era.handshake import Batch, Meaning, Unservable
from carpool_broker.transport.detached_sessions import Lingering
from carpool_broker.transport.incarnation import Heritage
from carpool_broker.transport.resume import Returning
from carpool_broker.transport.streams import Stream, WriteFrame
from carpool_protocol.carrier.attach import Attach, ResumeSession
from carpool_protocol.carrier.streams import (
    WORD,
    Close,
    Gone,
    Open,
    Opened,
    Refused,
    Word,
    read_word,
    split_frame,
    word_line,
)
from carpool_protocol.faults.faults import fault, for_method
from carpool_protocol.ids import Epoch, RawJson, SessionId
from carpool_protocol.wire.jsonrpc import error_body_line
from carpool_protocol.wire.lines import OverlongLine

HELD_BYTES: Final = 16 * 1024 * 1024
"""Of all streams of a connection that wait together. What an earlier broker has taken of a session that comes
back does not count (as in `attach`).
"""


class Opening:
    """Those of one connection."""

    def __init__(self) -> None:
        self._held: dict[int, list[bytes]] = {}
        self._taken: dict[int, int] = {}
        """So many of each do not count."""
        self._bytes = 0

    def __contains__(self, number: int) -> bool:
        return number in self._held

    def begin(self, number: int, taken: int = 0) -> None:
        """This stream waits from now on. `taken`: so many frames an earlier broker has taken."""
        self._held[number], self._taken[number] = [], taken

    def hold(self, number: int, frame: bytes) -> bool:
        """Keep a frame of one that waits. False: that is too much."""
        held = self._held[number]
        held.append(frame)
        if len(held) > self._taken[number]:
            self._bytes += len(frame)
        return self._bytes <= HELD_BYTES

    def end(self, number: int) -> list[bytes] | None:
        """It waits no more: its frames. None: it did not wait, or not any more."""
        frames, taken = self._held.pop(number, None), self._taken.pop(number, 0)
        self._bytes -= sum(map(len, (frames or [])[taken:]))
        return frames


log = logging.getLogger("carpool.broker")


class StreamHost(Protocol):
    """What a carrier needs of the shell."""

    def look(self, attach: Attach, then: Callable[[], None]) -> None:
        """Find out what is where this session wants to be; then `then`, at once where that is known."""

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
        self._opening = Opening()
        self._last = 0
        """The stream opened last, refused ones included."""

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
                if number in self._opening:
                    self._hold(number, line, read_word(message))
                else:
                    why = self._word(number, message)
            elif stream is not None:
                if stream.returning is None:
                    take_message(stream, message, exchange, burst)
                else:
                    self._host.feed(burst)
                    self._take_back(stream, stream.returning, message, exchange)
            elif number in self._opening:
                self._hold(number, line)
            elif number > self._last:
                why = "it sent a message on a stream that was never open"
            if why:
                break
        self._host.feed(burst)
        if why:
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
        attach = msgspec.structs.replace(
            self._attach,
            cwd=word.cwd,
            agent=word.agent or word.principal or ("anonymous" if word.kind == "shared" else ""),
            workspace=word.workspace,
            profile=word.profile,
            tool_name_length=word.tool_name_length,
            resume=word.resume,
            server=word.server,
            control=word.kind == "control",
        )
        self._opening.begin(number, 0 if word.resume is None else word.resume.taken)
        self._host.look(attach, partial(self._looked, number, word, attach))

    def _hold(self, number: int, frame: bytes | OverlongLine, word: Word | None = None) -> None:
        """A frame of a stream that is not open yet. `word`: what it says, where it is one."""
        assert isinstance(frame, bytes)
        if isinstance(word, Close):
            self._opening.end(number)
        elif not self._opening.hold(number, frame):
            self._opening.end(number)
            why = "too much has come before its workspace could be read"
            self.write(word_line(number, Refused(why, "unknown_workspace")))

    def _looked(self, number: int, word: Open, attach: Attach) -> None:
        """It is known what is there."""
        held = self._opening.end(number)
        if held is None:
            return  # it was closed meanwhile, or the door is gone
        self._begin(number, word, attach)
        if held:
            self.take(held)

    def _begin(self, number: int, word: Open, attach: Attach) -> None:
        resume = word.resume
        refused = self._host.objection(attach)
        if refused is not None:
            self.write(word_line(number, refused))
            return
        session, epoch = self._enter(resume)
        stream = Stream(session, number, word, self.write, epoch)
        self._tell_opened(stream)
        self._streams[number] = self._all[stream.id] = stream
        self._host.welcome(stream.id, attach, {}, word)
        if resume is not None:
            stream.returning = Returning(session, epoch, resume)
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

    def left(self, *, dropped: bool = False) -> None:
        """The connection is over, and nothing is under way. Unless it was `dropped` by us, sessions that
        another door may ask for linger.
        """
        self._opening = Opening()
        if self._streams and not dropped:
            log.warning("the door %s is gone, and %d streams with it", self.id, len(self._streams))
        for stream in list(self._streams.values()):
            if stream.word.kind == "session" and stream.returning is None and not dropped:
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
    if isinstance(meaning, events.AgentGranted):
        return msgspec.structs.replace(meaning, id=exchanges.name(meaning.id, exchange))
    raw = None if isinstance(meaning, events.AgentCancelled) else getattr(meaning, "id", None)
    if raw is None:
        return None if exchanges.shared else meaning
    request = exchanges.enter(raw, exchange)
    if request is None:
        _, body = for_method(fault("duplicate_request_id"), "")
        return Unservable(error_body_line(raw, body))
    return meaning if request is raw else msgspec.structs.replace(meaning, id=request)
