"""What the broker core wants done: imperative, values only.

Owns what is done beside telling agents something (`agent_effects`, to be had here too): what carriers are
to remember, hooks, pins, the audit, the broker's own end. Link messages to the supervisor are effects as they
are (`Call`, `CancelCall`, `SetPools`, `DiscoverCatalog`). Effects are performed in order.

Knows nothing of: how any of it is worded or written.
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
from carpool_broker.core.model.events import RunId
from carpool_broker.core.model.traces import TracedSpan
from carpool_protocol.ids import ABSENT, CallId, Epoch, PoolKey, ServerName, SessionId
from carpool_protocol.link.messages import (
    AnswerAsk,
    AnswersWritten,
    Call,
    CallOrigin,
    CancelCall,
    CancelTask,
    DiscoverCatalog,
    EndCall,
    ForwardAskProgress,
    OpenSessions,
    Payload,
    ResumeCall,
    Root,
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
    "SetStatefulServers",
    "SetSupervisorEpoch",
    "WithdrawAsk",
    "WriteAudit",
]

AuditOutcome = Literal["", "answered", "refused", "unavailable", "lost"]
"""How a call ended, for hooks: with its server's own answer, or with an error of ours, by family."""


class ApplyRoots(BrokerEffect, frozen=True):
    """These are the roots that the agent names: find the source that goes with them, say
    `SessionSourceChanged`.
    """

    session: SessionId
    roots: tuple[Root, ...]
    """File URIs, in the agent's order."""
    changed: bool = False
    """The agent has said that they are others now: they may be those of another workspace."""


class SetSupervisorEpoch(BrokerEffect, frozen=True):
    """What this session asks goes to this life of the supervisor, and all that it had sent under another is
    answered. Its carrier may not be told before: old calls would become new ones (docs/decisions/0019). Nor
    may it before the session's `SessionResumed`, where one is to come.
    """

    session: SessionId
    epoch: Epoch


class SetStatefulServers(BrokerEffect, frozen=True):
    """This session may have state at these servers. Its carrier is told, who alone may know it when all of
    carpool has died (rule 15).
    """

    session: SessionId
    servers: tuple[ServerName, ...]


class ForgetRecordedCall(BrokerEffect, frozen=True):
    """The record may forget this call of the session once all that was said to the session so far is with its
    carrier: its answer may be a part of that. (It is `AnswersWritten` then.)
    """

    session: SessionId
    call: CallId


class BeginHook(BrokerEffect, frozen=True, kw_only=True):
    """Have a hook look at a call, or at how it ended. `HookAnswered` is to come of each."""

    run: RunId
    hook: str
    call: CallId
    session: SessionId
    method: str
    server: ServerName
    target: str
    """The name or URI in the server's own spelling."""
    arguments: Payload
    """The params without name and `_meta`, an object; of a tool call `{"arguments": …}`."""
    outcome: AuditOutcome = ""
    """Empty: it has not ended, it is about to be sent."""
    code: str = ""
    """The slug of an error of ours."""
    body: Payload = ABSENT
    """The server's answer."""
    is_error: bool = False
    """`body` is a JSON-RPC error object, not a result."""


class EndHook(BrokerEffect, frozen=True):
    """Nobody waits for this any more: end what it has started. `HookAnswered` says when that is over (nobody
    minds it where it is late).
    """

    run: RunId
    hook: str


class SaveApprovals(BrokerEffect, frozen=True):
    """What is approved of a pinned server is another set of definitions: keep it (`approvals`)."""

    pin: PinId


class WriteAudit(BrokerEffect, frozen=True):
    """A call has ended: put that down, before its answer leaves."""

    who: CallOrigin
    call: CallId
    method: str
    server: ServerName
    """Empty: it went to none."""
    key: PoolKey
    target: str
    """The server's own name, or the URI without what may be a value; the agent's spelling where no server was
    found.
    """
    outcome: str
    """`ok` and `error`: the server's own answer, a result or a JSON-RPC error. `kept`: a result that was read
    a moment ago. `task`: it goes on as one. `cancelled`. `input_required`: the server has ended it, and wants
    its user to be somewhere first. `unclaimed`: its agent did not come back to a later broker. Else the slug
    of a fault.
    """
    delivered: Literal["yes", "no", "maybe"]
    duration_s: float = -1.0
    """Since its request came; below zero: not known."""
    bytes_in: int = 0
    trace: str = ""
    """The trace id that its agent gave (W3C), or that of its own trace; empty: none."""
    body: Payload = ABSENT
    """The answer, for its size and for whether a tool says in it that it has failed."""


class ExportTrace(BrokerEffect, frozen=True):
    """A traced call has ended now."""

    trace: str
    """The id of the trace, 32 hexadecimal digits."""
    spans: tuple[TracedSpan, ...]


class LogLine(BrokerEffect, frozen=True):
    """A line for the broker's log."""

    level: Literal["info", "warning", "error"]
    text: str


class EndBroker(BrokerEffect, frozen=True):
    """Nothing is under way any more, or it was waited for long enough: this broker's process ends."""


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
    | SetSupervisorEpoch
    | SetStatefulServers
    | ForgetRecordedCall
    | BeginHook
    | EndHook
    | WriteAudit
    | ExportTrace
    | SaveApprovals
    | LogLine
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
    | AnswerAsk
    | ForwardAskProgress
    | SessionEnded
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
