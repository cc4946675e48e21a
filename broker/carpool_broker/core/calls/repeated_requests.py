"""What agents were asked by a broker before this one, and answers that come before their question is here.

The supervisor says a question that is open once more when its call is resumed, under the same id. An agent
that was asked it already is not asked again; its answer may have come first, and is kept for that (rule 4).
A question that does not come again in time is over, and the agent is told so.

Invariants (`check`): whatever is kept is of a session that is here and has a deadline; it is bounded.
Knows nothing of: calls, what is in an answer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from carpool_broker.core.model.effects import AnyEffect, WithdrawAsk
from carpool_broker.core.model.events import AskAnswered
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_protocol.ids import AskId, SessionId

REPEAT_WAIT_S: Final = 30.0
"""So long after a session has come back its questions may be said again."""
MAX_ASKED: Final = 1024
"""Of one session: what a carrier says past that is asked again."""
MAX_EARLY: Final = 64
"""Answers of one session. One past that is dropped, and its question asked again."""
MAX_EARLY_BYTES: Final = 16 * 1024 * 1024


class _SessionAsks:
    """What is kept of one session."""

    __slots__ = ("answers", "asked", "size_bytes")

    def __init__(self, asked: Sequence[AskId]) -> None:
        self.asked = set(asked[:MAX_ASKED])
        self.answers: dict[AskId, AskAnswered] = {}
        self.size_bytes = 0


class RepeatedAsks:
    """Of all sessions."""

    def __init__(self, out: Callable[[AnyEffect], None], timers: BrokerTimers) -> None:
        self._emit = out
        self._timers = timers
        self._of_session: dict[SessionId, _SessionAsks] = {}

    def session_resumed(self, session: SessionId, asked: Sequence[AskId], now: float) -> None:
        """This session has come back; its agent was asked these."""
        self._of_session[session] = _SessionAsks(asked)
        self._timers.arm("earlier_asks", session, now, REPEAT_WAIT_S)

    def start_waiting(self, session: SessionId, now: float) -> None:
        """Only now its questions can be said again."""
        self._timers.rearm("earlier_asks", session, now)

    def keep_answer(self, session: SessionId, event: AskAnswered) -> None:
        """An answer to what is not open here. The first one is kept, if the question may come still."""
        of = self._of_session.get(session)
        if of is None or event.ask in of.answers or len(of.answers) >= MAX_EARLY:
            return
        if of.size_bytes + len(event.body) <= MAX_EARLY_BYTES:
            of.answers[event.ask] = event
            of.size_bytes += len(event.body)

    def take_answer(self, session: SessionId, ask: AskId) -> tuple[bool, AskAnswered | None]:
        """This question is here now: whether its agent was asked it before, and has answered."""
        of = self._of_session.get(session)
        if of is None:
            return False, None
        answer = of.answers.pop(ask, None)
        if answer is not None:
            of.size_bytes -= len(answer.body)
        was_asked = ask in of.asked
        of.asked.discard(ask)
        return was_asked, answer

    def ask_withdrawn(self, ask: AskId, reason: str) -> None:
        """The server no longer waits for it."""
        for session, of in self._of_session.items():
            if ask in of.asked:
                self._withdraw(session, of, ask, reason)

    def stop_waiting(self, session: SessionId) -> None:
        """Nothing of this session is said again."""
        of = self._of_session.pop(session, None)
        self._timers.disarm("earlier_asks", session)
        if of is not None:
            for ask in sorted(of.asked):
                self._withdraw(session, of, ask, "It is no longer needed.")

    def _withdraw(self, session: SessionId, of: _SessionAsks, ask: AskId, reason: str) -> None:
        of.asked.discard(ask)
        if ask not in of.answers:
            self._emit(WithdrawAsk(session, ask, reason))

    def session_closed(self, session: SessionId) -> None:
        """The agent is gone."""
        self._of_session.pop(session, None)
        self._timers.disarm("earlier_asks", session)

    def check(self, sessions: Mapping[SessionId, object]) -> None:
        """Assert every invariant."""
        assert self._of_session.keys() <= sessions.keys(), "asked before, and not here"
        assert self._timers.keys("earlier_asks") == self._of_session.keys()
        for of in self._of_session.values():
            assert len(of.asked) <= MAX_ASKED
            assert len(of.answers) <= MAX_EARLY
            assert of.size_bytes == sum(len(each.body) for each in of.answers.values()) <= MAX_EARLY_BYTES
