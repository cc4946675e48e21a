"""The records of the broker core: sessions, what each is owed, and the account of what it may use.

Owns the shape of these records. Who changes them: the parts that `broker` composes, each what it owns.
Knows nothing of: effects, views, the link.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

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
from carpool_protocol.ids import ABSENT, CallId, InstanceId, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.wire.downgrade import NEWEST

Stage = Literal["returning", "unresolved", "waiting", "hooked", "sent", "told"]
"""`returning`: its session has come back, and the record that may hold it has not come (`recovery`).
`unresolved`: the name may belong to a server whose catalog is on its way. `waiting`: in the session's line.
`hooked`: hooks look at it before it is sent. `sent`: on the link or beyond. `told`: its server has answered,
and hooks look at that.
"""

IN_FLIGHT: Final = frozenset({"sent", "hooked", "told"})
"""Stages in which a call takes up one of those that its session may have in flight."""
AT_SERVER: Final = frozenset({"sent", "told"})
"""Stages in which the supervisor's record holds the call."""
UNFINISHED: Final = frozenset({"sent", "told", "returning"})
"""Stages in which a server may have run the call."""

CALL_WINDOW_S: Final = 60.0
"""By then all calls of a minute may come at once again, whoever they are of."""

# Made once: every call has them, and a `NewType` costs as much as any function.
_NO_KEY: Final = PoolKey("")
_NO_SERVER: Final = ServerName("")
_NO_SESSION: Final = SessionId("")
_NO_INSTANCE: Final = InstanceId(0)


class OpenCall:
    """One call of an agent, until it is answered or cancelled."""

    __slots__ = (
        "asked", "call", "edit", "instance", "is_listening", "is_parked", "key", "latest", "rounds",
        "sent_at", "server", "session", "since", "size_bytes", "speaker", "stage", "target", "task",
        "tasks",
    )  # fmt: skip

    def __init__(self, call: CallId, session: "Session", request: CallRequested) -> None:
        self.call = call
        self.session = session
        self.asked = request
        """The request that waits for the answer: of a call with rounds, the last one."""
        self.stage: Stage = "unresolved"
        self.since = -1.0
        """When its request came; below zero where no trail is kept."""
        self.key = _NO_KEY
        self.server = _NO_SERVER
        self.target = ""
        self.sent_at = -1
        """When it went to its server (`Fresh.moment`); -1: it has not, or at an earlier broker."""
        self.edit = False
        """The answer may hold what this agent cannot read as it is."""
        self.size_bytes = len(request.rest) + len(request.meta)
        self.is_parked = False
        """Between two rounds: its last request is answered, and the next has not come (`is_parked`)."""
        self.latest = ABSENT
        """While it is parked: the last progress."""
        self.rounds = 0
        """How often it has wanted something of its agent (stateless era)."""
        self.speaker = _NO_SESSION
        """Who the supervisor takes for its agent, where that is not the session."""
        self.is_listening: tuple[PoolKey, str] | None = None
        """The pool whose log level it counts for, and that level."""
        self.tasks = False
        """Its server may answer with a task, or it is about one."""
        self.task = ""
        """The one that it is about, by our id."""
        self.instance = _NO_INSTANCE
        """Where that runs."""

    @property
    def tool(self) -> str:
        """What it is about, for people."""
        return "" if self.task else self.target

    @property
    def version(self) -> str:
        """What its agent can read."""
        return self.session.version if self.asked.by is None else NEWEST


class ListenStream:
    """One `subscriptions/listen`."""

    __slots__ = ("event", "families", "granted", "is_bereft", "places", "tasks")

    def __init__(self, event: ListenRequested) -> None:
        self.event = event
        self.granted = False
        """False: it waits for catalogs."""
        self.is_bereft = False
        """Some task that it was for is gone with that broker."""
        self.places: tuple[tuple[ServerName, str], ...] = ()
        """What it is subscribed to: servers, and their own URIs."""
        self.families: tuple[ListNotification, ...] = ()
        """Of which lists it hears that they changed."""
        self.tasks: tuple[str, ...] = ()
        """Of which tasks it hears, by our ids."""


