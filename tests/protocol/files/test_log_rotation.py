"""The bound of carpool's own logs, before a start and while a process writes."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from carpool.logs.log_tail import LogTail, all_lines
from carpool_protocol.files import private_files
from carpool_protocol.files.log_rotation import LOG_BYTES, rotate, rotate_in_use
from tests.behaviours import behaviour

WRITER = """
import os, sys
from carpool_protocol.files import log_rotation
log_rotation.LOG_BYTES = 1000
log, lines, streams = sys.argv[1], int(sys.argv[2]), [int(each) for each in sys.argv[3].split(",")]
turned = 0
for number in range(lines):
    os.write(streams[number % len(streams)], b"line %d\\n" % number)
    turned += log_rotation.rotate_in_use(log)
print(turned, file=open(log + ".count", "w"))
"""


def write(log: Path, lines: int, streams: str = "2", *, stderr: Path | None = None) -> int:
    """Let a process write these lines to its log. Returns how often it began a new one."""
    fd = private_files.open_to_append(str(stderr or log))
    try:
        subprocess.run(
            [sys.executable, "-c", WRITER, str(log), str(lines), streams],
            check=True,
            stdout=fd,
            stderr=fd,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    finally:
        os.close(fd)
    return int(Path(f"{log}.count").read_text())


@behaviour("logs:bounded")
@pytest.mark.parametrize("streams", ["2", "1,2"])
def test_a_process_that_writes_for_long_keeps_two_bounded_files_and_loses_no_line(
    tmp_path: Path, streams: str
) -> None:
    log = tmp_path / "broker.log"
    assert write(log, 150, streams) == 1
    assert [*all_lines(str(log))] == [f"line {number}" for number in range(150)]
    assert write(log, 1000, streams) > 5
    kept = [log, tmp_path / "broker.log.1"]
    assert all(each.stat().st_size <= 1100 for each in kept)
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in kept)
    assert [*all_lines(str(log))][-1] == "line 999"
    assert {each.name for each in tmp_path.iterdir()} == {"broker.log", "broker.log.1", "broker.log.count"}


@behaviour("logs:bounded")
def test_a_reader_that_follows_the_log_misses_no_line(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    log.write_text("before\n")
    tail = LogTail(str(log))
    tail.last_lines(10)
    assert write(log, 150) == 1
    assert tail.new_lines() == [f"line {number}" for number in range(150)]


@behaviour("logs:bounded")
def test_the_stderr_of_a_terminal_or_a_service_manager_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    log.write_text("x" * 5000)
    assert write(log, 300, stderr=tmp_path / "journal") == 0
    assert log.read_text() == "x" * 5000
    assert len((tmp_path / "journal").read_text().splitlines()) == 300
    assert not rotate_in_use(str(tmp_path / "absent.log"))


@behaviour("logs:bounded")
def test_a_log_whose_successor_cannot_be_made_stays_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "broker.log"
    log.write_bytes(b"x" * (LOG_BYTES + 1))

    def refuse(_: str) -> int:
        raise OSError

    monkeypatch.setattr("carpool_protocol.files.log_rotation.private_files.open_to_append", refuse)
    monkeypatch.setattr("carpool_protocol.files.log_rotation.os.fstat", lambda _: os.stat(log))
    assert not rotate_in_use(str(log))
    assert [each.name for each in tmp_path.iterdir()] == ["broker.log"]


@behaviour("logs:bounded")
def test_before_a_start_only_a_long_log_is_renamed(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    rotate(str(log))
    log.write_bytes(b"x" * LOG_BYTES)
    rotate(str(log))
    assert log.exists()
    log.write_bytes(b"x" * (LOG_BYTES + 1))
    rotate(str(log))
    assert [each.name for each in tmp_path.iterdir()] == ["broker.log.1"]
