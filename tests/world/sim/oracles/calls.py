"""The oracle about answers to agents of the simulated world.

Owns what each agent asked, what was handed to a server and executed, and the rules: one answer per request,
none after a cancel, never another agent's, honest about delivery, and in time. A broken rule is a
`Violation`.

Knows nothing of: cores' insides, the link, instances.
"""

from typing import Literal

import msgspec
from msgspec import Struct

from carpool_protocol.ids import RawJson, SessionId
from carpool_protocol.link.messages import Call
from tests.world.sim.oracles.asks import AskOracle
from tests.world.sim.oracles.violation import Violation
from tests.world.sim.pauses import Pauses
from tests.world.sim.traits import number_of

Kind = Literal["greet", "list", "call", "ping", "read", "discover", "listen", "watch", "level", "refused"]
"""`refused`: a retry that is no good."""


UNSURE = frozenset({"link_broken", "answer_overdue"})
"""Faults of calls that the broker had sent away and cannot know the fate of."""


CUT_OFF = b"had lost their connection"
"""Why a call of the record is lost that may have waited in a line."""


CANCEL_S = 1.5
"""So long a cancel may take to its server."""


class SentCall(Struct):
    """One request of an agent."""

    number: int
    kind: Kind
    at: float


class CallBook:
    """Everything that was asked, handed over and executed, by number."""

    def __init__(self, bound_s: float, ask_timeout_s: float) -> None:
        self.bound_s = bound_s
        self.owners: dict[int, SessionId] = {}
        self.pauses = Pauses()
        self.asks = AskOracle(self.owners, ask_timeout_s, self.pauses)
        self.mishaps = 0
        """How often anything happened that may cost a call, but a broker's death."""
        self.asked = 0
        self.answered = 0
        self.handed: set[int] = set()
        self.ran: dict[int, int] = {}
        self.again: dict[int, int] = {}
        """How often its agent has been at the URLs that a call was ended for: it is said again then."""
        self.public: set[int] = set()
        """What anybody may be given the answer to."""
        self.said_no: set[int] = set()
        self.cancelled: dict[int, float] = {}
        """When its agent gave up a call, or was gone."""
        self.of_lost_sessions: set[int] = set()
        """Calls that were open when their session could not resume. They end with that session, however soon
        their agent gives them up under the new one.
        """
        self.outcomes: dict[str, int] = {}
        self.eras: dict[str, int] = {}
        """What agents of the stateless era have seen that only they can see."""

    def hand_over(self, call: Call) -> None:
        """The supervisor has written this call to an instance."""
        self.handed.add(number_of(call))

    def execute(self, call: Call, *, public: bool) -> None:
        """A server runs this call. `public`: anybody may have the answer."""
        number = number_of(call)
        self.ran[number] = self.ran.get(number, 0) + 1
        if public:
            self.public.add(number)
        if self.ran[number] > 1 + self.again.get(number, 0):
            raise Violation(f"call {number} was executed twice")
        if number in self.said_no:
            raise Violation(f"call {number} was executed after its agent was told that it was not delivered")

    def worked(self, call: Call, now: float, joined_at: float) -> None:
        """A server that was told nothing has worked on this call to its end. `joined_at`: since when broker
        and supervisor have the link; they forgot all calls then.
        """
        number = number_of(call)
        took_s = self.pauses.took_s(max(self.cancelled.get(number, now), joined_at), now)
        if number in self.cancelled and took_s > CANCEL_S and number not in self.of_lost_sessions:
            raise Violation(f"call {number} was given up {took_s:.1f} s ago, its server knows nothing")

    def outcome(self, ask: SentCall, answer: RawJson, now: float, *, is_error: bool) -> str:
        """Judge an answer; the word for it."""
        took_s = self.pauses.took_s(ask.at, now)
        if took_s > self.bound_s:
            raise Violation(f"request {ask.number} ({ask.kind}) was answered only after {took_s:.1f} s")
        self.answered += 1
        body = msgspec.json.decode(answer)
        word = "error" if is_error else "ok"
        if ask.kind in ("call", "read"):
            word = self._judge_call(ask, body, answer, is_error=is_error)
        self.outcomes[word] = self.outcomes.get(word, 0) + 1
        return word

    def _judge_call(self, ask: SentCall, body: dict[str, object], answer: RawJson, *, is_error: bool) -> str:
        number = ask.number
        if "n" in body:
            if body["n"] != number and not (ask.kind == "read" and self._may_have(number, body["n"])):
                raise Violation(f"call {number} got the answer of call {body['n']}")
            if body["n"] not in self.ran:
                raise Violation(f"call {number} has an answer and was not executed")
            return "error" if is_error else "ok"
        meta = body.get("data") if is_error else dict(body["_meta"])["carpool/error"]  # type: ignore[call-overload]
        assert isinstance(meta, dict)
        if meta["code"] == "bad_params":
            raise Violation(f"call {number} was said well, and is refused as if it were not")
        if meta["delivered"] == "no":
            if self.ran.get(number, 0) > self.again.get(number, 0):
                raise Violation(
                    f"call {number} was executed and is reported as not delivered ({meta['code']})"
                )
            self.said_no.add(number)
        elif number not in self.handed and meta["code"] not in UNSURE and CUT_OFF not in bytes(answer):
            raise Violation(f"call {number} never left us and is reported as maybe executed ({meta['code']})")
        return str(meta["code"])

    def _may_have(self, number: int, other: object) -> bool:
        """Whether this reader may be given the answer to another read."""
        assert isinstance(other, int)
        return other in self.public or self._principal(number) == self._principal(other)

    def _principal(self, number: int) -> SessionId | None:
        owner = self.owners.get(number)
        return None if owner is None else self.asks.principals.get(owner, owner)