class ServerUse:
    """What one session has at one server. `calls.lost_state` decides what the flags lead to.

    A session that calls a server is `is_called` from then on. A server in mode `session` may hold state of
    it: then it is `is_stateful`, also after that server has left the configuration. The other flags say
    what the supervisor knows: between two supervisors `has_run` becomes `is_lost`, unless the next one
    still holds it.
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


class Session:
    """One agent's attachment."""

    __slots__ = (
        "agent", "anonymous", "argument_bytes", "asking", "awaits_roots", "calls", "capabilities",
        "carrier", "carrier_keeps_lines", "control", "follows_roots", "given_up", "greeted", "id",
        "is_greeted", "is_unresumable", "left_out", "listed", "listens", "max_open_calls", "open_calls",
        "pid", "postponed", "principal", "profile", "quota", "scope", "sent", "servers", "shared", "source",
        "stateless", "unread_bytes", "version", "waiting", "waiting_bytes",
    )  # fmt: skip

    def __init__(self, session: SessionId, source: SourceId, agent: str, pid: int, carrier: str) -> None:
        self.id = session
        self.source = source
        self.agent = agent
        self.pid = pid
        self.carrier = carrier
        self.greeted = False
        self.stateless = False
        """It speaks the stateless era only: it was not greeted and has asked for something of that era."""
        self.control = False
        """See `SessionOpened`."""
        self.shared = False
        """See `SessionOpened`."""
        self.carrier_keeps_lines = False
        """See `SessionOpened`."""
        self.follows_roots = False
        """See `SessionOpened`."""
        self.is_unresumable = False
        """See `SessionOpened`."""
        self.anonymous = False
        self.max_open_calls = 0
        """See `SessionOpened`."""
        self.profile = ""
        """See `SessionOpened`."""
        self.principal = ""
        """See `SessionOpened`."""
        self.quota: Quota | None = None
        """What its profile lets it use (`quotas`); None without a profile."""
        self.version = ""
        self.capabilities = Capabilities()
        self.asking = False
        """It sees what agents see that can be asked, where its source has any."""
        self.scope = Scope(())
        """What it sees, retained in the registry for it. `session_views` keeps it up to date."""
        self.is_greeted: dict[ServerName, str | None] = {}
        """Servers that it has seen, and their `tools_prefix`: its agent may still say names of theirs."""
        self.awaits_roots = False
        """Its agent is to say its roots, and what it sees of servers that are told them is not final yet."""
        self.open_calls: dict[RawJson, OpenCall] = {}
        """By the agent's own request id, byte for byte."""
        self.waiting: deque[OpenCall] = deque()
        self.waiting_bytes = 0
        self.sent = 0
        """Calls in flight: sent, or with hooks before or after that."""
        self.argument_bytes = 0
        """Of its large open calls (`memory_budgets`)."""
        self.unread_bytes = 0
        """What its agent leaves unread; 0: it reads."""
        self.left_out = 0
        """Progress and log messages that it did not get because of that."""
        self.postponed: dict[tuple[str, RawJson], SendResourceUpdated] = {}
        """Changes of resources that it is told of once it reads, by URI and listen."""
        self.listens: dict[RawJson, ListenStream] = {}
        self.listed: dict[Family, Sequence[Listable] | None] = {}
        """It holds these lists and was not told since that they are old: what was in each, and in those which
        the same notice is about. None: it is an older one that it has read on in.
        """
        self.calls = 0
        self.servers: dict[ServerName, ServerUse] = {}
        """What it has at each server that it has called, at this broker or an earlier one."""
        self.given_up: list[CallRequested] = []
        """Requests that have come back, and that the agent has cancelled before the record was heard."""

    def count_in_flight(self, count: int = 1) -> None:
        """So many calls more are in flight; -1: one less."""
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
    def may_use_servers(self) -> bool:
        """Whether it may ask for something that needs servers."""
        return self.greeted or self.stateless

    @property
    def is_authenticated(self) -> bool:
        """Whether what it is given is for nobody else to pass on: whoever asks has shown who they are, or has
        rights that others do not have.
        """
        return bool(self.profile) or (self.shared and not self.anonymous)


def asking_server(open_call: OpenCall) -> ServerName:
    """The server to name where it asks its agent's user something; empty: the agent sees no other one."""
    return open_call.server if len(open_call.session.scope.servers) > 1 else _NO_SERVER


class QuotaExcess(Struct, frozen=True):
    """Why a call is one too many."""

    fault: str
    detail: str
    retry_after_s: float | None = None


class Quota:
    """The account of one holder: what its sessions with a profile use (`quotas`).

    Calls in a minute are a bucket: it holds as many as the bound says and fills evenly, so that after a
    pause all of them may come at once.
    """

    __slots__ = ("_at", "_called", "_left", "holder", "limits", "sent", "servers", "sessions")

    def __init__(self, holder: tuple[str, str], limits: ProfileLimits) -> None:
        self.holder = holder
        self.limits = limits
        self.sessions: dict[SessionId, Session] = {}
        """Whose calls wait is next in this order, the first one first."""
        self.sent = 0
        """Calls of all of them that are at servers."""
        self.servers: set[ServerName] = set()
        """What they have called."""
        self._left = float(limits.calls_per_minute or 0)
        self._at: float | None = None
        """When that was so; None: nothing was taken yet."""
        self._called = float("-inf")
        """When the last call came that was not one too many."""

    def set_limits(self, limits: ProfileLimits) -> None:
        """These bounds hold from now on."""
        if limits.calls_per_minute != self.limits.calls_per_minute:
            self._left, self._at = float(limits.calls_per_minute or 0), None
        self.limits = limits

    @property
    def has_room(self) -> bool:
        """Whether one more call may go to a server now."""
        most = self.limits.max_in_flight
        return most is None or self.sent < most

    def may_use(self, server: ServerName) -> bool:
        """Whether this server may be called: it was, or there is room for one more."""
        most = self.limits.max_servers
        return most is None or server in self.servers or len(self.servers) < most

    def excess(self, open_call: OpenCall, now: float) -> QuotaExcess | None:
        """Why this call is one too many; None: it is not, and it counts from now on. What is about a task is
        part of the call that began it.
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
        """Take one call out of this minute's. 0: it is taken; else so many seconds until there is one."""
        most = self.limits.calls_per_minute
        if most is None:
            return 0.0
        per_s = most / 60.0
        if self._at is not None:
            self._left = min(float(most), self._left + max(now - self._at, 0.0) * per_s)
        self._at = now
        if self._left < 1.0:
            return (1.0 - self._left) / per_s
        self._left -= 1.0
        return 0.0

    def is_unused(self, now: float) -> bool:
        """Whether nobody has it and nothing that was called counts any more."""
        return not self.sessions and now - self._called >= CALL_WINDOW_S

    def move_last(self, session: Session) -> None:
        """It has had its turn."""
        self.sessions[session.id] = self.sessions.pop(session.id)
