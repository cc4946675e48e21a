"""What the broker core wants done: imperative, values only.

Link messages to the supervisor are effects as they are (`Call`, `CancelCall`, `Wanted`,
`Discover`). Effects are performed in order.

Knows nothing of: how any of it is worded or written.
"""

from typing import Final, Literal

from msgspec import Struct

from carpool_broker.core.approval import PinId
from carpool_broker.core.events import Notice, RunId
from carpool_protocol.ids import ABSENT, AskId, CallId, Epoch, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.messages import (
    AnswerAsk,
    AskProgressed,
    Bereft,
    Call,
    CancelCall,
    CancelTask,
    Discover,
    Feature,
    Fleeting,
    Payload,
    Resume,
    SessionGone,
    SessionRekeyed,
    Sessions,
    SetLevel,
    Text,
    Wanted,
    Watch,
    WatchTasks,
    Written,
)

NO_CALL: Final = CallId(0)

Outcome = Literal["", "answered", "refused", "unavailable", "lost"]
"""How a call ended, for hooks: with its server's own answer, or with an error of ours, by family."""


class Effect(Struct, frozen=True, tag=True):
    """Root of the broker's own effects."""


class Reply(Effect, frozen=True):
    """Answer a request of this agent."""

    session: SessionId
    id: RawJson
    is_error: bool
    """`body` is a JSON-RPC error object, not a result."""
    body: Payload
    call: CallId = NO_CALL
    """The call that it answers; what the broker answers by itself has none."""


class ReplyOutward(Effect, frozen=True):
    """Answer a request with a server's result that may hold what this agent cannot read as it is."""

    session: SessionId
    id: RawJson
    body: Payload
    method: str
    version: str
    key: PoolKey
    call: CallId = NO_CALL
    """See `Reply`."""
    as_tool: str = ""
    """Where given, the agent has called a tool of ours for it: it is the result of this method, to be read as
    that of `tools/call`.
    """


class ReplyStateless(Effect, frozen=True):
    """Answer a request of the stateless era. What only that era has is put on by whoever words it."""

    session: SessionId
    id: RawJson
    is_error: bool
    body: Payload
    method: str
    uri: str = ""
    """Of `resources/read`, as the agent spelled it: an error says it (MCP 2026-07-28, server/resources)."""
    ttl_ms: int = 0
    """How long the agent may take the result for current; on the methods that have such a hint."""
    public: bool = False
    """Any agent may be given the result; else only agents of the same principal."""
    key: PoolKey = PoolKey("")
    """Where given, the result may hold names and URIs that this agent knows by others."""
    task: str = ""
    """Where given, the result is about this task: our id, in place of the server's."""
    begins_task: bool = False
    """The result is that task: the call goes on as it."""
    call: CallId = NO_CALL
    """See `Reply`."""
    as_tool: str = ""
    """See `ReplyOutward`."""


class AnswerOwn(Effect, frozen=True):
    """Answer a call of one of our own tools that is about what the session sees."""

    session: SessionId
    id: RawJson
    kind: str
    """See `own_tools.OwnKind`."""
    rest: Payload
    """The params of the call, as `AgentCalled.rest`."""
    version: str
    """What the agent can read."""
    stateless: bool


class Describe(Effect, frozen=True):
    """Answer `server/discover`."""

    session: SessionId
    id: RawJson
    instructions: str
    features: tuple[Feature, ...]
    tasks: bool = False
    """The extension `io.modelcontextprotocol/tasks` is served."""
    ttl_ms: int = 0
    public: bool = False


class Input(Struct, frozen=True):
    """One thing that is wanted before a call goes on."""

    key: str
    """Under which the retry is to bring it."""
    method: str
    params: Payload
    """As the server wrote them."""


class RequireInput(Effect, frozen=True):
    """Answer a call with `input_required` (MCP 2026-07-28, basic/utilities/mrtr)."""

    session: SessionId
    id: RawJson
    inputs: tuple[Input, ...]
    state: str
    """Our token; the retry brings it back."""


class Acknowledge(Effect, frozen=True):
    """A `subscriptions/listen` is in force, as far as this. Before everything else that it brings."""

    session: SessionId
    id: RawJson
    families: tuple[Notice, ...]
    uris: tuple[str, ...]
    tasks: tuple[str, ...] = ()


class EndListen(Effect, frozen=True):
    """A `subscriptions/listen` ends, and not because its agent wanted that."""

    session: SessionId
    id: RawJson


class Greet(Effect, frozen=True):
    """Answer `initialize`."""

    session: SessionId
    id: RawJson
    version: str
    instructions: str
    features: tuple[Feature, ...]
    """What to announce, in a stable order."""


class ReportProgress(Effect, frozen=True):
    """Pass progress on, with the agent's own token."""

    session: SessionId
    token: RawJson
    params: Payload
    request: RawJson = ABSENT
    """The request that it belongs to: on a carrier with many streams it travels on that one's."""


class SayListChanged(Effect, frozen=True):
    """Tell this agent that a list is not what it last got."""

    session: SessionId
    family: Notice = "tools"
    listen: RawJson = ABSENT
    """The `subscriptions/listen` that it is said on; absent in the handshake era."""


class SayLog(Effect, frozen=True):
    """Pass a server's log message on."""

    session: SessionId
    params: Payload
    request: RawJson = ABSENT
    """The request that it is about, where that is known."""


class SayUpdated(Effect, frozen=True):
    """Tell this agent that a resource it subscribed to, or a part of it, changed."""

    session: SessionId
    uri: str
    """As this agent is to read it."""
    params: Payload
    listen: RawJson = ABSENT
    """See `SayListChanged`."""


class SayTask(Effect, frozen=True):
    """Tell this agent how far a task is."""

    session: SessionId
    task: str
    """Our id."""
    params: Payload
    listen: RawJson
    """See `SayListChanged`."""
    key: PoolKey = PoolKey("")
    """See `ReplyStateless`."""


class SendAsk(Effect, frozen=True):
    """Ask this agent what a server asks of it."""

    session: SessionId
    ask: AskId
    """Also the request's id and, where progress is wanted, its progress token."""
    method: str
    params: Payload
    """As the server wrote them: another version than the agent's may be meant."""
    wants_progress: bool
    version: str
    """The agent's. Whoever words it for that may find that it cannot be said: then the agent has answered
    with that error.
    """
    request: RawJson = ABSENT
    """The request of the agent that this is asked for: see `ReportProgress`."""


class WithdrawAsk(Effect, frozen=True):
    """Tell this agent that its answer is no longer needed."""

    session: SessionId
    ask: AskId
    reason: Text
    request: RawJson = ABSENT
    """As in `SendAsk`."""


class SayElicited(Effect, frozen=True):
    """Tell this agent that what it was sent to a URL for is done."""

    session: SessionId
    params: Payload


class UseRoots(Effect, frozen=True):
    """These are the roots that the agent names: find the source that goes with them, say `SessionMoved`."""

    session: SessionId
    roots: tuple[str, ...]
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
    """What is approved of a pinned server is another set of definitions: keep it (`pins`)."""

    pin: PinId


class Who(Struct, frozen=True):
    """Whose call it was, as far as that is known. Many records share one."""

    session: SessionId
    agent: str = ""
    pid: int = 0
    carrier: str = ""
    principal: str = ""
    profile: str = ""


class Audited(Effect, frozen=True):
    """A call has ended: put that down, before its answer leaves."""

    who: Who
    call: CallId
    method: str
    """Empty: an earlier broker knew it."""
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
