"""The broker's core against the smallest model that can be right.

Which answer each session is still owed, and which question each has open: no session is ever asked for a
call of another, and an answer from another session never reaches the supervisor.
"""

from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from carpool_broker.core.limits.memory_budgets import UNREAD_STEP_BYTES
from carpool_broker.core.model import effects as ef
from carpool_broker.core.model import events as ev
from carpool_broker.core.model.bounds import SessionBounds
from carpool_broker.core.model.capabilities import StatelessAgent
from carpool_broker.core.model.events import SourceId
from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, AskId, CallId, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.codec import paid_size
from carpool_protocol.link.messages import (
    AnswerAsk,
    AskOpened,
    Call,
    CallAnswered,
    CallFailed,
    CallProgressed,
    CancelCall,
    Catalog,
    DiscoverCatalog,
    ForwardAskProgress,
    Policy,
    PoolChanged,
    PoolSpec,
    PoolState,
    SetPools,
    ToolOffer,
)
from tests.behaviours import behaviour
from tests.broker.core.ask_model import ASKS, CAN, CAPABILITIES, METHODS, AskModel, says
from tests.kit.broker_rig import broker_core, supervisor_comes
from tests.kit.deadlines import deadlines_until

BOUNDS = SessionBounds(max_open_calls=2, max_waiting_calls=2, max_waiting_bytes=400, wait_s=4.0)
POLICY = Policy(wait_s=3.0, max_total_s=10.0)
LIST_WAIT_S = 2.0
SOURCES = st.sampled_from([SourceId("one"), SourceId("two")])
SESSIONS = st.sampled_from([SessionId("s1"), SessionId("s2"), SessionId("s3")])
IDS = st.sampled_from(
    [RawJson(b"1"), RawJson(b'"1"'), RawJson(b"1.0"), RawJson(b"2"), RawJson(b"3"), RawJson(b"4")]
)
KEYS = st.sampled_from([PoolKey("a:1"), PoolKey("a:2"), PoolKey("b:1")])
STATES: st.SearchStrategy[PoolState] = st.sampled_from(
    [
        "cold",
        "starting",
        "serving",
        "serving",
        "backing_off",
        "given_up",
        "stopped",
        "breaker_open",
        "half_open",
    ]
)

PICK = st.integers(0, 50)
LISTS = st.none() | st.lists(st.sampled_from(["t", "u"]), unique=True)
Owed = dict[tuple[SessionId, RawJson], str]


def offers_of(tools: list[str]) -> list[ToolOffer]:
    return [ToolOffer(tool, RawJson(b'{"name":"%s"}' % tool.encode())) for tool in tools]


def catalog_of(key: PoolKey, tools: list[str]) -> Catalog:
    return Catalog(key, offers_of(tools), "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25")


class BrokerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.core = broker_core(BOUNDS, LIST_WAIT_S)
        self.now = 50.0
        self.owed: Owed = {}
        self.tokens: dict[SessionId, set[RawJson]] = {}
        self.greeted: set[SessionId] = set()
        self.sent: dict[CallId, SessionId] = {}
        """On the link and not ended there."""
        self.stateless: set[tuple[SessionId, RawJson]] = set()
        """Open requests of the stateless era, on sessions that were greeted: agents may speak both."""
        self.unaskable: set[CallId] = set()
        """Their calls: each says what can be asked of its agent, here nothing."""
        self.linked = False
        self.credit = 0
        self.wanted: set[PoolKey] = set()
        self.book = AskModel()
        self.listed: dict[SessionId, list[str] | None] = {}
        """The last list each session got; None once it was told that it is old."""
        for source in ("one", "two"):
            self.read(SourceId(source), PoolKey("a:1"), with_b=True, stop_first=False)

    def feed(self, event: Any) -> None:
        self.perform(self.core.handle(event, self.now))

    def perform(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case ef.Reply() | ef.AnswerInitialize() | ef.ReplyStateless():
                    who = (effect.session, effect.id)
                    assert isinstance(effect, ef.ReplyStateless) == (who in self.stateless), "the other era's"
                    self.stateless.discard(who)
                    kind = self.owed.pop((effect.session, effect.id), None)
                    assert kind is not None, f"{effect} was not owed"
                    if kind == "list" and isinstance(effect, ef.Reply) and not effect.is_error:
                        tools = msgspec.json.decode(effect.body)["tools"]
                        self.listed[effect.session] = [tool["name"] for tool in tools]
                case ef.SendProgress():
                    assert effect.token in self.tokens[effect.session]
                case ef.SendListChanged():
                    assert self.listed[effect.session] is not None, "told twice, or without a list"
                    self.listed[effect.session] = None
                case Call():
                    assert self.linked
                    assert self.credit > 0, "sent without credit"
                    self.credit -= paid_size(effect)
                    assert effect.call not in self.sent
                    self.sent[effect.call] = effect.session
                    if effect.can is not None:
                        self.unaskable.add(effect.call)
                case CancelCall():
                    assert self.linked
                    assert self.sent.pop(effect.call, None) is not None
                case SetPools():
                    self.wanted = {spec.key for spec in effect.pools}
                case DiscoverCatalog():
                    assert not self.linked or effect.key in self.wanted
                case _:
                    assert self.linked or not isinstance(effect, AnswerAsk | ForwardAskProgress)
                    self.book.take(effect, self.tokens)

    def read(
        self,
        source: SourceId,
        key: PoolKey,
        *,
        with_b: bool,
        stop_first: bool,
        kept: list[str] | None = None,
        offline: list[str] | None = None,
    ) -> None:
        """`kept`: what each of its pools told an earlier carpool. `offline`: the tools file of `a`."""
        keys = [key, *([PoolKey("b:1")] if with_b else [])]
        by_file = None if offline is None else tuple(offers_of(offline))
        entries = tuple(
            ScopeEntry(server=ServerName(k[0]), key=k, offline=by_file if k == key else None) for k in keys
        )
        specs = tuple(
            PoolSpec(key=k, server=ServerName(k[0]), argv=[], env={}, cwd="/", policy=POLICY) for k in keys
        )
        self.feed(
            ev.SourceRead(
                source=source,
                scope=Scope(entries),
                specs=specs,
                misconfigured={},
                stop_first=frozenset({ServerName("a")} if stop_first else ()),
                max_processes=8,
                max_greeting=3,
                kept={} if kept is None else {k: catalog_of(k, kept) for k in keys},
            )
        )

    @initialize(agents=st.sampled_from([3, 3, 2, 0]))
    def some_are_there(self, agents: int) -> None:
        """Most runs begin in the middle of things: few would get there by themselves."""
        if agents:
            self.supervisor_comes(5000)
            for key in ("a:1", "b:1"):
                self.catalog_comes(PoolKey(key), ["t"])
        for session in [SessionId("s1"), SessionId("s2"), SessionId("s3")][:agents]:
            self.comes(session, SourceId("one"))
            self.calls(session, RawJson(b"1"), "a__t", 0)

    # --- agents -------------------------------------------------------------------------------------------

    @rule(session=SESSIONS, source=SOURCES)
    def comes(self, session: SessionId, source: SourceId) -> None:
        if session not in self.tokens:
            self.tokens[session] = set()
            self.listed[session] = None
            self.feed(ev.SessionOpened(session=session, source=source, agent="", pid=1, carrier="shim"))
            self.greet(session, RawJson(b'"hello"'))

    def greet(self, session: SessionId, request: RawJson) -> None:
        self.owed[session, request] = "greet"
        self.feed(ev.InitializeRequested(session, request, "2025-11-25", "sim", CAPABILITIES[session]))

    @rule(session=SESSIONS)
    def leaves(self, session: SessionId) -> None:
        if session in self.tokens:
            self.owed = {who: kind for who, kind in self.owed.items() if who[0] != session}
            self.stateless = {who for who in self.stateless if who[0] != session}
            del self.tokens[session]  # from now on nothing may be written to it
            self.feed(ev.SessionClosed(session))
            assert session not in self.book.unanswered.values(), "a server waits for an agent that is gone"

    @rule(session=SESSIONS, request=IDS)
    def lists(self, session: SessionId, request: RawJson) -> None:
        if session in self.tokens and (session, request) not in self.owed:
            self.owed[session, request] = "list"
            self.feed(ev.ListPageRequested(session, request, None))

    @rule(session=SESSIONS, request=IDS)
    def lists_with_a_bad_cursor(self, session: SessionId, request: RawJson) -> None:
        if session in self.tokens and (session, request) not in self.owed:
            self.owed[session, request] = "list"
            self.feed(ev.ListPageRequested(session, request, "nonsense"))

    @rule(
        session=SESSIONS,
        request=IDS,
        name=st.sampled_from(["a__t", "b__t", "a__u", "t", "nowhere__t"]),
        size=st.sampled_from([0, 100, 300]),
        by=st.sampled_from([None, None, StatelessAgent()]),
    )
    def calls(
        self, session: SessionId, request: RawJson, name: str, size: int, by: StatelessAgent | None = None
    ) -> None:
        if session not in self.tokens:
            return
        self.tokens[session].add(request)
        event = ev.CallRequested(session, request, name, RawJson(b" " * size), ABSENT, request, by=by)
        if (session, request) in self.owed:
            effects = self.core.handle(event, self.now)
            assert [type(effect) for effect in effects] == [ef.ReplyStateless if by else ef.Reply]
            assert b"duplicate_request_id" in effects[0].body  # type: ignore[union-attr]
            return
        self.owed[session, request] = "call"
        if by is not None:
            self.stateless.add((session, request))
        self.feed(event)

    @rule(session=SESSIONS, request=IDS)
    def cancels(self, session: SessionId, request: RawJson) -> None:
        if session in self.tokens:
            if self.owed.get((session, request)) in ("call", "list"):
                del self.owed[session, request]
                self.stateless.discard((session, request))
            self.feed(ev.RequestCancelled(session, request, "no longer wanted"))

    @rule(session=SESSIONS, unread_bytes=st.sampled_from([0, 0, 1000, 2 * UNREAD_STEP_BYTES]))
    def leaves_unread(self, session: SessionId, unread_bytes: int) -> None:
        if session in self.tokens:
            self.feed(ev.UnreadChanged(session, unread_bytes))

    # --- the supervisor -----------------------------------------------------------------------------------

    @rule(credit=st.sampled_from([1, 300, 5000]))
    def supervisor_comes(self, credit: int) -> None:
        if not self.linked:
            self.linked = True
            self.credit = credit
            supervisor_comes(self.feed, credit)

    @rule()
    def supervisor_goes(self) -> None:
        if self.linked:
            self.linked = False
            self.sent.clear()
            self.book.unanswered.clear()
            self.feed(ev.SupervisorLost())
            assert not self.book.asked, "nobody waits for this answer any more"

    @rule()
    def carpool_ends(self) -> None:
        """And goes on all the same: then what comes of the calls is late."""
        self.feed(ev.EndRequested())
        assert not self.owed

    @rule(size=st.sampled_from([64, 500]))
    def credit_comes(self, size: int) -> None:
        if self.linked:
            self.credit += size
            self.feed(ev.CreditReceived(size))

    @precondition(lambda self: self.sent)
    @rule(pick=PICK, how=st.sampled_from(["answer", "error", "no", "maybe", "new", "progress"]))
    def supervisor_says(self, pick: int, how: str) -> None:
        call = list(self.sent)[pick % len(self.sent)]
        if how == "progress":
            self.feed(CallProgressed(call, EMPTY_OBJECT))
            return
        del self.sent[call]
        match how:
            case "answer" | "error":
                self.feed(CallAnswered(call, how == "error", EMPTY_OBJECT))
            case "no":
                self.feed(CallFailed(call, "waiting_line_full", "no", "", 1.0))
            case "maybe":
                self.feed(CallFailed(call, "timed_out", "maybe", ""))
            case _:
                self.feed(CallFailed(call, "a_fault_of_the_future", "maybe", "It went wrong."))

    @rule(call=st.integers(1, 99))
    def a_late_answer_comes(self, call: int) -> None:
        if call not in self.core.call_table.calls:
            assert (
                self.core.handle(CallAnswered(CallId(call), is_error=False, body=EMPTY_OBJECT), self.now)
                == []
            )
            assert self.core.handle(CallFailed(CallId(call), "timed_out", "maybe", ""), self.now) == []

    # --- asks ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.sent)
    @rule(pick=PICK, ask=ASKS, method=METHODS)
    def a_server_asks(self, pick: int, ask: AskId, method: str) -> None:
        if ask in self.book.unanswered:  # told again
            assert self.core.handle(AskOpened(CallId(1), ask, method, EMPTY_OBJECT, True), self.now) == []
            return
        ask = self.book.new_id(ask)
        call = list(self.sent)[pick % len(self.sent)]
        session = self.book.unanswered[ask] = self.sent[call]
        self.feed(AskOpened(call, ask, method, EMPTY_OBJECT, wants_progress=True))
        can = method in CAN[session] and call not in self.unaskable
        assert (ask in self.book.asked) == (call in self.core.call_table.calls and can)
        assert (ask in self.book.unanswered) == (ask in self.book.asked), "neither asked nor answered"

    @precondition(lambda self: self.book.asked)
    @rule(session=SESSIONS, pick=PICK)
    def an_agent_answers(self, session: SessionId, pick: int) -> None:
        ask = list(self.book.asked)[pick % len(self.book.asked)]
        if session in self.tokens:
            its_own = self.book.asked[ask] == session
            self.feed(ev.AskAnswered(session, ask, is_error=False, body=says(session)))
            assert its_own == (ask not in self.book.asked)

    @rule(key=KEYS, tools=st.lists(st.sampled_from(["t", "u"]), unique=True))
    def catalog_comes(self, key: PoolKey, tools: list[str]) -> None:
        if self.linked:
            self.feed(catalog_of(key, tools))

    @rule(key=KEYS, state=STATES)
    def pool_changes(self, key: PoolKey, state: PoolState) -> None:
        if self.linked:
            self.feed(PoolChanged(key, state, "for a reason", None))

    # --- configuration and time ---------------------------------------------------------------------------

    @rule(
        source=SOURCES,
        version=st.integers(1, 2),
        with_b=st.booleans(),
        stop_first=st.booleans(),
        kept=LISTS,
        offline=LISTS,
    )
    def source_is_read(
        self,
        *,
        source: SourceId,
        version: int,
        with_b: bool,
        stop_first: bool,
        kept: list[str] | None,
        offline: list[str] | None,
    ) -> None:
        key = PoolKey(f"a:{version}")
        self.read(source, key, with_b=with_b, stop_first=stop_first, kept=kept, offline=offline)

    @rule(dt=st.sampled_from([0.5, 2.0, 5.0]))
    def wait(self, dt: float) -> None:
        until = self.now + dt
        for due in deadlines_until(self.core.next_deadline, self.now, until):
            self.now = due
            self.perform(self.core.tick(due))
        self.now = until

    @invariant()
    def the_core_agrees_with_the_model(self) -> None:
        core = self.core
        core.check()
        open_call = {(s.id, request): "call" for s in core.sessions.values() for request in s.open_calls}
        waiting = core.requests.deferred.all()
        open_call |= {
            (it.session.id, it.id): "list" for it in waiting if isinstance(it.request, ev.ListPageRequested)
        }
        assert open_call == self.owed
        assert {call for call, o in core.call_table.calls.items() if o.stage == "sent"} <= set(self.sent)
        for session, listed in self.listed.items():
            is_told_soon = session in core.notifications.gathered  # with other servers that start
            if listed is not None and session in self.tokens and not is_told_soon:
                present = [tool.qualified for tool in core.view_of(session).tools]
                assert present == listed, "its list is old and it was not told"
        assert set(core.states) <= {spec.key for spec in core.sources.wanted_pools().pools}

    def teardown(self) -> None:
        """However it stands: time alone ends everything that is owed."""
        for ask, session in list(self.book.asked.items()):
            self.feed(ev.AskAnswered(session, ask, is_error=False, body=says(session)))
        assert not self.book.asked
        assert not self.book.unanswered, "a server waits for ever"
        # A call that went to a pool that nobody wants any more has the limits of any pool.
        self.wait(LIST_WAIT_S + BOUNDS.wait_s + POLICY.wait_s + Policy().max_total_s + 50.0 + 0.1)
        assert not self.owed
        assert self.core.next_deadline() is None


BrokerMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestBrokerMachine = behaviour("calls:one-answer", "calls:isolation")(BrokerMachine.TestCase)
