"""What the broker core wants done: imperative, values only.

Owns what is done beside telling agents something (`agent_effects`, to be had here too): what carriers are
to remember, hooks, pins, the audit, the broker's own end. Link messages to the supervisor are effects as they
are (`Call`, `CancelCall`, `Wanted`, `Discover`). Effects are performed in order.

Knows nothing of: how any of it is worded or written.
"""

from typing import Literal

from carpool_broker.core.model.agent_effects import (
    NO_CALL,
    Acknowledge,
    AnswerOwn,
    Describe,
    Effect,
    EndListen,
    Greet,
    Input,
    Reply,
    ReplyOutward,
    ReplyStateless,
    ReportProgress,
    RequireInput,
    SayElicited,
    SayListChanged,
    SayLog,
    SayTask,
    SayUpdated,
    SendAsk,
    WithdrawAsk,
)
from carpool_broker.core.model.approval import PinId
from carpool_broker.core.model.events import RunId
from carpool_protocol.ids import ABSENT, CallId, Epoch, PoolKey, ServerName, SessionId
from carpool_protocol.link.messages import (
    AnswerAsk,
    AskProgressed,
    Bereft,
    Call,
    Caller,
    CancelCall,
    CancelTask,
    Discover,
    Fleeting,
    Payload,
    Resume,
    Root,
    SessionGone,
    SessionRekeyed,
    Sessions,
    SetLevel,
    Wanted,
    Watch,
    WatchTasks,
    Written,
)

__all__ = [
    "NO_CALL",
    "Acknowledge",
    "AnswerOwn",
    "AnyEffect",
    "Audited",
    "Describe",
    "Effect",
    "End",
    "EndHook",
    "EndListen",
    "Greet",
    "Input",
    "KeepPins",
    "LetGo",
    "LinkEffect",
    "Note",
    "Outcome",
    "OwnEffect",
    "Reply",
    "ReplyOutward",
    "ReplyStateless",
    "ReportProgress",
    "RequireInput",
    "RunHook",
    "SayElicited",
    "SayListChanged",
    "SayLog",
    "SayTask",
    "SayUpdated",
    "SendAsk",
    "TellServed",
    "TellStateful",
    "UseRoots",
    "WithdrawAsk",
]

Outcome = Literal["", "answered", "refused", "unavailable", "lost"]
"""How a call ended, for hooks: with its server's own answer, or with an error of ours, by family."""


class UseRoots(Effect, frozen=True):
    """These are the roots that the agent names: find the source that goes with them, say `SessionMoved`."""

    session: SessionId
    roots: tuple[Root, ...]
    """File URIs, in the agent's order."""
    changed: bool = False
    """The agent has said that they are others now: they may be those of another workspace."""


class TellServed(Effect, frozen=True):
    """What this session asks goes to this life of the supervisor, and all that it had sent under another is
    answered. Its carrier may not be told before: old calls would become new ones (docs/decisions/0019). Nor
    may it before the session's `AgentResumed`, where one is to come.
    """

    session: SessionId
    epoch: Epoch


class TellStateful(Effect, frozen=True):
    """This session may have state at these servers. Its carrier is told, who alone may know it when all of
    carpool has died (rule 15).
    """

    session: SessionId
    servers: tuple[ServerName, ...]


class LetGo(Effect, frozen=True):
    """The record may forget this call of the session once all that was said to the session so far is with its
    carrier: its answer may be a part of that. (It is `Written` then.)
    """

    session: SessionId
    call: CallId


class RunHook(Effect, frozen=True, kw_only=True):
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
    outcome: Outcome = ""
    """Empty: it has not ended, it is about to be sent."""
    code: str = ""
    """The slug of an error of ours."""
    body: Payload = ABSENT
    """The server's answer."""
    is_error: bool = False
    """`body` is a JSON-RPC error object, not a result."""


class EndHook(Effect, frozen=True):
    """Nobody waits for this any more: end what it has started. `HookAnswered` says when that is over (nobody
    minds it where it is late).
    """

    run: RunId
    hook: str


class KeepPins(Effect, frozen=True):
    """What is approved of a pinned server is another set of definitions: keep it (`approvals`)."""

    pin: PinId


class Audited(Effect, frozen=True):
    """A call has ended: put that down, before its answer leaves."""

    who: Caller
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
    """The trace id that its agent gave (W3C); empty: none."""
    body: Payload = ABSENT
    """The answer, for its size and for whether a tool says in it that it has failed."""


class Note(Effect, frozen=True):
    """A line for the broker's log."""

    level: Literal["info", "warning", "error"]
    text: str


class End(Effect, frozen=True):
    """Nothing is under way any more, or it was waited for long enough: this broker's process ends."""


OwnEffect = (
    Reply
    | ReplyOutward
    | ReplyStateless
    | AnswerOwn
    | Describe
    | RequireInput
    | Acknowledge
    | EndListen
    | Greet
    | ReportProgress
    | SayListChanged
    | SayLog
    | SayUpdated
    | SayTask
    | SendAsk
    | WithdrawAsk
    | SayElicited
    | UseRoots
    | TellServed
    | TellStateful
    | LetGo
    | RunHook
    | EndHook
    | Audited
    | KeepPins
    | Note
    | End
)
LinkEffect = (
    Call
    | CancelCall
    | Wanted
    | Discover
    | SetLevel
    | Watch
    | AnswerAsk
    | AskProgressed
    | SessionGone
    | Fleeting
    | SessionRekeyed
    | Sessions
    | Bereft
    | WatchTasks
    | CancelTask
    | Written
    | Resume
)
AnyEffect = OwnEffect | LinkEffect
