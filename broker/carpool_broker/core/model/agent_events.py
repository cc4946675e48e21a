"""What agents do, as the broker's core hears of it: past tense, values only.

Owns the vocabulary of sessions: how one comes, moves and goes, and what its agent asks, answers and says.
Payloads are opaque and annotated so that a journal keeps their length only. Imported as a part of `events`.

Knows nothing of: sockets, JSON, how an era words any of this; what happens to servers and the link.
"""

from typing import Literal, NewType

from msgspec import Struct

from carpool_broker.core.model.capabilities import Capabilities, StatelessAgent
from carpool_broker.core.model.pagination import Family
from carpool_protocol.faults.fault_answers import TOOLS_CALL
from carpool_protocol.ids import AskId, Epoch, RawJson, SessionId
from carpool_protocol.link.messages import Name, Payload, Root, Text

ListNotification = Literal["tools", "prompts", "resources"]
"""What a `list_changed` can be about; templates go with resources."""

SourceId = NewType("SourceId", str)
"""Where a scope comes from: one configuration seen with one environment. Many sessions share one."""


class InputResponse(Struct, frozen=True):
    """One of a request's `inputResponses`: of a retry, or given in advance where there is no
    request state.
    """

    key: str
    body: Payload
    accepted: bool = True
    """False: the agent declined or cancelled an elicitation: its `action` is present and is not `accept`."""


class BuiltinCall(Struct, frozen=True):
    """The subject of a call of a built-in tool (`builtin_tools.TARGET_METHODS`), as its arguments name it."""

    name: Name
    """The tool, the URI or the prompt that the arguments name."""
    rest: Payload
    """As `CallRequested.rest`, of the request that the arguments stand for."""
    problem: str = ""
    """The fault of the arguments, for people and without a value; empty: they are right."""


class BrokerEvent(Struct, frozen=True, tag=True):
    """Root of the broker's own events."""


class SessionOpened(BrokerEvent, frozen=True, kw_only=True):
    """An agent is attached, and its source and its rights are known."""

    session: SessionId
    source: SourceId
    agent: str
    pid: int
    carrier: str
    control: bool = False
    """True: a session of the command line. It is no agent, and no reason to start a process of a server that
    runs already.
    """
    shared: bool = False
    """True: it holds stateless requests over HTTP, of many agents of one principal that share no state."""
    keeps: bool = False
    """True: its carrier sends unanswered requests again to the next broker."""
    wanders: bool = False
    """True: its agent's roots may move it to another workspace."""
    fleeting: bool = False
    """True: its carrier cannot resume it at the next broker (an unresumable session)."""
    anonymous: bool = False
    """True: a shared session without a principal, which can hold no lease (rule 9)."""
    max_open_calls: int = 0
    """The session's own bound; 0: the bound of all sessions counts."""
    node: str = ""
    """The name of this node, if the agent belongs to another node; else empty."""
    profile: str = ""
    """The name of its profile, which says what it may see and call (`Scope.rights`); empty: all."""
    principal: str = ""
    """The name of the bearer token that it came with; empty: none."""
    other_config: str = ""
    """The configuration file that its environment names, if carpool runs with another one; else empty."""
    note: str = ""
    """A sentence about that for its agent."""


class SessionSourceChanged(BrokerEvent, frozen=True):
    """The session has another source from now on, because the basis of its source has changed."""

    session: SessionId
    source: SourceId
    elsewhere: bool = False
    """True: it is in another workspace, so its resource subscriptions mean other resources."""


class SessionBoundRaised(BrokerEvent, frozen=True):
    """The bound of open calls of this session is raised to this number, if it was lower."""

    session: SessionId
    max_open_calls: int


class UnreadChanged(BrokerEvent, frozen=True):
    """The number of unread bytes of this agent has changed by a MiB, or the agent has read all."""

    session: SessionId
    unread_bytes: int


class AgentAbsent(BrokerEvent, frozen=True):
    """The agent over HTTP has had no open connection for a while; or it is there again."""

    session: SessionId
    absent: bool


class CarrierAnnounced(BrokerEvent, frozen=True):
    """Another process carries the session from now on; 0: none does, and one may still claim it."""

    session: SessionId
    pid: int


class InputEnded(BrokerEvent, frozen=True):
    """The agent sends nothing more, so it answers no question. It still reads answers."""

    session: SessionId


class SessionClosed(BrokerEvent, frozen=True):
    """The agent is gone and waits for no answer."""

    session: SessionId


class InitializeRequested(BrokerEvent, frozen=True):
    """`initialize`."""

    session: SessionId
    id: RawJson
    version: Name
    agent: str
    capabilities: Capabilities = Capabilities()


class InitializedReceived(BrokerEvent, frozen=True):
    """`notifications/initialized`: the agent can be asked."""

    session: SessionId


