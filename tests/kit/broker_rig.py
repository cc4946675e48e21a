"""The broker's core for tests: one place that builds it, and the words that its tests share.

Owns the clock, the check after each event, and short forms for what a configuration, a supervisor, servers
and agents say. A test file that needs more derives from `BrokerRig`. Knows nothing of: what a test is about.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model import events as ev
from carpool_broker.core.model.bounds import SessionBounds
from carpool_broker.core.model.capabilities import Capabilities
from carpool_broker.core.model.effects import AnyEffect
from carpool_broker.core.model.events import SourceId
from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_broker.core.model.supervisors import ONLY
from carpool_protocol.ids import (
    ABSENT,
    EMPTY_OBJECT,
    CallId,
    Epoch,
    PoolKey,
    RawJson,
    ServerName,
    SessionId,
    SupervisorName,
)
from carpool_protocol.link.messages import (
    CallAnswered,
    CallsRecorded,
    Catalog,
    Policy,
    PoolChanged,
    PoolSpec,
    PoolState,
    ToolOffer,
)

DAEMON = SourceId("daemon")
EPOCH = Epoch("e1")
ONE, TWO = SessionId("s1"), SessionId("s2")


def no_effect(effect: AnyEffect) -> None:
    """Fail: the part of the core under test was to have no effect."""
    raise AssertionError(f"unexpected effect {effect}")


def broker_core(
    bounds: SessionBounds | None = None,
    list_wait_s: float = 10.0,
    *,
    secret: bytes = b"",
    life: int = 0,
    audits: bool = False,
    supervisors: Sequence[SupervisorName] = (ONLY,),
) -> BrokerCore:
    """A core that knows no session and no supervisor yet."""
    return BrokerCore(
        bounds or SessionBounds(),
        list_wait_s,
        mark="m",
        secret=secret,
        life=life,
        audits=audits,
        supervisors=supervisors,
    )


def supervisor_comes(feed: Callable[[Any], Any], credit_bytes: int = 1_000_000) -> list[Any]:
    """A supervisor that remembers nothing greets. What the core wants done."""
    return [
        *(feed(ev.SupervisorConnected(credit_bytes, EPOCH)) or ()),
        *(feed(ev.RecordReceived(CallsRecorded([], []))) or ()),
    ]


def pool_spec(key: str, **more: Any) -> PoolSpec:
    """A pool of the server that the key begins with, by its first letter."""
    server = ServerName(key[0])
    return PoolSpec(key=PoolKey(key), server=server, argv=[], env={}, cwd="/", policy=Policy(), **more)


def entries_of(keys: Iterable[str]) -> tuple[ScopeEntry, ...]:
    """The servers that these keys begin with, as a session's configuration names them."""
    return tuple(ScopeEntry(server=ServerName(key[0]), key=PoolKey(key)) for key in keys)


def source_read(scope: Scope, specs: Iterable[PoolSpec], source: SourceId = DAEMON, **more: Any) -> Any:
    """A configuration source was read, and has these servers."""
    return ev.SourceRead(
        source=source, scope=scope, specs=tuple(specs), misconfigured={}, stop_first=frozenset(),
        max_processes=8, max_greeting=3, **more,
    )  # fmt: skip


def catalog_of(key: str, *tools: str, **more: Any) -> Catalog:
    """What a pool offers."""
    offers = [ToolOffer(tool, RawJson(b'{"name":"%s"}' % tool.encode())) for tool in tools]
    return Catalog(PoolKey(key), offers, "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25", **more)


class BrokerRig:
    """A core with a clock; its invariants are checked after every event and every tick."""

    def __init__(self, bounds: SessionBounds | None = None, *, secret: bytes = b"", life: int = 0) -> None:
        self.core = broker_core(bounds, secret=secret, life=life)
        self.now = 100.0

    def feed(self, event: ev.AnyEvent) -> list[Any]:
        """One event. What the core wants done."""
        return self._seen(self.core.handle(event, self.now), event)

    def wait(self, duration_s: float) -> list[Any]:
        """Time passes, to each deadline in turn. What the core wants done."""
        effects: list[Any] = []
        until = self.now + duration_s
        while (due := self.core.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            effects += self._seen(self.core.tick(self.now), None)
        self.now = until
        return effects

    def _seen(self, effects: list[Any], event: ev.AnyEvent | None) -> list[Any]:
        self.core.check()
        self.observe(effects, event)
        return effects

    def observe(self, effects: list[Any], event: ev.AnyEvent | None) -> None:
        """For rigs that keep more of what was wanted. `event`: None on a tick."""

    # --- configuration and supervisor ---

    def read(self, *keys: str, source: SourceId = DAEMON, **more: Any) -> list[Any]:
        """A configuration has the servers that these keys begin with."""
        return self.feed(source_read(Scope(entries_of(keys)), map(pool_spec, keys), source, **more))

    def supervisor_comes(self) -> list[Any]:
        """A supervisor that remembers nothing greets."""
        return supervisor_comes(self.feed)

    # --- servers ---

    def catalog(self, key: str, *tools: str, **more: Any) -> list[Any]:
        """A pool tells what it offers."""
        return self.feed(catalog_of(key, *tools, **more))

    def pool(self, key: str, state: PoolState, reason: str = "") -> list[Any]:
        """A pool is in this state."""
        return self.feed(PoolChanged(PoolKey(key), state, reason))

    def serve(self, key: str, *tools: str, **more: Any) -> list[Any]:
        """A pool tells what it offers, and serves."""
        return self.catalog(key, *tools, **more) + self.pool(key, "serving")

    def answer(self, call: CallId, body: RawJson = EMPTY_OBJECT) -> list[Any]:
        """A server answers a call."""
        return self.feed(CallAnswered(call, is_error=False, body=body))

    # --- agents ---

    def attach(self, session: SessionId = ONE, *, source: SourceId = DAEMON, **more: Any) -> list[Any]:
        """An agent connects and has not greeted."""
        came = ev.SessionOpened(session=session, source=source, agent="", pid=1, carrier="shim", **more)
        return self.feed(came)

    def greet(
        self,
        session: SessionId = ONE,
        capabilities: Capabilities | None = None,
        *,
        version: str = "2025-11-25",
        request: bytes = b"0",
    ) -> list[Any]:
        """An agent of the handshake era sends `initialize`."""
        able = capabilities or Capabilities()
        return self.feed(ev.InitializeRequested(session, RawJson(request), version, "x", able))

    def list_tools(
        self, session: SessionId = ONE, request: str = "9", cursor: str | None = None
    ) -> list[Any]:
        """An agent asks for the list of tools."""
        return self.feed(ev.ListPageRequested(session, RawJson(request.encode()), cursor))

    def request(self, name: str, request: str = "1", session: SessionId = ONE, **more: Any) -> list[Any]:
        """An agent calls a tool, or what `method` says."""
        id_ = RawJson(request.encode())
        return self.feed(ev.CallRequested(session, id_, name, EMPTY_OBJECT, ABSENT, ABSENT, **more))
