"""The table of all pools, with the indexes that keep the work of an event apart from their number.

Owns which pools belong to a server, which replaced which, and which an event has touched: only these are
adjusted and announced after it (`PoolAnnouncer`), because an event that worked through all pools would cost a
thousand servers minutes.

Invariants (`check`): the indexes name exactly the pools of the table; a server that is not in
`_may_be_plain` has no plain pool. Knows nothing of: the reasons for changes, calls, leases.
"""

from collections.abc import Iterable, ValuesView
from typing import Final

from carpool_protocol.ids import PoolKey, ServerName
from carpool_supervisor.core.model.pool import Pool

_NONE: Final[dict[PoolKey, Pool]] = {}


class Pools(dict[PoolKey, Pool]):
    """All pools by key. Changed by `pools[key] = pool` and `del pools[key]` alone."""

    def __init__(self) -> None:
        super().__init__()
        self.touched: dict[PoolKey, Pool] = {}
        """The pools that have changed since the last announcements, also those that are gone by now."""
        self._of_server: dict[ServerName, dict[PoolKey, Pool]] = {}
        self._successors: dict[PoolKey, dict[PoolKey, Pool]] = {}
        """The pools that replaced a pool, by its key."""
        self._may_be_plain: set[ServerName] = set()
        """The servers of which a pool may be plain."""
        self._waiting: dict[ServerName, dict[PoolKey, Pool]] = {}
        """The pools in which calls wait, perhaps with others, of servers with pools that are not plain."""
        self._losers: set[ServerName] = set()
        """The servers of which a session has lost an instance since the last announcements."""

    def __setitem__(self, key: PoolKey, pool: Pool) -> None:
        super().__setitem__(key, pool)
        self._of_server.setdefault(pool.server, {})[key] = pool
        self._may_be_plain.add(pool.server)
        pool.attend(self.touched)

    def __delitem__(self, key: PoolKey) -> None:
        pool = self[key]
        super().__delitem__(key)
        self.set_replaced(pool, ())
        siblings = self._of_server[pool.server]
        del siblings[key]
        if not siblings:
            del self._of_server[pool.server]
            self._waiting.pop(pool.server, None)
            self._may_be_plain.discard(pool.server)

    def of_server(self, server: ServerName) -> ValuesView[Pool]:
        """The pools of this server, older ones first."""
        return self._of_server.get(server, _NONE).values()

    def waiting_of(self, server: ServerName) -> list[Pool]:
        """The pools of this server in which calls wait, if it has a pool that is not plain."""
        known = self._waiting.get(server)
        if known is None:
            return []
        waiting = [pool for pool in known.values() if pool.queue]
        if len(waiting) < len(known):
            self._waiting[server] = {pool.key: pool for pool in waiting}
        return waiting

    def note_waiting(self, pool: Pool) -> None:
        """A call waits in this pool, which is not plain."""
        self._waiting.setdefault(pool.server, {})[pool.key] = pool

    def touch_all(self) -> None:
        """Every pool may have changed."""
        self.touched.update(self)

    def take_touched(self) -> list[Pool]:
        """Return the touched pools. None is touched after this."""
        for server in self._losers:
            for pool in self.waiting_of(server):  # a call that waits may have to be told
                pool.touch()
        self._losers.clear()
        touched = list(self.touched.values())
        self.touched.clear()
        return touched

    def set_replaced(self, pool: Pool, keys: Iterable[PoolKey]) -> None:
        """This pool replaces these, and no others."""
        for key in pool.replaced_pools:
            after = self._successors.get(key, {})
            after.pop(pool.key, None)
            if not after:
                self._successors.pop(key, None)
        pool.replaced_pools = tuple(keys)
        for key in pool.replaced_pools:
            self._successors.setdefault(key, {})[pool.key] = pool

    def successors(self, pool: Pool) -> list[Pool]:
        """The pools that replace this one (two if its agents were split by capability class): the wanted
        ones, else those that still have a queue.
        """
        after = self._successors.get(pool.key, _NONE).values()
        return [each for each in after if each.wanted] or [each for each in after if each.queue]

    def mark_plain(self, pool: Pool) -> None:
        """Calls to this pool need no look at leases."""
        pool.plain = True
        self._may_be_plain.add(pool.server)

    def mark_not_plain(self, server: ServerName) -> None:
        """Calls to all pools of this server must check leases: a session holds an instance of it, or has lost
        one.
        """
        if server in self._may_be_plain:
            self._may_be_plain.discard(server)
            for pool in self.of_server(server):
                if pool.plain:
                    pool.plain = False
                    pool.touch()
                if pool.queue:
                    self.note_waiting(pool)

    def lease_ended(self, server: ServerName) -> None:
        """A session holds an instance of this server no more: its calls hear of that, also those that wait in
        other pools.
        """
        self.mark_not_plain(server)
        self._losers.add(server)
        for pool in self.of_server(server):
            pool.touch()
            break

    def check(self) -> None:
        """Assert every invariant."""
        indexed = {key: pool for pools in self._of_server.values() for key, pool in pools.items()}
        assert indexed == self
        for pool in self.values():
            noted = pool.key in self._waiting.get(pool.server, _NONE)
            assert pool.plain or not pool.queue or noted, f"{pool.key} has a line that nobody knows of"
        for pool in self.values():
            assert not pool.plain or pool.server in self._may_be_plain
            assert all(self._successors[key][pool.key] is pool for key in pool.replaced_pools)
        assert sum(map(len, self._successors.values())) == sum(
            len(pool.replaced_pools) for pool in self.values()
        )
