"""The budget for all unfinished lines of agents together (rule 3).

Owns which unfinished lines count, in the order in which they began to, and which connections must not read
while the budget is spent. Invariants: while it is spent only the oldest line keeps reading; a closed
connection does not count.

Not a part of `socket_io`, which knows one socket: this covers all of them.

Knows nothing of: sockets beyond `AgentIo`, how a connection ends.
"""

from typing import Final

from carpool_broker.transport.connections import AgentConnection

READ_AHEAD_BYTES: Final = 64 * 1024
"""An unfinished line of up to this size does not count."""


class ReceiveBudget:
    """All unfinished lines of one agent server."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._unfinished: dict[AgentConnection, None] = {}
        """The oldest line first."""
        self._spent = False

    def line_changed(self, agent: AgentConnection) -> None:
        """The unfinished line of an agent grew, ended, or went with the agent."""
        if not agent.io.closed and agent.io.pending_bytes > READ_AHEAD_BYTES:
            self._unfinished.setdefault(agent)
        elif agent in self._unfinished:
            del self._unfinished[agent]
        else:
            return
        self._hold_readers()

    def _hold_readers(self) -> None:
        """While the budget is spent, let only the oldest line read on."""
        spent = sum(agent.io.pending_bytes for agent in self._unfinished) > self.size_bytes
        if spent or self._spent:
            self._spent = spent
            for place, agent in enumerate(list(self._unfinished)):
                agent.io.set_held(spent and place > 0)

    def expired_agents(self, now: float, patience_s: float) -> list[tuple[AgentConnection, str]]:
        """Connections to drop, with the reason.

        While others wait for the oldest line, it must grow within `patience_s`, the limit of a slow reader.
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
