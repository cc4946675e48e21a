"""The launcher as a process, over a broker and a supervisor that are fakes.

Also how `carpool.launcher.cleanup` clears away what these leave.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from carpool import launcher_lock
from carpool.launcher import processes
from carpool_protocol.bootstrap import paths
from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon, until
from tests.kit.waits import END_LIMIT_S


def accepts(house: PrivateDaemon) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(str(house.directory / "agents.sock"))
        except OSError:
            return False
        return True


def test_a_detached_start_returns_when_sessions_are_taken_and_down_leaves_nothing(
    house: PrivateDaemon,
) -> None:
    done = house.run("up", "--detach")
    assert (done.returncode, done.stderr) == (0, "")
    assert accepts(house)
    assert house.launcher
    done = house.run("down")
    assert (done.returncode, done.stderr) == (0, "")
    assert not house.launcher
    assert not house.left()
    assert not list(house.directory.glob("*.sock"))
    assert house.text("heard-broker") == house.text("heard-sup1") == "stop\n"


@behaviour("children:daemon-outlives-agent")
def test_the_daemon_is_in_a_session_of_its_own(house: PrivateDaemon) -> None:
    house.run("up", "--detach")
    assert os.getsid(house.launcher) == house.launcher
    assert os.getsid(house.launcher) != os.getsid(0)


def test_the_daemon_has_nothing_of_its_starters_environment_but_knows_its_places(
    house: PrivateDaemon,
) -> None:
    house.environ["GITHUB_TOKEN"] = "hunter2"
    house.run("up", "--detach")
    for name in ("broker", "sup1"):
        until(lambda name=name: house.lives(name), f"{name} runs")  # type: ignore[misc]  # mypy: lambda default
        environ = json.loads("{" + house.text(f"lives-{name}").split("} {", 1)[1])
        assert "GITHUB_TOKEN" not in environ
        assert environ["CARPOOL_RUNTIME_DIR"] == str(house.directory)
        assert environ["CARPOOL_STATE_DIR"] == str(house.directory / "state")
        assert environ["HOME"] == str(house.base)
    with open(f"/proc/{house.launcher}/environ") as file:
        assert "GITHUB_TOKEN" not in file.read()


def test_a_second_launcher_says_who_is_first_and_a_second_start_is_content(house: PrivateDaemon) -> None:
    house.run("up", "--detach")
    second = house.run("up")
    assert second.returncode == 2
    assert f"pid {house.launcher}" in second.stderr
    assert house.run("up", "--detach").returncode == 0
    assert len(house.lives("broker")) == 1


def test_starters_that_race_start_one_daemon(house: PrivateDaemon) -> None:
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda _: house.run("up", "--detach"), range(6)))
    assert [(each.returncode, each.stderr) for each in done] == [(0, "")] * 6
    until(lambda: house.lives("sup1"), "the supervisor runs")
    assert len(house.lives("broker")) == len(house.lives("sup1")) == 1


def test_shims_that_race_start_one_daemon_and_all_get_in(house: PrivateDaemon) -> None:
    line = '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n'
    with ThreadPoolExecutor(6) as pool:
        shims = [house.start("connect") for _ in range(6)]
        for shim in shims:
            assert shim.stdin
            shim.stdin.write(line.encode())
            shim.stdin.flush()
        answers = list(pool.map(lambda shim: shim.stdout.readline() if shim.stdout else b"", shims))
    for shim in shims:
        shim.communicate(timeout=END_LIMIT_S)
    assert all(b'"method":"ping"' in answer for answer in answers)
    assert len(house.lives("broker")) == 1


def test_a_shim_that_cannot_start_it_says_the_reason_and_exits_69(house: PrivateDaemon) -> None:
    house.behave("broker", "crash")
    done = house.run("connect", stdin="hello\n")
    assert done.returncode == 69
    assert done.stdout == ""
    assert "no module named sense" in done.stderr


def test_a_refused_configuration_stops_the_start_with_its_text(house: PrivateDaemon) -> None:
    house.behave("broker", "refuse")
    done = house.run("up", "--detach")
    assert done.returncode == 2
    assert "unknown key 'comand'" in done.stderr
    assert len(house.lives("broker")) == 1
    assert not house.launcher
    in_foreground = house.run("up")
    assert in_foreground.returncode == 2
    assert "unknown key 'comand'" in in_foreground.stderr


def test_what_a_broker_notes_as_it_starts_is_told_to_whoever_starts_it(house: PrivateDaemon) -> None:
    house.behave("broker", "note")
    done = house.run("up", "--detach")
    assert (done.returncode, done.stderr) == (0, "carpool: the configuration is broken\n")
    done = house.run("restart", "--all")
    assert (done.returncode, done.stderr) == (0, "carpool: the configuration is broken\n")


def test_what_is_held_until_carpool_stops_outlives_its_death_and_goes_with_down(house: PrivateDaemon) -> None:
    held = [Path(path) for path in paths.held_until_down(str(house.directory))]
    house.run("up", "--detach")
    for path in held:
        path.write_text("{}")
    house.run("restart", "--all")
    assert all(path.exists() for path in held)
    os.kill(house.launcher, signal.SIGKILL)
    until(lambda: not house.left(), "all of it has ended")
    house.run("up", "--detach")
    assert all(path.exists() for path in held)
    house.run("down")
    assert not any(path.exists() for path in held)


def test_the_configuration_is_handed_on_as_an_absolute_path(house: PrivateDaemon) -> None:
    house.run("up", "--detach", "--config", "some.json")
    assert f'"--config": "{os.getcwd()}/some.json"' in house.text("lives-broker")


def test_a_dead_broker_is_started_again_and_the_supervisor_stays(house: PrivateDaemon) -> None:
    house.run("up", "--detach")
    (first,) = house.lives("broker")
    os.kill(first, signal.SIGKILL)
    until(lambda: len(house.lives("broker")) == 2 and accepts(house), "a new broker takes sessions")
    assert len(house.lives("sup1")) == 1
    one, other = (line.split() for line in house.text("heirs").splitlines())
    assert one[:3] == ["heir", "0", "0"]
    assert other == ["heir", "1", "0", one[3]]
    assert len(bytes.fromhex(one[3])) == 32
    assert one[3] not in (house.logs / "launcher.log").read_text()


def followed(house: PrivateDaemon, count: int) -> bool:
    return len(house.lives("broker")) == count and accepts(house)


def test_a_broker_hears_which_one_was_the_last_that_waited_for_all_who_might_return(
    house: PrivateDaemon,
) -> None:
    house.run("up", "--detach")
    for count, words in ((2, ["alone"]), (3, []), (4, [])):
        house.behave("broker", *words)
        os.kill(house.lives("broker")[-1], signal.SIGKILL)
        until(partial(followed, house, count), "a new broker takes sessions")
    heirs = [line.split()[:3] for line in house.text("heirs").splitlines()]
    assert heirs == [["heir", "0", "0"], ["heir", "1", "0"], ["heir", "2", "1"], ["heir", "3", "1"]]


def test_a_dead_supervisor_is_told_to_the_broker_and_followed_by_a_sweep(house: PrivateDaemon) -> None:
    house.run("up", "--detach")
    swept = house.text("swept")
    until(lambda: house.lives("sup1"), "the supervisor runs")
    os.kill(house.lives("sup1")[0], signal.SIGKILL)
    until(lambda: len(house.lives("sup1")) == 2, "a new supervisor")
    until(lambda: "gone sup1\n" in house.text("heard-broker"), "the broker has been told")
    mark = paths.runtime_id(str(house.directory))
    assert house.text("swept").removeprefix(swept).split() == [mark]
    assert len(house.lives("broker")) == 1


def test_a_new_supervisor_waits_for_what_the_old_one_left(house: PrivateDaemon) -> None:
    house.behave("sup1", "spawner")
    house.run("up", "--detach")
    until(lambda: house.text("spawner"), "the fake supervisor has a spawner")
    spawner = int(house.text("spawner"))
    os.kill(house.lives("sup1")[0], signal.SIGKILL)
    until(lambda: "gone sup1" in house.text("heard-broker"), "the launcher has noticed")
    with pytest.raises(AssertionError):
        until(lambda: len(house.lives("sup1")) == 2, "too early", limit_s=1.0)
    os.kill(spawner, signal.SIGKILL)
    until(lambda: len(house.lives("sup1")) == 2, "a new supervisor")
    assert not processes._stat(spawner), "the adopted spawner was reaped"


def launcher_with_short_patience(house: PrivateDaemon) -> "subprocess.Popen[bytes]":
    """A launcher that calls three seconds of silence too long: so long a busy machine lets nobody wait."""
    code = (
        "import os, sys\n"
        "from carpool import launcher_lock\n"
        "from carpool.launcher.launcher import Launcher\n"
        "d = os.environ['CARPOOL_RUNTIME_DIR']\n"
        "held = launcher_lock.take_lock(d, '')\n"
        "sys.exit(Launcher(d, '', dict(os.environ), silent_s=3.0).run())\n"
    )
    environ = {**house.environ, paths.DAEMON_MARK: paths.runtime_id(str(house.directory))}
    return subprocess.Popen([sys.executable, "-c", code], env=environ, stderr=subprocess.DEVNULL)


@behaviour("silence:daemons-replaced")
def test_a_silent_process_is_replaced_and_a_stopped_one_is_not(house: PrivateDaemon) -> None:
    house.behave("sup1", "mute")
    launcher = launcher_with_short_patience(house)
    try:
        until(lambda: accepts(house), "the broker runs")
        broker = house.lives("broker")[0]
        os.kill(broker, signal.SIGSTOP)
        until(lambda: len(house.lives("sup1")) >= 2, "the mute supervisor is replaced")
        assert len(house.lives("broker")) == 1
        os.kill(broker, signal.SIGCONT)
        launcher.send_signal(signal.SIGTERM)
        until(lambda: "stop" in house.text("heard-broker"), "the broker is told to stop")
    finally:
        assert launcher.wait(20) == 0


def test_what_ignores_stop_is_killed_at_the_second_word(house: PrivateDaemon) -> None:
    house.behave("broker", "deaf")
    house.run("up", "--detach")
    launcher = house.launcher
    os.kill(launcher, signal.SIGTERM)
    until(lambda: "stop" in house.text("heard-broker"), "it was asked politely")
    os.kill(launcher, signal.SIGTERM)
    until(lambda: not house.launcher, "the launcher has ended")
    assert not house.left()
    assert len(house.text("swept").split()) == 2, "an unclean end is swept"


def test_a_killed_launcher_takes_its_processes_with_it_and_the_next_one_starts_clean(
    house: PrivateDaemon,
) -> None:
    house.run("up", "--detach")
    before = house.left()
    assert len(before) == 2
    os.kill(house.launcher, signal.SIGKILL)
    until(lambda: not house.left(), "both have ended")
    done = house.run("up", "--detach")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(house.lives("broker")) == 2


def kill_launcher(house: PrivateDaemon) -> None:
    os.kill(house.launcher, signal.SIGKILL)
    until(lambda: not house.left(), "all of it has ended")


def given(house: PrivateDaemon) -> tuple[str, str]:
    holder = launcher_lock.holder(str(house.directory))
    assert holder
    return holder.config, holder.http


def test_who_brings_carpool_back_for_an_agent_starts_it_as_the_killed_launcher_was(
    house: PrivateDaemon,
) -> None:
    was = str(house.base / "some.json"), "127.0.0.1:0"
    house.run("up", "--detach", "--config", was[0], "--http", was[1])
    kill_launcher(house)
    house.environ["CARPOOL_CONFIG"] = "/of-this-agent.json"
    with subprocess.Popen(  # the shim's way
        [sys.executable, "-m", "carpool.launcher", "--detach", "--quiet"], env=house.environ
    ) as starter:
        assert starter.wait(timeout=END_LIMIT_S) == 0
    assert given(house) == was
    kill_launcher(house)
    house.run("tools")  # a verb's way
    assert given(house) == was


def test_who_starts_carpool_by_hand_gets_what_he_says_whatever_a_killed_launcher_had(
    house: PrivateDaemon,
) -> None:
    house.run("up", "--detach", "--config", str(house.base / "some.json"), "--http", "127.0.0.1:0")
    kill_launcher(house)
    house.run("up", "--detach")
    assert given(house) == ("", "")


def test_what_a_launcher_had_is_forgotten_with_the_next_start_of_the_machine(
    house: PrivateDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory may be one that outlives it."""
    directory = str(house.directory)
    with monkeypatch.context() as earlier:
        earlier.setattr(launcher_lock, "this_boot", lambda: "an earlier one")
        held = launcher_lock.take_lock(directory, "/some.json", "127.0.0.1:0")
        assert held is not None
        os.close(held)  # as when the machine loses its power
        assert launcher_lock.killed_holder(directory) is not None
    assert launcher_lock.killed_holder(directory) is None


