"""How many connections one process may have at a door whose file names no tokens.

Owns which connections wait until it is known whose process they are of, and which of them are refused. While
few are open nothing is asked: the answer costs a scan of `/proc`. From `most` on each newcomer waits for a
scan that began after it came; one scan serves all that wait, and between two there is `SCAN_EVERY_S`.
Invariants: no process gets a connection while it has `most`; a socket that several processes have open counts
for each; one whose process cannot be told is not refused, but a scan that fails for want of descriptors or
memory is made again, and all wait for it.

Knows nothing of: HTTP, how the system is asked, the bound for all connections together.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from carpool.http import peer_owner

if TYPE_CHECKING:
    from carpool.http.connection import HttpConnection

SCAN_EVERY_S: Final = 1.0


def over_share(
    newcomers: Iterable[int], let_in: Iterable[int], holders: Mapping[int, Collection[int]], most: int
) -> dict[int, int]:
    """Return the new connections to refuse, each with a process that has its share already. Sockets are
    named by inode, new ones in the order in which they came; `holders` has the processes of each, as far as
    found.
    """
    count_of = Counter(pid for inode in let_in for pid in holders.get(inode, ()))
    refused: dict[int, int] = {}
    for inode in newcomers:
        pids = holders.get(inode, ())
        full = [pid for pid in pids if count_of[pid] >= most]
        if full:
            refused[inode] = full[0]
        else:
            count_of.update(pids)
    return refused


class ProcessShares:
    """The connections of one door, by process. `refuse` gets each new connection of a process that has
    `most`.
    """

    def __init__(
        self,
        most: int,
        refuse: Callable[["HttpConnection"], None],
        say: Callable[[str], None],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._most = most
        self._refuse = refuse
        self._say = say
        self._pause = pause
        self._inodes: dict[HttpConnection, int] = {}
        """The inodes of the sockets at the other ends."""
        self._waiting: dict[HttpConnection, None] = {}
        self._deciding: asyncio.Task[None] | None = None

    def set_most(self, most: int) -> None:
        """Set how many connections a process may have. What is open stays open."""
        self._most = most

    def connection_noted(self, connection: "HttpConnection", inode: int) -> None:
        """Count this connection for the processes that have this socket."""
        self._inodes[connection] = inode

    def has(self, connection: "HttpConnection") -> bool:
        """Return True if this connection counts for the processes that have its socket."""
        return connection in self._inodes

    def connection_opened(self, connection: "HttpConnection", open_count: int) -> None:
        """A counted connection is new, and `open_count` others are open. It waits where one process could
        have its share.
        """
        if connection not in self._inodes or (open_count < self._most and not self._waiting):
            return
        connection.pause_requests()
        self._waiting[connection] = None
        if self._deciding is None:
            self._deciding = asyncio.create_task(self._decide())

    def connection_closed(self, connection: "HttpConnection") -> None:
        """The connection is closed."""
        self._inodes.pop(connection, None)
        self._waiting.pop(connection, None)

    def close(self) -> None:
        """Decide nothing more."""
        if self._deciding is not None:
            self._deciding.cancel()

    async def _decide(self) -> None:
        try:
            while self._waiting:
                asked = list(self._waiting)
                try:
                    holders = await asyncio.to_thread(peer_owner.holders, frozenset(self._inodes.values()))
                except OSError as error:
                    self._say(f"new connections wait: their processes cannot be found now ({error.strerror})")
                else:
                    self._settle([each for each in asked if each in self._waiting], holders)
                await self._pause(SCAN_EVERY_S)
        finally:
            self._deciding = None

    def _settle(self, asked: list["HttpConnection"], holders: Mapping[int, Collection[int]]) -> None:
        let_in = [inode for each, inode in self._inodes.items() if each not in self._waiting]
        refused = over_share([self._inodes[each] for each in asked], let_in, holders, self._most)
        for each in asked:
            del self._waiting[each]
            if self._inodes[each] in refused:
                del self._inodes[each]
                self._refuse(each)
            else:
                each.resume_requests()
        for pid, count in Counter(refused.values()).items():
            self._say(f"process {pid} has {self._most} connections, and gets no more ({count} refused)")
