"""What a source comes to, in the form in which the core is told it.

Owns the step from a resolution to its event: the settings that go with it, the catalogs that are on disk for
its pools, why a server of it is off; and that what one change does to several sources is one event.

Knows nothing of: sessions, where a configuration comes from, when it is read again.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from typing import TypeVar

from msgspec.structs import replace

from carpool_broker.core.configuration.resolve_servers import Resolution
from carpool_broker.core.model.approval import Approved, PinId
from carpool_broker.core.model.events import OwnEvent, SourceId, SourceRead, SourcesRead
from carpool_broker.core.model.scope import Off, Scope
from carpool_broker.storage.catalog_cache import Kept
from carpool_protocol.config.schema.model import Config
from carpool_protocol.ids import PoolKey, ServerName
from carpool_protocol.link.messages import Catalog

E = TypeVar("E", bound=OwnEvent)

Find = Callable[[PoolKey], Kept | None]
"""What a pool told an earlier carpool."""


def reading(
    source: SourceId,
    config: Config,
    found: Resolution,
    whys: Mapping[ServerName, str],
    *,
    find: Find,
    frame: Scope,
    pins: Callable[[PinId], Approved | None],
) -> SourceRead:
    """`whys`: of the servers that are disabled, as sentences. `frame`: what is seen beside the servers."""
    kept: dict[PoolKey, Catalog] = {}
    for spec in found.specs:
        others = (found.twins.get(spec.key), found.stateless.get(spec.key))
        kept |= _kept_of([spec.key, *(other.key for other in others if other is not None)], find)
    return SourceRead(
        source=source,
        scope=replace(frame, servers=tuple(found.entries)),
        specs=tuple(found.specs),
        misconfigured=dict(found.misconfigured),
        stop_first=frozenset(
            ServerName(name) for name, server in config.servers.items() if server.replace == "stop_first"
        ),
        max_processes=config.max_instances,
        max_greeting=config.max_greeting,
        twins=found.twins,
        own_roots=found.own_roots,
        stateless=found.stateless,
        untrusted=found.untrusted,
        unset=found.unset,
        kept=kept,
        pins={entry.pin: pins(entry.pin) for entry in found.entries if entry.pin},
        prefixes={
            name: prefix
            for name in found.misconfigured
            if name in config.servers and (prefix := config.servers[name].tools_prefix) is not None
        },
        disabled={name: Off(why, config.servers[name].tools_prefix) for name, why in whys.items()},
    )


def at_once(followed: Iterable[E]) -> list[E | SourcesRead]:
    """What follows of one change, in order: the readings that it begins with as one event."""
    rest = list(followed)
    found = list(takewhile(lambda event: isinstance(event, SourceRead), rest))
    readings = tuple(event for event in found if isinstance(event, SourceRead))
    return [SourcesRead(readings), *rest[len(found) :]] if len(found) > 1 else [*rest]


def _kept_of(keys: list[PoolKey], find: Find) -> dict[PoolKey, Catalog]:
    """What the pools of one launch told an earlier carpool; for one that never told, what another did."""
    found = {key: it.catalog for key in keys if (it := find(key)) is not None}
    other = next(iter(found.values()), None)
    return found if other is None else {key: found.get(key) or replace(other, key=key) for key in keys}
