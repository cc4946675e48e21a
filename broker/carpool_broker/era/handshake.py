"""The handshake era (2024-11-05 … 2025-11-25) towards agents.

Owns the event for a line of an agent and the line for an effect. Also decides the era of each line: agents of
both eras may send both (`stateless_decode` reads requests of the other one). Keeps no state: the core decides
what a session may do. `server_requests` has the asks. Source: MCP 2025-11-25, basic/lifecycle,
basic/utilities, server/tools.

Knows nothing of: sessions' state, views, sockets.
"""

from typing import Final

import msgspec
from msgspec import Raw, Struct

from carpool_broker.core.model.effects import (
    AnswerInitialize,
    Reply,
    SendLog,
    SendProgress,
    SendResourceUpdated,
)
from carpool_broker.core.model.events import (
    BadLineReceived,
    BrokerEvent,
    CallRequested,
    InitializedReceived,
    InitializeRequested,
    ListPageRequested,
    LocalEvent,
    LogLevelRequested,
    PingRequested,
    RequestCancelled,
    RootsListChanged,
    SubscribeRequested,
)
from carpool_broker.core.model.pagination import Family
from carpool_broker.era import builtin_tools, server_requests, stateless_decode
from carpool_broker.era.envelope import VERSION_MARK, RefusedEnvelope, read_envelope, refused_request
from carpool_protocol.faults.fault_answers import TOOLS_CALL
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, RawJson, SessionId
from carpool_protocol.machine.journal_shapes import kept_bytes
from carpool_protocol.wire.capabilities import capabilities_of
from carpool_protocol.wire.content import change_members, elements, reader_of_few, text_of
from carpool_protocol.wire.jsonrpc import (
    InvalidLine,
    Notification,
    Request,
    decode,
    error_body_line,
    error_line,
    notification_line,
    quote,
    result_line,
)
from carpool_protocol.wire.lines import OverlongLine
from carpool_protocol.wire.params import (
    CallParams,
    ParamsError,
    list_params,
    progress_line,
    split_call,
    split_call_line,
    split_cancelled,
)
from carpool_protocol.wire.request_targets import TARGET_KEYS, split_target
from carpool_protocol.wire.traceparent import traceparent_in

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
LISTS: Final[dict[str, Family]] = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "templates",
}
LIST_CHANGED: Final = {
    family: notification_line(f"notifications/{family}/list_changed", ABSENT)
    for family in ("tools", "prompts", "resources")
}
BATCH_VERSION: Final = "2025-03-26"
"""The only version with JSON-RPC batches. They must be accepted; their requests are answered one by one."""
MAX_BATCH: Final = 1000
CONTROL_PREFIX: Final = "carpool/"
"""Methods of the command line, not of MCP."""


class ControlRequested(Struct, frozen=True):
    """A `carpool/…` request. Only control sessions may send it; the shell answers it."""

    id: RawJson
    method: str
    params: RawJson


MAX_KEPT_BYTES: Final = 128 * 1024
"""Most memory that the texts of one event take besides its payloads (`bound_size`)."""
LONG_LINE_BYTES: Final = MAX_KEPT_BYTES // 4
"""The texts of a shorter line take less: a character takes 4 bytes at most."""


class UnservableLine(Struct, frozen=True):
    """A line that gets `line` back in any state of the session."""

    line: bytes
    about: RawJson = ABSENT
    """The id of the request that `line` answers, if it could be read."""


class LineBatch(Struct, frozen=True):
    """Several messages in one line. In a session of `BATCH_VERSION` each is read as a line of its own."""

    lines: list[bytes]
    refusal: bytes
    """The answer in any other session."""


class _Info(Struct, frozen=True):
    name: str = ""


class _Initialize(Struct):
    protocolVersion: str = ""  # noqa: N815 - the wire's name
    clientInfo: _Info = _Info()  # noqa: N815 - the wire's name
    capabilities: Raw = Raw()


_initialize = msgspec.json.Decoder(_Initialize)
_read_batch = reader_of_few(MAX_BATCH)

LineMeaning = LocalEvent | ControlRequested | UnservableLine | LineBatch | None
"""None: the line has no effect."""


