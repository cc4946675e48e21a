"""What agents do, as the broker's core hears of it: past tense, values only.

Owns the vocabulary of sessions: how one comes, moves and goes, and what its agent asks, answers and says.
Payloads are opaque and annotated so that a journal keeps their length only. Imported as a part of `events`.

Knows nothing of: sockets, JSON, how an era words any of this; what happens to servers and the link.
"""

from typing import Literal, NewType

from msgspec import Struct

from carpool_broker.core.model.capabilities import Capabilities, StatelessAgent
from carpool_broker.core.model.pagination import Family
from carpool_protocol.faults.faults import TOOLS_CALL
from carpool_protocol.ids import AskId, Epoch, RawJson, SessionId
from carpool_protocol.link.messages import Payload, Root, Text

ListNotification = Literal["tools", "prompts", "resources"]
"""What a `list_changed` can be about; templates go with resources."""

SourceId = NewType("SourceId", str)
"""Where a scope comes from: one configuration seen with one environment. Many sessions share one."""


class InputResponse(Struct, frozen=True):
    """One of a request's `inputResponses`: a retry's, or without a state given in advance."""

    key: str
    body: Payload
    accepted: bool = True
    """False: its `action` is there and is not `accept` (an elicitation that was declined or cancelled)."""


class BuiltinCall(Struct, frozen=True):
    """What a call of one of our own tools is about (`builtin_tools.REDIRECTED`), as its arguments say."""

    name: str
    """The tool, the URI or the prompt that is meant."""
    rest: Payload
    """As `CallRequested.rest`, of the request that is meant."""
    problem: str = ""
    """Why it means nothing; for people, without a value."""


class BrokerEvent(Struct, frozen=True, tag=True):
    """Root of the broker's own events."""


class SessionOpened(BrokerEvent, frozen=True, kw_only=True):
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


class SessionSourceChanged(BrokerEvent, frozen=True):
    """The session's configuration is another source's from now on: what it is resolved from has changed."""

    session: SessionId
    source: SourceId
    elsewhere: bool = False
    """It is in another workspace: what it was subscribed to is not what it was."""


class UnreadChanged(BrokerEvent, frozen=True):
    """So much of what it was told waits for this agent to read. Said every MiB, and when it has read all."""

    session: SessionId
    unread_bytes: int


class CarrierAnnounced(BrokerEvent, frozen=True):
    """Another process carries the session from now on; 0: none does, and one may yet ask for it."""

    session: SessionId
    pid: int


class SessionClosed(BrokerEvent, frozen=True):
    """The agent is gone: nobody waits for anything of it."""

    session: SessionId


class InitializeRequested(BrokerEvent, frozen=True):
    """`initialize`."""

    session: SessionId
    id: RawJson
    version: str
    agent: str
    capabilities: Capabilities = Capabilities()


class InitializedReceived(BrokerEvent, frozen=True):
    """`notifications/initialized`: the agent can be asked."""

    session: SessionId


class RootsListChanged(BrokerEvent, frozen=True):
    """`notifications/roots/list_changed`."""

    session: SessionId


class AskAnswered(BrokerEvent, frozen=True):
    """The agent's answer to something that was asked of it."""

    session: SessionId
    ask: AskId
    """As the agent wrote the id, decoded; one that was never asked is nobody's."""
    is_error: bool
    """`body` is a JSON-RPC error object, not a result."""
    body: Payload


class RootsAnswered(BrokerEvent, frozen=True):
    """The agent's answer to `roots/list`. Apart from all other answers, because it decides something."""

    session: SessionId
    ask: AskId
    roots: tuple[Root, ...] | None
    """File URIs, each once; None: it cannot tell."""


class AskProgressed(BrokerEvent, frozen=True):
    """`notifications/progress` for something that was asked of the agent."""

    session: SessionId
    ask: AskId
    params: Payload
    """Without `progressToken`."""


class PingRequested(BrokerEvent, frozen=True):
    """`ping`."""

    session: SessionId
    id: RawJson


class ListPageRequested(BrokerEvent, frozen=True):
    """`tools/list`, `prompts/list`, `resources/list`, `resources/templates/list`."""

    session: SessionId
    id: RawJson
    cursor: str | None
    family: Family = "tools"
    by: StatelessAgent | None = None


