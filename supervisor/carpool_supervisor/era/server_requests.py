"""Requests of a server of the handshake era: to carpool (`ping`, `roots/list`) or to an agent (asks).

Owns the capabilities that carpool declares (rule 12: none, or all that agents can be asked for; roots only if
the server's configuration names some, rule 6). Decides which requests are answered here, which become a
`ServerAsked`, and which are refused at once, so that no server waits for an answer that cannot come. Source:
MCP 2025-11-25, client/sampling, client/elicitation, client/roots, basic/utilities/tasks "Related Task
Metadata".

Invariants: a request with too many parts to be cut in one step is refused, and so is an error that sends an
agent to URLs: neither passes unread. The server's ids and tokens stay its own bytes; they belong to the other
direction than our wire ids and are never compared with them. Only the few fields named here are decoded; all
other values stay byte for byte. Knows nothing of: the agent behind an ask, open asks, capabilities of agents.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct

from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, InstanceId, RawJson, WireId
from carpool_protocol.link.messages import Need, Root
from carpool_protocol.wire.capabilities import needed_capabilities
from carpool_protocol.wire.content import change_members, elements, mentions, text_of, value_of
from carpool_protocol.wire.json_scan import MAX_PARTS, has_too_many_parts
from carpool_protocol.wire.jsonrpc import (
    Notification,
    Request,
    error_body_line,
    error_line,
    quote,
    result_line,
)
from carpool_protocol.wire.params import (
    ParamsError,
    meta_params,
    progress_line,
    split_cancelled,
    split_meta,
)
from carpool_supervisor.core.model.attribution import AGENT_METHODS, RELATED_TASK, facts_of
from carpool_supervisor.core.model.events import (
    AnswerUnreadable,
    ElicitationCompleted,
    ServerAsked,
    ServerCancelledAsk,
    UrlElicitationRequired,
)
from carpool_supervisor.core.model.trace_context import TraceKey, issued_trace
from carpool_supervisor.era.adapter import Decoded

METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
URLS_FIRST: Final = b"-32042"
"""`URLElicitationRequiredError` (client/elicitation, "URL Elicitation Required Error")."""
MAX_NAME_CHARS: Final = 100
"""The number of characters of the name of an unknown method that the error repeats to the server."""
MAX_ELICITATION_CHARS: Final = 1024
"""The longest id of an elicitation. It is kept until the server says that the elicitation is done."""
MAX_RELATED_BYTES: Final = 8 * 1024
"""The longest related task of a request. It is kept until the request is answered, and goes back then."""
MAX_URLS: Final = 100
"""Elicitations of one such error that are remembered."""
MAX_URLS_BYTES: Final = 256 * 1024
"""Elicitations are left out once they are longer than this together."""
ASKABLE: Final[frozenset[Need]] = frozenset(
    {"sampling", "sampling.tools", "elicitation.form", "elicitation.url"}
)
"""Everything that an agent of the class `asking` can be asked for (rule 12)."""
_NOBODYS: Final[frozenset[Need]] = frozenset()


class Declared(Struct, frozen=True):
    """The capabilities that carpool declares to a server, and the values they need."""

    asking: bool = False
    """Sampling (with tools) and elicitation (forms and URLs), because an agent is behind it."""
    roots: tuple[Root, ...] | None = None
    """None: roots are not declared."""
    life: bytes = b""
    """The secret from which trace contexts are made (`trace`)."""

    def needs(self, can: Iterable[Need] | None = None) -> frozenset[Need]:
        """Everything that can be asked for. `can`: what the agent has declared for this call, if it has."""
        needs = (ASKABLE if self.asking else _NOBODYS) if can is None else frozenset(can)
        return needs if self.roots is None else needs | {"roots"}

    def capabilities(self) -> RawJson:
        """The `capabilities` of `initialize`."""
        return capabilities_of(self.needs())


NOTHING: Final = Declared()


def capabilities_of(needs: Collection[Need]) -> RawJson:
    """Make a `ClientCapabilities` object (MCP 2025-11-25, basic/lifecycle; 2026-07-28, basic/index)."""
    parts = []
    if "sampling" in needs:
        parts.append(b'"sampling":{"tools":{}}' if "sampling.tools" in needs else b'"sampling":{}')
    modes = [b'"%b":{}' % mode for mode in (b"form", b"url") if f"elicitation.{mode.decode()}" in needs]
    if modes:
        parts.append(b'"elicitation":{%b}' % b",".join(modes))
    if "roots" in needs:
        parts.append(b'"roots":{}')
    return RawJson(b"{%b}" % b",".join(parts))


class ServerRequests:
    """The requests of one instance's server."""

    def __init__(self, instance: InstanceId, declared: Declared, decoded: Decoded) -> None:
        self._instance = instance
        self._declared = declared
        self._decoded = decoded
        self._roots = None if declared.roots is None else roots_result(declared.roots)
        self._related: dict[RawJson, list[bytes]] = {}
        """The task that an open request named, by request id. Its answer must name the task too. If a server
        uses an id twice, its later request is refused first.
        """

    # --- in --------------------------------------------------------------------------------------------

    def request_received(self, request: Request) -> None:
        """Handle a request of the server."""
        if request.method == "ping":
            self._decoded.lines.append(result_line(request.id, EMPTY_OBJECT))
        elif request.method == "roots/list" and self._roots is not None:
            self._decoded.lines.append(result_line(request.id, self._roots))
        elif request.method in AGENT_METHODS and self._declared.asking:
            self._ask(request)
        else:
            name = request.method[:MAX_NAME_CHARS]
            text = f"{name}: carpool has declared no such capability"
            self._refuse(request, METHOD_NOT_FOUND, text)

    def _ask(self, request: Request) -> None:
        if has_too_many_parts(request.params):
            text = f"{request.method}: the params have more than {MAX_PARTS:,} parts"
            self._refuse(request, INVALID_PARAMS, text)
            return
        parts = split_meta(request.params) if request.params else ParamsError("the params are missing")
        if isinstance(parts, ParamsError):
            self._refuse(request, INVALID_PARAMS, f"{request.method}: {parts.text}")
            return
        rest, meta, token = parts
        needs = needed_capabilities(request.method, rest)
        if not needs:  # a mode that carpool did not declare
            self._refuse(request, INVALID_PARAMS, f"{request.method}: carpool has declared no such mode")
            return
        facts = facts_of(request.method, meta, self._declared.life)
        related = value_of(meta, RELATED_TASK) if meta else None
        elicitation = (text_of(rest, "elicitationId") or "") if "elicitation.url" in needs else ""
        if len(elicitation) > MAX_ELICITATION_CHARS:
            text = f"{request.method}: the elicitationId has more than {MAX_ELICITATION_CHARS:,} characters"
            self._refuse(request, INVALID_PARAMS, text)
            return
        if related is not None:
            if len(related) > MAX_RELATED_BYTES:
                text = f"{request.method}: the related task has more than {MAX_RELATED_BYTES:,} bytes"
                self._refuse(request, INVALID_PARAMS, text)
                return
            self._related.setdefault(request.id, []).append(related)
        params = meta_params(rest, self._for_the_agent(meta, facts.trace), ABSENT)
        self._decoded.events.append(
            ServerAsked(self._instance, request.id, params, facts, token, elicitation, tuple(needs))
        )

    def _for_the_agent(self, meta: RawJson, trace: TraceKey | None) -> RawJson:
        """The `_meta` without tasks and traces of carpool's own; `ABSENT` if nothing is left."""
        left = without_task(meta)
        if left and trace is not None and issued_trace(self._declared.life, trace):
            left = without(left, "traceparent")
        return left

    def _refuse(self, request: Request, code: int, text: str) -> None:
        self._decoded.lines.append(error_line(request.id, code, text))

    def notification_received(self, message: Notification) -> bool:
        """Handle a notification. Returns True if it is about an ask."""
        if message.method == "notifications/cancelled":
            ask, reason = split_cancelled(message.params)
            if ask is not None and self._declared.asking:
                self._related.pop(ask, None)
                self._decoded.events.append(ServerCancelledAsk(self._instance, ask, reason))
        elif message.method == "notifications/elicitation/complete":
            elicitation = text_of(message.params or EMPTY_OBJECT, "elicitationId")
            if elicitation is not None and len(elicitation) <= MAX_ELICITATION_CHARS:
                self._decoded.events.append(ElicitationCompleted(self._instance, elicitation, message.params))
        else:
            return False
        return True

    def call_failed(self, wire_id: WireId, error: RawJson) -> bool:
        """Handle the error that ends a call; it may first send its agent to URLs. False: that part cannot be
        read, and the call has ended without the error.
        """
        if mentions(error, URLS_FIRST) and value_of(error, "code") == URLS_FIRST:
            if has_too_many_parts(error):
                text = f"The error that sends its agent to URLs has more than {MAX_PARTS:,} parts."
                self._decoded.events.append(
                    AnswerUnreadable(self._instance, wire_id, "answer_too_large", text)
                )
                return False
            listed = value_of(value_of(error, "data") or b"", "elicitations") or b""
            found = elements(listed) or []
            ids: list[str] = []
            urls: list[RawJson] = []
            left_bytes = MAX_URLS_BYTES
            for each in found[:MAX_URLS]:
                name = text_of(each, "elicitationId")
                if name and len(name) <= MAX_ELICITATION_CHARS:
                    ids.append(name)
                    left_bytes -= len(each)
                    if left_bytes >= 0:
                        urls.append(RawJson(each))
            if ids:
                self._decoded.events.append(
                    UrlElicitationRequired(self._instance, wire_id, tuple(ids), tuple(urls))
                )
        return True

    # --- out -------------------------------------------------------------------------------------------

    def answer_line(self, ask: RawJson, *, is_error: bool, body: RawJson) -> bytes:
        """The answer to the server's request with this id."""
        named = self._related.get(ask)
        related = named.pop() if named else None
        if named is not None and not named:
            del self._related[ask]
        if is_error:
            return error_body_line(ask, body)
        return result_line(ask, body if related is None else with_task(body, related))

    def progress_line(self, token: RawJson, params: RawJson) -> bytes:
        """A progress line for a request of the server; `params` has no token."""
        return progress_line(token, params)


