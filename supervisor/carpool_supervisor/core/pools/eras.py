"""The era of each instance whose server's era is not configured.

Owns the era of the first greeting, the wait before a silent server is greeted in the other era, and the
meaning of an end. Some servers die of `server/discover` before they are initialized; that is no failure. Such
a server is started once more and greeted with `initialize`. The result is reported (`RecordEra`) to be
remembered.

Invariants: an instance has a silence timer only while it greets; a pool forgives one end until it has been
fit. Knows nothing of: the messages of an era, files, dates.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from carpool_protocol.ids import InstanceId
from carpool_protocol.link.messages import Catalog, Era
from carpool_supervisor.core.model.effects import AnyEffect, GreetInOtherEra, RecordEra, WriteLogLine
from carpool_supervisor.core.model.events import EraRefused
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.pool import Instance, Pool
from carpool_supervisor.core.model.timer_kinds import SupervisorTimers

SILENCE_S: Final = 10.0
"""After this silence following `server/discover` a server is sent `initialize` too. A wrong guess costs
little: a server that was only slow (npx installs) reads both and answers in its own order.
"""


def first_greeting(pool: Pool) -> Era:
    """The era of the first greeting of the pool's next process."""
    match pool.era_wish:
        case "handshake" | "stateless" as fixed:
            return fixed
        case "auto" | "newest" as wish:
            if pool.died_on_discover:
                return "handshake"
            return pool.known_era or ("handshake" if wish == "auto" else "stateless")


class EraGreetings:
    """All greetings of uncertain era."""

    def __init__(
        self,
        instances: Mapping[InstanceId, Instance],
        timers: SupervisorTimers,
        out: Callable[[AnyEffect], None],
    ) -> None:
        self._instances = instances
        self._emit = out
        self._silence = timers.of("era_silence")

    def instance_spawned(self, instance: Instance, now: float) -> None:
        """The greeting was written."""
        if instance.pool.era_wish in ("auto", "newest") and instance.era == "stateless":
            instance.probed_era = True
            self._silence.arm(instance.id, now, SILENCE_S)

    def era_refused(self, instance: Instance, event: EraRefused) -> None:
        """The instance refused one era, and was greeted in the other."""
        self._silence.disarm(instance.id)
        instance.probed_era = False
        instance.refusals[event.era] = event.text

    def instance_greeted(self, instance: Instance, catalog: Catalog) -> None:
        """The instance is fit, so it speaks this era."""
        self._silence.disarm(instance.id)
        pool = instance.pool
        if pool.era_wish in ("auto", "newest"):
            # A refusal of `initialize` proves nothing after our own `server/discover`, which may have caused
            # it.
            first = "stateless" if catalog.era == "handshake" else "handshake"
            why = instance.refusals.get(first, "") if instance.era == first else ""
            if pool.died_on_discover and catalog.era == "handshake":
                why = why or "ended when it was asked server/discover"
            pool.died_on_discover = False
            instance.era = pool.era = catalog.era
            self._emit(RecordEra(pool.key, catalog.era, why, catalog.server_info))
        instance.probed_era = False

    def instance_ended(self, instance: Instance, *, by_itself: bool) -> bool:
        """The instance is gone. Returns True if that is forgiven: it died of a request that it did not know,
        and the next instance gets the other one. `by_itself`: carpool did not end it.
        """
        self._silence.disarm(instance.id)
        pool = instance.pool
        if not instance.probed_era or instance.fit_at is not None or pool.died_on_discover:
            return False
        if not by_itself and instance.failure is None:
            return False  # carpool ended it, so its own reaction is unknown
        pool.died_on_discover = True
        if by_itself:
            text = f"{pool.server} #{instance.id} ended when it was asked server/discover; initialize is next"
            self._emit(WriteLogLine("info", text, pool.server, instance.id))
        return by_itself

    def end_silence(self, instances: Iterable[InstanceId]) -> None:
        """Greet these instances in the other era, after their silence."""
        for instance_id in instances:
            instance = self._instances[instance_id]
            if instance.state is InstanceState.GREETING:
                instance.refusals["stateless"] = f"did not answer server/discover for {SILENCE_S:g} s"
                self._emit(GreetInOtherEra(instance_id))

    def check(self) -> None:
        """Assert every invariant."""
        for instance in self._instances.values():
            assert instance.id not in self._silence or instance.fit_at is None, "fit, and still waited for"
