"""The arms beyond the product's own: the minimal relay, on sockets and through shims.

Owns the relay's process and its directory. Both relay arms speak the socket protocol of carpool, so the
same driver and the same `carpool connect` stand in front of them.
Knows nothing of: calls, figures.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from carpool.bench import processes
from carpool.bench.arms import ECHO_ARGV, Arm, DirectArm, PrivateCarpoolArm, SocketArm
from carpool.bench.spawn import end_all, until

RELAY = Path(__file__).with_name("relay.py")


class SocketRelay(SocketArm):
    """The least any broker must cost (`relay.py`), on sockets or through shims."""

    def __init__(self, *, shims: bool) -> None:
        super().__init__(tempfile.mkdtemp(prefix="cpr-", dir="/tmp"), shims=shims)
        self.name = "relay-shims" if shims else "relay-sockets"
        self._relay: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [sys.executable, str(RELAY), self.socket_path, *ECHO_ARGV]
        self._relay = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        # The file alone does not say it: a socket is bound before anybody listens.
        until(self.reachable, 10.0, "the relay's socket")

    def roles(self) -> dict[str, list[int]]:
        assert self._relay is not None
        pid = self._relay.pid
        return {"relay": [pid], "server": processes.descendants(pid), **super().roles()}

    def tool(self, name: str) -> str:
        return name

    def stop(self) -> None:
        self.detach()
        if self._relay is not None:
            self._relay.terminate()
            end_all([self._relay])
            self._relay = None
        shutil.rmtree(self.runtime_dir, ignore_errors=True)


ARMS = ("direct", "relay-sockets", "relay-shims", "carpool-sockets", "carpool-shims")


def make_arms(names: Sequence[str], profile_dir: str | None = None) -> list[Arm]:
    """New arms by name, not yet started. With `profile_dir`, carpool's processes leave profiles there."""
    made: list[Arm] = []
    for name in names:
        match name:
            case "direct":
                made.append(DirectArm())
            case "relay-sockets" | "relay-shims":
                made.append(SocketRelay(shims=name.endswith("shims")))
            case "carpool-sockets" | "carpool-shims":
                made.append(PrivateCarpoolArm(shims=name.endswith("shims"), profile_dir=profile_dir))
            case _:
                raise ValueError(f"no arm {name!r}; there are {', '.join(ARMS)}")
    return made