def test_down_and_an_end_in_order_leave_nothing_to_bring_back(house: PrivateDaemon) -> None:
    file = str(house.base / "some.json")
    house.run("up", "--detach", "--config", file)
    assert launcher_lock.killed_holder(str(house.directory)) is None, "it runs"
    kill_launcher(house)
    killed = launcher_lock.killed_holder(str(house.directory))
    assert killed
    assert killed.config == file
    house.run("down")
    assert launcher_lock.killed_holder(str(house.directory)) is None
    house.run("up", "--detach", "--config", file)
    house.run("down")
    assert launcher_lock.killed_holder(str(house.directory)) is None


def test_down_of_a_killed_launcher_removes_the_sockets(house: PrivateDaemon) -> None:
    house.run("up", "--detach")
    os.kill(house.launcher, signal.SIGKILL)
    until(lambda: not house.launcher, "it is dead")
    done = house.run("down")
    assert done.returncode == 0
    assert "was not running" in done.stdout
    assert not list(house.directory.glob("*.sock"))


def test_ctrl_c_ends_a_foreground_launcher_in_order(house: PrivateDaemon) -> None:
    launcher = house.start("up")
    until(lambda: accepts(house), "it is up")
    launcher.send_signal(signal.SIGINT)
    _, err = launcher.communicate(timeout=END_LIMIT_S)
    assert launcher.returncode == 0
    assert b"Traceback" not in err
    assert house.text("heard-broker") == "stop\n"


