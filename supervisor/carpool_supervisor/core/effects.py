"""What the supervisor core wants done: imperative, values only.

Link messages to the broker are effects as they are (`Answered`, `Failed`, `Progressed`,
`Catalog`, `PoolChanged`, `Operated`). Effects are performed in order.

Knows nothing of: how any of it is done.
"""

from typing import Literal

from msgspec import Struct

from carpool_protocol.ids import InstanceId, PoolKey, ServerName, WireId
from carpool_protocol.messages import (
    Answered,
    Call,
    Catalog,
    Failed,
    Logged,
    Operated,
    Payload,
    PoolChanged,
    Progressed,
    Updated,
)


class Effect(Struct, frozen=True, tag=True):
    """Root of the supervisor's own effects."""


class Spawn(Effect, frozen=True):
    """Start a process of this pool and greet it."""

    instance: InstanceId
    key: PoolKey
    server: ServerName
    generation: int


class WriteCall(Effect, frozen=True):
    """Hand the call to the instance under this wire id."""

    instance: InstanceId
    wire: WireId
    call: Call


class WriteCancel(Effect, frozen=True):
    """Tell the instance that nobody waits for this wire id any more."""

    instance: InstanceId
    wire: WireId
    reason: str


class Probe(Effect, frozen=True):
    """Ping the instance."""

    instance: InstanceId


class WriteLevel(Effect, frozen=True):
    """Tell the instance from which level on log messages are wanted."""

    instance: InstanceId
    level: str


class WriteWatch(Effect, frozen=True):
    """Subscribe to resources, and end subscriptions."""

    instance: InstanceId
    add: tuple[str, ...]
    drop: tuple[str, ...]


class KeepLog(Effect, frozen=True):
    """A log message that cannot be told to any agent: into the server's log file, for operators."""

    instance: InstanceId
    level: str
    params: Payload


class CloseStdin(Effect, frozen=True):
    """Ask the instance politely to end."""

    instance: InstanceId


class SignalGroup(Effect, frozen=True):
    """Signal the instance's whole process group."""

    instance: InstanceId
    signal: Literal["TERM", "KILL"]


class Forget(Effect, frozen=True):
    """The instance is gone: release what the shell holds for it."""

    instance: InstanceId


class Note(Effect, frozen=True):
    """A line for the supervisor's log."""

    level: Literal["info", "warning", "error"]
    text: str


OwnEffect = (
    Spawn
    | WriteCall
    | WriteCancel
    | WriteLevel
    | WriteWatch
    | KeepLog
    | Probe
    | CloseStdin
    | SignalGroup
    | Forget
    | Note
)
LinkEffect = Answered | Failed | Progressed | Catalog | PoolChanged | Operated | Logged | Updated
AnyEffect = OwnEffect | LinkEffect
