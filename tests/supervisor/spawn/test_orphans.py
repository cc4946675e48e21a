"""The sweep of an earlier life: by mark and uid, TERM first, never the process that runs it."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from carpool_supervisor import marks
from carpool_supervisor.spawn import orphans
from carpool_supervisor.spawn.orphans import end_marked, sweep, sweep_epoch
from tests.behaviours import behaviour

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc; elsewhere see test_vitals")

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
POLITE = "import time; print(flush=True); time.sleep(60)"


@contextmanager
def survivor(code: str, runtime_id: str, epoch: str = "e0") -> Iterator[subprocess.Popen[bytes]]:
    env = {marks.RUNTIME: runtime_id, marks.INSTANCE: f"{runtime_id}:{epoch}.1"}
    argv = [sys.executable, "-I", "-S", "-c", code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


@pytest.fixture
def runtime_id() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@behaviour("children:sweep")
def test_marked_processes_end_even_if_they_ignore_term_and_others_are_left_alone(runtime_id: str) -> None:
    with (
        survivor(DEAF, runtime_id) as deaf,
        survivor(POLITE, runtime_id) as polite,
        survivor(POLITE, runtime_id + "x") as other,
    ):
        assert sweep(runtime_id) == (2, 0)
        assert not marks.is_running(deaf.pid)
        assert polite.wait() == -15
        assert deaf.wait() == -9
        assert other.poll() is None


@behaviour("children:sweep")
def test_a_process_that_one_starts_before_it_ends_is_found_though_the_list_is_older(
    runtime_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as ended_later, survivor(POLITE, runtime_id) as ending:
        started: list[subprocess.Popen[bytes]] = []
        listdir = os.listdir

        def list_and_end(path: str) -> list[str]:
            listed = listdir(path)
            if not started:
                started.append(ended_later.enter_context(survivor(POLITE, runtime_id)))
                ending.kill()
                ending.wait()
            return listed

        monkeypatch.setattr(os, "listdir", list_and_end)
        assert sweep(runtime_id) == (1, 0)
        assert [each.wait() for each in started] == [-15]


@behaviour("children:sweep")
def test_a_process_is_ended_however_long_the_search_for_it_takes(
    runtime_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with survivor(DEAF, runtime_id) as left:
        find, passed_s = orphans.find, [0.0]

        def find_slowly(*words: object) -> list[int]:
            passed_s[0] += 10.0
            return find(*words)  # type: ignore[arg-type]  # as they came

        with monkeypatch.context() as slow:
            slow.setattr(orphans, "find", find_slowly)
            slow.setattr(time, "monotonic", lambda: passed_s[0])
            sweep_epoch(runtime_id, "e0", 0.0, 0.2)
        assert left.wait(10) == -9


@behaviour("supervisors:several")
def test_a_sweep_of_one_supervisor_leaves_what_others_have_started(runtime_id: str) -> None:
    with survivor(POLITE, runtime_id) as dead, survivor(POLITE, runtime_id, "e01") as other:
        assert sweep_epoch(runtime_id, "e0") == (1, 0)
        assert dead.wait() == -15
        assert other.poll() is None


def test_a_sweep_without_orphans_is_quick_and_silent(runtime_id: str) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), marks.RUNTIME: runtime_id}
    command = [
        sys.executable,
        "-m",
        "carpool_supervisor.spawn.orphans",
        runtime_id,
    ]  # it carries the mark itself
    done = subprocess.run(command, env=env, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert subprocess.run(command[:-1], env=env, capture_output=True, check=False).returncode == 2


@pytest.mark.parametrize(("left", "code"), [(0, 0), (1, 1)])
def test_the_sweep_says_if_something_would_not_end(
    left: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(orphans, "sweep", lambda _: (2, left))
    assert orphans.main(["some-runtime"]) == code
    said = capsys.readouterr().err
    assert said.startswith(f"ended {2 - left} processes")
    assert ("would not end" in said) == bool(left)


def test_a_process_that_started_the_sweep_is_spared_though_it_carries_the_mark(runtime_id: str) -> None:
    code = (
        "import subprocess, sys;"
        f"done = subprocess.run([sys.executable, '-m', 'carpool_supervisor.spawn.orphans', {runtime_id!r}]);"
        "sys.exit(40 + done.returncode)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), marks.RUNTIME: runtime_id}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == 40


@behaviour("children:sweep")
def test_a_pid_that_no_longer_carries_the_mark_is_not_signalled(runtime_id: str) -> None:
    with survivor(POLITE, runtime_id) as other:
        assert not marks.signal_marked(other.pid, 9, marks.RUNTIME, lambda value: value == "somebody-elses")
        assert other.poll() is None
        assert end_marked(marks.INSTANCE, lambda value: value == f"{runtime_id}:e0.1", grace_s=0.0) == (1, 0)
        assert other.wait() == -9
