"""Log levels and resource subscriptions of a pool's instances, and the routing of their log messages.

Owns the log level and subscribed resources of each pool as its instances know them. An instance that greets
gets all of it. After a restart every subscribed resource counts as changed, because changes meanwhile are
unknown. A log message names no call, so it reaches an agent only if everything in flight on the instance that
can have logged is that agent's (rule 5); otherwise it is for operators. An instance that does not read its
stdin is told later, only the level and the difference that are left by then.

Knows nothing of: levels and subscriptions of single sessions (the broker has them), JSON.
"""

from collections.abc import Callable, Iterable, Set
from typing import Final

import msgspec

from carpool_protocol.ids import CallId, RawJson
from carpool_protocol.link.messages import (
    Call,
    ChangeResourceSubscriptions,
    LogForSession,
    ResourceChanged,
    SetLevel,
    SetResourceSubscriptions,
)
from carpool_protocol.wire.uri_normalization import MAX_CHARS
from carpool_supervisor.core.model.effects import AnyEffect, KeepServerLog, WriteLevel, WriteSubscriptions
from carpool_supervisor.core.model.events import ResourceUpdated, ServerLogged
from carpool_supervisor.core.model.pool import Instance, Pool

Emit = Callable[[AnyEffect], None]
MAX_UPDATE_BYTES: Final = 1 << 14
"""The params of a longer notification of a changed resource are not passed on, but its URI."""


def set_level(pool: Pool, wanted: SetLevel, out: Emit) -> None:
    """Set another level. Without any level, instances keep the last one: the handshake era cannot say
    "none".
    """
    pool.level, pool.is_level_stale = wanted.level, False
    if (wanted.level or pool.era == "stateless") and _serves(pool, "logging"):
        for instance in pool.serving:
            if instance.blocked:
                instance.is_level_late = True
            else:
                out(WriteLevel(instance.id, wanted.level))


def set_resources(pool: Pool, wanted: SetResourceSubscriptions, out: Emit) -> None:
    """Set other subscribed resources."""
    before, pool.uris = pool.uris, set(wanted.uris)
    if pool.are_uris_stale:  # changes without a broker were reported to no session
        pool.are_uris_stale = False
        _report_changed(pool, before & pool.uris, out)
    _write(pool, pool.uris - before, before - pool.uris, out)


def change_resources(pool: Pool, change: ChangeResourceSubscriptions, out: Emit) -> None:
    """Subscribe to some resources, and end subscriptions to others."""
    add, drop = set(change.add) - pool.uris, pool.uris.intersection(change.drop)
    pool.uris |= add
    pool.uris -= drop
    _write(pool, add, drop, out)


def _write(pool: Pool, add: Set[str], drop: Set[str], out: Emit) -> None:
    if (add or drop) and _serves(pool, "resources.subscribe"):
        for instance in pool.serving:
            if instance.blocked:
                late_add, late_drop = instance.late_add, instance.late_drop
                instance.late_add = (late_add - drop) | (add - late_drop)
                instance.late_drop = (late_drop - add) | (drop - late_add)
            else:
                out(WriteSubscriptions(instance.id, tuple(sorted(add)), tuple(sorted(drop))))


def stdin_read(instance: Instance, out: Emit) -> None:
    """The instance reads its stdin again: tell it what has changed meanwhile."""
    if instance.is_level_late:
        instance.is_level_late = False
        if instance.pool.level or instance.era == "stateless":
            out(WriteLevel(instance.id, instance.pool.level))
    if instance.late_add or instance.late_drop:
        add, drop = tuple(sorted(instance.late_add)), tuple(sorted(instance.late_drop))
        instance.late_add, instance.late_drop = set(), set()
        out(WriteSubscriptions(instance.id, add, drop))


def _report_changed(pool: Pool, uris: Set[str], out: Emit) -> None:
    for uri in sorted(uris):
        out(_changed(pool, uri))


def _changed(pool: Pool, uri: str) -> ResourceChanged:
    return ResourceChanged(pool.key, uri, RawJson(msgspec.json.encode({"uri": uri})))


def drop_stale(pools: Iterable[Pool], out: Emit) -> None:
    """The new broker has sent everything that it wants: drop what only the one before it wanted."""
    for pool in pools:
        if pool.is_level_stale and pool.level:
            set_level(pool, SetLevel(pool.key, ""), out)
        if pool.are_uris_stale and pool.uris:
            set_resources(pool, SetResourceSubscriptions(pool.key, []), out)
        pool.is_level_stale = pool.are_uris_stale = False


def instance_greeted(instance: Instance, out: Emit) -> None:
    """An instance became fit: tell it the level and the subscribed resources."""
    pool = instance.pool
    if pool.level and _serves(pool, "logging"):
        out(WriteLevel(instance.id, pool.level))
    if pool.uris and _serves(pool, "resources.subscribe"):
        out(WriteSubscriptions(instance.id, tuple(sorted(pool.uris)), ()))
        if instance.generation > 1 and (pool.keeps_state or len(pool.serving) == 1):
            _report_changed(pool, pool.uris, out)


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
    if len(event.params) > MAX_UPDATE_BYTES:  # each subscribed agent gets them, and the URI says it all
        out(_changed(pool, event.uri))
    else:
        out(ResourceChanged(pool.key, event.uri, event.params))


def _serves(pool: Pool, feature: str) -> bool:
    return pool.catalog is not None and feature in pool.catalog.features
