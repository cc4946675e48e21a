"""The supervisors of this broker: which of them runs a server, and how much may be sent to each.

Owns the placement and the credit of each link. Every server has one supervisor, chosen by rendezvous hashing
of its name: the pools of a server that replace each other, its leases and what is known about it stay in one
process, and each broker after this one chooses the same. The names are fixed as long as carpool runs.

Refuses to know: what is sent, how a supervisor is reached.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from carpool_protocol.ids import PoolKey, ServerName, SupervisorName, server_of_pool

ONLY: Final = SupervisorName("sup1")
"""The supervisor of a carpool that has one."""


class SupervisorLinks:
    """The supervisors by name, and the links to them. A link has credit while its supervisor takes calls."""

    def __init__(self, names: Sequence[SupervisorName] = (ONLY,)) -> None:
        self.names: Final = tuple(names)
        self.is_single: Final = len(self.names) == 1
        self._credit_bytes: dict[SupervisorName, int] = {}
        """By supervisor that takes calls: the bytes that its link may still carry."""
        self._owners: dict[ServerName, SupervisorName] = {}
        self._owners_of_pools: dict[PoolKey, SupervisorName] = {}

    # --- placement -------------------------------------------------------------------------------------

    def owner_of_server(self, server: ServerName) -> SupervisorName:
        """Return the supervisor that runs this server."""
        if self.is_single:
            return self.names[0]
        owner = self._owners.get(server)
        if owner is None:
            owner = self._owners[server] = max(self.names, key=lambda name: _weight(name, server))
        return owner

    def owner_of(self, key: PoolKey) -> SupervisorName:
        """Return the supervisor that runs this pool."""
        if self.is_single:
            return self.names[0]
        owner = self._owners_of_pools.get(key)
        if owner is None:
            owner = self._owners_of_pools[key] = self.owner_of_server(server_of_pool(key))
        return owner

    def retain_pools(self, keys: Iterable[PoolKey]) -> None:
        """Forget all pools but these."""
        if not self.is_single:
            wanted = set(keys)
            self._owners_of_pools = {key: at for key, at in self._owners_of_pools.items() if key in wanted}
            servers = {server_of_pool(key) for key in wanted}
            self._owners = {server: at for server, at in self._owners.items() if server in servers}

    # --- credit ----------------------------------------------------------------------------------------

    def supervisor_ready(self, name: SupervisorName, credit_bytes: int) -> None:
        """This supervisor takes calls from now on."""
        self._credit_bytes[name] = credit_bytes

    def supervisor_lost(self, name: SupervisorName) -> None:
        """This supervisor is gone."""
        self._credit_bytes.pop(name, None)

    def grant(self, name: SupervisorName, size_bytes: int) -> None:
        """This supervisor has processed so many bytes."""
        if name in self._credit_bytes:
            self._credit_bytes[name] += size_bytes

    def spend(self, key: PoolKey, size_bytes: int) -> None:
        """So many bytes go to the supervisor of this pool."""
        name = self.owner_of(key)
        self._credit_bytes[name] = self._credit_bytes.get(name, 0) - size_bytes

    def has_credit(self, key: PoolKey) -> bool:
        """True if something may be sent to the supervisor of this pool."""
        return self._credit_bytes.get(self.owner_of(key), 0) > 0

    @property
    def has_any_credit(self) -> bool:
        """True if something may be sent to any supervisor."""
        return any(size_bytes > 0 for size_bytes in self._credit_bytes.values())

    def credit_bytes(self, name: SupervisorName = ONLY) -> int:
        """Return the bytes that may be sent to this supervisor; below 1: none."""
        return self._credit_bytes.get(name, 0)

    # --- who is there ----------------------------------------------------------------------------------

    def takes_calls(self, name: SupervisorName) -> bool:
        """True if this supervisor is connected and takes calls."""
        return name in self._credit_bytes

    def is_served(self, key: PoolKey) -> bool:
        """True if the supervisor of this pool is connected and takes calls."""
        return self.owner_of(key) in self._credit_bytes

    @property
    def ready(self) -> list[SupervisorName]:
        """The supervisors that take calls, in the order of their names."""
        return [name for name in self.names if name in self._credit_bytes]


def _weight(name: SupervisorName, server: ServerName) -> bytes:
    return blake2b(f"{name}\0{server}".encode(), digest_size=8).digest()
