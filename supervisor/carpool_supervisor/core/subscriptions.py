"""What a pool's instances are asked to tell unasked, and who is told what they say.

Owns each pool's log level and watched resources as its instances know them: an instance that greets is
told all of it, also after a restart, and then every watched resource counts as changed (nobody knows what
happened meanwhile). A log message names no call, so it reaches an agent only when everything in flight on
the instance that can have logged is that agent's (rule 5); otherwise it is for operators.

Knows nothing of: sessions' levels and subscriptions (the broker has them), JSON.
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


def set_level(pool: Pool, word: SetLevel, out: Emit) -> None:
    """Another level is wanted. Without any, instances keep the last: the handshake era has no way to say
    "none".
    """
    pool.level, pool.is_level_stale = word.level, False
    if (word.level or pool.era == "stateless") and _serves(pool, "logging"):
        for instance in pool.serving:
            out(WriteLevel(instance.id, word.level))


def set_resources(pool: Pool, word: SetResourceSubscriptions, out: Emit) -> None:
    """Other resources are watched."""
    before, pool.uris = pool.uris, tuple(word.uris)
    if pool.are_uris_stale:
        pool.are_uris_stale = False
        _restore(pool, before, out)
    if _serves(pool, "resources.subscribe"):
        add = tuple(uri for uri in pool.uris if uri not in before)
        drop = tuple(uri for uri in before if uri not in pool.uris)
        for instance in pool.serving:
            out(WriteSubscriptions(instance.id, add, drop))


def _restore(pool: Pool, before: Sequence[str], out: Emit) -> None:
    """What changed while no broker was there was told to nobody: it counts as changed."""
    for uri in pool.uris:
        if uri in before:
            out(ResourceChanged(pool.key, uri, RawJson(msgspec.json.encode({"uri": uri}))))


def drop_stale(pools: Iterable[Pool], out: Emit) -> None:
    """The broker has said all it wants: what only the one before it wanted is wanted no more."""
    for pool in pools:
        if pool.is_level_stale and pool.level:
            set_level(pool, SetLevel(pool.key, ""), out)
        if pool.are_uris_stale and pool.uris:
            set_resources(pool, SetResourceSubscriptions(pool.key, []), out)
        pool.is_level_stale = pool.are_uris_stale = False


def instance_greeted(instance: Instance, out: Emit) -> None:
    """An instance became fit: it is told what all the others know."""
    pool = instance.pool
    if pool.level and _serves(pool, "logging"):
        out(WriteLevel(instance.id, pool.level))
    if pool.uris and _serves(pool, "resources.subscribe"):
        out(WriteSubscriptions(instance.id, pool.uris, ()))
        if instance.generation > 1:
            for uri in pool.uris:
                out(ResourceChanged(pool.key, uri, RawJson(msgspec.json.encode({"uri": uri}))))


def log_received(instance: Instance, event: ServerLogged, out: Emit) -> None:
    """Whose log message is it? That of the one session whose calls are in flight, if nothing of another may
    still run and at least one of them is live. An agent that says with each request whether it wants logs
    gets none but those of its very call.
    """
    whose: Call | None = None
    several = bool(instance.abandoned)
    for opened in instance.in_flight.values():
        call = opened.call
        silent = call.can is not None and not call.log_level
        if opened.awaits_retry or (silent and instance.era == "stateless"):
            continue  # nothing of it runs, or its server must not log for it (server/utilities/logging)
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
    """The broker knows who is to hear of it."""
    out(ResourceChanged(instance.pool.key, event.uri, event.params))


def _serves(pool: Pool, feature: str) -> bool:
    return pool.catalog is not None and feature in pool.catalog.features
