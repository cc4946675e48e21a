"""Events of the broker's core: past tense, values only.

Owns the events of the broker itself: configurations that were read, hooks, pins, supervisors that connect and
are lost. Exports also the events of agents (`agent_events`) and the link messages, which are events as they
come (`CallAnswered`, `CallFailed`, `CallProgressed`, `Catalog`, `PoolChanged`, `Credit`).

Knows nothing of: sockets, JSON, how an era words its messages.
"""

from typing import Literal, NewType

from msgspec import Struct, field

from carpool_broker.core.model.agent_events import (
    AgentAbsent,
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
    InputEnded,
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
    SessionBoundRaised,
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
from carpool_broker.core.model.supervisors import ONLY
from carpool_protocol.config.schema.capability import EVERYTHING, Capability
from carpool_protocol.ids import ABSENT, CallId, Epoch, PoolKey, ServerName, SupervisorName
from carpool_protocol.link.messages import (
    AskOpened,
    AskWithdrawn,
    CallAnswered,
    CallAtNode,
    CallFailed,
    CallProgressed,
    CallsRecorded,
    CallTimed,
    Catalog,
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
    "AgentAbsent",
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
    "CreditReceived",
    "DiscoverRequested",
    "DrainRequested",
    "EndRequested",
    "HookAnswered",
    "HookRule",
    "HookVerdict",
    "HooksRead",
    "InitializeRequested",
    "InitializedReceived",
    "InputEnded",
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
    "RecentCallsWatched",
    "RecordReceived",
    "RequestCancelled",
    "RootsAnswered",
    "RootsListChanged",
    "RunId",
    "SessionBoundRaised",
    "SessionClosed",
    "SessionOpened",
    "SessionResumed",
    "SessionSourceChanged",
    "SourceDropped",
    "SourceId",
    "SourceRead",
    "SourceUnused",
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
    """Why servers of this source cannot be run, for people."""
    stop_first: frozenset[ServerName]
    """Servers whose replacement may start only after the old pool is gone."""
    max_processes: int
    max_greeting: int
    twins: dict[PoolKey, PoolSpec] = field(default_factory=dict)
    """By the key of a spec: the same launch, greeted for agents that declared sampling or
    elicitation (rule 12).
    """
    own_roots: frozenset[ServerName] = frozenset()
    """Servers that get the roots which the agent itself names (rule 6)."""
    stateless: dict[PoolKey, PoolSpec] = field(default_factory=dict)
    """By the key of a spec: the same launch, for agents of the stateless era, if there is one."""
    untrusted: frozenset[ServerName] = frozenset()
    """The servers in `misconfigured` that lack only the user's trust (rule 19)."""
    unset: frozenset[ServerName] = frozenset()
    """The servers in `misconfigured` that lack only variables or paths, which another session may have."""
    broken: str = ""
    """Why the servers of its project are unknown and no earlier reading is in force, as a clause. Empty: they
    are known, or there is no project file.
    """
    user_broken: str = ""
    """The sentence for agents that the user's file cannot be read; empty: it can, or it does not matter."""
    kept: dict[PoolKey, Catalog] = field(default_factory=dict)
    """Cached catalogs of pools of this source."""
    disabled: dict[ServerName, DisabledServer] = field(default_factory=dict)
    """Servers of this source that are disabled."""
    pins: dict[PinId, Approved | None] = field(default_factory=dict)
    """Approved tools of its pinned servers, as far as they are on disk; None: nothing was ever approved."""
    prefixes: dict[ServerName, str] = field(default_factory=dict)
    """`tools_prefix` of servers that cannot be run."""
    of_sessions: bool = False
    """True: it is there because of sessions. While no agent uses it, nothing of it starts by itself."""

    @property
    def absent(self) -> NamedServers:
        """Return the servers that are configured and not in the scope. Servers of an untrusted file are not
        among them, because such a file must not change what names mean.
        """
        off = tuple((name, each.prefix) for name, each in self.disabled.items())
        lame = self.misconfigured.keys() - self.untrusted - self.disabled.keys()
        return (*off, *((name, self.prefixes.get(name)) for name in sorted(lame)))


class SourcesRead(BrokerEvent, frozen=True):
    """Several sources were read because of one change, and take effect together."""

    readings: tuple[SourceRead, ...]


class SourceUnused(BrokerEvent, frozen=True):
    """The last session of this source has ended or moved. `ForgetSource` follows, at once or later."""

    source: SourceId


class SourceDropped(BrokerEvent, frozen=True):
    """This source is forgotten, with its servers."""

    source: SourceId
    why: str = "no agent uses it any more"
    """Why its servers end, as a clause for logs."""


class LimitsRead(BrokerEvent, frozen=True):
    """The configuration's limits for sessions were read again."""

    bounds: SessionBounds
    list_wait_s: float
    audits: bool = False
    """True: each call that ends is written to the audit (`audit`)."""
    counts: bool = True
    """True: calls are counted (docs/counters.md)."""
    traces: float | None = None
    """The part of calls that is traced (docs/traces.md); None: no call is."""


class HookRule(Struct, frozen=True, kw_only=True):
    """The settings of one hook by which the core decides: see `docs/hooks.md`."""

    name: str
    before: bool
    after: bool
    match: tuple[Capability, ...] = (EVERYTHING,)
    profiles: tuple[str, ...] = ()
    """The profiles of its sessions; empty: all."""
    timeout_s: float = 5.0
    closed: bool = True
    """True: if the hook fails, the call or the answer is not let through."""
    rewrite: bool = False


class HooksRead(BrokerEvent, frozen=True):
    """The configuration's hooks were read, for the first time or again; in the order of the file."""

    rules: tuple[HookRule, ...]


class HookAnswered(BrokerEvent, frozen=True):
    """A run of a hook is over."""

    run: RunId
    verdict: HookVerdict
    reason: Text = ""
    """The reason of a denial, one short line of the hook; of a failure, carpool's own."""
    body: Payload = ABSENT
    """The rewritten value, already checked: an object like `BeginHook.arguments`, or the result."""


class CallCancelledByOperator(BrokerEvent, frozen=True):
    """An operator has cancelled this call. Its agent is told."""

    call: CallId
    token: int = 0
    """That of the supervisor's answer to `EndCall`."""


class PausedServersChanged(BrokerEvent, frozen=True):
    """These servers are paused now, and no others: calls for them wait at the supervisor."""

    servers: frozenset[ServerName]


class RecentCallsWatched(BrokerEvent, frozen=True):
    """Somebody watches the calls that end: they are kept for a while (`calls.recent_calls`)."""


class PinsApproved(BrokerEvent, frozen=True):
    """The user approves these tools of a pinned server, as they are now."""

    pin: PinId
    tools: dict[str, str]
    """Digests of the definitions that the user saw, by the server's own names of the tools."""


class SupervisorConnected(BrokerEvent, frozen=True):
    """A supervisor has greeted, with its window full. Its record of earlier brokers comes next."""

    credit_bytes: int
    epoch: Epoch = Epoch("")
    supervisor: SupervisorName = ONLY


class SupervisorLost(BrokerEvent, frozen=True):
    """A supervisor has died, and every instance of its servers with it."""

    supervisor: SupervisorName = ONLY


class RecordReceived(BrokerEvent, frozen=True):
    """A supervisor has sent a part of its record."""

    record: CallsRecorded
    supervisor: SupervisorName = ONLY


class CreditReceived(BrokerEvent, frozen=True):
    """A supervisor has processed so many bytes (`Credit`)."""

    size_bytes: int
    supervisor: SupervisorName = ONLY


class EndRequested(BrokerEvent, frozen=True):
    """This carpool ends, with its supervisor, so no other broker will answer open calls. `again`: carpool
    starts again, and carriers that keep lines send again every call that never reached a server.
    """

    again: bool = False


class DrainRequested(BrokerEvent, frozen=True):
    """This carpool must restart: it ends as soon as no call is unfinished (`drain`)."""


LocalEvent = (
    SourceRead
    | SourcesRead
    | SourceUnused
    | SourceDropped
    | LimitsRead
    | HooksRead
    | HookAnswered
    | CallCancelledByOperator
    | PausedServersChanged
    | RecentCallsWatched
    | PinsApproved
    | SessionOpened
    | AgentEvent
    | SupervisorConnected
    | SupervisorLost
    | RecordReceived
    | CreditReceived
    | EndRequested
    | DrainRequested
)
LinkEvent = (
    CallAnswered
    | CallFailed
    | CallProgressed
    | CallAtNode
    | CallTimed
    | Catalog
    | PoolChanged
    | LogForSession
    | ResourceChanged
    | AskOpened
    | AskWithdrawn
    | ElicitationFinished
    | TaskStatusChanged
)
AnyEvent = LocalEvent | LinkEvent
