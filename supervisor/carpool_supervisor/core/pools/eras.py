"""The era of each instance whose server's era is not configured, and the version that each one is offered.

Owns the era of the first greeting, the wait before a silent server is greeted in the other era, and the
meaning of an end. Some servers die of `server/discover` before they are initialized; that is no failure. Such
a server is started once more and greeted with `initialize`. The result is reported (`RecordEra`) to be
remembered. Others end in place of an answer to `initialize`: the next process is offered another version
(`version_offers`).

Invariants: an instance has a silence timer only while it greets; a pool forgives one end for each era and
version until it has been fit. Knows nothing of: the messages of an era, files, dates.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from carpool_protocol.ids import InstanceId
from carpool_protocol.link.messages import Catalog, Era
from carpool_supervisor.core.model.effects import AnyEffect, GreetInOtherEra, RecordEra, WriteLogLine
from carpool_supervisor.core.model.events import EraRefused, VersionRefused
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

    def version_refused(self, instance: Instance, event: VersionRefused) -> None:
        """The instance refused one version, and was offered the next one if there is one."""
        instance.tried_versions.append(event.version)
        instance.offered_version = event.offered or event.version

    def instance_greeted(self, instance: Instance, catalog: Catalog) -> None:
        """The instance is fit, so it speaks this era."""
        self._silence.disarm(instance.id)
        pool = instance.pool
        if catalog.era == "handshake":
            pool.version_offers.accepted(instance.tried_versions[0])
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

    def offers_other_version(self, instance: Instance, failure: str, *, ended_greeting: bool) -> bool:
        """The instance is gone, which is a failure. Returns True if that is forgiven: it may have ended
        because of the version that it was offered, and the next one is offered another. `ended_greeting`: it
        ended by itself after it had read its greeting.
        """
        pool, tried = instance.pool, instance.tried_versions
        has_refused = len(tried) > 1
        if not (ended_greeting or has_refused) or pool.is_remote:  # a node has versions of its own
            return False
        if instance.fit_at is not None or instance.list_request:  # it has accepted a version
            return False
        if instance.probed_era or pool.era_wish == "stateless":  # it was offered none
            return False
        if not pool.version_offers.failed(tried, instance.offered_version):
            return False
        text = f"{failure}, offered MCP {tried[0]}; the next one is offered {pool.version_offers.next}"
        server = pool.server
        self._emit(WriteLogLine("info", f"{server} #{instance.id} {text}", server, instance.id))
        return True

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
