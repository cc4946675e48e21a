"""No question, log line or notice of a server reaches an agent that it is not about, whatever ids are equal,
and no server and no agent is left waiting for an answer that cannot come.

The simulated servers know which call they ask for; the core sees only what a real one would say.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
    AskOpened,
    AskWithdrawn,
    Call,
    CallAnswered,
    CallFailed,
    CancelCall,
    Catalog,
    ElicitationFinished,
    EraWish,
    ForwardAskProgress,
    LogForSession,
    Policy,
    PoolSpec,
    SessionEnded,
    SetPools,
    Sharing,
)
from carpool_supervisor.core.model import effects as ef
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.attribution import AskFacts, facts_of
from carpool_supervisor.core.model.lifecycle import ENDING
from carpool_supervisor.core.model.sharing import Evidence, EvidenceKind
from carpool_supervisor.core.model.trace_context import TraceKey, issued
from tests.behaviours import behaviour
from tests.kit.supervisor_rig import supervisor_core

LIFE = b"l" * 16
Echo = Literal["nothing", "context", "trace id", "round"]
SERVERS: list[tuple[Sharing, Echo]] = [
    ("auto", "nothing"), ("auto", "context"), ("session", "nothing"), ("serial", "nothing"),
    ("concurrent", "nothing"), ("concurrent", "context"), ("concurrent", "trace id"),
    ("serial", "round"), ("concurrent", "round"), ("session", "round"), ("auto", "round"),
]  # fmt: skip
"""How a server is shared, and what of a call's trace context it sends back when it asks. `round`: it is of
the stateless era, and asks by answering the call.
"""
KEY = PoolKey("s")
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
THEIRS = RawJson(b'{"traceparent":"%b"}' % TRACE.encode())
"""What every agent gives as its own trace context."""
REQUESTS = [RawJson(each) for each in (b"1", b'"1"', b"1.0", b"2")]

Whose = tuple[int, SessionId]
"""A session, by the broker's life: a new broker gives the same names again."""


class ServerRun:
    """One call as its server sees it."""

    def __init__(self, whose: Whose, written: ef.WriteCall) -> None:
        self.whose = whose
        self.wire = written.wire
        self.call = written.call.call
        self.can_ask = written.call.method != "resources/list"
        self.meta = written.call.meta
        self.task: str | None = None
        self.rests = False
        """Stateless era: nothing of it runs until it is said again."""


class ServerProcess:
    """One server process."""

    def __init__(self) -> None:
        self.runs: dict[WireId, ServerRun] = {}
        self.answered: list[ServerRun] = []
        self.waits: Counter[RawJson] = Counter()
        """Requests of its own that it has no answer to."""
        self.sent: dict[str, set[Whose]] = {}
        """Who was given which elicitation id."""


