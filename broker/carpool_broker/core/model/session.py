"""The records of the broker core: sessions, open calls, listens and quotas.

Owns the shape of these records. The parts that `broker` composes change them, each the fields that it owns.
Refuses to know: effects, views, the link.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from carpool_broker.core.counters.call_counters import CallCounters
from carpool_broker.core.model.bounds import ProfileLimits
from carpool_broker.core.model.capabilities import Capabilities
from carpool_broker.core.model.effects import SendResourceUpdated
from carpool_broker.core.model.events import (
    CallRequested,
    ListenRequested,
    ListNotification,
    SourceId,
)
from carpool_broker.core.model.pagination import Family, Listable
from carpool_broker.core.model.scope import Scope
from carpool_broker.core.model.traces import CallTrace
from carpool_protocol.ids import ABSENT, CallId, InstanceId, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.machine.allowance import Allowance
from carpool_protocol.wire.downgrade import NEWEST

Stage = Literal["returning", "unresolved", "waiting", "hooked", "sent", "told"]
"""The stages of a call.

`returning`: its session has come back, and the record that may have the call is not complete (`recovery`).
`unresolved`: its name may belong to a server whose catalog is still to come. `waiting`: it is in its
session's queue. `hooked`: hooks have it before it is sent. `sent`: it is on the link or at the supervisor.
`told`: its server has answered, and hooks have the answer.
"""

IN_FLIGHT: Final = frozenset({"sent", "hooked", "told"})
"""The stages that count against the number of calls that a session may have in flight."""
AT_SERVER: Final = frozenset({"sent", "told"})
"""The stages in which the supervisor's record has the call."""
UNFINISHED: Final = frozenset({"sent", "told", "returning"})
"""The stages in which a server may have run the call."""

CALL_WINDOW_S: Final = 60.0
"""The window of the limit of calls per minute: after such a pause a session may use all of it at once."""

# Made once: every call has them, and a `NewType` costs as much as any function.
_NO_KEY: Final = PoolKey("")
_NO_SERVER: Final = ServerName("")
_NO_SESSION: Final = SessionId("")
_NO_INSTANCE: Final = InstanceId(0)


class OpenCall:
    """One call of an agent, until it is answered or cancelled."""

    __slots__ = (
        "answered_at", "asked", "cache_version", "call", "edit", "instance", "is_listening", "is_parked",
        "is_ready", "is_sent_again", "key", "latest", "node", "rounds", "sent_at", "server", "session",
        "since", "size_bytes", "speaker", "stage", "target", "task", "tasks", "trace",
    )  # fmt: skip

    def __init__(self, call: CallId, session: "Session", request: CallRequested) -> None:
        self.call = call
        self.session = session
        self.asked = request
        """The request that waits for the answer; of a call with rounds the last one."""
        self.stage: Stage = "unresolved"
        self.since = 0.0
        """The time at which its request came, to this broker."""
        self.key = _NO_KEY
        self.server = _NO_SERVER
        self.target = ""
        self.sent_at = -1.0
        """The time at which the call was sent; negative if it was not, or by an earlier broker."""
        self.is_ready = False
        """True once its turn has come: it was sent, or given to hooks."""
        self.is_sent_again = False
        """True if its pool was replaced before a server had it, and it was sent to the next one."""
        self.cache_version = -1
        """The resource cache's count of changes at that time; else -1."""
        self.node = ""
        """The node at which it runs, if that is another one."""
        self.answered_at = -1.0
        """The time at which the server's answer came, if hooks have had it since."""
        self.trace: CallTrace | None = None
        """The trace of the call; None until it is decided, and where nothing is traced."""
        self.edit = False
        """True if the answer may have to be rewritten for this agent."""
        self.size_bytes = len(request.rest) + len(request.meta)
        self.is_parked = False
        """True between two rounds: the last request is answered, and the retry has not come."""
        self.latest = ABSENT
        """The last progress that came while the call was parked."""
        self.rounds = 0
        """The number of rounds so far: how often the server wanted input of the agent (stateless era)."""
        self.speaker = _NO_SESSION
        """The session as the supervisor knows it, where that is another one."""
        self.is_listening: tuple[PoolKey, str] | None = None
        """The pool and the log level that are subscribed for this call."""
        self.tasks = False
        """True if its server may answer with a task, or the call is about a task."""
        self.task = ""
        """The task that the call is about, by carpool's id."""
        self.instance = _NO_INSTANCE
        """The instance that runs that task."""

    @property
    def tool(self) -> str:
        """What the call is about, for people."""
        return "" if self.task else self.target

    @property
    def version(self) -> str:
        """The protocol version that its agent reads."""
        return self.session.version if self.asked.by is None else NEWEST


class ListenStream:
    """One `subscriptions/listen` request (MCP 2026-07-28, basic/utilities/subscriptions)."""

    __slots__ = ("event", "families", "granted", "is_bereft", "places", "tasks")

    def __init__(self, event: ListenRequested) -> None:
        self.event = event
        self.granted = False
        """False while the listen waits for catalogs."""
        self.is_bereft = False
        """True if a task that the listen was for went with an earlier broker."""
        self.places: tuple[tuple[ServerName, str], ...] = ()
        """The resources that it is subscribed to: servers and their own URIs."""
        self.families: tuple[ListNotification, ...] = ()
        """The lists whose changes it is told of."""
        self.tasks: tuple[str, ...] = ()
        """The tasks that it is told of, by carpool's ids."""