def test_restart_all_replaces_everything_and_keeps_the_configuration(house: PrivateDaemon) -> None:
    file = house.base / "some.json"
    file.write_text("{}")
    house.run("up", "--detach", "--config", str(file))
    first = house.launcher
    done = house.run("restart", "--all")
    assert done.returncode == 0
    assert house.launcher not in {0, first}
    assert house.text("lives-broker").count(f'"--config": "{file}"') == 2


def test_restart_all_ends_nothing_while_the_configuration_is_broken(house: PrivateDaemon) -> None:
    file = house.base / "some.json"
    file.write_text("{}")
    house.run("up", "--detach", "--config", str(file))
    first = house.launcher
    file.write_text("{")
    done = house.run("restart", "--all")
    assert (done.returncode, house.launcher) == (2, first)
    assert done.stderr == (
        "carpool: nothing is restarted while the configuration is broken:\n"
        f"{file}:1: this {{ is not closed: }} is missing\n"
    )


@behaviour("faults:runtime-directory")
def test_a_runtime_directory_that_vanishes_is_put_back_with_its_lock_and_nobody_is_restarted(
    house: PrivateDaemon,
) -> None:
    house.run("up", "--detach")
    launcher, heard = house.launcher, house.lives("broker")
    (house.directory / "lock").unlink()
    until(lambda: house.launcher == launcher, "the lock is there again")
    house.directory.rename(house.base / "away")
    until(lambda: house.launcher == launcher, "the directory is there again")
    assert house.directory.stat().st_mode & 0o777 == 0o700
    assert processes.marked(paths.runtime_id(str(house.directory)))
    for file in (house.base / "away").iterdir():  # what the fakes have told
        if file.is_file() and file.name != "lock":
            file.rename(house.directory / file.name)
    assert house.lives("broker") == heard


