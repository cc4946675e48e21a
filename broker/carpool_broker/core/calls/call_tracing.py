"""Decides which calls are traced, and which spans the trace of a call has (docs/traces.md).

Owns the sampling, the ids of spans, the context that goes to the supervisor, and the spans of a call that has
ended: the agent's request, the wait for a server, the server's part. A span holds names, sizes and times,
never the value of an argument or of a result.

Invariants: a call that is sampled has one trace, which ends with the call; equal (secret, call) give equal
ids. A call that an earlier broker has sent has none, because its start is not known; nor has a call that was
sent before traces were turned on.

Refuses to know: how spans are exported, the time of day. Decision: docs/decisions/0044.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from msgspec.structs import replace

from carpool_broker.core.calls.audit import audit_subject
from carpool_broker.core.model.effects import AnyEffect, ExportTrace
from carpool_broker.core.model.session import OpenCall
from carpool_broker.core.model.traces import UNSAMPLED, CallTrace, TracedSpan
from carpool_protocol.faults.fault_answers import TOOLS_CALL
from carpool_protocol.faults.outcomes import ANSWERED
from carpool_protocol.ids import CallId, RawJson, call_name
from carpool_protocol.link.messages import Call, CallTimed
from carpool_protocol.wire.result_repair import is_failed_result
from carpool_protocol.wire.traceparent import parse_traceparent

_SAMPLED: Final = 1
"""The bit of the flags by which the agent says that its trace is recorded."""
_GOOD: Final = ANSWERED | {"cancelled"}
"""Outcomes that are no error of a span."""
_SUBJECTS: Final = {
    TOOLS_CALL: "gen_ai.tool.name",
    "prompts/get": "gen_ai.prompt.name",
    "resources/read": "mcp.resource.uri",
}
"""The attribute that says what a call is about, by method (semantic conventions of OpenTelemetry for MCP)."""


class CallTracing:
    """The traces of one broker. Calls with numbers below `before` are those of earlier brokers."""

    def __init__(
        self, out: Callable[[AnyEffect], None], secret: bytes, sample: float, before: CallId
    ) -> None:
        self._emit = out
        self._hash = blake2b(key=blake2b(b"traces", key=secret, digest_size=32).digest(), digest_size=32)
        self._before = before
        self.set_sample(sample)

    def set_sample(self, sample: float) -> None:
        """Trace this part of the calls without a context of their agent."""
        self._below = int(sample * 2**64)

    def with_context(self, open_call: OpenCall, call: Call) -> Call:
        """Return the call as it is sent: a traced one carries the context that its server continues."""
        trace = self._trace_of(open_call)
        if not trace.trace:
            return call
        return replace(call, trace=f"00-{trace.trace}-{trace.span}-01", traced=True)

    def call_timed(self, open_call: OpenCall, timed: CallTimed, now: float) -> None:
        """The server's part of a traced call is over."""
        trace = open_call.trace
        if trace is not None and trace.trace:
            trace.server_span, trace.instance = timed.span, timed.instance
            trace.placed_at, trace.answered_at = max(now - timed.served_s, open_call.since), now

    def call_ended(self, open_call: OpenCall, outcome: str, body: RawJson, now: float) -> None:
        """The call ends. `outcome`: see `effects.WriteAudit`."""
        was_sent_before = open_call.trace is None and open_call.sent_at >= 0
        if open_call.call < self._before or was_sent_before:
            return
        trace = self._trace_of(open_call)
        if not trace.trace:
            return
        if outcome == "ok" and open_call.asked.method == TOOLS_CALL and is_failed_result(body):
            outcome = "tool_error"
        self._emit(ExportTrace(trace.trace, tuple(spans_of(open_call, trace, outcome, now))))

    def _trace_of(self, open_call: OpenCall) -> CallTrace:
        trace = open_call.trace
        if trace is not None:
            return trace
        asked, ids = open_call.asked, self._hash.copy()  # a copy is faster than a new hash with its key
        ids.update(b"%d" % open_call.call)
        digest = ids.digest()
        theirs = parse_traceparent(asked.trace) if asked.trace else None
        if theirs is not None:
            is_wanted = int(theirs.flags, 16) & _SAMPLED
            trace = CallTrace(theirs.trace, theirs.span, digest[16:24].hex()) if is_wanted else UNSAMPLED
        elif int.from_bytes(digest[8:16], "big") < self._below:  # as `TraceIdRatioBased` of the SDK
            trace = CallTrace(digest[:16].hex(), "", digest[16:24].hex())
        else:
            trace = UNSAMPLED
        open_call.trace = trace
        return trace


def spans_of(open_call: OpenCall, trace: CallTrace, outcome: str, now: float) -> list[TracedSpan]:
    """Return the spans of a call that ends now: the agent's request, the wait, the server's part."""
    error = "" if outcome in _GOOD else outcome
    began_s = now - open_call.since
    title, about = _title(open_call)
    attributes = {**about, **_caller(open_call), "carpool.outcome": outcome}
    spans = [TracedSpan(title, "server", trace.span, trace.parent, began_s, 0.0, attributes, error)]
    if not open_call.key or outcome == "kept":
        return spans  # no server had a part in it
    has_run = bool(trace.server_span)
    waited_s = now - trace.placed_at if has_run else 0.0
    server: dict[str, str | int] = {"carpool.server": open_call.server}
    waiting = _span_id(trace.span, "waiting")
    spans.append(TracedSpan("waiting", "internal", waiting, trace.span, began_s, waited_s, server))
    if has_run:
        attributes = {**about, **server, "carpool.instance": trace.instance}
        answered_s = now - trace.answered_at
        spans.append(
            TracedSpan(
                title, "client", trace.server_span, trace.span, waited_s, answered_s, attributes, error
            )
        )
    return spans


def _title(open_call: OpenCall) -> tuple[str, dict[str, str | int]]:
    """Return the name of the span of a call, and the attributes for what it is about."""
    method = open_call.asked.method
    target = open_call.target or open_call.asked.name
    subject = audit_subject(method, target)
    attribute = _SUBJECTS.get(method)
    about: dict[str, str | int] = {"mcp.method.name": method}
    if not attribute or not subject:
        return method, about
    about[attribute] = subject
    # URIs are left out of names: there may be any number of them.
    return (method if method == "resources/read" else f"{method} {subject}"), about


def _caller(open_call: OpenCall) -> dict[str, str | int]:
    session, by = open_call.session, open_call.asked.by
    agent = session.agent if by is None else by.agent or session.agent
    found: dict[str, str | int] = {
        "mcp.session.id": session.id,
        "carpool.call": call_name(open_call.call),
        "carpool.agent": agent[:128],
        "carpool.door": session.carrier,
        "carpool.profile": session.profile,
        "carpool.token": session.principal,
        "carpool.server": open_call.server,
    }
    return {name: value for name, value in found.items() if value}


def _span_id(span: str, name: str) -> str:
    return blake2b(name.encode(), key=bytes.fromhex(span), digest_size=8).hexdigest()
