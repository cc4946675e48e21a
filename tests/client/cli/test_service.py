"""The verb `service`: units that are sound, and what systemd is told."""

import getpass
import json
import plistlib
import stat
from pathlib import Path

from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon


def systemd(house: PrivateDaemon, code: int = 0) -> Path:
    """A stand-in for systemctl that writes down what it is told."""
    told = house.base / "told"
    program = house.base / "bin" / "systemctl"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\necho "$@" >> {told}\necho "Failed to connect to bus" >&2\nexit {code}\n')
    program.chmod(0o755)
    house.environ["PATH"] = f"{program.parent}:/usr/bin:/bin"
    return told


@behaviour("service:unit")
def test_a_unit_is_installed_started_shown_and_taken_away(house: PrivateDaemon) -> None:
    told = systemd(house)
    file = house.base / ".config/systemd/user/carpool.service"
    assert "there is no service of carpool" in house.run("service", "status").stdout
    done = house.run("service", "install")
    assert (done.returncode, done.stderr) == (0, "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert file.read_text() == house.run("service", "install", "--print").stdout
    state = json.loads(house.run("service", "status", "--json").stdout)
    assert state == {"file": str(file), "installed": True, "current": True, "active": True, "running": False}
    file.write_text(file.read_text() + "# older\n")
    assert "writes it again" in house.run("service", "status").stdout
    assert house.run("service", "uninstall").returncode == 0
    assert not file.exists()
    assert house.run("service", "uninstall").stdout == "there is no service of carpool\n"
    assert [line for line in told.read_text().splitlines() if "is-active" not in line] == [
        "--user daemon-reload",
        "--user enable --now carpool.service",
        "--user disable --now carpool.service",
        "--user daemon-reload",
    ]


def test_beside_a_carpool_that_runs_the_service_waits_for_the_next_login(house: PrivateDaemon) -> None:
    told = systemd(house)
    assert house.run("up", "--detach").returncode == 0
    done = house.run("service", "install")
    assert "the service takes over with your next login" in done.stdout
    assert told.read_text().splitlines()[-1] == "--user enable carpool.service"
    assert house.run("down").returncode == 0


def test_a_unit_that_is_not_ours_is_left_alone(house: PrivateDaemon) -> None:
    systemd(house)
    file = house.base / ".config/systemd/user/carpool.service"
    file.parent.mkdir(parents=True)
    file.write_text("[Service]\n")
    for what in ("install", "uninstall"):
        done = house.run("service", what)
        assert (done.returncode, "is not carpool's" in done.stderr) == (2, True)
    assert file.read_text() == "[Service]\n"


def test_without_systemd_it_is_said_what_to_do(house: PrivateDaemon) -> None:
    systemd(house, code=1)
    done = house.run("service", "install")
    assert done.returncode == 1
    assert "failed: Failed to connect to bus; carpool needs no service" in done.stderr
    assert not (house.base / ".config/systemd/user/carpool.service").exists()
    house.environ["PATH"] = str(house.base / "nothing")
    done = house.run("service", "install")
    assert done.returncode == 1
    assert "there is no systemctl here" in done.stderr
    assert "`carpool up --detach`" in done.stderr


@behaviour("service:unit")
def test_a_unit_goes_also_where_systemd_does_not_answer(house: PrivateDaemon) -> None:
    systemd(house)
    assert house.run("service", "install").returncode == 0
    file = house.base / ".config/systemd/user/carpool.service"
    link = file.parent / "default.target.wants" / file.name
    link.parent.mkdir()
    link.symlink_to(file)
    systemd(house, code=1)
    done = house.run("service", "uninstall")
    assert (done.returncode, done.stdout) == (0, f"{file} is gone\n")
    assert "disable --now carpool.service` failed: Failed to connect to bus" in done.stderr
    assert not file.exists()
    assert not link.is_symlink()


def test_the_other_system_s_unit_can_be_shown(house: PrivateDaemon) -> None:
    text = house.run("service", "install", "--print", "--for", "launchd").stdout
    assert plistlib.loads(text.encode())["StandardErrorPath"].endswith("/log/service.log")
    assert house.run("service", "status", "--print").returncode == 2


@behaviour("service:unit")
def test_a_unit_of_the_machine_is_shown_for_a_user_that_there_is(house: PrivateDaemon) -> None:
    user = getpass.getuser()
    text = house.run("service", "install", "--print", "--for", "systemd", "--system", user).stdout
    assert f"User={user}\n" in text
    refused = house.run("service", "install", "--print", "--for", "systemd", "--system", "no-such-user")
    assert (refused.returncode, "there is no user no-such-user" in refused.stderr) == (2, True)
    refused = house.run("service", "install", "--print", "--for", "launchd", "--system", user)
    assert (refused.returncode, "a unit of systemd" in refused.stderr) == (2, True)
