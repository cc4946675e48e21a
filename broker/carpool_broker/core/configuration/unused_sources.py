"""Sources without a session: how long each is remembered with its servers, and which go first.

Owns the time at which a source's last agent left it. A source whose servers all rest is forgotten as soon as
no session uses it. Any other one stays for the longest `pool.idle_s` of its servers after its last agent has
left, so that their processes and failures are still there for the next agent. A session of an operator holds
a source, and prolongs nothing. At most `MAX_UNUSED` sources stay without a session; those that were left
first go first.

Invariant (`check`): each source that waits here is known and has no agent.
Knows nothing of: sessions, what a source is made from (the shell forgets it on `ForgetSource`).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from carpool_broker.core.configuration.effective_sources import EffectiveSources
from carpool_broker.core.model.effects import AnyEffect, ForgetSource
from carpool_broker.core.model.events import SourceId
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_protocol.ids import PoolKey
from carpool_protocol.link.messages import PoolChanged

MAX_UNUSED: Final = 64
"""The most sources that stay without a session. A user has few projects in use at a time; agents with
variables of their own may be thousands.
"""
LEFT_LONG_AGO: Final = "no agent has used it for a while (pool.idle_s)"
TOO_MANY_LEFT: Final = "agents with many other configurations have left since its last agent did"


class UnusedSources:
    """All sources without a session."""

    def __init__(
        self,
        sources: EffectiveSources,
        states: Mapping[PoolKey, PoolChanged],
        timers: BrokerTimers,
        out: Callable[[AnyEffect], None],
    ) -> None:
        self._sources = sources
        self._states = states
        self._timers = timers
        self._emit = out
        self._left_at: dict[SourceId, float] = {}
        """When the last agent left each source that has none; for one that never had an agent, when its first
        session left it with servers at work. The earliest is first.
        """

    def agent_came(self, source: SourceId) -> None:
        """An agent uses the source."""
        self._left_at.pop(source, None)
        self._timers.disarm("unused_source", source)

    def last_agent_left(self, source: SourceId, now: float) -> None:
        """No agent uses the source any more."""
        if self._sources.sources[source].goal.of_sessions:
            self._left_at[source] = now

    def source_unused(self, source: SourceId, now: float) -> None:
        """No session uses the source any more."""
        left_at = self._left_at.get(source, now)
        left_s = left_at + self._keep_s(source) - now
        if left_s <= 0:
            self._forget(source, LEFT_LONG_AGO)
            return
        self._left_at.setdefault(source, left_at)
        self._timers.arm("unused_source", source, now, left_s)
        waiting = self._timers.keys("unused_source")
        if len(waiting) > MAX_UNUSED:
            self._forget(next(each for each in self._left_at if each in waiting), TOO_MANY_LEFT)

    def source_dropped(self, source: SourceId) -> None:
        """The source is forgotten."""
        self._left_at.pop(source, None)
        self._timers.disarm("unused_source", source)

    def forget(self, sources: Iterable[SourceId]) -> None:
        """These have stayed for long enough."""
        for source in sources:
            self._forget(source, LEFT_LONG_AGO)

    def _forget(self, source: SourceId, why: str) -> None:
        self._timers.disarm("unused_source", source)
        self._emit(ForgetSource(source, why))

    def _keep_s(self, source: SourceId) -> float:
        """The longest `pool.idle_s` of its servers at work: those that run, start or have failed."""
        specs = self._sources.sources[source].specs.values()
        at_work = (spec for spec in specs if self._is_at_work(spec.key))
        return max((spec.policy.idle_s for spec in at_work), default=0.0)

    def _is_at_work(self, key: PoolKey) -> bool:
        return key in self._states and self._states[key].state not in ("cold", "offline")

    def check(self) -> None:
        """Assert every invariant."""
        for source in self._left_at:
            assert not self._sources.sources[source].agents, f"{source} has an agent"
        assert self._timers.keys("unused_source") <= self._left_at.keys()
        assert len(self._timers.keys("unused_source")) <= MAX_UNUSED
