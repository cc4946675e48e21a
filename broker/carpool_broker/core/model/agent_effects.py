"""What agents are told, as the broker's core wants it done: imperative, values only.

Owns the vocabulary of answers, notifications and questions to agents. Imported as a part of `effects`.

Knows nothing of: how any of it is worded or written; what is told to servers.
"""

from typing import Final

from msgspec import Struct

from carpool_broker.core.model.events import ListNotification
from carpool_protocol.ids import ABSENT, AskId, CallId, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import Feature, Payload, Text

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
    """The call that it answers; what the broker answers by itself has none."""


class ReplyRewritten(BrokerEffect, frozen=True):
    """Answer a request with a server's result that may hold what this agent cannot read as it is."""

    session: SessionId
    id: RawJson
    body: Payload
    method: str
    version: str
    key: PoolKey
    call: CallId = NO_CALL
    """See `Reply`."""
    as_tool: str = ""
    """Where given, the agent has called a tool of ours for it: it is the result of this method, to be read as
    that of `tools/call`.
    """


class ReplyStateless(BrokerEffect, frozen=True):
    """Answer a request of the stateless era. What only that era has is put on by whoever words it."""

    session: SessionId
    id: RawJson
    is_error: bool
    body: Payload
    method: str
    uri: str = ""
    """Of `resources/read`, as the agent spelled it: an error says it (MCP 2026-07-28, server/resources)."""
    ttl_ms: int = 0
    """How long the agent may take the result for current; on the methods that have such a hint."""
    public: bool = False
    """Any agent may be given the result; else only agents of the same principal."""
    key: PoolKey = PoolKey("")
    """Where given, the result may hold names and URIs that this agent knows by others."""
    task: str = ""
    """Where given, the result is about this task: our id, in place of the server's."""
    begins_task: bool = False
    """The result is that task: the call goes on as it."""
    call: CallId = NO_CALL
    """See `Reply`."""
    as_tool: str = ""
    """See `ReplyRewritten`."""


class AnswerBuiltin(BrokerEffect, frozen=True):
    """Answer a call of one of our own tools that is about what the session sees."""

    session: SessionId
    id: RawJson
    kind: str
    """See `builtin_tools.OwnKind`."""
    rest: Payload
    """The params of the call, as `CallRequested.rest`."""
    version: str
    """What the agent can read."""
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
    """One thing that is wanted before a call goes on."""

    key: str
    """Under which the retry is to bring it."""
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
    """Our token; the retry brings it back."""


class AcknowledgeListen(BrokerEffect, frozen=True):
    """A `subscriptions/listen` is in force, as far as this. Before everything else that it brings."""

    session: SessionId
    id: RawJson
    families: tuple[ListNotification, ...]
    uris: tuple[str, ...]
    tasks: tuple[str, ...] = ()


class EndListen(BrokerEffect, frozen=True):
    """A `subscriptions/listen` ends, and not because its agent wanted that."""

    session: SessionId
    id: RawJson


class AnswerInitialize(BrokerEffect, frozen=True):
    """Answer `initialize`."""

    session: SessionId
    id: RawJson
    version: str
    instructions: str
    features: tuple[Feature, ...]
    """What to announce, in a stable order."""


class SendProgress(BrokerEffect, frozen=True):
    """Pass progress on, with the agent's own token."""

    session: SessionId
    token: RawJson
    params: Payload
    request: RawJson = ABSENT
    """The request that it belongs to: on a carrier with many streams it travels on that one's."""


class SendListChanged(BrokerEffect, frozen=True):
    """Tell this agent that a list is not what it last got."""

    session: SessionId
    family: ListNotification = "tools"
    listen: RawJson = ABSENT
    """The `subscriptions/listen` that it is said on; absent in the handshake era."""


class SendLog(BrokerEffect, frozen=True):
    """Pass a server's log message on."""

    session: SessionId
    params: Payload
    request: RawJson = ABSENT
    """The request that it is about, where that is known."""


class SendResourceUpdated(BrokerEffect, frozen=True):
    """Tell this agent that a resource it subscribed to, or a part of it, changed."""

    session: SessionId
    uri: str
    """As this agent is to read it."""
    params: Payload
    listen: RawJson = ABSENT
    """See `SendListChanged`."""


class SendTaskStatus(BrokerEffect, frozen=True):
    """Tell this agent how far a task is."""

    session: SessionId
    task: str
    """Our id."""
    params: Payload
    listen: RawJson
    """See `SendListChanged`."""
    key: PoolKey = PoolKey("")
    """See `ReplyStateless`."""


class SendAsk(BrokerEffect, frozen=True):
    """Ask this agent what a server asks of it."""

    session: SessionId
    ask: AskId
    """Also the request's id and, where progress is wanted, its progress token."""
    method: str
    params: Payload
    """As the server wrote them: another version than the agent's may be meant."""
    wants_progress: bool
    version: str
    """The agent's. Whoever words it for that may find that it cannot be said: then the agent has answered
    with that error.
    """
    request: RawJson = ABSENT
    """The request of the agent that this is asked for: see `SendProgress`."""
    server: ServerName = ServerName("")
    """The server that asks, to be named to the user; empty: the agent sees this one only."""


class WithdrawAsk(BrokerEffect, frozen=True):
    """Tell this agent that its answer is no longer needed."""

    session: SessionId
    ask: AskId
    reason: Text
    request: RawJson = ABSENT
    """As in `SendAsk`."""


class SendElicitationComplete(BrokerEffect, frozen=True):
    """Tell this agent that what it was sent to a URL for is done."""

    session: SessionId
    params: Payload
