"""When the lists of an instance are read again: after a pause, or once a list request was lost.

Owns the pause before lists are read once more that change again and again: a server that tells of a change
whenever it was asked for its lists would otherwise keep itself and us busy for ever. Few changes are followed
at once (`era.lists`). Owns also how long the answer to a list request may take, and the pauses before lists
are read again of which an answer was unreadable or never came: longer each time, and `MAX_LOST` times in a
row. While an instance greets, its start limit is the limit of that too.

Invariant: whoever waits here is there.
Knows nothing of: what is in a list, which one is old.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from carpool_protocol.ids import InstanceId
from carpool_supervisor.core.model.effects import AnyEffect, GiveUpListRequest, RereadLists
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.pool import Instance
from carpool_supervisor.core.model.timer_kinds import SupervisorTimers

PAUSE_S: Final = 1.0
MAX_LOST: Final = 5
"""After so many losses in a row lists are read again when the server says that they have changed, or somebody
asks for them.
"""
ANSWER_S: Final = 60.0
"""The answer to a list request may take this long, or `timeout_s` where that is more."""


class ListThrottle:
    """All such instances of one supervisor."""

    def __init__(
        self,
        instances: Mapping[InstanceId, Instance],
        timers: SupervisorTimers,
        out: Callable[[AnyEffect], None],
    ) -> None:
        self._instances = instances
        self._emit = out
        self._rereads = timers.of("list_reread")
        self._answers = timers.of("list_answer")
        """Serving instances that have an open list request."""

    def list_requested(self, instance: Instance, method: str, now: float) -> None:
        """This list request is out; empty: none is."""
        instance.list_request = method
        if method and instance.state in (InstanceState.SERVING, InstanceState.DRAINING):
            self._answers.arm(instance.id, now, _answer_s(instance))
        else:
            self._answers.disarm(instance.id)

    def list_answer_lost(self, instance: Instance, times: int, now: float) -> None:
        """An answer could not be read or never came, so often in a row."""
        if times <= MAX_LOST:
            self._rereads.arm(instance.id, now, PAUSE_S * 2**times)

    def lists_changed(self, instance: Instance, now: float) -> None:
        """Its lists are old, and were read so often that they are not read at once."""
        if instance.id not in self._rereads:
            self._rereads.arm(instance.id, now, PAUSE_S)

    def instance_exited(self, instance: Instance) -> None:
        """The process is gone."""
        self._rereads.disarm(instance.id)
        self._answers.disarm(instance.id)

    def answers_overdue(self, instances: Iterable[InstanceId], now: float) -> None:
        """Give up the list requests of these instances; go on waiting where nothing is read from them."""
        for instance_id in instances:
            instance = self._instances[instance_id]
            if instance.unread_since is None:
                self._emit(GiveUpListRequest(instance_id, _answer_s(instance)))
            else:  # the answer may lie in its pipe
                self._answers.arm(instance_id, now, _answer_s(instance))

    def reread(self, instances: Iterable[InstanceId]) -> None:
        """Read the lists of these instances again."""
        for instance_id in instances:
            if self._instances[instance_id].state in (InstanceState.SERVING, InstanceState.DRAINING):
                self._emit(RereadLists(instance_id))

    def check(self) -> None:
        """Assert every invariant."""
        for waits in (self._rereads, self._answers):
            waiting = sum(each in waits for each in self._instances)
            assert waiting == len(waits), "an instance that is gone waits"


def _answer_s(instance: Instance) -> float:
    return max(ANSWER_S, instance.pool.policy.timeout_s)
