"""`python -m bench.revisions REVISION`: CPU per call of this tree next to that of an earlier revision.

Clones the revision into a temporary directory, starts a private carpool of each tree (the same interpreter,
that tree's source first on the path) with the same echo server, and loads both in turns with `carpool bench`.
A ratio is taken within a round, so that a slow moment of the machine hits both. Bounded; ends
what it started. Prints the ratio per process and scenario: the median over the rounds, and its 95 % interval
(bootstrap over the rounds; with fewer than nine of them it is too narrow). With `--trace 1.0` this tree
exports traces of that part of the calls to a sink in this process; `HEAD --trace 1.0` shows what that costs.

Knows nothing of: what is measured (`carpool bench`), which ratio is good enough.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
ROOTS = ("broker", "supervisor", "protocol", "client")
PARTS = ("broker", "supervisor")
RESAMPLES = 10_000


class Tree:
    """One revision with a carpool of its own."""

    def __init__(self, source: Path, runtime_dir: Path) -> None:
        self._source = source
        runtime_dir.mkdir(mode=0o700)
        self._env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(source / root) for root in ROOTS),
            "CARPOOL_RUNTIME_DIR": str(runtime_dir),
            "CARPOOL_STATE_DIR": str(runtime_dir / "state"),
        }

    def environment(self) -> dict[str, str]:
        """The variables that lead a client to this tree's carpool."""
        return {name: self._env[name] for name in ("CARPOOL_RUNTIME_DIR", "CARPOOL_STATE_DIR")}

    def carpool(self, *words: str) -> str:
        """What this tree's carpool prints. Raises `CalledProcessError`."""
        return subprocess.run(
            [sys.executable, "-m", "carpool.entry", *words],
            cwd=self._source, env=self._env, check=True, stdout=subprocess.PIPE, text=True, timeout=300,
        ).stdout  # fmt: skip

    def cpu_us_per_call(self, agents: int, in_flight: int, seconds: float) -> dict[str, float]:
        """Microseconds per call, by process."""
        words = ["--agents", str(agents), "--in-flight", str(in_flight), "--seconds", str(seconds), "--json"]
        told: dict[str, Any] = json.loads(
            self.carpool("bench", "echo__echo", "--args", '{"text":"hi"}', *words)
        )
        found: dict[str, float] = told["cpu_us_per_call"]
        return {**{part: found[part] for part in PARTS}, "both": sum(found[part] for part in PARTS)}


def median_interval(ratios: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """The bootstrap interval of the median of these ratios. The same ratios have the same interval."""
    dice = random.Random(len(ratios))
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    cut = round(RESAMPLES * (1 - level) / 2)
    return medians[cut], medians[-1 - cut]


class _Sink(BaseHTTPRequestHandler):
    """A collector that takes spans and reads none of them."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def traced(sample: float | None) -> Iterator[dict[str, Any]]:
    """The setting that exports this part of the calls to a sink, until the end of the block."""
    if sample is None:
        yield {}
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), _Sink) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        yield {"trace": {"on": True, "sample": sample, "endpoint": endpoint}}
        server.shutdown()


def compare(
    revision: str, scenarios: list[str], rounds: int, seconds: float, sample: float | None = None
) -> None:
    """Print a line per scenario and process."""
    with tempfile.TemporaryDirectory(prefix="cp") as scratch, traced(sample) as settings:
        place = Path(scratch)
        then_source = place / "then"
        subprocess.run(["git", "clone", "--quiet", str(HERE), str(then_source)], check=True)
        subprocess.run(["git", "-C", str(then_source), "checkout", "--quiet", revision], check=True)
        configs = {"then": place / "then.json", "now": place / "now.json"}
        echo = {
            "command": sys.executable,
            "args": ["-m", "carpool.demo.echo_server"],
            "sharing": "concurrent",
            "env": {"PYTHONPATH": str(HERE / "client")},
        }
        configs["then"].write_text(json.dumps({"mcpServers": {"echo": echo}}))
        configs["now"].write_text(json.dumps({"mcpServers": {"echo": echo}, **settings}))
        trees = {"then": Tree(then_source, place / "a"), "now": Tree(HERE, place / "b")}
        try:
            for name, tree in trees.items():
                tree.carpool("up", "--detach", "--config", str(configs[name]))
            for scenario in scenarios:
                agents, in_flight = map(int, scenario.split("x"))
                taken = [
                    {name: tree.cpu_us_per_call(agents, in_flight, seconds) for name, tree in trees.items()}
                    for _ in range(rounds)
                ]
                for part in (*PARTS, "both"):
                    then, now = (statistics.median(each[name][part] for each in taken) for name in trees)
                    ratios = [each["now"][part] / each["then"][part] for each in taken]
                    low, high = median_interval(ratios)
                    print(
                        f"{scenario:>6} {part:<11} {then:6.1f} µs then, {now:6.1f} µs now, "
                        f"{statistics.median(ratios):.2f} (95 % {low:.3f} to {high:.3f}, {rounds} rounds)"
                    )
        finally:
            for tree in trees.values():
                tree.carpool("down")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.revisions", description=__doc__.split("\n")[0])
    parser.add_argument("revision", help="what to compare with: a commit, a tag")
    parser.add_argument("--scenarios", default="64x1,1x64", help="agents x in flight, with commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--trace", type=float, metavar="SAMPLE", help="export traces of this part of calls")
    asked = parser.parse_args()
    compare(asked.revision, asked.scenarios.split(","), asked.rounds, asked.seconds, asked.trace)


if __name__ == "__main__":
    main()
