"""The supervisor's core against the smallest model that can be right: who is owed what, what runs."""

from typing import Any, Literal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

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
from carpool_protocol.messages import (
    Answered,
    Call,
    CancelCall,
    Catalog,
    Discover,
    Failed,
    Operate,
    Operated,
    Policy,
    PoolSpec,
    Progressed,
    Wanted,
)
from carpool_supervisor.core import effects as ef
from carpool_supervisor.core import events as ev
from carpool_supervisor.core.supervisor import SupervisorCore

POLICY = Policy(
    max_instances=2, idle_s=20.0, first_start_s=8.0, start_s=4.0, timeout_s=5.0, max_total_s=15.0, wait_s=6.0,
    max_waiting_calls=3, max_in_flight=2, scale_up_at=1, give_up_after=3, healthy_after_s=10.0, probe_s=3.0,
)  # fmt: skip
LONGEST_S = POLICY.wait_s + POLICY.max_total_s
KEYS = st.sampled_from([PoolKey("a:1"), PoolKey("a:2"), PoolKey("b:1")])
SESSIONS = st.sampled_from([SessionId("s1"), SessionId("s2")])
PICK = st.integers(0, 50)


class Process:
    """What the shell knows of a process."""

    def __init__(self, key: PoolKey) -> None:
        self.key = key
        self.is_up = False
        self.has_greeted = False
        self.open: dict[WireId, CallId] = {}
        self.wires: set[WireId] = set()
        self.stdin_closed = False


class SupervisorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.core = SupervisorCore()
        self.now = 50.0
        self.calls = 0
        self.words = 0
        self.owed: dict[CallId, float] = {}
        self.written: set[CallId] = set()
        self.asked: set[int] = set()
        self.processes: dict[InstanceId, Process] = {}
        self.dead: list[InstanceId] = []
        self.feed(Wanted([spec(PoolKey("a:1")), spec(PoolKey("b:1"))], 3, 2))

    def feed(self, event: Any) -> None:
        self.perform(self.core.handle(event, self.now))

    def perform(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case Answered():
                    assert self.owed.pop(effect.call, None) is not None, "answered twice or after its end"
                    assert effect.call in self.written
                case Failed():
                    asked_at = self.owed.pop(effect.call, None)
                    assert asked_at is not None, "failed twice or after its end"
                    assert effect.delivered == "no" or effect.call in self.written, "never written, maybe run"
                case Progressed():
                    assert effect.call in self.owed
                case Operated():
                    self.asked.remove(effect.token)
                case ef.Spawn():
                    assert effect.instance not in self.processes
                    assert effect.instance not in self.dead
                    self.processes[effect.instance] = Process(effect.key)
                case ef.WriteCall():
                    process = self.processes[effect.instance]
                    assert process.has_greeted
                    assert not process.stdin_closed
                    assert effect.wire not in process.wires, "a wire id is used again"
                    process.wires.add(effect.wire)
                    process.open[effect.wire] = effect.call.call
                    self.written.add(effect.call.call)
                case ef.WriteCancel() | ef.Probe():
                    assert not self.processes[effect.instance].stdin_closed
                case ef.CloseStdin():
                    self.processes[effect.instance].stdin_closed = True
                case ef.SignalGroup():
                    assert effect.instance in self.processes
                case ef.Forget():
                    del self.processes[effect.instance]
                    self.dead.append(effect.instance)
                case _:
                    pass

    def process(self, pick: int, *, up: bool = True) -> tuple[InstanceId, Process] | None:
        able = [(i, p) for i, p in self.processes.items() if p.is_up == up]
        return able[pick % len(able)] if able else None

    # --- the broker ---------------------------------------------------------------------------------------

    @rule(
        keys=st.lists(KEYS, unique=True),
        cap=st.integers(2, 4),
        least=st.integers(0, 1),
        after=st.booleans(),
    )
    def wanted(self, keys: list[PoolKey], cap: int, least: int, after: bool) -> None:
        old = PoolKey("a:1")
        specs = [
            spec(key, least=least, after=old if after and key == "a:2" and old not in keys else "")
            for key in keys
        ]
        self.feed(Wanted(specs, cap, 2))

    @rule(key=KEYS, session=SESSIONS, size=st.sampled_from([0, 10, 3000]))
    def call(self, key: PoolKey, session: SessionId, size: int) -> None:
        self.calls += 1
        call = CallId(self.calls)
        self.owed[call] = self.now
        params = RawJson(b" " * size)
        self.feed(Call(call, key, session, "tools/call", "t", params, ABSENT, wants_progress=True))

    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        call = CallId(pick)
        self.owed.pop(call, None)
        self.feed(CancelCall(call, "no longer wanted"))

    @rule(key=KEYS)
    def discover(self, key: PoolKey) -> None:
        self.feed(Discover(key))

    @rule(key=KEYS, verb=st.sampled_from(["start", "stop", "restart"]))
    def operate(self, key: PoolKey, verb: Literal["start", "stop", "restart"]) -> None:
        self.words += 1
        self.asked.add(self.words)
        self.feed(Operate(self.words, key, verb))

    @rule()
    def broker_came(self) -> None:
        self.owed.clear()
        self.asked.clear()
        self.feed(ev.BrokerCame())

    # --- processes ----------------------------------------------------------------------------------------

    @rule(pick=PICK)
    def spawned(self, pick: int) -> None:
        found = self.process(pick, up=False)
        if found:
            found[1].is_up = True
            self.feed(ev.InstanceSpawned(found[0], 99))

    @rule(pick=PICK)
    def spawn_failed(self, pick: int) -> None:
        found = self.process(pick, up=False)
        if found:
            self.feed(ev.SpawnFailed(found[0], "could not be started", 0.5))

    @rule(pick=PICK, tools=st.integers(0, 1))
    def greeted(self, pick: int, tools: int) -> None:
        found = self.process(pick)
        if found and not found[1].has_greeted:
            found[1].has_greeted = True
            told = Catalog(found[1].key, [], "x" * tools, EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25")
            self.feed(ev.InstanceGreeted(found[0], told))

    @rule(pick=PICK)
    def greeting_failed(self, pick: int) -> None:
        found = self.process(pick)
        if found and not found[1].has_greeted:
            self.feed(ev.GreetingFailed(found[0], "speaks no MCP"))

    @rule(pick=PICK, wire=st.integers(0, 6), kind=st.sampled_from(["answer", "unreadable", "progress"]))
    def says(self, pick: int, wire: int, kind: str) -> None:
        found = self.process(pick)
        if found:
            open_wires = sorted(found[1].open)
            said = open_wires[wire] if wire < len(open_wires) else WireId(wire + 90)
            if kind == "progress":
                self.feed(ev.ServerProgressed(found[0], said, EMPTY_OBJECT))
            elif kind == "answer":
                self.feed(ev.ServerAnswered(found[0], said, is_error=False, body=EMPTY_OBJECT))
            else:
                self.feed(ev.AnswerUnreadable(found[0], said, "bad_answer", "It was nonsense."))

    @rule(pick=PICK, count=st.integers(0, 3))
    def exits(self, pick: int, count: int) -> None:
        found = self.process(pick)
        if found:
            wires = list(found[1].open)
            unwritten = tuple(wires[len(wires) - count :]) if count else ()
            for wire in unwritten:  # the shell knows that these never left it
                self.written.discard(found[1].open[wire])
            self.feed(ev.InstanceExited(found[0], "was killed by SIGKILL", unwritten, "", 0.5))

    @rule(pick=PICK, blocked=st.booleans())
    def stdin_blocked(self, pick: int, blocked: bool) -> None:
        found = self.process(pick)
        if found:
            self.feed(ev.StdinBlocked(found[0], blocked))

    @rule(pick=PICK)
    def stdout_closed(self, pick: int) -> None:
        found = self.process(pick)
        if found:
            self.feed(ev.StdoutClosed(found[0]))

    @rule(pick=PICK)
    def a_dead_one_speaks(self, pick: int) -> None:
        if self.dead:
            instance = self.dead[pick % len(self.dead)]
            assert (
                self.core.handle(
                    ev.ServerAnswered(instance, WireId(1), is_error=False, body=EMPTY_OBJECT), self.now
                )
                == []
            )

    @rule()
    def clock_jumped(self) -> None:
        self.feed(ev.ClockJumped())

    @rule(pick=PICK)
    def heard(self, pick: int) -> None:
        found = self.process(pick)
        if found:
            self.feed(ev.ProbeAnswered(found[0]))

    @rule(dt=st.sampled_from([0.1, 1.0, 4.0, 10.0]))
    def wait(self, dt: float) -> None:
        until = self.now + dt
        while True:
            due = self.core.next_deadline()
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            self.perform(self.core.tick(self.now))
            after = self.core.next_deadline()
            assert after is None or after > self.now, "a deadline that is met stays due"
        self.now = until

    @invariant()
    def the_core_agrees_with_the_model(self) -> None:
        self.core.check()
        assert set(self.core.desk.calls) == set(self.owed)
        assert set(self.core.roster.instances) == set(self.processes)
        assert len(self.processes) <= 5
        waiting = {token for pool in self.core.pools.values() for token, _, _ in pool.operations}
        assert waiting == self.asked, "an operator was forgotten"

    def teardown(self) -> None:
        """However it stands: once processes end when told, nothing is left."""
        self.feed(Wanted([], 3, 2))
        for _ in range(8):
            self.wait(4.0)
            for instance in list(self.processes):
                self.feed(ev.InstanceExited(instance, "ended", (), "", 0.5))
        self.wait(LONGEST_S)
        assert not self.owed
        assert not self.asked
        assert not self.core.pools
        assert self.core.next_deadline() is None


def spec(key: PoolKey, *, least: int = 0, after: str = "") -> PoolSpec:
    policy = Policy(**{f: getattr(POLICY, f) for f in POLICY.__struct_fields__} | {"min_instances": least})
    return PoolSpec(
        key=key,
        server=ServerName(key[0]),
        argv=[],
        env={},
        cwd="/",
        policy=policy,
        start_after=PoolKey(after),
    )


SupervisorMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSupervisorMachine = SupervisorMachine.TestCase
