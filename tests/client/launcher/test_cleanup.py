"""What an earlier carpool left is found and ended, also what appears while it is looked for."""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from carpool.launcher import cleanup, processes, sandbox_processes
from carpool_protocol.bootstrap import paths
from tests.behaviours import behaviour

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc on Linux only")


@contextmanager
def marked(runtime: str) -> Iterator[subprocess.Popen[bytes]]:
    """A running process with this runtime's mark."""
    environ = {paths.DAEMON_MARK: runtime}
    with subprocess.Popen(
        ["/bin/sh", "-c", "echo; exec sleep 1000"], stdout=subprocess.PIPE, env=environ
    ) as one:
        assert one.stdout is not None
        one.stdout.readline()
        try:
            yield one
        finally:
            one.kill()


def end(one: subprocess.Popen[bytes]) -> None:
    one.kill()
    one.wait()


@pytest.fixture
def runtime() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


def after_the_next_list(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Do this once, when the processes have been listed and none has been judged."""
    list_pids, to_do = processes._pids, [act]

    def list_then_act() -> list[int]:
        listed = list_pids()
        while to_do:
            to_do.pop()()
        return listed

    monkeypatch.setattr(processes, "_pids", list_then_act)


def test_a_process_that_one_starts_before_it_ends_is_found_though_the_list_is_older(
    runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with marked(runtime) as ending, marked(f"{runtime}-other") as other:
        assert other.pid not in dict(processes.marked(runtime))
        started = marked(runtime)
        found: list[int] = []

        def act() -> None:
            found.append(started.__enter__().pid)
            end(ending)

        after_the_next_list(monkeypatch, act)
        try:
            assert [pid for pid, _ in processes.marked(runtime)] == found
        finally:
            started.__exit__(None, None, None)


@pytest.mark.parametrize("ended", ["(sh)", "(my helper)"])
def test_what_an_ending_process_has_started_is_found_by_ps_too(
    monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    """`ps` shows a process that has ended before its arguments were read by its name in brackets."""
    mark = f"{paths.DAEMON_MARK}=one"
    other = f"3 /bin/sh -c work {mark}-other PATH=/bin"
    said = [f"  2 {ended}\n{other}\n", f"{other}\n   4 /bin/sh -c work {mark} PATH=/bin\n", ""]
    monkeypatch.setattr(processes, "_ON_LINUX", False)
    monkeypatch.setattr(processes, "ps", lambda *_: said.pop(0))
    assert processes.marked("one") == [(4, "/bin/sh")]
    assert said == [""]


def test_the_processes_of_a_private_carpool_are_found_by_ps_too(monkeypatch: pytest.MonkeyPatch) -> None:
    said = ["2 (sh)\n", f"4 /bin/sh -c work {paths.RUNTIME_VARIABLE}=/tmp/one\n"]
    monkeypatch.setattr(processes, "_ON_LINUX", False)
    monkeypatch.setattr(processes, "ps", lambda *_: said.pop(0))
    assert sandbox_processes.marked("/tmp/one") == [(4, "/bin/sh")]


def test_ps_has_no_mark_and_so_does_not_find_itself(
    runtime: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "ps"
    own.write_text('#!/bin/sh\necho "$1 $CARPOOL_DAEMON."\n')
    own.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv(paths.DAEMON_MARK, runtime)
    assert processes.ps("-ax") == "-ax .\n"


ADOPTS = """
import os, subprocess, sys, time
from carpool.launcher import processes
processes.become_subreaper()
code = "setsid sh -c 'echo $$; exec sleep 1000' & wait"
parent = subprocess.Popen(["sh", "-c", code], stdout=subprocess.PIPE)
child = int(parent.stdout.readline())
list_pids = processes._pids
def list_then_end():
    listed = [pid for pid in list_pids() if pid != child]  # it is nobody's child of ours yet
    processes._pids = list_pids
    parent.kill()
    os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
    return listed
processes._pids = list_then_end
print(processes.adopted(set()) == [child])
os.kill(child, 9)
"""


def test_the_child_of_one_that_ends_while_the_launcher_looks_counts_as_adopted() -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", ADOPTS], env=environ, capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"True\n", b"")


def test_what_an_earlier_process_starts_before_it_is_killed_is_killed_too(
    runtime: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cleanup, "CLEAR_S", 0.0)
    monkeypatch.setattr(paths, "runtime_id", lambda _: runtime)
    with marked(runtime) as earlier:
        later = marked(runtime)
        started: list[subprocess.Popen[bytes]] = []
        list_marked = processes.marked

        def list_then_start(wanted: str) -> list[tuple[int, str]]:
            listed = list_marked(wanted)
            if not started:
                started.append(later.__enter__())
            return listed

        monkeypatch.setattr(processes, "marked", list_then_start)
        try:
            cleanup.Leftovers(str(tmp_path), {}, None).end_earlier_processes()
            assert [one.wait(10) for one in (earlier, *started)] == [-9, -9]
        finally:
            later.__exit__(None, None, None)


LEFT_BEHIND = """
import os, subprocess, sys
from carpool.launcher import cleanup, processes, sandbox_processes
from carpool_protocol.bootstrap import paths
from tests.behaviours import behaviour
processes.become_subreaper()
cleanup.CLEAR_S = 0.0
def left_by(**marks):
    code = ["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"]
    return int(subprocess.run(code, stdout=subprocess.PIPE, env={**os.environ, **marks}, check=True).stdout)
runtime = paths.runtime_id(sys.argv[1])
ours, others = left_by(**{paths.DAEMON_MARK: runtime}), left_by(**{paths.DAEMON_MARK: runtime + "-other"})
cleanup.Leftovers(sys.argv[1], dict(os.environ), None).clean_up(unclean=False)
print(processes.adopted(set()) == [others], dict(processes.marked(runtime)))
for pid in processes.adopted(set()):
    os.kill(pid, 9)
"""


@behaviour("hooks:nothing-left")
def test_what_a_dead_broker_left_with_the_mark_of_this_carpool_is_killed_and_nothing_else(
    tmp_path: Path,
) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", LEFT_BEHIND, str(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"True {}\n", b"")
