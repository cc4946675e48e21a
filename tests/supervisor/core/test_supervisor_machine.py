"""The supervisor's core against the smallest correct model: the calls owed to each session, and the
instances.
"""

from typing import Any, Literal

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from carpool_protocol.ids import (
    ABSENT,
    EMPTY_OBJECT,
    AskId,
    CallId,
    InstanceId,
    PoolKey,
    RawJson,
    ServerName,
    SessionId,
    WireId,
)
from carpool_protocol.link.messages import (
    AnswerAsk,
    AnswersWritten,
    AskOpened,
    AskWithdrawn,
    Call,
    CallAnswered,
    CallFailed,
    CallProgressed,
    CallsRecorded,
    CancelCall,
    Catalog,
    DiscoverCatalog,
    Operate,
    OperationEnded,
    Policy,
    PoolSpec,
    ResumeCall,
    SessionEnded,
    SetPools,
    Sharing,
    ToolOffer,
)
from carpool_supervisor.core.model import effects as ef
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.attribution import AskFacts
from carpool_supervisor.core.model.lifecycle import ENDING
from carpool_supervisor.core.model.sharing import Evidence, EvidenceKind
from tests.behaviours import behaviour
from tests.kit.deadlines import deadlines_until
from tests.kit.supervisor_rig import supervisor_core

POLICY = Policy(
    max_instances=2, idle_s=20.0, first_start_s=8.0, start_s=4.0, timeout_s=5.0, max_total_s=15.0, wait_s=6.0,
    max_waiting_calls=3, max_in_flight=2, scale_up_at=1, give_up_after=3, healthy_after_s=10.0, probe_s=3.0,
    lease_idle_s=12.0, drain_s=6.0, ask_timeout_s=7.0, open_s=9.0,
)  # fmt: skip
LONGEST_DEAF_S = 11.0
"""An instance that cannot read is asked to end after that (5 s, and again after a pause of reading)."""
LONGEST_S = POLICY.wait_s + POLICY.max_total_s
KEYS = st.sampled_from([PoolKey(f"{server}:{version}") for server in "abcd" for version in (1, 2)])
"""Servers `a` and `b` are shared as each rule says, `c` always as `session`, `d` always as `serial`. Version
2 of `b` and version 1 of `d` are of the stateless era.
"""
STATELESS = ("b:2", "d:1")
SESSIONS = st.sampled_from([SessionId("s1"), SessionId("s2"), SessionId("s3")])
SERVERS = st.sampled_from("aabbcccddd")
VERSIONS = st.tuples(*[st.sampled_from([1, 1, 1, 2, 2, 2, 0])] * 4)
RARE = [
    "spawn_failed", "greeting_failed", "stdout_closed", "a_dead_one_speaks", "broker_came",
    "broker_lost_touch", "clock_jumped",
]  # fmt: skip
LEAST = st.sampled_from([0, 0, 0, 1])
Limits = dict[str, Any]
LIMITS: st.SearchStrategy[Limits] = st.sampled_from(
    [
        {},
        {"limit_calls": 2},
        {"limit_age_s": 8.0},
        {"limit_rss_mb": 100, "limit_calls": 5},
        {"limit_rss_mb": 100, "open_s": 0.0},
    ]
)
PAUSED = st.sampled_from([frozenset[str]()] * 4 + [frozenset("a"), frozenset("bc"), frozenset("d")])
MODES: st.SearchStrategy[Sharing] = st.sampled_from(["auto", "concurrent", "serial", "session"])
FIXED: dict[str, Sharing] = {"c": "session", "d": "serial"}
PICK = st.integers(0, 50)


class KnownProcess:
    """What the shell knows of a process."""

    def __init__(self, key: PoolKey) -> None:
        self.key = key
        self.is_up = False
        self.has_greeted = False
        self.open: dict[WireId, CallId] = {}
        self.wires: set[WireId] = set()
        self.running: dict[WireId, CallId] = {}
        """Written and not answered: in flight in rule 5's sense."""
        self.rounds: dict[WireId, set[RawJson]] = {}
        """Between two rounds: what is wanted and not there."""
        self.cancelled: set[WireId] = set()
        self.cancelled_at_ping: dict[int, frozenset[WireId]] = {}
        self.stopped: set[WireId] = set()
        """Cancelled before a ping that was answered."""
        self.served: set[SessionId] = set()
        self.stdin_closed = False
        self.paused = False
        self.counted_s = 0.0
        """How long it has said nothing while it was read."""


class SupervisorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.paused: set[str] = set()
        self.core = supervisor_core()
        self.now = 50.0
        self.calls = 0
        self.words = 0
        self.wanting: tuple[InstanceId, WireId] | None = None
        self.owed: dict[CallId, float] = {}
        self.ended: dict[CallId, CallAnswered | CallFailed] = {}
        """Not reported as written."""
        self.whose: dict[CallId, SessionId] = {}
        self.at: dict[CallId, tuple[SessionId, str]] = {}
        self.unheard: dict[tuple[SessionId, str], set[CallId]] = {}
        """Calls that were told `state_lost`, while no such answer is with its agent."""
        self.untold: set[tuple[SessionId, str]] = set()
        """Losses of which the answer was cancelled: nobody has heard of them."""
        self.sent_before: dict[tuple[SessionId, str], int] = {}
        """The last call that was sent before one was."""
        self.versions = {server: PoolKey(f"{server}:1") for server in "abcd"}
        """Which pool of each server was wanted last."""
        self.told: dict[CallId, float] = {}
        """The last progress that each agent heard of its call."""
        self.written: set[CallId] = set()
        self.asked: set[int] = set()
        self.asks: dict[AskId, tuple[InstanceId, WireId]] = {}
        self.asked_at: dict[AskId, tuple[InstanceId, WireId]] = {}
        self.over: list[tuple[InstanceId, WireId]] = []
        """Cancelled between two rounds."""
        self.processes: dict[InstanceId, KnownProcess] = {}
        self.deaf: set[InstanceId] = set()
        """Their stdin is broken."""
        self.broke_at: dict[InstanceId, float] = {}
        self.silent: set[InstanceId] = set()
        """Ended for their silence."""
        self.dead: list[InstanceId] = []
        self.last_set = SetPools([spec(PoolKey(f"{server}:1")) for server in "abcd"], 3, 2)
        self.feed(self.last_set)

    def feed(self, event: Any) -> None:
        if isinstance(event, AnswersWritten):
            event = AnswersWritten(event.calls, CallId(self.calls), CallId(self.calls + 1))
            self.agents_have_heard(event.calls)
        elif isinstance(event, CancelCall) and not event.answered:
            self.agent_has_not_heard(event.call)
        if isinstance(event, (*ev.SIGNS_OF_LIFE, ev.ServerAnswered)) and event.instance in self.processes:
            self.processes[event.instance].counted_s = 0.0
        self.perform(self.core.handle(event, self.now))
        while self.over:  # as the adapter does
            instance, wire = self.over.pop()
            self.perform(self.core.handle(ev.ServerAnswered(instance, wire, True, EMPTY_OBJECT), self.now))

    def agents_have_heard(self, calls: list[CallId]) -> None:
        for at in [at for at, told in self.unheard.items() if not told.isdisjoint(calls)]:
            del self.unheard[at]
            self.sent_before[at] = self.calls

    def agent_has_not_heard(self, call: CallId) -> None:
        for at in [at for at, told in self.unheard.items() if call in told]:
            self.unheard[at].discard(call)
            if not self.unheard[at]:
                del self.unheard[at]
                self.untold.add(at)

    def told_of_a_loss(self, call: CallId) -> None:
        at = self.at[call]
        if call > self.sent_before.get(at, 0):
            self.unheard.setdefault(at, set()).add(call)
            self.untold.discard(at)

    def could_know(self, call: CallId) -> None:
        at = self.at[call]
        assert at not in self.unheard, "it runs, and its agent has not been told what was lost"
        assert at not in self.untold, "it runs, and the word that state is lost was told to nobody"
        assert call > self.sent_before.get(at, 0), "it was sent before its agent could know of the loss"

    def perform(self, effects: list[Any]) -> None:  # noqa: C901 - an arm per effect
        for effect in effects:
            match effect:
                case CallAnswered():
                    assert self.owed.pop(effect.call, None) is not None, "answered twice or after its end"
                    assert effect.call in self.written
                    self.ended[effect.call] = effect
                case CallFailed():
                    asked_at = self.owed.pop(effect.call, None)
                    assert asked_at is not None, "failed twice or after its end"
                    if effect.fault == "state_lost":
                        self.told_of_a_loss(effect.call)
                    assert effect.delivered == "no" or effect.call in self.written, "never written, maybe run"
                    self.ended[effect.call] = effect
                case CallProgressed():
                    self.heard_progress(effect)
                case OperationEnded():
                    self.asked.remove(effect.token)
                case ef.Spawn():
                    assert effect.instance not in self.processes
                    assert effect.instance not in self.dead
                    self.processes[effect.instance] = KnownProcess(effect.key)
                    self.agrees_with_the_breaker(effect.key)
                case ef.WriteCall():
                    self.could_know(effect.call.call)
                    server = effect.call.key[0]
                    assert server not in self.paused, "a call ran on a paused server"
                    process = self.processes[effect.instance]
                    assert process.has_greeted
                    assert not process.stdin_closed
                    assert effect.instance not in self.deaf, "written to one that cannot read"
                    assert effect.wire not in process.wires, "a wire id is used again"
                    process.wires.add(effect.wire)
                    self.agrees_with_the_mode(process)
                    process.open[effect.wire] = process.running[effect.wire] = effect.call.call
                    process.served.add(effect.call.session)
                    assert process.key[0] != "c" or len(process.served) == 1, (
                        "a leased instance had two agents"
                    )
                    self.written.add(effect.call.call)
                case ef.WriteCancel():
                    process = self.processes[effect.instance]
                    assert not process.stdin_closed
                    process.cancelled.add(effect.wire)
                    if process.rounds.pop(effect.wire, None) is not None:
                        process.running.pop(effect.wire)
                        self.over.append((effect.instance, effect.wire))
                case AskOpened():
                    assert effect.call in self.owed, "asked for a call that is over"
                    if effect.ask not in self.asked_at:
                        assert self.wanting is not None
                        self.asked_at[effect.ask] = self.wanting
                    self.asks[effect.ask] = self.asked_at[effect.ask]
                case AskWithdrawn():
                    self.asks.pop(effect.ask, None)
                case ef.WriteAskAnswer():
                    wire = WireId(int(effect.id.split(b"/")[0]))
                    self.processes[effect.instance].rounds[wire].remove(effect.id)
                case ef.WriteRetry():
                    self.said_again(self.processes[effect.instance], effect.wire)
                case ef.WriteProbe():
                    process = self.processes[effect.instance]
                    assert not process.stdin_closed
                    process.cancelled_at_ping[effect.number] = frozenset(process.cancelled)
                case ef.CloseStdin():
                    self.processes[effect.instance].stdin_closed = True
                case ef.SignalGroup():
                    self.agrees_with_the_silence(effect.instance)
                case ef.ReleaseInstance():
                    del self.processes[effect.instance]
                    self.dead.append(effect.instance)
                case _:
                    pass

    def heard_progress(self, effect: CallProgressed) -> None:
        assert effect.call in self.owed
        progress = msgspec.json.decode(effect.params).get("progress")
        if progress is not None:
            assert self.told.get(effect.call, -1e9) < progress < 0, "progress went back"
            self.told[effect.call] = progress

    def agrees_with_the_mode(self, process: KnownProcess) -> None:
        running = process.running.keys() - process.rounds.keys() - process.stopped
        assert process.key[0] != "d" or not running, "two calls that can ask in one lane"

    def agrees_with_the_silence(self, instance: InstanceId) -> None:
        why = self.core.instances.by_id[instance].failure or ""
        if why.startswith("was silent") and instance not in self.silent:
            self.silent.add(instance)
            counted_s = self.processes[instance].counted_s
            assert counted_s >= POLICY.timeout_s, "it was read for too short a time to be called silent"

    def said_again(self, process: KnownProcess, wire_id: WireId) -> None:
        assert not process.stdin_closed
        assert not process.rounds[wire_id], "said again before everything is there"
        self.agrees_with_the_mode(process)
        del process.rounds[wire_id]

    def agrees_with_the_breaker(self, key: PoolKey) -> None:
        breaker = self.core.pools[key].restart.breaker
        assert breaker != "open", "it started though its breaker is open"
        starting = [each for each in self.processes.values() if each.key == key and not each.has_greeted]
        ending = [each for each in starting if each.stdin_closed]
        assert breaker == "closed" or len(starting) - len(ending) <= 1, (
            "more than one shows whether it is well"
        )

    def process(self, pick: int, *, up: bool = True) -> tuple[InstanceId, KnownProcess] | None:
        able = [(i, p) for i, p in self.processes.items() if p.is_up == up]
        return able[pick % len(able)] if able else None

    # --- the broker ---------------------------------------------------------------------------------------

    @rule(versions=VERSIONS, cap=st.integers(2, 6), sharing=MODES, after=st.booleans(), more=st.data())
    def wanted(
        self, versions: tuple[int, ...], cap: int, sharing: Sharing, after: bool, more: st.DataObject
    ) -> None:
        least, limits = more.draw(LEAST), more.draw(LIMITS)
        keys = [
            PoolKey(f"{server}:{version}")
            for server, version in zip("abcd", versions, strict=True)
            if version
        ]
        self.versions.update({key[0]: key for key in keys})
        specs = []
        for key in keys:
            old = PoolKey(f"{key[0]}:{3 - int(key[2])}")
            replaces = "" if old in keys else old
            first = old if after and key == "a:2" and replaces else ""
            specs.append(
                spec(key, least=least, after=first, replaces=replaces, sharing=sharing, limits=limits)
            )
        self.set_pools(SetPools(specs, cap, 2), paused=more.draw(PAUSED))

    @rule(paused=PAUSED)
    def paused_servers(self, paused: frozenset[str]) -> None:
        self.set_pools(self.last_set, paused=paused)

    def set_pools(self, pools: SetPools, *, paused: frozenset[str]) -> None:
        specs = [replace(each, paused=each.server in paused) for each in pools.pools]
        self.paused = {each.server for each in specs if each.paused}
        self.last_set = replace(pools, pools=specs)
        self.feed(self.last_set)

    @rule(
        key=KEYS,
        kinds=st.lists(
            st.sampled_from(["asked_ambiguously", "probe_diverged", "probe_agreed", "asks"]), unique=True
        ),
    )
    def known(self, key: PoolKey, kinds: list[EvidenceKind]) -> None:
        evidence = tuple(Evidence(kind=kind, first="", last="") for kind in kinds)
        self.feed(ev.KnowledgeChanged((ev.PoolKnowledge(key, None, evidence),)))

    @rule(pick=PICK, fails=st.booleans())
    def an_agent_is_done(self, pick: int, fails: bool) -> None:
        if self.asks:
            ask = list(self.asks)[pick % len(self.asks)]
            instance, wire = self.asks.pop(ask)
            before = self.wanted_of(instance, wire)
            self.feed(AnswerAsk(ask, fails, EMPTY_OBJECT))
            if before and not self.processes[instance].stdin_closed:
                assert self.wanted_of(instance, wire) == before - 1, "an answer is lost"

    def wanted_of(self, instance: InstanceId, wire_id: WireId) -> int:
        process = self.processes.get(instance)
        return 0 if process is None else len(process.rounds.get(wire_id, ()))

    @rule(session=SESSIONS)
    def session_gone(self, session: SessionId) -> None:
        for call in [call for call in self.owed if self.whose[call] == session]:
            del self.owed[call]
            self.feed(CancelCall(call, "the agent is gone"))
        self.ended = {call: end for call, end in self.ended.items() if self.whose[call] != session}
        self.unheard = {at: told for at, told in self.unheard.items() if at[0] != session}
        self.untold = {at for at in self.untold if at[0] != session}
        self.feed(SessionEnded(session))
        assert session not in self.core.leases.sessions()

    @rule(server=SERVERS, session=SESSIONS, size=st.sampled_from([0, 0, 10, 3000]))
    def call(self, server: str, session: SessionId, size: int) -> None:
        key = self.versions[server]
        self.calls += 1
        call = CallId(self.calls)
        self.owed[call] = self.now
        self.whose[call] = session
        self.at[call] = (session, server)
        params = RawJson(b" " * size)
        self.feed(Call(call, key, session, "tools/call", "t", params, ABSENT, wants_progress=True))

    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        call = CallId(pick)
        self.owed.pop(call, None)
        self.ended.pop(call, None)
        self.feed(CancelCall(call, "no longer wanted"))

    @rule(pick=PICK)
    def answers_reach_their_carriers(self, pick: int) -> None:
        calls = list(self.ended)[: pick % 4]
        for call in calls:
            del self.ended[call]
        self.feed(AnswersWritten(calls))

    @rule(server=SERVERS)
    def discover(self, server: str) -> None:
        self.feed(DiscoverCatalog(self.versions[server]))

    @rule(key=KEYS, verb=st.sampled_from(["start", "start", "start", "stop", "restart"]))
    def operate(self, key: PoolKey, verb: Literal["start", "stop", "restart"]) -> None:
        self.words += 1
        self.asked.add(self.words)
        self.feed(Operate(self.words, key, verb))

    def broker_lost_touch(self, _pick: int) -> None:
        """It has ended all calls by itself, and lets go of what it is told of them."""
        known = self.owed.keys() | self.ended.keys()
        self.owed.clear()
        self.ended.clear()
        self.asked.clear()
        self.asks.clear()
        told = self.core.handle(ev.BrokerConnected(same=True), self.now)
        self.perform(told)
        calls = [call for each in told if isinstance(each, CallsRecorded) for call in each.calls]
        assert {call.call for call in calls} == known
        assert all(call.ended for call in calls)
        self.feed(AnswersWritten([call.call for call in calls]))

    def broker_came(self, pick: int) -> None:
        """After one that died: it resumes some calls and wants nothing of the others."""
        self.asked.clear()
        before, self.asks = self.asks, {}
        told = self.core.handle(ev.BrokerConnected(), self.now)
        self.perform(told)
        recorded = [each for each in told if isinstance(each, CallsRecorded)]
        assert [each.last for each in recorded] == [False] * (len(recorded) - 1) + [True]
        calls = {call.call: call for each in recorded for call in each.calls}
        assert {call for call, one in calls.items() if not one.ended} == self.owed.keys()
        assert {call for call, one in calls.items() if one.ended} == self.ended.keys()
        assert all(one.session == self.whose[call] for call, one in calls.items())
        for call, one in calls.items():
            if (call + pick) % 3 == 0:
                self.owed.pop(call, None)
                self.ended.pop(call, None)
                self.feed(CancelCall(call, "nobody wants it"))
            elif one.ended:
                assert self.core.handle(ResumeCall(call), self.now) == [self.ended[call]]
            else:
                self.feed(ResumeCall(call))
        assert self.asks == {
            ask: (instance, wire)
            for ask, (instance, wire) in before.items()
            if self.wanted_of(instance, wire) and self.processes[instance].running[wire] in self.owed
        }, "a question is lost, or is somebody else's"

    # --- processes ----------------------------------------------------------------------------------------

    @rule(pick=PICK)
    def spawned(self, pick: int) -> None:
        found = self.process(pick, up=False)
        if found:
            found[1].is_up = True
            self.feed(ev.InstanceSpawned(found[0], 99))

    @rule(pick=PICK, what=st.sampled_from(RARE))
    def something_rare(self, pick: int, what: str) -> None:
        getattr(self, what)(pick)

    def spawn_failed(self, pick: int) -> None:
        found = self.process(pick, up=False)
        if found:
            self.feed(ev.SpawnFailed(found[0], "could not be started", 0.5, shortage=pick % 2 == 0))

    @rule(pick=PICK)
    def comes_up(self, pick: int) -> None:
        """What processes do nearly always."""
        self.spawned(pick)
        for number in range(len(self.processes)):
            self.greeted(number, 0)

    @rule(pick=PICK, tools=st.integers(0, 1))
    def greeted(self, pick: int, tools: int) -> None:
        found = self.process(pick)
        if found and not found[1].has_greeted:
            found[1].has_greeted = True
            offers = [ToolOffer("browser_click", EMPTY_OBJECT)] if tools else []
            told = Catalog(found[1].key, offers, "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25")
            self.feed(ev.InstanceGreeted(found[0], told))

    def greeting_failed(self, pick: int) -> None:
        found = self.process(pick)
        if found and not found[1].has_greeted:
            self.feed(ev.GreetingFailed(found[0], "speaks no MCP"))

    @rule(pick=PICK, wire=st.integers(0, 6), kind=st.sampled_from(["answer", "unreadable", "progress"]))
    def says(self, pick: int, wire: int, kind: str) -> None:
        found = self.process(pick)
        if found:
            open_wires = sorted(found[1].open.keys() - found[1].rounds.keys())
            said = open_wires[wire] if wire < len(open_wires) else WireId(wire + 90)
            if kind != "progress":
                found[1].running.pop(said, None)
            if kind == "progress":
                self.feed(ev.ServerProgressed(found[0], said, EMPTY_OBJECT))
            elif kind == "answer":
                self.feed(ev.ServerAnswered(found[0], said, is_error=False, body=EMPTY_OBJECT))
            else:
                self.feed(ev.AnswerUnreadable(found[0], said, "bad_answer", "It was nonsense."))

    @rule(pick=PICK, all_of_them=st.booleans())
    def answers(self, pick: int, all_of_them: bool) -> None:
        """What servers do nearly always."""
        for number in range(len(self.processes)) if all_of_them else [pick]:
            found = self.process(number)
            for wire in list(found[1].running) if found else ():
                assert found
                if wire not in found[1].rounds:
                    able = sorted(found[1].open.keys() - found[1].rounds.keys())
                    self.says(number, able.index(wire), "answer")

    @rule(pick=PICK, which=PICK, count=st.integers(0, 3))
    def wants_something_first(self, pick: int, which: int, count: int) -> None:
        """Of servers of the stateless era; nothing is a pause."""
        able = [
            (instance, wire)
            for instance, process in self.processes.items()
            if process.key in STATELESS
            for wire in process.running.keys() - process.rounds.keys()
        ]
        if not able:
            return
        instance, wire = self.wanting = sorted(able)[which % len(able)]
        asks = [RawJson(b"%d/1/%d" % (wire, number)) for number in range(count)]
        self.processes[instance].rounds[wire] = set(asks)
        for ask in asks:
            facts = AskFacts("elicitation/create", wire=wire)
            self.feed(ev.ServerAsked(instance, ask, EMPTY_OBJECT, facts, ABSENT))
        if not asks:
            self.feed(ev.ServerNotReady(instance, wire, 0.25))

    @rule(server=SERVERS)
    def everybody_calls(self, server: str) -> None:
        for session in ("s1", "s2", "s3"):
            self.call(server, SessionId(session), 0)

    @rule(server=st.sampled_from("bddd"), which=PICK)
    def rounds_are_crowded(self, server: str, which: int) -> None:
        """What is answered finds its lane taken."""
        self.everybody_calls(server)
        self.comes_up(0)
        for _ in range(2):
            self.wants_something_first(0, which, 1)
        self.an_agent_is_done(which, fails=False)

    @rule(server=st.sampled_from("bdd"), which=PICK, pick=PICK)
    def a_broker_dies_while_agents_are_asked(self, server: str, which: int, pick: int) -> None:
        self.everybody_calls(server)
        self.comes_up(0)
        self.wants_something_first(0, which, 2)
        self.broker_came(pick)

    @rule(pick=PICK, count=st.integers(0, 3))
    def exits(self, pick: int, count: int) -> None:
        found = self.process(pick)
        if found:
            wires = list(found[1].open)
            unwritten = tuple(wires[len(wires) - count :]) if count else ()
            for wire in unwritten:  # the shell knows that these never left it
                self.written.discard(found[1].open[wire])
                found[1].running.pop(wire, None)
            self.feed(ev.InstanceExited(found[0], "was killed by SIGKILL", unwritten, "", 0.5))

    @rule(pick=PICK, count=st.integers(0, 3))
    def stdin_broken(self, pick: int, count: int) -> None:
        found = self.process(pick)
        if found:
            wires = [wire for wire in found[1].open if wire not in found[1].rounds]
            unwritten = tuple(wires[len(wires) - count :]) if count else ()
            for wire in unwritten:
                self.written.discard(found[1].open.pop(wire))
                found[1].running.pop(wire, None)
            self.deaf.add(found[0])
            self.feed(ev.StdinBroken(found[0], unwritten))
            self.broke_at.setdefault(found[0], self.now)

    @rule(pick=PICK, sizes=st.lists(st.sampled_from([50, 150]), min_size=1, max_size=3))
    def memory_measured(self, pick: int, sizes: list[int]) -> None:
        found = self.process(pick)
        for size_mb in sizes if found else ():
            assert found
            self.feed(ev.MemoryMeasured(((found[0], size_mb << 20),)))

    @rule(pick=PICK, blocked=st.booleans())
    def stdin_blocked(self, pick: int, blocked: bool) -> None:
        found = self.process(pick)
        if found:
            self.feed(ev.StdinBlocked(found[0], blocked))

    @rule(pick=PICK, paused=st.booleans())
    def stdout_paused(self, pick: int, paused: bool) -> None:
        found = self.process(pick)
        if found:
            found[1].paused = paused
            self.feed(ev.StdoutPaused(found[0], paused))

    @rule(pick=PICK, event=st.sampled_from(["out", "in", "lost"]), times=st.integers(1, 7))
    def lists(self, pick: int, event: str, times: int) -> None:
        found = self.process(pick)
        if found and event == "lost":
            self.feed(ev.ListAnswerLost(found[0], times, "it was nonsense"))
        elif found:
            self.feed(ev.ListRequestChanged(found[0], "tools/list" if event == "out" else ""))

    def stdout_closed(self, pick: int) -> None:
        found = self.process(pick)
        if found:
            self.feed(ev.StdoutClosed(found[0]))

    def a_dead_one_speaks(self, pick: int) -> None:
        if self.dead:
            instance = self.dead[pick % len(self.dead)]
            assert (
                self.core.handle(
                    ev.ServerAnswered(instance, WireId(1), is_error=False, body=EMPTY_OBJECT), self.now
                )
                == []
            )

    def clock_jumped(self, pick: int) -> None:
        self.feed(ev.ClockJumped())

    @rule(pick=PICK)
    def heard(self, pick: int) -> None:
        found = self.process(pick)
        if found:
            number = self.core.instances.by_id[found[0]].pings
            found[1].stopped |= found[1].cancelled_at_ping.pop(number, frozenset())
            self.feed(ev.ProbeAnswered(found[0], number))

    @rule(dt=st.sampled_from([0.1, 1.0, 4.0, 10.0]))
    def wait(self, dt: float) -> None:
        until = self.now + dt
        for due in deadlines_until(self.core.next_deadline, self.now, until):
            self.passes(due)
            self.perform(self.core.tick(due))
        self.passes(until)

    def passes(self, until: float) -> None:
        for process in self.processes.values():
            process.counted_s += 0.0 if process.paused else until - self.now
        self.now = until

    @invariant()
    def the_core_agrees_with_the_model(self) -> None:
        self.core.check()
        assert set(self.core.dispatcher.calls) == set(self.owed)
        assert set(self.core.instances.by_id) == set(self.processes)
        assert len(self.processes) <= 7
        for instance, broke_at in self.broke_at.items():
            if instance in self.core.instances.by_id and not self.processes[instance].paused:
                state = self.core.instances.by_id[instance].state
                assert state in ENDING or self.now - broke_at <= LONGEST_DEAF_S, "it stays and cannot read"
        waiting = {token for pool in self.core.pools.values() for token, _, _ in pool.operations}
        assert waiting == self.asked, "an operator was forgotten"

    def teardown(self) -> None:
        """However it stands: once processes end when told, nothing is left."""
        self.set_pools(SetPools([], 3, 2), paused=frozenset())
        for _ in range(8):
            self.wait(4.0)
            for instance in list(self.processes):
                self.feed(ev.InstanceExited(instance, "ended", (), "", 0.5))
        self.wait(LONGEST_S)
        assert not self.owed
        assert not self.asked
        assert not self.core.pools
        assert self.core.next_deadline() is None


def spec(
    key: PoolKey,
    *,
    least: int = 0,
    after: str = "",
    replaces: str = "",
    sharing: Sharing = "auto",
    limits: Limits | None = None,
) -> PoolSpec:
    policy = replace(POLICY, min_instances=least, sharing=FIXED.get(key[0], sharing), **(limits or {}))
    return PoolSpec(
        key=key,
        server=ServerName(key[0]),
        argv=[],
        env={},
        cwd="/",
        policy=policy,
        start_after=PoolKey(after),
        stop_first=key[0] == "b",
        replaces=PoolKey(replaces),
        era="stateless" if key in STATELESS else "handshake",
        layer="/p" if key[0] in "cd" else "",
    )


SupervisorMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSupervisorMachine = behaviour(
    "calls:one-answer",
    "modes:concurrent",
    "eras:rounds:lane",
    "silence:only-while-read",
    "lease:every-call-hears",
)(SupervisorMachine.TestCase)
