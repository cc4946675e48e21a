"""One process of the daemon: what keeps it from starting, and what does not."""

import errno
import os
import socket
import sys
from pathlib import Path

import pytest

from carpool.launcher.child import DaemonChild
from carpool_protocol.files import private_files
from tests.behaviours import behaviour
from tests.kit.private_daemon import until


def refuse(number: int) -> int:
    raise OSError(number, os.strerror(number))


def start(tmp_path: Path) -> DaemonChild:
    child = DaemonChild("broker", "json.tool", ["--help"], str(tmp_path / "log" / "broker.log"))
    child.start(sys.executable, {})
    until(lambda: child.exit_status() is not None, "it ends")
    return child


def test_a_directory_of_logs_that_has_vanished_is_made_again(tmp_path: Path) -> None:
    assert "usage" in start(tmp_path).log_tail()
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o700


@behaviour("faults:full-disk")
def test_without_room_for_a_log_it_runs_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_files, "open_to_append", lambda _: refuse(errno.ENOSPC))
    child = start(tmp_path)
    assert child.log_trouble == "No space left on device"
    assert child.log_tail() == ""


def test_a_process_that_writes_without_end_is_read_a_part_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = DaemonChild("broker", "time", [], str(tmp_path / "broker.log"))
    child.start(sys.executable, {})
    reads = 0

    def read_more(*_: object) -> tuple[bytes, list[int], int, None]:
        nonlocal reads
        reads += 1
        assert reads < 100_000, "it reads without end"
        return b"alive\n", [], 0, None

    with monkeypatch.context() as patched:
        patched.setattr(socket, "recv_fds", read_more)
        assert set(child.read_lines()) == {"alive"}
    until(lambda: child.exit_status() is not None, "it ends")


def test_a_log_that_is_not_ours_keeps_it_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_files, "open_to_append", lambda _: refuse(errno.EPERM))
    child = DaemonChild("broker", "json.tool", [], str(tmp_path / "broker.log"))
    with pytest.raises(PermissionError):
        child.start(sys.executable, {})
