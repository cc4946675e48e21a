"""`python -m bench.revisions REVISION`: CPU per call of this tree next to that of an earlier revision.

Clones the revision into a temporary directory, starts a private carpool of each tree (the same interpreter,
that tree's source first on the path) with the same echo server, and loads both in turns with `carpool bench`.
A ratio is taken within a round, so that a slow moment of the machine hits both. Bounded; ends
what it started. Prints the ratio per process and scenario: the median over the rounds, and its 95 % interval
(bootstrap over the rounds; with fewer than nine of them it is too narrow). With `--trace 1.0` this tree
exports traces of that part of the calls to a sink in this process; `HEAD --trace 1.0` shows what that costs.
A scenario `http20` has 20 clients over HTTP in place of agents on sockets (`http_worker`), and measures the
HTTP door as well.

Knows nothing of: which ratio is good enough.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.http_worker import workers

HERE = Path(__file__).parents[1]
ROOTS = ("broker", "supervisor", "protocol", "client")
PARTS = ("broker", "supervisor")
HTTP_PARTS = ("door", *PARTS)
RESAMPLES = 10_000


class Tree:
    """One revision with a carpool of its own."""

    def __init__(self, source: Path, runtime_dir: Path) -> None:
        self._source = source
        self._runtime_dir = runtime_dir
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

    def http_cpu_us_per_call(self, clients: int, seconds: float) -> dict[str, float]:
        """Microseconds per call over HTTP, by process."""
        status = json.loads(self.carpool("status", "--json"))
        pids = {each["role"]: int(each["pid"]) for each in status["processes"]}
        port = urlsplit(json.loads((self._runtime_dir / "http.json").read_text())["url"]).port
        assert port is not None
        before = {part: process_cpu_s(pids[part]) for part in HTTP_PARTS}
        good = asyncio.run(_http_calls(clients, port, seconds))
        found = {part: (process_cpu_s(pids[part]) - before[part]) * 1e6 / good for part in HTTP_PARTS}
        return {**found, "both": found["broker"] + found["supervisor"]}

    def cpu_us_per_call(self, agents: int, in_flight: int, seconds: float) -> dict[str, float]:
        """Microseconds per call, by process."""
        words = ["--agents", str(agents), "--in-flight", str(in_flight), "--seconds", str(seconds), "--json"]
        told: dict[str, Any] = json.loads(
            self.carpool("bench", "echo__echo", "--args", '{"text":"hi"}', *words)
        )
        found: dict[str, float] = told["cpu_us_per_call"]
        return {**{part: found[part] for part in PARTS}, "both": sum(found[part] for part in PARTS)}


async def _http_calls(clients: int, port: int, seconds: float) -> int:
    """Load an HTTP door; return the number of calls that were answered as they should be."""
    stop = asyncio.Event()
    load = workers(clients, port)
    running = [asyncio.create_task(each.run(stop, "echo__echo", {})) for each in load]
    await asyncio.sleep(seconds)
    stop.set()
    await asyncio.gather(*running)
    return sum(each.counts["good"] for each in load)


def process_cpu_s(pid: int) -> float:
    """Return the CPU time of all threads of a process, in nanoseconds exactly (Linux)."""
    found_ns = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with suppress(FileNotFoundError):
            found_ns += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
    return found_ns / 1e9


def _http_settings(source: Path) -> dict[str, Any]:
    """The settings of an HTTP door without tokens, in this revision."""
    has_switch = '"tokens": false' in (source / "docs" / "http.md").read_text()
    return {"http": {"port": 0, **({"tokens": False} if has_switch else {})}}


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


def _measured(tree: Tree, scenario: str, seconds: float) -> dict[str, float]:
    if scenario.startswith("http"):
        return tree.http_cpu_us_per_call(int(scenario.removeprefix("http")), seconds)
    agents, in_flight = map(int, scenario.split("x"))
    return tree.cpu_us_per_call(agents, in_flight, seconds)


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
        has_http = any(each.startswith("http") for each in scenarios)
        for name, source in (("then", then_source), ("now", HERE)):
            extra = (settings if name == "now" else {}) | (_http_settings(source) if has_http else {})
            configs[name].write_text(json.dumps({"mcpServers": {"echo": echo}, **extra}))
        trees = {"then": Tree(then_source, place / "a"), "now": Tree(HERE, place / "b")}
        try:
            for name, tree in trees.items():
                tree.carpool("up", "--detach", "--config", str(configs[name]))
            for scenario in scenarios:
                is_http = scenario.startswith("http")
                taken = [
                    {name: _measured(tree, scenario, seconds) for name, tree in trees.items()}
                    for _ in range(rounds)
                ]
                for part in (*(HTTP_PARTS if is_http else PARTS), "both"):
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
    parser.add_argument(
        "--scenarios", default="64x1,1x64", help="agents x in flight, or http and the clients, with commas"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--trace", type=float, metavar="SAMPLE", help="export traces of this part of calls")
    asked = parser.parse_args()
    compare(asked.revision, asked.scenarios.split(","), asked.rounds, asked.seconds, asked.trace)


if __name__ == "__main__":
    main()
