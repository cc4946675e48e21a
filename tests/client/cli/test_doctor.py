"""`carpool doctor`, run as a user does, without a carpool that runs."""

import errno
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from carpool import launcher_lock
from carpool.cli import doctor_facts, doctor_repairs
from carpool.cli.doctor import doctor, doctor_page
from carpool.cli.status import status_page
from carpool.doctor.diagnose import Facts, Problem, diagnose
from carpool.terminal import screen
from carpool_protocol.faults.kinds import KINDS
from tests.behaviours import behaviour
from tests.kit.fake_broker import FakeBroker
from tests.kit.private_daemon import PrivateDaemon


def problems(house: PrivateDaemon, *arguments: str) -> list[dict[str, Any]]:
    """The problems of `carpool doctor --json`, which says nothing else and ends with their code."""
    done = house.run("doctor", "--json", *arguments)
    found = json.loads(done.stdout)
    assert done.returncode == (0 if found["ok"] else 1), done.stderr
    listed: list[dict[str, Any]] = found["problems"]
    return listed


@behaviour("doctor:repair")
@pytest.mark.parametrize("name", ["x" * 300, "file/state"], ids=["a name too long", "a file in the way"])
def test_a_state_directory_that_cannot_be_examined_is_a_problem_and_no_traceback(
    house: PrivateDaemon, name: str
) -> None:
    (house.base / "file").write_text("")
    house.environ["CARPOOL_STATE_DIR"] = str(house.base / name)
    (problem,) = problems(house)
    assert problem["id"] == "not-writable"
    assert "CARPOOL_STATE_DIR" in problem["repair"]


@behaviour("doctor:repair")
def test_a_broker_that_gives_no_list_of_its_tools_is_not_silent(house: PrivateDaemon) -> None:
    with FakeBroker(house.directory, dies_of="carpool/tools"):
        assert "broker-silent" not in {each["id"] for each in problems(house)}


