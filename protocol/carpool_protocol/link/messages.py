"""The neutral call: every message on the link between broker and supervisor.

Owns the message types of the link and its version. One ZeroMQ frame is one msgpack list of these (`codec`).
Eras of MCP are not visible here: each half adapts its own side. Field order is the wire format
(`array_like`): append fields with a default, never reorder, and raise `LINK_VERSION` when a meaning changes.

It is longer than other files because it is a table without logic: whether a tag is free or a version right
shows only with the whole link in view.

Payloads are `bytes` holding one JSON value each (`ids.RawJson` on both sides); `b""` means absent. Durations
are seconds, sizes are bytes.

Knows nothing of: sockets, processes, sessions' rights, JSON-RPC ids of either end.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from carpool_protocol.counters.snapshot import ServerCounts
from carpool_protocol.ids import (
    ABSENT,
    AskId,
    CallId,
    Epoch,
    InstanceId,
    PoolKey,
    RawJson,
    ServerName,
    SessionId,
)

LINK_VERSION = 9
"""The version that both ends announce first. A peer with another number is refused with a clear sentence."""

Secret = Annotated[dict[str, str], Meta(extra={"journal": "blank"})]
"""Values that never appear in a journal, a log or a status page."""

SecretWords = Annotated[list[str], Meta(extra={"journal": "blank"})]

Payload = Annotated[RawJson, Meta(extra={"journal": "length"})]
"""Opaque data: a journal keeps only its length."""

Text = Annotated[str, Meta(extra={"journal": "length"})]
"""Text written by an agent or a server: a journal keeps only its length."""

Name = Annotated[str, Meta(extra={"journal": "name"})]
"""A name or URI of any length that an agent or a server wrote: a journal cuts a long one."""

Document = Annotated[RawJson, Meta(extra={"journal": "document"})]
"""A description that a server gives of itself or of what it offers. A journal keeps it whole, because a
replay needs it, and bounds the memory of all documents together.
"""

DocumentText = Annotated[str, Meta(extra={"journal": "document"})]
"""A document that is a text."""

Delivered = Literal["no", "maybe"]
"""Says if a server can have seen the call. `no`: it was never written. `maybe`: it was, with unknown
outcome.
"""

PoolState = Literal[
    "cold",
    "starting",
    "serving",
    "backing_off",
    "given_up",
    "stopped",
    "draining",
    "breaker_open",
    "half_open",
    "offline",
]
"""`cold`: no instance, starts on demand. `draining`: no longer wanted, finishes open calls.

`breaker_open`: it failed too often in a row, so nothing starts for a while; `half_open`: the next demand
starts one instance as a test, or has started it. `given_up`: as `breaker_open`, until an operator starts it.
`offline`: there is nothing to run.
"""

Breaker = Literal["closed", "open", "half_open"]
"""State of the circuit breaker (rule 8): instances start freely, not at all, or one as a test."""


Sharing = Literal["auto", "concurrent", "serial", "session"]
"""How agents share the instances of a server (docs/sharing.md), as configured."""

Mode = Literal["concurrent", "serial", "session"]
"""The sharing mode in force: the supervisor's decision for `auto`, from its list and evidence."""

Era = Literal["handshake", "stateless"]
"""The era of MCP that a pool's instances speak: 2024-11-05 … 2025-11-25, or 2026-07-28."""

EraWish = Literal["handshake", "stateless", "auto", "newest"]
"""The wanted era of a pool. `auto`: handshake, or stateless if a server refuses that. `newest`: the
reverse.
"""


Need = Literal["sampling", "sampling.tools", "elicitation.form", "elicitation.url", "roots"]
"""A capability that an agent must have declared for an ask. `wire/capabilities` reads it from the params."""


class Message(Struct, frozen=True, array_like=True, tag_field="t"):
    """Root of all link messages."""


# --- both ways -------------------------------------------------------------------------------------------


