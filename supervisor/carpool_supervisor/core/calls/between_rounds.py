"""Calls between two rounds: a server of the stateless era has answered them with what it wants first, or with
nothing but a state to send back a little later.

Owns the pauses, and the line of those that are to be said again while another call has the lane of their
instance: nothing of a resting call runs, so it holds no lane (rule 5). They go on first come first, before
any new call. What is said again, and how often, the era's adapter knows; how long a call may take in all,
also in this line, the desk. Source: MCP 2026-07-28, basic/utilities/mrtr.

Invariants (`check`): who is in line rests, is in flight, waits for no answer, and its lane is taken; a call
that rests is asked about, pauses or is in line.
Knows nothing of: agents, what is asked, JSON.
"""

from collections.abc import Callable, Iterable

from carpool_protocol.ids import InstanceId, WireId
from carpool_protocol.machine.deadlines import Deadlines
from carpool_supervisor.core.model.attribution import CAN_ASK
from carpool_supervisor.core.model.effects import AnyEffect, WriteAgain
from carpool_supervisor.core.model.events import ServerNotReady
from carpool_supervisor.core.model.lifecycle import State
from carpool_supervisor.core.model.pool import Instance, OpenCall, Pool
from carpool_supervisor.core.model.sharing import admits


class Later:
    """All resting calls of one supervisor."""

    def __init__(self, out: Callable[[AnyEffect], None]) -> None:
        self._out = out
        self._pauses: dict[tuple[InstanceId, WireId], OpenCall] = {}
        self._due: Deadlines[tuple[InstanceId, WireId]] = Deadlines()
        self._line: dict[InstanceId, dict[WireId, OpenCall]] = {}

    def __contains__(self, opened: OpenCall) -> bool:
        """Whether it is in line."""
        return any(opened.wire in line and line[opened.wire] is opened for line in self._line.values())

    # --- a call rests ----------------------------------------------------------------------------------

    def rest(self, opened: OpenCall) -> None:
        """Its server wants something of it: nothing of it runs."""
        opened.resting = True
        self._forget(opened)

    def wait(self, instance: Instance, event: ServerNotReady, now: float) -> None:
        """The server wants a pause for this call."""
        opened = instance.in_flight.get(event.wire)
        if opened is not None:
            self.rest(opened)
            self._pauses[instance.id, event.wire] = opened
            self._due.arm((instance.id, event.wire), now, event.pause_s)

    # --- it goes on ------------------------------------------------------------------------------------

    def again(self, opened: OpenCall) -> None:
        """All that was wanted is there: say it again, or put it in line."""
        instance = opened.instance
        assert instance is not None
        if not opened.resting or _goes(opened, instance):
            self._say(opened, instance)
        else:
            self._line.setdefault(instance.id, {})[opened.wire] = opened

    def serve(self, pool: Pool) -> list[OpenCall]:
        """Say those again whose lane is free now."""
        said: list[OpenCall] = []
        for instance_id in [each for each in self._line if each in pool.instances]:
            instance = pool.instances[instance_id]
            for opened in list(self._line[instance_id].values()):
                if _goes(opened, instance):
                    self._forget(opened)
                    self._say(opened, instance)
                    said.append(opened)
        return said

    def overdue(self, now: float) -> None:
        """These pauses are over."""
        for which in self._due.due(now):
            self.again(self._pauses.pop(which))

    def _say(self, opened: OpenCall, instance: Instance) -> None:
        if instance.state in (State.SERVING, State.DRAINING):
            opened.resting = False
            self._out(WriteAgain(instance.id, opened.wire))

    def over(self, opened: OpenCall) -> None:
        """It has ended while it rested."""
        opened.resting = False
        self._forget(opened)

    def _forget(self, opened: OpenCall) -> None:
        """It neither pauses nor is in line."""
        assert opened.instance is not None
        which = opened.instance.id, opened.wire
        if self._pauses.pop(which, None) is not None:
            self._due.disarm(which)
        line = self._line.get(opened.instance.id)
        if line is not None and line.pop(opened.wire, None) is not None and not line:
            del self._line[opened.instance.id]

    def next_deadline(self) -> float | None:
        """When the first pause is over."""
        return self._due.next_deadline()

    def check(self, calls: Iterable[OpenCall]) -> None:
        """Assert every invariant. `calls`: all open calls."""
        for instance_id, line in self._line.items():
            assert line, "an empty line is kept"
            for wire, opened in line.items():
                instance = opened.instance
                assert instance is not None
                assert instance.id == instance_id
                assert instance.in_flight[wire] is opened, f"call {opened.call.call} is in line and over"
                assert opened.resting
                assert not opened.asks, f"call {opened.call.call} is in line and waits for its agent"
                assert not _goes(opened, instance), f"call {opened.call.call} is in line and could go"
        for opened in calls:
            if not opened.resting:
                continue
            found = opened.instance
            assert found is not None, f"call {opened.call.call} rests where it never ran"
            in_line = opened.wire in self._line.get(found.id, ())
            pauses = (found.id, opened.wire) in self._pauses
            talks = found.state in (State.SERVING, State.DRAINING)
            assert opened.asks or in_line or pauses or not talks, f"call {opened.call.call} rests for ever"
        assert len(self._pauses) == len(self._due)
        assert all(each in self._due for each in self._pauses), "a pause never ends"
        self._due.check()


def _goes(opened: OpenCall, instance: Instance) -> bool:
    can_ask = opened.call.method in CAN_ASK
    return admits(instance.pool.mode, can_ask=can_ask, asking_in_flight=int(instance.has_asker()))
