"""The supervisor's core for tests: one place that builds it, and the words that its tests share.

Owns the clock, the check after each event, and a record of what the core wanted done. A test file that needs
more derives from `SupervisorRig`. Knows nothing of: what a test is about.
"""

from typing import Any

from carpool_protocol.ids import (
    ABSENT,
    EMPTY_OBJECT,
    CallId,
    InstanceId,
    PoolKey,
    RawJson,
    ServerName,
    SessionId,
    WireId,
)
from carpool_protocol.link.messages import (
    Call,
    CallFailed,
    CancelCall,
    Catalog,
    Feature,
    Policy,
    PoolSpec,
    SetPools,
    ToolOffer,
)
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.attribution import AskFacts
from carpool_supervisor.core.model.effects import Spawn, WriteCall
from carpool_supervisor.core.model.trace_context import LIFE_BYTES
from carpool_supervisor.core.supervisor import SupervisorCore

LIFE = b"l" * LIFE_BYTES


def supervisor_core(life: bytes = LIFE, number: int = 0) -> SupervisorCore:
    """A core that knows no pool and no broker yet: of the supervisor with this number."""
    return SupervisorCore(life, number)


def pool_spec(key: PoolKey, policy: Policy | None = None, **more: Any) -> PoolSpec:
    """A pool of the server that the key begins with."""
    server = ServerName(key.partition(":")[0])
    return PoolSpec(key=key, server=server, argv=["s"], env={}, cwd="/", policy=policy or Policy(), **more)


def catalog_of(key: PoolKey, *tools: str, features: list[Feature] | None = None, **more: Any) -> Catalog:
    """What an instance of this pool offers when it has greeted."""
    offers = [ToolOffer(tool, EMPTY_OBJECT) for tool in tools]
    return Catalog(key, offers, "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25", features=features or [], **more)


def tool_call(
    number: int,
    key: PoolKey,
    session: str = "s1",
    *,
    method: str = "tools/call",
    params: RawJson = EMPTY_OBJECT,
    wants_progress: bool = False,
    principal: str = "",
) -> Call:
    """A call as it comes over the link."""
    who = SessionId(session)
    return Call(CallId(number), key, who, method, "t", params, ABSENT, wants_progress, principal=principal)


class SupervisorRig:
    """A core with a clock; its invariants are checked after every event.

    `key` is the pool that is meant where a test names none: the first. `hidden`: effects that no method
    returns.
    """

    hidden: tuple[type, ...] = ()

    def __init__(
        self, *specs: PoolSpec, cap: int = 64, greeting: int = 99, now: float = 100.0, broker: bool = False
    ) -> None:
        """`broker`: one has come."""
        self.core = supervisor_core()
        self.now = now
        self.key = specs[0].key if specs else PoolKey("")
        self.written: dict[int, WriteCall] = {}
        """The last time that each call was written, by call id."""
        self.failed: dict[int, CallFailed] = {}
        self.spawned: list[InstanceId] = []
        """Instances that were started and have not greeted."""
        if broker:
            self.feed(ev.BrokerConnected())
        if specs:
            self.feed(SetPools(list(specs), cap, greeting))

    def feed(self, event: ev.AnyEvent) -> list[Any]:
        """One event. What the core wants done."""
        return self._seen(self.core.handle(event, self.now))

    def wait(self, duration_s: float) -> list[Any]:
        """Time passes, to each deadline in turn. What the core wants done."""
        until, done = self.now + duration_s, []
        while (due := self.core.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            done += self._seen(self.core.tick(self.now))
        self.now = until
        return done

    def _seen(self, effects: list[Any]) -> list[Any]:
        self.core.check()
        for effect in effects:
            match effect:
                case WriteCall():
                    self.written[effect.call.call] = effect
                case CallFailed():
                    self.failed[effect.call] = effect
                case Spawn():
                    self.spawned.append(effect.instance)
                case _:
                    pass
        self.observe(effects)
        return [effect for effect in effects if not isinstance(effect, self.hidden)]

    def observe(self, effects: list[Any]) -> None:
        """For rigs that keep more of what was wanted."""

    # --- instances ---

    def greet(self, instance: InstanceId, told: Catalog | None = None) -> list[Any]:
        """An instance starts and greets."""
        if instance in self.spawned:
            self.spawned.remove(instance)
        self.feed(ev.InstanceSpawned(instance, 100))
        return self.feed(ev.InstanceGreeted(instance, told or catalog_of(self.key)))

    def exit(
        self,
        instance: InstanceId,
        unwritten: tuple[WireId, ...] = (),
        *,
        why: str = "ended with exit code 1",
        stderr: str = "",
        jitter: float = 0.0,
    ) -> list[Any]:
        """An instance ends."""
        return self.feed(ev.InstanceExited(instance, why, unwritten, stderr, jitter))

    # --- calls ---

    def call(self, number: int, session: str = "a", key: PoolKey | None = None, **more: Any) -> Any:
        """A call of an agent."""
        return self.feed(tool_call(number, key or self.key, session, **more))

    def cancel(self, number: int) -> Any:
        """The agent gives up a call."""
        return self.feed(CancelCall(CallId(number), "why"))

    def answer(self, number: int, *, is_error: bool = False) -> Any:
        """The server answers a call."""
        written = self.written[number]
        answered = ev.ServerAnswered(written.instance, written.wire, is_error=is_error, body=EMPTY_OBJECT)
        return self.feed(answered)

    def on(self, number: int) -> InstanceId:
        """The instance that got this call."""
        return self.written[number].instance

    def fault(self, number: int) -> str:
        """Why this call failed."""
        return self.failed[number].fault

    def ask_in_round(self, instance: InstanceId, wire: int, number: int, method: str) -> list[Any]:
        """A server of the stateless era wants input for a call before it answers."""
        ask, facts = RawJson(b"%d/1/%d" % (wire, number)), AskFacts(method, wire=WireId(wire))
        return self.feed(ev.ServerAsked(instance, ask, EMPTY_OBJECT, facts, ABSENT))
