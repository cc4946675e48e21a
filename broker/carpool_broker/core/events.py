"""What can happen to the broker: past tense, values only.

Owns the vocabulary of the broker core's input beside the link messages, which are events as
they come (`Answered`, `Failed`, `Progressed`, `Catalog`, `PoolChanged`, `Credit`). Payloads are
opaque and annotated so that a journal keeps their length only.

Knows nothing of: sockets, JSON, how an era words any of this.
"""

from typing import Literal, NewType

from msgspec import Struct

from carpool_broker.core.approval import Approved, PinId
from carpool_broker.core.bounds import Bounds
from carpool_broker.core.declared import Asker, Capabilities
from carpool_broker.core.listing import Family
from carpool_broker.core.scope import Off, Scope
from carpool_protocol.capability import EVERYTHING, Capability
from carpool_protocol.faults import TOOLS_CALL
from carpool_protocol.ids import ABSENT, AskId, Epoch, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.messages import (
    Answered,
    Asked,
    AskWithdrawn,
    Catalog,
    Credit,
    Elicited,
    Failed,
    Logged,
    Payload,
    PoolChanged,
    PoolSpec,
    Progressed,
    Recorded,
    TaskTold,
    Text,
    Updated,
)

Notice = Literal["tools", "prompts", "resources"]
"""What a `list_changed` can be about; templates go with resources."""

SourceId = NewType("SourceId", str)
"""Where a scope comes from: one configuration seen with one environment. Many sessions share one."""

RunId = NewType("RunId", int)
"""One run of one hook."""

Verdict = Literal["allow", "deny", "rewrite", "failed"]


class Given(Struct, frozen=True):
    """One of a request's `inputResponses`: a retry's, or without a state given in advance."""

    key: str
    body: Payload
    accepted: bool = True
    """False: its `action` is there and is not `accept` (an elicitation that was declined or cancelled)."""


class Own(Struct, frozen=True):
    """What a call of one of our own tools is about (`own_tools.REDIRECTED`), as its arguments say."""

    name: str
    """The tool, the URI or the prompt that is meant."""
    rest: Payload
    """As `AgentCalled.rest`, of the request that is meant."""
    problem: str = ""
    """Why it means nothing; for people, without a value."""


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
    twins: dict[PoolKey, PoolSpec] = {}
    """By the key of a spec: the same launch, greeted for agents that can be asked (rule 12)."""
    own_roots: frozenset[ServerName] = frozenset()
    """Servers that are told the roots which the agent itself names (rule 6)."""
    stateless: dict[PoolKey, PoolSpec] = {}
    """By the key of a spec: the same launch, for agents of the stateless era (`"era": "match"`)."""
    untrusted: frozenset[ServerName] = frozenset()
    """Those among `misconfigured` that only wait for the user's trust (rule 19)."""
    kept: dict[PoolKey, Catalog] = {}
    """What pools of this source told an earlier carpool, as far as it is on disk."""
    disabled: dict[ServerName, Off] = {}
    """Servers of this source that are switched off."""
    pins: dict[PinId, Approved | None] = {}
    """What is approved of its pinned servers, as far as it is on disk; None: nothing ever was."""


class SourceDropped(Event, frozen=True):
    """No session uses this source any more."""

    source: SourceId


class LimitsRead(Event, frozen=True):
    """The configuration's limits for sessions were read again."""

    bounds: Bounds
    list_wait_s: float
    audits: bool = False
    """Each call that ends is put down (`trail`)."""


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


class HooksRead(Event, frozen=True):
    """The configuration's hooks were read, for the first time or again; in the order of the file."""

    rules: tuple[HookRule, ...]


class HookAnswered(Event, frozen=True):
    """A run of a hook is over."""

    run: RunId
    verdict: Verdict
    reason: Text = ""
    """Of a denial: the hook's, one short line. Of a failure: ours."""
    body: Payload = ABSENT
    """Of a rewriting, and sound: an object like `RunHook.arguments`, or the result."""


