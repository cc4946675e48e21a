"""What can happen to the supervisor: past tense, values only.

Owns the vocabulary of the supervisor core's input beside the link messages, which are
events as they come (`Call`, `CancelCall`, `SetPools`, `DiscoverCatalog`, `Operate`). Payloads are
opaque and annotated so that a journal keeps their length only.

Knows nothing of: JSON, pipes, pids' meaning.
"""

from typing import Literal

from msgspec import Struct

from carpool_protocol.ids import InstanceId, PoolKey, RawJson, WireId
from carpool_protocol.link.messages import (
    AnswerAsk,
    AnswersWritten,
    Call,
    CancelCall,
    CancelTask,
    Catalog,
    DiscoverCatalog,
    Era,
    ForwardAskProgress,
    Need,
    OpenSessions,
    Operate,
    Payload,
    ResumeCall,
    SessionEnded,
    SessionNotResumable,
    SessionPoolChanged,
    SessionStateLost,
    SetLevel,
    SetPools,
    SetResourceSubscriptions,
    SetTaskSubscriptions,
    Text,
)
from carpool_supervisor.core.model.attribution import AskFacts
from carpool_supervisor.core.model.sharing import Evidence
from carpool_supervisor.core.model.well_known import WellKnownServer


class SupervisorEvent(Struct, frozen=True, tag=True):
    """Root of the supervisor's own events."""


class BrokerConnected(SupervisorEvent, frozen=True):
    """A broker greeted, for the first time or again: what was open before is nobody's now."""

    same: bool = False
    """The one that was there before: the link was cut, and its sessions live on."""


class InstanceSpawned(SupervisorEvent, frozen=True):
    """The process runs; greeting begins."""

    instance: InstanceId
    pid: int


class SpawnFailed(SupervisorEvent, frozen=True):
    """The process could not be started at all."""

    instance: InstanceId
    text: str
    jitter: float
    """Uniform in [0, 1), drawn by the shell."""
    passing: bool = False
    """The machine is at a limit (descriptors, processes), which may be over soon. Else it is the server's
    configuration (no such command, no such directory), and only a change of it helps.
    """


class InstanceGreeted(SupervisorEvent, frozen=True):
    """The instance has greeted as MCP and told its catalog: it is fit."""

    instance: InstanceId
    catalog: Catalog
    """Its `key` is the pool's."""


class GreetingFailed(SupervisorEvent, frozen=True):
    """The instance speaks, but not MCP as we know it."""

    instance: InstanceId
    text: str
    refused: str = ""
    """Where that fits a server of the other era: what it did, a clause without advice."""


class EraRefused(SupervisorEvent, frozen=True):
    """The instance does not speak this era, and was greeted in the other."""

    instance: InstanceId
    era: Era
    text: Text
    """What it did, a clause."""


class CatalogRead(SupervisorEvent, frozen=True):
    """A serving instance told its catalog anew."""

    instance: InstanceId
    catalog: Catalog


class ListsChanged(SupervisorEvent, frozen=True):
    """A serving instance says that its lists are old. They were read so often that they are not read again
    before `Relist`.
    """

    instance: InstanceId


class ListAnswerLost(SupervisorEvent, frozen=True):
    """An answer to a list request could not be read, or never came: what was known stays. All lists are to be
    read again later.
    """

    instance: InstanceId
    times: int
    """So often in a row."""
    text: str
    """Why; empty where that has been said."""


class ListRequestChanged(SupervisorEvent, frozen=True):
    """A list request is out, or none any more."""

    instance: InstanceId
    method: str
    """Empty: none is."""


class ServerAnswered(SupervisorEvent, frozen=True):
    """An answer with one of our wire ids. Whether it is late or unknown is for the core to say."""

    instance: InstanceId
    wire: WireId
    is_error: bool
    body: Payload
    ttl_ms: int = -1
    """See `messages.Answered`."""
    public: bool = False
    task: str = ""
    """See `messages.Answered`."""
    task_ttl_ms: int = -1
    task_over: bool = False
    """The task that the call was about has come to its end, and this tells it."""
    state_lost: bool = False
    """Carpool's own bridge has answered that its server knows the session no more: the call was not run, and
    this process is good for nothing from now on.
    """


class AnswerUnreadable(SupervisorEvent, frozen=True):
    """A line that belongs to this wire id but is no answer (rules 16 and 17)."""

    instance: InstanceId
    wire: WireId
    fault: Literal["bad_answer", "answer_too_large"]
    text: str


class ServerProgressed(SupervisorEvent, frozen=True):
    """Progress for one of our tokens, which are wire ids."""

    instance: InstanceId
    wire: WireId
    params: Payload


class ServerAsked(SupervisorEvent, frozen=True):
    """The server sent a request that only an agent can answer (`attribution.ON_LADDER`)."""

    instance: InstanceId
    id: RawJson
    """The server's own request id, byte for byte."""
    params: Payload
    """Without `_meta`'s `progressToken` and related task."""
    facts: AskFacts
    token: RawJson
    """The server's progress token for it; absent when it wants none."""
    elicitation: str = ""
    """The `elicitationId` of one in url mode."""
    needs: tuple[Need, ...] = ()
    """What its agent must have declared (`ask_needs`)."""
    name: str = ""
    """Stateless era: the server's own key for it."""


class ServerCancelledAsk(SupervisorEvent, frozen=True):
    """The server cancelled a request of its own."""

    instance: InstanceId
    id: RawJson
    reason: Text


