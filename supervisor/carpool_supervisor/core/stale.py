"""Lists of instances that say, again and again, that they are old.

Owns the pause before such lists are read once more: a server that tells of a change whenever it was asked for
its lists would otherwise keep itself and us busy for ever. Few changes are followed at once (`era.lists`).

Invariant: whoever waits here is there.
Knows nothing of: what is in a list, which one is old.
"""

from collections.abc import Callable, Mapping
from typing import Final

from carpool_protocol.deadlines import Deadlines
from carpool_protocol.ids import InstanceId
from carpool_supervisor.core.effects import AnyEffect, Relist
from carpool_supervisor.core.lifecycle import State
from carpool_supervisor.core.pool import Instance

PAUSE_S: Final = 1.0


class Stale:
    """All such instances of one supervisor."""

    def __init__(self, instances: Mapping[InstanceId, Instance], out: Callable[[AnyEffect], None]) -> None:
        self._instances = instances
        self._out = out
        self._due: Deadlines[InstanceId] = Deadlines()

    def told(self, instance: Instance, now: float) -> None:
        """Its lists are old, and were read so often that they are not read at once."""
        if instance.id not in self._due:
            self._due.arm(instance.id, now, PAUSE_S)

    def gone(self, instance: Instance) -> None:
        """The process is gone."""
        self._due.disarm(instance.id)

    def overdue(self, now: float) -> None:
        """These have waited."""
        for instance_id in self._due.due(now):
            if self._instances[instance_id].state in (State.SERVING, State.DRAINING):
                self._out(Relist(instance_id))

    def next_deadline(self) -> float | None:
        """When the first has waited."""
        return self._due.next_deadline()

    def check(self) -> None:
        """Assert every invariant."""
        waiting = sum(each in self._due for each in self._instances)
        assert waiting == len(self._due), "an instance that is gone waits"
        self._due.check()
