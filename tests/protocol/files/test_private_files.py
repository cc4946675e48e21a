"""Files for this user alone, and those that are refused."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool_protocol.files import private_files
from tests.behaviours import behaviour


@pytest.fixture(autouse=True)
def _careless() -> Iterator[None]:
    old = os.umask(0)
    yield
    os.umask(old)


def append(path: Path, data: bytes) -> None:
    with open(private_files.open_to_append(str(path)), "ab") as file:
        file.write(data)


@behaviour("private:files")
def test_a_log_is_made_for_us_alone_and_goes_on_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, b"one\n")
    append(path, b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"
    assert path.stat().st_mode & 0o777 == 0o600


@behaviour("private:files")
def test_a_log_of_ours_that_is_open_to_others_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    path.chmod(0o644)
    append(path, b"two\n")
    assert path.stat().st_mode & 0o777 == 0o600


@behaviour("private:places")
def test_a_link_in_the_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        append(tmp_path / "log", b"x")
    assert not (tmp_path / "elsewhere").exists()


@behaviour("private:places")
def test_a_fifo_in_the_place_of_a_log_is_refused_also_when_somebody_reads_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(PermissionError):
        append(tmp_path / "log", b"x")
    os.close(reader)


@behaviour("private:places")
def test_a_file_of_another_user_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.touch()
    if os.geteuid() == 0:  # root may be anybody; anybody else is somebody else to a file of his own
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError):
        append(path, b"x")


@behaviour("private:files")
def test_a_file_is_replaced_as_a_whole_also_where_somebody_has_put_a_link(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_bytes(b"kept")
    for name in ("file", f"file.part-{os.getpid()}"):
        (tmp_path / name).symlink_to(kept)
    private_files.replace(str(tmp_path / "file"), b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert (tmp_path / "file").lstat().st_mode & 0o777 == 0o600
    assert kept.read_bytes() == b"kept"
    assert {path.name for path in tmp_path.iterdir()} == {"kept", "file"}


def test_what_cannot_be_replaced_leaves_the_old_one_and_no_part(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="directory"):
        private_files.replace(str(tmp_path / "file"), b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_that_others_work_with_gets_its_mode_with_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    private_files.replace(str(path), b"one", 0o664)
    assert path.stat().st_mode & 0o777 == 0o664
    private_files.replace(str(path), b"two")
    assert path.stat().st_mode & 0o777 == 0o600
