"""Asks against the smallest model that can be right.

No session is ever asked for a call of another; an answer of another session never reaches the supervisor; a
server gets one answer or takes its question back; nothing is written to an agent that is gone.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from carpool_broker.core.model import events as ev
from carpool_protocol.ids import EMPTY_OBJECT, AskId, CallId, RawJson, SessionId
from carpool_protocol.link.messages import AskOpened, AskWithdrawn, CallAnswered
from tests.broker.core.ask_model import ASKS, CAN, CAPABILITIES, METHODS, SAMPLING, AskModel, says
from tests.broker.core.calls.test_server_requests import ServerRequestsRig

SESSIONS = st.sampled_from(list(CAPABILITIES))
PICK = st.integers(0, 50)
RARELY = st.integers(0, 9).map(lambda number: number == 7)
"""What ends everything at once must not be most of what happens."""


class AskMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.answered: set[AskId] = set()
        """Answered by their agents: their servers may still repeat them."""
        self.rig = ServerRequestsRig()
        self.book = AskModel()
        self.calls: dict[CallId, tuple[SessionId, RawJson]] = {}
        """Open at the supervisor; the agent may have cancelled them."""
        self.present: set[SessionId] = set()

    def feed(self, event: ev.AnyEvent) -> list[Any]:
        effects = self.rig.feed(event)
        for effect in effects:
            self.book.take(effect, self.present)
        return effects

    def pick(self, pick: int) -> CallId:
        return list(self.calls)[pick % len(self.calls)]

    @initialize()
    def all_are_there(self) -> None:
        for session in CAPABILITIES:
            self.comes(session)
            self.opens_a_call(session)

    @rule(session=SESSIONS)
    def comes(self, session: SessionId) -> None:
        if session not in self.present:
            self.present.add(session)
            self.rig.come(session, CAPABILITIES[session])

    @rule(session=SESSIONS)
    def opens_a_call(self, session: SessionId) -> None:
        if session in self.present and len(self.calls) < 20:
            call = self.rig.call(session)
            self.calls[call] = session, RawJson(b"%d" % self.rig.calls)

    @precondition(lambda self: self.calls)
    @rule(pick=PICK, ask=ASKS, method=METHODS)
    def a_server_asks(self, pick: int, ask: AskId, method: str) -> None:
        call = self.pick(pick)
        if ask in self.book.unanswered or ask in self.answered:  # told again
            assert self.feed(AskOpened(call, ask, method, EMPTY_OBJECT, wants_progress=True)) == []
            return
        session = self.book.unanswered[ask] = self.calls[call][0]
        self.feed(AskOpened(call, ask, method, EMPTY_OBJECT, wants_progress=True))
        can = call in self.rig.core.call_table.calls and method in CAN[session]
        assert (ask in self.book.asked) == can
        assert (ask in self.book.unanswered) == can, "neither asked nor answered"

    @rule(call=st.integers(1000, 1003), ask=ASKS)
    def a_server_asks_for_a_call_that_is_over(self, call: int, ask: AskId) -> None:
        if ask not in self.book.unanswered and ask not in self.answered:
            self.book.unanswered[ask] = SessionId("nobody")
            self.feed(AskOpened(CallId(call), ask, SAMPLING, EMPTY_OBJECT, wants_progress=True))
            assert ask not in self.book.unanswered

    @rule(session=SESSIONS, pick=PICK, how=st.sampled_from(["result", "error", "progress"]))
    def an_agent_says(self, session: SessionId, pick: int, how: str) -> None:
        """Something to whatever is open anywhere, its own or not, or to nothing at all."""
        asks = [*self.book.asked, AskId("nothing")]
        ask = asks[pick % len(asks)]
        if session in self.present:
            its_own = self.book.asked.get(ask) == session
            body = says(session)
            if how == "progress":
                effects = self.feed(ev.AskProgressed(session, ask, body))
            else:
                effects = self.feed(ev.AskAnswered(session, ask, how == "error", body))
                self.answered |= {ask} if its_own else set()
            assert len(effects) == its_own

    @rule(ask=ASKS, so=RARELY)
    def a_server_no_longer_waits(self, ask: AskId, so: bool) -> None:
        if not so:
            return
        self.book.unanswered.pop(ask, None)
        self.feed(AskWithdrawn(ask, "over"))
        assert ask not in self.book.asked

    @precondition(lambda self: self.calls)
    @rule(pick=PICK, so=RARELY)
    def an_agent_cancels(self, pick: int, so: bool) -> None:
        session, request = self.calls[self.pick(pick)]
        if so and session in self.present:
            self.feed(ev.RequestCancelled(session, request, ""))

    @precondition(lambda self: self.calls)
    @rule(pick=PICK, so=RARELY)
    def a_server_answers(self, pick: int, so: bool) -> None:
        if not so:
            return
        call = self.pick(pick)
        del self.calls[call]
        self.feed(CallAnswered(call, is_error=False, body=EMPTY_OBJECT))

    @rule(session=SESSIONS, so=RARELY)
    def leaves(self, session: SessionId, so: bool) -> None:
        if so and session in self.present:
            self.present.remove(session)  # from now on nothing may be written to it
            self.feed(ev.SessionClosed(session))
            assert session not in self.book.asked.values()
            assert session not in self.book.unanswered.values(), "a server waits for an agent that is gone"

    @rule(so=RARELY)
    def the_supervisor_is_another(self, so: bool) -> None:
        if not so:
            return
        self.book.unanswered.clear()
        self.answered.clear()
        self.calls.clear()
        self.feed(ev.SupervisorLost())
        assert not self.book.asked, "nobody waits for these answers any more"
        self.rig.supervisor_comes()

    @invariant()
    def whoever_is_waited_for_has_been_asked(self) -> None:
        assert self.book.asked == self.book.unanswered

    def teardown(self) -> None:
        """Every agent can still answer what it was asked."""
        for ask, session in list(self.book.asked.items()):
            self.feed(ev.AskAnswered(session, ask, is_error=False, body=says(session)))
        assert not self.book.asked
        assert not self.book.unanswered


AskMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestAskMachine = AskMachine.TestCase
