"""The start of a launcher by another process: what that process waits for."""

import os
import signal
import stat
import sys
import time
from pathlib import Path

import pytest

from carpool.launcher import up
from carpool.launcher.runtime_place import RuntimePlace
from carpool_protocol.bootstrap import paths
from tests.kit.private_daemon import until

STUCK = """\
import os, sys, time
fd = int(sys.argv[sys.argv.index("--ready-fd") + 1])
with open({pid!r}, "w") as file:
    file.write(str(os.getpid()))
os.write(fd, {said!r})
os.close(fd)
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize(
    ("said", "outcome"),
    [(b"failed 2\nno such file", (2, "no such file")), (b"", (1, "the launcher did not start"))],
    ids=["it has failed", "it says nothing"],
)
def test_a_starter_does_not_wait_without_end_for_a_launcher_that_fails_and_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes, outcome: tuple[int, str]
) -> None:
    monkeypatch.setenv(paths.RUNTIME_VARIABLE, str(tmp_path / "rt"))
    monkeypatch.setenv(paths.STATE_VARIABLE, str(tmp_path / "state"))
    monkeypatch.setattr(up, "END_S", 0.05)
    pid, program = tmp_path / "pid", tmp_path / "python"
    program.write_text(f"#!{sys.executable}\n{STUCK.format(pid=str(pid), said=said)}")
    program.chmod(stat.S_IRWXU)
    monkeypatch.setattr(sys, "executable", str(program))
    try:
        code, text = up._start(
            RuntimePlace(), "", "", time.monotonic() + 30.0, b"", restart_fd=-1, ends_idle=False
        )
        assert (code, text[: len(outcome[1])]) == outcome
    finally:
        until(pid.exists, "it has begun")
        launcher = int(pid.read_text())
        os.kill(launcher, signal.SIGKILL)
        os.waitpid(launcher, 0)  # the starter has given up waiting for it
