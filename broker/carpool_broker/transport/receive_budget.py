"""One budget for all lines that agents have begun and not finished (rule 3).

Owns whose unfinished line counts, in the order in which they began to, and who must not read on because it
is spent. Invariants: while it is spent the oldest line keeps reading and no other does; whoever is gone
counts no more.

Not a part of `socket_io`, which knows one socket: this is over all of them.

Knows nothing of: sockets beyond `AgentIo`, how a connection ends.
"""

from typing import Final

from carpool_broker.transport.connections import AgentConnection

READ_AHEAD_BYTES: Final = 64 * 1024
"""Less than this of an unfinished line does not count."""


class ReceiveBudget:
    """All unfinished lines of one door."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._unfinished: dict[AgentConnection, None] = {}
        """The oldest line first."""
        self._spent = False

    def line_changed(self, agent: AgentConnection) -> None:
        """The unfinished line of an agent grew, came to its end, or went with the agent."""
        if not agent.io.closed and agent.io.pending_bytes > READ_AHEAD_BYTES:
            self._unfinished.setdefault(agent)
        elif agent in self._unfinished:
            del self._unfinished[agent]
        else:
            return
        self._hold_readers()

    def _hold_readers(self) -> None:
        """When it is spent only the oldest line keeps reading."""
        spent = sum(agent.io.pending_bytes for agent in self._unfinished) > self.size_bytes
        if spent or self._spent:
            self._spent = spent
            for place, agent in enumerate(list(self._unfinished)):
                agent.io.set_held(spent and place > 0)

    def expired_agents(self, now: float, patience_s: float) -> list[tuple[AgentConnection, str]]:
        """Who is to be dropped, and why: while others wait for the oldest line it must grow, and its agent
        has as long as a slow reader has.
        """
        oldest = next(iter(self._unfinished), None)
        if oldest is None:
            return []
        if not self._spent or oldest.line_bytes != oldest.io.pending_bytes:
            for agent in self._unfinished:
                agent.line_bytes, agent.line_at = agent.io.pending_bytes, now
        elif now - oldest.line_at > patience_s:
            why = f"others waited for the end of its line, which has not grown for {patience_s:g} s"
            return [(oldest, why)]
        return []
