"""A private carpool whose broker, supervisor and HTTP door count their bytecodes.

Owns how the counter gets into them (a `sitecustomize` on their PYTHONPATH), and another text of a module if a
test wants that, and the commands to the counter. Checks of invariants (`CARPOOL_CHECK`) are off: a user's
carpool makes none.
Knows nothing of: calls, prices.
"""

import json
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from carpool.bench import processes
from carpool.bench.arms import ECHO_ARGV
from tests.kit import source_graft
from tests.kit.live import Daemon
from tests.kit.open_door import open_door
from tests.kit.private_daemon import until
from tests.kit.source_graft import SourceGraft
from tests.price import opcode_counter

MODULES: Final = dict(zip(("broker", "supervisor", "door"), opcode_counter.COUNTED, strict=True))
"""Process and module: `opcode_counter` names sockets after modules."""
ECHO: Final = {"command": ECHO_ARGV[0], "args": ECHO_ARGV[1:], "sharing": "concurrent"}


class CountedFunction(NamedTuple):
    """What one function did."""

    file: str
    name: str
    entries: int
    bytecodes: int


class CountedCarpool:
    """Made, used and closed once. `pids`: of broker, supervisor, door and server."""

    def __init__(self, graft: SourceGraft | None = None) -> None:
        self._counters = Path(tempfile.mkdtemp(prefix="cpc-", dir="/tmp"))
        # A directory on PYTHONPATH in which nothing of carpool is does not reach the daemon.
        (self._counters / "carpool_broker").mkdir()
        customize = Path(opcode_counter.__file__).read_text()
        if graft is not None:
            shutil.copy(source_graft.__file__, self._counters)
            made = f"SourceGraft({graft.path!r}, {graft.text!r})"
            customize += f"\nfrom source_graft import SourceGraft\n\n{made}.put_in()\n"
        (self._counters / "sitecustomize.py").write_text(customize)
        self._daemon = Daemon({"echo": ECHO}, http=open_door())
        self._daemon.environ["PYTHONPATH"] += os.pathsep + str(self._counters)
        del self._daemon.environ["CARPOOL_CHECK"]
        self.directory = str(self._daemon.directory)
        self.pids: dict[str, int] = {}
        try:
            self._daemon.up()
            self.pids = self._find_pids()
            for process in MODULES:
                self._command(process, "start")
        except BaseException:
            self.close()
            raise

    def _find_pids(self) -> dict[str, int]:
        daemon = self._daemon
        daemon.carpool_json("tools")  # starts the server
        until(lambda: daemon.facts()["servers"]["echo"]["instances"][0]["pid"], "the server runs")
        facts = daemon.facts()
        broker: int = facts["broker"]["pid"]
        launcher = processes.parent(broker)
        assert launcher is not None
        doors = [pid for pid in processes.descendants(launcher) if MODULES["door"] in processes.words(pid)]
        return {
            "broker": broker,
            "supervisor": facts["supervisors"][0]["pid"],
            "door": doors[0],
            "server": facts["servers"]["echo"]["instances"][0]["pid"],
        }

    def _command(self, process: str, word: Literal["start", "take"]) -> Any:
        """Give a command to the counter of this process and return its answer."""
        with socket.socket(socket.AF_UNIX) as counter:
            counter.connect(str(self._counters / f"{MODULES[process]}.sock"))
            counter.sendall(word.encode())
            return json.loads(b"".join(iter(lambda: counter.recv(1 << 20), b"")))

    def take_counts(self, process: str) -> list[CountedFunction]:
        """Return what was counted in this process since the last time."""
        return [CountedFunction(*row) for row in self._command(process, "take")]

    def close(self) -> None:
        """End it. Fails if anything is left of it."""
        try:
            self._daemon.close()
        finally:
            shutil.rmtree(self._counters, ignore_errors=True)
