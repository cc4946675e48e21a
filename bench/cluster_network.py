"""`python -m bench.cluster_network`: three nodes of a cluster in network namespaces, whose cables are pulled.

Each node, and NATS, is in a namespace of its own with an address of its own; a bridge in a further one joins
them. A cable is pulled at the bridge for 5 s or for 60 s, under load, and processes of nodes are killed. The
promises are those of `bench.cluster_soak`. With `--delay-ms` and `--loss` the network is slow and loses
packets, where the kernel has `netem`.

Needs root, Linux and `ip`; it says so elsewhere, and does nothing. It removes what it has made: with its
namespaces go their links, addresses and bridge.

Knows nothing of: how carpool survives anything.
"""

import argparse
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import trio

from bench.cluster_soak import LONG_CUT_S, SHORT_CUT_S, SoakedCluster, SoakedNode, run_soak, soak_parser
from bench.soak import SERVERS
from carpool.launcher.sandbox import PrivateCarpool

PORT = 4222
VICTIMS = ("down", "down", "long down", "broker", "node", "carpool")


class NetworkError(Exception):
    """The namespaces cannot be made here. The text says why."""


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"`{' '.join(command)}`: {done.stderr.strip()}")
    return done.stdout


class Network:
    """Namespaces of these names, each with a cable to a bridge."""

    def __init__(self, *names: str) -> None:
        self._mark = f"cpn{os.getpid()}-"
        self._hub = f"{self._mark}hub"
        self._names = names
        self.addresses = {name: f"10.77.0.{at}" for at, name in enumerate(names, 2)}

    def make(self, delay_ms: float, loss: float) -> None:
        """Make it. Raises `NetworkError`."""
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise NetworkError("needs root and the command `ip`")
        _run("ip", "netns", "add", self._hub)
        _run("ip", "-n", self._hub, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self._hub, "link", "set", "bridge", "up")
        for name in self._names:
            inside, cable = self.namespace(name), self._cable(name)
            _run("ip", "netns", "add", inside)
            peer = ("peer", "name", "eth0", "netns", inside)
            _run("ip", "-n", self._hub, "link", "add", cable, "type", "veth", *peer)
            _run("ip", "-n", self._hub, "link", "set", cable, "master", "bridge", "up")
            _run("ip", "-n", inside, "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")
            _run("ip", "-n", inside, "link", "set", "eth0", "up")
            _run("ip", "-n", inside, "link", "set", "lo", "up")
            if delay_ms or loss:
                faults = ("netem", "delay", f"{delay_ms}ms", "loss", f"{loss}%")
                _run("tc", "-n", self._hub, "qdisc", "add", "dev", cable, "root", *faults)

    def namespace(self, name: str) -> str:
        """The namespace of a name, for `ip netns exec`."""
        return f"{self._mark}{name}"

    @staticmethod
    def _cable(name: str) -> str:
        return f"to-{name}"

    def set_cable(self, name: str, *, up: bool) -> None:
        """Plug the cable of a name in or pull it, at the bridge: nobody at its other end gets an error."""
        _run("ip", "-n", self._hub, "link", "set", self._cable(name), "up" if up else "down")

    def remove(self) -> None:
        """Remove everything that was made, as far as that came."""
        there = _run("ip", "netns", "list").split() if shutil.which("ip") else []
        for name in (*map(self.namespace, self._names), self._hub):
            if name in there:
                _run("ip", "netns", "delete", name)


class NamespacedCarpool(PrivateCarpool):
    """A private carpool in a network namespace."""

    def __init__(self, namespace: str) -> None:
        super().__init__("cpn-", within=("ip", "netns", "exec", namespace))


class NamespacedNats:
    """A NATS server in a network namespace."""

    def __init__(self, directory: Path, namespace: str, address: str) -> None:
        self._directory = directory
        self._namespace = namespace
        self._token = secrets.token_hex(16)
        self._process: subprocess.Popen[bytes] | None = None
        self.address = address
        self.url = f"nats://{self._token}@{address}:{PORT}"

    def start(self) -> None:
        """Start it."""
        (self._directory / "nats.conf").write_text(
            f'listen: "{self.address}:{PORT}"\nauthorization {{ token: "{self._token}" }}\n'
            'jetstream { store_dir: "store", max_file: 0, max_mem: 64M }\n'
        )
        binary = Path(sys.executable).parent / "nats-server"
        within = ["ip", "netns", "exec", self._namespace]
        self._process = subprocess.Popen(
            [*within, str(binary), "-c", "nats.conf", "-l", "nats.log"], cwd=self._directory
        )

    def stop(self) -> None:
        """End it: `ip netns exec` becomes the server, so its pid is the server's."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


class NetworkedCluster(SoakedCluster):
    """Three nodes and NATS, each in a namespace."""

    def __init__(self, options: argparse.Namespace, directory: Path, network: Network) -> None:
        self._network = network
        super().__init__(options, directory)
        self.server = NamespacedNats(directory, network.namespace("nats"), network.addresses["nats"])

    def new_private(self, name: str) -> PrivateCarpool:
        """Return the carpool of a node, in its namespace."""
        return NamespacedCarpool(self._network.namespace(name))

    async def connect(self, nursery: trio.Nursery) -> None:
        """Start NATS, and write the configurations."""
        self.server.start()
        for node in self.nodes:
            node.configure(self.server.url)

    async def cut(self, node: SoakedNode, victim: str) -> None:
        """Pull the cable of a node for a while."""
        self._network.set_cable(node.name, up=False)
        await trio.sleep(LONG_CUT_S if victim == "long down" else SHORT_CUT_S)
        self._network.set_cable(node.name, up=True)

    def heal(self) -> None:
        """Plug all cables in."""
        for node in self.nodes:
            self._network.set_cable(node.name, up=True)

    def close(self) -> None:
        """End everything."""
        super().close()
        self.server.stop()


def main(argv: list[str]) -> int:
    """Run it. Returns 1 if a promise was broken."""
    parser = soak_parser(
        "python -m bench.cluster_network", __doc__, seconds=240.0, agents=5, every_s=5.0, victims=VICTIMS
    )
    parser.add_argument("--delay-ms", type=float, default=0.0, help="each way, with netem")
    parser.add_argument("--loss", type=float, default=0.0, help="per cent of packets, with netem")
    options = parser.parse_args(argv)
    network = Network("nats", *SERVERS)
    try:
        try:
            network.make(options.delay_ms, options.loss)
        except NetworkError as error:
            print(f"skipped: {error}")
            return 0
        return run_soak(options, lambda directory: NetworkedCluster(options, directory, network))
    finally:
        network.remove()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
