"""Where things lie, and whose directory is refused."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool_protocol.bootstrap import paths, trusted_places
from carpool_protocol.config.reading.load import find_config_file
from tests.behaviours import behaviour


def test_the_runtime_directory_is_the_one_asked_for() -> None:
    assert paths.runtime_dir({"CARPOOL_RUNTIME_DIR": "/a/b/../c", "XDG_RUNTIME_DIR": "/x"}, 7) == "/a/c"


@pytest.fixture
def base() -> Iterator[Path]:
    """Not pytest's tmp_path: a socket's path is at most 103 bytes long."""
    found = Path(tempfile.mkdtemp(prefix="cpp-", dir="/tmp"))
    yield found
    shutil.rmtree(found)


@pytest.fixture
def everybodys(base: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of /tmp, where other tests and users have directories."""
    directory = base / "tmp"
    directory.mkdir()
    monkeypatch.setattr(paths, "SHARED_DIR", str(directory))
    return directory


def test_the_runtime_directory_lies_under_the_xdg_one_where_that_exists(tmp_path: Path) -> None:
    assert paths.runtime_dir({"XDG_RUNTIME_DIR": "/tmp"}, 7) == "/tmp/carpool"


@pytest.mark.parametrize("said", ["/nowhere/at/all", "tmp", ""])
def test_a_missing_xdg_directory_falls_back_to_one_per_user_whatever_tmpdir_says(
    said: str, everybodys: Path
) -> None:
    # Programs that start servers by MCP's SDKs hand on neither.
    environ = {"XDG_RUNTIME_DIR": said, "TMPDIR": "/var/tmp", "HOME": "/h"}
    assert paths.runtime_dir(environ, 70707) == f"{everybodys}/carpool-70707"


@behaviour("private:places")
def test_a_name_that_another_user_has_taken_is_left_to_him_for_good(base: Path, everybodys: Path) -> None:
    environ = {"HOME": str(base / "home")}
    taken = everybodys / "carpool-70707"
    taken.mkdir()  # ours, and so not that user's
    own = paths.runtime_dir(environ, 70707)
    assert own == f"{base}/home/.local/state/carpool/run-{os.uname().nodename}"
    paths.ensure_private(own)
    assert os.stat(own).st_mode & 0o777 == 0o700
    taken.rmdir()
    assert paths.runtime_dir(environ, 70707) == own, "verbs after that find what shims before it have started"
    assert paths.runtime_dir({"HOME": "/h"}, os.getuid()) == f"{everybodys}/carpool-{os.getuid()}"


@behaviour("places:project")
@pytest.mark.parametrize("mark", [".git/HEAD", ".env", ".mcp.json", ".gemini/.env"])
def test_general_variables_that_name_a_place_in_a_project_are_passed_over(
    base: Path, everybodys: Path, mark: str
) -> None:
    (base / "p" / mark).parent.mkdir(parents=True)
    (base / "p" / mark).touch()
    place = base / "p" / "deep"
    place.mkdir()
    environ = {name: str(place) for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME")}
    environ["HOME"] = str(base / "home")
    assert paths.runtime_dir(environ, 70707) == f"{everybodys}/carpool-70707"
    assert paths.state_dir(environ, "/r") == f"{base}/home/.local/state/carpool"
    assert find_config_file(environ).path == f"{base}/home/.config/carpool/carpool.json"
    (base / "p" / mark).unlink()
    if "/" in mark:
        (base / "p" / mark).parent.rmdir()
    assert paths.runtime_dir(environ, 70707) == f"{place}/carpool"
    assert paths.state_dir(environ, "/r") == f"{place}/carpool"
    assert find_config_file(environ).path == f"{place}/carpool/carpool.json"


def test_a_home_directory_that_is_a_repository_is_no_project(base: Path) -> None:
    (base / ".git").mkdir()
    environ = {"HOME": str(base), "XDG_STATE_HOME": str(base / "s")}
    assert paths.state_dir(environ, "/r") == f"{base}/s/carpool"


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


@pytest.mark.usefixtures("everybodys")
def test_logs_and_state_lie_in_the_state_home_also_where_the_runtime_directory_is_named() -> None:
    assert paths.log_dir({"CARPOOL_STATE_DIR": "/s", "CARPOOL_RUNTIME_DIR": "/r"}, "/r") == "/s/log"
    second = {"CARPOOL_RUNTIME_DIR": "/r", "HOME": "/h"}
    assert paths.log_dir(second, "/r") == f"/h/.local/state/carpool/runtime-{paths.runtime_id('/r')}/log"
    mine = paths.runtime_dir({"HOME": "/h"}, os.getuid())
    assert paths.state_dir({"CARPOOL_RUNTIME_DIR": mine, "HOME": "/h"}, mine) == "/h/.local/state/carpool"
    assert paths.log_dir({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/r") == "/x/carpool/log"
    assert paths.log_dir({"HOME": "/h"}, "/r") == "/h/.local/state/carpool/log"


def test_the_runtime_id_is_stable_and_tells_directories_apart(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert paths.runtime_id(str(tmp_path)) == paths.runtime_id(str(tmp_path / "link"))
    assert paths.runtime_id("/a") != paths.runtime_id("/b")
    assert paths.runtime_id("/a").isalnum()


def test_every_file_of_ours_and_every_variable_is_on_the_page_of_files() -> None:
    page = (Path(__file__).parents[3] / "docs" / "files.md").read_text(encoding="utf-8")
    made = [
        *(paths.agents_socket("/r"), paths.link_socket("/r"), paths.down_file("/r"), paths.door_file("/r")),
        *(
            *paths.held_until_down("/r"),
            paths.lock_file("/r"),
            paths.trust_file("/s"),
            paths.logins_dir("/s"),
        ),
        *(paths.audit_file("/l"), paths.server_log("/l", "NAME"), paths.daemon_log("/l", "broker")),
        trusted_places.places_file({"HOME": "/h"}),
    ]
    names = [os.path.basename(each) for each in made] + list(trusted_places.VARIABLES)
    assert not [name for name in names if name not in page]
