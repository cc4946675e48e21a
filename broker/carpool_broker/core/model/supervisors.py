"""The placement of servers on supervisors, and the credit of the link to each supervisor.

Owns the placement and the credit of each link. Every server has one supervisor, chosen by rendezvous hashing
of its name: the pools of a server that replace each other, its leases and what is known about it stay in one
process, and each broker after this one chooses the same. The names are fixed as long as carpool runs.

Refuses to know: what is sent, how a supervisor is reached.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from carpool_protocol.ids import PoolKey, ServerName, SupervisorName, server_of_pool, supervisor_name

ONLY: Final = supervisor_name(0)
"""The supervisor of a carpool that has one."""


class _Link:
    """The link to one supervisor."""

    __slots__ = ("credit_bytes", "is_ready", "name")

    def __init__(self, name: SupervisorName) -> None:
        self.name = name
        self.is_ready = False
        """True while its supervisor takes calls."""
        self.credit_bytes = 0
        """The bytes that it may still carry; below 1: none."""


class SupervisorLinks:
    """The supervisors by name, and the links to them. A link has credit while its supervisor takes calls."""

    def __init__(self, names: Sequence[SupervisorName] = (ONLY,)) -> None:
        self.names: Final = tuple(names)
        self.is_single: Final = len(self.names) == 1
        self._links = {name: _Link(name) for name in names}
        self._of_servers: dict[ServerName, _Link] = {}
        self._of_pools: dict[PoolKey, _Link] = {}

    def pending_number(self, wanted: int) -> str:
        """Return a warning if the configuration wants another number of supervisors; empty: it does not."""
        if wanted == len(self.names):
            return ""
        return (
            f"supervisors: {wanted} in the configuration, and {len(self.names)} in force; the number changes "
            "with `carpool restart --all`"
        )

    # --- placement -------------------------------------------------------------------------------------

    def owner_of_server(self, server: ServerName) -> SupervisorName:
        """Return the supervisor that runs this server."""
        return self._of_server(server).name

    def owner_of(self, key: PoolKey) -> SupervisorName:
        """Return the supervisor that runs this pool."""
        return self._of_pool(key).name

    def runs_server(self, name: SupervisorName, server: ServerName) -> bool:
        """True if this supervisor runs this server."""
        return self._of_server(server).name == name

    def runs(self, name: SupervisorName, key: PoolKey) -> bool:
        """True if this supervisor runs this pool."""
        return self._of_pool(key).name == name

    def _of_server(self, server: ServerName) -> _Link:
        link = self._of_servers.get(server)
        if link is None:
            owner = max(self.names, key=lambda name: _weight(name, server))
            link = self._of_servers[server] = self._links[owner]
        return link

    def _of_pool(self, key: PoolKey) -> _Link:
        link = self._of_pools.get(key)
        if link is None:
            link = self._of_pools[key] = self._of_server(server_of_pool(key))
        return link

    def retain_pools(self, keys: Iterable[PoolKey]) -> None:
        """Forget all pools but these."""
        wanted = set(keys)
        servers = {server_of_pool(key) for key in wanted}
        self._of_pools = {key: link for key, link in self._of_pools.items() if key in wanted}
        self._of_servers = {server: link for server, link in self._of_servers.items() if server in servers}

    # --- credit ----------------------------------------------------------------------------------------
    # Each call passes `spend` and `has_credit`: they look a known pool up without `_of_pool`.

    def supervisor_ready(self, name: SupervisorName, credit_bytes: int) -> None:
        """This supervisor takes calls from now on."""
        link = self._links[name]
        link.is_ready, link.credit_bytes = True, credit_bytes

    def supervisor_lost(self, name: SupervisorName) -> None:
        """This supervisor is gone."""
        link = self._links[name]
        link.is_ready, link.credit_bytes = False, 0

    def grant(self, name: SupervisorName, size_bytes: int) -> None:
        """This supervisor has processed so many bytes."""
        link = self._links[name]
        if link.is_ready:
            link.credit_bytes += size_bytes

    def spend(self, key: PoolKey, size_bytes: int) -> None:
        """Take so many bytes from the credit of the supervisor of this pool."""
        link = self._of_pools.get(key) or self._of_pool(key)
        link.credit_bytes -= size_bytes

    def has_credit(self, key: PoolKey) -> bool:
        """True if something may be sent to the supervisor of this pool."""
        link = self._of_pools.get(key) or self._of_pool(key)
        return link.credit_bytes > 0

    @property
    def has_any_credit(self) -> bool:
        """True if something may be sent to any supervisor."""
        return any(link.credit_bytes > 0 for link in self._links.values())

    def credit_bytes(self, name: SupervisorName = ONLY) -> int:
        """Return the bytes that may be sent to this supervisor; below 1: none."""
        return self._links[name].credit_bytes

    # --- who is there ----------------------------------------------------------------------------------

    def is_served(self, key: PoolKey) -> bool:
        """True if the supervisor of this pool is connected and takes calls."""
        return self._of_pool(key).is_ready

    @property
    def ready(self) -> list[SupervisorName]:
        """The supervisors that take calls, in the order of their names."""
        return [link.name for link in self._links.values() if link.is_ready]


def _weight(name: SupervisorName, server: ServerName) -> bytes:
    return blake2b(f"{name}\0{server}".encode(), digest_size=8).digest()
