"""`python -m tests.conformance.run`: the official conformance suite against a server.

Without `--url` against our fixture (`tests/kit/servers/conformance.py`) on the official SDK's own HTTP: that
is the bar, and proves the fixture. With `--through` against the fixture over stdio behind a private carpool
(`through`), with `--url` against whatever listens there. `--suites 8` runs eight at once. Prints a table per
requirement set and what went wrong. Exits with 1 when a required scenario is bad, with 69 when the suite is
not installed, could not be run or could not be read. Bounded: `LIMIT_S` per suite.
Owns the suite's processes and the fixture's. Knows nothing of: how results are judged (`results`).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.conformance.results import (
    SuiteError,
    SuiteRun,
    complaints,
    read,
    required_scenarios,
    summary,
    table,
)
from tests.conformance.through import ERAS, FIXTURE, SHARINGS, listens, through
from tests.kit.ports import free_port

ROOT: Final = Path(__file__).parents[2]
INSTALLED: Final = ROOT / ".venv" / "conformance"
NODE: Final = INSTALLED / "bin" / "node"
PACKAGE: Final = INSTALLED / "node_modules" / "@modelcontextprotocol" / "conformance"
REVISIONS: Final = ("2025-11-25", "2026-07-28")
LIMIT_S: Final = 300.0
START_S: Final = 30.0
STOP_S: Final = 5.0
UNAVAILABLE: Final = 69


def _ended(process: subprocess.Popen[bytes]) -> None:
    """End a process of ours, and wait for it."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def fixture(log: Path) -> Iterator[str]:
    """Our fixture on the SDK's own HTTP; its URL. What it writes to stderr goes to `log`.

    Raises:
        SuiteError: it did not start.
    """
    port = free_port()
    with log.open("wb") as out:
        argv = [sys.executable, str(FIXTURE), "--http", str(port)]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + START_S
        while not listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SuiteError(f"the fixture did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        _ended(process)


def _suite(url: str, revision: str, out: Path) -> subprocess.Popen[bytes]:
    """Start one suite; its results go to `out`, its words to `out`/said.txt."""
    out.mkdir(parents=True)
    command = [str(NODE), str(PACKAGE / "dist" / "index.js"), "server", "--url", url]
    with (out / "said.txt").open("wb") as said:
        return subprocess.Popen(
            [*command, "--requirements", revision, "-o", str(out)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )


def run_suites(url: str, revision: str, out: Path, count: int) -> list[SuiteRun]:
    """So many suites at once against one URL, each judged, also one that took too long.

    Raises:
        SuiteError: files of the suite cannot be read.
    """
    required = required_scenarios((PACKAGE / "requirements" / f"{revision}.yaml").read_text())
    places = [out / revision / str(at) for at in range(1, count + 1)]
    deadline = time.monotonic() + LIMIT_S
    with ExitStack() as ending:
        suites = []
        for place in places:
            suites.append(_suite(url, revision, place))
            ending.callback(_ended, suites[-1])
        for suite in suites:
            with suppress(subprocess.TimeoutExpired):
                suite.wait(max(0.0, deadline - time.monotonic()))
    return [read(place, required) for place in places]


def as_json(runs: Sequence[SuiteRun]) -> list[dict[str, object]]:
    """Runs for programs."""
    return [
        {"ok": run.ok, "scenarios": [vars(each) | {"ok": each.ok} for each in run.scenarios]} for run in runs
    ]


def report(url: str, revision: str, runs: Sequence[SuiteRun]) -> None:
    """Print a requirement set for people."""
    print(f"\n## {revision}, {url}\n\n{table(runs)}\n")
    for at, run in enumerate(runs, 1):
        print(f"{f'suite {at}: ' if len(runs) > 1 else ''}{run.line()}")
    for complaint in complaints(runs):
        print(f"  {complaint}")


def options(argv: Sequence[str]) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance.run", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--url", help="the server's MCP endpoint on loopback (default: our fixture on the SDK's HTTP)"
    )
    parser.add_argument(
        "--through", action="store_true", help="our fixture over stdio, through a private carpool"
    )
    parser.add_argument(
        "--era", choices=ERAS, default=ERAS[0], help=f"of the fixture behind carpool (default {ERAS[0]})"
    )
    parser.add_argument(
        "--sharing",
        choices=SHARINGS,
        default=SHARINGS[0],
        help=f"of the fixture behind carpool (default {SHARINGS[0]})",
    )
    parser.add_argument(
        "--requirements", choices=REVISIONS, action="append", help="a requirement set (default: both)"
    )
    parser.add_argument("--suites", type=int, default=1, help="so many at once (default 1)")
    parser.add_argument("--out", type=Path, help="keep the suite's files in this new directory")
    parser.add_argument("--json", action="store_true", help="print one object instead of tables")
    chosen = parser.parse_args(argv)
    if chosen.through and chosen.url:
        parser.error("--url or --through, not both")
    if chosen.suites < 1:
        parser.error("--suites is at least 1")
    if chosen.out is not None and chosen.out.exists():
        parser.error(f"{chosen.out} exists: name a new directory")
    return chosen


def run(chosen: argparse.Namespace, out: Path) -> dict[str, list[SuiteRun]]:
    """Run what was chosen, one requirement set after the other; the runs by revision."""
    with ExitStack() as stack:
        if chosen.through:
            log = out / "carpool.log"
            how = {"era": chosen.era, "sharing": chosen.sharing}
            url = stack.enter_context(through(log, **how, suites=chosen.suites))
        else:
            url = chosen.url or stack.enter_context(fixture(out / "fixture.log"))
        found = {}
        for revision in chosen.requirements or REVISIONS:
            found[revision] = run_suites(url, revision, out, chosen.suites)
            if not chosen.json:
                report(url, revision, found[revision])
        if not chosen.json:
            print(f"\n{summary(found)}")
        return found


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    chosen = options(sys.argv[1:] if argv is None else argv)
    if not (INSTALLED / "ready").exists():
        print("conformance: no .venv/conformance: run `make .venv/conformance/ready` first", file=sys.stderr)
        return UNAVAILABLE
    with tempfile.TemporaryDirectory(prefix="cpf-") as temporary:
        out = chosen.out or Path(temporary) / "out"
        out.mkdir(parents=True)
        try:
            found = run(chosen, out)
        except (SuiteError, OSError) as error:
            print(f"conformance: {error}", file=sys.stderr)
            return UNAVAILABLE
    if chosen.json:
        print(json.dumps({revision: as_json(runs) for revision, runs in found.items()}, indent=1))
    return 0 if all(each.ok for runs in found.values() for each in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
