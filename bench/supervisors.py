"""`python -m bench.supervisors`: compares the calls per second of one supervisor and of several.

Starts two private carpools of this tree with the same echo servers, one with `supervisors: 1` and one with
more, and loads all servers of each in turns. A ratio is taken within a round, and rounds begin with the one
and the other in turns. Bounded; ends what it started. Prints calls per second and CPU per call of broker and
supervisors, and the median ratio with its 95 % interval. The mark: the interval reaches 1. On a machine with
two cores, where broker, driver and servers fill both, nothing can be gained.

Knows nothing of: which supervisor runs which server, how CPU is measured (`carpool bench`).
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any, Final

from bench.revisions import median_interval
from carpool.bench.agents import BenchAgents, Load
from carpool.bench.arms import ECHO_ARGV
from carpool.bench.scenarios import ProcessCosts
from carpool.bench.spawn import connect
from carpool.bench.work import EchoWorkload
from carpool.launcher.sandbox import PrivateCarpool
from carpool_protocol.bootstrap import paths

SERVERS: Final = 8


class SpreadWorkload:
    """Calls of the echo tool of every server in turns."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._each = [EchoWorkload(f"{server}__echo") for server in servers]

    def _of(self, agent: int, number: int) -> EchoWorkload:
        return self._each[(agent + number) % len(self._each)]

    def request(self, agent: int, number: int) -> bytes:
        """See `Workload`."""
        return self._of(agent, number).request(agent, number)

    def is_right(self, agent: int, number: int, line: bytes) -> bool:
        """See `Workload`."""
        return self._of(agent, number).is_right(agent, number, line)

    def fault(self, agent: int, number: int, line: bytes) -> str:
        """See `Workload`."""
        return self._of(agent, number).fault(agent, number, line)


class LoadedCarpool:
    """A private carpool with so many supervisors."""

    def __init__(self, supervisors: int) -> None:
        self._names = [f"echo{number}" for number in range(SERVERS)]
        self._private = PrivateCarpool("cp")
        argv = {"command": ECHO_ARGV[0], "args": ECHO_ARGV[1:], "sharing": "concurrent"}
        text = json.dumps({"mcpServers": dict.fromkeys(self._names, argv), "supervisors": supervisors})
        self._private.config_file.write_text(text)
        self._private.up()
        self._private.run_carpool("start", *self._names)

    def close(self) -> None:
        """End it."""
        for trouble in self._private.close():
            print(trouble, file=sys.stderr)

    def measure(self, agents: int, in_flight: int, seconds: float) -> dict[str, float]:
        """Load it. Returns calls per second, and the CPU of each role in µs per call."""
        facts = self._private.status()
        costs = ProcessCosts()
        supervisors = [each["pid"] for each in facts["supervisors"]]
        costs.watch({"broker": [facts["broker"]["pid"]], "supervisor": supervisors})
        socket = paths.agents_socket(self._private.directory)
        crowd = BenchAgents([connect(socket) for _ in range(agents)])
        try:
            crowd.greet()
            load = Load(in_flight=in_flight, seconds=seconds)
            work = SpreadWorkload(self._names)
            found = crowd.run_load(work, load, at_start=costs.begin, at_end=costs.end)
        finally:
            crowd.close()
        if found.errors or found.unanswered:
            raise SystemExit(f"calls failed: {found.errors}, {found.unanswered} unanswered")
        per_call = {role: spent / found.calls * 1e6 for role, spent in costs.cpu_s.items()}
        return {"calls_per_s": found.calls / found.seconds, **per_call}


def compare(carpools: dict[int, LoadedCarpool], scenario: str, rounds: int, seconds: float) -> float:
    """Measure one scenario, print it, and return the upper end of the interval of the ratio."""
    agents, in_flight = map(int, scenario.split("x"))
    taken: list[dict[int, dict[str, float]]] = []
    for number in range(rounds):
        order = list(carpools) if number % 2 else list(reversed(carpools))
        taken.append({each: carpools[each].measure(agents, in_flight, seconds) for each in order})
    few, many = carpools
    for each in carpools:
        figures: dict[str, Any] = {
            name: statistics.median(row[each][name] for row in taken) for name in taken[0][each]
        }
        print(
            f"{scenario:>6} {each} supervisors: {figures['calls_per_s']:8.0f} calls/s, broker "
            f"{figures['broker']:5.1f} µs, supervisors {figures['supervisor']:5.1f} µs per call"
        )
    ratios = [row[many]["calls_per_s"] / row[few]["calls_per_s"] for row in taken]
    low, high = median_interval(ratios)
    print(
        f"{scenario:>6} calls/s, {many} to {few}: {statistics.median(ratios):.3f} "
        f"(95 % {low:.3f} to {high:.3f}, {rounds} rounds)",
        flush=True,
    )
    return high


def main() -> int:
    """Run the command. Returns its exit code: 1 if more supervisors are worse."""
    parser = argparse.ArgumentParser(prog="python -m bench.supervisors", description=__doc__.split("\n")[0])
    parser.add_argument("--supervisors", type=int, default=2)
    parser.add_argument("--scenarios", default="64x1,8x16", help="agents x in flight, with commas")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0)
    asked = parser.parse_args()
    carpools: dict[int, LoadedCarpool] = {}
    try:
        for number in (1, asked.supervisors):
            carpools[number] = LoadedCarpool(number)
        found = [compare(carpools, each, asked.rounds, asked.seconds) for each in asked.scenarios.split(",")]
    finally:
        for each in carpools.values():
            each.close()
    return 0 if min(found) >= 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
