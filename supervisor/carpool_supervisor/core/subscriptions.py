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
from carpool_protocol.link.messages import Call, Logged, SetLevel, Updated, Watch
from carpool_supervisor.core.model.effects import AnyEffect, KeepLog, WriteLevel, WriteWatch
from carpool_supervisor.core.model.events import ResourceUpdated, ServerLogged
from carpool_supervisor.core.model.pool import Instance, Pool

Out = Callable[[AnyEffect], None]


def set_level(pool: Pool, word: SetLevel, out: Out) -> None:
    """Another level is wanted. Without any, instances keep the last: the handshake era has no way to say
    "none".
    """
    pool.level, pool.old_level = word.level, False
    if (word.level or pool.era == "stateless") and _serves(pool, "logging"):
        for instance in pool.serving:
            out(WriteLevel(instance.id, word.level))


def watch(pool: Pool, word: Watch, out: Out) -> None:
    """Other resources are watched."""
    before, pool.uris = pool.uris, tuple(word.uris)
    if pool.old_uris:
        pool.old_uris = False
        _renew(pool, before, out)
    if _serves(pool, "resources.subscribe"):
        add = tuple(uri for uri in pool.uris if uri not in before)
        drop = tuple(uri for uri in before if uri not in pool.uris)
        for instance in pool.serving:
            out(WriteWatch(instance.id, add, drop))


def _renew(pool: Pool, before: Sequence[str], out: Out) -> None:
    """What changed while no broker was there was told to nobody: it counts as changed."""
    for uri in pool.uris:
        if uri in before:
            out(Updated(pool.key, uri, RawJson(msgspec.json.encode({"uri": uri}))))


def forget_old(pools: Iterable[Pool], out: Out) -> None:
    """The broker has said all it wants: what only the one before it wanted is wanted no more."""
    for pool in pools:
        if pool.old_level and pool.level:
            set_level(pool, SetLevel(pool.key, ""), out)
        if pool.old_uris and pool.uris:
            watch(pool, Watch(pool.key, []), out)
        pool.old_level = pool.old_uris = False


def greeted(instance: Instance, out: Out) -> None:
    """An instance became fit: it is told what all the others know."""
    pool = instance.pool
    if pool.level and _serves(pool, "logging"):
        out(WriteLevel(instance.id, pool.level))
    if pool.uris and _serves(pool, "resources.subscribe"):
        out(WriteWatch(instance.id, pool.uris, ()))
        if instance.generation > 1:
            for uri in pool.uris:
                out(Updated(pool.key, uri, RawJson(msgspec.json.encode({"uri": uri}))))


def logged(instance: Instance, event: ServerLogged, out: Out) -> None:
    """Whose log message is it? That of the one session whose calls are in flight, if nothing of another may
    still run and at least one of them is live. An agent that says with each request whether it wants logs
    gets none but those of its very call.
    """
    whose: Call | None = None
    several = bool(instance.lingering)
    for opened in instance.in_flight.values():
        call = opened.call
        silent = call.can is not None and not call.log_level
        if opened.resting or (silent and instance.era == "stateless"):
            continue  # nothing of it runs, or its server must not log for it (server/utilities/logging)
        if silent or (whose is not None and call.session != whose.session):
            whose = None
            break
        several = several or whose is not None
        whose = call
    if whose is None or any(each.session != whose.session for each in instance.lingering.values()):
        out(KeepLog(instance.id, event.level, event.params))
    else:
        one = CallId(0) if several else whose.call
        out(Logged(whose.session, event.level, event.params, one))


def updated(instance: Instance, event: ResourceUpdated, out: Out) -> None:
    """The broker knows who is to hear of it."""
    out(Updated(instance.pool.key, event.uri, event.params))


def _serves(pool: Pool, feature: str) -> bool:
    return pool.catalog is not None and feature in pool.catalog.features
