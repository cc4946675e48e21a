"""The handshake era (2024-11-05 … 2025-11-25) towards one instance.

Owns the greeting (`initialize`, version negotiation, `initialized`, the lists with all their pages:
`reading`), the wording of calls, cancels and pings, and what a server may say when. Declares no
capability, so a server that asks anyway is refused at once and never left waiting; its pings are
answered here. Source: MCP 2025-11-25, basic/lifecycle, basic/utilities, server/tools.

Knows nothing of: agents, deadlines, processes, which call is whose.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from carpool_protocol.answers import repair_error, repair_tool_result
from carpool_protocol.content import text_of
from carpool_protocol.faults import TOOLS_CALL
from carpool_protocol.features import features_of
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, InstanceId, PoolKey, RawJson, WireId
from carpool_protocol.jsonrpc import (
    ErrorAnswer,
    Garbage,
    Notification,
    Request,
    Result,
    decode,
    error_line,
    notification_line,
    quote,
    request_line,
    result_line,
)
from carpool_protocol.lines import OverlongLine
from carpool_protocol.messages import Call, Catalog, Feature
from carpool_protocol.params import ParamsError, call_params, meta_params, split_progress
from carpool_protocol.subjects import with_subject
from carpool_supervisor.core.events import (
    AnswerUnreadable,
    CatalogRead,
    GreetingFailed,
    InstanceGreeted,
    OwnEvent,
    ProbeAnswered,
    ResourceUpdated,
    ServerAnswered,
    ServerLogged,
    ServerMisspoke,
    ServerProgressed,
)
from carpool_supervisor.era.greeting import (
    VERSIONS,
    Initialized,
    common_version,
    read_error,
    read_initialized,
)
from carpool_supervisor.era.reading import CHANGED, METHODS, Page, Reading

MAX_WIRE_DIGITS: Final = 18
"""A number with more is no wire id of ours; Python refuses to read one of more than 4,300."""
_SETTINGS: Final = (b'"carpool-level-', b'"carpool-watch-')
MAX_DROPPED: Final = 1024
METHOD_NOT_FOUND: Final = -32601


class Handshake:
    """One instance's conversation. See `adapter.Adapter`."""

    def __init__(self, instance: InstanceId, key: PoolKey, release: str) -> None:
        self._instance = instance
        self._key = key
        self._release = release
        self._fit = False
        self._own = 0
        """Counts our own requests; their ids are strings."""
        self._initialize = ABSENT
        self._listing = ABSENT
        """The id of the list request that is out."""
        self._reading = Reading()
        self._greeted: Initialized | None = None
        self._features: list[Feature] = []
        self._version = VERSIONS[0]
        self._others: set[WireId] = set()
        """Open calls of methods other than `tools/call`: their results have other forms."""
        self._dropped: dict[WireId, None] = {}
        """The latest of these that were cancelled: they may be answered all the same."""
        self._events: list[OwnEvent] = []
        self._lines: list[bytes] = []

    # --- out -------------------------------------------------------------------------------------------

    def greet(self) -> bytes:
        """`initialize`, with no capabilities."""
        return self._initialize_as(VERSIONS[0])

    def call(self, wire: WireId, call: Call) -> bytes:
        """The call under its wire id, which is also its progress token."""
        token = RawJson(b"%d" % wire) if call.wants_progress else ABSENT
        if call.method == TOOLS_CALL:
            return request_line(wire, TOOLS_CALL, call_params(call.target, call.params, call.meta, token))
        self._others.add(wire)
        params = with_subject(call.method, call.target, call.params)
        return request_line(wire, call.method, meta_params(params, call.meta, token))

    def cancel(self, wire: WireId, reason: str) -> bytes:
        """`notifications/cancelled`."""
        if wire in self._others:
            self._others.remove(wire)
            self._dropped[wire] = None
            if len(self._dropped) > MAX_DROPPED:
                del self._dropped[next(iter(self._dropped))]
        params = RawJson(b'{"requestId":%d,"reason":%s}' % (wire, quote(reason)))
        return notification_line("notifications/cancelled", params)

    def level(self, level: str) -> bytes:
        """`logging/setLevel`."""
        return request_line(
            self._next_id("level"), "logging/setLevel", RawJson(b'{"level":%s}' % quote(level))
        )

    def watch(self, uri: str, *, on: bool) -> bytes:
        """`resources/subscribe` or `resources/unsubscribe`."""
        method = "resources/subscribe" if on else "resources/unsubscribe"
        return request_line(self._next_id("watch"), method, RawJson(b'{"uri":%s}' % quote(uri)))

    def probe(self) -> bytes:
        """`ping`. Any answer, an error too, is a sign of life."""
        return request_line(self._next_id("ping"), "ping", ABSENT)

    # --- in --------------------------------------------------------------------------------------------

    def take(self, lines: Sequence[bytes | OverlongLine]) -> tuple[list[OwnEvent], list[bytes]]:
        """What these lines mean, and the lines to send back at once."""
        events: list[OwnEvent] = []
        out: list[bytes] = []
        self._events, self._lines = events, out
        for line in lines:
            if not isinstance(line, bytes):
                self._overlong(line)
                continue
            message = decode(line)
            if type(message) is Result:
                if message.id.isdigit() and len(message.id) <= MAX_WIRE_DIGITS:
                    self._answered(WireId(int(message.id)), message.result)
                else:
                    self._own_answered(message.id, message)
            else:
                self._other(message)
        return events, out

    def _answered(self, wire: WireId, result: RawJson) -> None:
        if self._others and wire in self._others:
            self._others.remove(wire)
        elif self._dropped and wire in self._dropped:
            del self._dropped[wire]
        else:
            result, note = repair_tool_result(result)
            if not result:
                text = f"{note[:1].upper()}{note[1:]}." if note else ""
                self._events.append(AnswerUnreadable(self._instance, wire, "bad_answer", text))
                return
            if note is not None:
                self._events.append(ServerMisspoke(self._instance, f"answered against the protocol: {note}"))
        self._events.append(ServerAnswered(self._instance, wire, is_error=False, body=result))

    def _erred(self, wire: WireId, error: RawJson) -> None:
        error, note = repair_error(error)
        if note is not None:
            self._events.append(ServerMisspoke(self._instance, f"answered against the protocol: {note}"))
        self._events.append(ServerAnswered(self._instance, wire, is_error=True, body=error))

    def _other(self, message: Result | ErrorAnswer | Request | Notification | Garbage) -> None:
        match message:
            case ErrorAnswer():
                if message.id.isdigit() and len(message.id) <= MAX_WIRE_DIGITS:
                    wire = WireId(int(message.id))
                    self._others.discard(wire)
                    self._erred(wire, message.error)
                else:
                    self._own_answered(message.id, message)
            case Request():
                self._asked(message)
            case Notification():
                self._notified(message)
            case Garbage():
                self._misspoke(message)
            case Result():  # pragma: no cover - taken in `take`
                self._own_answered(message.id, message)

    def _asked(self, request: Request) -> None:
        if request.method == "ping":
            self._lines.append(result_line(request.id, EMPTY_OBJECT))
            return
        text = f"{request.method}: carpool has declared no such capability"
        self._lines.append(error_line(request.id, METHOD_NOT_FOUND, text))

    def _notified(self, message: Notification) -> None:
        if message.method == "notifications/progress":
            parts = split_progress(message.params)
            if not isinstance(parts, ParamsError):
                token, rest = parts
                if token.isdigit() and len(token) <= MAX_WIRE_DIGITS:
                    self._events.append(ServerProgressed(self._instance, WireId(int(token)), rest))
        elif message.method in CHANGED and self._greeted is not None:
            self._ask(self._reading.changed(CHANGED[message.method]))
        elif message.method == "notifications/message":
            level = text_of(message.params or EMPTY_OBJECT, "level") or ""
            self._events.append(ServerLogged(self._instance, level, message.params))
        elif message.method == "notifications/resources/updated":
            uri = text_of(message.params or EMPTY_OBJECT, "uri")
            if uri is not None:
                self._events.append(ResourceUpdated(self._instance, uri, message.params))

    def _misspoke(self, garbage: Garbage) -> None:
        wire = _wire(garbage.id) if garbage.kind != "request" else None
        if wire is not None:
            self._others.discard(wire)
            text = f"The answer cannot be read: {garbage.text}"
            self._events.append(AnswerUnreadable(self._instance, wire, "bad_answer", text))
        elif garbage.kind == "request" and garbage.id:
            self._lines.append(error_line(garbage.id, -32600, garbage.text))
        elif garbage.id is not None and garbage.id == self._initialize:
            self._events.append(
                GreetingFailed(self._instance, f"answered initialize with no message: {garbage.text}")
            )
        else:
            self._events.append(
                ServerMisspoke(self._instance, f"wrote a line that is no message: {garbage.text}")
            )

    def _overlong(self, line: OverlongLine) -> None:
        wire = _wire(line.id) if line.is_answer is not False else None
        text = f"a line of {line.size_bytes} bytes is longer than carpool reads"
        if wire is not None:
            self._others.discard(wire)
            self._events.append(AnswerUnreadable(self._instance, wire, "answer_too_large", f"It was {text}."))
        else:
            self._events.append(ServerMisspoke(self._instance, f"wrote {text}"))

    # --- our own requests ------------------------------------------------------------------------------

    def _next_id(self, what: str) -> RawJson:
        self._own += 1
        return RawJson(b'"carpool-%s-%d"' % (what.encode(), self._own))

    def _initialize_as(self, version: str) -> bytes:
        self._version = version
        self._initialize = self._next_id("initialize")
        info = msgspec.json.encode({"name": "carpool", "version": self._release})
        params = b'{"protocolVersion":"%s","capabilities":{},"clientInfo":%s}' % (version.encode(), info)
        return request_line(self._initialize, "initialize", RawJson(params))

    def _own_answered(self, answer_id: RawJson, message: Result | ErrorAnswer) -> None:
        wire = _wire(answer_id)
        if wire is not None:  # a server that answers "17" to 17
            if isinstance(message, Result):
                self._answered(wire, message.result)
            else:
                self._erred(wire, message.error)
        elif answer_id.startswith(b'"carpool-ping-'):
            self._events.append(ProbeAnswered(self._instance))
        elif answer_id.startswith(_SETTINGS):
            if isinstance(message, ErrorAnswer):
                text = f"refused a log level or a subscription: {read_error(message.error).message[:200]}"
                self._events.append(ServerMisspoke(self._instance, text))
        elif answer_id == self._initialize:
            self._initialize = ABSENT
            self._greeting_answered(message)
        elif answer_id == self._listing:
            self._listing = ABSENT
            self._page_answered(message)
        else:
            self._events.append(ServerMisspoke(self._instance, "answered a request that carpool never made"))

    def _greeting_answered(self, message: Result | ErrorAnswer) -> None:
        if isinstance(message, ErrorAnswer):
            error = read_error(message.error)
            version = common_version(error, self._version)
            if version is not None:
                self._lines.append(self._initialize_as(version))
                return
            self._events.append(
                GreetingFailed(self._instance, f"refused initialize: {error.message[:200]} ({error.code})")
            )
            return
        greeted = read_initialized(message.result)
        if greeted is None or greeted.protocolVersion not in VERSIONS:
            said = (
                "no protocol version"
                if greeted is None
                else f"protocol version {greeted.protocolVersion[:40]!a}"
            )
            self._events.append(
                GreetingFailed(
                    self._instance, f"answered initialize with {said}; carpool speaks {', '.join(VERSIONS)}"
                )
            )
            return
        self._greeted = greeted
        self._lines.append(notification_line("notifications/initialized", ABSENT))
        self._features = features_of(RawJson(msgspec.json.encode(greeted.capabilities)))
        self._reading.announce(self._features)
        page = self._reading.next()
        if page is None:
            self._told()
        else:
            self._ask(page)

    def _ask(self, page: Page | None) -> None:
        """Write the request for this page."""
        if page is not None:
            self._listing = self._next_id(page.family)
            params = ABSENT if page.cursor is None else RawJson(b'{"cursor":%s}' % quote(page.cursor))
            self._lines.append(request_line(self._listing, METHODS[page.family], params))

    def _page_answered(self, message: Result | ErrorAnswer) -> None:
        family = self._reading.family
        if isinstance(message, ErrorAnswer):
            error = read_error(message.error)
            wrong = f"refused {family}/list: {error.message[:200]} ({error.code})"
            page = self._reading.refused()
            if error.code == METHOD_NOT_FOUND and family == "templates":
                wrong = ""  # servers with resources and no templates do that
        else:
            page, wrong = self._reading.take(message.result)
        if wrong:
            self._events.append(ServerMisspoke(self._instance, wrong))
            if family == "tools" and not self._fit and "do not end" not in wrong:
                self._events.append(GreetingFailed(self._instance, wrong))
                return
        if page is None:
            self._told()
        else:
            self._ask(page)

    def _told(self) -> None:
        greeted = self._greeted
        assert greeted is not None
        catalog = Catalog(
            key=self._key,
            tools=self._reading.named("tools"),
            instructions=greeted.instructions or "",
            server_info=RawJson(bytes(greeted.serverInfo)),
            capabilities=RawJson(msgspec.json.encode(greeted.capabilities)),
            protocol_version=greeted.protocolVersion,
            prompts=self._reading.named("prompts"),
            resources=self._reading.located("resources"),
            templates=self._reading.located("templates"),
            features=self._features,
        )
        if self._fit:
            self._events.append(CatalogRead(self._instance, catalog))
        else:
            self._fit = True
            self._events.append(InstanceGreeted(self._instance, catalog))
        self._ask(self._reading.late())


def _wire(answer_id: RawJson | None) -> WireId | None:
    """The wire id an answer's id means; `"17"` counts as 17, as in the Python SDK."""
    digits = answer_id.strip(b'"') if answer_id else b""
    return WireId(int(digits)) if digits.isdigit() and len(digits) <= MAX_WIRE_DIGITS else None
