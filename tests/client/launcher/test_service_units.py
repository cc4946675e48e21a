"""The texts of carpool's units: sound, and without the environment's secrets."""

import plistlib
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from carpool.launcher.service_manager import RESTART_STATUS
from carpool.launcher.service_units import launchd_agent, systemd_system_unit, systemd_user_unit
from tests.behaviours import behaviour

SECRET = "canary-0123456789"
ENVIRON = {
    "PATH": "/a b:/c%d",
    "CARPOOL_CONFIG": '/x "y"/c.json',
    "API_KEY": SECRET,
    "HTTPS_PROXY": f"http://u:{SECRET}@p",
}

UNIT = systemd_user_unit(["/opt/carpool"], ENVIRON)
MakeUnit = Callable[[list[str], dict[str, str]], str]


@behaviour("service:unit")
def test_the_unit_of_systemd_says_places_and_nothing_else_of_the_environment() -> None:
    unit = systemd_user_unit(["/opt/my tools/$carpool"], ENVIRON)
    assert 'ExecStart="/opt/my tools/$$carpool" "up"\n' in unit
    assert 'Environment="PATH=/a b:/c%%d"\nEnvironment="CARPOOL_CONFIG=/x \\"y\\"/c.json"\n' in unit
    assert SECRET not in unit
    # Broken configuration, or it runs already: not again and again. A server too large: only that one.
    assert {"Restart=on-failure", "RestartPreventExitStatus=2", "OOMPolicy=continue"} <= set(unit.split("\n"))


@behaviour("service:unit")
def test_a_unit_of_the_machine_runs_as_a_user_in_places_of_its_own() -> None:
    unit = systemd_system_unit(["/opt/carpool"], ENVIRON, "agents")
    assert {
        "User=agents", "RuntimeDirectory=carpool", "StateDirectory=carpool", "WantedBy=multi-user.target",
        'Environment="CARPOOL_RUNTIME_DIR=/run/carpool"',
        'Environment="CARPOOL_CONFIG=/etc/carpool/carpool.json"',
    } <= set(unit.splitlines())  # fmt: skip
    assert "/c.json" not in unit, "the installer's own file is not that of the machine"
    assert SECRET not in unit


@behaviour("service:unit")
@pytest.mark.parametrize("unit", [UNIT, systemd_system_unit(["/opt/carpool"], ENVIRON, "agents")])
def test_a_unit_waits_until_carpool_is_ready_and_is_started_again_by_a_restart(unit: str) -> None:
    lines = set(unit.splitlines())
    assert {"Type=notify", f"RestartForceExitStatus={RESTART_STATUS}"} <= lines
    assert f"SuccessExitStatus={RESTART_STATUS}" in lines


def verified(file: Path) -> str:
    """Return what `systemd-analyze verify` reports about a unit."""
    command = ["systemd-analyze", "verify", "--man=no", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
@pytest.mark.parametrize("unit", [systemd_user_unit, partial(systemd_system_unit, user="root")])
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path, unit: MakeUnit) -> None:
    file = tmp_path / "carpool.service"
    program = tmp_path / "my carpool"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    file.write_text(unit([str(program)], ENVIRON))
    assert [line for line in verified(file).splitlines() if "carpool" in line] == []
    file.write_text("[Service]\nType=none\n")
    assert "carpool" in verified(file)


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
