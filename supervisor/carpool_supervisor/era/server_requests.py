"""What a server of the handshake era asks: of us (`ping`, `roots/list`) or of an agent.

Owns what we declare to a server (rule 12: nothing, or all that agents can be asked; roots only where its
configuration says so, rule 6), which of its requests are answered here, which become a `ServerAsked`, and
which are refused at once, so that a server never waits for an answer that cannot come. Source: MCP
2025-11-25, client/sampling, client/elicitation, client/roots, basic/utilities/tasks "Related Task Metadata".

Invariants: the server's ids and tokens are its own bytes, in and out; they live in another direction than
our wire ids and are never compared with them. Nothing of a question is decoded but the few fields named
here; every other value stays byte for byte.
Knows nothing of: whose question it is, which asks are open, what agents can do.
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
MAX_URLS: Final = 100
"""So many elicitations of one such error are remembered."""
MAX_URLS_BYTES: Final = 256 * 1024
"""Those that are longer together, with all before them, are left out."""
ASKABLE: Final[frozenset[Need]] = frozenset(
    {"sampling", "sampling.tools", "elicitation.form", "elicitation.url"}
)
"""All that an agent of the class `asking` can be asked for (rule 12)."""
_NOBODYS: Final[frozenset[Need]] = frozenset()


class Declared(Struct, frozen=True):
    """What a server is told that we can do, and what is needed for it."""

    asking: bool = False
    """Sampling (with tools) and elicitation (forms and URLs): an agent is behind it."""
    roots: tuple[Root, ...] | None = None
    """None: roots are not declared."""
    life: bytes = b""
    """The secret that our trace contexts are made with (`trace`)."""

    def needs(self, can: Iterable[Need] | None = None) -> frozenset[Need]:
        """What can be asked for. `can`: what an agent has declared for one call, where it did that."""
        needs = (ASKABLE if self.asking else _NOBODYS) if can is None else frozenset(can)
        return needs if self.roots is None else needs | {"roots"}

    def capabilities(self) -> RawJson:
        """The `capabilities` of `initialize`."""
        return capabilities_of(self.needs())


NOTHING: Final = Declared()


def capabilities_of(needs: Collection[Need]) -> RawJson:
    """A `ClientCapabilities` object (MCP 2025-11-25, basic/lifecycle; 2026-07-28, basic/index)."""
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
    """The other direction of one instance's conversation."""

    def __init__(self, instance: InstanceId, declared: Declared, decoded: Decoded) -> None:
        self._instance = instance
        self._declared = declared
        self._decoded = decoded
        self._roots = None if declared.roots is None else roots_result(declared.roots)
        self._related: dict[RawJson, list[bytes]] = {}
        """By the id of an open request: the task it named. Its answer has to name it too. A server that uses
        an id twice is refused the later one first.
        """

    # --- in --------------------------------------------------------------------------------------------

    def request_received(self, request: Request) -> None:
        """A request of the server."""
        if request.method == "ping":
            self._decoded.lines.append(result_line(request.id, EMPTY_OBJECT))
        elif request.method == "roots/list" and self._roots is not None:
            self._decoded.lines.append(result_line(request.id, self._roots))
        elif request.method in AGENT_METHODS and self._declared.asking:
            self._ask(request)
        else:
            text = f"{request.method}: carpool has declared no such capability"
            self._refuse(request, METHOD_NOT_FOUND, text)

    def _ask(self, request: Request) -> None:
        parts = split_meta(request.params) if request.params else ParamsError("the params are missing")
        if isinstance(parts, ParamsError):
            self._refuse(request, INVALID_PARAMS, f"{request.method}: {parts.text}")
            return
        rest, meta, token = parts
        needs = needed_capabilities(request.method, rest)
        if not needs:  # a mode that nobody was told of
            self._refuse(request, INVALID_PARAMS, f"{request.method}: carpool has declared no such mode")
            return
        facts = facts_of(request.method, meta, self._declared.life)
        related = value_of(meta, RELATED_TASK) if meta else None
        if related is not None:
            self._related.setdefault(request.id, []).append(related)
        elicitation = (text_of(rest, "elicitationId") or "") if "elicitation.url" in needs else ""
        params = meta_params(rest, self._for_the_agent(meta, facts.trace), ABSENT)
        self._decoded.events.append(
            ServerAsked(self._instance, request.id, params, facts, token, elicitation, tuple(needs))
        )

    def _for_the_agent(self, meta: RawJson, trace: TraceKey | None) -> RawJson:
        """A `_meta` that names neither a task nor a trace of ours; `ABSENT` where nothing is left of it."""
        left = without_task(meta)
        if left and trace is not None and issued_trace(self._declared.life, trace):
            left = without(left, "traceparent")
        return left

    def _refuse(self, request: Request, code: int, text: str) -> None:
        self._decoded.lines.append(error_line(request.id, code, text))

    def notification_received(self, message: Notification) -> bool:
        """A notification of the server. Whether it is about what it asked."""
        if message.method == "notifications/cancelled":
            ask, reason = split_cancelled(message.params)
            if ask is not None and self._declared.asking:
                self._related.pop(ask, None)
                self._decoded.events.append(ServerCancelledAsk(self._instance, ask, reason))
        elif message.method == "notifications/elicitation/complete":
            elicitation = text_of(message.params or EMPTY_OBJECT, "elicitationId")
            if elicitation is not None:
                self._decoded.events.append(ElicitationCompleted(self._instance, elicitation, message.params))
        else:
            return False
        return True

    def call_failed(self, wire_id: WireId, error: RawJson) -> None:
        """An error that this call ends with: it may send its agent to URLs first."""
        if mentions(error, URLS_FIRST) and value_of(error, "code") == URLS_FIRST:
            found = elements(value_of(value_of(error, "data") or b"", "elicitations") or b"") or []
            ids: list[str] = []
            urls: list[RawJson] = []
            left_bytes = MAX_URLS_BYTES
            for each in found[:MAX_URLS]:
                name = text_of(each, "elicitationId")
                if name:
                    ids.append(name)
                    left_bytes -= len(each)
                    if left_bytes >= 0:
                        urls.append(RawJson(each))
            if ids:
                self._decoded.events.append(
                    UrlElicitationRequired(self._instance, wire_id, tuple(ids), tuple(urls))
                )

    # --- out -------------------------------------------------------------------------------------------

    def answer_line(self, ask: RawJson, *, is_error: bool, body: RawJson) -> bytes:
        """The answer to the server's request of this id."""
        named = self._related.get(ask)
        related = named.pop() if named else None
        if named is not None and not named:
            del self._related[ask]
        if is_error:
            return error_body_line(ask, body)
        return result_line(ask, body if related is None else with_task(body, related))

    def progress_line(self, token: RawJson, params: RawJson) -> bytes:
        """How far a request of the server's is; `params` without the token."""
        return progress_line(token, params)


