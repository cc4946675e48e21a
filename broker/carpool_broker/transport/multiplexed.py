"""A multiplexed connection: one carrier, many sessions, each on a stream (rule 9).

Owns the session of each stream, and the exchange of each line to an agent. A request gets its exchange when
it is read (`with_exchange`); after that its id shows it. Sessions outlive a broker or a door that dies, and a
stream may resume one (docs/decisions/0019). Also owns the frames of streams that wait to open, within a
bound: the workspace of each must be scanned first.

Invariants: each session here is one stream of its connection, and the reverse. A line about an open request
goes to the exchange of the request, or to none if its client went away. A line that is no frame is a bug of
carpool's own door: the connection ends.

Knows nothing of: HTTP, rights of sessions, sockets.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec

from carpool_broker.core.model import events
from carpool_broker.era.handshake import LineBatch, LineMeaning, UnservableLine
from carpool_broker.transport.detached_sessions import DetachedSessions
from carpool_broker.transport.incarnation import Incarnation
from carpool_broker.transport.resume import SessionResume
from carpool_broker.transport.stream_output import StreamOutput
from carpool_broker.transport.streams import SessionStream, WriteFrame
from carpool_protocol.carrier.attach_line import Attach, ResumeSession
from carpool_protocol.carrier.streams import (
    CONTROL,
    ClientAbsent,
    CloseStream,
    ControlMessage,
    ExchangeClientGone,
    OpenCallsRaised,
    OpenStream,
    StreamClosed,
    StreamOpened,
    StreamRefused,
    control_line,
    read_control,
    split_frame,
)
from carpool_protocol.faults.fault_answers import fault, fault_answer
from carpool_protocol.ids import Epoch, RawJson, SessionId
from carpool_protocol.machine.memory_shares import MemoryUse
from carpool_protocol.wire.jsonrpc import error_body_line
from carpool_protocol.wire.lines import OverlongLine

HELD_BYTES: Final = 32 * 1024 * 1024
"""Maximum number of bytes of all waiting streams of a connection together; principals share it
(`memory_shares`), so one alone gets half.

