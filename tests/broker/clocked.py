"""A broker core and a clock: what every rig of it does with events and with time."""

from typing import Any

from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model import events as ev


class Clocked:
    """The invariants are checked after every event and every tick."""

    core: BrokerCore
    now: float

    def feed(self, event: ev.AnyEvent) -> list[Any]:
        """One event."""
        effects = self.core.handle(event, self.now)
        self.core.check()
        return effects

    def wait(self, duration_s: float) -> list[Any]:
        """Time passes, to each deadline in turn."""
        effects: list[Any] = []
        until = self.now + duration_s
        while (due := self.core.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            effects += self.core.tick(self.now)
            self.core.check()
        self.now = until
        return effects