def without_agents_task(meta: RawJson) -> RawJson:
    """The `_meta` of an agent's request. A task that it names is none of this server's as far as it may know:
    servers send what a request leads to, questions too, to whoever waits for the task that it names.
    """
    if not meta or not (mentions(meta, _RELATED) or mentions(meta, b"\\")):
        return meta
    return RawJson(change_members(meta, {RELATED_TASK: None}))


_RELATED: Final = b'"' + RELATED_TASK.encode() + b'"'


def without_task(meta: RawJson) -> RawJson:
    """A `_meta` that names no related task."""
    return without(meta, RELATED_TASK)


def without(meta: RawJson, key: str) -> RawJson:
    """A `_meta` without this key; `ABSENT` where nothing is left of it."""
    if not meta:
        return ABSENT
    left = change_members(meta, {key: None})
    return RawJson(left) if left.strip(b"{ }") else ABSENT


def roots_result(roots: Sequence[Root]) -> RawJson:
    """The answer to `roots/list`. A root without a name of the agent's has that of its directory."""
    found = []
    for root in roots:
        name = root.name or _directory_name(root.uri)
        found.append({"uri": root.uri, "name": name} if name else {"uri": root.uri})
    return RawJson(msgspec.json.encode({"roots": found}))


def _directory_name(uri: str) -> str:
    try:
        return unquote(urlsplit(uri).path.rstrip("/").rpartition("/")[2])
    except ValueError:  # no URI at all: the server's reader may say so
        return ""


def with_task(result: RawJson, related: bytes) -> RawJson:
    """A result whose `_meta` names this related task; what is no object stays as it is."""
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
