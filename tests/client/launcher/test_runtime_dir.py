"""A launcher's hold on its runtime directory, when that vanishes, is taken, or cannot be had."""

import resource
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from carpool import launcher_lock
from carpool.launcher.runtime_dir import RuntimeDirWatch
from tests.kit.leaks import open_fds
from tests.kit.private_daemon import PrivateDaemon


class Place:
    def __init__(self, base: Path) -> None:
        self.directory = base / "rt"
        self.directory.mkdir(mode=0o700)
        self.logs = self.directory / "log"
        self.logs.mkdir(mode=0o700)
        self.watch = self.taken_by("/a.json")

    def taken_by(self, config: str) -> RuntimeDirWatch:
        take = partial(launcher_lock.take_lock, str(self.directory), config)
        held = take()
        assert held is not None
        return RuntimeDirWatch(str(self.directory), str(self.logs), take, held)

    @property
    def holder(self) -> str:
        found = launcher_lock.holder(str(self.directory))
        return found.config if found else ""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    tmp_path.chmod(0o700)
    one = Place(tmp_path)
    yield one
    one.watch.release()


def test_what_has_vanished_is_put_back_with_the_lock_held(place: Place) -> None:
    assert place.watch.recheck() == "kept"
    shutil.rmtree(place.directory)
    assert not place.watch.is_ours()
    assert place.watch.recheck() == "put back"
    assert place.watch.recheck() == "kept"
    assert place.holder == "/a.json"
    assert place.logs.is_dir()
    shutil.rmtree(place.logs)
    assert place.watch.recheck() == "put back"
    assert place.watch.recheck() == "kept"


def test_a_place_that_another_has_taken_is_given_up_for_good(place: Place) -> None:
    shutil.rmtree(place.directory)
    place.directory.mkdir(mode=0o700)
    place.logs.mkdir(mode=0o700)
    other = place.taken_by("/b.json")
    assert place.watch.recheck() == "taken"
    other.release()
    assert place.watch.recheck() == "taken"
    assert not place.watch.is_ours()


def test_a_directory_that_cannot_be_made_is_tried_again(place: Place) -> None:
    shutil.rmtree(place.directory)
    place.directory.write_text("in the way")
    assert place.watch.recheck() == "gone"
    assert "not a directory" in place.watch.why
    place.directory.unlink()
    assert place.watch.recheck() == "put back"


def test_a_lock_that_cannot_be_written_holds_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = open_fds()
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, hard))
    try:
        with pytest.raises(OSError, match="No space left"):
            launcher_lock.take_lock(str(tmp_path), "")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert open_fds() == before
    assert launcher_lock.holder(str(tmp_path)) is None


def test_a_start_on_a_full_disk_says_so_and_leaves_nothing(house: PrivateDaemon) -> None:
    house.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    house.behave("broker")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # what we start inherits it
    try:
        done = house.run("up", "--detach")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.returncode == 1
    assert f"cannot write {house.directory}/lock" in done.stderr
    assert "Traceback" not in done.stderr
    assert not house.left()
