"""Effects of the broker's core that send something to agents: imperative, values only.

Owns answers, notifications and asks to agents. `effects` exports them too.

Knows nothing of: how an era words or writes them, messages to servers.
"""

from typing import Final

from msgspec import Struct

from carpool_broker.core.model.events import ListNotification
from carpool_protocol.ids import ABSENT, AskId, CallId, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import Feature, Name, Payload, Text

NO_CALL: Final = CallId(0)


class BrokerEffect(Struct, frozen=True, tag=True):
    """Root of the broker's own effects."""


class Reply(BrokerEffect, frozen=True):
    """Answer a request of this agent."""

    session: SessionId
    id: RawJson
    is_error: bool
    """`body` is a JSON-RPC error object, not a result."""
    body: Payload
    call: CallId = NO_CALL
    """The call that it answers; `NO_CALL`: the broker answers by itself."""


class ReplyRewritten(BrokerEffect, frozen=True):
    """Answer a request with a server's result whose names or URIs this agent may know by others."""

    session: SessionId
    id: RawJson
    body: Payload
    method: str
    version: str
    key: PoolKey
    call: CallId = NO_CALL
    """See `Reply`."""
    as_tool: str = ""
    """If given: the agent called a built-in tool, and `body` is a result of this method. The agent must get
    it as a result of `tools/call`.
    """


class ReplyStateless(BrokerEffect, frozen=True):
    """Answer a request of the stateless era. The encoder of that era adds the members that only it has."""

    session: SessionId
    id: RawJson
    is_error: bool
    body: Payload
    method: str
    uri: Name = ""
    """The URI of `resources/read`, as the agent spelled it; an error names it (MCP 2026-07-28,
    server/resources).
    """
    ttl_ms: int = 0
    """The freshness of the result, on the methods that have `ttlMs`."""
    public: bool = False
    """True: any agent may get the result; else only agents of the same principal."""
    key: PoolKey = PoolKey("")
    """If given: the result may hold names and URIs that this agent knows by others."""
    task: Name = ""
    """If given: the result is about this task. It is carpool's id and replaces the server's."""
    begins_task: bool = False
    """True: the result is that task, and the call continues as the task."""
    call: CallId = NO_CALL
    """See `Reply`."""
    as_tool: str = ""
    """See `ReplyRewritten`."""


class AnswerBuiltin(BrokerEffect, frozen=True):
    """Answer a call of one of carpool's own tools that is about what the session sees."""

    session: SessionId
    id: RawJson
    kind: str
    """See `builtin_tools.BuiltinKind`."""
    rest: Payload
    """The params of the call, as `CallRequested.rest`."""
    version: str
    """The version of MCP that the agent speaks."""
    stateless: bool


class AnswerDiscover(BrokerEffect, frozen=True):
    """Answer `server/discover`."""

    session: SessionId
    id: RawJson
    instructions: str
    features: tuple[Feature, ...]
    tasks: bool = False
    """The extension `io.modelcontextprotocol/tasks` is served."""
    ttl_ms: int = 0
    public: bool = False


class RequiredInput(Struct, frozen=True):
    """One input that a server needs before a call can continue."""

    key: str
    """The key under which the retry must bring it."""
    method: str
    params: Payload
    """As the server wrote them."""
    server: ServerName = ServerName("")
    """See `SendAsk`."""


class RequireInput(BrokerEffect, frozen=True):
    """Answer a call with `input_required` (MCP 2026-07-28, basic/utilities/mrtr)."""

    session: SessionId
    id: RawJson
    inputs: tuple[RequiredInput, ...]
    state: str
    """Carpool's own token; the retry brings it back."""


class AcknowledgeListen(BrokerEffect, frozen=True):
    """Tell this agent which part of its `subscriptions/listen` is in force, before any other
    message of it.
    """

    session: SessionId
    id: RawJson
    families: tuple[ListNotification, ...]
    uris: tuple[Name, ...]
    tasks: tuple[Name, ...] = ()


class EndListen(BrokerEffect, frozen=True):
    """End a `subscriptions/listen` that its agent has not cancelled."""

    session: SessionId
    id: RawJson


class AnswerInitialize(BrokerEffect, frozen=True):
    """Answer `initialize`."""

    session: SessionId
    id: RawJson
    version: str
    instructions: str
    features: tuple[Feature, ...]
    """The capabilities to announce, in a stable order."""


class SendProgress(BrokerEffect, frozen=True):
    """Pass progress on, with the agent's own token."""

    session: SessionId
    token: RawJson
    params: Payload
    request: RawJson = ABSENT
    """The request that it belongs to. On a multiplexed connection it travels on the stream of
    that request.
    """


class SendListChanged(BrokerEffect, frozen=True):
    """Tell this agent that a list has changed since it last read it."""

    session: SessionId
    family: ListNotification = "tools"
    listen: RawJson = ABSENT
    """The `subscriptions/listen` that it is sent on; absent in the handshake era."""


class SendLog(BrokerEffect, frozen=True):
    """Pass a server's log message on."""

    session: SessionId
    params: Payload
    request: RawJson = ABSENT
    """The request that it is about, if that is known."""


class SendResourceUpdated(BrokerEffect, frozen=True):
    """Tell this agent that a resource it subscribed to, or a part of it, changed."""

    session: SessionId
    uri: Name
    """The URI as this agent knows it."""
    params: Payload
    listen: RawJson = ABSENT
    """See `SendListChanged`."""


class SendTaskStatus(BrokerEffect, frozen=True):
    """Tell this agent the status of a task."""

    session: SessionId
    task: Name
    """Carpool's id of the task."""
    params: Payload
    listen: RawJson
    """See `SendListChanged`."""
    key: PoolKey = PoolKey("")
    """See `ReplyStateless`."""


class SendAsk(BrokerEffect, frozen=True):
    """Send a server's ask to this agent."""

    session: SessionId
    ask: AskId
    """Also the request's id and, where progress is wanted, its progress token."""
    method: str
    params: Payload
    """The params as the server wrote them, perhaps for another version of MCP than the agent's."""
    wants_progress: bool
    version: str
    """The agent's version of MCP. If the encoder cannot express the ask in it, its error counts as the answer
    of the agent.
    """
    request: RawJson = ABSENT
    """The agent's request for which the server asks: see `SendProgress`."""
    server: ServerName = ServerName("")
    """The server that asks, to name it to the user; empty: it is the only server that the agent sees."""


class WithdrawAsk(BrokerEffect, frozen=True):
    """Tell this agent that its answer is no longer needed."""

    session: SessionId
    ask: AskId
    reason: Text
    request: RawJson = ABSENT
    """As in `SendAsk`."""


class SendElicitationComplete(BrokerEffect, frozen=True):
    """Tell this agent that a URL elicitation is complete."""

    session: SessionId
    params: Payload
