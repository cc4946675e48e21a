"""A snapshot of all counters, as it leaves the broker.

Owns the shape: rows of calls by agent, server and tool, and the counts of servers that the supervisor
reports. It is the answer to `carpool/counters`, and what `carpool stats` and `/metrics` read. Refuses to
know: how rows are summed (`summary`), how they are shown.
"""

from typing import Literal

from msgspec import Struct

from carpool_protocol.counters.call_counts import CallCounts


class CountedAgent(Struct, frozen=True):
    """The agents that count as one: the bounded part of what is known of an agent."""

    agent: str
    """The name that it gives itself."""
    profile: str
    """Empty: none."""
    token: str
    """The name of its bearer token; empty: none."""
    door: str
    """The kind of its carrier: `shim`, `run`, `client`, `http` or `cli`."""


class CounterRow(Struct, frozen=True):
    """The counts of one tool of one server, as one kind of agent calls it."""

    agent: CountedAgent
    server: str
    """`carpool`: its own tools; `(unknown)`: the name is no known server's."""
    tool: str
    """The server's own name of the tool, or in parentheses a method or a group."""
    counts: CallCounts
    node: str = ""
    """The node at which these calls ran; empty: this one. `(other)` in rows of a group."""


class ServerCounts(Struct, kw_only=True):
    """What the supervisor counts of one server."""

    starts: int = 0
    """Processes that were started."""
    deaths: int = 0
    """Processes that ended by themselves, were ended as silent or broken, or could not be started."""
    restarts: int = 0
    """Starts that were planned after a failure."""
    asks: int = 0
    """Asks that reached an agent: sampling, elicitation and roots."""
    lease_waits: int = 0
    """Times that a session began to wait because no instance was free for it to lease."""


ServersProblem = Literal["", "supervisor_away", "supervisor_silent"]


class CountersSnapshot(Struct, frozen=True, kw_only=True):
    """All counters of one broker at one moment."""

    enabled: bool
    """False: `counters` is off in the configuration, and nothing is counted."""
    run: str
    """The broker that has counted. Another value means that all counts began anew."""
    since: str
    """The UTC time at which the counts began."""
    age_s: float
    """Seconds since then."""
    rows: list[CounterRow]
    servers_run: str = ""
    """The supervisor that has counted `servers`; empty: none has answered."""
    servers: dict[str, ServerCounts] = {}
    servers_problem: ServersProblem = ""
    """Why `servers` is missing; empty: it is the supervisor's answer."""