class RootsListChanged(BrokerEvent, frozen=True):
    """`notifications/roots/list_changed`."""

    session: SessionId


class AskAnswered(BrokerEvent, frozen=True):
    """The agent has answered an ask."""

    session: SessionId
    ask: AskId
    """The id as the agent wrote it, decoded. An id that was never used belongs to no ask."""
    is_error: bool
    """`body` is a JSON-RPC error object, not a result."""
    body: Payload


class RootsAnswered(BrokerEvent, frozen=True):
    """The agent has answered `roots/list`. A separate event, because the roots decide the
    session's source.
    """

    session: SessionId
    ask: AskId
    roots: tuple[Root, ...] | None
    """File URIs, each once; None: the agent answered with an error or unreadably."""


class AskProgressed(BrokerEvent, frozen=True):
    """`notifications/progress` of the agent for an ask."""

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
    cursor: Name | None
    family: Family = "tools"
    by: StatelessAgent | None = None


class CallRequested(BrokerEvent, frozen=True):
    """A request for one server: `tools/call`, `prompts/get`, `resources/read`, `completion/complete`; of the
    stateless era also `tasks/get`, `tasks/update`, `tasks/cancel`.
    """

    session: SessionId
    id: RawJson
    name: Name
    """The subject, as the agent spelled it: a name, a URI, the JSON of a reference, or
    carpool's id of a task.
    """
    rest: Payload
    meta: Payload
    token: RawJson
    """The agent's progress token; absent: the agent wants no progress."""
    method: str = TOOLS_CALL
    trace: str = ""
    """The agent's own trace context: see `messages.Call.trace`."""
    by: StatelessAgent | None = None
    digest: str = ""
    """The digest of method, name and params. A retry must have the same one, and by it the record tells uses
    of one id apart. Empty for requests about tasks.
    """
    state: str = ""
    """The `requestState` of a retry: a token of carpool's own, unless it is forged."""
    given: tuple[InputResponse, ...] = ()
    own: tuple[BuiltinCall, ...] = ()
    """One entry if the name may mean a built-in tool, else empty. If the session has that tool, the request
    that its arguments stand for replaces the call, and this entry stays.
    """

    @property
    def agent_method(self) -> str:
        """Return the method that the agent itself used; the answer is worded for that method."""
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
    """Lists whose changes the agent wants to hear of."""
    uris: tuple[Name, ...]
    """Resources whose updates the agent wants, as it spelled them, each once."""
    tasks: tuple[Name, ...] = ()
    """Tasks whose status the agent wants to hear, by carpool's ids, each once."""


class ListenResumed(BrokerEvent, frozen=True):
    """An earlier broker has granted and acknowledged this much of the listen that comes next under this id.
    Its agent relies on these subscriptions, whatever can be delivered here (docs/decisions/0019).
    """

    session: SessionId
    id: RawJson
    families: tuple[ListNotification, ...]
    uris: tuple[Name, ...]
    """As the agent spelled them."""
    tasks: tuple[Name, ...] = ()


class RequestCancelled(BrokerEvent, frozen=True):
    """`notifications/cancelled`."""

    session: SessionId
    id: RawJson
    reason: Text


class LogLevelRequested(BrokerEvent, frozen=True):
    """`logging/setLevel`."""

    session: SessionId
    id: RawJson
    level: Name


class SubscribeRequested(BrokerEvent, frozen=True):
    """`resources/subscribe`, or `resources/unsubscribe`."""

    session: SessionId
    id: RawJson
    uri: Name
    """As the agent spelled it."""
    on: bool
    granted: bool = False
    """True: an earlier broker has granted it, so it holds whichever server has that resource now."""


class BadLineReceived(BrokerEvent, frozen=True):
    """The agent sent a request that cannot be served; it gets an error with its own id."""

    session: SessionId
    id: RawJson
    fault: str
    detail: str


class SessionResumed(BrokerEvent, frozen=True):
    """A session of an earlier broker is resumed, and its carrier has named all that is not settled. Comes
    after the replayed lines of the session and before new ones (docs/decisions/0019).
    """

    session: SessionId
    supervisor: Epoch
    """The epoch under which its requests were sent; empty: no record has anything of the session."""
    calls: tuple[CallRequested, ...]
    """Requests for servers that have no answer yet."""
    asks: tuple[AskId, ...]
    """Asks that have reached the agent already and are not sent again."""
    stateful: tuple[str, ...] = ()
    """Servers at which the session may have state, as its carrier was told (`SetStatefulServers`)."""
    again: frozenset[RawJson] = frozenset()
    """Ids of `calls` whose earlier use was answered not long ago."""


AgentEvent = (
    SessionSourceChanged
    | CarrierAnnounced
    | AgentAbsent
    | InputEnded
    | SessionClosed
    | SessionBoundRaised
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
"""Events of one session that is open at this broker."""
