"""One process of the daemon: what keeps it from starting, and what does not."""

import errno
import os
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


def test_a_log_that_is_not_ours_keeps_it_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_files, "open_to_append", lambda _: refuse(errno.EPERM))
    child = DaemonChild("broker", "json.tool", [], str(tmp_path / "broker.log"))
    with pytest.raises(PermissionError):
        child.start(sys.executable, {})