class CallRequested(BrokerEvent, frozen=True):
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
    by: StatelessAgent | None = None
    digest: str = ""
    """Of method, name and params: what a retry of this request must repeat, and what the record tells uses of
    one id apart by. Empty for requests about tasks.
    """
    state: str = ""
    """The `requestState` of a retry: a token of ours, unless somebody made it up."""
    given: tuple[InputResponse, ...] = ()
    own: tuple[BuiltinCall, ...] = ()
    """One, where the name may be that of a tool of our own. Once the session turns out to have that tool, the
    request that is meant stands in place of the call, and this stays.
    """

    @property
    def agent_method(self) -> str:
        """The method that the agent itself has said: what it is answered is worded for that."""
        return TOOLS_CALL if self.own else self.method


class DiscoverRequested(BrokerEvent, frozen=True):
    """`server/discover` (MCP 2026-07-28, server/discover)."""

    session: SessionId
    id: RawJson
    by: StatelessAgent


class ListenRequested(BrokerEvent, frozen=True):
    """`subscriptions/listen` (MCP 2026-07-28, basic/utilities/subscriptions). Ended by `RequestCancelled`."""

    session: SessionId
    id: RawJson
    by: StatelessAgent
    families: tuple[ListNotification, ...]
    """Lists whose changes are wanted."""
    uris: tuple[str, ...]
    """Resources whose updates are wanted, as the agent spelled them, each once."""
    tasks: tuple[str, ...] = ()
    """Tasks of which it wants to hear how far they are, by our ids, each once."""


class ListenResumed(BrokerEvent, frozen=True):
    """What an earlier broker has granted the listen that comes next under this id, and acknowledged: that is
    what its agent knows to be subscribed to, whatever can be delivered here (docs/decisions/0019).
    """

    session: SessionId
    id: RawJson
    families: tuple[ListNotification, ...]
    uris: tuple[str, ...]
    """As the agent spelled them."""
    tasks: tuple[str, ...] = ()


class RequestCancelled(BrokerEvent, frozen=True):
    """`notifications/cancelled`."""

    session: SessionId
    id: RawJson
    reason: Text


class LogLevelRequested(BrokerEvent, frozen=True):
    """`logging/setLevel`."""

    session: SessionId
    id: RawJson
    level: str


class SubscribeRequested(BrokerEvent, frozen=True):
    """`resources/subscribe`, or `resources/unsubscribe`."""

    session: SessionId
    id: RawJson
    uri: str
    """As the agent spelled it."""
    on: bool
    granted: bool = False
    """An earlier broker has said yes to it: it holds, whoever serves that resource now."""


class BadLineReceived(BrokerEvent, frozen=True):
    """A request that cannot be served: it gets an error with its own id."""

    session: SessionId
    id: RawJson
    fault: str
    detail: str


class SessionResumed(BrokerEvent, frozen=True):
    """The agent was here at a broker before this one, and its carrier has told what is not done with. After
    what was replayed of its session, before anything new of it (docs/decisions/0019).
    """

    session: SessionId
    supervisor: Epoch
    """Under which its requests were sent; empty: nothing of the session is to be found in any record."""
    calls: tuple[CallRequested, ...]
    """Requests for servers that it has no answer to."""
    asks: tuple[AskId, ...]
    """What it has been asked already: it is not asked again."""
    stateful: tuple[str, ...] = ()
    """Servers at which it may have state, as its carrier was told (`SetStatefulServers`)."""
    again: frozenset[RawJson] = frozenset()
    """Ids of `calls` that had another use, which was answered not long ago."""


AgentEvent = (
    SessionSourceChanged
    | CarrierAnnounced
    | SessionClosed
    | UnreadChanged
    | InitializeRequested
    | InitializedReceived
    | RootsListChanged
    | PingRequested
    | ListPageRequested
    | CallRequested
    | DiscoverRequested
    | ListenResumed
    | ListenRequested
    | RequestCancelled
    | LogLevelRequested
    | SubscribeRequested
    | BadLineReceived
    | AskAnswered
    | RootsAnswered
    | AskProgressed
    | SessionResumed
)
"""Of one session that is here."""