class Hello(Message, frozen=True, tag=1):
    """The first message in each direction, repeated when a peer turns out to have a new epoch."""

    version: int
    epoch: Epoch
    name: str
    """The supervisor's name, or `broker`."""
    pid: int
    release: str
    """The sender's version of carpool, for people."""


class Heartbeat(Message, frozen=True, tag=2):
    """The sender is running. Sent at the sender's pace (`runtime.pace`) when there is no other message."""


class Credit(Message, frozen=True, tag=3):
    """The receiver has processed this many payload bytes, so as many may follow (rule 10)."""

    size_bytes: int


# --- broker to supervisor --------------------------------------------------------------------------------


class Policy(Struct, frozen=True, kw_only=True, array_like=True):
    """How a pool is run. Every default is a documented setting."""

    min_instances: int = 0
    max_instances: int = 0
    """0: as many as suit the sharing mode (`carpool_supervisor.core.model.sharing.MOST_INSTANCES`)."""
    idle_s: float = 600.0
    """An instance unused this long is ended, down to `min_instances`."""
    auto_connect: bool = False
    """Start with carpool instead of on first use."""
    first_start_s: float = 300.0
    """Longest time from spawn to fit until the pool has been fit once (npx and uvx install)."""
    start_s: float = 60.0
    timeout_s: float = 60.0
    """A call ends after this long without progress."""
    tool_timeouts_s: dict[str, float] = {}
    """`timeout_s` per tool, by the server's own name."""
    max_total_s: float = 1800.0
    """A call ends after this long, even with progress."""
    wait_s: float = 30.0
    """Longest time that a call waits for an instance."""
    max_waiting_calls: int = 1024
    max_waiting_bytes: int = 64 * 1024 * 1024
    max_in_flight: int = 256
    """Maximum number of unanswered calls on one instance; further calls wait, or another instance starts."""
    scale_up_at: int = 8
    """Unanswered calls on the least busy instance at which another one starts, up to `max_instances`."""
    give_up_after: int = 5
    """Failures in a row after which the pool is not restarted automatically."""
    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    healthy_after_s: float = 60.0
    probe_s: float = 30.0
    """An instance that is silent for this long gets a ping."""
    drain_s: float = 60.0
    stderr_in_errors: bool = False
    sharing: Sharing = "auto"
    spares: int = 1
    """Warm instances beyond those leased, while a pool in mode `session` is in use."""
    ask_timeout_s: float = 600.0
    """An ask that no agent answers in this time is answered with an error (rule 14)."""
    lease_idle_s: float = 1800.0
    """A lease ends after this long without a call (rule 15)."""
    open_s: float = 60.0
    """How long the breaker stays open; 0: until an operator starts the server."""
    limit_rss_mb: int = 0
    """Maximum memory of an instance in MiB before it is replaced; 0 here and below: no limit."""
    limit_calls: int = 0
    """Maximum number of calls of an instance before it is replaced."""
    limit_age_s: float = 0.0
    """Highest age of an instance before it is replaced."""


class Root(Struct, frozen=True, array_like=True):
    """A directory that a server gets as a root (MCP 2025-11-25, client/roots)."""

    uri: str
    """A `file://` URI."""
    name: str = ""
    """The agent's name for it; empty: none."""


class NodeTarget(Struct, frozen=True, array_like=True):
    """A server of other nodes of the cluster (docs/cluster.md)."""

    node: str
    """The node's name; `*`: any node that offers the server."""
    server: str
    """Its name there."""
    keeps_state: bool = True
    """Each agent has an instance of its own there: an agent is told of state that was lost with it."""


