"""The demo on the real servers, short: a right end, and nothing left of it, also when it is interrupted."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.demo.questions import MODULES
from carpool.demo.sandbox import DemoCarpool
from carpool.launcher import processes
from carpool.launcher.own_command import carpool_argv

pytest.importorskip(MODULES["time"])
pytest.importorskip(MODULES["git"])

SHORT = """
import sys
from carpool.demo import command, run
command.LIMIT_S = 180.0
run.ATTACH_S = run.BACK_S = 90.0
run.LAP_S = run.BEFORE_S = run.AFTER_S = 0.3
run.WORK_S = 1.0
run.MEASURED_AGENTS = 2
command.demo(sys.argv[1:])
"""
LIMIT_S = 240.0
"""The demo's own limits are longer here as well: this machine may be busy, and nobody looks on."""


@pytest.fixture
def place() -> Iterator[Path]:
    """Where the demo makes its directory. Short: there will be sockets in it."""
    with tempfile.TemporaryDirectory(prefix="cp-", dir="/tmp") as name:
        yield Path(name)


def start(place: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SHORT, *arguments],
        env={**os.environ, "TMPDIR": str(place)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left(place: Path) -> list[str]:
    """Running processes that have anything to do with the demo's directory, and what is in it."""
    found = [str(each) for each in place.iterdir()]
    told = processes.with_environment(lambda environ: any(str(place) in entry for entry in environ))
    return found + [command for _, command in told]


def test_demo_ends_well_and_leaves_nothing(place: Path) -> None:
    process = start(place, "--agents", "3", "--json")
    out, err = process.communicate(timeout=LIMIT_S)
    found = json.loads(out)
    assert process.returncode == 0, (found["problems"], found["left"], err)
    assert found["ok"] is True
    assert found["carpool"]["processes"]["servers"] == 2
    assert found["kill"]["pid"] != found["kill"]["new_pid"]
    assert found["kill"]["repeated_well"] >= found["kill"]["lost"] > 0
    assert found["answers"]["wrong"] == found["answers"]["failed"] == 0
    assert left(place) == []


@pytest.mark.parametrize("moment", ["WITHOUT CARPOOL", "WITH CARPOOL: the", "calls are answered"])
def test_interrupted_demo_leaves_nothing(place: Path, moment: str) -> None:
    process = start(place, "--agents", "2")
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stderr:
        if moment in line:
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, err
    assert "Nothing is left" in out
    assert left(place) == []


def test_a_carpool_that_an_interrupt_caught_while_it_was_starting_is_ended_too() -> None:
    house = DemoCarpool()
    house.configure()
    house._may_be_up = True
    command = [*carpool_argv(), "up", "--detach", "--config", str(house.base / "carpool.json")]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env=house.environ, stdout=quiet, stderr=quiet, process_group=0):
        assert house.close() == []
    assert not house.base.exists()
