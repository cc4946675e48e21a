"""Effects of the supervisor's core: imperative, values only.

Link messages to the broker are effects as they are (`CallAnswered`, `CallFailed`, `CallProgressed`,
`Catalog`, `PoolChanged`, `OperationEnded`). Effects are performed in order.

Knows nothing of: how an effect is performed.
"""

from typing import Literal

from msgspec import Struct

from carpool_protocol.ids import InstanceId, PoolKey, RawJson, ServerName, WireId
from carpool_protocol.link.messages import (
    AskOpened,
    AskWithdrawn,
    Call,
    CallAnswered,
    CallAtNode,
    CallFailed,
    CallProgressed,
    CallsRecorded,
    CallTimed,
    Catalog,
    ElicitationFinished,
    Era,
    LogForSession,
    Name,
    OperationEnded,
    Payload,
    PoolChanged,
    ResourceChanged,
    TaskStatusChanged,
    Text,
)
from carpool_supervisor.core.model.sharing import EvidenceKind
from carpool_supervisor.core.model.version_offers import VERSIONS


class SupervisorEffect(Struct, frozen=True, tag=True):
    """Base class of the supervisor's own effects."""


class Spawn(SupervisorEffect, frozen=True):
    """Start a process of this pool and greet it."""

    instance: InstanceId
    key: PoolKey
    server: ServerName
    generation: int
    era: Era = "handshake"
    """The era of its first greeting."""
    version: str = VERSIONS[0]
    """The version that its first `initialize` offers."""


class GreetInOtherEra(SupervisorEffect, frozen=True):
    """The instance has not answered: greet it in the other era too."""

    instance: InstanceId


class GiveUpListRequest(SupervisorEffect, frozen=True):
    """Give up the open list request, because its answer is overdue."""

    instance: InstanceId
    after_s: float


class RereadLists(SupervisorEffect, frozen=True):
    """Read the instance's lists again."""

    instance: InstanceId
    is_calm: bool = False
    """They were not read again for some time: a few changes are followed at once again."""


class WriteCall(SupervisorEffect, frozen=True):
    """Write the call to the instance under this wire id."""

    instance: InstanceId
    wire: WireId
    call: Call


class WriteCancel(SupervisorEffect, frozen=True):
    """Tell the instance that this wire id is cancelled."""

    instance: InstanceId
    wire: WireId
    reason: Text


class WriteAskAnswer(SupervisorEffect, frozen=True):
    """Answer a request of the server."""

    instance: InstanceId
    id: RawJson
    """The server's own request id, byte for byte."""
    is_error: bool
    """`body` is a JSON-RPC error object, not a result."""
    body: Payload


class WriteRetry(SupervisorEffect, frozen=True):
    """Send this call again: all required input is there, or its pause is over."""

    instance: InstanceId
    wire: WireId


class WriteAskProgress(SupervisorEffect, frozen=True):
    """Report to the server how far the agent is with its request."""

    instance: InstanceId
    token: RawJson
    """The server's own progress token."""
    params: Payload
    """The notification's params without `progressToken`."""


class RecordEvidence(SupervisorEffect, frozen=True):
    """Keep a piece of evidence about the program of this pool; `KnowledgeChanged` follows."""

    key: PoolKey
    kind: EvidenceKind
    detail: str


class RecordEra(SupervisorEffect, frozen=True):
    """Remember the era in which an instance of this pool has greeted, and the name and version of the
    server.
    """

    key: PoolKey
    era: Era
    why: Text
    """The server's reaction to the greeting of the other era; empty: not tried."""
    server_info: Payload


class WriteProbe(SupervisorEffect, frozen=True):
    """Ping the instance."""

    instance: InstanceId
    number: int
    """As `ProbeAnswered` repeats it."""


class WriteLevel(SupervisorEffect, frozen=True):
    """Set the lowest level of log messages that is wanted."""

    instance: InstanceId
    level: Name


class WriteSubscriptions(SupervisorEffect, frozen=True):
    """Subscribe to resources, and end subscriptions."""

    instance: InstanceId
    add: tuple[Name, ...]
    drop: tuple[Name, ...]


class WriteTaskSubscriptions(SupervisorEffect, frozen=True):
    """Subscribe to the progress of exactly these tasks."""

    instance: InstanceId
    tasks: tuple[Name, ...]


class WriteTaskCancel(SupervisorEffect, frozen=True):
    """Cancel a task whose agent will not return for it."""

    instance: InstanceId
    task: Name


class KeepServerLog(SupervisorEffect, frozen=True):
    """Write a log message that belongs to no agent into the server's log file, for operators."""

    instance: InstanceId
    level: str
    params: Payload


class CloseStdin(SupervisorEffect, frozen=True):
    """Ask the instance politely to end."""

    instance: InstanceId


class SignalGroup(SupervisorEffect, frozen=True):
    """Signal the instance's whole process group."""

    instance: InstanceId
    signal: Literal["TERM", "KILL"]


class ReleaseInstance(SupervisorEffect, frozen=True):
    """The instance is gone: release the resources that the shell holds for it."""

    instance: InstanceId


class WriteLogLine(SupervisorEffect, frozen=True):
    """A line for the supervisor's log, and for the log of the server that it concerns."""

    level: Literal["info", "warning", "error"]
    text: str
    server: ServerName = ServerName("")
    instance: InstanceId = InstanceId(0)


OwnEffect = (
    Spawn
    | WriteCall
    | WriteCancel
    | WriteLevel
    | WriteSubscriptions
    | WriteTaskSubscriptions
    | WriteTaskCancel
    | KeepServerLog
    | WriteAskAnswer
    | WriteAskProgress
    | WriteRetry
    | GreetInOtherEra
    | GiveUpListRequest
    | RereadLists
    | RecordEvidence
    | RecordEra
    | WriteProbe
    | CloseStdin
    | SignalGroup
    | ReleaseInstance
    | WriteLogLine
)
LinkEffect = (
    CallAnswered
    | CallFailed
    | CallProgressed
    | CallAtNode
    | CallTimed
    | Catalog
    | PoolChanged
    | OperationEnded
    | LogForSession
    | ResourceChanged
    | AskOpened
    | AskWithdrawn
    | ElicitationFinished
    | TaskStatusChanged
    | CallsRecorded
)
AnyEffect = OwnEffect | LinkEffect
