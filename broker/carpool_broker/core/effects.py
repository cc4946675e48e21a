"""What the broker core wants done: imperative, values only.

Link messages to the supervisor are effects as they are (`Call`, `CancelCall`, `Wanted`,
`Discover`). Effects are performed in order.

Knows nothing of: how any of it is worded or written.
"""

from typing import Literal

from msgspec import Struct

from carpool_protocol.ids import RawJson, SessionId
from carpool_protocol.messages import Call, CancelCall, Discover, Payload, Wanted


class Effect(Struct, frozen=True, tag=True):
    """Root of the broker's own effects."""


class Reply(Effect, frozen=True):
    """Answer a request of this agent."""

    session: SessionId
    id: RawJson
    is_error: bool
    """`body` is a JSON-RPC error object, not a result."""
    body: Payload


class Greet(Effect, frozen=True):
    """Answer `initialize`."""

    session: SessionId
    id: RawJson
    version: str
    instructions: str


class ReportProgress(Effect, frozen=True):
    """Pass progress on, with the agent's own token."""

    session: SessionId
    token: RawJson
    params: Payload


class SayListChanged(Effect, frozen=True):
    """Tell this agent that its tools are not what it last listed."""

    session: SessionId


class Note(Effect, frozen=True):
    """A line for the broker's log."""

    level: Literal["info", "warning", "error"]
    text: str


OwnEffect = Reply | Greet | ReportProgress | SayListChanged | Note
LinkEffect = Call | CancelCall | Wanted | Discover
AnyEffect = OwnEffect | LinkEffect
