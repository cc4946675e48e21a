"""Reading logs: tails, rotation, and a daemon that is dead."""

import json
import select
from pathlib import Path

import pytest

from carpool.cli.logs import LogTail
from tests.kit.private_daemon import PrivateDaemon, until


def test_the_last_lines_are_whole_and_in_order(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("".join(f"line {n}\n" for n in range(10_000)) + "unfinished")
    tail = LogTail(str(log))
    assert tail.last_lines(3) == ["line 9997", "line 9998", "line 9999"]
    assert tail.new_lines() == []
    with log.open("a") as file:
        file.write(" business\nmore\n")
    assert tail.new_lines() == ["unfinished business", "more"]


def test_a_short_file_is_completed_from_the_one_before(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    (tmp_path / "a.log.1").write_text("dropped\nold 1\nold 2\n")
    log.write_text("new\n")
    assert LogTail(str(log)).last_lines(3) == ["old 1", "old 2", "new"]
    assert LogTail(str(log)).last_lines(0) == []


def test_following_goes_on_over_a_rotation_and_a_file_that_comes_late(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    tail = LogTail(str(log))
    assert tail.last_lines(5) == []
    log.write_text("one\n")
    assert tail.new_lines() == ["one"]
    with log.open("a") as file:
        file.write("two\nha")
    log.rename(tmp_path / "a.log.1")
    assert tail.new_lines() == []
    log.write_text("lf\nthree\n")
    assert tail.new_lines() == ["two", "half", "three"]
    log.write_text("4\n")  # emptied and written again, shorter
    assert tail.new_lines() == ["4"]


def test_a_line_that_never_ends_does_not_grow_for_ever(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("")
    tail = LogTail(str(log))
    tail.last_lines(1)
    log.write_text("x" * 100_000)
    assert tail.new_lines() == ["x" * 100_000]


@pytest.fixture
def logs(house: PrivateDaemon) -> Path:
    house.logs.mkdir(parents=True)
    (house.logs / "server-git.log").write_text("fatal: \x1b[2Jgone\n\xe9\n", encoding="latin-1")
    (house.logs / "broker.log").write_text("up\n")
    return house.logs


def test_a_dead_daemons_logs_are_read_and_made_safe(house: PrivateDaemon, logs: Path) -> None:
    done = house.run("logs", "git")
    assert (done.returncode, done.stdout) == (0, "fatal: \\x1b[2Jgone\n\ufffd\n")


def test_logs_without_a_name_tell_which_line_is_whose(house: PrivateDaemon, logs: Path) -> None:
    assert house.run("logs").stdout.splitlines()[0] == "(broker) | up"
    assert house.run("logs", "--daemon").stdout == "up\n"
    found = json.loads(house.run("logs", "--json").stdout)
    assert [(each["log"], len(each["lines"])) for each in found] == [("(broker)", 1), ("git", 2)]


@pytest.mark.parametrize("name", ["gti", "../broker", "server-git", "(broker"])
def test_a_log_that_is_not_there_is_a_failure_with_a_hint(
    house: PrivateDaemon, logs: Path, name: str
) -> None:
    done = house.run("logs", name)
    assert done.returncode == 1
    assert "has been started here" in done.stderr


def test_following_shows_what_is_added(house: PrivateDaemon, logs: Path) -> None:
    process = house.start("logs", "git", "-f", "-n", "0")
    assert process.stdout
    pipe = process.stdout.fileno()

    def shown() -> bool:
        # It begins to look at some time: what is added after that it cannot miss.
        with (logs / "server-git.log").open("a") as file:
            file.write("more\n")
        return bool(select.select([pipe], [], [], 0.05)[0])

    try:
        until(shown, "it shows what is added")
        assert process.stdout.readline() == b"more\n"
    finally:
        process.terminate()
        process.communicate(timeout=20)
