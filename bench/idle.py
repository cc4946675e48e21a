"""`python -m bench.idle`: how often the processes of a carpool with nothing to do wake.

Starts a private carpool of this tree without servers, with an HTTP door unless `--no-http`, and waits until
it has come to rest. Then it reads the voluntary context switches of all threads of its processes twice,
`--seconds` apart. Each of these is a wait that has ended, so one wake-up. The mark: all processes together
wake at most twice a second. Linux only.

Knows nothing of: what wakes a process.
"""

import argparse
import json
import socket
import time
from pathlib import Path
from typing import Final

from carpool.launcher.sandbox import PrivateCarpool

MARK_PER_S: Final = 2.0
REST_S: Final = 40.0
"""After so long nothing is left of the start."""


def switches(pid: int) -> int:
    """The voluntary context switches of all threads of this process."""
    found = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        lines = status.read_text().splitlines()
        found += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return found


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def measure(seconds: float, rest_s: float, *, http: bool) -> dict[str, float]:
    """Wake-ups per second of each process."""
    private = PrivateCarpool("cp")
    door = {"http": {"port": free_port()}} if http else {}
    private.config_file.write_text(json.dumps({"mcpServers": {}, **door}))
    try:
        private.up()
        pids = {f"{each['role']} {each['pid']}": each["pid"] for each in private.status()["processes"]}
        time.sleep(rest_s)
        before = {name: switches(pid) for name, pid in pids.items()}
        time.sleep(seconds)
        return {name: (switches(pid) - before[name]) / seconds for name, pid in pids.items()}
    finally:
        for trouble in private.close():
            print(trouble)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.idle", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rest", type=float, default=REST_S, help="seconds before the measurement")
    parser.add_argument("--no-http", action="store_true")
    told = parser.parse_args()
    found = measure(told.seconds, told.rest, http=not told.no_http)
    for name, per_s in found.items():
        print(f"{name:<20} {per_s:6.2f}/s")
    total = sum(found.values())
    print(f"{'all':<20} {total:6.2f}/s, the mark is {MARK_PER_S:g}/s")
    return 0 if total <= MARK_PER_S else 1


if __name__ == "__main__":
    raise SystemExit(main())
