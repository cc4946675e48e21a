"""`python -m bench.first_list`: how soon an agent has its first list when nothing runs but carpool.

A private carpool that has been up before, so that its servers' catalogs are on disk, and that runs no server
now. Measured in turns, from the start of the process to its end or its answer: a bare Python interpreter
(`python -c pass`), and `carpool connect` with an agent that greets, is answered, and lists. Arms: `plain`;
`variables`, with `${SHOP_TOKEN}` of the agent's environment in each server; both again with `-S -E`, since
what a machine's `site` imports takes the same time of both sides and flatters the ratio. Checked each time:
every tool is there, and at the end that no server was started. The exit code is 1 where the median of a ratio
is above `--limit` (3). Knows nothing of: how lists are kept.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from carpool.launcher.own_command import carpool_argv
from carpool.launcher.sandbox import PrivateCarpool

OFFERS = Path(__file__).parents[1] / "tests" / "kit" / "servers" / "offers.py"
SERVERS, TOOLS = 5, 12
ABOUT = (
    "Does one thing well, with the arguments that its schema names, and says in a sentence what it did. " * 3
)


def main() -> int:
    """Run it; prints a line for each arm."""
    parser = argparse.ArgumentParser(prog="python -m bench.first_list", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--limit", type=float, default=3.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    failed = False
    for arm in ("plain", "variables", "plain -S", "variables -S"):
        env = {"SHOP_TOKEN": "${SHOP_TOKEN}"} if arm.startswith("variables") else {}
        private = PrivateCarpool("cpl-list-")
        private.environ["SHOP_TOKEN"] = "sesame-17"
        try:
            bare, first = measure(private, options.rounds, env, site=not arm.endswith("-S"))
        finally:
            troubles = private.close()
        for trouble in troubles:
            print(f"bench: {trouble}", file=sys.stderr)
        ratio = statistics.median(one / other for one, other in zip(first, bare, strict=True))
        failed |= bool(troubles) or ratio > options.limit
        found[arm] = {"bare_ms": _ms(bare), "first_list_ms": _ms(first), "ratio": round(ratio, 2)}
        if not options.json:
            print(f"{arm:<12} bare interpreter {_ms(bare)}   first tools/list {_ms(first)} ms   {ratio:.2f}")
    if options.json:
        print(json.dumps(found))
    return int(failed)


def _ms(taken: list[float]) -> float:
    return round(1e3 * statistics.median(taken), 1)


def measure(
    private: PrivateCarpool, rounds: int, env: dict[str, str], *, site: bool
) -> tuple[list[float], list[float]]:
    """Seconds of each round: of the bare interpreter, and of the first list."""
    ledger, offer = private.base / "starts", private.base / "offer.json"
    tools = {f"tool_{at}": ABOUT for at in range(TOOLS)}
    offer.write_text(json.dumps({"tools": tools, "instructions": ABOUT}))
    args = ["-S", "-E", str(OFFERS), str(ledger), str(offer)]
    servers = {f"shop{at}": {"command": sys.executable, "args": args, "env": env} for at in range(SERVERS)}
    private.config_file.write_text(json.dumps({"mcpServers": servers}))
    private.up()
    private.run_carpool("tools", "--json")
    private.run_carpool("down")
    started = len(ledger.read_text().splitlines())
    private.up()
    python, carpool = [sys.executable], carpool_argv()
    if not site:
        python = [sys.executable, "-S", "-E"]
        roots = [path for path in sys.path if path]
        carpool = [
            *python,
            "-c",
            f"import sys; sys.path += {roots!r}; from carpool.entry import main; main()",
        ]
    rows = [
        (bare_s(python, private.environ), first_list_s(carpool, private.environ)) for _ in range(rounds + 2)
    ]
    if len(ledger.read_text().splitlines()) != started:
        raise SystemExit("bench: a server was started")
    bare, first = zip(*rows[2:], strict=True)  # the first ones warm the page cache
    return list(bare), list(first)


def bare_s(python: list[str], environ: dict[str, str]) -> float:
    """From the start of a Python interpreter that does nothing to its end."""
    began_s = time.perf_counter()
    subprocess.run([*python, "-c", "pass"], env=environ, stdin=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began_s


def first_list_s(carpool: list[str], environ: dict[str, str]) -> float:
    """From the start of a shim to the last byte of the first page of tools."""
    began_s = time.perf_counter()
    process = subprocess.Popen(
        [*carpool, "connect"], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        about = {"name": "bench", "version": "1"}
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about}
        ask(process, {"id": 1, "method": "initialize", "params": params})
        say(process, {"method": "notifications/initialized"})
        listed = ask(process, {"id": 2, "method": "tools/list"})
        took_s = time.perf_counter() - began_s
        process.stdin.close()
    if len(json.loads(listed)["result"]["tools"]) != SERVERS * TOOLS:
        raise SystemExit("bench: not every tool is listed")
    return took_s


def say(process: "subprocess.Popen[bytes]", message: dict[str, Any]) -> None:
    """One line to the shim."""
    assert process.stdin is not None
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def ask(process: "subprocess.Popen[bytes]", message: dict[str, Any]) -> bytes:
    """A request, and the line that answers it."""
    say(process, message)
    assert process.stdout is not None
    parts: list[bytes] = []
    while not (parts and parts[-1].endswith(b"\n")):
        part = os.read(process.stdout.fileno(), 1 << 20)
        if not part:
            raise SystemExit("bench: the shim has ended")
        parts.append(part)
    return b"".join(parts)


if __name__ == "__main__":
    sys.exit(main())