def test_a_launcher_whose_place_was_taken_ends_and_leaves_what_is_the_others_alone(
    house: PrivateDaemon,
) -> None:
    house.run("up", "--detach")
    first = house.launcher
    os.kill(first, signal.SIGSTOP)
    house.directory.rename(house.base / "away")
    house.directory.mkdir(mode=0o700)
    other = launcher_lock.take_lock(str(house.directory), "")
    assert other is not None
    try:
        theirs = house.directory / "http.json"  # the fake broker itself removes its socket
        theirs.write_text("{}")
        os.kill(first, signal.SIGCONT)
        until(lambda: not processes.marked(paths.runtime_id(str(house.directory))), "the first one ends")
        until(lambda: not os.path.exists(f"/proc/{first}"), "its launcher, too")
        assert theirs.exists()
    finally:
        launcher_lock.release_lock(other)


def test_a_stale_pid_in_the_lock_file_is_never_believed(house: PrivateDaemon) -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        (house.directory / "lock").write_text(f"pid={bystander.pid}\nconfig=\n")
        assert launcher_lock.holder(str(house.directory)) is None
        assert house.run("down").returncode == 0
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_only_one_takes_the_lock_and_its_text_goes_with_it(house: PrivateDaemon) -> None:
    directory = str(house.directory)
    held = launcher_lock.take_lock(directory, "/a=b.json")
    assert held is not None
    assert launcher_lock.take_lock(directory, "") is None
    holder = launcher_lock.holder(directory)
    assert holder
    assert (holder.pid, holder.config) == (os.getpid(), "/a=b.json")
    launcher_lock.release_lock(held)
    assert launcher_lock.holder(directory) is None
    assert house.text("lock") == ""