class UrlElicitationRequired(SupervisorEvent, frozen=True):
    """The answer that follows sends its agent to URLs first (-32042)."""

    instance: InstanceId
    wire: WireId
    elicitations: tuple[str, ...]
    """The elicitation ids."""
    urls: tuple[Payload, ...] = ()
    """The elicitations as the server wrote them."""


class ElicitationCompleted(SupervisorEvent, frozen=True):
    """`notifications/elicitation/complete`."""

    instance: InstanceId
    elicitation: str
    params: Payload


class TaskCreated(SupervisorEvent, frozen=True):
    """The server runs this call as a task of its own, which the adapter drives to its end."""

    instance: InstanceId
    wire: WireId
    task: str


class TaskChanged(SupervisorEvent, frozen=True):
    """A task that agents come back for is as far as this (`notifications/tasks`)."""

    instance: InstanceId
    task: str
    over: bool
    """It has come to its end."""
    params: Payload


class ServerLogged(SupervisorEvent, frozen=True):
    """`notifications/message`: it names no call in either era."""

    instance: InstanceId
    level: str
    params: Payload


class ResourceUpdated(SupervisorEvent, frozen=True):
    """A resource, or a part of one, that we subscribed to has changed."""

    instance: InstanceId
    uri: str
    params: Payload


class ServerNotReady(SupervisorEvent, frozen=True):
    """Stateless era: the server wants this call said again a little later."""

    instance: InstanceId
    wire: WireId
    pause_s: float


class StdoutReceived(SupervisorEvent, frozen=True):
    """At least one byte came on stdout."""

    instance: InstanceId


class ProbeAnswered(SupervisorEvent, frozen=True):
    """The instance answered our ping."""

    instance: InstanceId


class ServerLineRejected(SupervisorEvent, frozen=True):
    """A line that is no message or no message for us: dropped, shown as `last_error`."""

    instance: InstanceId
    text: str


class StdinBlocked(SupervisorEvent, frozen=True):
    """The instance does not read (`blocked`), or reads again."""

    instance: InstanceId
    blocked: bool


class StdinBroken(SupervisorEvent, frozen=True):
    """The process has closed its stdin, though it may still run: nothing more can be delivered to it."""

    instance: InstanceId
    unwritten: tuple[WireId, ...]
    """Calls of which not every byte was handed to the process: not delivered."""


class StdoutPaused(SupervisorEvent, frozen=True):
    """We do not read what the instance writes (`paused`), or read it again."""

    instance: InstanceId
    paused: bool


class StdoutClosed(SupervisorEvent, frozen=True):
    """No answer can come any more, though the process may still run."""

    instance: InstanceId


class InstanceExited(SupervisorEvent, frozen=True):
    """The process is gone and every byte it wrote has been read."""

    instance: InstanceId
    how: str
    """`ended with exit code 3`, `was killed by SIGKILL`: for people."""
    unwritten: tuple[WireId, ...]
    """Calls of which not every byte was handed to the process: not delivered."""
    stderr: Text
    """Its last lines, masked."""
    jitter: float


class PoolKnowledgeChanged(SupervisorEvent, frozen=True):
    """What is known about the program of a pool: told after each `SetPools` for pools that are new, and again
    when there is more evidence.
    """

    key: PoolKey
    entry: WellKnownServer | None
    evidence: tuple[Evidence, ...]
    era: Era | None = None
    """Which it speaks, where that was found out by the other one not working."""


class MemoryMeasured(SupervisorEvent, frozen=True):
    """How much memory instances with a limit of it hold now, their descendants included."""

    sizes: tuple[tuple[InstanceId, int], ...]
    """RSS in bytes."""


class ClockJumped(SupervisorEvent, frozen=True):
    """The machine slept: every instance is probed before it is used."""


class StopRequested(SupervisorEvent, frozen=True):
    """The supervisor shall end: drain nothing, stop everything."""


InstanceEvent = (
    InstanceSpawned
    | SpawnFailed
    | InstanceGreeted
    | GreetingFailed
    | EraRefused
    | CatalogRead
    | ListsChanged
    | ListAnswerLost
    | ListRequestChanged
    | ServerAnswered
    | AnswerUnreadable
    | ServerProgressed
    | ServerLogged
    | ServerAsked
    | ServerCancelledAsk
    | UrlElicitationRequired
    | ElicitationCompleted
    | TaskCreated
    | TaskChanged
    | ServerNotReady
    | ResourceUpdated
    | StdoutReceived
    | ProbeAnswered
    | ServerLineRejected
    | StdinBlocked
    | StdinBroken
    | StdoutPaused
    | StdoutClosed
    | InstanceExited
)
"""Of one instance: all of these have an `instance`."""
OwnEvent = (
    BrokerConnected | PoolKnowledgeChanged | MemoryMeasured | ClockJumped | StopRequested | InstanceEvent
)
LinkEvent = (
    SetPools
    | DiscoverCatalog
    | Call
    | CancelCall
    | Operate
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
AnyEvent = OwnEvent | LinkEvent

SIGNS_OF_LIFE = (
    InstanceGreeted,
    CatalogRead,
    ListsChanged,
    AnswerUnreadable,
    ServerProgressed,
    StdoutReceived,
    ProbeAnswered,
    ServerLineRejected,
    ServerNotReady,
    EraRefused,
    TaskChanged,
)
"""Events that came out of an instance: signs of life, like an answer (rule 8)."""


NOTIFICATIONS = (ServerProgressed, ServerLogged, ResourceUpdated)
"""What servers may say many times a second: no pool is another one for it."""
