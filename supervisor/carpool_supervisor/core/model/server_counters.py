"""The counts of each server: starts, failures, asks, waits for leases (docs/counters.md).

Owns one record for each server, which all its pools share and which outlives them, and the bound on their
number. Refuses to know: when something is counted.
"""

from typing import Final

from msgspec.structs import replace

from carpool_protocol.counters.call_counts import OTHER
from carpool_protocol.counters.snapshot import ServerCounts
from carpool_protocol.ids import ServerName

MAX_SERVERS: Final = 512
"""The number of servers with counts of their own; all further ones share one."""


class ServerCounters:
    """The counts of all servers of one supervisor."""

    def __init__(self) -> None:
        self.by_server: dict[ServerName, ServerCounts] = {}

    def counts_of(self, server: ServerName) -> ServerCounts:
        """Return the counts of this server."""
        if server not in self.by_server and len(self.by_server) >= MAX_SERVERS:
            server = ServerName(OTHER)
        return self.by_server.setdefault(server, ServerCounts())

    def report(self) -> dict[ServerName, ServerCounts]:
        """Return a copy of all counts."""
        return {server: replace(counts) for server, counts in self.by_server.items()}
