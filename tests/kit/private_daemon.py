"""A private carpool for a test: a runtime directory, the command line, and proof that nothing is left."""

import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from carpool import launcher_lock
from carpool.launcher import processes
from carpool_protocol.bootstrap import paths
from tests.kit.fake_broker import fake_packages
from tests.kit.waits import END_LIMIT_S, pause_after

ROOT = Path(__file__).resolve().parents[2]
ROOTS = [str(ROOT / name) for name in ("client", "protocol", "broker", "supervisor")]
LIMIT_S = 40.0


def until(
    condition: Callable[[], object], what: str, limit_s: float = LIMIT_S, *, every_s: float = 0.0
) -> None:
    """Wait, bounded, until `condition` holds. `every_s`: the pause between two looks; 0: `pause_after`."""
    deadline = time.monotonic() + limit_s
    while True:
        began = time.monotonic()
        if condition():
            return
        assert began < deadline, f"not within {limit_s} s: {what}"
        time.sleep(every_s or pause_after(began))


def kill_all(running: Callable[[], Mapping[int, str]]) -> None:
    """After a test, failed or not: KILL what runs, until nothing does."""
    deadline = time.monotonic() + LIMIT_S
    while (pids := running()) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


class PrivateDaemon:
    """`fakes`: stand-ins for broker, supervisor and sweep instead of the real ones."""

    def __init__(self, *, fakes: bool) -> None:
        # Not pytest's tmp_path: a socket's path is at most 103 bytes long.
        self.base = Path(tempfile.mkdtemp(prefix="cp-", dir="/tmp"))
        self.directory = self.base / "rt"
        self.directory.mkdir(mode=0o700)
        self.logs = self.directory / "state" / "log"
        front = [fake_packages(self.base / "fakes")] if fakes else []
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        self.environ = {
            **kept,
            "HOME": str(self.base),
            "SHELL": "/bin/false",  # no login shell is asked
            "CARPOOL_RUNTIME_DIR": str(self.directory),
            "CARPOOL_STATE_DIR": str(self.directory / "state"),
            "PYTHONPATH": os.pathsep.join([*front, *ROOTS]),
        }

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """`carpool ARGUMENTS`, to its end."""
        return subprocess.run(
            [sys.executable, "-m", "carpool", *arguments],
            env=self.environ,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=END_LIMIT_S,
            check=False,
        )

    def answered(self, answer: str, *arguments: str, where: Path | None = None) -> tuple[int, str]:
        """`carpool ARGUMENTS` on a terminal where somebody types an answer."""
        ours, theirs = pty.openpty()
        try:
            os.write(ours, f"{answer}\n".encode())
            done = subprocess.run(
                [sys.executable, "-m", "carpool", *arguments],
                env=self.environ,
                cwd=where,
                stdin=theirs,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=END_LIMIT_S,
                check=False,
            )
        finally:
            os.close(ours)
            os.close(theirs)
        return done.returncode, done.stdout.decode()

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """`carpool ARGUMENTS`, with pipes. The caller ends it."""
        return subprocess.Popen(
            [sys.executable, "-m", "carpool", *arguments],
            env=self.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def behave(self, name: str, *words: str) -> None:
        """What the fake process `name` does in its next lives."""
        (self.directory / f"behave-{name}").write_text("\n".join(words))

    def lives(self, name: str) -> list[int]:
        """The pids of the fake process `name`, oldest first."""
        file = self.directory / f"lives-{name}"
        return [int(line.split()[0]) for line in file.read_text().split("\n")[:-1]] if file.exists() else []

    def text(self, name: str) -> str:
        """A file of the runtime directory; empty where there is none."""
        file = self.directory / name
        return file.read_text() if file.exists() else ""

    @property
    def launcher(self) -> int:
        holder = launcher_lock.holder(str(self.directory))
        return holder.pid if holder else 0

    def left(self) -> list[tuple[int, str]]:
        """Processes of ours that run."""
        return processes.marked(paths.runtime_id(str(self.directory)))

    def close(self) -> None:
        """End what runs, and fail the test when that leaves a process or a socket."""
        try:
            if pid := self.launcher:
                os.kill(pid, signal.SIGTERM)
                until(lambda: self.launcher != pid, "the launcher ends")
            until(lambda: not self.left(), "no process is left")
            sockets = list(self.directory.glob("*.sock"))
            logs = {each.name: each.read_text()[-2000:] for each in self.logs.glob("*.log") if sockets}
            assert not sockets, f"{sockets} are left; {logs}"
        finally:
            kill_all(lambda: dict(self.left()))
            shutil.rmtree(self.base)