Lines that an earlier broker has taken of a resumed session do not count (as in `attach_dialogue`).
"""


class _PendingStream(msgspec.Struct):
    principal: str
    taken: int
    """Number of its first frames that do not count."""
    frames: list[bytes] = msgspec.field(default_factory=list)


class PendingStreams:
    """The waiting streams of one connection."""

    def __init__(self) -> None:
        self._streams: dict[int, _PendingStream] = {}
        self._use: MemoryUse[str] = MemoryUse()
        """The bytes of the frames that count, by principal."""

    def __contains__(self, number: int) -> bool:
        return number in self._streams

    def begin(self, number: int, principal: str, taken: int = 0) -> None:
        """Let this stream wait. `taken`: number of frames that an earlier broker has taken."""
        self._streams[number] = _PendingStream(principal, taken)

    def hold(self, number: int, frame: bytes) -> bool:
        """Keep a frame of a waiting stream. False: its principal has no room for it."""
        stream = self._streams[number]
        if len(stream.frames) >= stream.taken:
            if self._use.exceeds_share(HELD_BYTES, stream.principal, len(frame)):
                return False
            self._use.add(stream.principal, len(frame))
        stream.frames.append(frame)
        return True

    def end(self, number: int) -> list[bytes] | None:
        """End the wait and return the frames of the stream. None: it was not waiting."""
        stream = self._streams.pop(number, None)
        if stream is None:
            return None
        self._use.add(stream.principal, -sum(map(len, stream.frames[stream.taken :])))
        return stream.frames


log = logging.getLogger("carpool.broker")


class StreamHost(Protocol):
    """The part of the shell that a multiplexed connection needs."""

    def scan_workspace(self, attach: Attach, then: Callable[[], None]) -> None:
        """Scan the workspace of a session and call `then`, at once if the scan is known."""

    def attach_objection(self, attach: Attach) -> StreamRefused | None:
        """Why this session is refused; None: it is not."""

    def session_opened(
        self,
        session: SessionId,
        attach: Attach,
        environment: dict[str, str],
        stream: OpenStream | None = None,
    ) -> None:
        """The session begins. Its messages follow."""

    def message_received(
        self, stream: "SessionStream", message: bytes, exchange: int, burst: list[events.AnyEvent]
    ) -> None:
        """Handle a message of a session on a stream.

        An event may be added to `burst`, whose earlier events are not fed yet. For any other message they are
        fed first.
        """

    def resume_message(
        self, stream: "SessionStream", message: bytes, exchange: int, resume: SessionResume
    ) -> None:
        """Handle a kept message that the door repeats."""

    def session_resumed(self, session: SessionId, resume: SessionResume) -> None:
        """The session is resumed: all kept messages have come."""

    def version_of(self, session: SessionId) -> str:
        """The negotiated protocol version; empty: none."""

    def feed(self, burst: list[events.AnyEvent]) -> None:
        """Feed the collected events to the core, and empty the list."""

    def unread_changed(self, session: SessionId, unread_bytes: int) -> None:
        """This many bytes wait for the agent to read; 0: none."""

    def request_abandoned(self, session: SessionId, request: RawJson) -> None:
        """The client of a request went away, so the answer is no longer wanted."""

    def session_closed(self, session: SessionId) -> None:
        """The session is over."""


class MultiplexedConnection:
    """One connection with many streams."""

    def __init__(
        self,
        connection: SessionId,
        attach: Attach,
        host: StreamHost,
        streams: dict[SessionId, SessionStream],
        *,
        detached: DetachedSessions[SessionStream],
        incarnation: Incarnation,
        enter: Callable[[ResumeSession | None], tuple[SessionId, Epoch]],
        write: WriteFrame,
        written_bytes: Callable[[], int],
        drop: Callable[[str], None],
    ) -> None:
        """`streams`: the streams of all carriers; `detached`: the detached ones.

        `enter`: returns the id of a session that begins or resumes, and the epoch of its requests.
        `written_bytes`: the size of all that was written to the door. `drop`: ends the connection.
        """
        self.id = connection
        """Id of the connection, which is no session."""
        self.write = write
        self._attach = attach
        self._line_handler = host
        self._all = streams
        self._detached = detached
        self._incarnation = incarnation
        self._enter = enter
        self._written_bytes = written_bytes
        self._drop = drop
        self._output = StreamOutput(host.unread_changed)
        self._streams: dict[int, SessionStream] = {}
        self._pending_streams = PendingStreams()
        self._last = 0
        """The number of the last opened stream, also if it was refused."""

    def lines_received(self, lines: Sequence[bytes | OverlongLine]) -> None:
        """Handle lines of the door."""
        streams, take_message = self._streams, self._line_handler.message_received
        burst: list[events.AnyEvent] = []
        why = ""
        for line in lines:
            cut = split_frame(line) if isinstance(line, bytes) else None
            if cut is None:
                why = "it sent a line that is not a frame"
                break
            number, message, exchange = cut
            stream = streams.get(number)
            if exchange == CONTROL:
                self._line_handler.feed(burst)
                if number in self._pending_streams:
                    self._hold_frame(number, line, read_control(message))
                else:
                    why = self._handle_control_frame(number, message)
            elif stream is not None:
                if stream.returning is None:
                    take_message(stream, message, exchange, burst)
                else:
                    self._line_handler.feed(burst)
                    self._resume_message(stream, stream.returning, message, exchange)
            elif number in self._pending_streams:
                self._hold_frame(number, line)
            elif number > self._last:
                why = "it sent a message on a stream that was never opened"
            if why:
                break
        self._line_handler.feed(burst)
        if why:
            self._drop(why)

    def _handle_control_frame(self, number: int, raw: bytes) -> str:
        word = read_control(raw)
        stream = self._streams.get(number)
        match word:
            case OpenStream() if number > self._last:
                self._last = number
                if word.resume is not None and not word.resume.session:
                    self._claim_detached(number, word, word.resume.secret)
                else:
                    self._open_stream(number, word)
            case ExchangeClientGone() if stream is not None:
                for request in stream.exchanges.client_gone(word.exchange):
                    self._line_handler.request_abandoned(stream.id, request)
            case CloseStream() if stream is not None:
                self._forget_stream(stream)
            case OpenCallsRaised() if stream is not None:
                self._line_handler.feed([events.SessionBoundRaised(stream.id, word.max_open_calls)])
            case ClientAbsent() if stream is not None:
                self._line_handler.feed([events.AgentAbsent(stream.id, word.absent)])
            case ExchangeClientGone() | CloseStream() | OpenCallsRaised() | ClientAbsent() if (
                number <= self._last
            ):
                pass  # it was sent before our refusal arrived
            case _:
                return "it sent an impossible control message about a stream"
        return ""

    def _open_stream(self, number: int, opening: OpenStream) -> None:
        attach = msgspec.structs.replace(
            self._attach,
            cwd=opening.cwd,
            agent=opening.agent or opening.principal or ("anonymous" if opening.kind == "shared" else ""),
            workspace=opening.workspace,
            workspaces=opening.workspaces,
            profile=opening.profile,
            tool_name_length=opening.tool_name_length,
            resume=opening.resume,
            server=opening.server,
            control=opening.kind == "control",
        )
        taken = 0 if opening.resume is None else opening.resume.taken
        self._pending_streams.begin(number, opening.principal, taken)
        self._line_handler.scan_workspace(attach, partial(self._scanned, number, opening, attach))

    def _hold_frame(
        self, number: int, frame: bytes | OverlongLine, word: ControlMessage | None = None
    ) -> None:
        """Handle a frame of a stream that is not open yet. `word`: its control message, if it is one."""
        assert isinstance(frame, bytes)
        if isinstance(word, CloseStream):
            self._pending_streams.end(number)
        elif not self._pending_streams.hold(number, frame):
            self._pending_streams.end(number)
            why = "too much input came before its workspace could be read"
            self.write(control_line(number, StreamRefused(why, "unknown_workspace")))

    def _scanned(self, number: int, opening: OpenStream, attach: Attach) -> None:
        """Open a stream after the scan of its workspace."""
        held = self._pending_streams.end(number)
        if held is None:
            return  # it was closed meanwhile, or the door is gone
        self._begin_session(number, opening, attach)
        if held:
            self.lines_received(held)

    def _begin_session(self, number: int, opening: OpenStream, attach: Attach) -> None:
        resume = opening.resume
        refused = self._line_handler.attach_objection(attach)
        if refused is not None:
            self.write(control_line(number, refused))
            return
        session, epoch = self._enter(resume)
        stream = SessionStream(session, number, opening, self, epoch)
        self._send_opened(stream)
        self._streams[number] = self._all[stream.id] = stream
        self._line_handler.session_opened(stream.id, attach, {}, opening)
        if resume is not None:
            stream.returning = SessionResume(session, epoch, resume)
            self._check_resumed(stream, stream.returning)

    def _resume_message(
        self, stream: SessionStream, resume: SessionResume, message: bytes, exchange: int
    ) -> None:
        self._line_handler.resume_message(stream, message, exchange, resume)
        self._check_resumed(stream, resume)

    def _check_resumed(self, stream: SessionStream, resume: SessionResume) -> None:
        if resume.is_complete:
            stream.returning = None
            self._line_handler.session_resumed(stream.id, resume)

    def _claim_detached(self, number: int, opening: OpenStream, public: str) -> None:
        """Continue a detached session on this connection."""
        stream = self._detached.claim(public, opening)
        if stream is None:
            self.write(control_line(number, StreamRefused("there is no such session", "unknown_session")))
            return
        log.info("%s continues through another door", stream.id)
        missed_lines = stream.take_over(number, self)
        self._line_handler.feed([events.CarrierAnnounced(stream.id, self._attach.pid)])
        self._streams[number] = stream
        self._send_opened(stream, self._line_handler.version_of(stream.id))
        for line in missed_lines:
            stream.write_to_exchange(line, 0)

    def _send_opened(self, stream: SessionStream, version: str = "") -> None:
        opened = StreamOpened(
            self._incarnation.public_id(stream.id),
            stream.id,
            self._incarnation.resume_secret(stream.id),
            stream.epoch,
            version,
        )
        self.write(control_line(stream.number, opened))

    def end_stream(self, stream: SessionStream, text: str) -> bool:
        """End a session and tell the door why. False: it is not on this connection."""
        if self._streams.get(stream.number) is not stream:
            return False
        self.write(control_line(stream.number, StreamClosed(text)))
        self._forget_stream(stream)
        return True

    def line_waits(self, session: SessionId, size_bytes: int) -> None:
        """A line of this size for this session was written, and waits."""
        self._output.line_written(session, size_bytes, self._written_bytes())

    def output_taken(self, size_bytes: int) -> None:
        """The door has taken this much of all that was written to it."""
        self._output.output_taken(size_bytes)

    def _forget_stream(self, stream: SessionStream) -> None:
        self._output.forget(stream.id)
        del self._streams[stream.number]
        del self._all[stream.id]
        self._line_handler.session_closed(stream.id)

    def connection_closed(self, *, dropped: bool = False) -> None:
        """The connection is closed, and no input is being handled.

        Unless the broker `dropped` it, sessions that another door may claim become detached.
        """
        self._pending_streams = PendingStreams()
        if self._streams and not dropped:
            log.warning("the HTTP door %s is gone, with %d streams", self.id, len(self._streams))
        for stream in list(self._streams.values()):
            if stream.word.kind == "session" and stream.returning is None and not dropped:
                del self._streams[stream.number]
                stream.exchanges.close_all()
                self._detached.add(self._incarnation.public_id(stream.id), stream)
                self._line_handler.feed([events.CarrierAnnounced(stream.id, 0)])
            else:
                self._forget_stream(stream)
        self._output.connection_closed()  # the detached ones leave nothing unread


def with_exchange(stream: SessionStream, meaning: LineMeaning, exchange: int) -> LineMeaning:
    """The meaning of a message with its request tagged for an exchange.

    On a shared stream only requests have a meaning: with a notification or an answer one agent could
    interfere with another.
    """
    exchanges = stream.exchanges
    if meaning is None or isinstance(meaning, (UnservableLine, LineBatch)):
        return meaning
    if isinstance(meaning, events.ListenResumed):
        return msgspec.structs.replace(meaning, id=exchanges.tagged_id(meaning.id, exchange))
    raw = None if isinstance(meaning, events.RequestCancelled) else getattr(meaning, "id", None)
    if raw is None:
        return None if exchanges.shared else meaning
    request = exchanges.open(raw, exchange)
    if request is None:
        _, body = fault_answer(fault("duplicate_request_id"), "")
        return UnservableLine(error_body_line(raw, body))
    return meaning if request is raw else msgspec.structs.replace(meaning, id=request)
