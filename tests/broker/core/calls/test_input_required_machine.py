"""Rounds against adversaries: whatever anybody brings as a token, in whatever order things end.

The oracle knows which token is good for what. An answer reaches the server that asked, at most once, and from
the session that was asked; each request gets exactly one reply; a refused retry changes nothing.
"""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Struct

from carpool_broker.core.model import effects as ef
from carpool_broker.core.model import events as ev
from carpool_protocol.ids import AskId, CallId, RawJson, SessionId
from carpool_protocol.link.messages import AnswerAsk, AskWithdrawn, Call, CallAnswered, CallFailed, CancelCall
from tests.broker.stateless_rig import RESULT, StatelessRig
from tests.kit.broker_rig import supervisor_comes

PARK_S = 60.0
NAMES = ("s1", "s2", "s3")
SESSIONS = st.sampled_from([SessionId(name) for name in NAMES])
DIGESTS = st.sampled_from(["d", "e"])
PICK = st.integers(0, 50)
Who = tuple[SessionId, RawJson]


class Token(Struct):
    """One that was given out."""

    state: str
    session: SessionId
    digest: str
    keys: list[str]
    until: float
    call: CallId
    used: bool = False


class ParkedMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rig = StatelessRig(park_s=PARK_S, max_open_calls=50)
        self.owed: dict[Who, str] = {}
        """Requests that wait for a reply, and their digest."""
        self.calls: dict[CallId, SessionId] = {}
        """Open at the supervisor."""
        self.request_of: dict[CallId, Who | None] = {}
        """Which request waits for a call; None: it is parked."""
        self.asks: dict[AskId, CallId] = {}
        self.answered: set[AskId] = set()
        self.tokens: list[Token] = []
        self.count = 0
        self.asked = 0
        self.present: set[SessionId] = {SessionId("s1")}
        self.retrying: Token | None = None
        self.saying: Who | None = None

    @initialize(rounds=st.integers(0, 2))
    def some_are_there(self, rounds: int) -> None:
        """Most runs begin in the middle of things: few would get there by themselves."""
        self.comes(SessionId("s2"))
        self.calls_something(SessionId("s1"), "d")
        for number in range(rounds):
            if number:
                self.retries_rightly(0, some=False)
            self.a_server_asks(0, "")
            self.wait(0.01)

    def feed(self, event: Any) -> list[Any]:
        return self.judge(self.rig.feed(event))

    def judge(self, effects: list[Any]) -> list[Any]:
        for effect in effects:
            match effect:
                case ef.ReplyStateless():
                    assert self.owed.pop((effect.session, effect.id), None) is not None, "nobody waits for it"
                case ef.RequireInput():
                    who = (effect.session, effect.id)
                    digest = self.owed.pop(who, None)
                    assert digest is not None, "nobody waits for it"
                    self._parked(effect, who, digest)
                case AnswerAsk():
                    self._answered(effect)
                case Call():
                    self.calls[effect.call] = effect.session
                    self.request_of[effect.call] = self.saying
                case CancelCall():
                    assert self.calls.pop(effect.call, None) is not None
                    self._over(effect.call)
                case _:
                    pass
        return effects

    def _parked(self, effect: ef.RequireInput, who: Who, digest: str) -> None:
        call = next((c for c, waiting in self.request_of.items() if waiting == who), None)
        if call is None:
            assert self.retrying is not None
            call = self.retrying.call
        self.request_of[call] = None
        assert all(token.state != effect.state for token in self.tokens), "a token is given twice"
        keys = [each.key for each in effect.inputs]
        assert len(set(keys)) == len(keys) > 0
        until = self.rig.now + PARK_S
        self.tokens.append(Token(effect.state, effect.session, digest, keys, until, call))

    def _answered(self, effect: AnswerAsk) -> None:
        assert effect.ask in self.asks, "an answer to what is not asked"
        assert effect.ask not in self.answered, "a server is answered twice"
        self.answered.add(effect.ask)
        call = self.asks.pop(effect.ask)
        if not effect.is_error:
            assert effect.body == self.calls[call].encode(), "an answer of another session"

    def _over(self, call: CallId) -> None:
        """The supervisor ends what this call asked."""
        for ask in [ask for ask, its in self.asks.items() if its == call]:
            del self.asks[ask]
            self.judge(self.rig.feed(AskWithdrawn(ask, "the call is over")))
        self.request_of.pop(call, None)

    # --- agents -------------------------------------------------------------------------------------------

    @rule(session=SESSIONS)
    def comes(self, session: SessionId) -> None:
        if session not in self.present:
            self.present.add(session)
            self.rig.come(session)

    @rule(session=SESSIONS)
    def leaves(self, session: SessionId) -> None:
        if session in self.present and len(self.present) > 1:
            self.present.remove(session)
            self.owed = {who: digest for who, digest in self.owed.items() if who[0] != session}
            for token in self.tokens:
                token.used = token.used or token.session == session
            self.feed(ev.SessionClosed(session))

    @rule(session=SESSIONS, digest=DIGESTS)
    def calls_something(self, session: SessionId, digest: str) -> None:
        if session in self.present:
            self.count += 1
            request = RawJson(b"%d" % self.count)
            self.owed[session, request] = digest
            self.saying = (session, request)
            self.judge(self.rig.call_tool(request.decode(), session=session, digest=digest))

    @precondition(lambda self: self.tokens)
    @rule(
        pick=PICK,
        session=st.none() | SESSIONS,
        digest=st.none() | DIGESTS,
        some=st.booleans(),
        spoil=st.sampled_from(["", "", "", "cut", "made up", "round"]),
    )
    def retries(
        self, pick: int, session: SessionId | None, digest: str | None, spoil: str, *, some: bool
    ) -> None:
        """With any token there ever was, most of them no good."""
        token = self.tokens[pick % len(self.tokens)]
        self._retry(token, session or token.session, digest or token.digest, spoil, some=some)

    @precondition(lambda self: any(not token.used for token in self.tokens))
    @rule(pick=PICK, some=st.booleans())
    def retries_rightly(self, pick: int, *, some: bool) -> None:
        good = [token for token in self.tokens if not token.used]
        token = good[pick % len(good)]
        self._retry(token, token.session, token.digest, "", some=some)

    def _retry(self, token: Token, session: SessionId, digest: str, spoil: str, *, some: bool) -> None:
        if session not in self.present:
            return
        state = {
            "cut": token.state[:-1],
            "made up": token.state[:-32] + "0" * 32,
            "round": token.state.replace(".1.", ".2.", 1),
        }.get(spoil, token.state)
        fits = (state, session, digest) == (token.state, token.session, token.digest)
        good = fits and not token.used and self.rig.now < token.until
        keys = token.keys[:1] if some else token.keys
        self.count += 1
        request = RawJson(b"%d" % self.count)
        who = self.saying = (session, request)
        self.owed[who] = digest
        if good:
            token.used = True
            self.retrying = token
            if token.call in self.request_of:
                self.request_of[token.call] = who
        said = {key: RawJson(session.encode()) for key in keys}
        answers = len(self.answered)
        raw = self.rig.call_tool(request.decode(), session=session, digest=digest, state=state, given=said)
        effects = self.judge(raw)
        self.retrying = None
        if not good:
            assert len(effects) == 1
            assert b"bad_request_state" in effects[0].body
            assert len(self.answered) == answers

    @precondition(lambda self: self.owed)
    @rule(pick=PICK)
    def cancels(self, pick: int) -> None:
        session, request = list(self.owed)[pick % len(self.owed)]
        del self.owed[session, request]
        self.feed(ev.RequestCancelled(session, request, ""))

    # --- the supervisor -----------------------------------------------------------------------------------

    @precondition(lambda self: self.calls)
    @rule(pick=PICK, name=st.sampled_from(["", "", "k"]))
    def a_server_asks(self, pick: int, name: str) -> None:
        call = list(self.calls)[pick % len(self.calls)]
        self.asked += 1
        ask = AskId(f"q{self.asked}")
        self.asks[ask] = call
        self.judge(self.rig.ask(call, ask, name=name))

    @precondition(lambda self: self.asks)
    @rule(pick=PICK)
    def a_server_asks_no_more(self, pick: int) -> None:
        ask = list(self.asks)[pick % len(self.asks)]
        del self.asks[ask]
        self.feed(AskWithdrawn(ask, ""))

    @precondition(lambda self: self.calls)
    @rule(pick=PICK, how=st.sampled_from(["answer", "fail", "urls"]))
    def a_call_ends(self, pick: int, how: str) -> None:
        call = list(self.calls)[pick % len(self.calls)]
        del self.calls[call]
        self.asks = {ask: its for ask, its in self.asks.items() if its != call}
        if how == "fail":
            self.feed(CallFailed(call, "timed_out", "maybe", ""))
        elif how == "urls":
            self.feed(CallAnswered(call, is_error=True, body=RESULT, urls_first=True, urls=(RESULT,)))
        else:
            self.feed(CallAnswered(call, is_error=False, body=RESULT))
        self.request_of.pop(call, None)

    @rule()
    def the_supervisor_goes_and_comes(self) -> None:
        self.calls.clear()
        self.asks.clear()
        self.request_of.clear()
        self.feed(ev.SupervisorLost())
        supervisor_comes(self.feed)

    @rule(dt=st.sampled_from([0.001, 0.01, 20.0, 61.0]))
    def wait(self, dt: float) -> None:
        until = self.rig.now + dt
        while (due := self.rig.core.next_deadline()) is not None and due <= until:
            self.rig.now = max(self.rig.now, due)
            self.judge(self.rig.core.tick(self.rig.now))
            self.rig.core.check()
        self.rig.now = until

    @invariant()
    def the_core_agrees_with_the_model(self) -> None:
        core = self.rig.core
        assert {(s.id, request) for s in core.sessions.values() for request in s.open_calls} == set(self.owed)
        assert set(core.call_table.calls) <= set(self.calls)

    def teardown(self) -> None:
        """Time alone ends everything, and leaves nothing."""
        for call in list(self.calls):
            if call in self.calls and call in self.rig.core.call_table.calls:
                del self.calls[call]
                self.asks = {ask: its for ask, its in self.asks.items() if its != call}
                self.feed(CallAnswered(call, is_error=False, body=RESULT))
        self.wait(PARK_S + 1.0)
        assert not self.owed
        assert self.rig.core.next_deadline() is None


TestParkedMachine = ParkedMachine.TestCase
TestParkedMachine.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