class PoolSpec(Struct, frozen=True, kw_only=True, array_like=True):
    """One pool that is wanted: its program and its policy."""

    key: PoolKey
    server: ServerName
    argv: SecretWords
    """Blank in journals: `${TOKEN}` may have been expanded into it."""
    env: Secret
    """The whole environment of the process."""
    cwd: str
    policy: Policy
    secrets: SecretWords = []
    """Values of all variables that were expanded into it; no text about the pool may repeat one."""
    start_after: PoolKey = PoolKey("")
    """The pool that this one replaces `stop_first`: nothing starts here before that one has ended."""
    stop_first: bool = False
    """The server holds a port or a lock: nothing starts here before every older instance of it has ended."""
    asking: bool = False
    """True: its instances are greeted with sampling and elicitation declared (rule 12). False: with
    neither.
    """
    roots: list[Root] | None = None
    """The roots of its instances; None: roots are not declared (rule 6)."""
    replaces: PoolKey = PoolKey("")
    """The pool that this one replaces after a reload: leases of that one end here (rule 15)."""
    era: EraWish = "handshake"
    replaces_too: list[PoolKey] = []
    """More replaced pools: classes of agents that had one pool each share this one."""
    paused: bool = False
    """True: an operator has paused its server, and calls that come wait."""
    bridge: bool = False
    """True: its processes are carpool's own bridges to servers over a URL, or its instances are sessions with
    carpool at another node; what they say about delivery is trusted.
    """
    target: NodeTarget | None = None
    """The server is at another node: its instances are sessions there and no processes (`argv` is unused)."""
    offline: bool = False
    """True: there is nothing to run, only a list of tools (`argv` is unused)."""
    layer: str = ""
    """The layer of the configuration that it comes from: the file of a project, a named workspace, or
    `carpool run`; empty: the user's file. Layers take turns when processes start.
    """


class SetPools(Message, frozen=True, tag=10):
    """All wanted pools, complete each time. A pool that is missing drains and is removed."""

    pools: list[PoolSpec]
    max_processes: int = 64
    """Maximum number of instances of all pools together (rule 14)."""
    max_greeting: int = 3
    """Maximum number of cold starts at a time (rule 2).

    With eleven at once each causes the others' time-outs.
    """
    complete: bool = True
    """False: a new broker does not know all sessions yet, so missing pools stay."""
    why_missing: str = ""
    """Why pools are missing that were wanted until now, as a clause for logs. Empty: their configuration has
    changed.
    """


class DiscoverCatalog(Message, frozen=True, tag=11):
    """Asks for this pool's catalog: an instance is started if none has sent it yet.

    For a pool with an open breaker it notes the demand: one instance is started when that is allowed.
    """

    key: PoolKey
    again: bool = False
    """True: the known catalog is outdated, and a running instance sends it again."""
    first: bool = False
    """True: a call waits for it by a name that only this pool can have; it starts before pools that are only
    listed.
    """


class CallOrigin(Struct, frozen=True, array_like=True):
    """The origin of a call for the audit log, as far as it is known. Many calls share one."""

    session: SessionId
    agent: str = ""
    """The agent's own name for itself."""
    pid: int = 0
    """Process id of its carrier; 0: not known."""
    carrier: str = ""
    principal: str = ""
    """Name of its bearer token."""
    profile: str = ""


class Call(Message, frozen=True, tag=12):
    """One request of an agent for one server."""

    call: CallId
    key: PoolKey
    session: SessionId
    """For fairness between sessions, not for rights. It may be a part of a session (`ids.part_of`)."""
    method: str
    target: Name
    """The server's own name for the tool."""
    params: Payload
    """The agent's params as an object, without `name` and `_meta`."""
    meta: Payload
    """The agent's `_meta` as an object without `progressToken`; absent if there was none."""
    wants_progress: bool
    trace: str = ""
    """The agent's trace context: the legal `traceparent` in `meta`, written as version 00 (W3C Trace
    Context).

    Empty if `meta` holds none.
    """
    can: list[Need] | None = None
    """The asks that the agent behind this call supports; None: as the pool's class says (rule 12)."""
    log_level: str = ""
    """Least level of log messages wanted for this call; empty: as `SetLevel` says."""
    tasks: bool = False
    """The agent has declared the extension `io.modelcontextprotocol/tasks`, so a server may answer with a
    task.
    """
    instance: InstanceId = InstanceId(0)
    """The instance of the task (`target`) that the call is about; no other instance can serve it. 0: any
    instance.
    """
    request: RawJson = ABSENT
    """The agent's own id of the request; a later broker finds the call in the record by it."""
    digest: str = ""
    """Hash of method, name and params as the agent wrote them, to distinguish two uses of one id. Empty:
    none.
    """
    principal: str = ""
    """Name of the session's bearer token, for fairness, not for rights. Empty: none."""
    caller: CallOrigin | None = None
    """Kept for the audit log of a later broker; None: there is no audit log."""
    traced: bool = False
    """`trace` is carpool's own context of a sampled call: its server gets it, and `CallTimed` is wanted."""
    timed: bool = False
    """`CallTimed` is wanted, without a trace: its server gets the call as it came."""


