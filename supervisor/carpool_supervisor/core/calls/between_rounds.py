"""Pending retries: calls that a server of the stateless era answered with `input_required`, or with a state
to send back after a pause.

Owns the pauses, and the queue of retries that wait because another call has the slot of their instance. A
pending call does not run in the server, so it uses no slot (rule 5). Retries are sent first come first,
before any new call. The era's adapter knows the text and number of retries; `dispatcher` knows the total
timeout, which includes this queue. Source: MCP 2026-07-28, basic/utilities/mrtr.

Invariants (`check`): a queued retry is in flight, awaits no input, and its slot is taken; a pending call has
an open ask, a pause or a place in the queue. Knows nothing of: agents, the content of asks, JSON.
"""

from collections.abc import Callable, Iterable

from carpool_protocol.ids import InstanceId, WireId
from carpool_supervisor.core.model.attribution import CAN_ASK
from carpool_supervisor.core.model.effects import AnyEffect, WriteRetry
from carpool_supervisor.core.model.events import ServerNotReady
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.pool import Instance, Pool, PoolCall
from carpool_supervisor.core.model.sharing import may_take_call
from carpool_supervisor.core.model.timer_kinds import SupervisorTimers


class PendingRetries:
    """All pending retries of one supervisor."""

    def __init__(self, timers: SupervisorTimers, out: Callable[[AnyEffect], None]) -> None:
        self._emit = out
        self._pauses: dict[tuple[InstanceId, WireId], PoolCall] = {}
        self._timers = timers.of("retry_pause")
        self._line: dict[InstanceId, dict[WireId, PoolCall]] = {}

    def __contains__(self, pool_call: PoolCall) -> bool:
        """True if this call is in the queue of retries."""
        return any(
            pool_call.wire in line and line[pool_call.wire] is pool_call for line in self._line.values()
        )

    # --- a call becomes a pending retry ----------------------------------------------------------------

    def await_retry(self, pool_call: PoolCall) -> None:
        """Its server requires input: the call does not run meanwhile."""
        pool_call.awaits_retry = True
        self._forget(pool_call)

    def server_not_ready(self, instance: Instance, event: ServerNotReady, now: float) -> None:
        """The server asks for a pause before it gets this call again."""
        opened = instance.in_flight.get(event.wire)
        if opened is not None:
            self.await_retry(opened)
            self._pauses[instance.id, event.wire] = opened
            self._timers.arm((instance.id, event.wire), now, event.pause_s)

    # --- it is sent again ------------------------------------------------------------------------------

    def retry(self, pool_call: PoolCall) -> None:
        """All required input is there: send the call again, or queue it."""
        instance = pool_call.instance
        assert instance is not None
        if not pool_call.awaits_retry or _may_run(pool_call, instance):
            self._write_retry(pool_call, instance)
        else:
            self._line.setdefault(instance.id, {})[pool_call.wire] = pool_call

    def retry_waiting(self, pool: Pool) -> list[PoolCall]:
        """Send the queued calls again that have a free slot now."""
        retried: list[PoolCall] = []
        for instance_id in [each for each in self._line if each in pool.instances]:
            instance = pool.instances[instance_id]
            for opened in list(self._line[instance_id].values()):
                if _may_run(opened, instance):
                    self._forget(opened)
                    self._write_retry(opened, instance)
                    retried.append(opened)
        return retried

    def end_pauses(self, pauses: Iterable[tuple[InstanceId, WireId]]) -> None:
        """Retry the calls whose pauses are over."""
        for which in pauses:
            self.retry(self._pauses.pop(which))

    def _write_retry(self, pool_call: PoolCall, instance: Instance) -> None:
        if instance.state in (InstanceState.SERVING, InstanceState.DRAINING):
            pool_call.awaits_retry = False
            self._emit(WriteRetry(instance.id, pool_call.wire))

    def call_ended(self, pool_call: PoolCall) -> None:
        """A pending call has ended."""
        pool_call.awaits_retry = False
        self._forget(pool_call)

    def _forget(self, pool_call: PoolCall) -> None:
        """Remove its pause and its place in the queue."""
        assert pool_call.instance is not None
        which = pool_call.instance.id, pool_call.wire
        if self._pauses.pop(which, None) is not None:
            self._timers.disarm(which)
        line = self._line.get(pool_call.instance.id)
        if line is not None and line.pop(pool_call.wire, None) is not None and not line:
            del self._line[pool_call.instance.id]

    def check(self, calls: Iterable[PoolCall]) -> None:
        """Assert every invariant. `calls`: all open calls."""
        for instance_id, line in self._line.items():
            assert line, "an empty line is kept"
            for wire, opened in line.items():
                instance = opened.instance
                assert instance is not None
                assert instance.id == instance_id
                assert instance.in_flight[wire] is opened, f"call {opened.call.call} is in line and over"
                assert opened.awaits_retry
                assert not opened.asks, f"call {opened.call.call} is in line and waits for its agent"
                assert not _may_run(opened, instance), f"call {opened.call.call} is in line and could go"
        for opened in calls:
            if not opened.awaits_retry:
                continue
            found = opened.instance
            assert found is not None, f"call {opened.call.call} rests where it never ran"
            in_line = opened.wire in self._line.get(found.id, ())
            pauses = (found.id, opened.wire) in self._pauses
            talks = found.state in (InstanceState.SERVING, InstanceState.DRAINING)
            assert opened.asks or in_line or pauses or not talks, f"call {opened.call.call} rests for ever"
        assert len(self._pauses) == len(self._timers)
        assert all(each in self._timers for each in self._pauses), "a pause never ends"


def _may_run(pool_call: PoolCall, instance: Instance) -> bool:
    can_ask = pool_call.call.method in CAN_ASK
    return may_take_call(
        instance.pool.mode, can_ask=can_ask, asking_in_flight=int(instance.has_asking_call())
    )
