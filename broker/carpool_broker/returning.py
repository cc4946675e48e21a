"""A session that comes back after its broker died, until all is said that its carrier has kept.

Owns the count of what is replayed and of what is not done with, and how that becomes one `AgentResumed` with
the rest behind it in order. A request that its agent has cancelled as well is neither (docs/decisions/0019).
Pure.

Knows nothing of: whether it may come back, connections, what becomes of its calls.
"""

from collections.abc import Sequence

from carpool_broker.core.events import AgentCalled, AgentCancelled, AgentGreeted, AgentReady, AgentResumed
from carpool_broker.era.handshake import Meaning
from carpool_protocol.ids import AskId, Epoch, RawJson, SessionId


class Returning:
    """One of them. `kept` and `unsettled`: how many lines come yet."""

    def __init__(
        self,
        session: SessionId,
        epoch: Epoch,
        asks: Sequence[str],
        *,
        kept: int,
        unsettled: int,
        stateful: Sequence[str] = (),
    ) -> None:
        """`epoch`: see `AgentResumed.supervisor`; `asks` and `stateful` as well."""
        self._session = session
        self.epoch = epoch
        self.asks = tuple(map(AskId, asks))
        self._stateful = tuple(stateful)
        self._kept = max(kept, 0)
        self._unsettled = max(unsettled, 0)
        self._calls: dict[RawJson, AgentCalled] = {}
        self.greetings: list[AgentGreeted | AgentReady] = []
        """A greeting that was not answered: to be dealt with before all else, which it makes possible."""
        self._rest: list[Meaning] = []

    @property
    def is_over(self) -> bool:
        """All is said."""
        return not (self._kept or self._unsettled)

    def replays(self) -> bool:
        """Whether the line that has come now is one that is to be replayed."""
        if self._kept:
            self._kept -= 1
            return True
        self._unsettled -= 1
        return False

    def take(self, meaning: Meaning) -> None:
        """What a line means that is not done with."""
        if isinstance(meaning, AgentGreeted | AgentReady):
            self.greetings.append(meaning)
        elif isinstance(meaning, AgentCalled) and meaning.id not in self._calls:
            self._calls[meaning.id] = meaning
        elif isinstance(meaning, AgentCancelled) and meaning.id in self._calls:
            del self._calls[meaning.id]
        elif meaning is not None:
            self._rest.append(meaning)

    def end(self) -> tuple[AgentResumed, list[Meaning]]:
        """What has happened, and what is to be dealt with after it."""
        calls = tuple(self._calls.values())
        resumed = AgentResumed(self._session, self.epoch, calls, self.asks, self._stateful)
        return resumed, self._rest
