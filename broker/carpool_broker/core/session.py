"""The records of the broker core: sessions and what each is owed.

Owns the shape of these records. Who changes them: `ledger` (calls) and `broker` (the rest).
Knows nothing of: effects, views, the link.
"""

from collections import deque
from typing import Literal

from carpool_broker.core.events import AgentCalled, Capabilities, Notice, SourceId
from carpool_broker.core.listing import Family
from carpool_broker.core.scope import Scope
from carpool_protocol.ids import CallId, PoolKey, RawJson, ServerName, SessionId

Stage = Literal["unresolved", "waiting", "sent"]
"""`unresolved`: the name may belong to a server whose catalog is on its way. `waiting`: in the session's
line. `sent`: on the link or beyond."""


class Owed:
    """One call of an agent, until it is answered or cancelled."""

    __slots__ = ("asked", "call", "edit", "key", "server", "session", "size_bytes", "stage", "target")

    def __init__(self, call: CallId, session: "Session", asked: AgentCalled) -> None:
        self.call = call
        self.session = session
        self.asked = asked
        self.stage: Stage = "unresolved"
        self.key = PoolKey("")
        self.server = ServerName("")
        self.target = ""
        self.edit = False
        """The answer may hold what this agent cannot read as it is."""
        self.size_bytes = len(asked.rest) + len(asked.meta)


class Session:
    """One agent's attachment."""

    __slots__ = (
        "agent", "asking", "bereft", "called", "calls", "capabilities", "carrier", "greeted", "id", "listed",
        "lists", "owed", "pid", "rooting", "scope", "sent", "source", "used", "version", "waiting",
        "waiting_bytes",
    )  # fmt: skip

    def __init__(self, session: SessionId, source: SourceId, agent: str, pid: int, carrier: str) -> None:
        self.id = session
        self.source = source
        self.agent = agent
        self.pid = pid
        self.carrier = carrier
        self.greeted = False
        self.version = ""
        self.capabilities = Capabilities()
        self.asking = False
        """It sees what agents see that can be asked, where its source has any."""
        self.scope = Scope(())
        """What it sees, retained in the registry for it. `outlook` keeps it up to date."""
        self.rooting = False
        """Its agent is to say its roots, and what it sees of servers that are told them is not final yet."""
        self.owed: dict[RawJson, Owed] = {}
        """By the agent's own request id, byte for byte."""
        self.waiting: deque[Owed] = deque()
        self.waiting_bytes = 0
        self.sent = 0
        self.lists: dict[RawJson, Family] = {}
        """List requests (the first page of a family) that wait for catalogs."""
        self.listed: set[Notice] = set()
        """It holds these lists and was not told since that they are old."""
        self.calls = 0
        self.used: set[ServerName] = set()
        """Servers it has called: what it would otherwise run by itself."""
        self.called: set[ServerName] = set()
        """Servers that have answered it, or may have run a call of it, since the supervisor came."""
        self.bereft: set[PoolKey] = set()
        """Pools in mode `session` that it had called at the supervisor that is gone."""