class PinsApproved(Event, frozen=True):
    """The user approves these tools of a pinned server, as they are now."""

    pin: PinId
    tools: dict[str, str]
    """By their own names: the digests of the definitions that were shown."""


class AgentCame(Event, frozen=True, kw_only=True):
    """An agent is attached and what it may see is known."""

    session: SessionId
    source: SourceId
    agent: str
    pid: int
    carrier: str
    control: bool = False
    """The command line's: no agent, and no reason to start a process of a server that runs already."""
    shared: bool = False
    """Requests of many agents of one principal, who know nothing of each other: stateless ones over HTTP."""
    keeps: bool = False
    """Its carrier says again to the next broker what has no answer."""
    wanders: bool = False
    """Its agent's roots may take it to another workspace."""
    fleeting: bool = False
    """Nobody brings it to the next broker."""
    anonymous: bool = False
    """A shared one of nobody in particular: it can hold no lease (rule 9)."""
    max_open_calls: int = 0
    """Instead of the bound of all sessions; 0: that one."""
    profile: str = ""
    """What it may see and call, by name (`Bounds.profiles`, `Scope.rights`); empty: all."""
    principal: str = ""
    """The name of the bearer token that it came with; empty: none."""


class SessionMoved(Event, frozen=True):
    """The session's configuration is another source's from now on: what it is resolved from has changed."""

    session: SessionId
    source: SourceId
    elsewhere: bool = False
    """It is in another workspace: what it was subscribed to is not what it was."""


class AgentUnread(Event, frozen=True):
    """So much of what it was told waits for this agent to read. Said every MiB, and when it has read all."""

    session: SessionId
    unread_bytes: int


class AgentCarried(Event, frozen=True):
    """Another process carries the session from now on; 0: none does, and one may yet ask for it."""

    session: SessionId
    pid: int


class AgentLeft(Event, frozen=True):
    """The agent is gone: nobody waits for anything of it."""

    session: SessionId


class AgentGreeted(Event, frozen=True):
    """`initialize`."""

    session: SessionId
    id: RawJson
    version: str
    agent: str
    capabilities: Capabilities = Capabilities()


class AgentReady(Event, frozen=True):
    """`notifications/initialized`: the agent can be asked."""

    session: SessionId


class AgentRootsChanged(Event, frozen=True):
    """`notifications/roots/list_changed`."""

    session: SessionId


class AgentAnswered(Event, frozen=True):
    """The agent's answer to something that was asked of it."""

    session: SessionId
    ask: AskId
    """As the agent wrote the id, decoded; one that was never asked is nobody's."""
    is_error: bool
    """`body` is a JSON-RPC error object, not a result."""
    body: Payload


class AgentRooted(Event, frozen=True):
    """The agent's answer to `roots/list`. Apart from all other answers, because it decides something."""

    session: SessionId
    ask: AskId
    roots: tuple[str, ...] | None
    """File URIs, each once; None: it cannot tell."""


class AgentProgressed(Event, frozen=True):
    """`notifications/progress` for something that was asked of the agent."""

    session: SessionId
    ask: AskId
    params: Payload
    """Without `progressToken`."""


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
    by: Asker | None = None


class AgentCalled(Event, frozen=True):
    """A request for one server: `tools/call`, `prompts/get`, `resources/read`, `completion/complete`; of the
    stateless era also `tasks/get`, `tasks/update`, `tasks/cancel`.
    """

    session: SessionId
    id: RawJson
    name: str
    """What it is about, as the agent spelled it: a name, a URI, the JSON of a reference, a task by our id."""
    rest: Payload
    meta: Payload
    token: RawJson
    """The agent's progress token; absent when it wants none."""
    method: str = TOOLS_CALL
    trace: str = ""
    """The agent's own trace context: see `messages.Call.trace`."""
    by: Asker | None = None
    digest: str = ""
    """Of method, name and params, where a retry of this request may come: what such a retry must repeat."""
    state: str = ""
    """The `requestState` of a retry: a token of ours, unless somebody made it up."""
    given: tuple[Given, ...] = ()
    own: tuple[Own, ...] = ()
    """One, where the name may be that of a tool of our own. Once the session turns out to have that tool, the
    request that is meant stands in place of the call, and this stays.
    """

    @property
    def said(self) -> str:
        """The method that the agent itself has said: what it is answered is worded for that."""
        return TOOLS_CALL if self.own else self.method


