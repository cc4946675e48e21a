"""The kinds of call that have a price, and the agents that make them.

Owns the list of kinds and what a burst of each is: all calls written at once, then all answers read and
judged.
Knows nothing of: which process runs when, what is counted.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from bench.http_agents import HttpCrowd, connected
from carpool.bench.agents import BenchAgents
from carpool.bench.attach import AgentDescriptors
from carpool.bench.spawn import connect
from carpool.bench.work import EchoWorkload, answer_id
from carpool.http.generated_token import read_generated_token
from carpool.launcher.http_door import read_door_status, read_door_url
from carpool_protocol.bootstrap import paths

TOOL: Final = "echo__echo"
MOST_PASSES: Final = 5
"""A burst that has passed carpool so often has all its answers."""


class PricedCall(NamedTuple):
    """One kind of call."""

    name: str
    what: str
    agents: int
    in_flight: int
    """Calls of each agent in a burst."""
    over_http: bool = False

    @property
    def calls(self) -> int:
        """The number of calls in a burst."""
        return self.agents * self.in_flight

    @property
    def processes(self) -> tuple[str, ...]:
        """The processes on its way, which have a price each."""
        return (*(["door"] if self.over_http else []), "broker", "supervisor")

    @property
    def way(self) -> tuple[str, ...]:
        """The processes through which a burst passes, there and back."""
        there = (*self.processes, "server")
        return (*there, *reversed(self.processes))


PRICED_CALLS: Final = (
    PricedCall("s100", "100 agents on sockets, one call each", 100, 1),
    PricedCall("s64", "one agent on a socket, 64 calls in flight", 1, 64),
    PricedCall("s1", "a lone call of one agent on a socket", 1, 1),
    PricedCall("h100", "100 agents over HTTP in sessions, one call each", 100, 1, over_http=True),
)


class BurstingAgents:
    """The agents of one kind of call, connected and greeted."""

    def __init__(self, kind: PricedCall, directory: str) -> None:
        self._kind = kind
        self._work = EchoWorkload(TOOL)
        self._all = _http_agents(kind, directory) if kind.over_http else _socket_agents(kind, directory)
        try:
            self._all.greet()
        except BaseException:
            self._all.close()
            raise

    def make_burst(self, pass_once: Callable[[], None]) -> None:
        """Make all calls at once. `pass_once` lets them pass carpool; it is called until all are answered."""
        waiting: set[tuple[int, int]] = set()
        for agent in self._all._agents:
            first, agent.next_id = agent.next_id, agent.next_id + self._kind.in_flight
            numbers = range(first, agent.next_id)
            agent.write(b"".join(self._work.request(agent.index, number) for number in numbers))
            waiting.update((agent.index, number) for number in numbers)
        for _ in range(MOST_PASSES):
            pass_once()
            for agent in self._all._agents:
                for line in agent.lines():
                    number = answer_id(line)
                    assert self._work.is_right(agent.index, number, line), line
                    waiting.remove((agent.index, number))
            if not waiting:
                return
        raise AssertionError(f"{len(waiting)} of {self._kind.calls} calls have no answer")

    def close(self) -> None:
        """Disconnect them."""
        self._all.close()


def _socket_agents(kind: PricedCall, directory: str) -> BenchAgents:
    path = paths.agents_socket(directory)
    return BenchAgents([connect(path) for _ in range(kind.agents)])


def _http_agents(kind: PricedCall, directory: str) -> BenchAgents:
    host_and_port, _, path = read_door_url(directory).removeprefix("http://").partition("/")
    port = int(host_and_port.rpartition(":")[2])
    lines = [AgentDescriptors.of_socket(connected(port)) for _ in range(kind.agents)]
    door = read_door_status(directory)
    token = read_generated_token(door.token_file) if door is not None else ""
    return HttpCrowd(lines, "handshake", port, f"/{path}", TOOL, streams=False, token=token)
