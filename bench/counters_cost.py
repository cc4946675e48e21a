"""`python -m bench.counters_cost`: what counting costs, as CPU of the broker per call.

Starts two private carpools of this tree with the same echo server, one with `"counters": true` and one with
`false`, and loads them in turns with `carpool bench`. A ratio is taken within a round, and each round begins
with the other one. Bounded; ends what it started. Prints the median ratio and its 95 % interval; the mark is
an upper end of at most 1.05. Ends with 1 if the mark is missed.

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


def counted(scenario: str, rounds: int, seconds: float, trees: dict[bool, Tree]) -> float:
    """Measure one scenario, print a line, and return the upper end of the interval."""
    agents, in_flight = map(int, scenario.split("x"))
    taken: list[dict[bool, float]] = []
    for number in range(rounds):
        order = (True, False) if number % 2 else (False, True)
        taken.append({on: trees[on].cpu_us_per_call(agents, in_flight, seconds)["broker"] for on in order})
    ratios = [each[True] / each[False] for each in taken]
    low, high = median_interval(ratios)
    without, with_counters = (statistics.median(each[on] for each in taken) for on in (False, True))
    print(
        f"{scenario:>6} broker {without:6.1f} µs without counters, {with_counters:6.1f} µs with them, "
        f"{statistics.median(ratios):.3f} (95 % {low:.3f} to {high:.3f}, {rounds} rounds; mark {MARK})",
        flush=True,
    )
    return high


def measure(scenarios: list[str], rounds: int, seconds: float) -> bool:
    """Measure all scenarios. Returns True if each meets the mark."""
    with tempfile.TemporaryDirectory(prefix="cp") as scratch:
        place = Path(scratch)
        trees: dict[bool, Tree] = {}
        try:
            for on in (True, False):
                config = place / f"counters-{on}.json"
                config.write_text(json.dumps({"mcpServers": {"echo": echo_server()}, "counters": on}))
                trees[on] = Tree(HERE, place / ("on" if on else "off"))
                trees[on].carpool("up", "--detach", "--config", str(config))
            return all([counted(each, rounds, seconds, trees) <= MARK for each in scenarios])  # noqa: C419 - measure all
        finally:
            for tree in trees.values():
                tree.carpool("down")


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
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0)
    asked = parser.parse_args()
    return 0 if measure(asked.scenarios.split(","), asked.rounds, asked.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
