"""Classes of agents and roots of agents, in any order of events: no call reaches a pool that is another's.

A server `a` with a pool for each class, and a server `f` that is told the agent's roots and has them too.
"""

from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from carpool_broker.core.model import effects as ef
from carpool_broker.core.model import events as ev
from carpool_broker.core.model.bounds import SessionBounds
from carpool_broker.core.model.capabilities import Capabilities
from carpool_broker.core.model.events import SourceId
from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, AskId, CallId, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import (
    Call,
    CallAnswered,
    CancelCall,
    Catalog,
    DiscoverCatalog,
    Mode,
    Policy,
    PoolChanged,
    PoolSpec,
    PoolState,
    SetPools,
    ToolOffer,
)
from tests.behaviours import behaviour
from tests.kit.broker_rig import broker_core, supervisor_comes
from tests.kit.deadlines import deadlines_until

BOUNDS = SessionBounds(max_open_calls=1, max_waiting_calls=3, max_waiting_bytes=400, wait_s=4.0)
POLICY = Policy(wait_s=3.0, max_total_s=10.0)
LIST_WAIT_S = 2.0
CAPABILITIES = {
    SessionId("plain"): Capabilities(),
    SessionId("asking"): Capabilities(sampling=True),
    SessionId("rooted"): Capabilities(roots=True),
    SessionId("both"): Capabilities(form=True, roots=True),
    SessionId("operator"): Capabilities(),
}
SESSIONS = st.sampled_from(list(CAPABILITIES))
IDS = st.sampled_from([RawJson(b"1"), RawJson(b'"1"'), RawJson(b"2")])
ROOTS = st.sampled_from(["file:///x", "file:///y"])
PICK = st.integers(0, 50)
STATES: st.SearchStrategy[PoolState] = st.sampled_from(
    [
        "cold",
        "starting",
        "serving",
        "serving",
        "serving",
        "backing_off",
        "given_up",
        "stopped",
        "breaker_open",
        "half_open",
    ]
)

MODES: st.SearchStrategy[Mode] = st.sampled_from(["concurrent", "concurrent", "serial", "session"])
WORKSPACE = "w"


def plain_of(key: str) -> str:
    return key.removesuffix("?")


class ClassesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.core = broker_core(BOUNDS, LIST_WAIT_S)
        self.now = 50.0
        self.version = 1
        self.own_roots = True
        self.here: dict[SessionId, str] = {}
        """The roots of each session's source."""
        self.owed: set[tuple[SessionId, RawJson]] = set()
        self.listed: dict[SessionId, list[str] | None] = {}
        self.asked: dict[SessionId, AskId] = {}
        self.sent: dict[CallId, SessionId] = {}
        self.linked = False
        self.wanted: set[str] = set()
        self.catalogs: dict[str, tuple[tuple[str, ...], bool]] = {}
        """What each wanted pool told last: its tools, and whether it asks."""
        self.merged: set[str] = set()
        """Launches whose two pools once told the same, and did not ask."""
        self.read(WORKSPACE)

    def feed(self, event: Any) -> None:
        self.perform(self.core.handle(event, self.now))

    def perform(self, effects: list[Any]) -> None:
        moves: list[ef.ApplyRoots] = []
        for effect in effects:
            match effect:
                case ef.Reply() | ef.AnswerInitialize():
                    assert (effect.session, effect.id) in self.owed
                    self.owed.remove((effect.session, effect.id))
                    if isinstance(effect, ef.Reply) and effect.body.startswith(b'{"tools"'):
                        tools = msgspec.json.decode(effect.body)["tools"]
                        self.listed[effect.session] = [tool["name"] for tool in tools]
                case ef.SendListChanged():
                    assert self.listed[effect.session] is not None, "told twice, or without a list"
                    self.listed[effect.session] = None
                case ef.SendAsk():
                    assert effect.session not in self.asked, "two questions at once"
                    assert CAPABILITIES[effect.session].roots
                    self.asked[effect.session] = effect.ask
                case ef.ApplyRoots():
                    moves.append(effect)
                case Call():
                    self.sent[effect.call] = effect.session
                    self.is_right(effect)
                case CancelCall():
                    del self.sent[effect.call]
                case SetPools():
                    self.wanted = {spec.key for spec in effect.pools}
                    self.catalogs = {k: told for k, told in self.catalogs.items() if k in self.wanted}
                case DiscoverCatalog():
                    assert not self.linked or effect.key in self.wanted
                case _:
                    pass
        for move in moves:
            self.move(move.session, *(root.uri for root in move.roots))

    def is_right(self, call: Call) -> None:
        """The pool is wanted, of the session's class, and was told the session's roots."""
        assert call.key in self.wanted, "it would be told that its server is no longer configured"
        can = CAPABILITIES[call.session]
        if can.asking:
            assert call.key.endswith("?"), "a server could not ask it"
        elif call.session != "operator":
            assert not call.key.endswith("?") or plain_of(call.key) in self.merged
        if call.key.startswith("f") and self.own_roots:
            assert plain_of(call.key).endswith(f"={self.here[call.session]}")

    # --- the configuration --------------------------------------------------------------------------------

    def read(self, roots: str) -> None:
        keys = [f"a:{self.version}", f"f:{self.version}={roots}"]

        def spec(key: str) -> PoolSpec:
            return PoolSpec(
                key=PoolKey(key), server=ServerName(key[0]), argv=[], env={}, cwd="/", policy=POLICY,
                asking=key.endswith("?"),
            )  # fmt: skip

        self.feed(
            ev.SourceRead(
                source=SourceId(roots),
                scope=Scope(tuple(ScopeEntry(server=ServerName(k[0]), key=PoolKey(k)) for k in keys)),
                specs=tuple(spec(key) for key in keys),
                misconfigured={},
                stop_first=frozenset(),
                max_processes=8,
                max_greeting=3,
                twins={PoolKey(key): spec(f"{key}?") for key in keys},
                own_roots=frozenset({ServerName("f")} if self.own_roots else ()),
            )
        )

    def move(self, session: SessionId, *roots: str) -> None:
        """What the shell does: find the source, move, drop what nobody uses."""
        before, after = self.here[session], ",".join(roots)
        if after not in {WORKSPACE, *self.here.values()}:
            self.read(after)
        self.here[session] = after
        self.feed(ev.SessionSourceChanged(session, SourceId(after)))
        self.leave(before)

    def leave(self, roots: str) -> None:
        if roots not in {WORKSPACE, *self.here.values()}:
            self.feed(ev.SourceDropped(SourceId(roots)))

    @rule(version=st.integers(1, 2), own_roots=st.sampled_from([True, True, False]))
    def configuration_is_read_again(self, version: int, own_roots: bool) -> None:
        self.version, self.own_roots = version, own_roots
        for roots in sorted({WORKSPACE, *self.here.values()}):
            self.read(roots)

    @initialize(agents=st.sampled_from([5, 5, 4, 0]), asks=st.booleans())
    def some_are_there(self, agents: int, asks: bool) -> None:
        """Most runs begin in the middle of things: few would get there by themselves."""
        if not agents:
            return
        self.supervisor_comes()
        for session in list(CAPABILITIES)[:agents]:
            self.comes(session)
            self.is_ready(session)
        for pick in range(len(self.wanted)):
            self.a_pool_greets(pick, ("t",), asks=asks)
        for session in self.here:
            self.lists(session, RawJson(b"3"))
            self.calls(session, RawJson(b"1"), "a__t")
            self.calls(session, RawJson(b"2"), "f__t")

    # --- agents -------------------------------------------------------------------------------------------

    @rule(session=SESSIONS)
    def comes(self, session: SessionId) -> None:
        if session not in self.here:
            self.here[session], self.listed[session] = WORKSPACE, None
            control = session == "operator"
            self.feed(
                ev.SessionOpened(
                    session=session, source=SourceId(WORKSPACE), agent="", pid=1, carrier="shim",
                    control=control,
                )
            )  # fmt: skip
            self.owed.add((session, RawJson(b"0")))
            greeted = ev.InitializeRequested(
                session, RawJson(b"0"), "2025-11-25", "sim", CAPABILITIES[session]
            )
            self.feed(greeted)

    @rule(session=SESSIONS)
    def is_ready(self, session: SessionId) -> None:
        self.feed(ev.InitializedReceived(session))

    @rule(session=SESSIONS)
    def leaves(self, session: SessionId) -> None:
        if session in self.here:
            self.owed = {who for who in self.owed if who[0] != session}
            before = self.here.pop(session)
            self.asked.pop(session, None)
            self.feed(ev.SessionClosed(session))
            self.leave(before)

    @rule(session=SESSIONS, request=IDS)
    def lists(self, session: SessionId, request: RawJson) -> None:
        if session in self.here and (session, request) not in self.owed:
            self.owed.add((session, request))
            self.feed(ev.ListPageRequested(session, request, None))

    @rule(session=SESSIONS, request=IDS, name=st.sampled_from(["a__t", "f__t", "f__u", "t", "a__nothing"]))
    def calls(self, session: SessionId, request: RawJson, name: str) -> None:
        if session in self.here and (session, request) not in self.owed:
            self.owed.add((session, request))
            self.feed(ev.CallRequested(session, request, name, EMPTY_OBJECT, ABSENT, ABSENT))

    @rule(session=SESSIONS, request=IDS)
    def cancels(self, session: SessionId, request: RawJson) -> None:
        if (session, request) in self.owed:
            self.owed.remove((session, request))
            self.feed(ev.RequestCancelled(session, request, ""))

    @precondition(lambda self: self.asked)
    @rule(
        pick=PICK, roots=st.lists(ROOTS, max_size=2, unique=True), errs=st.sampled_from([False, False, True])
    )
    def an_agent_says_its_roots(self, pick: int, roots: list[str], errs: bool) -> None:
        session = list(self.asked)[pick % len(self.asked)]
        body = RawJson(msgspec.json.encode({"roots": [{"uri": uri} for uri in roots]}))
        self.feed(ev.AskAnswered(session, self.asked.pop(session), is_error=errs, body=body))

    @rule(session=SESSIONS)
    def roots_change(self, session: SessionId) -> None:
        self.feed(ev.RootsListChanged(session))

    # --- the supervisor -----------------------------------------------------------------------------------

    @rule()
    def supervisor_comes(self) -> None:
        if not self.linked:
            self.linked = True
            supervisor_comes(self.feed)

    @rule()
    def supervisor_goes(self) -> None:
        if self.linked:
            self.linked = False
            self.sent.clear()
            self.feed(ev.SupervisorLost())

    @precondition(lambda self: self.sent)
    @rule(pick=PICK)
    def a_call_is_answered(self, pick: int) -> None:
        call = list(self.sent)[pick % len(self.sent)]
        del self.sent[call]
        self.feed(CallAnswered(call, is_error=False, body=EMPTY_OBJECT))

    @precondition(lambda self: self.linked)
    @rule(
        pick=PICK,
        tools=st.sampled_from([("t",), ("t",), ("t", "u")]),
        asks=st.sampled_from([False, False, False, True]),
    )
    def a_pool_greets(self, pick: int, tools: tuple[str, ...], asks: bool) -> None:
        key = sorted(self.wanted)[pick % len(self.wanted)]
        self.catalogs[key] = (tools, asks)
        twins = [self.catalogs.get(plain_of(key)), self.catalogs.get(f"{plain_of(key)}?")]
        if twins[0] == twins[1] and not asks:
            self.merged.add(plain_of(key))
        offers = [ToolOffer(tool, RawJson(b'{"name":"%s"}' % tool.encode())) for tool in tools]
        self.feed(Catalog(PoolKey(key), offers, "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25", asks=asks))
        if key in self.wanted:
            self.feed(PoolChanged(PoolKey(key), "serving", ""))

    @precondition(lambda self: self.linked)
    @rule(pick=PICK, state=STATES, mode=MODES)
    def a_pool_changes(self, pick: int, state: PoolState, mode: Mode) -> None:
        key = sorted(self.wanted)[pick % len(self.wanted)]
        self.feed(PoolChanged(PoolKey(key), state, "for a reason", None, mode))
        twins = [self.catalogs.get(plain_of(key)), self.catalogs.get(f"{plain_of(key)}?")]
        if twins[0] is not None and twins[0] == twins[1] and not twins[0][1]:
            self.merged.add(plain_of(key))  # the mode may have been what was in the way

    # --- time ---------------------------------------------------------------------------------------------

    @rule(dt=st.sampled_from([0.5, 2.0, 5.0]))
    def wait(self, dt: float) -> None:
        until = self.now + dt
        for due in deadlines_until(self.core.next_deadline, self.now, until):
            self.now = due
            self.perform(self.core.tick(due))
        self.now = until

    @invariant()
    def lists_are_right_or_told_to_be_old(self) -> None:
        self.core.check()
        assert self.here.keys() == self.core.sessions.keys()
        for session, roots in self.here.items():
            assert self.core.sessions[session].source == roots
            listed = self.listed[session]
            if session in self.core.notifications.gathered:  # it is told soon, with other servers that start
                continue
            assert listed is None or listed == [tool.qualified for tool in self.core.view_of(session).tools]

    def teardown(self) -> None:
        """However it stands: time alone ends everything that is owed, also what waits for roots."""
        self.wait(2 * LIST_WAIT_S + BOUNDS.wait_s + POLICY.wait_s + POLICY.max_total_s + 5.0 + 0.1)
        assert not self.owed
        assert self.core.next_deadline() is None


ClassesMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestClassesMachine = behaviour("classes:apart", "roots:changes-rekey")(ClassesMachine.TestCase)
