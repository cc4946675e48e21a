"""`python -m bench.watchers`: what watchers of the web page cost the broker per call, and the callers in p99.

Starts a private carpool of this tree with an HTTP door and an echo server, and loads it with `carpool bench`
again and again: without watchers, with 20 that do not read, and with 3 that read, in turns. Watchers connect
anew for each window, so the figures hold the seconds in which the system still takes states for those that
do not read. One process is compared with itself. A ratio is taken within a round, between the means of its
turns, because short windows side by side share the machine's drift. Bounded; ends what it started. Prints
the median ratios and their 95 % intervals; the mark is an upper end of at most 1.05 for the broker's CPU
with 20 watchers that do not read, and a lower end of at most 1 for the p99 (nobody's is worse). Ends with 1
if a mark is missed.

Knows nothing of: what a state holds, how CPU is measured (`carpool bench`), the interval (`revisions`).
"""

import argparse
import json
import socket
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from bench.counters_cost import echo_server
from bench.prometheus import free_port
from bench.revisions import HERE, Tree, median_interval

MARK: Final = 1.05
FROZEN, READING = 20, 3
ATTACH_S: Final = 10.0

Arm = Literal["none", "frozen", "reading"]
ARMS: Final[tuple[Arm, ...]] = ("none", "frozen", "reading")


class Window(NamedTuple):
    """The cost of one window of load."""

    broker_us: float
    """CPU of the broker per call."""
    p99_s: float


class WatchedCarpool:
    """A private carpool with an HTTP door."""

    def __init__(self, place: Path) -> None:
        self._tree = Tree(HERE, place / "run")
        self._port = free_port()
        config = place / "carpool.json"
        config.write_text(json.dumps({"mcpServers": {"echo": echo_server()}}))
        address = f"127.0.0.1:{self._port}"
        self._tree.carpool("up", "--detach", "--config", str(config), "--http", address)
        self._key: str = json.loads(self._tree.carpool("web", "--json"))["key"]

    def close(self) -> None:
        """End it."""
        self._tree.carpool("down")

    def window(self, scenario: str, seconds: float, arm: Arm) -> Window:
        """Load it while the watchers of an arm watch."""
        agents, in_flight = map(int, scenario.split("x"))
        words = ["--agents", str(agents), "--in-flight", str(in_flight), "--seconds", str(seconds), "--json"]
        with self._watchers(arm):
            said = self._tree.carpool("bench", "echo__echo", "--args", '{"text":"hi"}', *words)
        told: dict[str, Any] = json.loads(said)
        return Window(told["cpu_us_per_call"]["broker"], told["p99_s"])

    @contextmanager
    def _watchers(self, arm: Arm) -> Iterator[None]:
        count = {"none": 0, "frozen": FROZEN, "reading": READING}[arm]
        found = [self._watcher() for _ in range(count)]
        readers = [threading.Thread(target=_read_all, args=(each,)) for each in found if arm == "reading"]
        for each in readers:
            each.start()
        try:
            yield
        finally:
            for sock in found:
                sock.shutdown(socket.SHUT_RDWR)
            for each in readers:
                each.join(ATTACH_S)
            for sock in found:
                sock.close()

    def _watcher(self) -> socket.socket:
        """A connection whose stream has begun. Nothing more of it is read."""
        sock = socket.create_connection(("127.0.0.1", self._port), ATTACH_S)
        head = (
            "GET /operator/live HTTP/1.1",
            "Host: localhost",
            f"Authorization: Bearer {self._key}",
            "",
            "",
        )
        sock.sendall("\r\n".join(head).encode())
        begun = sock.recv(64)
        assert begun.startswith(b"HTTP/1.1 200"), begun
        return sock


def _read_all(sock: socket.socket) -> None:
    try:
        while sock.recv(65536):
            pass
    except OSError:  # its window is over
        return


def mean_window(windows: Sequence[Window]) -> Window:
    """Return the means of these windows of one arm."""
    return Window(*map(statistics.fmean, zip(*windows, strict=True)))


def measure_round(
    watched: WatchedCarpool, scenario: str, number: int, turns: int, seconds: float
) -> dict[Arm, Window]:
    """Measure each arm in each turn, another one first each time."""
    taken: dict[Arm, list[Window]] = {arm: [] for arm in ARMS}
    for turn in range(number, number + turns):
        first = turn % len(ARMS)
        for arm in (*ARMS[first:], *ARMS[:first]):
            taken[arm].append(watched.window(scenario, seconds, arm))
    return {arm: mean_window(windows) for arm, windows in taken.items()}


def measure(watched: WatchedCarpool, scenario: str, rounds: int, turns: int, seconds: float) -> bool:
    """Measure one scenario and print its lines. Returns True if the marks hold."""
    taken = [measure_round(watched, scenario, number, turns, seconds) for number in range(rounds)]
    good = True
    for arm in ("frozen", "reading"):
        cpu = [each[arm].broker_us / each["none"].broker_us for each in taken]
        p99 = [each[arm].p99_s / each["none"].p99_s for each in taken]
        (cpu_low, cpu_high), (p99_low, p99_high) = median_interval(cpu), median_interval(p99)
        median_us = statistics.median(each[arm].broker_us for each in taken)
        print(
            f"{scenario:>6} {FROZEN if arm == 'frozen' else READING:>3} {arm:<8} broker {median_us:6.1f} µs, "
            f"{statistics.median(cpu):.3f} of none (95 % {cpu_low:.3f} to {cpu_high:.3f}); "
            f"p99 {statistics.median(p99):.3f} (95 % {p99_low:.3f} to {p99_high:.3f}); {rounds} rounds",
            flush=True,
        )
        if arm == "frozen":
            good = cpu_high <= MARK and p99_low <= 1.0
    return good


def main() -> int:
    """Run the command. Returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.watchers", description=__doc__.split("\n")[0])
    parser.add_argument("--scenarios", default="64x1,200x1", help="agents x in flight, with commas")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--turns", type=int, default=3, help="windows of each arm in a round")
    parser.add_argument("--seconds", type=float, default=4.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cp") as scratch:
        watched = WatchedCarpool(Path(scratch))
        try:
            found = [
                measure(watched, each, asked.rounds, asked.turns, asked.seconds)
                for each in asked.scenarios.split(",")
            ]
        finally:
            watched.close()
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
