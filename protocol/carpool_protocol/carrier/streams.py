"""Frames: the lines of a carrier that brings many streams on one connection (rule 9).

It is carpool's own protocol, not MCP. An attach line may say `"carrier": "door"` and `"streams": true`; then
each line after the broker's `attached`, both ways, is one frame:

    [S,message]      of stream S, belonging to no exchange
    [S,message,X]    of stream S, belonging to exchange X
    [S,null,word]    about stream S; `word` is one `ControlMessage` under its own key

S and X are positive integers that the door chooses: S grows with every stream of the connection, X is unique
on its stream. A stream is a session of the broker; an exchange is one POST.

A session outlives its broker and its door (docs/decisions/0019). At a later broker the same door opens its
streams again. It repeats for each the content of its `StreamOpened`, then the messages to replay, then those
without an answer. At the same broker a later door has only the `Mcp-Session-Id` that the client sends.

    door → broker    {"open": Open}          answered by `opened` or `refused`; messages may follow at once
                     {"gone": X}             the client of exchange X went away
                     {"close": {}}           the session is over; no message of it follows
                     {"calls": N}            the stream may have N calls open, if it could have fewer before
                     {"absent": BOOL}        the client has no open connection (for a while), or has one again
    broker → door    {"opened": Opened}      before everything else of the stream
                     {"refused": Refused}    there is no such stream; messages sent on it are dropped
                     {"over": X}             exchange X gets no (further) answer: its client cancelled it
                     {"closed": Closed}      the broker has ended the stream
                     {"served": EPOCH}       the supervisor epoch that serves the stream from now on
                     {"moved": Moved}        the session's new workspace, for `OpenStream.resume`
                     {"stateful": [SERVER]}  servers at which the session may have state, for the same

Messages of an exchange come before its answer; a POST with several requests gets several answers. A message
is passed on as bytes and is not parsed here: garbage of one client does not break the frame. It has no line
feed (`on_one_line`) and towards the broker at most `MESSAGE_CAP_BYTES`. Frames are cut at their ends, so they
are written without blanks, and a message that may be neither object nor array needs an exchange.

Refuses to know sockets, HTTP and the meaning of messages.
"""

from typing import Final, Literal

import msgspec
from msgspec import Struct

from carpool_protocol.carrier.attach_line import ResumeSession, WorkspaceChanged

MESSAGE_CAP_BYTES: Final = 8 * 1024 * 1024 - 1024
"""The longest message that the broker takes in a frame. The door refuses a longer one."""

ANNOTATED_TOOLS: Final = "carpool/annotated-tools"
"""The cursor with which the door begins a `tools/list` of only those tools that tell arguments in headers
(`x-mcp-header`): it needs no others, and a list may have tens of thousands.
"""

CONTROL: Final = -1
"""Stands in place of an exchange number: the message of this frame is a control message."""

Kind = Literal["session", "shared", "control"]
RefusalReason = Literal["unknown_server", "unknown_profile", "unknown_workspace", "unknown_session"]


class OpenStream(Struct, frozen=True, kw_only=True):
    """The door opens a stream, which is a session of the broker."""

    kind: Kind = "session"
    """`session`: one agent of the handshake era; its request ids are unique. `shared`: requests of the
    stateless era, of all agents of one principal. `control`: it may use the `carpool/…` methods.
    """
    principal: str = ""
    """The name of the bearer token's owner; empty: an anonymous client."""
    server: str = ""
    """Offer only this server, under its own tool names; empty: all servers."""
    profile: str = ""
    agent: str = ""
    """A name for people, if one is known before `initialize`."""
    workspace: str = ""
    """The name of a workspace of the user's file. Never a directory: an HTTP client may not choose a
    directory to read.
    """
    workspaces: list[str] = []
    """The only workspaces that the session may be in, by name; empty: any."""
    cwd: str = ""
    max_open_calls: int = 0
    """0: the bound of any session."""
    tool_name_length: int = 0
    """As in `attach_line.Attach`."""
    resume: ResumeSession | None = None
    """The session to continue, of a broker or of a door that died.

    Of a broker: `kept` and `open` count messages on this stream. Of a door: `session` is empty, and the
    secret is the earlier `StreamOpened.session`.
    """


class StreamOpened(Struct, frozen=True):
    """The broker has opened the stream."""

    session: str
    """The value of `Mcp-Session-Id`: 128 random bits as visible ASCII. It gives access to the session.

    It is the same at every broker of one launcher.
    """
    name: str = ""
    """The session's name for people (`s12`), not secret."""
    secret: str = ""
    """The secret that resumes the session at a later broker. Never shown to the client."""
    supervisor: str = ""
    """The supervisor's epoch; empty if there is none, or if the broker knows nothing of open requests."""
    version: str = ""
    """The negotiated protocol version; only for a session of an earlier door."""


class StreamRefused(Struct, frozen=True):
    """The broker does not open the stream."""

    text: str
    why: RefusalReason


class ExchangeClientGone(Struct, frozen=True):
    """The client of an exchange went away."""

    exchange: int


class OpenCallsRaised(Struct, frozen=True):
    """The stream may have more calls open from now on than `OpenStream.max_open_calls` said."""

    max_open_calls: int


class ClientAbsent(Struct, frozen=True):
    """The client of a stream has had no open connection for a while; or it is there again."""

    absent: bool


class CloseStream(Struct, frozen=True):
    """The door ends the stream."""


class ExchangeEnded(Struct, frozen=True):
    """An exchange is over without an answer."""

    exchange: int


class StreamClosed(Struct, frozen=True):
    """The broker has ended the stream."""

    text: str = ""


class SupervisorAssigned(Struct, frozen=True):
    """Calls of the stream go to this supervisor epoch from now on. All earlier calls are answered."""

    epoch: str


