"""Effects of the broker's core: imperative, values only.

Owns the effects that send nothing to agents: facts that carriers must keep, hooks, pins, the audit, the end
of the broker. Exports also those to agents (`agent_effects`) and the link messages to the supervisor, which
are effects as they are (`Call`, `CancelCall`, `SetPools`, `DiscoverCatalog`). Effects are performed in
order.

Knows nothing of: how an era or a file words them.
"""

from typing import Literal

from carpool_broker.core.model.agent_effects import (
    NO_CALL,
    AcknowledgeListen,
    AnswerBuiltin,
    AnswerDiscover,
    AnswerInitialize,
    BrokerEffect,
    EndListen,
    Reply,
    ReplyRewritten,
    ReplyStateless,
    RequiredInput,
    RequireInput,
    SendAsk,
    SendElicitationComplete,
    SendListChanged,
    SendLog,
    SendProgress,
    SendResourceUpdated,
    SendTaskStatus,
    WithdrawAsk,
)
from carpool_broker.core.model.approval import PinId
from carpool_broker.core.model.events import RunId, SourceId
from carpool_broker.core.model.traces import TracedSpan
from carpool_protocol.ids import ABSENT, CallId, Epoch, PoolKey, ServerName, SessionId, SupervisorName
from carpool_protocol.link.messages import (
    AnswerAsk,
    AnswersWritten,
    Call,
    CallOrigin,
    CancelCall,
    CancelTask,
    ChangeResourceSubscriptions,
    DiscoverCatalog,
    EndCall,
    ForwardAskProgress,
    Name,
    OpenSessions,
    Payload,
    ResumeCall,
    Root,
    SessionAbsent,
    SessionEnded,
    SessionNotResumable,
    SessionPoolChanged,
    SessionStateLost,
    SetLevel,
    SetPools,
    SetResourceSubscriptions,
    SetTaskSubscriptions,
)

__all__ = [
    "NO_CALL",
    "AcknowledgeListen",
    "AnswerBuiltin",
    "AnswerDiscover",
    "AnswerInitialize",
    "AnyEffect",
    "ApplyRoots",
    "AuditOutcome",
    "BeginHook",
    "BrokerEffect",
    "EndBroker",
    "EndHook",
    "EndListen",
    "ExportTrace",
    "ForgetRecordedCall",
    "ForgetSource",
    "LinkEffect",
    "LocalEffect",
    "LogLine",
    "Reply",
    "ReplyRewritten",
    "ReplyStateless",
    "RequireInput",
    "RequiredInput",
    "SaveApprovals",
    "SendAsk",
    "SendElicitationComplete",
    "SendListChanged",
    "SendLog",
    "SendProgress",
    "SendResourceUpdated",
    "SendTaskStatus",
    "SendTo",
    "SetStatefulServers",
    "SetSupervisorEpoch",
    "WithdrawAsk",
    "WriteAudit",
]

AuditOutcome = Literal["", "answered", "refused", "unavailable", "lost"]
"""How a call ended, for hooks: with its server's own answer, or by the family of carpool's own error."""


class ApplyRoots(BrokerEffect, frozen=True):
    """Find the source for the roots that the agent names, and send `SessionSourceChanged`."""

    session: SessionId
    roots: tuple[Root, ...]
    """File URIs, in the agent's order."""
    changed: bool = False
    """True: the agent announced a change of its roots, so they may lie in another workspace."""


class ForgetSource(BrokerEffect, frozen=True):
    """Forget this source, unless a session has come to it, and send `SourceDropped`."""

    source: SourceId
    why: str
    """Why its servers end, as a clause for logs."""


class SetSupervisorEpoch(BrokerEffect, frozen=True):
    """Tell the carrier the epoch of the supervisor to which requests of this session go. All requests that it
    sent under another epoch are answered by then, because otherwise old calls would become new ones
    (docs/decisions/0019). If a `SessionResumed` of the session is to come, this follows it.
    """

    session: SessionId
    epoch: Epoch


class SetStatefulServers(BrokerEffect, frozen=True):
    """Tell the carrier at which servers this session may have state. The carrier may be the only one that
    still knows it when all of carpool has died (rule 15).
    """

    session: SessionId
    servers: tuple[ServerName, ...]


class ForgetRecordedCall(BrokerEffect, frozen=True):
    """Let the record forget this call once its carrier has all lines that the session was sent so far,
    because the answer may be among them. It becomes `AnswersWritten` then.
    """

    session: SessionId
    call: CallId