class CancelCall(Message, frozen=True, tag=13):
    """The agent no longer wants the answer; none is sent."""

    call: CallId
    reason: Text
    answered: bool = False
    """True: the record keeps the call until `AnswersWritten` or the end of its session.

    The broker answers this call itself, and that answer may not have been written yet.
    """


class EndCall(Message, frozen=True, tag=52):
    """An operator has cancelled this call. Answered with `CallFailed`, unless the call is over already, and
    with a `CallsLocated` of this token, which says where the call was when it ended.
    """

    call: CallId
    token: int = 0
    """0: nobody waits for the answer."""


class Operate(Message, frozen=True, tag=14):
    """An operator's command for a pool. Answered with `OperationEnded` when it has taken effect."""

    token: int
    key: PoolKey
    verb: Literal["start", "stop", "restart"]


class Survey(Message, frozen=True, tag=15):
    """Asks for everything that `status` shows. Answered with `Surveyed`."""

    token: int
    pids: list[int]
    """Other processes of carpool to measure: only the supervisor measures."""
    counts_only: bool = False
    """Wanted is `Surveyed.counts` alone, so no process is measured."""


class SetLevel(Message, frozen=True, tag=16):
    """The most verbose log level that any session wants from this pool."""

    key: PoolKey
    level: Name
    """Empty: no log messages are wanted."""


class SetResourceSubscriptions(Message, frozen=True, tag=17):
    """All resources of this pool that sessions have subscribed to."""

    key: PoolKey
    uris: list[Name]


class ChangeResourceSubscriptions(Message, frozen=True, tag=48):
    """The difference to the subscribed resources that the supervisor knows of this pool. So a change costs as
    much as it is large, however many resources are subscribed to.
    """

    key: PoolKey
    add: list[Name]
    drop: list[Name]


class AnswerAsk(Message, frozen=True, tag=18):
    """The agent's answer to an ask, or an error in its place. Once per ask; ignored for an ask that is
    over.
    """

    ask: AskId
    is_error: bool
    """`body` is a JSON-RPC error object, not a result."""
    body: Payload


class ForwardAskProgress(Message, frozen=True, tag=19):
    """Progress of the agent on an ask that wants progress."""

    ask: AskId
    params: Payload
    """The notification's params without `progressToken`."""


class SessionEnded(Message, frozen=True, tag=20):
    """The session is over, so its leases end. Its calls have been cancelled and forgotten one by one
    before.
    """

    session: SessionId


class SessionAbsent(Message, frozen=True, tag=54):
    """The agent of this session has no open connection, so its leases may end if others wait; or it is there
    again.
    """

    session: SessionId
    absent: bool


class SessionNotResumable(Message, frozen=True, tag=4):
    """This session ends with its broker, because its carrier cannot resume it. Sent before its first call."""

    session: SessionId


class SessionPoolChanged(Message, frozen=True, tag=23):
    """This session now uses another pool of the same server, because its roots or configuration changed.

    Its lease of the old pool ends, and it is told so at the new one (rules 6, 15).
    """

    session: SessionId
    old: PoolKey
    new: PoolKey
    """Empty: the session no longer has this server; other sessions may still use the old pool."""


