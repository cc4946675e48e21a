"""Events of the supervisor's core: past tense, values only.

Owns the supervisor's own events. Link messages are events as they are (`Call`, `CancelCall`, `SetPools`,
`DiscoverCatalog`, `Operate`). Payloads are opaque, and annotated so that a journal keeps their length only.

Knows nothing of: JSON, pipes, the meaning of pids.
"""

from typing import Final, Literal

from msgspec import Struct

from carpool_protocol.ids import InstanceId, PoolKey, RawJson, WireId
from carpool_protocol.link.messages import (
    AnswerAsk,
    AnswersWritten,
    Call,
    CancelCall,
    CancelTask,
    Catalog,
    ChangeResourceSubscriptions,
    DiscoverCatalog,
    EndCall,
    Era,
    ForwardAskProgress,
    Name,
    Need,
    OpenSessions,
    Operate,
    Payload,
    ResumeCall,
    SessionAbsent,
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

MAX_NOTICE_BYTES: Final = 1 << 14
"""Longer params of a server's notification are not passed on to agents, but only what it is about."""


class SupervisorEvent(Struct, frozen=True, tag=True):
    """Base class of the supervisor's own events."""


class BrokerConnected(SupervisorEvent, frozen=True):
    """A broker greeted, for the first time or again: no session owns the calls that were open before."""

    same: bool = False
    """The same broker as before: only the link was cut, and its sessions live on."""


class InstanceSpawned(SupervisorEvent, frozen=True):
    """The process runs, or the session at another node is open; greeting begins."""

    instance: InstanceId
    pid: int
    """0: it is a session at another node."""
    node: str = ""
    """The name of that node."""
    node_session: int = 0
    """The number of that session among those with that node."""


class SpawnFailed(SupervisorEvent, frozen=True):
    """The process could not be started at all."""

    instance: InstanceId
    text: str
    jitter: float
    """Uniform in [0, 1), drawn by the shell."""
    passing: bool = False
    """Another node is away, which may be over soon. Otherwise a configuration is at fault (no such command,
    no such directory, a node that does not offer the server), and only a change of it helps.
    """
    shortage: bool = False
    """Carpool or the machine is at a limit (descriptors, processes, memory): no server is at fault."""


class InstanceGreeted(SupervisorEvent, frozen=True):
    """The instance has greeted as MCP and its catalog is read: it is fit."""

    instance: InstanceId
    catalog: Catalog
    """Its `key` is the pool's."""


class GreetingFailed(SupervisorEvent, frozen=True):
    """The instance answered the greeting, but not as a known MCP version."""

    instance: InstanceId
    text: str
    refused: str = ""
    """If a server of the other era could have answered so: its answer, as a clause without advice."""


class EraRefused(SupervisorEvent, frozen=True):
    """The instance does not speak this era, and was greeted in the other."""

    instance: InstanceId
    era: Era
    text: Text
    """Its answer, as a clause."""


class VersionRefused(SupervisorEvent, frozen=True):
    """The instance refused a version of the handshake era in words."""

    instance: InstanceId
    version: str
    offered: str
    """The version that it was offered next; empty: none."""


class CatalogRead(SupervisorEvent, frozen=True):
    """The lists of a serving instance were read again."""

    instance: InstanceId
    catalog: Catalog


class ListsChanged(SupervisorEvent, frozen=True):
    """A serving instance announced changed lists. They were read so often that they are not read again before
    `RereadLists`.
    """

    instance: InstanceId


class ListAnswerLost(SupervisorEvent, frozen=True):
    """The answer to a list request was unreadable, or never came. The lists keep what was known and are read
    again later.
    """

    instance: InstanceId
    times: int
    """Times in a row."""
    text: str
    """The reason; empty if it was reported before."""


class ListRequestChanged(SupervisorEvent, frozen=True):
    """A list request was sent, or the open one ended."""

    instance: InstanceId
    method: str
    """Empty: none is open."""


class ServerAnswered(SupervisorEvent, frozen=True):
    """An answer with one of our wire ids. The core decides if it is late or unknown."""

    instance: InstanceId
    wire: WireId
    is_error: bool
    body: Payload
    ttl_ms: int = -1
    """See `messages.CallAnswered`."""
    public: bool = False
    task: str = ""
    """See `messages.CallAnswered`."""
    task_ttl_ms: int = -1
    task_over: bool = False
    """The task that the call concerned has ended, and this answer says so."""
    state_lost: bool = False
    """Carpool's own bridge has answered that its server no longer knows the session. The call did not run,
    and this process must be replaced.
    """


class AnswerUnreadable(SupervisorEvent, frozen=True):
    """A line that belongs to this wire id and is no valid answer (rules 16 and 17)."""

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
    """The server sent a request that only an agent can answer (`attribution.AGENT_METHODS`)."""

    instance: InstanceId
    id: RawJson
    """The server's own request id, byte for byte."""
    params: Payload
    """Without `_meta`'s `progressToken` and related task."""
    facts: AskFacts
    token: RawJson
    """The server's progress token for it; absent if it gave none."""
    elicitation: str = ""
    """The `elicitationId` of an elicitation in url mode."""
    needs: tuple[Need, ...] = ()
    """The capabilities that its agent must have declared (`ask_needs`)."""
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
    elicitations: tuple[Name, ...]
    """The elicitation ids."""
    urls: tuple[Payload, ...] = ()
    """The elicitations as the server wrote them."""


class ElicitationCompleted(SupervisorEvent, frozen=True):
    """`notifications/elicitation/complete`."""

    instance: InstanceId
    elicitation: str
    params: Payload


class TaskCreated(SupervisorEvent, frozen=True):
    """The server runs this call as a task, which the adapter drives to its end."""

    instance: InstanceId
    wire: WireId
    task: Name


class TaskChanged(SupervisorEvent, frozen=True):
    """The status of a task that agents poll themselves (`notifications/tasks`)."""

    instance: InstanceId
    task: Name
    over: bool
    """The task has ended."""
    params: Payload


class ServerLogged(SupervisorEvent, frozen=True):
    """`notifications/message`: it names no call in either era."""

    instance: InstanceId
    level: str
    params: Payload


class ResourceUpdated(SupervisorEvent, frozen=True):
    """A subscribed resource, or a part of it, has changed."""

    instance: InstanceId
    uri: Name
    params: Payload


class ServerNotReady(SupervisorEvent, frozen=True):
    """Stateless era: the server asks to send this call again a little later."""

    instance: InstanceId
    wire: WireId
    pause_s: float


class StdoutReceived(SupervisorEvent, frozen=True):
    """At least one byte came on stdout."""

    instance: InstanceId


class ProbeAnswered(SupervisorEvent, frozen=True):
    """The instance answered our ping."""

    instance: InstanceId
    number: int


class ServerLineRejected(SupervisorEvent, frozen=True):
    """A line that is no message, or no message for carpool: dropped, shown as `last_error`."""

    instance: InstanceId
    text: str


class StdinBlocked(SupervisorEvent, frozen=True):
    """The instance does not read its stdin (`blocked`), or reads it again."""

    instance: InstanceId
    blocked: bool


class StdinBroken(SupervisorEvent, frozen=True):
    """The process has closed its stdin, though it may still run: nothing more can be delivered to it."""

    instance: InstanceId
    unwritten: tuple[WireId, ...]
    """Calls of which not every byte was handed to the process: not delivered."""


class StdoutPaused(SupervisorEvent, frozen=True):
    """Carpool does not read the instance's stdout (`paused`), or reads it again."""

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
    is_final: bool = False
    """It was a session, and its node refuses another one until somebody changes something."""
    refused_nothing: bool = False
    """It ended by a signal, or had not read all of its stdin: no version that it was offered is why."""


class PoolKnowledge(Struct, frozen=True):
    """The knowledge about the program of one pool."""

    key: PoolKey
    entry: WellKnownServer | None
    evidence: tuple[Evidence, ...]
    era: Era | None = None
    """The era that it speaks, if the other one was tried and did not work."""


class KnowledgeChanged(SupervisorEvent, frozen=True):
    """The knowledge about the programs of these pools has changed. Sent after each `SetPools` for all new
    pools, and again for new evidence.
    """

    pools: tuple[PoolKnowledge, ...]


class MemoryMeasured(SupervisorEvent, frozen=True):
    """The memory of the instances with a memory limit, each with its descendants."""

    sizes: tuple[tuple[InstanceId, int], ...]
    """RSS in bytes."""


class ClockJumped(SupervisorEvent, frozen=True):
    """The machine slept: every instance is probed before it is used."""


class StopRequested(SupervisorEvent, frozen=True):
    """The supervisor must end: stop everything without draining."""


InstanceEvent = (
    InstanceSpawned
    | SpawnFailed
    | InstanceGreeted
    | GreetingFailed
    | EraRefused
    | VersionRefused
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
"""The events of one instance: each has a member `instance`."""
OwnEvent = BrokerConnected | KnowledgeChanged | MemoryMeasured | ClockJumped | StopRequested | InstanceEvent
LinkEvent = (
    SetPools
    | DiscoverCatalog
    | Call
    | CancelCall
    | EndCall
    | Operate
    | SetLevel
    | SetResourceSubscriptions
    | ChangeResourceSubscriptions
    | AnswerAsk
    | ForwardAskProgress
    | SessionEnded
    | SessionAbsent
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
    VersionRefused,
    TaskChanged,
)
"""Events that an instance caused itself: signs of life, like an answer (rule 8)."""


NOTIFICATIONS = (ServerProgressed, ServerLogged, ResourceUpdated)
"""Frequent events that never change a pool's status, so no status is sent after them."""
