"""The list throttle: delays the reading of an instance's lists after frequent changes or a lost list request.

Owns the pause before lists that keep changing are read again: a server that announces a change at each
reading would otherwise keep both sides busy for ever. A few changes are followed at once
(`era/list_reader.py`). Owns also the longest time for the answer to a list request, and the pauses after an
unreadable or missing answer, which grow for `MAX_LOST` times in a row. While an instance greets, its start
limit covers `tools/list`; it serves without any other list that takes longer than `GREETING_ANSWER_S`.

Invariant: each instance with a timer here is alive. Knows nothing of: the content of lists, which list has
changed.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from carpool_protocol.ids import InstanceId
from carpool_supervisor.core.model.effects import AnyEffect, GiveUpListRequest, RereadLists
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.pool import Instance
from carpool_supervisor.core.model.timer_kinds import SupervisorTimers

TOOLS_LIST: Final = "tools/list"
PAUSE_S: Final = 1.0
CALM_S: Final = 60.0
"""After so long without a reading that a timer began, a few changes are followed at once again."""
MAX_LOST: Final = 5
"""After this many losses in a row lists are read again only when the server announces a change, or a session
asks for them.
"""
ANSWER_S: Final = 60.0
"""The longest time for the answer to a list request, or `timeout_s` if that is longer."""

GREETING_ANSWER_S: Final = 3.0
"""The longest time for the answer to a list request while the server greets, except `tools/list`. Agents wait
meanwhile for its tools (`list_wait_s`).
"""


class ListThrottle:
    """The pauses and open list requests of all instances of one supervisor."""

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
        """Instances with an open list request whose answer is waited for so long and no longer."""

    def list_requested(self, instance: Instance, method: str, now: float) -> None:
        """This list request was sent; empty: none is open."""
        instance.list_request, instance.list_requested_at = method, now
        if method and (limit_s := _answer_s(instance)) is not None:
            self._answers.arm(instance.id, now, limit_s)
        else:
            self._answers.disarm(instance.id)

    def list_answer_lost(self, instance: Instance, times: int, now: float) -> None:
        """An answer was unreadable or missing, this many times in a row."""
        if times <= MAX_LOST:
            self._rereads.arm(instance.id, now, PAUSE_S * 2**times)

    def lists_changed(self, instance: Instance, now: float) -> None:
        """Its lists have changed, and were read so often that they are not read at once."""
        if instance.id not in self._rereads:
            self._rereads.arm(instance.id, now, PAUSE_S)

    def instance_exited(self, instance: Instance) -> None:
        """Disarm the timers of an instance that is gone."""
        self._rereads.disarm(instance.id)
        self._answers.disarm(instance.id)

    def answers_overdue(self, instances: Iterable[InstanceId], now: float) -> None:
        """Give up the list requests of these instances; keep waiting for those that are not read."""
        for instance_id in instances:
            instance = self._instances[instance_id]
            limit_s = _answer_s(instance)
            if limit_s is None:
                continue
            if instance.unread_since is None:
                self._emit(GiveUpListRequest(instance_id, limit_s))
            else:  # the answer may lie unread in the pipe
                self._answers.arm(instance_id, now, limit_s)

    def reread(self, instances: Iterable[InstanceId], now: float) -> None:
        """Read the lists of these instances again."""
        for instance_id in instances:
            instance = self._instances[instance_id]
            if instance.state in (InstanceState.SERVING, InstanceState.DRAINING):
                is_calm = now - instance.lists_reread_at >= CALM_S
                instance.lists_reread_at = now
                self._emit(RereadLists(instance_id, is_calm))

    def check(self) -> None:
        """Assert every invariant."""
        for waits in (self._rereads, self._answers):
            waiting = sum(each in waits for each in self._instances)
            assert waiting == len(waits), "an instance that is gone waits"


def _answer_s(instance: Instance) -> float | None:
    """The longest time for the answer to the open list request; None: another limit ends the instance."""
    match instance.state:
        case InstanceState.SERVING | InstanceState.DRAINING:
            return max(ANSWER_S, instance.pool.policy.timeout_s)
        case InstanceState.GREETING if instance.list_request != TOOLS_LIST:
            return GREETING_ANSWER_S
        case _:
            return None
