"""The neutral call: every message on the link between broker and supervisor.

Owns the vocabulary of the link and its version. One ZeroMQ frame is one msgpack
list of these (`codec`). Eras of MCP are not visible here: each half adapts
its own side. Field order is the wire format (`array_like`): append fields with
a default, never reorder, and raise `LINK_VERSION` when a meaning changes.

It is longer than a file of ours may be because it is a table, without a line that does anything: a tag is
free or taken, and a version right or wrong, only where all of the link can be seen at once.

Payloads are `bytes` holding one JSON value each (`ids.RawJson` on both sides);
`b""` means absent. Durations are seconds, sizes are bytes.

Knows nothing of: sockets, processes, sessions' rights, JSON-RPC ids of either end.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

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

LINK_VERSION = 6
"""What both ends say first. A peer that says another number is refused with a clear sentence."""

Secret = Annotated[dict[str, str], Meta(extra={"journal": "blank"})]
"""Values that never reach a journal, a log or a status page."""

SecretWords = Annotated[list[str], Meta(extra={"journal": "blank"})]

Payload = Annotated[RawJson, Meta(extra={"journal": "length"})]
"""Opaque cargo: of it a journal keeps the length only."""

Text = Annotated[str, Meta(extra={"journal": "length"})]
"""What an agent or a server wrote, in words of its own: of it a journal keeps the length only."""

Delivered = Literal["no", "maybe"]
"""Whether a server can have seen the call. `no`: it was never written. `maybe`: it was, outcome unknown."""

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
]
"""`cold`: nothing runs, starts on demand. `draining`: no longer wanted, finishes what is open.
`breaker_open`: it broke too often in a row, so nothing starts for a while; `half_open`: the next demand
starts one instance, or has, to see whether it is well again. `given_up`: as `breaker_open`, until an operator
says start.
"""

Breaker = Literal["closed", "open", "half_open"]
"""Whether a pool may start instances (rule 8): freely, not at all, or one to see whether it is well."""


Sharing = Literal["auto", "concurrent", "serial", "session"]
"""How agents share the instances of a server (docs/sharing.md), as configured."""

Mode = Literal["concurrent", "serial", "session"]
"""How they share them now: what the supervisor made of `auto`, of its list and of evidence."""

Era = Literal["handshake", "stateless"]
"""How the instances of a pool are spoken to: 2024-11-05 … 2025-11-25, or 2026-07-28."""

EraWish = Literal["handshake", "stateless", "auto", "newest"]
"""How they are to be spoken to. `auto`: in the handshake era, and in the other where a server refuses that.
`newest`: the other way around."""


Need = Literal["sampling", "sampling.tools", "elicitation.form", "elicitation.url", "roots"]
"""What an agent must have declared for a question. `wire/capabilities` reads it from the params."""


class Message(Struct, frozen=True, array_like=True, tag_field="t"):
    """Root of all link messages."""


# --- both ways -------------------------------------------------------------------------------------------


class Hello(Message, frozen=True, tag=1):
    """The first message each way, and again whenever a peer's epoch turns out to be new."""

    version: int
    epoch: Epoch
    name: str
    """The supervisor's name, or `broker`."""
    pid: int
    release: str
    """The version of carpool that speaks, for people."""


class Heartbeat(Message, frozen=True, tag=2):
    """I am running. Sent every second in which nothing else was sent."""


class Credit(Message, frozen=True, tag=3):
    """The receiver has taken in this many payload bytes: as many may follow (rule 10)."""

    size_bytes: int


# --- broker to supervisor --------------------------------------------------------------------------------