def without_agents_task(meta: RawJson) -> RawJson:
    """The `_meta` of an agent's request without the related task. The agent cannot know a task of this
    server; a server would send everything that the request causes, asks too, to the agent that waits for that
    task.
    """
    if not meta or not (mentions(meta, _RELATED) or mentions(meta, b"\\")):
        return meta
    return RawJson(change_members(meta, {RELATED_TASK: None}))


_RELATED: Final = b'"' + RELATED_TASK.encode() + b'"'


def without_task(meta: RawJson) -> RawJson:
    """The `_meta` without a related task."""
    return without(meta, RELATED_TASK)


def without(meta: RawJson, key: str) -> RawJson:
    """The `_meta` without this key; `ABSENT` if nothing is left."""
    if not meta:
        return ABSENT
    left = change_members(meta, {key: None})
    return RawJson(left) if left.strip(b"{ }") else ABSENT


def roots_result(roots: Sequence[Root]) -> RawJson:
    """The answer to `roots/list`. A root without a name gets the name of its directory."""
    found = []
    for root in roots:
        name = root.name or _directory_name(root.uri)
        found.append({"uri": root.uri, "name": name} if name else {"uri": root.uri})
    return RawJson(msgspec.json.encode({"roots": found}))


def _directory_name(uri: str) -> str:
    try:
        return unquote(urlsplit(uri).path.rstrip("/").rpartition("/")[2])
    except ValueError:  # no valid URI: the server may say so itself
        return ""


def with_task(result: RawJson, related: bytes) -> RawJson:
    """The result with this related task in its `_meta`; anything but an object stays as it is."""
    if result[:1] != b"{":
        return result
    named = b"%b:%b" % (quote(RELATED_TASK), related)
    meta = value_of(result, "_meta")
    if meta is None or meta[:1] != b"{":
        whole = result if meta is None else change_members(result, {"_meta": None})
        inner = whole.strip()[1:-1].strip()
        return RawJson(b'{"_meta":{%b}%b%b}' % (named, b"," if inner else b"", inner))
    inner = change_members(meta, {RELATED_TASK: None})[1:-1].strip()
    whole_meta = b"{%b%b%b}" % (named, b"," if inner else b"", inner)
    return RawJson(change_members(result, {"_meta": lambda _: whole_meta}))
