"""How the waiting lines of the simulated world may move: the oracle about turns.

Owns who waits in the line of which pool, as told by what the supervisor is sent and does, and the rule: where
all instances are alike (`concurrent`), nobody waits through two turns of anybody else. Agents who share a
session, or have one bearer token, are one in this.

Knows nothing of: cores' insides, why a call waits.
"""

from carpool_protocol.ids import CallId, PoolKey, SessionId, whole_of
from carpool_protocol.link.messages import Call
from tests.world.sim.oracles.violation import Violation

MOST_TURNS = 2
"""One that was due, and one of who came to the end of the turns just before."""


class TurnBook:
    """The lines of one supervisor."""

    def __init__(self) -> None:
        self._waiting: dict[PoolKey, dict[CallId, SessionId]] = {}
        self._turns: dict[PoolKey, dict[SessionId, dict[SessionId, int]]] = {}
        """By pool, and by who waits: whose turn it has been meanwhile, and how often."""

    def came(self, call: Call) -> None:
        """The supervisor has got a call: it waits, if only for this moment."""
        self._waiting.setdefault(call.key, {})[call.call] = _owner(call)

    def over(self, call: CallId) -> None:
        """It was cancelled or has ended: if it waited, it does not wait any more."""
        for key, line in self._waiting.items():
            whole = line.pop(call, None)
            if whole is not None:
                self._left(key, whole)

    def told(self, call: CallId) -> None:
        """It was answered with the loss of its session's instance: that was the turn of its session."""
        for key, line in self._waiting.items():
            if call in line:
                self._turns.get(key, {}).pop(line[call], None)
        self.over(call)

    def placed(self, call: Call, *, alike: bool) -> None:
        """It is written to an instance: its session had a turn, also with a call that comes back from an
        instance that died, which waits again unseen. `alike`: all are alike to every call, none is
        anybody's still from when they were leased, and it took none of the places that are kept for turns
        that hold few.
        """
        line, whole = self._waiting.setdefault(call.key, {}), _owner(call)
        line.pop(call.call, None)
        turns = self._turns.setdefault(call.key, {})
        turns.pop(whole, None)
        for other in set(line.values()) - {whole} if alike else ():
            seen = turns.setdefault(other, {})
            seen[whole] = seen.get(whole, 0) + 1
            if seen[whole] > MOST_TURNS:
                raise Violation(f"{other} waits for {call.key} through {seen[whole]} turns of {whole}")

    def forget(self) -> None:
        """Everything is abandoned."""
        self._waiting.clear()
        self._turns.clear()

    def _left(self, key: PoolKey, whole: SessionId) -> None:
        if whole not in self._waiting[key].values():
            self._turns.get(key, {}).pop(whole, None)


def _owner(call: Call) -> SessionId:
    return SessionId(f"@{call.principal}") if call.principal else whole_of(call.session)