class Policy(Struct, frozen=True, kw_only=True, array_like=True):
    """How a pool is run. Every default is a documented setting."""

    min_instances: int = 0
    max_instances: int = 0
    """0: as many as the sharing mode is good for (`carpool_supervisor.core.model.sharing.MOST_INSTANCES`)."""
    idle_s: float = 600.0
    """An instance unused this long is ended, down to `min_instances`."""
    auto_connect: bool = False
    """Start with carpool instead of on first use."""
    first_start_s: float = 300.0
    """Limit from spawn to fit until the pool has once been fit (npx and uvx install)."""
    start_s: float = 60.0
    timeout_s: float = 60.0
    """Without progress for this long, a call ends."""
    tool_timeouts_s: dict[str, float] = {}
    """`timeout_s` per tool, by the server's own name for it."""
    max_total_s: float = 1800.0
    """A call ends after this long, progress or not."""
    wait_s: float = 30.0
    """The longest a call waits for an instance."""
    max_waiting_calls: int = 1024
    max_waiting_bytes: int = 64 * 1024 * 1024
    max_in_flight: int = 256
    """Unanswered calls on one instance before others wait or another instance starts."""
    scale_up_at: int = 8
    """Unanswered calls on the least busy instance at which another one starts, up to `max_instances`."""
    give_up_after: int = 5
    """Failures in a row after which the pool is not restarted by itself."""
    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    healthy_after_s: float = 60.0
    probe_s: float = 30.0
    """An instance silent this long is probed with a ping."""
    drain_s: float = 60.0
    stderr_in_errors: bool = False
    sharing: Sharing = "auto"
    spares: int = 1
    """Warm instances beyond those leased, while a pool in mode `session` is in use."""
    ask_timeout_s: float = 600.0
    """A question of a server that no agent answers in this time is answered with an error (rule 14)."""
    lease_idle_s: float = 1800.0
    """A lease ends after this long without a call (rule 15)."""
    open_s: float = 60.0
    """So long the breaker stays open; 0: until an operator says start."""
    limit_rss_mb: int = 0
    """An instance whose processes hold more MiB than this is replaced; 0: no limit, here and below."""
    limit_calls: int = 0
    """So is one that was given so many calls,"""
    limit_age_s: float = 0.0
    """and one that is so old."""


class Root(Struct, frozen=True, array_like=True):
    """A directory that a server is told (MCP 2025-11-25, client/roots)."""

    uri: str
    """A `file://` URI."""
    name: str = ""
    """What the agent calls it; empty: nothing."""


class PoolSpec(Struct, frozen=True, kw_only=True, array_like=True):
    """One pool that is wanted: what to run and how."""

    key: PoolKey
    server: ServerName
    argv: SecretWords
    """Blank in journals: `${TOKEN}` may have been expanded into it."""
    env: Secret
    """The whole environment of the process."""
    cwd: str
    policy: Policy
    secrets: SecretWords = []
    """Values of variables that were expanded into it, wherever that was: no word about it repeats one."""
    start_after: PoolKey = PoolKey("")
    """The pool that this one replaces `stop_first`: nothing starts here before that one is gone."""
    stop_first: bool = False
    """It holds a port or a lock: nothing starts here before every older instance of it has ended."""
    asking: bool = False
    """Its instances are greeted with sampling and elicitation declared (rule 12); else with nothing."""
    roots: list[Root] | None = None
    """What its instances are told as roots; None: roots are not declared (rule 6)."""
    replaces: PoolKey = PoolKey("")
    """The pool whose place this one takes after a reload: leases of that one end here (rule 15)."""
    era: EraWish = "handshake"
    replaces_too: list[PoolKey] = []
    """More such pools: agents of several classes had one each, and have this one together."""
    bridge: bool = False
    """Its processes are carpool's own, in front of servers over a URL: what they say of delivery is true."""


class SetPools(Message, frozen=True, tag=10):
    """All pools that are wanted, complete each time: what is missing here drains and goes."""

    pools: list[PoolSpec]
    max_processes: int = 64
    """Cap on all instances together (rule 14)."""
    max_greeting: int = 3
    """Cold starts beside each other (rule 2): eleven at once time each other out."""
    complete: bool = True
    """False: a broker that has just begun does not know all sessions yet. What is missing here stays."""