class SessionNote(Struct, frozen=True, array_like=True):
    """One existing session, for a supervisor that has just connected."""

    session: SessionId
    bereft: list[ServerName] = []
    """Servers in mode `session` that it called at the earlier supervisor: its state there is lost."""
    fleeting: bool = False
    """True for an unresumable session (`SessionNotResumable`)."""


class OpenSessions(Message, frozen=True, tag=24):
    """All existing sessions, right after the first `SetPools` of a link.

    The supervisor forgets all other sessions. A session that lost an instance with an earlier supervisor is
    told `state_lost` once (rule 15).
    """

    live: list[SessionNote]


class SessionStateLost(Message, frozen=True, tag=29):
    """This session lost its state at these servers, except at instances that this supervisor leased to it
    (rule 15).

    It comes from another life of carpool, or came back too late.
    """

    session: SessionId
    servers: list[ServerName]


class SetTaskSubscriptions(Message, frozen=True, tag=25):
    """The tasks of one instance that agents have subscribed to, complete each time."""

    instance: InstanceId
    tasks: list[Name]
    """The server's own task ids."""


class CancelTask(Message, frozen=True, tag=26):
    """Cancel a task that no agent can ask for any more. It gets no answer."""

    instance: InstanceId
    task: Name
    """The server's own task id."""


class AnswersWritten(Message, frozen=True, tag=27):
    """The carriers have the answers of these calls, so the record needs them no longer (rule 4)."""

    calls: list[CallId]
    newest: CallId = CallId(0)
    """The last call that the broker had read by then; 0: not said.

    Agents sent all calls up to it before they could know these answers (rule 15).
    """
    oldest: CallId = CallId(0)
    """The lowest number of a call that the broker has read and not sent; 0: not said.

    No call with a lower number follows.
    """


class ResumeCall(Message, frozen=True, tag=28):
    """Asks for the outcome of a call in the record.

    Answered with its `CallAnswered` or `CallFailed`, at once if it has ended; otherwise with every
    `AskOpened` that is open for it. For a call that the record does not hold: `CallFailed`, code `lost`.
    """

    call: CallId


class ExplainSharing(Message, frozen=True, tag=21):
    """Asks for the sharing mode of this pool and the reasons. Answered with `SharingExplained`."""

    token: int
    key: PoolKey


class ReportProbe(Message, frozen=True, tag=22):
    """The finding of a trial of a server (`carpool check --probe`)."""

    key: PoolKey
    kind: str
    """`probe_diverged` or `probe_agreed`."""
    detail: str
    """For people: tools and counts; never argument values."""


class UseLoginShell(Message, frozen=True, tag=46):
    """Turns the login shell's PATH for the programs of servers on or off. Sent before any `SetPools`."""

    on: bool


# --- supervisor to broker --------------------------------------------------------------------------------


class CallAnswered(Message, frozen=True, tag=30):
    """The server's own answer, unchanged."""

    call: CallId
    is_error: bool
    """`body` is a JSON-RPC error object, not a result."""
    body: Payload
    urls_first: bool = False
    """The error sends the agent to URLs first (-32042); for agents that support such asks."""
    ttl_ms: int = -1
    """How long the result is current, by the server (MCP 2026-07-28, server/utilities/caching); -1: not
    said.
    """
    public: bool = False
    """The server says that this result may be shared between users."""
    urls: tuple[Payload, ...] = ()
    """The URLs of such an error, for calls with `can`: one elicitation each, as the server wrote it."""
    task: str = ""
    """The server's own id of a task that it has begun in place of a result; empty: it is a result."""
    task_ttl_ms: int = -1
    """How long the server keeps the task; -1: for ever, or not said."""
    instance: InstanceId = InstanceId(0)
    """The instance on which the task runs."""


