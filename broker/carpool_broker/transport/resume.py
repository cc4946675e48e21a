"""The resumption of one session after its broker died: collects the lines that its carrier repeats.

Owns which lines are replayed and which are unsettled, and makes one `SessionResumed` of them with the rest
behind it in order. A request that its agent has also cancelled is in neither (docs/decisions/0019). If broker
and carrier disagree about the last line, calls that no record holds count as lost. Pure.

Knows nothing of: the right to resume, connections, the outcome of its calls.
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
from carpool_protocol.carrier.attach_line import ResumeSession
from carpool_protocol.ids import AskId, Epoch, RawJson, SessionId
from carpool_protocol.wire.lines import OverlongLine, name_of_any

log = logging.getLogger("carpool.broker")


class SessionResume:
    """The state of one session's resumption."""

    def __init__(self, session: SessionId, epoch: Epoch, resume: ResumeSession) -> None:
        """`epoch`: the supervisor under which the lines were sent, as `SessionResumed.supervisor`."""
        self._session = session
        self.epoch = epoch
        self.asks = tuple(map(AskId, resume.asks))
        self._stateful = tuple(resume.stateful)
        self._kept = max(resume.kept, 0)
        """Number of lines that are still to be replayed."""
        self._unsettled = max(resume.open, 0)
        """Number of unsettled lines that still follow those."""
        self._last = resume.last
        self._again = frozenset(resume.again)
        self._place = -1
        """Position of the last line among the unsettled ones."""
        self._used_again: set[RawJson] = set()
        self._calls: dict[RawJson, CallRequested] = {}
        self.greetings: list[InitializeRequested | InitializedReceived] = []
        """Parts of a greeting without an answer. They are handled first, because all else depends on them."""
        self._rest: list[LineMeaning] = []

    @property
    def is_complete(self) -> bool:
        """True if the carrier has repeated all lines."""
        return not (self._kept or self._unsettled)

    def is_replayed(self, line: bytes | OverlongLine) -> bool:
        """Count the next line. True if it is a replayed one."""
        replays = self._kept > 0
        if replays:
            self._kept -= 1
        else:
            self._unsettled -= 1
            self._place += 1
        if self.is_complete and f"{name_of_any(line):x}" != self._last:
            log.warning(
                "%s: broker and carrier disagree about its lines; its calls count as lost", self._session
            )
            self.epoch = Epoch("")
        return replays

    def add(self, meaning: LineMeaning) -> None:
        """Add the meaning of an unsettled line."""
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
        """The event of the resumption, and the meanings to handle after it."""
        calls = tuple(self._calls.values())
        again = frozenset(self._used_again & self._calls.keys())
        resumed = SessionResumed(self._session, self.epoch, calls, self.asks, self._stateful, again)
        return resumed, self._rest
