"""`python -m bench.cluster_delay`: calls through a cluster over links with delay and with little bandwidth.

Two nodes on this machine, the second one behind a proxy that delays each byte (`bench.cable_proxy`). Prints
the median of a lone call, and calls per second with 64 in flight, of one agent and of 64 agents, for each
kind of network. With a delay of D each way no more than 64 / 2D calls per second are possible. Bounded; ends
what it started.

Knows nothing of: how nodes reach each other.
"""

import argparse
import asyncio
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import partial

import trio

from bench.cable_proxy import CableProxy
from bench.cluster import MeasuredNode
from carpool.bench.arms import ECHO_ARGV
from carpool.cluster.embedded_nats import EmbeddedNats

NETWORKS = {
    "loopback": (0.0, float("inf")),
    "5 ms each way": (0.005, float("inf")),
    "50 ms each way": (0.05, float("inf")),
    "150 ms each way": (0.15, float("inf")),
    "50 ms each way, 2 MB/s": (0.05, 2e6),
}


class ProxyThread:
    """A proxy in a thread of its own."""

    def __init__(self, target_port: int) -> None:
        self.proxy = CableProxy()
        self.port = 0
        self._target_port = target_port
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._serve,))
        self._thread.start()
        self._ready.wait()

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with trio.open_nursery() as nursery:
                self.port = self.proxy.listen(nursery, self._target_port)
                self._ready.set()

    def slow(self, delay_s: float, bytes_per_s: float) -> None:
        """Give its cable a delay and a bandwidth, each way."""
        assert self._token is not None
        self._token.run_sync_soon(partial(self.proxy.slow, delay_s=delay_s, bytes_per_s=bytes_per_s))

    def close(self) -> None:
        """End it."""
        assert self._token is not None
        self._token.run_sync_soon(self._scope.cancel)
        self._thread.join()


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.cluster_delay", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=3.0)
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedNats(directory)
        nodes: list[MeasuredNode] = []
        thread: ProxyThread | None = None
        try:
            asyncio.run(server.start())
            user, _, port = server.url.rpartition(":")
            thread = ProxyThread(int(port))
            echo = {"command": ECHO_ARGV[0], "args": ECHO_ARGV[1:], "sharing": "concurrent"}
            nodes.append(MeasuredNode("alpha", server.url, {"echo": echo}))
            nodes.append(MeasuredNode("beta", f"{user}:{thread.port}", {}))
            nodes[1].wait_for("echo")
            for name, (delay_s, bytes_per_s) in NETWORKS.items():
                thread.slow(delay_s, bytes_per_s)
                lone_ms = nodes[1].measure(1, 1, asked.seconds)[0]
                one = nodes[1].measure(1, 64, asked.seconds)[1]
                many = nodes[1].measure(64, 1, asked.seconds)[1]
                print(
                    f"{name}: a lone call {lone_ms:.1f} ms; one agent, 64 calls: {one:.0f}/s; "
                    f"64 agents: {many:.0f}/s",
                    flush=True,
                )
        finally:
            for node in nodes:
                node.close()
            if thread is not None:
                thread.close()
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