class CallFailed(Message, frozen=True, tag=31):
    """The call ended without an answer of the server. Once per call, and never together with
    `CallAnswered`.
    """

    call: CallId
    fault: str
    """A code of `faults.kinds`."""
    delivered: Delivered
    text: str
    """What happened and what to do next; never argument or environment values."""
    retry_after_s: float | None = None


class CallTimed(Message, frozen=True, tag=47):
    """The server's part of a call with `traced` or `timed` is over; the end of the call follows, unless it is
    placed again.
    """

    call: CallId
    span: str
    """The span id in the context that the server got; empty: the call has no trace."""
    served_s: float
    """From the call's way to the server until now."""
    instance: InstanceId
    waited_s: float = 0.0
    """How long a call with `timed` waited in the queue of its pool."""


class CallAtNode(Message, frozen=True, tag=53):
    """The call is handed to a session at another node. Only calls that go there have this message, and again
    when they are placed again or resumed. It comes with the supervisor's next message, before the call's end
    and within a heartbeat, so that a short call does not wake the broker twice.
    """

    call: CallId
    node: str


class CallProgressed(Message, frozen=True, tag=32):
    """Progress of a call whose agent asked for progress."""

    call: CallId
    params: Payload
    """The notification's params without `progressToken`."""


class Offer(Struct, frozen=True, array_like=True, gc=False):
    """One tool or prompt as the server describes it."""

    name: DocumentText
    definition: Document
    """The whole object, with unknown fields."""


ToolOffer = Offer


class ResourceOffer(Struct, frozen=True, array_like=True, gc=False):
    """One resource or resource template as the server describes it."""

    uri: DocumentText
    """Of a template: its `uriTemplate` (RFC 6570)."""
    definition: Document
    """The whole object, with unknown fields."""


Feature = Literal[
    "tools",
    "tools.listChanged",
    "prompts",
    "prompts.listChanged",
    "resources",
    "resources.listChanged",
    "resources.subscribe",
    "completions",
    "logging",
]
"""Capabilities of a server that agents can share. `wire/capabilities` converts them."""


class Catalog(Message, frozen=True, tag=33):
    """The offer of a server, complete each time it is read."""

    key: PoolKey
    tools: list[ToolOffer]
    instructions: DocumentText
    server_info: Document
    capabilities: Document
    protocol_version: str
    prompts: list[Offer] = []
    resources: list[ResourceOffer] = []
    templates: list[ResourceOffer] = []
    features: list[Feature] = []
    asks: bool = False
    """This server is known to send asks."""
    era: Era = "handshake"
    """The era of the instance that sent it."""
    ttl_ms: int = -1
    """Of the lists: the smallest value in any of them; -1: not said. See `CallAnswered`."""
    public: bool = False
    tasks: bool = False
    """The server supports the extension `io.modelcontextprotocol/tasks`."""
    left_out: str = ""
    """For people: offers beyond the bounds of an entry, of a catalog or of instructions."""


class PoolChanged(Message, frozen=True, tag=34):
    """The state of a pool has changed."""

    key: PoolKey
    state: PoolState
    reason: str
    """Why the state is bad, for people."""
    retry_after_s: float | None = None
    mode: Mode = "concurrent"
    cannot_start: bool = False
    """Its program cannot be started as configured, or no node offers it: waiting does not help."""
    both_eras: bool | None = None
    """True: agents of the other era need no second pool, because the server speaks one era or must not run
    twice.

    None: the knowledge about the server has not been read yet.
    """
    keeps_state: bool = True
    """In mode `session`: an agent loses something if its instance ends. False for servers of other nodes that
    agents share there.
    """
    is_remote: bool = False
    """Its instances are sessions at other nodes."""


class OperationEnded(Message, frozen=True, tag=35):
    """The answer to `Operate`."""

    token: int
    ok: bool
    text: str


