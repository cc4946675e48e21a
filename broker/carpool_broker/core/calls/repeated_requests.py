"""Asks of earlier brokers: what agents were asked, and answers that come before the ask is repeated here.

When a call is resumed, the supervisor repeats its open asks under the same ids. An agent that was asked
already is not asked again; its answer may come first and is kept (docs/rules.md, rule 4). An ask that is not
repeated in time is over, and the agent is told so.

Invariants (`check`): what is kept is of a session that is present, has a deadline and is bounded. Refuses to
know: calls, what is in an answer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from carpool_broker.core.model.effects import AnyEffect, WithdrawAsk
from carpool_broker.core.model.events import AskAnswered
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_protocol.ids import AskId, SessionId

REPEAT_WAIT_S: Final = 30.0
"""The asks of a session may be repeated for this long after it has come back."""
MAX_ASKED: Final = 1024
"""The greatest number of asks of one session; others are asked again."""
MAX_EARLY: Final = 64
"""The greatest number of early answers of one session. A further one is dropped and its ask sent again."""
MAX_EARLY_BYTES: Final = 16 * 1024 * 1024


class _SessionAsks:
    """The asks and answers of one session."""

    __slots__ = ("answers", "asked", "size_bytes")

    def __init__(self, asked: Sequence[AskId]) -> None:
        self.asked = set(asked[:MAX_ASKED])
        self.answers: dict[AskId, AskAnswered] = {}
        self.size_bytes = 0


class RepeatedAsks:
    """The earlier asks of all sessions."""

    def __init__(self, out: Callable[[AnyEffect], None], timers: BrokerTimers) -> None:
        self._emit = out
        self._timers = timers
        self._of_session: dict[SessionId, _SessionAsks] = {}

    def session_resumed(self, session: SessionId, asked: Sequence[AskId], now: float) -> None:
        """The session has come back; its agent was asked these."""
        self._of_session[session] = _SessionAsks(asked)
        self._timers.arm("earlier_asks", session, now, REPEAT_WAIT_S)

    def start_waiting(self, session: SessionId, now: float) -> None:
        """From now on the session's asks can be repeated."""
        self._timers.rearm("earlier_asks", session, now)

    def keep_answer(self, session: SessionId, event: AskAnswered) -> None:
        """Keep an answer to an ask that is not open here. The first one is kept if the ask can still come."""
        of = self._of_session.get(session)
        if of is None or event.ask in of.answers or len(of.answers) >= MAX_EARLY:
            return
        if of.size_bytes + len(event.body) <= MAX_EARLY_BYTES:
            of.answers[event.ask] = event
            of.size_bytes += len(event.body)

    def take_answer(self, session: SessionId, ask: AskId) -> tuple[bool, AskAnswered | None]:
        """Return whether the agent was asked this before, and its answer if it has come."""
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
        """The server no longer waits for this answer."""
        for session, of in self._of_session.items():
            if ask in of.asked:
                self._withdraw(session, of, ask, reason)

    def stop_waiting(self, session: SessionId) -> None:
        """No ask of this session is repeated any more."""
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
        """The session has closed."""
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