class BeginHook(BrokerEffect, frozen=True, kw_only=True):
    """Run a hook on a call, or on its outcome. Each run ends with `HookAnswered`."""

    run: RunId
    hook: str
    call: CallId
    session: SessionId
    method: str
    server: ServerName
    target: Name
    """The name or URI in the server's own spelling."""
    arguments: Payload
    """The params without name and `_meta`, an object; of a tool call `{"arguments": …}`."""
    outcome: AuditOutcome = ""
    """Empty: the call is about to be sent."""
    code: str = ""
    """The slug of carpool's own error."""
    body: Payload = ABSENT
    """The server's answer."""
    is_error: bool = False
    """`body` is a JSON-RPC error object, not a result."""


class EndHook(BrokerEffect, frozen=True):
    """End a run of a hook whose verdict is no longer needed. `HookAnswered` says when it has ended; a late
    one is ignored.
    """

    run: RunId
    hook: str


class SaveApprovals(BrokerEffect, frozen=True):
    """Save the changed set of approved tools of a pinned server (`approvals`)."""

    pin: PinId


class WriteAudit(BrokerEffect, frozen=True):
    """Write the end of a call to the audit, before its answer is sent."""

    who: CallOrigin
    call: CallId
    method: str
    server: ServerName
    """Empty: the call went to no server."""
    key: PoolKey
    target: Name
    """The server's own name of the tool or prompt, or the URI without the parts that may be values. If no
    server was found, the agent's spelling.
    """
    outcome: str
    """`ok`, `error`: the server's own answer, a result or a JSON-RPC error. `kept`: a cached result.
    `task`: the call continues as a task. `cancelled`: its agent cancelled it. `input_required`: the server
    ended it with a URL elicitation. `unclaimed`: its session did not resume at a later broker. Else: the
    slug of a fault.
    """
    delivered: Literal["yes", "no", "maybe"]
    duration_s: float = -1.0
    """The time since its request came; below zero: unknown."""
    bytes_in: int = 0
    trace: str = ""
    """The trace id of its agent (W3C), or of carpool's own trace of the call; empty: none."""
    body: Payload = ABSENT
    """The answer, for its size and its `isError`."""
    node: str = ""
    """The node at which it ran; empty: this one, or none."""


class ExportTrace(BrokerEffect, frozen=True):
    """Export the spans of a traced call that has just ended."""

    trace: str
    """The id of the trace, 32 hexadecimal digits."""
    spans: tuple[TracedSpan, ...]


class LogLine(BrokerEffect, frozen=True):
    """Write a line to the broker's log."""

    level: Literal["info", "warning", "error"]
    text: str


class SendTo(BrokerEffect, frozen=True):
    """Send a message to one of several supervisors. `SupervisorRoutes` knows where other messages go."""

    supervisor: SupervisorName
    message: SetPools | OpenSessions


class EndBroker(BrokerEffect, frozen=True):
    """End the broker's process: no call is unfinished any more, or the drain time is over."""


LocalEffect = (
    Reply
    | ReplyRewritten
    | ReplyStateless
    | AnswerBuiltin
    | AnswerDiscover
    | RequireInput
    | AcknowledgeListen
    | EndListen
    | AnswerInitialize
    | SendProgress
    | SendListChanged
    | SendLog
    | SendResourceUpdated
    | SendTaskStatus
    | SendAsk
    | WithdrawAsk
    | SendElicitationComplete
    | ApplyRoots
    | ForgetSource
    | SetSupervisorEpoch
    | SetStatefulServers
    | ForgetRecordedCall
    | BeginHook
    | EndHook
    | WriteAudit
    | ExportTrace
    | SaveApprovals
    | LogLine
    | SendTo
    | EndBroker
)
LinkEffect = (
    Call
    | CancelCall
    | EndCall
    | SetPools
    | DiscoverCatalog
    | SetLevel
    | SetResourceSubscriptions
    | ChangeResourceSubscriptions
    | AnswerAsk
    | ForwardAskProgress
    | SessionEnded
    | SessionAbsent
    | SessionNotResumable
    | SessionPoolChanged
    | OpenSessions
    | SessionStateLost
    | SetTaskSubscriptions
    | CancelTask
    | AnswersWritten
    | ResumeCall
)
AnyEffect = LocalEffect | LinkEffect
