"""Which era each instance is spoken to in, where that is not configured.

Owns which greeting a process gets first, how long a silent one is waited for before it gets the other, and
what its end means: some servers end of `server/discover` before they were initialized, and that is no failure
of theirs. Such a server is started once more and asked for a handshake. What was found out is told
(`RecordEra`), so that it is remembered.

Invariants: an instance is waited for only while it greets; a pool forgives one end until it has been fit.
Knows nothing of: how an era is worded, files, dates.
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
"""A server that has not answered `server/discover` by then is sent `initialize` too. To be wrong costs
little: one that was only slow (npx installs) reads both, and answers in its own order.
"""


def first_greeting(pool: Pool) -> Era:
    """The greeting that its next process gets first."""
    match pool.era_wish:
        case "handshake" | "stateless" as fixed:
            return fixed
        case "auto" | "newest" as wish:
            if pool.died_on_discover:
                return "handshake"
            return pool.known_era or ("handshake" if wish == "auto" else "stateless")


class EraGreetings:
    """All greetings whose era is not certain."""

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
        """Its greeting is written."""
        if instance.pool.era_wish in ("auto", "newest") and instance.era == "stateless":
            instance.probed_era = True
            self._silence.arm(instance.id, now, SILENCE_S)

    def era_refused(self, instance: Instance, event: EraRefused) -> None:
        """It lives, and was greeted in the other era."""
        self._silence.disarm(instance.id)
        instance.probed_era = False
        instance.refusals[event.era] = event.text

    def instance_greeted(self, instance: Instance, catalog: Catalog) -> None:
        """It is fit: it speaks this."""
        self._silence.disarm(instance.id)
        pool = instance.pool
        if pool.era_wish in ("auto", "newest"):
            # A refusal of `initialize` after our own `server/discover` is no sign: that may have decided it.
            first = "stateless" if catalog.era == "handshake" else "handshake"
            why = instance.refusals.get(first, "") if instance.era == first else ""
            if pool.died_on_discover and catalog.era == "handshake":
                why = why or "ended when it was asked server/discover"
            pool.died_on_discover = False
            instance.era = pool.era = catalog.era
            self._emit(RecordEra(pool.key, catalog.era, why, catalog.server_info))
        instance.probed_era = False

    def instance_ended(self, instance: Instance, *, by_itself: bool) -> bool:
        """It is gone. Whether that is forgiven: it ended of a question that it did not know, and the next one
        gets another. `by_itself`: nobody ended it.
        """
        self._silence.disarm(instance.id)
        pool = instance.pool
        if not instance.probed_era or instance.fit_at is not None or pool.died_on_discover:
            return False
        if not by_itself and instance.failure is None:
            return False  # we ended it: nobody knows what it would have done
        pool.died_on_discover = True
        if by_itself:
            text = f"{pool.server} #{instance.id} ended when it was asked server/discover; initialize is next"
            self._emit(WriteLogLine("info", text))
        return by_itself

    def end_silence(self, instances: Iterable[InstanceId]) -> None:
        """Greet these instances in the other era: they have been silent for long enough."""
        for instance_id in instances:
            instance = self._instances[instance_id]
            if instance.state is InstanceState.GREETING:
                instance.refusals["stateless"] = f"said nothing to server/discover for {SILENCE_S:g} s"
                self._emit(GreetInOtherEra(instance_id))

    def check(self) -> None:
        """Assert every invariant."""
        for instance in self._instances.values():
            assert instance.id not in self._silence or instance.fit_at is None, "fit, and still waited for"
