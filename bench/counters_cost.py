"""`python -m bench.counters_cost`: what counting costs, as CPU of the broker per call.

Starts a private carpool of this tree with an echo server, and loads it with `carpool bench` again and again,
while `counters` is true and false in turns: the broker reads its file again in between. One process is
compared with itself, because two processes of the same program already differ by some per cent. A ratio is
taken within a round, and rounds begin with the one and the other in turns. Bounded; ends what it started.
Prints the median ratio and its 95 % interval; the mark is an upper end of at most 1.05. Ends with 1 if the
mark is missed.

Knows nothing of: what is counted, how CPU is measured (`carpool bench`), the interval (`revisions`).
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.revisions import HERE, Tree, median_interval

MARK: Final = 1.05


class CountingCarpool:
    """A private carpool that counts calls or does not."""

    def __init__(self, place: Path) -> None:
        self._config = place / "carpool.json"
        self._tree = Tree(HERE, place / "run")
        self._write(on=True)
        self._tree.carpool("up", "--detach", "--config", str(self._config))

    def close(self) -> None:
        """End it."""
        self._tree.carpool("down")

    def _write(self, *, on: bool) -> None:
        self._config.write_text(json.dumps({"mcpServers": {"echo": echo_server()}, "counters": on}))

    def broker_us_per_call(self, scenario: str, seconds: float, *, on: bool) -> float:
        """Load it with counters on or off. Returns the microseconds of the broker per call."""
        self._write(on=on)
        self._tree.carpool("reload")
        agents, in_flight = map(int, scenario.split("x"))
        return self._tree.cpu_us_per_call(agents, in_flight, seconds)["broker"]


def measure(counted: CountingCarpool, scenario: str, rounds: int, seconds: float) -> float:
    """Measure one scenario, print a line, and return the upper end of the interval."""
    taken: list[dict[bool, float]] = []
    for number in range(rounds):
        order = (True, False) if number % 2 else (False, True)
        taken.append({on: counted.broker_us_per_call(scenario, seconds, on=on) for on in order})
    ratios = [each[True] / each[False] for each in taken]
    low, high = median_interval(ratios)
    without, with_counters = (statistics.median(each[on] for each in taken) for on in (False, True))
    print(
        f"{scenario:>6} broker {without:6.1f} µs without counters, {with_counters:6.1f} µs with them, "
        f"{statistics.median(ratios):.3f} (95 % {low:.3f} to {high:.3f}, {rounds} rounds; mark {MARK})",
        flush=True,
    )
    return high


def echo_server() -> dict[str, object]:
    """Return the server that answers at once."""
    return {
        "command": sys.executable,
        "args": ["-m", "carpool.demo.echo_server"],
        "sharing": "concurrent",
        "env": {"PYTHONPATH": str(HERE / "client")},
    }


def main() -> int:
    """Run the command. Returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.counters_cost", description=__doc__.split("\n")[0])
    parser.add_argument("--scenarios", default="64x1,1x64", help="agents x in flight, with commas")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=2.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cp") as scratch:
        counted = CountingCarpool(Path(scratch))
        try:
            found = [
                measure(counted, each, asked.rounds, asked.seconds) for each in asked.scenarios.split(",")
            ]
        finally:
            counted.close()
    return 0 if max(found) <= MARK else 1


if __name__ == "__main__":
    sys.exit(main())
