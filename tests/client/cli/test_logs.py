"""The verb `logs`: by time, chosen, for people and programs, also when the daemon is dead."""

import json
import select
from pathlib import Path
from typing import Any

import pytest

from carpool_protocol.files.log_format import log_line
from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon, until
from tests.kit.waits import END_LIMIT_S

ONE, TWO, THREE = (f"2026-11-21T22:00:0{second}.123Z" for second in (1, 2, 3))


@pytest.fixture
def logs(house: PrivateDaemon) -> Path:
    house.logs.mkdir(parents=True)
    (house.logs / "server-git.log").write_text("fatal: \x1b[2Jgone\n\xe9\n", encoding="latin-1")
    (house.logs / "broker.log").write_text(line(TWO, "warning", "broker", "up\nand running", {}))
    (house.logs / "launcher.log").write_text(
        line(ONE, "info", "launcher", "starts", {}) + line(THREE, "info", "launcher", "ready \x1b[2J", {})
    )
    return house.logs


def line(*parts: Any) -> str:
    return log_line(*parts) + "\n"


def test_a_dead_daemons_logs_are_read_and_made_safe(house: PrivateDaemon, logs: Path) -> None:
    done = house.run("logs", "git")
    assert (done.returncode, done.stdout) == (0, "git | fatal: \\x1b[2Jgone\ngit | \ufffd\n")


@behaviour("logs:by-time")
def test_all_logs_come_by_time_and_tell_which_line_is_whose(house: PrivateDaemon, logs: Path) -> None:
    own = [
        f"{ONE} launcher | starts",
        f"{TWO} broker | WARNING up",
        "    and running",
        f"{THREE} launcher | ready \\x1b[2J",
    ]
    assert house.run("logs", "--daemon").stdout.splitlines() == own
    assert house.run("logs").stdout.splitlines()[2:] == own
    assert house.run("logs", "-n", "1").stdout.splitlines() == own[3:]


def test_logs_are_chosen_by_level_and_time(house: PrivateDaemon, logs: Path) -> None:
    assert house.run("logs", "--level", "warning").stdout.splitlines()[0] == f"{TWO} broker | WARNING up"
    since = house.run("logs", "--since", THREE).stdout
    assert since == f"{THREE} launcher | ready \\x1b[2J\n"
    assert house.run("logs", "--since", "1m").stdout == ""
    done = house.run("logs", "--since", "tomorrow")
    assert done.returncode == 2
    assert "is no time; say 2026-11-22T14:00, 14:00, 30m" in done.stderr


def test_as_json_each_line_is_an_object(house: PrivateDaemon, logs: Path) -> None:
    (logs / "server-git.log").write_text(
        line(ONE, "info", "server", "hello", {"server": "git", "instance": 2, "stream": "stderr"})
    )
    assert json.loads(house.run("logs", "--json", "-n", "2").stdout) == [
        {
            "at": TWO,
            "level": "warning",
            "process": "broker",
            "message": "up\nand running",
            "log": "broker",
        },
        {"at": THREE, "level": "info", "process": "launcher", "message": "ready \x1b[2J", "log": "launcher"},
    ]
    (found,) = json.loads(house.run("logs", "git", "--json").stdout)
    assert found == {
        "at": ONE,
        "level": "info",
        "process": "server",
        "server": "git",
        "instance": 2,
        "stream": "stderr",
        "message": "hello",
        "log": "server-git",
    }


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
        assert process.stdout.readline() == b"git | more\n"
    finally:
        process.terminate()
        process.communicate(timeout=END_LIMIT_S)