class InstanceReport(Struct, frozen=True, kw_only=True, array_like=True):
    """One instance as `status` and `ps` show it."""

    id: InstanceId
    pid: int
    state: str
    generation: int
    era: str
    in_flight: int
    calls: int
    rss_bytes: int
    pss_bytes: int
    cpu_percent: float
    uptime_s: float
    holder: SessionId = SessionId("")
    """The session that leases it; empty: none."""
    asks: int = 0
    """Open asks of this instance."""
    why: str = ""
    """The limit that it has reached and for which it is being replaced."""
    node: str = ""
    """The node at which it is a session in place of a process; empty: it is a process of this machine."""


class PoolReport(Struct, frozen=True, kw_only=True, array_like=True):
    """One pool as `status` and `ps` show it."""

    key: PoolKey
    server: ServerName
    state: PoolState
    sharing: str
    waiting: int
    restarts: int
    last_error: str
    stderr_tail: list[str]
    instances: list[InstanceReport]
    verified: bool = True
    """False: it has not been checked that it may be shared in this way."""
    asking: bool = False
    """It was greeted for agents that support asks."""
    breaker: Breaker = "closed"
    retry_after_s: float | None = None
    """Seconds until something may start again, while the pool backs off or its breaker is open."""
    shortage: str = ""
    """Why the machine lets carpool start no process, while calls wait for one: a sentence."""
    left_out: str = ""
    """The sentence on what carpool leaves out of its lists; empty: nothing."""


class ProcessReport(Struct, frozen=True, kw_only=True, array_like=True):
    """One process of carpool itself."""

    role: str
    pid: int
    rss_bytes: int
    pss_bytes: int
    cpu_s: float


class Surveyed(Message, frozen=True, tag=36):
    """The answer to `Survey`."""

    token: int
    pools: list[PoolReport]
    processes: list[ProcessReport]
    """The supervisor (role `supervisor`), its `spawner` and the requested pids (empty role), if alive."""
    search_path: list[str] = []
    """The directories in which programs of servers are looked up, in order."""
    login_shell: str = ""
    """`asked`, `off`, `asking`, or why the login shell did not give its PATH."""
    counts: dict[ServerName, ServerCounts] = {}
    """What the supervisor has counted of each server since it started."""


class LogForSession(Message, frozen=True, tag=37):
    """A server's log message that can only concern calls of one session."""

    session: SessionId
    level: str
    params: Payload
    call: CallId = CallId(0)
    """The only call that it can concern; 0: one of several calls of that session."""


class ResourceChanged(Message, frozen=True, tag=38):
    """A resource changed, or may have changed because its server was started again."""

    key: PoolKey
    uri: Name
    params: Payload


class AskOpened(Message, frozen=True, tag=39):
    """A server asks the agent behind this call. Answered with `AnswerAsk`."""

    call: CallId
    ask: AskId
    method: str
    """`sampling/createMessage`, `elicitation/create`, or, for calls with it in `can`, `roots/list`."""
    params: Payload
    """As the server wrote them, without `_meta`'s `progressToken` and related task."""
    wants_progress: bool
    needs: list[Need] = []
    """Capabilities that these params need; empty: those of the method."""
    name: str = ""
    """The server's own key for it, if it gave one (`inputRequests`)."""


class AskWithdrawn(Message, frozen=True, tag=40):
    """The server no longer wants the answer to this ask."""

    ask: AskId
    reason: Text


class ElicitationFinished(Message, frozen=True, tag=41):
    """The user has finished at a URL of an elicitation (MCP 2025-11-25,
    `notifications/elicitation/complete`).
    """

    session: SessionId
    params: Payload


class TaskStatusChanged(Message, frozen=True, tag=43):
    """The status of a task (`notifications/tasks`)."""

    instance: InstanceId
    task: Name
    """The server's own task id."""
    params: Payload