class AskingWorld:
    """A supervisor core, one server's processes, two agents, and who is really meant by what."""

    def __init__(self, sharing: Sharing, echo: Echo) -> None:
        self.core = supervisor_core(LIFE)
        self.echo = echo
        self.serial = sharing == "serial"
        self.over: list[tuple[InstanceId, WireId]] = []
        self.now = 10.0
        self.broker = 0
        self.sessions = 0
        self.calls = 0
        self.owed: dict[CallId, Whose] = {}
        self.here: list[SessionId] = []
        self.up: dict[InstanceId, ServerProcess] = {}
        self.born: list[InstanceId] = []
        self.asks: dict[AskId, tuple[InstanceId, Whose, CallId]] = {}
        """What agents are asked and have not answered."""
        self.ever: list[AskId] = []
        self.speaking: tuple[InstanceId, ServerRun, str] | None = None
        """Who asks or logs now, for which call."""
        self.notice: set[Whose] | None = None
        """Who was sent on the errand that is done now."""
        self.evidence: list[EvidenceKind] = []
        self.kept: dict[EvidenceKind, Evidence] = {}
        self.feed(SetPools([spec(sharing, "stateless" if echo == "round" else "handshake")], 9, 9))
        self.the_link_is_lost(0, 0)

    def feed(self, event: Any) -> None:
        self.perform(self.core.handle(event, self.now))
        while self.over:  # as the adapter does
            instance, wire = self.over.pop()
            self.perform(self.core.handle(ev.ServerAnswered(instance, wire, True, EMPTY_OBJECT), self.now))

    def perform(self, effects: list[Any]) -> None:  # noqa: C901 - an arm per effect
        for effect in effects:
            match effect:
                case ef.Spawn():
                    self.born.append(effect.instance)
                    self.up[effect.instance] = ServerProcess()
                case ef.ReleaseInstance():
                    del self.up[effect.instance]
                case ef.WriteCall():
                    run = ServerRun(self.owed[effect.call.call], effect)
                    self.runs_alone(effect.instance, run)
                    self.up[effect.instance].runs[effect.wire] = run
                case ef.WriteRetry():
                    run = self.up[effect.instance].runs[effect.wire]
                    assert run.rests
                    self.runs_alone(effect.instance, run)
                    run.rests = False
                case ef.WriteCancel():
                    self.is_cancelled(effect.instance, effect.wire)
                case CallAnswered() | CallFailed():
                    del self.owed[effect.call]
                case AskOpened():
                    self.is_asked(effect)
                case AskWithdrawn():
                    assert self.asks.pop(effect.ask, None), "withdrawn twice, or after its answer"
                case ef.WriteAskAnswer():
                    waits = self.up[effect.instance].waits
                    waits[effect.id] -= 1
                    assert waits[effect.id] >= 0, "answered twice"
                case ef.WriteAskProgress():
                    assert self.up[effect.instance].waits[RawJson(effect.token[1:-1])] > 0
                case ElicitationFinished():
                    assert self.notice is not None
                    assert self.notice == {(self.broker, effect.session)}, "another's errand is done"
                    assert effect.session in self.here
                case LogForSession():
                    assert self.speaking is not None
                    assert self.speaking[1].whose == (self.broker, effect.session), "another's log line"
                case ef.RecordEvidence():
                    self.evidence.append(effect.kind)
                case _:
                    pass

    def runs_alone(self, instance: InstanceId, run: ServerRun) -> None:
        others = [each for each in self.up[instance].runs.values() if each is not run and not each.rests]
        if self.serial and run.can_ask:
            assert not any(each.can_ask for each in others), "two calls that can ask run in one lane"

    def is_cancelled(self, instance: InstanceId, wire_id: WireId) -> None:
        process = self.up[instance]
        if wire_id in process.runs and process.runs[wire_id].rests:  # nothing runs, and nothing waits
            del process.runs[wire_id]
            for request in [each for each in process.waits if each.startswith(b"%d/" % wire_id)]:
                del process.waits[request]
            self.over.append((instance, wire_id))

    def is_asked(self, effect: AskOpened) -> None:
        assert self.speaking is not None
        instance, run, elicitation = self.speaking
        assert effect.ask not in self.ever, "an id of an ask is used again"
        self.ever.append(effect.ask)
        assert effect.call in self.owed, "asked for a call that is over"
        assert self.owed[effect.call] == run.whose, "another agent is asked"
        run.rests = self.echo == "round"
        self.asks[effect.ask] = (instance, run.whose, effect.call)
        if elicitation:
            self.up[instance].sent.setdefault(elicitation, set()).add(run.whose)

    # --- agents and their broker --------------------------------------------------------------------------

    def the_link_is_lost(self, _pick: int, _other: int) -> None:
        """Agents call again at once, under the names and numbers of those before."""
        self.owed.clear()
        self.asks.clear()
        self.broker += 1
        self.calls = 0
        self.sessions = 2
        self.here = [SessionId("s1"), SessionId("s2")]
        self.feed(ev.BrokerConnected(same=True))
        self.an_agent_calls(0, 1)
        self.an_agent_calls(1, 1)

    def an_agent_calls(self, pick: int, other: int) -> None:
        self.calls += 1
        call, who = CallId(self.calls), self.here[pick % 2]
        method = "resources/list" if other == 0 else "tools/call"
        meta, trace = (THEIRS, TRACE) if other % 2 else (ABSENT, "")
        self.owed[call] = (self.broker, who)
        self.feed(Call(call, KEY, who, method, "t", EMPTY_OBJECT, meta, wants_progress=False, trace=trace))
        if other:
            self.all_greet()

    def all_greet(self) -> None:
        while self.born:
            instance = self.born.pop()
            if instance in self.up:
                self.feed(ev.InstanceSpawned(instance, 99))
                told = Catalog(KEY, [], "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25")
                self.feed(ev.InstanceGreeted(instance, told))

    def an_agent_cancels(self, pick: int, _other: int) -> None:
        if self.owed:
            call = list(self.owed)[pick % len(self.owed)]
            del self.owed[call]
            self.feed(CancelCall(call, "no longer wanted"))

    def an_agent_goes(self, pick: int, other: int) -> None:
        who = self.here[pick % 2]
        self.sessions += 1
        self.here[pick % 2] = SessionId(f"s{self.sessions}")
        for call in [call for call, whose in self.owed.items() if whose == (self.broker, who)]:
            del self.owed[call]
            self.feed(CancelCall(call, "the agent is gone"))
        assert not [each for each in self.asks.values() if each[1] == (self.broker, who)]
        self.feed(SessionEnded(who))
        self.an_agent_calls(pick, other)

    def an_agent_answers(self, pick: int, other: int) -> None:
        if self.asks:
            ask = list(self.asks)[pick % len(self.asks)]
            self.feed(ForwardAskProgress(ask, EMPTY_OBJECT))
            instance = self.asks.pop(ask)[0]
            waited = self.up[instance].waits.total()
            self.feed(AnswerAsk(ask, other % 2 == 0, EMPTY_OBJECT))
            if self.hears(instance):
                assert self.up[instance].waits.total() == waited - 1, "the answer is lost"

    def an_agent_is_late(self, pick: int, _other: int) -> None:
        over = [ask for ask in self.ever if ask not in self.asks]
        if over:
            ask = over[pick % len(over)]
            assert self.core.handle(AnswerAsk(ask, is_error=False, body=EMPTY_OBJECT), self.now) == []
            assert self.core.handle(ForwardAskProgress(ask, EMPTY_OBJECT), self.now) == []

    # --- servers ------------------------------------------------------------------------------------------

    def one_run(self, pick: int, *, can_ask: bool = False) -> tuple[InstanceId, ServerRun] | None:
        """Something that runs: its agent may long have cancelled it."""
        runs = [
            (instance, run)
            for instance, process in self.up.items()
            for run in process.runs.values()
            if run.can_ask or not can_ask
        ]
        return runs[pick % len(runs)] if runs else None

    def a_server_asks(self, pick: int, other: int) -> None:
        found = self.one_run(pick, can_ask=True)
        if found is not None:
            self.ask(*found, other)

    def a_server_asks_for_what_it_has_answered(self, pick: int, other: int) -> None:
        """It may where it says which call it asks for: then that can be told."""
        runs = [
            (instance, run)
            for instance, process in self.up.items()
            for run in process.answered
            if run.can_ask and (run.task or self.echo == "context")
        ]
        if runs:
            self.ask(*runs[pick % len(runs)], other)

    def ask(self, instance: InstanceId, run: ServerRun, other: int) -> None:
        request = REQUESTS[other % 4]
        elicitation = ["", "E", "F"][other % 3]
        token = RawJson(b"<%b>" % request) if other % 2 else ABSENT
        if self.echo == "round":
            request, elicitation, token = RawJson(b"%d/1/%d" % (run.wire, other % 4)), "", ABSENT
        event = ev.ServerAsked(instance, request, EMPTY_OBJECT, said_by(self.echo, run), token, elicitation)
        if not self.hears(instance):
            assert self.core.handle(event, self.now) == []
            return
        self.up[instance].waits[request] += 1
        self.speaking = instance, run, elicitation
        self.feed(event)
        self.speaking = None

    def a_server_withdraws(self, pick: int, other: int) -> None:
        if self.up:
            instance = list(self.up)[pick % len(self.up)]
            before = len(self.asks)
            self.feed(ev.ServerCancelledAsk(instance, REQUESTS[other % 4], ""))
            self.up[instance].waits[REQUESTS[other % 4]] -= before - len(self.asks)

    def a_server_logs(self, pick: int, _other: int) -> None:
        found = self.one_run(pick)
        if found is not None and not found[1].rests:
            self.speaking = (*found, "")
            self.feed(ev.ServerLogged(found[0], "info", EMPTY_OBJECT))
            self.speaking = None

    def a_server_begins_a_task(self, pick: int, _other: int) -> None:
        found = self.one_run(pick, can_ask=True)
        if found is not None and found[1].task is None and self.echo != "round":
            instance, run = found
            run.task = f"T{run.wire}"
            self.feed(ev.TaskCreated(instance, run.wire, run.task))

    def a_server_answers(self, pick: int, other: int) -> None:
        found = self.one_run(pick)
        if found is None or found[1].rests:
            return
        instance, run = found
        process = self.up[instance]
        if other % 2 and self.echo != "round":
            self.feed(ev.UrlElicitationRequired(instance, run.wire, ("E",)))
            if self.owed.get(run.call) == run.whose:
                process.sent.setdefault("E", set()).add(run.whose)
        del process.runs[run.wire]
        process.answered.append(run)
        self.feed(ev.ServerAnswered(instance, run.wire, is_error=other % 2 == 1, body=EMPTY_OBJECT))

    def a_server_wants_a_pause(self, pick: int, _other: int) -> None:
        found = self.one_run(pick, can_ask=True)
        if found is None or self.echo != "round" or found[1].rests:
            return
        instance, run = found
        if self.owed.get(run.call) == run.whose:
            run.rests = True
            self.feed(ev.ServerNotReady(instance, run.wire, 0.25))

    def a_server_ends_an_elicitation(self, pick: int, other: int) -> None:
        if self.up:
            instance = list(self.up)[pick % len(self.up)]
            elicitation = "EF"[other % 2]
            self.notice = self.up[instance].sent.pop(elicitation, None)
            self.feed(ev.ElicitationCompleted(instance, elicitation, EMPTY_OBJECT))
            self.notice = None

    def a_server_exits(self, pick: int, _other: int) -> None:
        running = [instance for instance in self.up if instance not in self.born]
        if running:
            instance = running[pick % len(running)]
            self.feed(ev.InstanceExited(instance, "was killed by SIGKILL", (), "", 0.5))
            assert not [each for each in self.asks.values() if each[0] == instance]

    def evidence_is_kept(self, _pick: int, _other: int) -> None:
        while self.evidence:
            kind = self.evidence.pop()
            self.kept[kind] = Evidence(kind=kind, first="1", last="1")
            self.feed(ev.KnowledgeChanged((ev.PoolKnowledge(KEY, None, tuple(self.kept.values())),)))

    def time_passes(self, pick: int, _other: int) -> None:
        until = self.now + [0.1, 1.0, 1.0, 6.0][pick % 4]
        while (due := self.core.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self.perform(self.core.tick(self.now))
        self.now = until

    # ------------------------------------------------------------------------------------------------------

    def hears(self, instance: InstanceId) -> bool:
        """Its stdin is open."""
        return self.core.instances.by_id[instance].state not in ENDING

    def look(self) -> None:
        """Nobody waits in vain."""
        self.core.check()
        for instance, process in self.up.items():
            asked = [whose for where, whose, _ in self.asks.values() if where == instance]
            if self.hears(instance):
                assert process.waits.total() == len(asked), "a server waits and no agent is asked"
        for instance, whose, call in self.asks.values():
            mine = {run.call for run in self.up[instance].runs.values() if run.whose == whose}
            assert call in self.owed or mine & set(self.owed), "an ask has outlived its calls"


def said_by(echo: Echo, run: ServerRun) -> AskFacts:
    """What the server's request says about where it comes from."""
    method = "sampling/createMessage"
    if echo == "round":
        return AskFacts(method, wire=run.wire)
    if run.task is not None:
        return AskFacts(method, run.task)
    if echo == "nothing":
        return AskFacts(method)
    facts = facts_of(method, run.meta, LIFE)
    assert facts.trace is not None
    if echo == "context":
        return facts
    other = TraceKey(facts.trace.trace, "f" * 16)
    return AskFacts(method, None, other, issued(LIFE, other))


def spec(sharing: Sharing, era: EraWish) -> PoolSpec:
    policy = Policy(
        sharing=sharing, max_instances=2, max_in_flight=6, timeout_s=5.0, max_total_s=60.0, wait_s=6.0,
        ask_timeout_s=20.0, idle_s=30.0, probe_s=1000.0, first_start_s=50.0, start_s=50.0, give_up_after=1000,
        lease_idle_s=30.0, drain_s=8.0, scale_up_at=100,
    )  # fmt: skip
    return PoolSpec(
        key=KEY, server=ServerName("s"), argv=[], env={}, cwd="/", policy=policy, asking=True, era=era
    )


MOMENTS = [
    *[AskingWorld.an_agent_calls] * 8,
    *[AskingWorld.a_server_asks] * 12,
    *[AskingWorld.a_server_answers] * 4,
    *[AskingWorld.an_agent_answers] * 4,
    *[AskingWorld.a_server_logs] * 4,
    *[AskingWorld.an_agent_cancels] * 4,
    *[AskingWorld.a_server_ends_an_elicitation] * 3,
    *[AskingWorld.a_server_asks_for_what_it_has_answered] * 2,
    *[AskingWorld.a_server_begins_a_task] * 2,
    *[AskingWorld.a_server_withdraws] * 2,
    *[AskingWorld.an_agent_goes] * 2,
    *[AskingWorld.time_passes] * 2,
    *[AskingWorld.a_server_wants_a_pause] * 2,
    AskingWorld.evidence_is_kept,
    AskingWorld.an_agent_is_late,
    AskingWorld.the_link_is_lost,
    AskingWorld.a_server_exits,
]  # fmt: skip
"""How often each happens: rules of a state machine are too evenly mixed for calls to crowd an instance."""


@behaviour("calls:isolation", "asks:never-left-waiting", "asks:ids:hostile")
@given(
    st.sampled_from(SERVERS),
    st.lists(
        st.tuples(st.sampled_from(MOMENTS), st.integers(0, 11), st.integers(0, 11)), min_size=30, max_size=80
    ),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_ask_reaches_only_its_own_agent_and_gets_an_answer(
    server: tuple[Sharing, Echo], moments: list[tuple[Callable[[AskingWorld, int, int], None], int, int]]
) -> None:
    town = AskingWorld(*server)
    for moment, pick, other in moments:
        moment(town, pick, other)
        town.look()
