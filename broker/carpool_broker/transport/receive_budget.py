"""The budget for unfinished lines of agents (rule 3).

Owns whose share a connection counts in: that of its process, or of the node that its session comes from.
Multiplexed connections have a budget of their own, because one of them is not one agent: the HTTP door sends
whole messages, and a long one of one agent must not hold up those of all others. `line_shares` decides who is
held and who is dropped.

Not a part of `socket_io`, which knows one socket: this covers all of them.

Knows nothing of: sockets beyond `AgentIo`, how a connection ends.
"""

from typing import Final

from carpool_broker.transport.connections import AgentConnection
from carpool_protocol.machine.line_shares import MIN_RATE_BYTES, MIN_RATE_S, LineShares

READ_AHEAD_BYTES: Final = 64 * 1024
"""An unfinished line of up to this size does not count."""
_TOO_SLOW: Final = (
    "others waited for the end of its line, which has grown by less than "
    f"{MIN_RATE_BYTES // 1024} KiB in {MIN_RATE_S:g} s"
)
_TOO_MUCH: Final = "unfinished lines have twice the receive budget, and most of it are lines of its process"
_Owner = int | str | AgentConnection
"""A process, a node, or a connection whose process the system does not tell."""


class ReceiveBudget:
    """All unfinished lines of one agent server."""

    def __init__(self, size_bytes: int) -> None:
        self._agents: LineShares[AgentConnection, _Owner] = LineShares(size_bytes)
        self._multiplexed: LineShares[AgentConnection, _Owner] = LineShares(size_bytes)

    def set_size(self, size_bytes: int) -> None:
        """Set the size of both budgets. It counts from the next change on."""
        self._agents.budget_bytes = self._multiplexed.budget_bytes = size_bytes

    def line_changed(self, agent: AgentConnection) -> None:
        """The unfinished line of an agent grew, ended, or went with the agent."""
        ended = agent.io.closed or agent.io.pending_bytes <= READ_AHEAD_BYTES
        for shares in (self._agents, self._multiplexed):
            before = shares.held
            if not ended and shares is (self._agents if agent.carrier is None else self._multiplexed):
                shares.line_grew(agent, _owner(agent), agent.io.pending_bytes)
            elif not shares.line_ended(agent):
                continue
            for other in before - shares.held:
                other.io.set_held(False)
            for other in shares.held - before:
                other.io.set_held(True)

    def expired_agents(self, now: float) -> list[tuple[AgentConnection, str]]:
        """Connections to drop, with the reason."""
        expired: dict[AgentConnection, str] = {}
        for shares in (self._agents, self._multiplexed):
            expired.update((agent, _TOO_SLOW) for agent in shares.slow_readers(now))
            expired.update((agent, _TOO_MUCH) for agent in shares.excess_readers())
        return list(expired.items())


def _owner(agent: AgentConnection) -> _Owner:
    if agent.attach is not None and agent.attach.carrier == "node":
        return agent.attach.agent
    return agent.io.peer_pid() or agent
