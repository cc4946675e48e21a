"""Who called what and what came of it: one record for each call, when it ends.

Owns what an audit may say of a call, when a call counts as begun and ended, and that its server is told the
name under which it is put down, and the supervisor whose call it is. The table of calls tells it, where calls
open and end; without a trail it tells nobody. A record holds names, sizes and times, never the value of
an argument or of a result: of a URI neither its query nor what stands before an `@`.

Invariants: a call that this broker opened has one record, when it ends; one of a broker before this has one
here as well when this broker ends it, under the same id, though the other may have written its own (it died
after that, and before its agent had the answer). Of a call of an earlier broker that nobody comes back for
the supervisor's record brings whose it was and what it was; its times and sizes are left out, not made up.

Knows nothing of: files, the time of day, what is in an answer (its bytes go along for whoever writes).
"""

from collections.abc import Callable
from typing import Final, Literal
from urllib.parse import urlsplit

from msgspec.structs import replace

from carpool_broker.core.model.effects import AnyEffect, WriteAudit
from carpool_broker.core.model.session import OpenCall, Session, Stage
from carpool_protocol.ids import (
    EMPTY_OBJECT,
    CallId,
    PoolKey,
    RawJson,
    ServerName,
    SessionId,
    call_name,
)
from carpool_protocol.link.messages import Call, CallOrigin, RecordedCall
from carpool_protocol.wire.content import text_of, without_members
from carpool_protocol.wire.request_targets import TASK_ID_KEYS

CALL_META_KEY: Final = "carpool/call"
"""The key in the `_meta` of a request to a server under which it gets the call's name, as errors and the
audit have it.
"""
MAX_NAME_CHARS: Final = 128
MAX_URI_CHARS: Final = 256
Delivered = Literal["yes", "no", "maybe"]
"""Whether a server has seen the call."""

UNKNOWN: Final = -1.0
"""The start of a call that an earlier broker has opened."""

_NAMED: Final = frozenset({"tools/call", "prompts/get"})


class AuditTrail:
    """The audit records of one broker. Calls with numbers below `before` are those of earlier brokers."""

    def __init__(self, out: Callable[[AnyEffect], None], before: CallId) -> None:
        self._emit = out
        self._before = before
        self._callers: dict[SessionId, CallOrigin] = {}
        self._emitted: set[CallId] = set()
        """Calls of earlier brokers that have a record already: after the link was down they can
        come again.
        """

    def name_call(self, open_call: OpenCall, call: Call) -> Call:
        """Return the call as it is sent: its server gets the call's name, and a later broker its session."""
        return replace(
            call, meta=with_call_id(call.meta, call_name(call.call)), caller=self._caller_of(open_call)
        )

    def call_released(self, call: RecordedCall) -> None:
        """A recorded call of an earlier broker ends unclaimed. Calls of this broker have their record
        already.
        """
        if call.call < self._before and self._is_new(call.call):
            outcome = "unclaimed" if call.ended else "cancelled"
            caller, server = call.caller or CallOrigin(call.session), server_of_key(call.key)
            target = audit_subject(call.method, call.target)
            self._emit(WriteAudit(caller, call.call, call.method, server, call.key, target, outcome, "maybe"))

    def call_ended(
        self, open_call: OpenCall, outcome: str, delivered: Delivered, body: RawJson, now: float
    ) -> None:
        """The call ends. `outcome` is a fault's code, or one of the words of `effects.WriteAudit`."""
        asked = open_call.asked
        method = asked.method
        target = open_call.target
        if method not in _NAMED or not target:
            target = audit_subject(method, target or asked.name)
        duration_s = now - open_call.since
        if open_call.call < self._before:
            duration_s = UNKNOWN
            if not self._is_new(open_call.call):
                return
        own = open_call.trace
        trace_id = own.trace if own is not None and own.trace else asked.trace[3:35]
        self._emit(
            WriteAudit(
                self._caller_of(open_call),
                open_call.call,
                method,
                open_call.server,
                open_call.key,
                target,
                outcome,
                delivered,
                duration_s,
                open_call.size_bytes,
                trace_id,
                body,
                open_call.node,
            )
        )

    def _is_new(self, call: CallId) -> bool:
        found = call not in self._emitted
        self._emitted.add(call)
        return found

    def _caller_of(self, open_call: OpenCall) -> CallOrigin:
        session, by = open_call.session, open_call.asked.by
        if session.shared and by is not None:
            return _caller(session, by.agent or session.agent)
        found = self._callers.get(session.id)
        if found is None or found.agent is not session.agent or found.pid != session.pid:
            found = self._callers[session.id] = _caller(session, session.agent)
        return found

    def forget_caller(self, session: Session) -> None:
        """The session has closed or moved: what is known of the caller is found anew."""
        self._callers.pop(session.id, None)


def delivered_at(stage: Stage) -> Delivered:
    """Return what is known of the delivery of a call that ends in this stage without an answer."""
    return "maybe" if stage == "sent" else "yes" if stage == "told" else "no"


def _caller(session: Session, agent: str) -> CallOrigin:
    return CallOrigin(
        session.id, agent[:MAX_NAME_CHARS], session.pid, session.carrier, session.principal, session.profile
    )


def audit_subject(method: str, said: str) -> str:
    """Return what a call of this method is about, as far as an audit may say it."""
    if method in TASK_ID_KEYS:
        return ""  # a task's id is what its agent is known by
    if method in _NAMED:
        return said[:MAX_NAME_CHARS]
    if method == "resources/read":
        return bare_uri(said)
    ref = RawJson(said.encode("utf-8", "replace"))
    name = text_of(ref, "name")
    return name[:MAX_NAME_CHARS] if name is not None else bare_uri(text_of(ref, "uri") or "")


def with_call_id(meta: RawJson, name: str) -> RawJson:
    """Return a `_meta` that says which call it is; the agent's own value under that key is dropped. The
    length of the result depends on the length of `meta` only, because the link's credit is counted by it and
    a journal keeps lengths only; blanks fill the gap.
    """
    ours = b'"carpool/call":"%b"' % name.encode()
    if len(meta) <= len(EMPTY_OBJECT):
        return RawJson(b"{%b}" % ours)
    inner = meta[1:-1]
    if meta.lower().find(b"carpool/") >= 0 or meta.find(b"\\") >= 0:  # an escape may hide a name
        inner = without_members(meta, {CALL_META_KEY})[1:-1]
    theirs = b"," + inner if inner.strip() else b""
    return RawJson(b"{%b%b}" % (ours, theirs.ljust(len(meta) - 1)))


def bare_uri(uri: str) -> str:
    """Return the URI without query, fragment and user, which can hold values or secrets. A `data:` URI is
    all value.
    """
    try:
        scheme, place, path, _, _ = urlsplit(uri)
    except ValueError:
        return ""
    if scheme == "data":
        return "data:"
    host = place.rpartition("@")[2]
    bare = f"{scheme}:" if scheme else ""
    bare += f"//{host}{path}" if host or uri[len(scheme) + 1 :].startswith("//") else path
    return bare[:MAX_URI_CHARS]


def server_of_key(key: PoolKey) -> ServerName:
    """Return the server that a pool's key names."""
    return ServerName(key.rpartition(":")[0])