@behaviour("start:idle")
def test_a_carpool_that_an_agent_started_ends_when_it_is_idle_and_starts_with_the_next_agent(
    house: PrivateDaemon,
) -> None:
    house.behave("broker", "idle")
    for _ in range(2):
        house.start("connect").communicate(timeout=END_LIMIT_S)
        until(lambda: not house.launcher, "the launcher has ended")
        assert not house.left()
        assert not (house.directory / "down").exists(), "nobody ended it on purpose"
    assert "nobody has used carpool" in (house.directory / "state/log/launcher.log").read_text()
    assert len(house.lives("broker")) == 2


@behaviour("start:idle")
@pytest.mark.parametrize(("words", "ends_idle"), [((), False), (("--quiet",), True)])
def test_only_a_carpool_that_an_agent_started_ends_idle_also_after_its_launcher_was_killed(
    house: PrivateDaemon, words: tuple[str, ...], ends_idle: bool
) -> None:
    assert house.run("up", "--detach", *words).returncode == 0
    for _ in range(2):
        held = launcher_lock.holder(str(house.directory))
        assert held is not None
        assert held.ends_idle is ends_idle
        os.kill(held.pid, signal.SIGKILL)
        until(lambda: launcher_lock.holder(str(house.directory)) is None, "it is dead")
        assert house.run("up", "--detach", "--quiet").returncode == 0


@behaviour("start:idle")
def test_a_person_who_starts_what_an_agent_has_started_is_told_that_it_ends(house: PrivateDaemon) -> None:
    house.run("up", "--detach", "--quiet")
    done = house.run("up", "--detach")
    assert (done.returncode, "`carpool down` first to keep it up" in done.stderr) == (0, True)
    house.run("down")
    house.run("up", "--detach")
    assert house.run("up", "--detach").stderr == ""