class ServersStateful(Struct, frozen=True):
    """Servers at which the session may have state. The door may be the last process that remembers them."""

    servers: list[str]


ControlMessage = (
    OpenStream
    | StreamOpened
    | StreamRefused
    | ExchangeClientGone
    | OpenCallsRaised
    | ClientAbsent
    | CloseStream
    | ExchangeEnded
    | StreamClosed
    | SupervisorAssigned
    | WorkspaceChanged
    | ServersStateful
)


class _ControlFrame(Struct, frozen=True, omit_defaults=True):
    """The JSON form of a control message: exactly one of these fields is set."""

    open: OpenStream | None = None
    opened: StreamOpened | None = None
    refused: StreamRefused | None = None
    gone: int | None = None
    close: CloseStream | None = None
    calls: int | None = None
    absent: bool | None = None
    over: int | None = None
    closed: StreamClosed | None = None
    served: str | None = None
    moved: WorkspaceChanged | None = None
    stateful: list[str] | None = None


_read = msgspec.json.Decoder(_ControlFrame).decode
_write = msgspec.json.Encoder().encode

_NULL: Final = b"null,{"
_OPEN_ARRAY, _CLOSE_ARRAY = b"[]"
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
_DIGITS = frozenset(b"0123456789")
_ZERO = b"0"[0]
_MAX_DIGITS: Final = 18
_SMALL_BYTES: Final = 16 * 1024


def frame_line(stream: int, message: bytes, exchange: int = 0) -> bytes:
    """A frame, with its line end. `message`: with or without a line end; `exchange` 0: it belongs to none."""
    bare: bytes | memoryview = message
    if message.endswith(b"\n"):  # a view costs more than a copy, unless the copy has perhaps 64 MiB
        bare = message[:-1] if len(message) < _SMALL_BYTES else memoryview(message)[:-1]
    return b"".join((b"[%d," % stream, bare, b",%d]\n" % exchange if exchange else b"]\n"))


def frame_ends(stream: int, exchange: int = 0) -> tuple[bytes, bytes]:
    """Return the bytes before and after the message in a frame, for messages that are too large to copy."""
    return b"[%d," % stream, b",%d]\n" % exchange if exchange else b"]\n"


def control_line(stream: int, message: ControlMessage) -> bytes:
    """A frame with a control message, with its line end."""
    return b"[%d,null,%b]\n" % (stream, _write(_control_frame(message)))


def on_one_line(body: bytes) -> bytes:
    """Replace line ends by blanks, so that a JSON message fits into a frame. In JSON a line end is white
    space.
    """
    return body.translate(_ONE_LINE).strip() if b"\n" in body or b"\r" in body else body


def split_frame(line: bytes) -> tuple[int, bytes, int] | None:
    """Stream, message and exchange (0: none) of a line without its line end. None: it is no frame. Never
    raises.

    For a control message the exchange is `CONTROL` and the message its JSON.
    """
    first = line.find(b",", 0, _MAX_DIGITS + 2)
    if first < 0 or line[0] != _OPEN_ARRAY or line[-1] != _CLOSE_ARRAY:
        return None
    # Numbers are parsed here without a call: each message passes twice.
    digits = line[1:first]
    if not digits.isdigit() or digits[0] == _ZERO:
        return None
    if line.startswith(_NULL, first + 1):
        return int(digits), line[first + 6 : -1], CONTROL
    if line[-2] in _DIGITS:
        last = line.rfind(b",", first + 1)
        exchange = line[last + 1 : -1]
        if last <= first + 1 or not exchange.isdigit() or exchange[0] == _ZERO or len(exchange) > _MAX_DIGITS:
            return None
        return int(digits), line[first + 1 : last], int(exchange)
    return (int(digits), line[first + 1 : -1], 0) if len(line) > first + 2 else None


def read_control(raw: bytes) -> ControlMessage | None:
    """The control message in the JSON that `split_frame` cut out. None: it is not known. Never raises."""
    try:
        frame = _read(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    messages: list[ControlMessage] = [
        each
        for each in (frame.open, frame.opened, frame.refused, frame.close, frame.closed, frame.moved)
        if each is not None
    ]
    messages += [] if frame.gone is None else [ExchangeClientGone(frame.gone)]
    messages += [] if frame.calls is None else [OpenCallsRaised(frame.calls)]
    messages += [] if frame.absent is None else [ClientAbsent(frame.absent)]
    messages += [] if frame.over is None else [ExchangeEnded(frame.over)]
    messages += [] if frame.served is None else [SupervisorAssigned(frame.served)]
    messages += [] if frame.stateful is None else [ServersStateful(frame.stateful)]
    return messages[0] if len(messages) == 1 else None


def _control_frame(message: ControlMessage) -> _ControlFrame:  # noqa: C901 - an arm per message
    match message:
        case OpenStream():
            return _ControlFrame(open=message)
        case StreamOpened():
            return _ControlFrame(opened=message)
        case StreamRefused():
            return _ControlFrame(refused=message)
        case ExchangeClientGone():
            return _ControlFrame(gone=message.exchange)
        case CloseStream():
            return _ControlFrame(close=message)
        case OpenCallsRaised():
            return _ControlFrame(calls=message.max_open_calls)
        case ExchangeEnded():
            return _ControlFrame(over=message.exchange)
        case ClientAbsent():
            return _ControlFrame(absent=message.absent)
        case StreamClosed():
            return _ControlFrame(closed=message)
        case SupervisorAssigned():
            return _ControlFrame(served=message.epoch)
        case WorkspaceChanged():
            return _ControlFrame(moved=message)
        case ServersStateful():
            return _ControlFrame(stateful=message.servers)