class ServerUse:
    """What one session has at one server. `calls.lost_state` decides what the flags lead to.

    A session that calls a server is `is_called` from then on. A server in mode `session` may keep state of
    it, and then is `is_stateful`, also after it has left the configuration. The other flags say what the
    supervisor knows: between two supervisors `has_run` becomes `is_lost`, unless the next one still holds
    the instance.
    """

    __slots__ = ("has_run", "is_called", "is_lost", "is_reported", "is_stateful")

    def __init__(self) -> None:
        self.is_called = False
        """A call of the session was sent there: without carpool the session would run the server itself."""
        self.has_run = False
        """The server has answered, or may have run, a call since the supervisor connected."""
        self.is_stateful = False
        """The server was in mode `session` when it was called, at this broker or an earlier one."""
        self.is_lost = False
        """What the session had there is lost with an earlier supervisor, and the next one must be told."""
        self.is_reported = False
        """The supervisor has said or heard that the session holds, or has lost, an instance."""


SessionOwner = tuple[str, str]
"""A kind, `token` or `session`, and the name of that."""


class Session:
    """One agent's attachment to the broker."""

    __slots__ = (
        "agent",
        "anonymous",
        "argument_bytes",
        "asking",
        "awaits_records",
        "awaits_roots",
        "calls",
        "capabilities",
        "carrier",
        "carrier_keeps_lines",
        "control",
        "counters",
        "follows_roots",
        "given_up",
        "greeted",
        "id",
        "input_ended",
        "is_unresumable",
        "left_out",
        "listed",
        "listens",
        "max_open_calls",
        "node",
        "note",
        "open_calls",
        "other_config",
        "pid",
        "postponed",
        "principal",
        "profile",
        "quota",
        "scope",
        "seen_servers",
        "sent",
        "servers",
        "shared",
        "source",
        "stateless",
        "subscription_bytes",
        "unread_bytes",
        "version",
        "waiting",
        "waiting_bytes",
    )  # fmt: skip

    def __init__(self, session: SessionId, source: SourceId, agent: str, pid: int, carrier: str) -> None:
        self.id = session
        self.source = source
        self.agent = agent
        self.pid = pid
        self.carrier = carrier
        self.greeted = False
        self.stateless = False
        """True if it speaks the stateless era only: it sent no `initialize`, and a request of that era."""
        self.control = False
        """See `SessionOpened`."""
        self.shared = False
        """See `SessionOpened`."""
        self.carrier_keeps_lines = False
        """See `SessionOpened`."""
        self.follows_roots = False
        """See `SessionOpened`."""
        self.input_ended = False
        """True if its agent sends nothing more, so it answers no question."""
        self.awaits_records = False
        """True for a session that is back from an earlier broker, until its requests are decided about. None
        of its calls is sent before: a supervisor may first have to be told what the session has lost.
        """
        self.is_unresumable = False
        """See `SessionOpened`."""
        self.anonymous = False
        self.max_open_calls = 0
        """See `SessionOpened`."""
        self.node = ""
        """See `SessionOpened`."""
        self.profile = ""
        """See `SessionOpened`."""
        self.counters: Mapping[tuple[str, ...], CallCounters] | None = None
        """The counters of its agent's calls, by server and tool; None: they must be looked up."""
        self.principal = ""
        """See `SessionOpened`."""
        self.other_config = ""
        """See `SessionOpened`."""
        self.note = ""
        """See `SessionOpened`."""
        self.quota: Quota | None = None
        """What its profile lets it use (`quotas`); None without a profile."""
        self.version = ""
        self.capabilities = Capabilities()
        self.asking = False
        """True if it sees the pools for agents that can be asked, where its source has any."""
        self.scope = Scope(())
        """What the session sees. `session_views` keeps it up to date and retains it in the registry."""
        self.seen_servers: Mapping[ServerName, str | None] = {}
        """The servers that it has seen, and their `tools_prefix`: its agent may still use names of theirs. It
        is never changed, because sessions that have seen the same share it.
        """
        self.awaits_roots = False
        """True while its agent must still say its roots; until then servers that are told roots are not
        final.
        """
        self.open_calls: dict[RawJson, OpenCall] = {}
        """Its open calls, by the agent's own request id, byte for byte."""
        self.waiting: deque[OpenCall] = deque()
        self.waiting_bytes = 0
        self.sent = 0
        """The number of calls in flight: sent, or held by hooks before or after that."""
        self.argument_bytes = 0
        """The bytes of its large arguments (`memory_budgets`)."""
        self.subscription_bytes = 0
        """The bytes of what it is subscribed to (`memory_budgets`)."""
        self.unread_bytes = 0
        """The bytes that its agent leaves unread; 0 if it reads."""
        self.left_out = 0
        """The number of progress and log messages that were dropped because of that."""
        self.postponed: dict[tuple[str, RawJson], SendResourceUpdated] = {}
        """Updates of resources that the agent is told of once it reads, by URI and listen."""
        self.listens: dict[RawJson, ListenStream] = {}
        self.listed: dict[Family, Sequence[Listable] | None] = {}
        """The lists that the agent has and was not told to be old: what each held, with the lists that the
        same notification is about. None: the agent has read on in an older version.
        """
        self.calls = 0
        self.servers: dict[ServerName, ServerUse] = {}
        """What the session has at each server that it has called, at this broker or an earlier one."""
        self.given_up: list[CallRequested] = []
        """Requests that have come back, and that the agent cancelled before the record was complete."""

    def count_in_flight(self, count: int = 1) -> None:
        """Count this many more calls in flight; -1 for one less."""
        self.sent += count
        if self.quota is not None:
            self.quota.sent += count

    def server_use(self, server: ServerName) -> "ServerUse":
        """Return the record of this server, a new one if there is none."""
        use = self.servers.get(server)
        if use is None:
            use = self.servers[server] = ServerUse()
        return use

    @property
    def owner(self) -> SessionOwner:
        """Its token, or itself if it has none: whose memory, turns and searches it counts for."""
        return ("token", self.principal) if self.principal else ("session", self.id)

    @property
    def may_use_servers(self) -> bool:
        """True if the session may ask for something that needs servers."""
        return self.greeted or self.stateless

    @property
    def is_authenticated(self) -> bool:
        """True if answers are for this agent alone: it has shown who it is, or has rights that others do not
        have.
        """
        return bool(self.profile) or (self.shared and not self.anonymous)


