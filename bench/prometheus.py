"""`python -m bench.prometheus`: a real Prometheus server scrapes a carpool with 200 agents.

Starts a private carpool of this tree with an HTTP door and an echo server, and Prometheus (`apt install
prometheus`) with the alert rules of docs/. 200 agents of the Python client call, the broker is killed, and
they call again. Prints the counts of agents and of Prometheus; ends with 1 on a difference.
Where no Prometheus is installed it says so and ends with 0. Loopback only; bounded; ends what it started.

Knows nothing of: which metrics there are (`carpool.http.core.metrics_page`), counters (`carpool stats`).
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import trio

from bench.counters_cost import echo_server
from bench.revisions import HERE, Tree
from carpool import Carpool

AGENTS: Final = 200
CALLS: Final = 50
"""By each agent."""
LIMIT_S: Final = 60.0
SCRAPE_S: Final = 1


def free_port() -> int:
    """A TCP port of loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class PrometheusServer:
    """A Prometheus server that scrapes one address."""

    def __init__(self, binary: str, place: Path, target: str, token: str) -> None:
        self._url = f"http://127.0.0.1:{free_port()}"
        config = {
            "global": {"scrape_interval": f"{SCRAPE_S}s"},
            "rule_files": [str(HERE / "docs" / "carpool-alerts.yml")],
            "scrape_configs": [
                {
                    "job_name": "carpool",
                    "authorization": {"credentials": token},
                    "static_configs": [{"targets": [target]}],
                }
            ],
        }
        file = place / "prometheus.yml"
        file.write_text(json.dumps(config))  # JSON is YAML
        self._process = subprocess.Popen(
            [
                binary, f"--config.file={file}", f"--storage.tsdb.path={place / 'data'}",
                f"--web.listen-address={self._url.removeprefix('http://')}",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(LIMIT_S)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The present result of an expression; empty while Prometheus starts."""
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/query?{query}", timeout=5) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return found
        except OSError:
            return []

    def value(self, expression: str) -> float | None:
        """The only value of an expression; None if there is none."""
        found = self.query(expression)
        return float(found[0]["value"][1]) if len(found) == 1 else None


def wait_for(condition: Callable[[], bool]) -> bool:
    """Wait until the condition holds. Returns False if it does not within the limit."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


@contextmanager
def scraped_carpool(binary: str) -> Iterator[tuple[Tree, PrometheusServer]]:
    """A carpool with an HTTP door, and a Prometheus server that scrapes it."""
    with tempfile.TemporaryDirectory(prefix="carpool-prometheus-") as made:
        place, address = Path(made), f"127.0.0.1:{free_port()}"
        config = place / "carpool.json"
        config.write_text(json.dumps({"mcpServers": {"echo": echo_server()}}))
        tree = Tree(HERE, place / "run")
        tree.carpool("up", "--detach", "--config", str(config), "--http", address)
        try:
            token = json.loads(tree.carpool("token", "show", "--json"))["token"]
            server = PrometheusServer(binary, place, address, token)
            try:
                yield tree, server
            finally:
                server.close()
        finally:
            tree.carpool("down")


async def crowd(counted: list[int]) -> None:
    """Let 200 agents call, each for itself, and count their answers."""

    async def agent(number: int) -> None:
        async with Carpool(name=f"agent-{number % 5}") as mine:
            for _ in range(CALLS):
                answer = await mine.call("echo__echo", {"text": "hi"})
                counted.append(int(not answer.is_error))

    async with trio.open_nursery() as nursery:
        for number in range(AGENTS):
            nursery.start_soon(agent, number)


def load(tree: Tree) -> int:
    """Let 200 agents call. Returns the number of answers that they counted."""
    os.environ.update(tree.environment())
    counted: list[int] = []
    trio.run(crowd, counted)
    return sum(counted)


def stats(tree: Tree) -> int:
    """The calls of the echo tool that `carpool stats` shows."""
    told: dict[str, Any] = json.loads(tree.carpool("stats", "--by", "tool", "--json"))
    return sum(each["calls"] for each in told["groups"] if each["name"] == "echo/echo")


def check(tree: Tree, server: PrometheusServer, what: str) -> bool:
    """Load carpool, wait for the next scrape, and compare. Prints one row."""
    counted = load(tree)
    shown = stats(tree)
    expression = 'sum(carpool_calls_total{server="echo",tool="echo"})'
    same = wait_for(lambda: server.value(expression) == shown)
    stored, p99 = server.value(expression), server.value(
        "histogram_quantile(0.99, sum by (le)"
        f' (increase(carpool_call_duration_seconds_bucket{{server="echo",part="total"}}[{20 * SCRAPE_S}s])))'
    )  # fmt: skip
    print(
        f"{what:<28} agents {counted:>8}  stats {shown:>8}  Prometheus {stored or 0:>8.0f}"
        f"  p99 {(p99 or 0) * 1000:6.1f} ms  {'same' if same else 'DIFFERENT'}"
    )
    return same and shown == counted


def kill_broker(tree: Tree) -> None:
    """Kill the broker, and wait until the next one serves."""
    pid = json.loads(tree.carpool("status", "--json"))["broker"]["pid"]
    os.kill(pid, signal.SIGKILL)

    def serves() -> bool:
        try:
            found: int = json.loads(tree.carpool("status", "--json"))["broker"]["pid"]
        except (subprocess.CalledProcessError, json.JSONDecodeError):
            return False
        return bool(found != pid)

    if not wait_for(serves):
        raise TimeoutError("no broker came after the one that was killed")


def main() -> int:
    """See the module."""
    binary = shutil.which("prometheus")
    if binary is None:
        print("skipped: no `prometheus` is installed here (Debian: apt install prometheus)")
        return 0
    with scraped_carpool(binary) as (tree, server):
        if not wait_for(lambda: server.value("carpool_healthy") == 1):
            print("Prometheus has not scraped carpool")
            return 1
        well = check(tree, server, f"{AGENTS} agents")
        run = server.query("carpool_info")[0]["metric"]["run"]
        kill_broker(tree)
        well = check(tree, server, "after the broker was killed") and well
        runs = {each["metric"]["run"] for each in server.query("last_over_time(carpool_info[5m])")}
        print(f"the broker before and the one after: {len(runs)} runs")
        rules = server.query("ALERTS")
        print(f"alerts: {', '.join(each['metric']['alertname'] for each in rules) or 'none'}")
        return 0 if well and len(runs) == 2 and run in runs else 1


if __name__ == "__main__":
    sys.exit(main())