def read_line(session: SessionId, line: bytes, *, shared: bool = False, key: bytes = b"") -> LineMeaning:
    """The meaning of an agent's line.

    On a `shared` session every request is of the stateless era, and only requests have a meaning, because its
    agents do not know of each other. `key`: see `stateless_decode.read_request`.
    """
    called = split_call_line(line)
    if called is not None and type(called[1]) is CallParams:
        return _call_requested(session, called[0], called[1], shared, key)
    message = decode(line)
    if isinstance(message, Request):
        other = stateless_decode.read_request(session, message, is_required=shared, key=key)
        if other is not None:
            return _unservable(message.id, other) if isinstance(other, RefusedEnvelope) else other
        if message.method == TOOLS_CALL:
            call = split_call(message.params)
            if isinstance(call, ParamsError):
                return BadLineReceived(session, message.id, "bad_params", call.sentence)
            return _call_requested(session, message.id, call, shared, key)
        return _read_request(session, message, key)
    if isinstance(message, InvalidLine):
        if message.why == "batch":
            refused = error_line(RawJson(b"null"), INVALID_REQUEST, message.text)
            lines = None if shared else elements(line.strip(), _read_batch)
            return UnservableLine(refused) if lines is None else LineBatch(lines, refused)
        return None if shared and message.kind == "answer" else _read_garbage(session, message)
    if shared:
        return None
    if isinstance(message, Notification):
        return _read_notification(session, message)
    return server_requests.ask_answered(session, message)


def _read_notification(session: SessionId, message: Notification) -> LineMeaning:
    match message.method:
        case "notifications/cancelled":
            request, reason = split_cancelled(message.params)
            return None if request is None else RequestCancelled(session, request, reason)
        case "notifications/progress":
            return server_requests.ask_progressed(session, message.params)
        case "notifications/initialized":
            return InitializedReceived(session)
        case "notifications/roots/list_changed":
            return RootsListChanged(session)
        case _:
            return None


def _call_requested(
    session: SessionId, request: RawJson, call: CallParams, shared: bool, key: bytes
) -> LineMeaning:
    meta = call.meta
    trace = ""
    if shared or (meta and len(meta) > len(VERSION_MARK)):
        if shared or meta.find(VERSION_MARK) >= 0:
            envelope = read_envelope(meta, is_required=shared)
            if envelope is not None:
                event = stateless_decode.call_requested(session, request, call, envelope, key)
                return _unservable(request, event) if isinstance(event, RefusedEnvelope) else event
        trace = traceparent_in(meta)
    name, rest = call.name, call.rest
    digest = stateless_decode.request_digest(TOOLS_CALL, name, rest, key)
    if name in builtin_tools.NAMES:
        about = builtin_tools.read_builtin_call(name, rest)
        return CallRequested(
            session, request, name, rest, meta, call.token, TOOLS_CALL, trace, digest=digest, own=about
        )
    return CallRequested(session, request, name, rest, meta, call.token, TOOLS_CALL, trace, digest=digest)


def bound_size(meaning: LineMeaning) -> LineMeaning:
    """The meaning, or a refusal if its names and ids are so long that many of them could fill the memory.

    Call it only for lines that are long enough for that (`LONG_LINE_BYTES`).
    """
    if isinstance(meaning, RequestCancelled) and len(meaning.reason) > MAX_KEPT_BYTES:
        # A journal keeps no reason, but a cancel on the link needs no credit.
        meaning = RequestCancelled(meaning.session, meaning.id, "")
    if not isinstance(meaning, BrokerEvent) or kept_bytes(meaning) <= MAX_KEPT_BYTES:
        return meaning
    request = getattr(meaning, "id", None)
    if request is None:
        return None
    return _unservable(
        request, refused_request("too_large", f"Beside its arguments it has over {MAX_KEPT_BYTES} bytes.")
    )


def _unservable(request: RawJson, refused: RefusedEnvelope) -> UnservableLine:
    return UnservableLine(error_body_line(request, refused.error), request)


