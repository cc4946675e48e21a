"""A session that comes back after its broker died, until all is said that its carrier has kept.

Owns what is replayed and what is not done with, and how that becomes one `SessionResumed` with the rest
behind it in order. A request that its agent has cancelled as well is neither (docs/decisions/0019). Where
its carrier means another line as the last of that, what is in no record counts as lost. Pure.

Knows nothing of: whether it may come back, connections, what becomes of its calls.
"""

import logging

from carpool_broker.core.model.events import (
    CallRequested,
    InitializedReceived,
    InitializeRequested,
    RequestCancelled,
    SessionResumed,
)
from carpool_broker.era.handshake import LineMeaning
from carpool_protocol.carrier.attach import ResumeSession
from carpool_protocol.ids import AskId, Epoch, RawJson, SessionId
from carpool_protocol.wire.lines import OverlongLine, name_of_any

log = logging.getLogger("carpool.broker")


class SessionResume:
    """One of them."""

    def __init__(self, session: SessionId, epoch: Epoch, resume: ResumeSession) -> None:
        """`epoch`: see `SessionResumed.supervisor`."""
        self._session = session
        self.epoch = epoch
        self.asks = tuple(map(AskId, resume.asks))
        self._stateful = tuple(resume.stateful)
        self._kept = max(resume.kept, 0)
        """So many lines are to be replayed yet."""
        self._unsettled = max(resume.open, 0)
        """So many others come after these yet."""
        self._last = resume.last
        self._again = frozenset(resume.again)
        self._place = -1
        """Of the line that has come last, among these."""
        self._used_again: set[RawJson] = set()
        self._calls: dict[RawJson, CallRequested] = {}
        self.greetings: list[InitializeRequested | InitializedReceived] = []
        """A greeting that was not answered: to be dealt with before all else, which it makes possible."""
        self._rest: list[LineMeaning] = []

    @property
    def is_complete(self) -> bool:
        """All is said."""
        return not (self._kept or self._unsettled)

    def is_replayed(self, line: bytes | OverlongLine) -> bool:
        """Whether the line that has come now is one that is to be replayed."""
        replays = self._kept > 0
        if replays:
            self._kept -= 1
        else:
            self._unsettled -= 1
            self._place += 1
        if self.is_complete and f"{name_of_any(line):x}" != self._last:
            log.warning(
                "%s and its carrier do not mean the same lines; its calls count as lost", self._session
            )
            self.epoch = Epoch("")
        return replays

    def add(self, meaning: LineMeaning) -> None:
        """What a line means that is not done with."""
        if isinstance(meaning, InitializeRequested | InitializedReceived):
            self.greetings.append(meaning)
        elif isinstance(meaning, CallRequested) and meaning.id not in self._calls:
            self._calls[meaning.id] = meaning
            if self._place in self._again:
                self._used_again.add(meaning.id)
        elif isinstance(meaning, RequestCancelled) and meaning.id in self._calls:
            del self._calls[meaning.id]
        elif meaning is not None:
            self._rest.append(meaning)

    def finish(self) -> tuple[SessionResumed, list[LineMeaning]]:
        """What has happened, and what is to be dealt with after it."""
        calls = tuple(self._calls.values())
        again = frozenset(self._used_again & self._calls.keys())
        resumed = SessionResumed(self._session, self.epoch, calls, self.asks, self._stateful, again)
        return resumed, self._rest
