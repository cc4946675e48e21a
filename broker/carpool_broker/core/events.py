"""What can happen to the broker: past tense, values only.

Owns the vocabulary of the broker core's input beside the link messages, which are events as
they come (`Answered`, `Failed`, `Progressed`, `Catalog`, `PoolChanged`, `Credit`). Payloads are
opaque and annotated so that a journal keeps their length only.

Knows nothing of: sockets, JSON, how an era words any of this.
"""

from typing import NewType

from msgspec import Struct

from carpool_broker.core.bounds import Bounds
from carpool_broker.core.listing import Family
from carpool_broker.core.scope import Scope
from carpool_protocol.faults import TOOLS_CALL
from carpool_protocol.ids import RawJson, ServerName, SessionId
from carpool_protocol.messages import (
    Answered,
    Catalog,
    Credit,
    Failed,
    Logged,
    Payload,
    PoolChanged,
    PoolSpec,
    Progressed,
    Updated,
)

SourceId = NewType("SourceId", str)
"""Where a scope comes from: one configuration seen with one environment. Many sessions share one."""


class Event(Struct, frozen=True, tag=True):
    """Root of the broker's own events."""


class SourceRead(Event, frozen=True, kw_only=True):
    """A configuration was read, for the first time or again."""

    source: SourceId
    scope: Scope
    specs: tuple[PoolSpec, ...]
    misconfigured: dict[ServerName, str]
    """Why a server of this source cannot be run, for people."""
    stop_first: frozenset[ServerName]
    """Servers whose replacement may start only after the old pool is gone."""
    max_processes: int
    max_greeting: int


class SourceDropped(Event, frozen=True):
    """No session uses this source any more."""

    source: SourceId


class LimitsRead(Event, frozen=True):
    """The configuration's limits for sessions were read again."""

    bounds: Bounds
    list_wait_s: float


class AgentCame(Event, frozen=True, kw_only=True):
    """An agent is attached and what it may see is known."""

    session: SessionId
    source: SourceId
    agent: str
    pid: int
    carrier: str


class AgentLeft(Event, frozen=True):
    """The agent is gone: nobody waits for anything of it."""

    session: SessionId


class AgentGreeted(Event, frozen=True):
    """`initialize`."""

    session: SessionId
    id: RawJson
    version: str
    agent: str


class AgentPinged(Event, frozen=True):
    """`ping`."""

    session: SessionId
    id: RawJson


class AgentListed(Event, frozen=True):
    """`tools/list`, `prompts/list`, `resources/list`, `resources/templates/list`."""

    session: SessionId
    id: RawJson
    cursor: str | None
    family: Family = "tools"


class AgentCalled(Event, frozen=True):
    """A request for one server: `tools/call`, `prompts/get`, `resources/read`, `completion/complete`."""

    session: SessionId
    id: RawJson
    name: str
    """What it is about, as the agent spelled it: a name, a URI, the JSON of a reference."""
    rest: Payload
    meta: Payload
    token: RawJson
    """The agent's progress token; absent when it wants none."""
    method: str = TOOLS_CALL


class AgentCancelled(Event, frozen=True):
    """`notifications/cancelled`."""

    session: SessionId
    id: RawJson
    reason: str


class AgentSetLevel(Event, frozen=True):
    """`logging/setLevel`."""

    session: SessionId
    id: RawJson
    level: str


class AgentWatched(Event, frozen=True):
    """`resources/subscribe`, or `resources/unsubscribe`."""

    session: SessionId
    id: RawJson
    uri: str
    """As the agent spelled it."""
    on: bool


class AgentErred(Event, frozen=True):
    """A request that cannot be served: it gets an error with its own id."""

    session: SessionId
    id: RawJson
    fault: str
    detail: str


class SupervisorCame(Event, frozen=True):
    """A supervisor greeted; its window is full and it knows nothing yet."""

    credit_bytes: int


class SupervisorWent(Event, frozen=True):
    """The supervisor is gone, and with it every instance."""


OwnEvent = (
    SourceRead
    | SourceDropped
    | LimitsRead
    | AgentCame
    | AgentLeft
    | AgentGreeted
    | AgentPinged
    | AgentListed
    | AgentCalled
    | AgentCancelled
    | AgentSetLevel
    | AgentWatched
    | AgentErred
    | SupervisorCame
    | SupervisorWent
)
LinkEvent = Answered | Failed | Progressed | Catalog | PoolChanged | Credit | Logged | Updated
AnyEvent = OwnEvent | LinkEvent