class DiscoverCatalog(Message, frozen=True, tag=11):
    """Somebody needs this pool's catalog: start an instance if none ever told it. To a pool whose breaker is
    not closed it says that somebody misses it: one instance is started when that may be.
    """

    key: PoolKey
    again: bool = False
    """The one that was told is not current any more: an instance that runs tells it again."""
    first: bool = False
    """A call by a name that can only be of such a pool waits for it: it starts before what is only listed."""


class CallOrigin(Struct, frozen=True, array_like=True):
    """Whose call it is, as the audit names it, as far as that is known. Many calls share one."""

    session: SessionId
    agent: str = ""
    """What the agent calls itself."""
    pid: int = 0
    """Of its carrier; 0: not known."""
    carrier: str = ""
    principal: str = ""
    """Name of its bearer token."""
    profile: str = ""


class Call(Message, frozen=True, tag=12):
    """One request of an agent for one server."""

    call: CallId
    key: PoolKey
    session: SessionId
    """For fairness between sessions, not for rights. It may be a part of one (`ids.part_of`)."""
    method: str
    target: str
    """The server's own name of the tool."""
    params: Payload
    """The agent's params as an object, without `name` and `_meta`."""
    meta: Payload
    """The agent's `_meta` as an object without `progressToken`; absent when there was none."""
    wants_progress: bool
    trace: str = ""
    """The agent's own trace context: the legal `traceparent` in `meta`, in the words of version 00 (W3C Trace
    Context). Empty where `meta` holds none.
    """
    can: list[Need] | None = None
    """What can be asked of the agent behind this very call; None: what its pool's class says (rule 12)."""
    log_level: str = ""
    """Log messages of this call are wanted from here on; empty: as `SetLevel` says."""
    tasks: bool = False
    """Its agent has declared the extension `io.modelcontextprotocol/tasks`: a server that knows it may answer
    with a task.
    """
    instance: InstanceId = InstanceId(0)
    """It is about a task (`target`) that runs there: no other will do. 0: any instance."""
    request: RawJson = ABSENT
    """The agent's own id of it, as the broker knows it: under that a later broker finds it in the record."""
    digest: str = ""
    """Of method, name and params as the agent said them: what tells two uses of one id apart. Empty: nothing.
    """
    principal: str = ""
    """Name of the bearer token that its session came with: for fairness, not for rights. Empty: none."""
    caller: CallOrigin | None = None
    """Kept for the audit of a later broker; None: there is no audit."""


class CancelCall(Message, frozen=True, tag=13):
    """The agent no longer wants the answer; none is sent."""

    call: CallId
    reason: Text
    answered: bool = False
    """That it was there is remembered: until the answer that the broker gives by itself is
    `AnswersWritten`, or its session, which is to be told next, is gone.
    """


class Operate(Message, frozen=True, tag=14):
    """An operator's word on a pool. Answered with `OperationEnded` when it has taken effect."""

    token: int
    key: PoolKey
    verb: Literal["start", "stop", "restart"]


class Survey(Message, frozen=True, tag=15):
    """Tell everything that `status` shows. Answered with `Surveyed`."""

    token: int
    pids: list[int]
    """Other processes of carpool whose memory is wanted too: only the supervisor probes."""


class SetLevel(Message, frozen=True, tag=16):
    """The most verbose log level that any session wants of this pool."""

    key: PoolKey
    level: str
    """Empty: nobody wants any log message."""


class SetResourceSubscriptions(Message, frozen=True, tag=17):
    """The resources whose changes sessions want to hear of, complete each time."""

    key: PoolKey
    uris: list[str]


class AnswerAsk(Message, frozen=True, tag=18):
    """What the agent said to an ask, or the error that speaks for it. Once per ask; for one that is over,
    nothing happens.
    """

    ask: AskId
    is_error: bool
    """`body` is a JSON-RPC error object, not a result."""
    body: Payload


class ForwardAskProgress(Message, frozen=True, tag=19):
    """The agent tells how far it is with an ask that wants to know."""

    ask: AskId
    params: Payload
    """The notification's params without `progressToken`."""


