"""What goes into the door's core and what comes out: a request, the rules, and the effects.

Every HTTP request has a number `x`, which is also its exchange with the broker (rule 9). Effects are carried
out in order; one for an `x` whose client has gone means nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from carpool.http.core.body import BadBody, error_line
from carpool.readings.call_steps import Crossing

JSON: Final = "application/json"
SSE: Final = "text/event-stream"


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


class BeginEvents(Struct, frozen=True):
    """Begin a stream of events as the answer."""

    x: int
    headers: tuple[tuple[str, str], ...] = ()
    is_watched: bool = False
    """The core is to be told when the client leaves events unread, and when it has room again."""


class WriteEvents(Struct, frozen=True, gc=False):
    """Write formatted events to a stream that has begun."""

    x: int
    data: bytes


class EndEvents(Struct, frozen=True):
    """End a stream of events."""

    x: int


class SendToBroker(Struct, frozen=True, gc=False):
    """Send a line to the broker."""

    line: bytes


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


ClientEffect = Respond | BeginEvents | WriteEvents | EndEvents | HoldRequest | ReadLog | AskNodes
Effect = ClientEffect | SendToBroker | RequestsHeld


def refusal(x: int, status: int, code: int, text: str, ident: bytes = b"null", **headers: str) -> Respond:
    """Return an error that HTTP and JSON-RPC clients can both read. `headers`: names with `_` for `-`."""
    more = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Respond(x, status, error_line(ident, code, text), more)


def body_refusal(x: int, bad: BadBody) -> Respond:
    """Return the answer to a POST whose body is not read."""
    return refusal(x, bad.status, bad.code, bad.text, bad.id)


def event_bytes(data: bytes, ident: bytes = b"", name: bytes = b"message") -> bytes:
    """Return one server-sent event. `data` is one line."""
    told = b"id: %b\n" % ident if ident else b""
    return b"event: %b\n%bdata: %b\n\n" % (name, told, data)
