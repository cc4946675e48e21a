"""All counters of calls of one broker, by agent, server and tool.

Owns the rows and their bound. Names are chosen by agents and servers, so the number of rows is
bounded (docs/counters.md): of one holder of rights at most `MAX_NAMES` agents have rows of their own, and one
agent has at most `MAX_ROWS_OF_AGENT`. What has no row of its own counts in a row `(other)`. A row stays until
the broker ends, so that a count never falls.

Invariant (`check`): the bounds. Refuses to know: what is a call, when it ends, the time.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from carpool_broker.core.counters.call_counters import CallCounters
from carpool_protocol.counters.call_counts import OTHER
from carpool_protocol.counters.snapshot import CountedAgent, CounterRow

MAX_ROWS: Final = 2048
"""The number of rows of all agents together; rows `(other)` come on top."""
MAX_ROWS_OF_AGENT: Final = 512
MAX_NAMES: Final = 32
"""The number of agent names with rows of their own, for one profile, token and door."""
MAX_OTHER_ROWS: Final = 256
"""The number of servers with a row `(other)`."""
MAX_NAME_CHARS: Final = 128


class AgentCounters:
    """The rows of one agent, by server and tool; of calls at another node by server, tool and node."""

    __slots__ = ("agent", "rows")

    def __init__(self, agent: CountedAgent) -> None:
        self.agent = agent
        self.rows: dict[tuple[str, ...], CallCounters] = {}


class CounterTable:
    """The counters of one broker."""

    def __init__(self) -> None:
        self.agents: dict[CountedAgent, AgentCounters] = {}
        self._names: dict[tuple[str, str, str], int] = {}
        """The number of agent names for each profile, token and door."""
        self._rows = 0
        self._other = AgentCounters(CountedAgent(OTHER, OTHER, OTHER, OTHER))

    def agent_counters(self, agent: str, profile: str, token: str, door: str) -> AgentCounters:
        """Return the rows of this agent. Beyond the bound all further names of its holder share some."""
        known = CountedAgent(agent[:MAX_NAME_CHARS], profile, token, door)
        found = self.agents.get(known)
        if found is not None:
            return found
        holder = (profile, token, door)
        names = self._names.get(holder, 0)
        if names >= MAX_NAMES:
            known = CountedAgent(OTHER, profile, token, door)
            if known in self.agents:
                return self.agents[known]
        if len(self.agents) >= MAX_ROWS:
            return self._other
        self._names[holder] = names + 1
        found = self.agents[known] = AgentCounters(known)
        return found

    def row(self, of: AgentCounters, server: str, tool: str, node: str = "") -> CallCounters:
        """Return the row of this server and tool, a new one if there is none. `node`: empty for this one."""
        at_node = (node,) if node else ()
        found = of.rows.get((server, tool, *at_node))
        return self._new_row(of, server, tool, at_node) if found is None else found

    def _new_row(self, of: AgentCounters, server: str, tool: str, at_node: tuple[str, ...]) -> CallCounters:
        key: tuple[str, ...] = (server[:MAX_NAME_CHARS], tool[:MAX_NAME_CHARS], *at_node)
        if key in of.rows:  # a long name
            return of.rows[key]
        if of is self._other or self._rows >= MAX_ROWS or len(of.rows) >= MAX_ROWS_OF_AGENT:
            rows = self._other.rows
            some_node = (OTHER,) if at_node else ()
            key = (key[0], OTHER, *some_node)
            if key not in rows and len(rows) >= MAX_OTHER_ROWS:
                key = (OTHER, OTHER, *some_node)
            return rows.setdefault(key, CallCounters())
        self._rows += 1
        found = of.rows[key] = CallCounters()
        return found

    def snapshot(
        self, in_flight: Mapping[CallCounters, int], resumed: Mapping[CallCounters, int]
    ) -> Iterator[CounterRow]:
        """Yield a copy of all rows. `in_flight`: the number of open calls by row; `resumed`: those of them
        that an earlier broker has sent.
        """
        for each in (*self.agents.values(), self._other):
            for (server, tool, *at_node), counters in each.rows.items():
                open_calls = in_flight.get(counters, 0), resumed.get(counters, 0)
                yield CounterRow(each.agent, server, tool, counters.counts(*open_calls), "".join(at_node))

    @property
    def ended(self) -> int:
        """The number of calls that were counted."""
        agents = (*self.agents.values(), self._other)
        return sum(counters.ended for each in agents for counters in each.rows.values())

    def check(self) -> None:
        """Assert every invariant."""
        sizes = [len(each.rows) for each in self.agents.values()]
        assert sum(sizes) == self._rows <= MAX_ROWS
        assert all(size <= MAX_ROWS_OF_AGENT for size in sizes)
        assert len(self._other.rows) <= MAX_OTHER_ROWS + 2
        assert sum(self._names.values()) == len(self.agents) <= MAX_ROWS
        assert all(count <= MAX_NAMES + 1 for count in self._names.values())
        for each in (*self.agents.values(), self._other):
            for counters in each.rows.values():
                counters.check()
