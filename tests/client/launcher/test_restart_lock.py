"""Restarts of carpool that meet each other, and `carpool down` that meets a restart."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from carpool.launcher.restart_lock import RestartLock, write_down_file
from carpool_protocol.bootstrap import paths
from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon, until
from tests.kit.waits import END_LIMIT_S


def log_of(house: PrivateDaemon) -> str:
    return (house.logs / "launcher.log").read_text()


def holds_restart_lock(house: PrivateDaemon) -> bool:
    """True if a verb holds the lock. Read from the system: who tries to take it may get in the verb's way."""
    path = Path(paths.restart_file(str(house.directory)))
    if not path.exists():
        return False
    return f":{path.stat().st_ino} " in Path("/proc/locks").read_text()


def said(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=END_LIMIT_S)
    return process.returncode, out.decode(), err.decode()


def test_one_at_a_time_has_the_lock_and_a_later_one_gets_it(tmp_path: Path) -> None:
    with RestartLock(str(tmp_path)) as first, RestartLock(str(tmp_path)) as second:
        assert first.take()
        assert not second.take()
        first.give_back()
        assert second.take()
        assert not first.take(0.03)
    with RestartLock(str(tmp_path)) as third:
        assert third.take()


def test_only_a_down_that_was_said_after_the_restart_began_is_wanted(tmp_path: Path) -> None:
    directory = str(tmp_path)
    write_down_file(directory)
    with RestartLock(directory) as lock:
        assert not lock.is_down_wanted(), "it was said before"
        os.unlink(paths.down_file(directory))
        assert not lock.is_down_wanted(), "a launcher has started"
        write_down_file(directory)
        assert lock.is_down_wanted()


MOMENTS: dict[str, Callable[[PrivateDaemon, int], object]] = {
    "before it drains": lambda house, _: holds_restart_lock(house),
    "while it drains": lambda house, _: "draining" in log_of(house),
    "between two launchers": lambda house, first: house.launcher != first,
    "while the next launcher starts": lambda house, first: house.launcher not in {0, first},
}


@behaviour("restart:down-wins")
@pytest.mark.parametrize("moment", MOMENTS)
def test_down_during_a_restart_leaves_nothing_that_runs_or_starts(house: PrivateDaemon, moment: str) -> None:
    house.run("up", "--detach")
    first = house.launcher
    restarting = house.start("restart", "--all")
    until(lambda: MOMENTS[moment](house, first), moment)
    down = house.run("down")
    assert (down.returncode, down.stderr) == (0, "")
    assert down.stdout == f"carpool is down in {house.directory}\n"
    code, out, err = said(restarting)
    assert not house.launcher
    assert not house.left()
    assert (code, out) == (0, "carpool: restarted\n") or (code, out) == (1, ""), err
    assert os.path.exists(paths.down_file(str(house.directory))), "shims need not start it"


@behaviour("restart:down-wins")
def test_down_ends_what_a_restart_has_started_and_returns_after_the_restart(house: PrivateDaemon) -> None:
    house.run("up", "--detach")
    first = house.launcher
    with RestartLock(str(house.directory)) as lock:  # as the verb does
        assert lock.take()
        os.kill(first, signal.SIGUSR1)
        until(lambda: house.launcher != first, "the first launcher has ended")
        assert not lock.is_down_wanted()
        down = house.start("down")
        until(lock.is_down_wanted, "`carpool down` has begun")
        house.run("up", "--detach")
        until(lambda: not house.launcher, "it has ended the next launcher, too")
        assert down.poll() is None, "it waits for the verb"
    assert said(down) == (0, f"carpool is down in {house.directory}\n", "")
    assert not house.left()


SLOW_LAUNCHER = """
import os, pathlib, sys, time
gate = pathlib.Path(os.environ.get("CARPOOL_RUNTIME_DIR", ""), "gate")
if "--ready-fd" in sys.orig_argv and gate.exists():
    gate.with_name("arrived").touch()
    while gate.exists():
        time.sleep(0.01)
"""
"""Holds the launcher of a restart before it has done anything, while there is a file `gate`."""


