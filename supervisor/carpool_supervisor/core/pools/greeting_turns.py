"""The greeting turns: how many processes start at once, and whom a process that does not greet holds up.

A process that starts uses a turn. For `SHORT_TURN_S` it holds up the next start of any server, after that
only those of its own layer (one configuration file with all that it includes), after `GREETING_TURN_S` none.
So a layer has `max_greeting` greetings within their turn at most, and however many of its servers do not
greet, a server of another layer waits for one short turn (docs/decisions/0004).

Knows nothing of: which pool starts next, the process cap.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from carpool_protocol.ids import InstanceId, PoolKey
from carpool_supervisor.core.model.pool import Instance
from carpool_supervisor.core.model.timer_kinds import SupervisorTimers

SHORT_TURN_S: Final = 1.0
"""After this long a greeting holds up no server of another layer."""
GREETING_TURN_S: Final = 5.0
"""After this long a greeting holds up no other start."""


class GreetingTurns:
    """The greetings that still use a turn."""

    def __init__(self, instances: Mapping[InstanceId, Instance], timers: SupervisorTimers) -> None:
        self._instances = instances
        self.max_greeting = 3
        """The most turns in use, as each layer sees them (rule 2)."""
        self._ends = timers.of("greeting_turn")
        """The end of the short turn, then that of the whole one."""
        self._late: dict[InstanceId, str] = {}
        """Those whose short turn is over, and the layer that they hold up."""
        self._late_of: Counter[str] = Counter()
        """The number of these, by layer."""

    def begin(self, instance: Instance, now: float) -> None:
        """The process of this instance starts."""
        self._ends.arm(instance.id, now, SHORT_TURN_S)

    def end(self, instance: InstanceId) -> bool:
        """It has greeted, or will not any more. Returns True if it had its turn still."""
        self._forget_late(instance)
        return self._ends.disarm(instance)

    def times_over(self, instances: Iterable[InstanceId], now: float) -> list[Instance]:
        """The short or the whole turn of these is over. Returns those that have used up the whole one."""
        used_up: list[Instance] = []
        for each in instances:
            instance = self._instances[each]
            if self._forget_late(each):
                used_up.append(instance)
            else:
                layer = self._late[each] = instance.pool.layer
                self._late_of[layer] += 1
                self._ends.arm(each, now, GREETING_TURN_S - SHORT_TURN_S)
        return used_up

    def _forget_late(self, instance: InstanceId) -> bool:
        layer = self._late.pop(instance, None)
        if layer is None:
            return False
        self._late_of[layer] -= 1
        if not self._late_of[layer]:
            del self._late_of[layer]
        return True

    @property
    def is_any_free(self) -> bool:
        """True if a process may start of a layer that does not hold up itself."""
        return len(self._ends) - len(self._late) < self.max_greeting

    def free(self, layer: str) -> int:
        """The number of turns that are free for servers of this layer."""
        return self.max_greeting - len(self._ends) + len(self._late) - self._late_of[layer]

    @property
    def most(self) -> int:
        """The most turns of one pool while others wait, and of all pools together that are slow to greet."""
        return max(self.max_greeting - 1, 1)

    def may_start(self, layer: str, is_slow: bool) -> bool:
        """True if a pool of this layer may take a turn now; `is_slow`: it is slow to greet."""
        return self.free(layer) > 0 and (not is_slow or self._slow_turns(layer) < self.most)

    def _slow_turns(self, layer: str) -> int:
        """The number of turns of slow pools, as servers of this layer see them."""
        return sum(
            self._instances[each].pool.is_slow_to_greet and self._late.get(each, layer) == layer
            for each in self._ends.armed
        )

    def counts(self) -> Counter[PoolKey]:
        """The number of turns that each pool has."""
        return Counter(self._instances[each].pool.key for each in self._ends.armed)

    def check(self) -> None:
        """Assert every invariant."""
        assert self._late.keys() <= self._ends.armed.keys() <= self._instances.keys()
        assert self._late_of == Counter(self._late.values())