class SessionEnded(Message, frozen=True, tag=20):
    """The agent is gone: its leases end. Its calls are cancelled one by one, before this, and forgotten."""

    session: SessionId


class SessionNotResumable(Message, frozen=True, tag=4):
    """This session ends with its broker: whatever carries it will not come to the next one. Before its first
    call at this supervisor.
    """

    session: SessionId


class SessionPoolChanged(Message, frozen=True, tag=23):
    """This session is served by another pool of the same server now, because its roots or its configuration
    are others: its lease of the old one ends, and it is told so at the new one (rules 6, 15).
    """

    session: SessionId
    old: PoolKey
    new: PoolKey
    """Empty: this server is not for this session any more; others may go on with the old pool."""


class SessionNote(Struct, frozen=True, array_like=True):
    """One session that is there, as a supervisor that came needs to know it."""

    session: SessionId
    bereft: list[ServerName] = []
    """Servers in mode `session` that it had called at the supervisor before: what it had there is gone."""
    fleeting: bool = False
    """See `SessionNotResumable`."""


class OpenSessions(Message, frozen=True, tag=24):
    """All sessions there are. Right after the first `SetPools` of a link: what a supervisor remembers of
    others goes, and who has lost an instance with an earlier supervisor is told `state_lost` once (rule
    15).
    """

    live: list[SessionNote]


class SessionStateLost(Message, frozen=True, tag=29):
    """This session has come from another life of carpool, or too late: what it had at these servers is
    gone, but for what this supervisor itself has leased to it (rule 15).
    """

    session: SessionId
    servers: list[ServerName]


class SetTaskSubscriptions(Message, frozen=True, tag=25):
    """The tasks of one instance whose changes agents want to hear of, complete each time."""

    instance: InstanceId
    tasks: list[str]
    """The server's own ids."""


class CancelTask(Message, frozen=True, tag=26):
    """Nobody can ask for this task any more. Nothing is answered."""

    instance: InstanceId
    task: str
    """The server's own id."""


class AnswersWritten(Message, frozen=True, tag=27):
    """The answers of these calls are with their carriers: the record needs them no longer (rule 4)."""

    calls: list[CallId]
    newest: CallId = CallId(0)
    """The last call that the broker had read by then: agents sent all of those before they could know these
    answers (rule 15). 0: not said.
    """
    oldest: CallId = CallId(0)
    """The lowest number of a call that the broker has read and not sent. A call below it does not come any
    more. 0: not said.
    """


class ResumeCall(Message, frozen=True, tag=28):
    """This call of the record is wanted again. Answered with its `CallAnswered` or `CallFailed`, at once
    where it has ended; with every `AskOpened` that is open for it, where it has not. Of a call that the
    record does not hold: `CallFailed`, code `lost`.
    """

    call: CallId


class ExplainSharing(Message, frozen=True, tag=21):
    """Say which sharing mode this pool has and why. Answered with `SharingExplained`."""

    token: int
    key: PoolKey


class ReportProbe(Message, frozen=True, tag=22):
    """Something was found out about a server by trying it (`carpool check --probe`)."""

    key: PoolKey
    kind: str
    """`probe_diverged` or `probe_agreed`."""
    detail: str
    """For people: tools and counts; never argument values."""


class UseLoginShell(Message, frozen=True, tag=46):
    """Programs of servers are looked up in the login shell's PATH too, or not. Said before any `SetPools`."""

    on: bool


# --- supervisor to broker --------------------------------------------------------------------------------


class CallAnswered(Message, frozen=True, tag=30):
    """The server's own answer, untouched."""

    call: CallId
    is_error: bool
    """`body` is a JSON-RPC error object, not a result."""
    body: Payload
    urls_first: bool = False
    """The error sends the agent to URLs first (-32042): for agents that can be asked so."""
    ttl_ms: int = -1
    """How long the result is current, says the server (MCP 2026-07-28, server/utilities/caching); -1: no
    word.
    """
    public: bool = False
    """It says that anybody may be given this result."""
    urls: tuple[Payload, ...] = ()
    """Of such an error, for calls whose `can` is said: where to. One elicitation each, as the server wrote
    it.
    """
    task: str = ""
    """The result is no result but this task, which the server has begun; its own id of it."""
    task_ttl_ms: int = -1
    """How long the server keeps that; -1: it does not say, or for ever."""
    instance: InstanceId = InstanceId(0)
    """Where that runs."""


