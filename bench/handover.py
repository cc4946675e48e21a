"""`python -m bench.handover`: carpool restarts again and again under HTTP workers (docs/decisions/0054).

A carpool installed in an environment of its own, with a server that notes each call it runs. Workers call
all the time and repeat nothing: neither a connection nor a request. Meanwhile so many restarts of all
processes, and in their middle one upgrade in place: other files, then a restart. Checked: no connection is
refused, none is closed with a request on it, every request has one answer, a call that was answered well ran
once, one that was not delivered never ran. Bounded: so many restarts, each within `LIMIT_S`. Knows nothing
of: how carpool does that.
"""

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.http_worker import HttpWorker, workers
from carpool.launcher.sandbox import PrivateCarpool, PrivateCarpoolError
from tests.kit.open_door import open_door

ROOT: Final = Path(__file__).parents[1]
OBSERVER: Final = ROOT / "tests" / "live" / "observer.py"
PACKAGES: Final = {
    "carpool": "client",
    "carpool_broker": "broker",
    "carpool_protocol": "protocol",
    "carpool_supervisor": "supervisor",
}
LIMIT_S: Final = 90.0
WORK_S: Final = 0.1
"""The time that each call takes at the server."""
BROKEN: Final = (
    "refused",
    "no answer",
    "two answers",
    "closed while idle",
    "status ",
    "another answer",
    "initialize: ",
)
"""Words with which a count begins that no promise allows."""


class InstalledCarpool(PrivateCarpool):
    """A private carpool with an environment of its own, into which `install` puts versions."""

    def __init__(self) -> None:
        super().__init__("cph-")
        place = self.base / "venv"
        venv.EnvBuilder(symlinks=True, with_pip=False).create(place)
        self._python = str(place / "bin" / "python")
        self._packages = next(place.glob("lib/python*/site-packages"))
        others = [each for each in sys.path if Path(each).name == "site-packages"]
        (self._packages / "others.pth").write_text("\n".join(others) + "\n")
        self.environ.pop("PYTHONPATH", None)
        self.install("1.0.0")

    def install(self, version: str) -> None:
        """Replace what is installed by these sources, as this version."""
        for package, root in PACKAGES.items():
            shutil.rmtree(self._packages / package, ignore_errors=True)
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / root / package, self._packages / package, ignore=ignored)
        release = self._packages / "carpool_protocol" / "bootstrap" / "release.py"
        release.write_text(f'RELEASE = "{version}"\n')

    def run_carpool(self, *arguments: str) -> str:
        done = subprocess.run(
            [self._python, "-P", "-m", "carpool", *arguments],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise PrivateCarpoolError(f"`carpool {arguments[0]}` failed: {done.stderr.strip()[-500:]}")
        return done.stdout


async def load(
    crowd: list[HttpWorker], tool: str, changes: list[Callable[[], object]], every_s: float
) -> None:
    """Let the crowd work while the changes are made one after the other, with so much calm around each."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for worker in crowd:
            group.create_task(worker.run(stop, tool, {"count": 1, "delay_s": WORK_S}))
        try:
            for change in changes:
                await asyncio.sleep(every_s)
                await asyncio.to_thread(change)
            await asyncio.sleep(every_s)
        finally:
            stop.set()


def findings(crowd: list[HttpWorker], ran: Counter[str]) -> dict[str, Any]:
    """Return all counts, and what is wrong with executions."""
    counts = sum((worker.counts for worker in crowd), Counter[str]())
    calls = {text: outcome for worker in crowd for text, outcome in worker.calls.items()}
    waits = sorted(wait for worker in crowd for wait in worker.waits)
    good = [text for text, outcome in calls.items() if outcome == "good"]
    undelivered = [
        text
        for text, outcome in calls.items()
        if "delivered no" in outcome or "404" in outcome or "503" in outcome
    ]
    return {
        **dict(sorted(counts.items())),
        "answered well and not run": sum(ran[text] == 0 for text in good),
        "run twice": sum(count > 1 for count in ran.values()),
        "not delivered and run": sum(ran[text] > 0 for text in undelivered),
        "calls without an answer": sum(outcome == "no answer" for outcome in calls.values()),
        "wait p50 s": round(statistics.median(waits), 3),
        "wait worst s": round(waits[-1], 3),
    }


def broken(found: dict[str, Any]) -> list[str]:
    """Return the counts that break a promise."""
    never = ("answered well and not run", "run twice", "not delivered and run", "calls without an answer")
    names = [name for name in found if name.startswith(BROKEN) or name in never]
    return [name for name in names if found[name]]


def executions(file: Path) -> Counter[str]:
    """Return how often each text of a worker was run."""
    return Counter(file.read_text().split("\n")[:-1])


def configuration(order: Path) -> dict[str, Any]:
    """Return the configuration: the server of the run, and an HTTP door at any port."""
    server: dict[str, Any] = {
        "command": sys.executable,
        "args": ["-S", "-E", str(OBSERVER), "--order", str(order)],
    }
    server |= {"pool": {"max": 1}, "sharing": "concurrent"}
    return {"mcpServers": {"good": server}, "http": open_door()}


def port_of(private: PrivateCarpool) -> int:
    """Return the port of its HTTP door."""
    url: str = json.loads((Path(private.directory) / "http.json").read_text())["url"]
    return int(url.rpartition(":")[2].partition("/")[0])


def main() -> int:
    """Run it. 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m bench.handover", description=__doc__)
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--every-s", type=float, default=2.0, help="Seconds of calm before each restart.")
    arguments = parser.parse_args()
    private = InstalledCarpool()
    order = private.base / "order"
    try:
        private.config_file.write_text(json.dumps(configuration(order)))
        private.up()
        crowd = workers(arguments.workers, port_of(private))
        restarts: list[Callable[[], object]] = [
            lambda: private.run_carpool("restart", "--all")
        ] * arguments.restarts

        def upgrade() -> None:
            private.install("2.0.0")
            private.run_carpool("restart", "--all")

        restarts.insert(len(restarts) // 2, upgrade)
        asyncio.run(load(crowd, "good__steps", restarts, arguments.every_s))
        version = private.status()["broker"]["version"]
        found = findings(crowd, executions(order))
    finally:
        troubles = private.close()
        for line in troubles:
            print(line, file=sys.stderr)
    found |= {"restarts": arguments.restarts, "upgrades": 1, "version at the end": version}
    for name, value in found.items():
        print(f"{name:32} {value}")
    wrong = broken(found)
    print("broken: " + ", ".join(wrong) if wrong else "all promises are kept")
    return int(bool(wrong) or bool(troubles) or version != "2.0.0")


if __name__ == "__main__":
    sys.exit(main())
