"""What the broker core wants done: imperative, values only.

Link messages to the supervisor are effects as they are (`Call`, `CancelCall`, `Wanted`,
`Discover`). Effects are performed in order.

Knows nothing of: how any of it is worded or written.
"""

from typing import Literal

from msgspec import Struct

from carpool_protocol.ids import AskId, PoolKey, RawJson, SessionId
from carpool_protocol.messages import (
    AnswerAsk,
    AskProgressed,
    Call,
    CancelCall,
    Discover,
    Feature,
    Payload,
    SessionGone,
    SessionRekeyed,
    Sessions,
    SetLevel,
    Wanted,
    Watch,
)


class Effect(Struct, frozen=True, tag=True):
    """Root of the broker's own effects."""


class Reply(Effect, frozen=True):
    """Answer a request of this agent."""

    session: SessionId
    id: RawJson
    is_error: bool
    """`body` is a JSON-RPC error object, not a result."""
    body: Payload


class ReplyOutward(Effect, frozen=True):
    """Answer a request with a server's result that may hold what this agent cannot read as it is."""

    session: SessionId
    id: RawJson
    body: Payload
    method: str
    version: str
    key: PoolKey


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


class SayListChanged(Effect, frozen=True):
    """Tell this agent that a list is not what it last got."""

    session: SessionId
    family: Literal["tools", "prompts", "resources"] = "tools"


class SayLog(Effect, frozen=True):
    """Pass a server's log message on."""

    session: SessionId
    params: Payload


class SayUpdated(Effect, frozen=True):
    """Tell this agent that a resource it subscribed to, or a part of it, changed."""

    session: SessionId
    uri: str
    """As this agent is to read it."""
    params: Payload


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


class WithdrawAsk(Effect, frozen=True):
    """Tell this agent that its answer is no longer needed."""

    session: SessionId
    ask: AskId
    reason: str


class SayElicited(Effect, frozen=True):
    """Tell this agent that what it was sent to a URL for is done."""

    session: SessionId
    params: Payload


class UseRoots(Effect, frozen=True):
    """These are the roots that the agent names: find the source that goes with them, say `SessionMoved`."""

    session: SessionId
    roots: tuple[str, ...]
    """File URIs, in the agent's order."""


class Note(Effect, frozen=True):
    """A line for the broker's log."""

    level: Literal["info", "warning", "error"]
    text: str


OwnEffect = (
    Reply
    | ReplyOutward
    | Greet
    | ReportProgress
    | SayListChanged
    | SayLog
    | SayUpdated
    | SendAsk
    | WithdrawAsk
    | SayElicited
    | UseRoots
    | Note
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
    | SessionRekeyed
    | Sessions
)
AnyEffect = OwnEffect | LinkEffect
