"""`python -m bench.leases`: how soon the next in line has an instance when a lease holder is killed.

A private carpool with one server in mode `session` and one instance at most. Agents behind `carpool connect`
stand in line; each time the holder's shim is killed with kill -9 and the time taken until the next agent's
call is answered: the broker sees the end of file, the old process is ended, a new one is started and greeted,
the call runs on it. Bounded: so many times, each within `LIMIT_S`. Prints median and worst.
Knows nothing of: how leases are kept.
"""

import argparse
import json
import selectors
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from carpool.bench.spawn import until
from carpool.control.control_client import ControlClient
from carpool.launcher.own_command import carpool_argv
from carpool.launcher.sandbox import PrivateCarpool

COUNTER = Path(__file__).parents[1] / "tests" / "kit" / "servers" / "counter.py"
LIMIT_S = 20.0
_ADD = {"method": "tools/call", "params": {"name": "counter__increment", "arguments": {}}}


class GreetedShim:
    """An agent behind `carpool connect`, greeted."""

    def __init__(self, private: PrivateCarpool) -> None:
        self.process = subprocess.Popen(
            [*carpool_argv(), "connect"],
            env=private.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._rest = b""
        about = {"name": "bench", "version": "1"}
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about}
        self.send({"id": 0, "method": "initialize", "params": params})
        self.answer(0)
        self.send({"method": "notifications/initialized"})

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def answer(self, id_: int) -> dict[str, Any]:
        """The message that answers this request."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + LIMIT_S
        with selectors.DefaultSelector() as ready:
            ready.register(self.process.stdout, selectors.EVENT_READ)
            while True:
                line, end, rest = self._rest.partition(b"\n")
                if end:
                    self._rest = rest
                    message: dict[str, Any] = json.loads(line)
                    if message.get("id") == id_:
                        return message
                    continue
                if not ready.select(max(0.0, deadline - time.monotonic())):
                    raise SystemExit(f"bench: no answer within {LIMIT_S:g} s")
                data = self.process.stdout.read(1 << 16)
                if not data:
                    raise SystemExit("bench: the shim has gone")
                self._rest += data

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        """Reap it; ends it if it still runs."""
        self.process.kill()
        self.process.wait(LIMIT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def waiting(private: PrivateCarpool) -> int:
    """Calls that wait for an instance."""
    with ControlClient(private.directory, control=True) as door:
        status = msgspec.json.decode(door.request("carpool/status", {}, LIMIT_S))
    found: int = status["servers"]["counter"]["waiting"]
    return found


def turn(private: PrivateCarpool, holder: GreetedShim) -> tuple[float, GreetedShim]:
    """Kill the holder while another waits: seconds until that one's answer, and the new holder."""
    following = GreetedShim(private)
    following.send({"id": 1, **_ADD})
    until(lambda: waiting(private) == 1, LIMIT_S, "a call in line")
    began = time.perf_counter()
    holder.kill()
    answer = following.answer(1)
    took_s = time.perf_counter() - began
    holder.close()
    if answer["result"]["content"][0]["text"] != "1":
        raise SystemExit(f"bench: not a fresh instance: {answer}")
    return took_s, following


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.leases", description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=20, help="holders to kill (default 20)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(argv)
    private = PrivateCarpool("cpl-")
    try:
        server = {"command": sys.executable, "args": ["-S", "-E", str(COUNTER)]}
        mode = {"sharing": "session", "wait_s": LIMIT_S, "pool": {"max": 1}}
        private.config_file.write_text(json.dumps({"mcpServers": {"counter": {**server, **mode}}}))
        private.up()
        holder = GreetedShim(private)
        holder.send({"id": 1, **_ADD})
        holder.answer(1)
        took: list[float] = []
        for _ in range(options.times):
            took_s, holder = turn(private, holder)
            took.append(took_s)
        holder.close()
    finally:
        private.close()
    if options.json:
        print(json.dumps({"times": len(took), "median_s": statistics.median(took), "worst_s": max(took)}))
    else:
        print(
            f"kill -9 of a lease holder to the next one's answer: "
            f"median {statistics.median(took) * 1000:.0f} ms, worst {max(took) * 1000:.0f} ms, "
            f"{len(took)} times"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
