"""What the broker core wants done: imperative, values only.

Link messages to the supervisor are effects as they are (`Call`, `CancelCall`, `Wanted`,
`Discover`). Effects are performed in order.

Knows nothing of: how any of it is worded or written.
"""

from typing import Literal

from msgspec import Struct

from carpool_protocol.ids import PoolKey, RawJson, SessionId
from carpool_protocol.messages import Call, CancelCall, Discover, Feature, Payload, SetLevel, Wanted, Watch


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


class Note(Effect, frozen=True):
    """A line for the broker's log."""

    level: Literal["info", "warning", "error"]
    text: str


OwnEffect = Reply | ReplyOutward | Greet | ReportProgress | SayListChanged | SayLog | SayUpdated | Note
LinkEffect = Call | CancelCall | Wanted | Discover | SetLevel | Watch
AnyEffect = OwnEffect | LinkEffect