class CallFailed(Message, frozen=True, tag=31):
    """The call ended without an answer of the server. Once per call, and never together with
    `CallAnswered`.
    """

    call: CallId
    fault: str
    """A code of `faults`."""
    delivered: Delivered
    text: str
    """What happened and what to do next; never argument or environment values."""
    retry_after_s: float | None = None


class CallProgressed(Message, frozen=True, tag=32):
    """Progress of a call that wants it."""

    call: CallId
    params: Payload
    """The notification's params without `progressToken`."""


class Offer(Struct, frozen=True, array_like=True, gc=False):
    """One tool or prompt as the server describes it."""

    name: str
    definition: RawJson
    """The whole object, unknown fields included."""


ToolOffer = Offer


class ResourceOffer(Struct, frozen=True, array_like=True, gc=False):
    """One resource or resource template as the server describes it."""

    uri: str
    """Of a template: its `uriTemplate` (RFC 6570)."""
    definition: RawJson
    """The whole object, unknown fields included."""


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
"""What a server announces of what can be shared. `features` reads them from capabilities and writes them."""


class Catalog(Message, frozen=True, tag=33):
    """What a server offers, complete each time it is read."""

    key: PoolKey
    tools: list[ToolOffer]
    instructions: str
    server_info: RawJson
    capabilities: RawJson
    protocol_version: str
    prompts: list[Offer] = []
    resources: list[ResourceOffer] = []
    templates: list[ResourceOffer] = []
    features: list[Feature] = []
    asks: bool = False
    """This server is known to ask agents."""
    era: Era = "handshake"
    """How the instance that told it is spoken to."""
    ttl_ms: int = -1
    """Of the lists, the least that any of them said; -1: no word. See `CallAnswered`."""
    public: bool = False
    tasks: bool = False
    """It knows the extension `io.modelcontextprotocol/tasks`."""
    left_out: str = ""
    """What the server offers beyond the bounds of one entry, of a catalog or of instructions, for people."""


class PoolChanged(Message, frozen=True, tag=34):
    """The pool as a whole is in another state than last said."""

    key: PoolKey
    state: PoolState
    reason: str
    """Why, where the state is not good: for people."""
    retry_after_s: float | None = None
    mode: Mode = "concurrent"
    cannot_start: bool = False
    """Its program cannot be started as it is configured: waiting does not help."""
    both_eras: bool | None = None
    """The launch needs no other pool for agents of the other era: its server speaks one era, or is not to run
    twice. None: what is known of the server has not been read yet.
    """


class OperationEnded(Message, frozen=True, tag=35):
    """The answer to `Operate`."""

    token: int
    ok: bool
    text: str


class InstanceReport(Struct, frozen=True, kw_only=True, array_like=True):
    """One instance, as `status` and `ps` show it."""

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
    """Whose lease it is; empty where it is nobody's."""
    asks: int = 0
    """Questions to agents that are open on it."""
    why: str = ""
    """Why it is being replaced: the limit that it has reached."""


class PoolReport(Struct, frozen=True, kw_only=True, array_like=True):
    """One pool, as `status` and `ps` show it."""

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
    """False: nobody has looked whether it may be shared as it is."""
    asking: bool = False
    """It was greeted for agents that can be asked."""
    breaker: Breaker = "closed"
    retry_after_s: float | None = None
    """When something may start again, while the pool backs off or its breaker is open."""


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
    """The supervisor (role `supervisor`), its `spawner` and the asked pids (empty role), where alive."""
    search_path: list[str] = []
    """The directories in which programs of servers are looked up, in order."""
    login_shell: str = ""
    """`asked`, `off`, `asking`, or why the login shell has not said its PATH."""


