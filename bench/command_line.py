"""`python -m bench.command_line`: how long the quick verbs take, in bare Python interpreters.

A private carpool with two servers that run. Measured in turns, each from the start of the process to its end:
`python -c pass`, `carpool --version`, `status`, `ps`, and `connect` to the answer of `initialize`. A round
runs each of them once, so that a busy machine slows all of them; the figure is the median of the ratios to
the bare interpreter of the same round. CPU time is given beside it, since it depends less on other load. The
exit code is 1 where the ratio of `status` is above `--limit` (6). Knows nothing of: what the verbs import.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from bench.first_list import OFFERS, ask
from carpool.launcher.own_command import carpool_argv
from carpool.launcher.sandbox import PrivateCarpool

BARE, CONNECT = "python -c pass", "connect"
VERBS = ("--version", "status", "ps")
Taken = tuple[float, float]
"""Seconds of wall clock, and of CPU."""


def main() -> int:
    """Run it; prints a line for each verb."""
    parser = argparse.ArgumentParser(prog="python -m bench.command_line", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--limit", type=float, default=6.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    private = PrivateCarpool("cpl-line-")
    try:
        rounds = measure(private, options.rounds)
    finally:
        troubles = private.close()
    for trouble in troubles:
        print(f"bench: {trouble}", file=sys.stderr)
    found = {name: summary(name, rounds) for name in rounds[0]}
    if options.json:
        print(json.dumps(found))
    else:
        for name, row in found.items():
            print(
                f"{name:<15} {row['wall_ms']:>7.1f} ms  {row['ratio']:>5.2f}   "
                f"CPU {row['cpu_ms']:>6.1f} ms  {row['cpu_ratio']:>5.2f}"
            )
    return int(bool(troubles) or found["status"]["ratio"] > options.limit)


def summary(name: str, rounds: list[dict[str, Taken]]) -> dict[str, Any]:
    """Return the medians of one verb, and those of its ratios to the bare interpreter."""

    def median(at: int, *, ratio: bool) -> float:
        return statistics.median(each[name][at] / (each[BARE][at] if ratio else 1e-3) for each in rounds)

    return {
        "wall_ms": round(median(0, ratio=False), 1),
        "ratio": round(median(0, ratio=True), 2),
        "cpu_ms": round(median(1, ratio=False), 1),
        "cpu_ratio": round(median(1, ratio=True), 2),
    }


def measure(private: PrivateCarpool, rounds: int) -> list[dict[str, Taken]]:
    """Return what each command of each round took."""
    offer = private.base / "offer.json"
    offer.write_text(json.dumps({"tools": {"look": "Looks."}}))
    args = ["-S", "-E", str(OFFERS), str(private.base / "starts"), str(offer)]
    servers = {f"shop{at}": {"command": sys.executable, "args": args} for at in range(2)}
    private.config_file.write_text(json.dumps({"mcpServers": servers}))
    private.up()
    private.run_carpool("tools", "--json")
    private.run_carpool("start", "--all")
    return [one_round(private.environ) for _ in range(rounds + 2)][2:]  # the first ones warm the page cache


def one_round(environ: dict[str, str]) -> dict[str, Taken]:
    """Return what each command took, each run once."""
    bare = {BARE: run([sys.executable, "-c", "pass"], environ)}
    verbs = {verb: run([*carpool_argv(), verb], environ) for verb in VERBS}
    return {**bare, **verbs, CONNECT: connect(environ)}


def run(argv: list[str], environ: dict[str, str]) -> Taken:
    """Return the time of a command that must succeed."""
    began_s = time.perf_counter()
    process = subprocess.Popen(argv, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    taken = _ended(process, began_s)
    if process.returncode:
        raise SystemExit(f"bench: {argv[-1]} ended with {process.returncode}")
    return taken


def connect(environ: dict[str, str]) -> Taken:
    """Return the time of a shim from its start to the answer of `initialize`; its CPU to its end."""
    began_s = time.perf_counter()
    process = subprocess.Popen(
        [*carpool_argv(), "connect"], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    about = {"name": "bench", "version": "1"}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about}
    ask(process, {"id": 1, "method": "initialize", "params": params})
    wall_s = time.perf_counter() - began_s
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    _, cpu_s = _ended(process, began_s)
    process.stdout.close()
    return wall_s, cpu_s


def _ended(process: "subprocess.Popen[bytes]", began_s: float) -> Taken:
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return time.perf_counter() - began_s, used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
