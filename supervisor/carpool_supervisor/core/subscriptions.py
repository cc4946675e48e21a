"""Log levels and resource subscriptions of a pool's instances, and the routing of their log messages.

Owns the log level and subscribed resources of each pool as its instances know them. An instance that greets
gets all of it. After a restart every subscribed resource counts as changed, because changes meanwhile are
unknown. A log message names no call, so it reaches an agent only if everything in flight on the instance that
can have logged is that agent's (rule 5); otherwise it is for operators. An instance that does not read its
stdin is told later, only the level and the difference that are left by then.

An agent that subscribes and unsubscribes in a loop costs a server little. A new subscription and a more
verbose level are told at once, before any call that comes after them. The end of a subscription and a less
verbose level are told once in `PAUSE_S`, as far as they still hold: what comes meanwhile reaches no agent,
because the broker looks at what each session wants. An instance is told of `LINES_S` changes in a second at
most, beside some that it has saved up. A subscription that is told late counts as changed then.

Invariant (`check`): an instance that serves and reads has a timer while it has not been told of something.
Knows nothing of: levels and subscriptions of single sessions (the broker has them), JSON.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from itertools import islice
from typing import Final

import msgspec

from carpool_protocol.ids import CallId, InstanceId, RawJson
from carpool_protocol.link.messages import (
    Call,
    ChangeResourceSubscriptions,
    LogForSession,
    ResourceChanged,
    SetLevel,
    SetResourceSubscriptions,
)
from carpool_protocol.machine.allowance import Allowance
from carpool_protocol.wire.log_levels import LEVELS, rank
from carpool_protocol.wire.uri_normalization import MAX_CHARS
from carpool_supervisor.core.model.effects import AnyEffect, KeepServerLog, WriteLevel, WriteSubscriptions
from carpool_supervisor.core.model.events import MAX_NOTICE_BYTES, ResourceUpdated, ServerLogged
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.pool import Instance, Pool
from carpool_supervisor.core.model.timer_kinds import SupervisorTimers

Emit = Callable[[AnyEffect], None]
PAUSE_S: Final = 1.0
"""After the end of a subscription, or a less verbose level, the next ones wait until this time is over."""
MAX_LATE: Final = 1024
"""While an instance has not been told of the end of more subscriptions, these go first."""
LINES_S: Final = 1000
"""The most subscriptions, and ends of them, that an instance is told of in a second, in the long run."""
BURST_LINES: Final = 1000
"""The most of them at once."""
REFILL_S: Final = 0.1
"""The time after which an instance is told of more."""
URIS_OF_LINE: Final = 8
"""Stateless era: a listen names all subscribed resources, and so many of them count as one change."""


class InstanceSubscriptions:
    """What the instances of one supervisor are told of levels and subscriptions, and when."""

    def __init__(
        self,
        instances: Mapping[InstanceId, Instance],
        timers: SupervisorTimers,
        out: Callable[[AnyEffect], None],
    ) -> None:
        self._instances = instances
        self._emit = out
        self._pauses = timers.of("subscription_pause")
        self._allowances: dict[InstanceId, Allowance] = defaultdict(lambda: Allowance(LINES_S, BURST_LINES))
        """The lines that each instance may be told, once it has been told any."""

    def set_level(self, pool: Pool, wanted: SetLevel, now: float) -> None:
        """Set another level. Without any level, instances keep the last one: the handshake era cannot say
        "none".
        """
        pool.level, pool.is_level_stale = wanted.level, False
        if (wanted.level or pool.era == "stateless") and _serves(pool, "logging"):
            for instance in pool.serving:
                is_less = _rank(wanted.level) > _rank(instance.told_level)
                if instance.blocked or (is_less and instance.id in self._pauses):
                    instance.is_level_late = True
                else:
                    self._tell_level(instance, now)

    def set_resources(self, pool: Pool, wanted: SetResourceSubscriptions, now: float) -> None:
        """Set other subscribed resources."""
        before, pool.uris = pool.uris, set(wanted.uris)
        if pool.are_uris_stale:  # changes without a broker were reported to no session
            pool.are_uris_stale = False
            self._report_changed(pool, sorted(before & pool.uris))
        self._tell_pool(pool, pool.uris - before, before - pool.uris, now)

    def change_resources(self, pool: Pool, change: ChangeResourceSubscriptions, now: float) -> None:
        """Subscribe to some resources, and end subscriptions to others."""
        add, drop = set(change.add) - pool.uris, pool.uris.intersection(change.drop)
        pool.uris |= add
        pool.uris -= drop
        self._tell_pool(pool, add, drop, now)

    def _tell_pool(self, pool: Pool, add: Set[str], drop: Set[str], now: float) -> None:
        if (add or drop) and _serves(pool, "resources.subscribe"):
            added, dropped = sorted(add), sorted(drop)
            for instance in pool.serving:
                _move(added, instance.late_drop, instance.late_add)
                _move(dropped, instance.late_add, instance.late_drop)
                self._tell(instance, now, new=add)

    def _tell(self, instance: Instance, now: float, new: Set[str] = frozenset()) -> None:
        """Tell it as much as it may be told now of what it has not been told of. `new`: the subscriptions
        that are told in time; the others count as changed.
        """
        if instance.blocked:
            return
        allowance = self._allowances[instance.id]
        lines = allowance.refill(now)
        adds, drops = instance.late_add, instance.late_drop
        most = len(adds) + len(drops) if instance.era == "stateless" else int(lines)
        dropped: list[str] = []
        if lines >= 1 and len(drops) > MAX_LATE:
            dropped = _take(drops, most)
        added = _take(adds, most - len(dropped)) if lines >= 1 else []
        if lines >= 1 and instance.id not in self._pauses:
            dropped += _take(drops, most - len(added) - len(dropped))
        if added or dropped:
            self._emit(WriteSubscriptions(instance.id, tuple(added), tuple(dropped)))
            is_listen = instance.era == "stateless"
            cost = 1 + len(instance.pool.uris) // URIS_OF_LINE if is_listen else len(added) + len(dropped)
            allowance.left -= cost
            self._report_changed(instance.pool, [uri for uri in added if uri not in new])
        if adds:
            self._pauses.arm(instance.id, now, REFILL_S)
        elif dropped or (drops and instance.id not in self._pauses):
            self._pauses.arm(instance.id, now, PAUSE_S)

    def _tell_level(self, instance: Instance, now: float) -> None:
        level, told = instance.pool.level, instance.told_level
        instance.is_level_late = False
        if level != told and (level or instance.era == "stateless"):
            instance.told_level = level
            self._emit(WriteLevel(instance.id, level))
            if _rank(level) > _rank(told):
                self._pauses.arm(instance.id, now, PAUSE_S)

    def pauses_over(self, instances: Iterable[InstanceId], now: float) -> None:
        """Tell these instances what they have not been told of meanwhile, unless they do not read it."""
        for instance_id in instances:
            instance = self._instances[instance_id]
            if instance.state is InstanceState.SERVING and not instance.blocked:
                self.stdin_read(instance, now)

    def stdin_read(self, instance: Instance, now: float) -> None:
        """The instance reads its stdin again: tell it what has changed meanwhile."""
        if instance.is_level_late:
            self._tell_level(instance, now)
        self._tell(instance, now)

    def drop_stale(self, pools: Iterable[Pool], now: float) -> None:
        """The new broker has sent everything that it wants: drop what only the one before it wanted."""
        for pool in pools:
            if pool.is_level_stale and pool.level:
                self.set_level(pool, SetLevel(pool.key, ""), now)
            if pool.are_uris_stale and pool.uris:
                self.set_resources(pool, SetResourceSubscriptions(pool.key, []), now)
            pool.is_level_stale = pool.are_uris_stale = False

    def instance_greeted(self, instance: Instance, now: float) -> None:
        """An instance became fit: tell it the level and the subscribed resources."""
        pool = instance.pool
        if pool.level and _serves(pool, "logging"):
            self._tell_level(instance, now)
        if pool.uris and _serves(pool, "resources.subscribe"):
            instance.late_add = dict.fromkeys(sorted(pool.uris))
            self._tell(instance, now, new=pool.uris)
            if instance.generation > 1 and (pool.keeps_state or len(pool.serving) == 1):
                self._report_changed(pool, sorted(pool.uris))

    def instance_exited(self, instance: Instance) -> None:
        """Forget an instance that is gone."""
        self._pauses.disarm(instance.id)
        self._allowances.pop(instance.id, None)

    def _report_changed(self, pool: Pool, uris: Iterable[str]) -> None:
        for uri in uris:
            self._emit(_changed(pool, uri))

    def check(self) -> None:
        """Assert every invariant."""
        waiting = sum(each in self._pauses for each in self._instances)
        assert waiting == len(self._pauses), "an instance that is gone waits"
        assert self._allowances.keys() <= self._instances.keys(), "an instance that is gone has an allowance"
        for instance in self._instances.values():
            if instance.state is InstanceState.SERVING:
                assert instance.late_add.keys() <= instance.pool.uris, "nobody wants it"
                assert instance.late_drop.keys().isdisjoint(instance.pool.uris), "it is wanted again"
                is_late = instance.late_add or instance.late_drop or instance.is_level_late
                assert not is_late or instance.blocked or instance.id in self._pauses, "it is never told"


def _move(uris: Iterable[str], source: dict[str, None], target: dict[str, None]) -> None:
    """Those that wait in the source leave it, because the change is undone; the rest wait in the target."""
    for uri in uris:
        if uri in source:
            del source[uri]
        else:
            target[uri] = None


def _take(waiting: dict[str, None], most: int) -> list[str]:
    """Remove and return the first ones, at most so many."""
    taken = list(islice(waiting, max(most, 0)))
    if len(taken) == len(waiting):
        waiting.clear()
    for uri in taken:
        waiting.pop(uri, None)
    return taken


def _rank(level: str) -> int:
    """The rank of a level; no level ranks highest, because it brings the fewest log messages."""
    return rank(level) if level else len(LEVELS)


def _changed(pool: Pool, uri: str) -> ResourceChanged:
    return ResourceChanged(pool.key, uri, RawJson(msgspec.json.encode({"uri": uri})))


def log_received(instance: Instance, event: ServerLogged, out: Emit) -> None:
    """Find the session of a log message: the one session with calls in flight, if no call of another may
    still run and at least one of its calls is live. An agent that says with each request if it wants logs
    gets only those of that very call.
    """
    whose: Call | None = None
    several = bool(instance.abandoned)
    for opened in instance.in_flight.values():
        call = opened.call
        silent = call.can is not None and not call.log_level
        if opened.awaits_retry or (silent and instance.era == "stateless"):
            continue  # the server does not run it, or must not log for it (server/utilities/logging)
        if silent or (whose is not None and call.session != whose.session):
            whose = None
            break
        several = several or whose is not None
        whose = call
    if whose is None or any(each.session != whose.session for each in instance.abandoned.values()):
        out(KeepServerLog(instance.id, event.level, event.params))
    else:
        one = CallId(0) if several else whose.call
        out(LogForSession(whose.session, event.level, event.params, one))


def resource_updated(instance: Instance, event: ResourceUpdated, out: Emit) -> None:
    """Report the change to the broker, which knows the subscribed sessions. Nobody can subscribe to an
    overlong URI.
    """
    pool = instance.pool
    if len(event.uri) > MAX_CHARS:
        return
    if not pool.keeps_state and any(other.id < instance.id for other in pool.serving):
        return  # a server of another node that agents share there: each session hears of one change
    if len(event.params) > MAX_NOTICE_BYTES:  # each subscribed agent gets them, and the URI says it all
        out(_changed(pool, event.uri))
    else:
        out(ResourceChanged(pool.key, event.uri, event.params))


def _serves(pool: Pool, feature: str) -> bool:
    return pool.catalog is not None and feature in pool.catalog.features
