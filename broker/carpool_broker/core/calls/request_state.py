"""Tokens of calls that wait for their agent to come back: what `requestState` is for it (stateless era).

Owns their form: `call.round.marks.mac`. The mac is a keyed hash of the rest, the session and the request
(method, name, digest of params), so a token is good for nobody else and for nothing else. Which token was
used is not to be seen from it: that is `input_required`'s, and `UsedTokens` for calls that nothing remembers.
`marks` says which questions its agent was told: so a broker that did not ask them itself knows whether an
answer is for a question, or for one before it of the same name.

Knows nothing of: which calls there are, what is answered.
"""

from collections.abc import Iterable
from hashlib import blake2b
from hmac import compare_digest
from typing import Final

import msgspec
from msgspec import Struct

from carpool_broker.core.model.events import CallRequested
from carpool_protocol.faults.fault_answers import InvariantBroken
from carpool_protocol.ids import AskId, CallId, SessionId

CALL_ENDED: Final = "u"
"""Stands in place of the marks: the server has ended the call and done nothing, and the retry sends it
again.
"""

MAX_USED: Final = 256
"""The greatest number of used tokens that are kept for one session."""

_DIGITS: Final = 18
_PARTS: Final = 4
_MARK_CHARS: Final = 8


class RequestState(Struct, frozen=True):
    """What a valid token says."""

    call: CallId
    round: int
    """The round of the call, from 1."""
    marks: str


class RequestStateTokens:
    """Makes and reads tokens with `secret`, which nobody outside knows. With an empty secret none can be
    made.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret[:64]

    def make(self, call: CallId, number: int, request: CallRequested, asks: Iterable[AskId] | None) -> str:
        """Make a token. `request` is the request that is answered with it; `asks` are the asks that the
        agent is told; None: see `CALL_ENDED`.
        """
        if not self._secret:
            raise InvariantBroken("a token without a secret")
        marks = CALL_ENDED if asks is None else "".join(self._ask_mark(ask) for ask in asks)
        return self._signature(RequestState(call, number, marks), request.session, request)

    def read(self, request: CallRequested) -> RequestState | None:
        """Return what the token of this retry says; None if it is no token, or not for this request."""
        parts = request.state.split(".")
        if not self._secret or len(parts) != _PARTS or len(parts[0]) > _DIGITS or len(parts[1]) > _DIGITS:
            return None
        if not all(part.isascii() and part.isdigit() for part in parts[:2]):
            return None
        token = RequestState(CallId(int(parts[0])), int(parts[1]), parts[2])
        genuine = self._signature(token, request.session, request)
        return token if compare_digest(genuine.encode(), request.state.encode("utf-8", "replace")) else None

    def covers_ask(self, token: RequestState, ask: AskId) -> bool:
        """True if the agent was told this ask with the token."""
        marks = token.marks
        return self._ask_mark(ask) in {
            marks[at : at + _MARK_CHARS] for at in range(0, len(marks), _MARK_CHARS)
        }

    def _ask_mark(self, ask: AskId) -> str:
        return blake2b(ask.encode(), key=self._secret, digest_size=_MARK_CHARS // 2).hexdigest()

    def _signature(self, token: RequestState, session: SessionId, request: CallRequested) -> str:
        head = f"{token.call}.{token.round}.{token.marks}"
        # A msgpack list is cut apart in one way only. Surrogates, which a name may hold, are no UTF-8.
        words = [head, session, request.method, request.name, request.digest]
        bound = msgspec.msgpack.encode([word.encode("utf-8", "surrogatepass") for word in words])
        return f"{head}.{blake2b(bound, key=self._secret, digest_size=16).hexdigest()}"


class UsedTokens:
    """The tokens that were used here and that nothing else remembers: those of calls that had ended when
    they were made, of which no record has the call, and those of earlier brokers, whose call the record may
    repeat after the link was down.
    """

    def __init__(self) -> None:
        self._of_session: dict[SessionId, dict[CallId, int]] = {}

    def use(self, session: SessionId, call: CallId, number: int) -> bool:
        """Use the token of this round. Returns False if it, or a later one of the call, was used before."""
        rounds = self._of_session.setdefault(session, {})
        if rounds.get(call, 0) >= number:
            return False
        rounds.pop(call, None)  # the latest is the last to be forgotten
        rounds[call] = number
        if len(rounds) > MAX_USED:
            del rounds[next(iter(rounds))]
        return True

    def is_used(self, session: SessionId, call: CallId, number: int) -> bool:
        """True if the token of this round, or of a later one of the call, was used."""
        return self._of_session.get(session, {}).get(call, 0) >= number

    def session_closed(self, session: SessionId) -> None:
        """The session has closed."""
        self._of_session.pop(session, None)
