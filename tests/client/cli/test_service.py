"""The verb `service`: units that are sound, and what systemd is told."""

import json
import plistlib
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from carpool.cli.service import launchd_agent, systemd_unit
from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon

SECRET = "canary-0123456789"
ENVIRON = {
    "PATH": "/a b:/c%d",
    "CARPOOL_CONFIG": '/x "y"/c.json',
    "API_KEY": SECRET,
    "HTTPS_PROXY": f"http://u:{SECRET}@p",
}


@behaviour("service:unit")
def test_the_unit_of_systemd_says_places_and_nothing_else_of_the_environment() -> None:
    unit = systemd_unit(["/opt/my tools/$carpool"], ENVIRON)
    assert 'ExecStart="/opt/my tools/$$carpool" "up"\n' in unit
    assert 'Environment="PATH=/a b:/c%%d"\nEnvironment="CARPOOL_CONFIG=/x \\"y\\"/c.json"\n' in unit
    assert SECRET not in unit
    # Broken configuration, or it runs already: not again and again. A server too large: only that one.
    assert {"Restart=on-failure", "RestartPreventExitStatus=2", "OOMPolicy=continue"} <= set(unit.split("\n"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    file = tmp_path / "carpool.service"
    program = tmp_path / "my carpool"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    file.write_text(systemd_unit([str(program)], ENVIRON))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert [line for line in done.stderr.splitlines() if "carpool" in line] == []
    file.write_text("[Service]\nType=none\n")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "carpool" in done.stderr


@behaviour("service:unit")
def test_the_agent_of_launchd_says_the_same() -> None:
    text = launchd_agent(["/opt/carpool"], ENVIRON, "/log/service.log")
    agent = plistlib.loads(text.encode())
    assert agent["ProgramArguments"] == ["/opt/carpool", "up"]
    assert agent["EnvironmentVariables"] == {name: ENVIRON[name] for name in ("PATH", "CARPOOL_CONFIG")}
    assert (agent["Label"], agent["RunAtLoad"], agent["KeepAlive"]) == (
        "carpool",
        True,
        {"SuccessfulExit": False},
    )
    assert SECRET not in text


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
