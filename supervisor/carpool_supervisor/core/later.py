"""Calls that a server wants said again a little later: it has answered with nothing but a state to send back.

Owns the pauses. What is said again, and how often, the era's adapter knows; how long a call may take in all,
the desk. A pause of a call that has ended meanwhile comes to nothing. Source: MCP 2026-07-28,
basic/utilities/mrtr.

Knows nothing of: agents, calls, JSON.
"""

from collections.abc import Callable, Mapping

from carpool_protocol.deadlines import Deadlines
from carpool_protocol.ids import InstanceId, WireId
from carpool_supervisor.core.effects import AnyEffect, WriteAgain
from carpool_supervisor.core.events import ServerNotReady
from carpool_supervisor.core.pool import Instance


class Later:
    """All pauses of one supervisor."""

    def __init__(self, instances: Mapping[InstanceId, Instance], out: Callable[[AnyEffect], None]) -> None:
        self._instances = instances
        self._out = out
        self._due: Deadlines[tuple[InstanceId, WireId]] = Deadlines()

    def wait(self, instance: Instance, event: ServerNotReady, now: float) -> None:
        """The server wants a pause for this call."""
        if event.wire in instance.in_flight:
            self._due.arm((instance.id, event.wire), now, event.pause_s)

    def overdue(self, now: float) -> None:
        """These pauses are over."""
        for instance_id, wire in self._due.due(now):
            instance = self._instances.get(instance_id)
            if instance is not None and wire in instance.in_flight:
                self._out(WriteAgain(instance_id, wire))

    def next_deadline(self) -> float | None:
        """When the first pause is over."""
        return self._due.next_deadline()

    def check(self) -> None:
        """Assert every invariant."""
        self._due.check()