@behaviour("restart:down-wins")
def test_down_waits_for_the_launcher_of_a_restart_whose_verb_was_killed(house: PrivateDaemon) -> None:
    slow = house.base / "slow"
    (slow / "carpool_broker").mkdir(
        parents=True
    )  # what holds nothing of carpool is not on the launcher's path
    (slow / "sitecustomize.py").write_text(SLOW_LAUNCHER)
    house.environ["PYTHONPATH"] += os.pathsep + str(slow)
    house.run("up", "--detach")
    gate = house.directory / "gate"
    gate.touch()
    restarting = house.start("restart", "--all")
    until((house.directory / "arrived").exists, "the next launcher has begun and has no lock yet")
    restarting.kill()
    restarting.communicate()
    early = house.run("down", "--timeout", "0.1")
    assert (early.returncode, early.stdout) == (1, "")
    assert "a `carpool restart --all` still runs" in early.stderr
    down = house.start("down")
    gate.unlink()
    assert said(down) == (0, f"carpool is down in {house.directory}\n", "")
    assert not house.launcher
    assert not house.left()


def test_down_fails_where_a_restart_does_not_end(house: PrivateDaemon) -> None:
    with RestartLock(str(house.directory)) as lock:
        assert lock.take()
        done = house.run("down", "--timeout", "0.1")
    assert done.returncode == 1
    assert "a `carpool restart --all` still runs after 0.1 s" in done.stderr


@behaviour("restart:down-wins")
def test_a_launcher_that_is_ended_after_its_broker_says_that_it_was_on_purpose(house: PrivateDaemon) -> None:
    """As by a signal of a person, without `carpool down`: shims wait for the end of a restart."""
    house.behave("sup1", "deaf")
    house.run("up", "--detach")
    launcher = house.launcher
    (broker,) = house.lives("broker")
    until(lambda: house.lives("sup1"), "the supervisor runs")
    os.kill(launcher, signal.SIGUSR1)
    until(lambda: not Path(f"/proc/{broker}").exists(), "the broker has ended")
    os.kill(launcher, signal.SIGTERM)
    until(lambda: not house.launcher, "the launcher ends")
    assert os.path.exists(paths.down_file(str(house.directory)))


@behaviour("restart:one-at-a-time")
def test_a_second_signal_to_restart_leaves_open_calls_their_time(house: PrivateDaemon) -> None:
    house.behave("broker", "drains")
    house.run("up", "--detach")
    launcher = house.launcher
    os.kill(launcher, signal.SIGUSR1)
    until(lambda: "draining: " in log_of(house), "it drains")
    os.kill(launcher, signal.SIGUSR1)
    until(lambda: "it stops already" in log_of(house), "it has got the second signal")
    (house.directory / "answered").touch()
    until(lambda: not house.launcher, "the launcher has ended")
    assert house.text("heard-broker") == "stop again\n"


@behaviour("restart:one-at-a-time")
def test_restarts_at_the_same_time_all_succeed_and_cut_no_call(house: PrivateDaemon) -> None:
    house.behave("broker", "drains")
    house.run("up", "--detach")
    restarts = [house.start("restart", "--all") for _ in range(3)]
    until(lambda: "draining: " in log_of(house), "it drains")
    (house.directory / "answered").touch()
    assert [said(each) for each in restarts] == [(0, "carpool: restarted\n", "")] * 3
    assert set(house.text("heard-broker").split("\n")) == {"stop again", ""}
    assert house.launcher


@behaviour("restart:one-at-a-time")
def test_a_restart_begins_only_when_the_one_before_it_has_ended(house: PrivateDaemon) -> None:
    house.run("up", "--detach")
    first = house.launcher
    file = paths.restart_file(str(house.directory))
    with RestartLock(str(house.directory)) as lock:
        assert lock.take()
        restart = house.start("restart", "--all")
        until(lambda: file in descriptors_of(restart.pid), "it asks for the lock")
        with pytest.raises(AssertionError):
            until(lambda: "draining: " in log_of(house), "too early", limit_s=1.0)
    assert said(restart) == (0, "carpool: restarted\n", "")
    assert house.launcher not in {0, first}


def descriptors_of(pid: int) -> list[str]:
    """Return the files that a process has open."""
    found = []
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(entry.path))
    return found
