"""A broker's core with many agents and many servers, for tests of what an event costs and who is told.

Knows nothing of: what a test is about. Nothing checks invariants after an event, because that costs more than
the event.
"""

from typing import Any

from carpool_broker.core.model import events as ev
from carpool_broker.core.model.capabilities import Capabilities
from carpool_broker.core.model.events import SourceId
from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import Catalog, Policy, PoolChanged, PoolSpec, PoolState, ToolOffer
from tests.kit.broker_rig import DAEMON, broker_core, source_read, supervisor_comes

TOOLS = 3


class CrowdedBroker:
    """A core with so many agents that hold their lists, and so many servers."""

    def __init__(
        self,
        sessions: int,
        servers: int,
        *,
        tools: int = TOOLS,
        known: bool = True,
        own_sources: bool = False,
    ) -> None:
        """`own_sources`: each agent has a workspace of its own, with the same servers."""
        self.core = broker_core()
        self.now = 100.0
        self.tools = tools
        self.own_sources = own_sources
        self.servers = [f"server{at:03}" for at in range(servers)]
        self.read(self.servers)
        supervisor_comes(self.feed)
        if known:
            for server in self.servers:
                self.tell(server)
        self.sessions = [SessionId(f"s{at}") for at in range(sessions)]
        for session in self.sessions:
            self.come(session)

    def feed(self, event: ev.AnyEvent) -> list[Any]:
        """One event, and the slices of work that it begins."""
        return [*self.core.handle(event, self.now), *self.wait(0.0)]

    def wait(self, duration_s: float) -> list[Any]:
        """Time passes."""
        effects: list[Any] = []
        self.now += duration_s
        while (due := self.core.next_deadline()) is not None and due <= self.now:
            effects += self.core.tick(self.now)
        return effects

    def read(self, servers: list[str], source: SourceId = DAEMON) -> list[Any]:
        """The configuration has these servers."""
        entries = [ScopeEntry(server=ServerName(each), key=_key(each)) for each in servers]
        specs = [
            PoolSpec(key=it.key, server=it.server, argv=[], env={}, cwd="/", policy=Policy())
            for it in entries
        ]
        return self.feed(source_read(Scope(tuple(entries)), specs, source))

    def tell(self, server: str, words: str = "") -> list[Any]:
        """A server tells its list and serves. Its first tool says these words."""
        offers = [
            ToolOffer(
                f"t{at}", RawJson(b'{"name":"t%d","description":"%b"}' % (at, b"" if at else words.encode()))
            )
            for at in range(self.tools)
        ]
        told = self.feed(Catalog(_key(server), offers, "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25"))
        return told + self.state(server, "serving")

    def state(self, server: str, state: PoolState) -> list[Any]:
        """A pool is in this state."""
        return self.feed(PoolChanged(_key(server), state, ""))

    def come(self, session: SessionId) -> list[Any]:
        """An agent greets and lists the tools."""
        source = SourceId(session) if self.own_sources else DAEMON
        if self.own_sources:
            self.read(self.servers, source)
        came = ev.SessionOpened(session=session, source=source, agent="", pid=1, carrier="shim")
        greeting = ev.InitializeRequested(session, RawJson(b"0"), "2025-11-25", "x", Capabilities())
        return self.feed(came) + self.feed(greeting) + self.list_tools(session)

    def list_tools(self, session: SessionId) -> list[Any]:
        """An agent asks for the list of tools."""
        return self.feed(ev.ListPageRequested(session, RawJson(b"9"), None))


def _key(server: str) -> PoolKey:
    return PoolKey(f"{server}:1")
