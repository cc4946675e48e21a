"""What can happen to the broker: past tense, values only.

Owns what happens to the broker itself: configurations that are read, hooks, pins, supervisors that come and
go. Beside these its core takes what agents do (`agent_events`, to be had here too) and the link messages,
which are events as they come (`CallAnswered`, `CallFailed`, `CallProgressed`, `Catalog`, `PoolChanged`,
`Credit`).

Knows nothing of: sockets, JSON, how an era words any of this.
"""

from typing import Literal, NewType

from msgspec import Struct, field

from carpool_broker.core.model.agent_events import (
    AgentEvent,
    AskAnswered,
    AskProgressed,
    BadLineReceived,
    BrokerEvent,
    BuiltinCall,
    CallRequested,
    CarrierAnnounced,
    DiscoverRequested,
    InitializedReceived,
    InitializeRequested,
    InputResponse,
    ListenRequested,
    ListenResumed,
    ListNotification,
    ListPageRequested,
    LogLevelRequested,
    PingRequested,
    RequestCancelled,
    RootsAnswered,
    RootsListChanged,
    SessionClosed,
    SessionOpened,
    SessionResumed,
    SessionSourceChanged,
    SourceId,
    SubscribeRequested,
    UnreadChanged,
)
from carpool_broker.core.model.approval import Approved, PinId
from carpool_broker.core.model.bounds import SessionBounds
from carpool_broker.core.model.scope import DisabledServer, NamedServers, Scope
from carpool_protocol.config.schema.capability import EVERYTHING, Capability
from carpool_protocol.ids import ABSENT, CallId, Epoch, PoolKey, ServerName
from carpool_protocol.link.messages import (
    AskOpened,
    AskWithdrawn,
    CallAnswered,
    CallFailed,
    CallProgressed,
    CallsRecorded,
    CallTimed,
    Catalog,
    Credit,
    ElicitationFinished,
    LogForSession,
    Payload,
    PoolChanged,
    PoolSpec,
    ResourceChanged,
    TaskStatusChanged,
    Text,
)

__all__ = [
    "AgentEvent",
    "AnyEvent",
    "AskAnswered",
    "AskProgressed",
    "BadLineReceived",
    "BrokerEvent",
    "BuiltinCall",
    "CallCancelledByOperator",
    "CallRequested",
    "CarrierAnnounced",
    "DiscoverRequested",
    "DrainRequested",
    "EndRequested",
    "HookAnswered",
    "HookRule",
    "HookVerdict",
    "HooksRead",
    "InitializeRequested",
    "InitializedReceived",
    "InputResponse",
    "LimitsRead",
    "LinkEvent",
    "ListNotification",
    "ListPageRequested",
    "ListenRequested",
    "ListenResumed",
    "LocalEvent",
    "LogLevelRequested",
    "PausedServersChanged",
    "PingRequested",
    "PinsApproved",
    "RequestCancelled",
    "RootsAnswered",
    "RootsListChanged",
    "RunId",
    "SessionClosed",
    "SessionOpened",
    "SessionResumed",
    "SessionSourceChanged",
    "SourceDropped",
    "SourceId",
    "SourceRead",
    "SourcesRead",
    "SubscribeRequested",
    "SupervisorConnected",
    "SupervisorLost",
    "UnreadChanged",
]

RunId = NewType("RunId", int)
"""One run of one hook."""

HookVerdict = Literal["allow", "deny", "rewrite", "failed"]


class SourceRead(BrokerEvent, frozen=True, kw_only=True):
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
    twins: dict[PoolKey, PoolSpec] = field(default_factory=dict)
    """By the key of a spec: the same launch, greeted for agents that can be asked (rule 12)."""
    own_roots: frozenset[ServerName] = frozenset()
    """Servers that are told the roots which the agent itself names (rule 6)."""
    stateless: dict[PoolKey, PoolSpec] = field(default_factory=dict)
    """By the key of a spec: the same launch, for agents of the stateless era, if there is one."""
    untrusted: frozenset[ServerName] = frozenset()
    """Those among `misconfigured` that only wait for the user's trust (rule 19)."""
    unset: frozenset[ServerName] = frozenset()
    """Those among them that lack nothing but variables or places, which another session may have."""
    broken: str = ""
    """Why the servers of its project are unknown, a clause, where no earlier reading is in force; empty: they
    are known, or it has none.
    """
    kept: dict[PoolKey, Catalog] = field(default_factory=dict)
    """What pools of this source told an earlier carpool, as far as it is on disk."""
    disabled: dict[ServerName, DisabledServer] = field(default_factory=dict)
    """Servers of this source that are switched off."""
    pins: dict[PinId, Approved | None] = field(default_factory=dict)
    """What is approved of its pinned servers, as far as it is on disk; None: nothing ever was."""
    prefixes: dict[ServerName, str] = field(default_factory=dict)
    """`tools_prefix` of servers that cannot be run."""

    @property
    def absent(self) -> NamedServers:
        """Servers that are configured and not in the scope. A file that is not trusted has no say in what
        names mean, so none of its servers is here.
        """
        off = tuple((name, each.prefix) for name, each in self.disabled.items())
        lame = self.misconfigured.keys() - self.untrusted - self.disabled.keys()
        return (*off, *((name, self.prefixes.get(name)) for name in sorted(lame)))