class AgentDiscovered(Event, frozen=True):
    """`server/discover` (MCP 2026-07-28, server/discover)."""

    session: SessionId
    id: RawJson
    by: Asker


class AgentListened(Event, frozen=True):
    """`subscriptions/listen` (MCP 2026-07-28, basic/utilities/subscriptions). Ended by `AgentCancelled`."""

    session: SessionId
    id: RawJson
    by: Asker
    families: tuple[Notice, ...]
    """Lists whose changes are wanted."""
    uris: tuple[str, ...]
    """Resources whose updates are wanted, as the agent spelled them, each once."""
    tasks: tuple[str, ...] = ()
    """Tasks of which it wants to hear how far they are, by our ids, each once."""


class AgentCancelled(Event, frozen=True):
    """`notifications/cancelled`."""

    session: SessionId
    id: RawJson
    reason: Text


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


class AgentResumed(Event, frozen=True):
    """The agent was here at a broker before this one, and its carrier has told what is not done with. After
    what was replayed of its session, before anything new of it (docs/decisions/0019).
    """

    session: SessionId
    supervisor: Epoch
    """Under which its requests were sent; empty: nothing of the session is to be found in any record."""
    calls: tuple[AgentCalled, ...]
    """Requests for servers that it has no answer to."""
    asks: tuple[AskId, ...]
    """What it has been asked already: it is not asked again."""
    stateful: tuple[str, ...] = ()
    """Servers at which it may have state, as its carrier was told (`TellStateful`)."""


class SupervisorCame(Event, frozen=True):
    """A supervisor greeted; its window is full. What it remembers of earlier brokers comes next."""

    credit_bytes: int
    epoch: Epoch = Epoch("")


class SupervisorWent(Event, frozen=True):
    """The supervisor is gone, and with it every instance."""


class EndMeant(Event, frozen=True):
    """This carpool ends, the supervisor with it: nothing that is open will be answered by anybody else.
    `again`: it is started again, and what was never sent is said anew by carriers that keep.
    """

    again: bool = False


class DrainMeant(Event, frozen=True):
    """This carpool is to be started again: it ends as soon as nothing is under way (`draining`)."""


AgentEvent = (
    SessionMoved
    | AgentCarried
    | AgentLeft
    | AgentUnread
    | AgentGreeted
    | AgentReady
    | AgentRootsChanged
    | AgentPinged
    | AgentListed
    | AgentCalled
    | AgentDiscovered
    | AgentListened
    | AgentCancelled
    | AgentSetLevel
    | AgentWatched
    | AgentErred
    | AgentAnswered
    | AgentRooted
    | AgentProgressed
    | AgentResumed
)
"""Of one session that is here."""
OwnEvent = (
    SourceRead
    | SourceDropped
    | LimitsRead
    | HooksRead
    | HookAnswered
    | PinsApproved
    | AgentCame
    | AgentEvent
    | SupervisorCame
    | SupervisorWent
    | EndMeant
    | DrainMeant
)
LinkEvent = (
    Answered
    | Failed
    | Progressed
    | Catalog
    | PoolChanged
    | Credit
    | Logged
    | Updated
    | Asked
    | AskWithdrawn
    | Elicited
    | TaskTold
    | Recorded
)
AnyEvent = OwnEvent | LinkEvent