def asking_server(open_call: OpenCall) -> ServerName:
    """Return the server to name where it asks the agent's user something; empty if the agent sees no other
    one.
    """
    return open_call.server if len(open_call.session.scope.servers) > 1 else _NO_SERVER


class QuotaExcess(Struct, frozen=True):
    """Why a call exceeds a quota."""

    fault: str
    detail: str
    retry_after_s: float | None = None


def _call_allowance(limits: ProfileLimits) -> Allowance | None:
    most = limits.calls_per_minute
    return None if most is None else Allowance(most / 60.0, most)


class Quota:
    """What the sessions of one holder may use, and have used.

    Calls per minute are an allowance that comes back evenly, so that after a pause as many calls as the limit
    says may come at once.
    """

    __slots__ = ("_called", "_calls", "holder", "limits", "queued", "sent", "servers", "sessions")

    def __init__(self, holder: tuple[str, str], limits: ProfileLimits) -> None:
        self.holder = holder
        self.limits = limits
        self.sessions: dict[SessionId, Session] = {}
        """The sessions that share it."""
        self.queued: dict[SessionId, Session] = {}
        """Those of them with queued calls, next turn first."""
        self.sent = 0
        """The number of their calls in flight."""
        self.servers: set[ServerName] = set()
        """The servers that they have called."""
        self._calls = _call_allowance(limits)
        """None: the calls in a minute have no limit."""
        self._called = float("-inf")
        """The time of the last call that did not exceed the quota."""

    def set_limits(self, limits: ProfileLimits) -> None:
        """These limits hold from now on."""
        if limits.calls_per_minute != self.limits.calls_per_minute:
            self._calls = _call_allowance(limits)
        self.limits = limits

    @property
    def has_room(self) -> bool:
        """True if one more call may be sent now."""
        most = self.limits.max_in_flight
        return most is None or self.sent < most

    def may_use(self, server: ServerName) -> bool:
        """True if this server may be called: it was called before, or the limit of servers has room."""
        most = self.limits.max_servers
        return most is None or server in self.servers or len(self.servers) < most

    def excess(self, open_call: OpenCall, now: float) -> QuotaExcess | None:
        """Return why this call exceeds the quota. None: it does not, and is counted. A request about a task
        is a part of the call that began the task.
        """
        if open_call.task:
            return None
        profile, limits = self.holder[1], self.limits
        if not self.may_use(open_call.server):
            detail = f"The profile {profile} allows {limits.max_servers} of them."
            return QuotaExcess("too_many_servers", detail)
        retry_after_s = self.take_token(now)
        if retry_after_s:
            detail = f"The profile {profile} allows {limits.calls_per_minute}."
            return QuotaExcess("too_many_a_minute", detail, retry_after_s)
        self.servers.add(open_call.server)
        self._called = now
        return None

    def take_token(self, now: float) -> float:
        """Take a call from the allowance. Returns 0.0, or the seconds until one is left."""
        calls = self._calls
        if calls is None:
            return 0.0
        if calls.refill(now) < 1.0:
            return calls.wait_s(1.0)
        calls.left -= 1.0
        return 0.0

    def is_unused(self, now: float) -> bool:
        """True if no session shares the quota and no call counts any more."""
        return not self.sessions and now - self._called >= CALL_WINDOW_S

    def move_last(self, session: Session) -> None:
        """Move a session that had its turn to the end of the turns."""
        self.queued[session.id] = self.queued.pop(session.id)