def test_a_directory_below_one_that_cannot_be_searched_is_not_writable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Permission bits do not stop root, so `stat` refuses here."""
    inside, real = str(tmp_path / "closed" / "state"), os.stat

    def refusing(path: Any, *more: Any, **keywords: Any) -> os.stat_result:
        if str(path).startswith(str(tmp_path / "closed") + "/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, *more, **keywords)

    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "stat", refusing)
    place = doctor_facts.written_directory(inside, "CARPOOL_STATE_DIR")
    assert not place.writable
    found = diagnose(Facts(installed="1.0", places=(place,)))
    assert [each.id for each in found] == ["not-writable"]


# --- repairs --------------------------------------------------------------------------------------------


def stale_socket(house: PrivateDaemon) -> Path:
    """A socket on which nothing listens."""
    path = house.directory / "agents.sock"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
    return path


def fixed(house: PrivateDaemon, *arguments: str, code: int) -> tuple[dict[str, Any], str]:
    """The document of `doctor --json --fix`, and what was said on stderr."""
    done = house.run("doctor", "--json", "--fix", *arguments)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout), done.stderr


@behaviour("doctor:fix")
def test_json_repairs_only_with_yes_and_tells_the_state_after_the_repair(house: PrivateDaemon) -> None:
    stale = stale_socket(house)
    found, said = fixed(house, code=1)
    assert [each["fix"] for each in found["problems"]] == ["remove_socket"]
    assert (found["ok"], found["repaired"]) == (False, [])
    assert "add --yes" in said
    assert stale.exists()

    found, said = fixed(house, "--yes", code=0)
    assert (found["ok"], found["problems"]) == (True, [])
    assert [(each["id"], each["ok"]) for each in found["repaired"]] == [("socket-stale", True)]
    assert "socket-stale: removed" in said
    assert not stale.exists()


@behaviour("doctor:fix")
@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1)])
def test_on_a_terminal_each_repair_is_asked_for(house: PrivateDaemon, answer: str, code: int) -> None:
    stale = stale_socket(house)
    ended, said = house.answered(answer, "doctor", "--fix")
    assert ended == code, said
    assert "Remove the sockets on which nothing listens?" in said
    assert stale.exists() is (answer == "n")
    assert ("nothing is wrong that carpool doctor knows of" in said) is (answer == "y")
    stale.unlink(missing_ok=True)


@behaviour("doctor:fix")
def test_a_runtime_directory_that_is_open_to_others_is_restricted(house: PrivateDaemon) -> None:
    house.directory.chmod(0o755)
    (problem,) = problems(house)
    assert (problem["id"], problem["path"]) == ("not-private", str(house.directory))
    assert problem["repair"] == f"Run `chmod 700 {house.directory}`."
    found, _ = fixed(house, "--yes", code=0)
    assert [each["text"] for each in found["repaired"]] == ["restricted"]
    assert house.directory.stat().st_mode & 0o777 == 0o700


def test_a_file_in_place_of_the_socket_is_not_removed(house: PrivateDaemon) -> None:
    (house.directory / "agents.sock").write_text("mine")
    found, _ = fixed(house, "--yes", code=1)
    assert found["repaired"] == []
    assert [(each["id"], each["fix"]) for each in found["problems"]] == [("socket-stale", "")]
    assert (house.directory / "agents.sock").read_text() == "mine"
    (house.directory / "agents.sock").unlink()


def test_a_symbolic_link_in_place_of_a_directory_is_not_followed(house: PrivateDaemon) -> None:
    other = house.base / "other"
    other.mkdir(mode=0o755)
    (house.base / "link").symlink_to(other)
    problem = Problem("not-private", "machine", "", "", fix="restrict", path=str(house.base / "link"))
    assert not doctor_repairs.repair(problem).ok
    assert other.stat().st_mode & 0o777 == 0o755


def test_a_socket_stays_while_a_launcher_holds_the_lock(
    house: PrivateDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARPOOL_RUNTIME_DIR", str(house.directory))
    monkeypatch.setenv("CARPOOL_STATE_DIR", house.environ["CARPOOL_STATE_DIR"])
    stale = stale_socket(house)
    held = launcher_lock.take_lock(str(house.directory), "")
    assert held is not None
    try:
        result = doctor_repairs.repair(Problem("socket-stale", "carpool", "", "", fix="remove_socket"))
    finally:
        launcher_lock.release_lock(held)
    assert not result.ok
    assert stale.exists()
    stale.unlink()


def test_yes_alone_is_refused(house: PrivateDaemon) -> None:
    done = house.run("doctor", "--yes")
    assert done.returncode == 2
    assert "--yes goes with --fix" in done.stderr


@behaviour("hooks:named")
@pytest.mark.parametrize("denies", [True, False], ids=["it denies", "it fails"])
def test_doctor_fails_for_a_hook_that_fails_and_only_names_one_that_denies(
    monkeypatch: pytest.MonkeyPatch, *, denies: bool
) -> None:
    hook = {"name": "guard", "on_failure": "deny", "match": ["*"], "denied_in_a_row": 3 if denies else 0}
    status = {"reason": "ok", "hooks": [{**hook, "problem": "" if denies else "it exits with 1"}]}
    monkeypatch.setattr("carpool.cli.doctor.gather_facts", lambda: Facts(installed="1", status=status))
    shown, told = CliRunner().invoke(doctor, []), CliRunner().invoke(doctor, ["--json"])
    assert (shown.exit_code, told.exit_code) == (0, 0) if denies else (1, 1)
    assert json.loads(told.stdout)["ok"] is denies
    assert "hook guard" in shown.stdout
    assert ("nothing is wrong if you mean this" in shown.stdout) is denies


def test_the_page_fits_the_terminal_and_its_continued_lines_are_indented(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(screen, "width", lambda: 40)
    found = Problem("server-failing", "server", "word " * 30, "other " * 30, "git")
    lines = doctor_page([found]).splitlines()
    assert lines[0] == "server-failing (git)"
    assert max(map(len, lines)) <= 40
    assert [line for line in lines if line.startswith("  -> other")]
    assert [line for line in lines if line.startswith("     other")]


@behaviour("doctor:repair")
@pytest.mark.parametrize(
    ("facts", "is_named"),
    [
        ({"reason": "ok"}, False),
        ({"reason": "servers_failing"}, True),
        ({"reason": "supervisor_away"}, True),
        ({"reason": "ok", "door": {"url": "", "problem": "taken", "retried": True}}, True),
    ],
)
def test_status_names_doctor_where_something_is_wrong(facts: dict[str, Any], *, is_named: bool) -> None:
    assert ("`carpool doctor`" in status_page({"healthy": True, "servers": {}, **facts})) is is_named


def test_each_error_of_a_server_that_cannot_start_names_doctor() -> None:
    assert [
        kind
        for kind in ("cannot_start", "given_up", "breaker_open", "hook_failed")
        if "`carpool doctor`" not in KINDS[kind].advice
    ] == []
