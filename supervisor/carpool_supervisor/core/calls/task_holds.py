"""Held tasks: tasks that agents of the stateless era poll themselves (`io.modelcontextprotocol/tasks`).

Owns how long an instance is held for its tasks. A task holds it until an agent has been told its end, until
no agent can poll it any more (it is then cancelled at its server), or until its time is over, at most
`MAX_HELD_S`. While it holds any task the instance is not idle and its lease lives; draining waits for tasks
as for calls. A task that began for an abandoned call is cancelled at once.

Invariants (`check`): each held task has a deadline, and each deadline a held task. Knows nothing of: the
owner of a task (the broker), its content, JSON.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from carpool_protocol.ids import InstanceId
from carpool_protocol.link.messages import CancelTask, SetTaskSubscriptions, TaskStatusChanged
from carpool_supervisor.core.calls.leases import Leases
from carpool_supervisor.core.model.effects import AnyEffect, WriteTaskCancel, WriteTaskSubscriptions
from carpool_supervisor.core.model.events import ServerAnswered, TaskChanged
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.pool import Instance
from carpool_supervisor.core.model.timer_kinds import SupervisorTimers

MAX_HELD_S: Final = 24 * 3600.0
"""The longest time that an instance is held for a task, whatever its server says."""


class TaskHolds:
    """All held tasks of one supervisor. `relax`: called when an instance may have nothing open any more."""

    def __init__(
        self,
        instances: Mapping[InstanceId, Instance],
        leases: Leases,
        relax: Callable[[Instance, float], None],
        *,
        timers: SupervisorTimers,
        out: Callable[[AnyEffect], None],
    ) -> None:
        self._instances = instances
        self._leases = leases
        self._recheck_draining = relax
        self._emit = out
        self._timers = timers.of("held_task")

    def call_answered(self, instance: Instance, event: ServerAnswered, now: float) -> None:
        """A call was answered with a task, or with the end of its task."""
        opened = instance.in_flight.get(event.wire)
        if event.task and opened is None:
            if _talks(instance):
                self._emit(WriteTaskCancel(instance.id, event.task))
        elif event.task:
            self._hold(instance, event, now)
        elif opened is not None:
            self._release(instance, opened.call.target, now)

    def _hold(self, instance: Instance, event: ServerAnswered, now: float) -> None:
        if event.task not in instance.held_tasks:
            instance.held_tasks.add(event.task)
            self._leases.call_started(instance.id)
        ttl_s = MAX_HELD_S if event.task_ttl_ms < 0 else min(event.task_ttl_ms / 1000, MAX_HELD_S)
        self._timers.arm((instance.id, event.task), now, ttl_s)

    def _release(self, instance: Instance, task: str, now: float) -> bool:
        """Release a task. Returns False if it was not held."""
        if task not in instance.held_tasks:
            return False
        instance.held_tasks.remove(task)
        self._timers.disarm((instance.id, task))
        self._leases.call_ended(instance.id, now)
        if not instance.is_busy:
            instance.idle_since = now
            self._recheck_draining(instance, now)
        return True

    # --- the broker ------------------------------------------------------------------------------------

    def set_subscriptions(self, wanted: SetTaskSubscriptions) -> None:
        """Agents subscribe to the progress of these tasks of an instance."""
        instance = self._instances.get(wanted.instance)
        if instance is not None and _talks(instance):
            self._emit(WriteTaskSubscriptions(instance.id, tuple(wanted.tasks)))

    def cancel_task(self, command: CancelTask, now: float) -> None:
        """No agent can poll the task any more. A task whose end was told needs no cancel."""
        instance = self._instances.get(command.instance)
        if instance is not None:
            self._cancel(instance, command.task, now)

    def _cancel(self, instance: Instance, task: str, now: float) -> None:
        if task in instance.held_tasks and _talks(instance):
            self._emit(WriteTaskCancel(instance.id, task))
        self._release(instance, task, now)

    def abandon_all(self, now: float) -> None:
        """Cancel all tasks: a new broker came, or the same one has forgotten them."""
        for instance in list(self._instances.values()):
            for task in sorted(instance.held_tasks):
                self._cancel(instance, task, now)

    # --- the instance, and time ------------------------------------------------------------------------

    def task_changed(self, instance: Instance, event: TaskChanged, now: float) -> None:
        """The server reported the status of a task, for subscribed agents."""
        self._emit(TaskStatusChanged(instance.id, event.task, event.params))
        if event.over:
            self._release(instance, event.task, now)

    def instance_exited(self, instance: Instance) -> None:
        """The process is gone, and its tasks with it."""
        for task in instance.held_tasks:
            self._timers.disarm((instance.id, task))
        instance.held_tasks.clear()

    def expire(self, tasks: Iterable[tuple[InstanceId, str]], now: float) -> None:
        """Release these tasks: the server may have forgotten them by now."""
        for instance_id, task in tasks:
            self._release(self._instances[instance_id], task, now)

    def check(self) -> None:
        """Assert every invariant."""
        held = {(each.id, task) for each in self._instances.values() for task in each.held_tasks}
        assert len(held) == len(self._timers), "a task is held for ever, or for nobody"
        assert all(each in self._timers for each in held)


def _talks(instance: Instance) -> bool:
    return instance.state in (InstanceState.SERVING, InstanceState.DRAINING)