class RecordedCall(Struct, frozen=True, array_like=True):
    """A call of an earlier broker, which has not reported that the agent's carrier has the answer."""

    call: CallId
    session: SessionId
    """The whole session, also if `Call.session` was a part of one."""
    request: RawJson
    """See `Call.request`."""
    key: PoolKey
    target: Name
    ended: bool = False
    """True: its answer is there."""
    parked: bool = False
    """It is of the stateless era and its agent was asked: a retry may bring the answers."""
    digest: str = ""
    """See `Call.digest`."""
    method: str = ""
    """See `Call.method`."""
    caller: CallOrigin | None = None
    """See `Call.caller`."""


class RecordedSession(Struct, frozen=True, array_like=True):
    """One session of an earlier broker that the supervisor remembers."""

    session: SessionId
    held: list[ServerName] = []
    """Servers with a lease of this session, or one with a loss that it was not told of yet."""
    gone: bool = False
    """A broker gave the session up and its calls are forgotten.

    A call of it that is not in the record may still have reached a server.
    """


class CallsRecorded(Message, frozen=True, tag=44):
    """The supervisor's record of earlier brokers, right after the greeting, in one or more messages.

    It is sent also if there is nothing to report.
    """

    sessions: list[RecordedSession]
    calls: list[RecordedCall]
    last: bool = True


class LocateCalls(Message, frozen=True, tag=50):
    """Asks where these calls are. Answered with `CallsLocated`."""

    token: int
    calls: list[CallId]


class CallPlace(Struct, frozen=True, array_like=True):
    """Where one open call is."""

    call: CallId
    state: Literal["waiting", "running", "asking"]
    """`waiting`: it is in the queue of its pool. `asking`: its server waits for an answer of its agent."""
    instance: InstanceId = InstanceId(0)
    """0: none yet."""
    pid: int = 0
    node: str = ""
    """See `InstanceReport.node`."""


class CallsLocated(Message, frozen=True, tag=51):
    """The answer to `LocateCalls`. Calls that are not open at the supervisor are left out."""

    token: int
    places: list[CallPlace]


class ReadJournal(Message, frozen=True, tag=5):
    """Asks for the journal entries of this call. Answered with `JournalRead`."""

    token: int
    call: CallId


class NodeSession(Struct, frozen=True, array_like=True):
    """A session at another node, which is or was an instance here."""

    node: str
    session: int
    """Its number among those with that node."""


class JournalRead(Message, frozen=True, tag=45):
    """The answer to `ReadJournal`."""

    token: int
    entries: RawJson
    """A list of `{at, event, effects}`, see `CorePump.story`."""
    pids: dict[InstanceId, int] = {}
    """Process ids of the running instances."""
    nodes: dict[InstanceId, NodeSession] = {}
    """The sessions at other nodes among the instances that run, or have ended lately."""


class SearchPathTold(Message, frozen=True, tag=55):
    """The directories in which programs of servers are looked up, in order. The supervisor tells them once
    the login shell has answered, or if it is not asked, and at each later change. Hooks get the same PATH.
    """

    directories: list[str]


class SharingExplained(Message, frozen=True, tag=42):
    """The answer to `ExplainSharing`."""

    token: int
    lines: list[str]
    """Text for people, as `carpool why` prints it."""
    mode: Mode
    verified: bool
    source: str


ToSupervisor = (
    Hello
    | Heartbeat
    | Credit
    | SetPools
    | DiscoverCatalog
    | Call
    | CancelCall
    | EndCall
    | Operate
    | Survey
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
    | ExplainSharing
    | ReadJournal
    | LocateCalls
    | ReportProbe
    | UseLoginShell
)
ToBroker = (
    Hello
    | Heartbeat
    | Credit
    | CallAnswered
    | CallFailed
    | CallTimed
    | CallAtNode
    | CallProgressed
    | Catalog
    | PoolChanged
    | OperationEnded
    | Surveyed
    | LogForSession
    | ResourceChanged
    | AskOpened
    | AskWithdrawn
    | ElicitationFinished
    | TaskStatusChanged
    | CallsRecorded
    | SearchPathTold
    | SharingExplained
    | JournalRead
    | CallsLocated
)
AnyMessage = ToSupervisor | ToBroker
