"""What the broker's machines know of asks: the oracle that both of them consult.

Owns the model: what the supervisor waits for and of whom, what each agent was asked and has open. A broken
rule is an AssertionError.
"""

from collections.abc import Container
from typing import Any, Final

from hypothesis import strategies as st

from carpool_broker.core.model import effects as ef
from carpool_broker.core.model.capabilities import Capabilities
from carpool_protocol.ids import AskId, RawJson, SessionId
from carpool_protocol.link.messages import AnswerAsk, ForwardAskProgress, SessionEnded

SAMPLING: Final = "sampling/createMessage"
ELICITATION: Final = "elicitation/create"
ASKS = st.sampled_from([AskId("1"), AskId('"1"'), AskId("1.0"), AskId("2")])
"""As bad as can be: they look like ids of requests and of calls."""
METHODS = st.sampled_from([SAMPLING, SAMPLING, SAMPLING, ELICITATION, "roots/list"])
CAPABILITIES: Final = {
    SessionId("s1"): Capabilities(sampling=True, form=True),
    SessionId("s2"): Capabilities(sampling=True),
    SessionId("s3"): Capabilities(),
}
CAN: Final = {
    SessionId("s1"): frozenset({SAMPLING, ELICITATION}),
    SessionId("s2"): frozenset({SAMPLING}),
    SessionId("s3"): frozenset[str](),
}


class AskModel:
    """Every ask that is open somewhere."""

    def __init__(self) -> None:
        self.unanswered: dict[AskId, SessionId] = {}
        """What the supervisor waits for, and whose call it is for."""
        self.asked: dict[AskId, SessionId] = {}
        """What agents were asked and have open."""
        self._used: set[AskId] = set()

    def new_id(self, ask: AskId) -> AskId:
        """Return this id for a new ask, or another one if it was used: a supervisor gives none twice."""
        found = AskId(f"{len(self._used)}.5") if ask in self._used else ask
        self._used.add(found)
        return found

    def take(self, effect: Any, present: Container[SessionId]) -> None:
        """Judge one effect of the broker; `present`: the sessions that may be written to."""
        match effect:
            case ef.SendAsk():
                assert effect.session == self.unanswered[effect.ask], "asked for a call of another"
                assert effect.session in present
                assert effect.method in CAN[effect.session]
                assert effect.ask not in self.asked, "asked twice"
                self.asked[effect.ask] = effect.session
            case ef.WithdrawAsk():
                assert effect.session in present
                assert self.asked.pop(effect.ask) == effect.session
            case AnswerAsk():
                session = self.unanswered.pop(effect.ask)
                self.asked.pop(effect.ask, None)
                assert effect.is_error or effect.body == says(session), "another's answer"
            case ForwardAskProgress():
                assert effect.params == says(self.asked[effect.ask]), "another's progress"
            case SessionEnded():
                assert effect.session not in self.asked.values()
            case _:
                pass


def says(session: SessionId) -> RawJson:
    """What this agent says to whatever it is asked."""
    return RawJson(b'{"who":"%s"}' % session.encode())
