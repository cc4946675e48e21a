"""What goes into the door's core and what comes out: a request, the rules, and the effects.

Every HTTP request has a number `x`, which is also its exchange with the broker (rule 9). Effects are carried
out in order; one for an `x` whose client has gone means nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from carpool.http.core.body import BadBody, error_line
from carpool.readings.call_steps import Crossing
from carpool_protocol.carrier.streams import MESSAGE_CAP_BYTES
from carpool_protocol.faults.fault_answers import fault, fault_answer
from carpool_protocol.ids import RawJson
from carpool_protocol.wire.jsonrpc import error_body_line

JSON: Final = "application/json"
SSE: Final = "text/event-stream"
_TOO_LARGE: Final = 413


class HttpRules(Struct, frozen=True, kw_only=True):
    """The configuration of this door; see `docs/settings.md`, `http.…`."""

    path: str = "/mcp"
    stateless: bool = False
    json_response: bool = False
    max_sessions: int = 10_000
    max_open: int = 1024
    """The greatest number of open requests of one principal."""
    session_idle_s: float = 3600.0


class HttpRequest(Struct, frozen=True, gc=False):
    """One complete HTTP request."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    """Names in lower case; headers that came twice are joined with commas."""
    body: bytes


class Respond(Struct, frozen=True, gc=False):
    """Send the whole answer."""

    x: int
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    media: str = JSON


RefusedWhy = Literal[
    "host", "origin", "own_bridge", "proxied", "no_token", "wrong_token", "wrong_code", "other_user"
]
"""Why a client may not come in, as `/metrics` says it."""


class Refuse(Struct, frozen=True):
    """Refuse a client that may not come in. The shell, which knows its address, decides when it answers."""

    x: int
    why: RefusedWhy
    answer: Respond | None
    """None: only this is to be noted, and its answer follows."""


class BeginEvents(Struct, frozen=True):
    """Begin a stream of events as the answer."""

    x: int
    headers: tuple[tuple[str, str], ...] = ()
    is_watched: bool = False
    """The core is to be told when the client leaves events unread, and when it has room again."""
    keeps_little: bool = True
    """For a watched stream: the buffers of the socket stay small, so that the core soon hears of a client
    that does not read.
    """


class WriteEvents(Struct, frozen=True, gc=False):
    """Write formatted events to a stream that has begun."""

    x: int
    data: bytes


class ContinueEvents(Struct, frozen=True):
    """Call `HttpCore.continue_events` once others have had their turn."""

    x: int


class ContinueAnswers(Struct, frozen=True):
    """Call `HttpCore.continue_answers` once others have had their turn."""


class EndEvents(Struct, frozen=True):
    """End a stream of events."""

    x: int


class SendToBroker(Struct, frozen=True, gc=False):
    """Send a line to the broker."""

    line: bytes
    principal: str
    """The principal of the session that sends the line. Where many lines wait, principals take turns."""


class HoldRequest(Struct, frozen=True, gc=False):
    """Keep the HTTP request for the next door: no server has it."""

    x: int
    body: bytes


class RequestsHeld(Struct, frozen=True):
    """Every request that was sent before the hold has reached the broker."""


class ReadLog(Struct, frozen=True):
    """Read the last records of a log, and give them to `HttpCore.log_read` (or `log_read_failed`)."""

    x: int
    log: str
    """The name of the log, as a client wrote it. Empty: only the names of the logs are wanted."""
    count: int


class LogsFound(Struct, frozen=True):
    """The names of the logs that are there, and the records of the one that was wanted."""

    names: list[str]
    records: Sequence[Mapping[str, Any]] | None
    """None: there is no such log."""


class AskNodes(Struct, frozen=True):
    """Ask other nodes what happened to a call there, and give what they tell to `HttpCore.nodes_told`."""

    x: int
    call: int
    story: dict[str, Any]
    """The broker's answer, with the journals of this node."""
    crossings: list[Crossing]


ClientEffect = (
    Respond
    | Refuse
    | BeginEvents
    | WriteEvents
    | ContinueEvents
    | EndEvents
    | HoldRequest
    | ReadLog
    | AskNodes
)
Effect = ClientEffect | SendToBroker | RequestsHeld | ContinueAnswers


def refusal(x: int, status: int, code: int, text: str, ident: bytes = b"null", **headers: str) -> Respond:
    """Return an error that HTTP and JSON-RPC clients can both read. `headers`: names with `_` for `-`."""
    more = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Respond(x, status, error_line(ident, code, text), more)


def too_large(x: int, limit_bytes: int) -> Respond:
    """Return the answer to a POST whose body is longer than the door takes."""
    detail = f"A body has at most {limit_bytes} bytes (http.max_body_bytes)."
    body = fault_answer(fault("too_large", detail=detail), "")[1]
    return Respond(x, _TOO_LARGE, error_body_line(RawJson(b"null"), body).strip())


def body_refusal(x: int, bad: BadBody) -> Respond:
    """Return the answer to a POST whose body is not read."""
    if bad.status == _TOO_LARGE:
        return too_large(x, MESSAGE_CAP_BYTES)
    return refusal(x, bad.status, bad.code, bad.text, bad.id)


def event_bytes(data: bytes, ident: bytes = b"", name: bytes = b"message") -> bytes:
    """Return one server-sent event. `data` is one line."""
    told = b"id: %b\n" % ident if ident else b""
    return b"event: %b\n%bdata: %b\n\n" % (name, told, data)
