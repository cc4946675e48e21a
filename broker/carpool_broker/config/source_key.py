"""The inputs that decide which servers a session gets, and the hash that identifies them.

Owns which facts about a session distinguish two sources: sessions with the same basis share one source, one
scope and one set of pools. The hash is keyed and reveals none of the values. Also owns the step from a
resolved source to its event: its settings, cached catalogs of its pools, the reasons for disabled servers.
Changes of several sources at once are one event.

Knows nothing of: the origin of a configuration, how the basis of a session is found (`configuration`), the
time of readings.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from carpool_broker.config.locations import Location, WorkspaceRequest
from carpool_broker.core.configuration.overrides import SessionOverrides
from carpool_broker.core.configuration.resolve_servers import Resolution
from carpool_broker.core.model.approval import Approved, PinId
from carpool_broker.core.model.events import LocalEvent, SourceId, SourceRead, SourcesRead
from carpool_broker.core.model.scope import DisabledServer, Scope
from carpool_broker.storage.catalog_cache import CachedCatalog
from carpool_protocol.carrier.attach_line import RunCommand
from carpool_protocol.config.schema.model import Config
from carpool_protocol.ids import PoolKey, ServerName
from carpool_protocol.link.messages import Catalog, Root


class SourceBasis:
    """The inputs from which one source is resolved."""

    def __init__(
        self,
        environment: dict[str, str],
        workspace: str,
        cwd: str,
        *,
        run: RunCommand | None = None,
        roots: tuple[Root, ...] | None = None,
        location: Location | None = None,
        project: str = "",
        server: str = "",
        own: SessionOverrides = (),
        profile: str = "",
        tool_name_length: int = 0,
    ) -> None:
        self.environment = environment
        self.workspace = workspace
        self.cwd = cwd
        self.run = run
        self.roots = roots
        self.name, self.named_root = ("", "") if location is None else (location.name, location.root)
        """Name and root of the named workspace."""
        self.project = project
        """The project file with servers that count, or are missing; empty: none."""
        self.server = server
        """The only visible server; empty: all are visible."""
        self.own = own
        """Overrides for its sessions only."""
        self.profile = profile
        """The profile of its sessions; empty: no limits."""
        self.tool_name_length = tool_name_length
        """The longest name that its sessions ask for; 0: no own limit."""
        self.sessions = 0
        """Number of sessions that use the source."""
        self.held_request: WorkspaceRequest | None = None
        """The workspace of its last session, which is watched on while no session uses the source."""

    @property
    def is_empty(self) -> bool:
        """True if its sessions have no input of their own, so that they see what all others see."""
        return not (
            self.environment
            or self.workspace
            or self.cwd
            or self.run
            or self.name
            or self.project
            or self.server
            or self.own
            or self.profile
            or self.tool_name_length
            or self.roots is not None
        )

    def source_id(self, secret: bytes) -> SourceId:
        """The id of the source: equal for equal inputs under the same secret."""
        run = self.run
        inputs = msgspec.msgpack.encode(
            [
                sorted(self.environment.items()),
                self.workspace,
                self.cwd,
                [] if run is None else [run.argv, sorted(run.env.items()), run.cwd],
                self.roots,
                self.name,
                self.named_root,
                self.project,
                self.server,
                self.own,
                self.profile,
                self.tool_name_length,
            ]
        )
        return SourceId(hashlib.blake2b(inputs, key=secret, digest_size=8).hexdigest())


E = TypeVar("E", bound=LocalEvent)

FindCatalog = Callable[[PoolKey], CachedCatalog | None]
"""Returns the cached catalog of a pool, from an earlier carpool."""


def make_source_read(
    source: SourceId,
    config: Config,
    found: Resolution,
    reasons: Mapping[ServerName, str],
    *,
    find: FindCatalog,
    base_scope: Scope,
    pins: Callable[[PinId], Approved | None],
) -> SourceRead:
    """The event for a resolved source. `reasons`: of disabled servers; `frame`: the scope without
    servers.
    """
    kept: dict[PoolKey, Catalog] = {}
    for spec in found.specs:
        others = (found.twins.get(spec.key), found.stateless.get(spec.key))
        kept |= _cached_catalogs([spec.key, *(other.key for other in others if other is not None)], find)
    return SourceRead(
        source=source,
        scope=replace(base_scope, servers=tuple(found.entries)),
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
        disabled={
            name: DisabledServer(why, config.servers[name].tools_prefix) for name, why in reasons.items()
        },
    )


def group_changes(followed: Iterable[E]) -> list[E | SourcesRead]:
    """The same events in order, with the readings at the begin as one event."""
    rest = list(followed)
    found = list(takewhile(lambda event: isinstance(event, SourceRead), rest))
    readings = tuple(event for event in found if isinstance(event, SourceRead))
    return [SourcesRead(readings), *rest[len(found) :]] if len(found) > 1 else [*rest]


def _cached_catalogs(keys: list[PoolKey], find: FindCatalog) -> dict[PoolKey, Catalog]:
    """Cached catalogs of the pools of one launch. A pool without one gets that of another."""
    found = {key: it.catalog for key in keys if (it := find(key)) is not None}
    other = next(iter(found.values()), None)
    return found if other is None else {key: found.get(key) or replace(other, key=key) for key in keys}