class LogForSession(Message, frozen=True, tag=37):
    """A server's log message that can only be about calls of one session."""

    session: SessionId
    level: str
    params: Payload
    call: CallId = CallId(0)
    """The one call that it can be about; 0: one of several of that session."""


class ResourceChanged(Message, frozen=True, tag=38):
    """A resource changed, or may have: its server was started anew."""

    key: PoolKey
    uri: str
    params: Payload


class AskOpened(Message, frozen=True, tag=39):
    """A server wants something of the agent behind this call. Answered with `AnswerAsk`."""

    call: CallId
    ask: AskId
    method: str
    """`sampling/createMessage`, `elicitation/create`, or, of calls whose `can` has it, `roots/list`."""
    params: Payload
    """As the server wrote them, without `_meta`'s `progressToken` and related task."""
    wants_progress: bool
    needs: list[Need] = []
    """What these params ask for; empty: what the method alone does."""
    name: str = ""
    """The server's own key for it, where the server gave one (`inputRequests`)."""


class AskWithdrawn(Message, frozen=True, tag=40):
    """Nobody waits for the answer to this ask any more."""

    ask: AskId
    reason: Text


class ElicitationFinished(Message, frozen=True, tag=41):
    """What an agent was sent to a URL for is done (MCP 2025-11-25, `notifications/elicitation/complete`)."""

    session: SessionId
    params: Payload


class TaskStatusChanged(Message, frozen=True, tag=43):
    """A task is as far as this (`notifications/tasks`)."""

    instance: InstanceId
    task: str
    """The server's own id."""
    params: Payload


class RecordedCall(Struct, frozen=True, array_like=True):
    """One call that a broker before this one has sent, and whose answer it has not reported as written."""

    call: CallId
    session: SessionId
    """The session itself, also where `Call.session` was a part of one."""
    request: RawJson
    """See `Call.request`."""
    key: PoolKey
    target: str
    ended: bool = False
    """Its answer is there."""
    parked: bool = False
    """It is of the stateless era and its agent is asked: a retry may bring the answers."""
    digest: str = ""
    """See `Call.digest`."""
    method: str = ""
    """See `Call.method`."""
    caller: CallOrigin | None = None
    """See `Call.caller`."""


class RecordedSession(Struct, frozen=True, array_like=True):
    """One session of a broker before this one, of which something is remembered."""

    session: SessionId
    held: list[ServerName] = []
    """Of which it has a lease, or had one whose loss it was not told of yet."""
    gone: bool = False
    """A broker gave it up, and its calls are forgotten: that one is not in the record does not mean that no
    server saw it.
    """


class CallsRecorded(Message, frozen=True, tag=44):
    """What is remembered of the brokers before this one. Right after the greeting, in as many messages as it
    takes; also where there is nothing.
    """

    sessions: list[RecordedSession]
    calls: list[RecordedCall]
    last: bool = True


class ReadJournal(Message, frozen=True, tag=5):
    """Tell what the journal holds of this call. Answered with `JournalRead`."""

    token: int
    call: CallId


class JournalRead(Message, frozen=True, tag=45):
    """The answer to `ReadJournal`."""

    token: int
    entries: RawJson
    """A list of `{at, event, effects}`, see `Pump.story`."""
    pids: dict[InstanceId, int] = {}
    """Of the instances that run."""


class SharingExplained(Message, frozen=True, tag=42):
    """The answer to `ExplainSharing`."""

    token: int
    lines: list[str]
    """For people, as `carpool why` prints them."""
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
    | Operate
    | Survey
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
    | ExplainSharing
    | ReadJournal
    | ReportProbe
    | UseLoginShell
)
ToBroker = (
    Hello
    | Heartbeat
    | Credit
    | CallAnswered
    | CallFailed
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
    | SharingExplained
    | JournalRead
)
AnyMessage = ToSupervisor | ToBroker
