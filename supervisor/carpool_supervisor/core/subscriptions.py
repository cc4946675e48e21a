"""Log levels and resource subscriptions of a pool's instances, and the routing of their log messages.

Owns the log level and subscribed resources of each pool as its instances know them. An instance that greets
gets all of it. After a restart every subscribed resource counts as changed, because changes meanwhile are
unknown. A log message names no call, so it reaches an agent only if everything in flight on the instance that
can have logged is that agent's (rule 5); otherwise it is for operators.

Knows nothing of: levels and subscriptions of single sessions (the broker has them), JSON.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from carpool_protocol.ids import CallId, RawJson
from carpool_protocol.link.messages import (
    Call,
    LogForSession,
    ResourceChanged,
    SetLevel,
    SetResourceSubscriptions,
)
from carpool_supervisor.core.model.effects import AnyEffect, KeepServerLog, WriteLevel, WriteSubscriptions
from carpool_supervisor.core.model.events import ResourceUpdated, ServerLogged
from carpool_supervisor.core.model.pool import Instance, Pool

Emit = Callable[[AnyEffect], None]


def set_level(pool: Pool, wanted: SetLevel, out: Emit) -> None:
    """Set another level. Without any level, instances keep the last one: the handshake era cannot say
    "none".
    """
    pool.level, pool.is_level_stale = wanted.level, False
    if (wanted.level or pool.era == "stateless") and _serves(pool, "logging"):
        for instance in pool.serving:
            out(WriteLevel(instance.id, wanted.level))


def set_resources(pool: Pool, wanted: SetResourceSubscriptions, out: Emit) -> None:
    """Set other subscribed resources."""
    before, pool.uris = pool.uris, tuple(wanted.uris)
    if pool.are_uris_stale:
        pool.are_uris_stale = False
        _restore(pool, before, out)
    if _serves(pool, "resources.subscribe"):
        add = tuple(uri for uri in pool.uris if uri not in before)
        drop = tuple(uri for uri in before if uri not in pool.uris)
        for instance in pool.serving:
            out(WriteSubscriptions(instance.id, add, drop))


def _restore(pool: Pool, before: Sequence[str], out: Emit) -> None:
    """Report all subscribed resources as changed: changes without a broker were reported to no session."""
    for uri in pool.uris:
        if uri in before:
            out(ResourceChanged(pool.key, uri, RawJson(msgspec.json.encode({"uri": uri}))))


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
        out(WriteSubscriptions(instance.id, pool.uris, ()))
        if instance.generation > 1 and (pool.keeps_state or len(pool.serving) == 1):
            for uri in pool.uris:
                out(ResourceChanged(pool.key, uri, RawJson(msgspec.json.encode({"uri": uri}))))


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
    """Report the change to the broker, which knows the subscribed sessions."""
    pool = instance.pool
    if not pool.keeps_state and any(other.id < instance.id for other in pool.serving):
        return  # a server of another node that agents share there: each session hears of one change
    out(ResourceChanged(pool.key, event.uri, event.params))


def _serves(pool: Pool, feature: str) -> bool:
    return pool.catalog is not None and feature in pool.catalog.features