class SourcesRead(BrokerEvent, frozen=True):
    """Several were, because of one change: nothing is as some of them say and others do not yet."""

    readings: tuple[SourceRead, ...]


class SourceDropped(BrokerEvent, frozen=True):
    """No session uses this source any more."""

    source: SourceId


class LimitsRead(BrokerEvent, frozen=True):
    """The configuration's limits for sessions were read again."""

    bounds: SessionBounds
    list_wait_s: float
    audits: bool = False
    """Each call that ends is put down (`audit`)."""
    counts: bool = True
    """Calls are counted (docs/counters.md)."""
    traces: float | None = None
    """The part of calls that are traced (docs/traces.md); None: none is."""


class HookRule(Struct, frozen=True, kw_only=True):
    """What is decided by of one hook: see `docs/hooks.md`."""

    name: str
    before: bool
    after: bool
    match: tuple[Capability, ...] = (EVERYTHING,)
    profiles: tuple[str, ...] = ()
    """Empty: sessions of any."""
    timeout_s: float = 5.0
    closed: bool = True
    """When it fails the call, or the answer, is not let through."""
    rewrite: bool = False


class HooksRead(BrokerEvent, frozen=True):
    """The configuration's hooks were read, for the first time or again; in the order of the file."""

    rules: tuple[HookRule, ...]


class HookAnswered(BrokerEvent, frozen=True):
    """A run of a hook is over."""

    run: RunId
    verdict: HookVerdict
    reason: Text = ""
    """Of a denial: the hook's, one short line. Of a failure: ours."""
    body: Payload = ABSENT
    """Of a rewriting, and sound: an object like `BeginHook.arguments`, or the result."""


class CallCancelledByOperator(BrokerEvent, frozen=True):
    """An operator has cancelled this call. Its agent is told."""

    call: CallId


class PausedServersChanged(BrokerEvent, frozen=True):
    """These servers are paused now, and no others: calls for them wait at the supervisor."""

    servers: frozenset[ServerName]


class PinsApproved(BrokerEvent, frozen=True):
    """The user approves these tools of a pinned server, as they are now."""

    pin: PinId
    tools: dict[str, str]
    """By their own names: the digests of the definitions that were shown."""


class SupervisorConnected(BrokerEvent, frozen=True):
    """A supervisor greeted; its window is full. What it remembers of earlier brokers comes next."""

    credit_bytes: int
    epoch: Epoch = Epoch("")


class SupervisorLost(BrokerEvent, frozen=True):
    """The supervisor is gone, and with it every instance."""


class EndRequested(BrokerEvent, frozen=True):
    """This carpool ends, the supervisor with it: nothing that is open will be answered by anybody else.
    `again`: it is started again, and what was never sent is said anew by carriers that keep.
    """

    again: bool = False


class DrainRequested(BrokerEvent, frozen=True):
    """This carpool is to be started again: it ends as soon as nothing is under way (`drain`)."""


LocalEvent = (
    SourceRead
    | SourcesRead
    | SourceDropped
    | LimitsRead
    | HooksRead
    | HookAnswered
    | CallCancelledByOperator
    | PausedServersChanged
    | PinsApproved
    | SessionOpened
    | AgentEvent
    | SupervisorConnected
    | SupervisorLost
    | EndRequested
    | DrainRequested
)
LinkEvent = (
    CallAnswered
    | CallFailed
    | CallProgressed
    | CallTimed
    | Catalog
    | PoolChanged
    | Credit
    | LogForSession
    | ResourceChanged
    | AskOpened
    | AskWithdrawn
    | ElicitationFinished
    | TaskStatusChanged
    | CallsRecorded
)
AnyEvent = LocalEvent | LinkEvent
