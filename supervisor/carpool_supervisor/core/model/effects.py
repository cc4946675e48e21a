"""What the supervisor core wants done: imperative, values only.

Link messages to the broker are effects as they are (`CallAnswered`, `CallFailed`, `CallProgressed`,
`Catalog`, `PoolChanged`, `OperationEnded`). Effects are performed in order.

Knows nothing of: how any of it is done.
"""

from typing import Literal

from msgspec import Struct

from carpool_protocol.ids import InstanceId, PoolKey, RawJson, ServerName, WireId
from carpool_protocol.link.messages import (
    AskOpened,
    AskWithdrawn,
    Call,
    CallAnswered,
    CallFailed,
    CallProgressed,
    CallsRecorded,
    Catalog,
    ElicitationFinished,
    Era,
    LogForSession,
    OperationEnded,
    Payload,
    PoolChanged,
    ResourceChanged,
    TaskStatusChanged,
    Text,
)
from carpool_supervisor.core.model.sharing import EvidenceKind


class SupervisorEffect(Struct, frozen=True, tag=True):
    """Root of the supervisor's own effects."""


class Spawn(SupervisorEffect, frozen=True):
    """Start a process of this pool and greet it."""

    instance: InstanceId
    key: PoolKey
    server: ServerName
    generation: int
    era: Era = "handshake"
    """The one to greet it in first."""


class GreetInOtherEra(SupervisorEffect, frozen=True):
    """The instance has not answered: greet it in the other era too."""

    instance: InstanceId


class GiveUpListRequest(SupervisorEffect, frozen=True):
    """Give up the list request that is out: its answer has not come for so long."""

    instance: InstanceId
    after_s: float


class RereadLists(SupervisorEffect, frozen=True):
    """Have the instance tell its lists again."""

    instance: InstanceId


class WriteCall(SupervisorEffect, frozen=True):
    """Hand the call to the instance under this wire id."""

    instance: InstanceId
    wire: WireId
    call: Call


class WriteCancel(SupervisorEffect, frozen=True):
    """Tell the instance that nobody waits for this wire id any more."""

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
    """What the server wanted before it goes on with this call is there, or its pause over: say it again."""

    instance: InstanceId
    wire: WireId


class WriteAskProgress(SupervisorEffect, frozen=True):
    """Tell the server how far its agent is with a request of the server's."""

    instance: InstanceId
    token: RawJson
    """The server's own progress token."""
    params: Payload
    """The notification's params without `progressToken`."""


class RecordEvidence(SupervisorEffect, frozen=True):
    """Keep a piece of evidence about the program of this pool; `PoolKnowledgeChanged` follows."""

    key: PoolKey
    kind: EvidenceKind
    detail: str


class RecordEra(SupervisorEffect, frozen=True):
    """An instance of this pool has greeted in this era: remember that, and who it said it is."""

    key: PoolKey
    era: Era
    why: Text
    """What it did when it was greeted in the other; empty: it was not."""
    server_info: Payload


class WriteProbe(SupervisorEffect, frozen=True):
    """Ping the instance."""

    instance: InstanceId


class WriteLevel(SupervisorEffect, frozen=True):
    """Tell the instance from which level on log messages are wanted."""

    instance: InstanceId
    level: str


class WriteSubscriptions(SupervisorEffect, frozen=True):
    """Subscribe to resources, and end subscriptions."""

    instance: InstanceId
    add: tuple[str, ...]
    drop: tuple[str, ...]


class WriteTaskSubscriptions(SupervisorEffect, frozen=True):
    """Have the instance tell how far these tasks are, and no others any more."""

    instance: InstanceId
    tasks: tuple[str, ...]


class WriteTaskCancel(SupervisorEffect, frozen=True):
    """Tell the instance that nobody comes back for this task."""

    instance: InstanceId
    task: str


class KeepServerLog(SupervisorEffect, frozen=True):
    """A log message that cannot be told to any agent: into the server's log file, for operators."""

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
    """The instance is gone: release what the shell holds for it."""

    instance: InstanceId


class WriteLogLine(SupervisorEffect, frozen=True):
    """A line for the supervisor's log, and for that of the server that it is about."""

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
