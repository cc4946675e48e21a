"""Memory and CPU of real processes: descendants count, vanished processes are no error."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from carpool_supervisor.metrics.process_stats import (
    ProcessSampler,
    find_marked,
    is_stopped,
    memory_of,
    process_usage,
)
from tests.behaviours import behaviour
from tests.kit.spawner_rig import server_argv
from tests.kit.waits import until

MIB = 1024 * 1024


@contextmanager
def running(*argv: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_the_memory_of_the_real_server_behind_a_wrapper_counts() -> None:
    with running("sh", "-c", '"$@"; true', "sh", *server_argv("hog", "40")) as wrapper:
        await until(
            lambda: (now := process_usage(wrapper.pid)) and now.pss_bytes > 40 * MIB,
            "the server has its memory",
        )
        now = process_usage(wrapper.pid)
        assert now is not None
        assert now.processes == 2
        assert now.rss_bytes >= now.pss_bytes
        assert now.threads >= 2
        assert 0 <= now.uptime_s < 60
        assert now.cpu_s > 0
        assert wrapper.stdin is not None
        wrapper.stdin.close()  # or the server would outlive its wrapper


async def test_the_memory_of_a_limit_is_that_of_the_process_and_all_its_descendants() -> None:
    with running("sh", "-c", '"$@"; true', "sh", *server_argv("hog", "40")) as wrapper:
        await until(
            lambda: memory_of([wrapper.pid]).get(wrapper.pid, 0) > 40 * MIB, "the server has its memory"
        )
        assert wrapper.stdin is not None
        wrapper.stdin.close()
    wrapper.wait()
    assert memory_of([wrapper.pid]) == {}


@behaviour("recycling:helpers")
@pytest.mark.skipif(sys.platform != "linux", reason="a process ends with its first thread elsewhere")
async def test_the_memory_of_a_process_whose_first_thread_has_ended_counts() -> None:
    code = (
        "import ctypes, sys, threading\n"
        "held = bytearray(b'x' * (60 << 20))\n"
        "threading.Thread(target=sys.stdin.read).start()\n"
        "print(flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    with running(sys.executable, "-I", "-c", code) as process:
        assert process.stdout is not None
        process.stdout.readline()
        await until(
            lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE, "its first thread has ended"
        )
        assert memory_of([process.pid])[process.pid] > 60 * MIB
        usage = process_usage(process.pid)
        assert usage is not None
        assert min(usage.rss_bytes, usage.pss_bytes) > 60 * MIB


async def test_the_rate_of_cpu_is_that_since_the_last_survey() -> None:
    code = "print(flush=True); exec('while True: pass')"
    probe = ProcessSampler()
    with running(sys.executable, "-I", "-S", "-c", code) as busy, running("cat") as idle:
        assert busy.stdout is not None
        busy.stdout.readline()
        first = probe.survey([busy.pid, idle.pid])
        await until(
            lambda: (now := process_usage(busy.pid)) and now.cpu_s > first[busy.pid].cpu_s + 0.05,
            "it used CPU",
        )
        second = probe.survey([busy.pid, idle.pid])
        assert second[busy.pid].cpu_percent > second[idle.pid].cpu_percent
        assert second[idle.pid].cpu_percent == 0.0


def test_the_cpu_time_of_ended_children_counts_for_a_family_and_not_for_a_process_alone() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    script = (
        "from subprocess import run; import sys\n"
        'run([sys.executable, "-I", "-c", sys.argv[1]]); print(flush=True); input()'
    )
    with running(sys.executable, "-I", "-c", script, burn) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        family = ProcessSampler().survey([parent.pid])[parent.pid].cpu_s
        alone = ProcessSampler(families=False).survey([parent.pid])[parent.pid].cpu_s
    assert family - alone >= 0.25


def test_a_process_that_is_gone_is_missing_and_no_error() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert process_usage(process.pid) is None
    assert ProcessSampler().survey([process.pid, -1, os.getpid()]).keys() == {os.getpid()}
    assert not is_stopped(process.pid)
    assert not is_stopped(-1)


async def test_a_stopped_process_is_told_from_a_running_one() -> None:
    with running("cat") as process:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        await until(lambda: is_stopped(process.pid), "it is stopped")


def test_marked_processes_are_found_where_there_is_no_proc_too() -> None:
    with running("cat", env={"PATH": os.environ["PATH"], "CARPOOL_RUNTIME": "vitals-test"}) as process:
        assert find_marked("CARPOOL_RUNTIME", lambda value: value == "vitals-test") == [process.pid]


def test_a_marked_process_that_an_ending_one_has_started_is_found_where_there_is_no_proc_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the first list is made, it is not there yet."""
    environ = {"PATH": os.environ["PATH"], "CARPOOL_RUNTIME": "vitals-test"}
    list_pids = psutil.pids
    with running("cat", env=environ) as ending, ExitStack() as ended_later:
        started: list[int] = []

        def list_then_end() -> list[int]:
            listed = list_pids()
            if not started:
                started.append(ended_later.enter_context(running("cat", env=environ)).pid)
                ending.kill()
                ending.wait()
            return listed

        monkeypatch.setattr(psutil, "pids", list_then_end)
        assert find_marked("CARPOOL_RUNTIME", lambda value: value == "vitals-test") == started


@behaviour("faults:descriptors")
def test_without_a_descriptor_left_nothing_is_known_and_nothing_is_raised() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.open(os.devnull, os.O_RDONLY)  # the lowest free number
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
    try:
        assert ProcessSampler().survey([os.getpid()]) == {}
        assert memory_of([os.getpid()]) == {}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
