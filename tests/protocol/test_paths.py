"""Where things lie, and whose directory is refused."""

import os
import shutil
from pathlib import Path

import pytest

from carpool_protocol import paths
from tests.behaviours import behaviour


def test_the_runtime_directory_is_the_one_asked_for() -> None:
    assert paths.runtime_dir({"CARPOOL_RUNTIME_DIR": "/a/b/../c", "XDG_RUNTIME_DIR": "/x"}, 7) == "/a/c"


def test_the_runtime_directory_lies_under_the_xdg_one_where_that_exists(tmp_path: Path) -> None:
    assert paths.runtime_dir({"XDG_RUNTIME_DIR": "/tmp"}, 7) == "/tmp/carpool"


def test_a_missing_xdg_directory_falls_back_to_one_per_user() -> None:
    environ = {"XDG_RUNTIME_DIR": "/nowhere/at/all", "TMPDIR": "/tmp"}
    assert paths.runtime_dir(environ, 7) == "/tmp/carpool-7"


@behaviour("numbers:socket-path")
@pytest.mark.parametrize(("extra", "stays"), [(0, True), (1, False)])
def test_a_directory_too_long_for_a_socket_is_replaced_and_says_so(extra: int, stays: bool) -> None:
    wished = "/" + "d" * (paths.SOCKET_PATH_BYTES - len("/agents.sock") - 1 + extra)
    found, note = paths.find_runtime_dir({"CARPOOL_RUNTIME_DIR": wished}, 7)
    assert (found == wished) is stays
    assert len(paths.agents_socket(found)) <= paths.SOCKET_PATH_BYTES
    assert ("too long" in note and found in note) is not stays


def test_two_long_directories_get_two_short_ones() -> None:
    found = {paths.runtime_dir({"CARPOOL_RUNTIME_DIR": f"/{x * 120}"}, 7) for x in "ab"}
    assert len(found) == 2


def test_a_new_directory_is_made_for_us_alone(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "rt"
    old = os.umask(0)
    try:
        paths.ensure_private(str(directory))
    finally:
        os.umask(old)
    assert directory.stat().st_mode & 0o777 == 0o700
    paths.ensure_private(str(directory))


@behaviour("private:places")
def test_a_directory_that_anybody_may_replace_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for directory in (shared / "rt", shared / "deep" / "rt"):
        with pytest.raises(paths.NotPrivateError, match=f"chmod o-w {shared}`.*set CARPOOL_STATE_DIR"):
            paths.ensure_private(str(directory), paths.STATE_VARIABLE)
        assert not directory.exists()
    shared.chmod(0o1777)  # as /tmp: only who owns an entry may replace it
    paths.ensure_private(str(shared / "rt"))


@behaviour("private:files")
def test_missing_parents_are_made_for_us_alone_too(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        paths.ensure_private(str(tmp_path / "a" / "b" / "rt"))
    finally:
        os.umask(old)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b", "a/b/rt")] == [0o700] * 3


@behaviour("private:places")
def test_a_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    with pytest.raises(paths.NotPrivateError, match="chmod 700"):
        paths.ensure_private(str(tmp_path))


def test_a_link_to_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(paths.NotPrivateError, match="not a directory"):
        paths.ensure_private(str(tmp_path / "link"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "theirs"
    directory.mkdir(0o700)
    os.chown(directory, 12345, -1)
    with pytest.raises(paths.NotPrivateError, match="belongs to user 12345"):
        paths.ensure_private(str(directory))
    shutil.rmtree(directory)


def test_logs_lie_beside_a_private_runtime_directory_and_else_in_the_state_home() -> None:
    assert paths.log_dir({"CARPOOL_STATE_DIR": "/s", "CARPOOL_RUNTIME_DIR": "/r"}, "/r") == "/s/log"
    assert paths.log_dir({"CARPOOL_RUNTIME_DIR": "/r"}, "/r") == "/r/state/log"
    assert paths.log_dir({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/r") == "/x/carpool/log"
    assert paths.log_dir({"HOME": "/h"}, "/r") == "/h/.local/state/carpool/log"


def test_the_runtime_id_is_stable_and_tells_directories_apart(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert paths.runtime_id(str(tmp_path)) == paths.runtime_id(str(tmp_path / "link"))
    assert paths.runtime_id("/a") != paths.runtime_id("/b")
    assert paths.runtime_id("/a").isalnum()