def _read_request(session: SessionId, message: Request, key: bytes) -> LineMeaning:
    match message.method:
        case method if method in LISTS:
            cursor = list_params(message.params)
            if isinstance(cursor, ParamsError):
                return BadLineReceived(session, message.id, "bad_params", cursor.sentence)
            return ListPageRequested(session, message.id, cursor, LISTS[method])
        case method if method in TARGET_KEYS:
            subject = split_target(method, message.params)
            if isinstance(subject, ParamsError):
                return BadLineReceived(session, message.id, "bad_params", subject.sentence)
            name, rest, meta, token = subject.text, subject.rest, subject.meta, subject.token
            digest = stateless_decode.request_digest(method, name, rest, key)
            return CallRequested(
                session, message.id, name, rest, meta, token, method, traceparent_in(meta), digest=digest
            )
        case "logging/setLevel":
            level = text_of(message.params or EMPTY_OBJECT, "level")
            return LogLevelRequested(session, message.id, level or "")
        case "resources/subscribe" | "resources/unsubscribe":
            uri = text_of(message.params or EMPTY_OBJECT, "uri")
            if uri is None:
                return BadLineReceived(session, message.id, "bad_params", f"{message.method} needs a uri.")
            return SubscribeRequested(session, message.id, uri, message.method == "resources/subscribe")
        case "ping":
            return PingRequested(session, message.id)
        case "initialize":
            try:
                params = _initialize.decode(message.params or EMPTY_OBJECT)
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
                return BadLineReceived(
                    session, message.id, "bad_params", "initialize needs a protocolVersion."
                )
            version = params.protocolVersion
            declared = server_requests.declared_capabilities(version, bytes(params.capabilities))
            return InitializeRequested(session, message.id, version, params.clientInfo.name[:100], declared)
        case method if method.startswith(CONTROL_PREFIX):
            return ControlRequested(message.id, method, message.params)
        case _:
            return BadLineReceived(session, message.id, "unknown_method", "")


def _read_garbage(session: SessionId, garbage: InvalidLine) -> LineMeaning:
    """The answer to an unreadable line: with id null, if it has no readable id (JSON-RPC 2.0, section
    5.1).
    """
    if garbage.why == "blank":
        return None
    if garbage.kind == "answer":
        return server_requests.answer_unreadable(session, garbage.id, garbage.text)
    code = PARSE_ERROR if garbage.id is None else INVALID_REQUEST
    return UnservableLine(
        error_line(garbage.id or RawJson(b"null"), code, garbage.text), garbage.id or ABSENT
    )


def read_overlong(
    session: SessionId, line: OverlongLine, cap_bytes: int, *, shared: bool = False
) -> LineMeaning:
    """The meaning of a line over the cap: its request, or the request that it answers, gets a definite
    answer.
    """
    detail = f"The line had {line.size_bytes} bytes; carpool reads up to {cap_bytes}."
    if line.is_answer:
        return (
            None if shared else server_requests.answer_unreadable(session, line.id, detail.removesuffix("."))
        )
    if line.id is None:
        return UnservableLine(error_line(RawJson(b"null"), INVALID_REQUEST, detail))
    if shared:
        return _unservable(line.id, refused_request("too_large", detail))
    return BadLineReceived(session, line.id, "too_large", detail)


def reply_line(effect: Reply) -> bytes:
    """An answer, with the agent's own id byte for byte."""
    if effect.is_error:
        return error_body_line(effect.id, effect.body)
    return result_line(effect.id, effect.body)


def initialize_line(effect: AnswerInitialize, release: str) -> bytes:
    """The line with the answer to `initialize` (MCP 2025-11-25, basic/lifecycle, `InitializeResult`)."""
    result: dict[str, object] = {
        "protocolVersion": effect.version,
        "capabilities": capabilities_of(effect.features),
        "serverInfo": {"name": "carpool", "title": "carpool", "version": release},
    }
    if effect.version in ("2024-11-05", "2025-03-26"):
        result["serverInfo"] = {"name": "carpool", "version": release}
    if effect.instructions:
        result["instructions"] = effect.instructions
    return result_line(effect.id, RawJson(msgspec.json.encode(result)))


def progress(effect: SendProgress) -> bytes:
    """`notifications/progress` under the agent's own token."""
    return progress_line(effect.token, effect.params)


def log_line(effect: SendLog) -> bytes:
    """The line of a log message, `notifications/message`."""
    return notification_line("notifications/message", effect.params)


def resource_updated_line(effect: SendResourceUpdated) -> bytes:
    """`notifications/resources/updated`, with the URI that this agent knows."""
    params = change_members(effect.params, {"uri": lambda _: quote(effect.uri)})
    return notification_line("notifications/resources/updated", RawJson(params))
