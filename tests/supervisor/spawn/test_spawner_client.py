"""The spawner with real children: their start, their environment, and no process left behind.

Both ends of it: `carpool_supervisor.spawn.spawner_process` and `carpool_supervisor.spawn.exec_child` run in a
process of their own.
"""

import json
import os
import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from carpool_protocol.ids import InstanceId
from carpool_protocol.runtime.process_files import MOST_BYTES, read_process_file
from carpool_supervisor import marks
from carpool_supervisor.spawn.exit_messages import exit_text
from carpool_supervisor.spawn.orphans import sweep
from carpool_supervisor.spawn.request import SpawnRefusedError
from carpool_supervisor.spawn.spawner_client import LOST
from tests.behaviours import behaviour
from tests.kit.leaks import command_line, marked, open_fds, zombies_of
from tests.kit.spawner_rig import SpawnerRig, end_everything, garage, server_argv
from tests.kit.waits import until

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="descendants are adopted on Linux only")


async def test_a_child_speaks_over_its_three_pipes_and_tells_its_exit_code() -> None:
    async with garage() as one:
        child = await one.started("sh", "-c", "read line; echo got $line; echo oops >&2; exit 7")
        pipes = one.pipes[child]
        os.write(pipes.stdin_fd, b"hello\n")
        assert await one.read_until(pipes.stdout_fd, b"\n") == b"got hello\n"
        assert await one.read_until(pipes.stderr_fd, b"\n") == b"oops\n"
        assert await one.exited(child) == 7
        assert one.heard == [("spawned", child), ("exited", child)]


async def test_a_child_gets_exactly_its_environment_the_mark_and_its_directory(tmp_path: Path) -> None:
    async with garage() as one:
        env = {"PATH": os.environ["PATH"], "GREETING": "grüß\nGott"}
        child = await one.started(*server_argv("echo"), env=env, cwd=str(tmp_path))
        pid = one.pids[child]
        assert _variables(pid) == {"PATH", "GREETING", marks.RUNTIME, marks.INSTANCE}
        assert marks.value_of(pid, "GREETING") == "grüß\nGott"
        assert marks.value_of(pid, marks.RUNTIME) == one.runtime_id
        assert marks.value_of(pid, marks.INSTANCE) == f"{one.runtime_id}:e1.{child}"
        assert os.readlink(f"/proc/{pid}/cwd") == str(tmp_path)


@behaviour("children:bounded-look")
async def test_the_marks_of_a_child_come_before_an_environment_that_no_search_reads_to_its_end() -> None:
    async with garage() as one:
        long = {f"LONG_{at}": "x" * 100_000 for at in range(10)}
        child = await one.started(*server_argv("echo"), env={"PATH": os.environ["PATH"], **long})
        pid = one.pids[child]
        assert len(read_process_file(pid, "environ")) == MOST_BYTES
        assert marks.value_of(pid, marks.INSTANCE) == f"{one.runtime_id}:e1.{child}"


async def test_a_child_has_no_descriptor_of_ours_no_signal_blocked_or_ignored_and_its_own_session() -> None:
    code = (
        "import os, json, signal, sys;"
        "fds = sorted(int(fd) for fd in os.listdir('/proc/self/fd'));"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'));"
        "print(json.dumps([fds[:-1], status['SigBlk'].strip(), status['SigIgn'].strip(),"
        " os.getsid(0) == os.getpgid(0) == os.getpid()]))"
    )
    async with garage() as one:
        others = [await one.started("cat") for _ in range(3)]
        child = await one.started(sys.executable, "-I", "-S", "-c", code)
        fds, blocked, ignored, leads = json.loads(await one.read_until(one.pipes[child].stdout_fd, b"\n"))
        assert fds == [0, 1, 2]
        assert int(blocked, 16) == 0
        # Python itself ignores SIGPIPE and SIGXFSZ; signals that the C library keeps cannot be reset.
        ours = sum(1 << number - 1 for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ})
        assert int(ignored, 16) & ours == 0
        assert leads
        assert not set(others) & set(one.exits)


async def test_a_failed_spawn_names_its_cause_precisely(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("echo hi\n")
    no_shebang = tmp_path / "no_shebang"
    no_shebang.write_text("echo hi\n")
    no_shebang.chmod(0o755)
    no_interpreter = tmp_path / "no_interpreter"
    no_interpreter.write_text("#!/no/such/interpreter\n")
    no_interpreter.chmod(0o755)
    async with garage() as one:
        for argv, cwd, wanted in [
            (["no-such-command", "--token=secret"], "/", "no-such-command was not found in the PATH"),
            (["/no/such/command"], "/", "the command /no/such/command does not exist"),
            (["./no-such"], str(tmp_path), f"./no-such does not exist (looked for from {tmp_path})"),
            ([str(plain)], "/", "permission denied"),
            ([str(no_shebang)], "/", "first line with #!"),
            ([str(no_interpreter)], "/", "the interpreter that its first line names does not"),
            (["cat"], str(tmp_path / "away"), "away does not exist"),
            (["cat"], str(plain), "cannot be used (Not a directory)"),
            (["cat", "x" * 3_000_000], "/", "too large for the system"),
        ]:
            instance = one.spawn(*argv, cwd=cwd)
            await until(lambda at=instance: at in one.failures, f"{argv[0]} failed")  # type: ignore[misc]  # bound late
            assert wanted in one.failures[instance]
            assert "secret" not in one.failures[instance]
        assert not one.pids
        assert not one.exits
        assert not zombies_of(one.spawner.pid)


async def test_the_command_is_looked_up_in_the_path_of_the_servers_own_environment(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "only-here"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    forbidden = tmp_path / "first" / "only-here"
    forbidden.parent.mkdir()
    forbidden.write_text("")
    forbidden.chmod(stat.S_IRUSR)
    async with garage() as one:
        env = {"PATH": f"/no/such/place:{forbidden.parent}:bin"}  # `bin`: from its directory
        child = await one.started("only-here", env=env, cwd=str(tmp_path))
        assert await one.read_until(one.pipes[child].stdout_fd, b"\n") == b"found\n"


async def test_a_request_that_cannot_be_carried_out_is_refused_at_once_and_opens_nothing() -> None:
    async with garage() as one:
        before = open_fds()
        for argv, env, cwd in [
            ([], {}, "/"),
            ([""], {}, "/"),
            (["cat", "a\0b"], {}, "/"),
            (["cat"], {"A": "secret\0"}, "/"),
            (["cat"], {"A=B": "secret"}, "/"),
            (["cat"], {"A": "secret\ud800"}, "/"),
            (["cat"], {}, ""),
        ]:
            with pytest.raises(SpawnRefusedError) as refused:
                one.spawner.spawn(InstanceId(99), argv, env, cwd)
            assert "secret" not in str(refused.value)
        assert open_fds() == before
    with pytest.raises(SpawnRefusedError):
        one.spawner.spawn(InstanceId(100), ["cat"], {}, "/")


async def test_term_reaches_the_whole_group_and_kill_what_ignores_it() -> None:
    async with garage() as one:
        polite = await one.started("sh", "-c", "sleep 60 & echo $!; wait")
        sleeper = int(await one.read_until(one.pipes[polite].stdout_fd, b"\n"))
        one.spawner.signal(polite, "TERM")
        assert await one.exited(polite) == -signal.SIGTERM
        await until(lambda: not marks.is_running(sleeper), "the group has ended")

        deaf = await one.started(*server_argv("deaf"))
        greeting = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
        os.write(one.pipes[deaf].stdin_fd, json.dumps(greeting).encode() + b"\n")
        await one.read_until(one.pipes[deaf].stdout_fd, b"\n")
        one.spawner.signal(deaf, "TERM")
        later = await one.started("cat")  # requests are carried out in order: the TERM has been sent
        assert marks.is_running(one.pids[deaf])
        one.spawner.signal(deaf, "KILL")
        assert await one.exited(deaf) == -signal.SIGKILL
        assert exit_text(one.exits[deaf]) == "killed by SIGKILL"
        one.spawner.signal(deaf, "KILL")  # one that has ended: nothing happens
        assert later not in one.exits


@linux_only
async def test_leftovers_of_an_instance_end_after_it_and_those_of_others_do_not() -> None:
    async with garage() as one:
        bystander = await one.started(*server_argv("breeder", "--at-start"))
        child = await one.started(*server_argv("breeder", "--at-start"))
        kept = await _bred(one, bystander)
        left = await _bred(one, child)
        assert all(map(marks.is_running, kept + left))
        os.kill(one.pids[child], signal.SIGKILL)  # a crash: nobody asked for it
        assert await one.exited(child) == -signal.SIGKILL
        await until(lambda: not any(map(marks.is_running, left)), "both grandchildren have ended")
        assert all(map(marks.is_running, kept))
        await until(lambda: not zombies_of(one.spawner.pid), "no zombie is left")


ESCAPES = (
    "env -i setsid sh -c 'echo $$; exec sleep 1000' & "  # its parent lives
    "(env -i CARPOOL_INSTANCE= CARPOOL_DAEMON= "
    "setsid sh -c 'echo $$; env -i setsid sh -c \"echo \\$\\$; exec sleep 1000\" & sleep 1000' &) ; "
    "exec cat >/dev/null"
)
"""Starts three processes that are in no group, session or environment of the instance."""


async def _escaped(one: SpawnerRig, instance: InstanceId) -> list[int]:
    said = b""
    while said.count(b"\n") < 3:
        said += await one.read_until(one.pipes[instance].stdout_fd, b"\n")
    return [int(each) for each in said.split()]


@behaviour("children:escaped")
@linux_only
async def test_a_child_without_group_session_and_environment_ends_with_its_instance_alone() -> None:
    async with garage() as one:
        bystander, child = [await one.started("sh", "-c", ESCAPES) for _ in range(2)]
        kept, left = await _escaped(one, bystander), await _escaped(one, child)
        for pid in left:
            assert os.getsid(pid) != one.pids[child]
            assert not marks.value_of(pid, marks.INSTANCE)
        one.spawner.signal(child, "TERM")
        await one.exited(child)
        await until(lambda: not any(map(marks.is_running, left)), "they have ended with their instance")
        assert all(map(marks.is_running, kept))
        os.kill(one.spawner.pid, signal.SIGKILL)
        await until(lambda: one.losses, "the loss is noticed")
        await until(lambda: not any(map(marks.is_running, kept)), "they have ended with the spawner")
        await one.spawner.start()


@behaviour("children:escaped", "children:sweep")
@linux_only
async def test_the_sweep_finds_a_child_that_has_dropped_its_environment_but_no_other_carpools_process() -> (
    None
):
    runtime_id = f"test-{uuid.uuid4().hex[:12]}"
    mark = marks.instance_mark(runtime_id, "e1", 1)

    code = (
        f"import os, resource; resource.setrlimit(resource.RLIMIT_RTTIME, ({marks.limit_of(mark)},) * 2);"
        "os.write(1, b'.'); os.execv('/bin/sleep', ['sleep', '1000'])"
    )

    def limited(environ: dict[str, str]) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, "-I", "-S", "-c", code]
        started = subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE)
        assert started.stdout is not None
        assert started.stdout.read(1) == b"."
        return started

    with limited({}) as escaped, limited({"CARPOOL_DAEMON": "of-another"}) as daemon:
        try:
            assert await trio.to_thread.run_sync(sweep, runtime_id + "x") == (0, 0)
            assert await trio.to_thread.run_sync(sweep, runtime_id) == (1, 0)
            assert escaped.wait() == -signal.SIGTERM
            assert daemon.poll() is None
        finally:
            daemon.kill()
            escaped.kill()


@behaviour("children:end-with-us")
@linux_only
async def test_children_of_a_killed_supervisor_end_even_grandchildren_and_those_that_ignore_term() -> None:
    with _supervisor(_HOLDS) as victim, _ended_after(_line(victim)) as runtime_id:
        await until(lambda: len(marked(runtime_id)) == 5, "spawner, breeder, its two, deaf: all run")
        await until(lambda: sum(map(_ignores_term, marked(runtime_id))) == 3, "three of them are deaf")
        victim.kill()
        await until(lambda: not marked(runtime_id), "everything has ended")


@behaviour("children:end-with-us", "children:sweep")
@linux_only
async def test_the_sweep_ends_all_children_when_supervisor_and_spawner_are_killed_together() -> None:
    with _supervisor(_HOLDS) as victim, _ended_after(_line(victim)) as runtime_id:
        await until(lambda: sum(map(_ignores_term, marked(runtime_id))) == 3, "three of them are deaf")
        spawner = next(pid for pid in marked(runtime_id) if "spawner_process" in command_line(pid))
        victim.kill()
        os.kill(spawner, signal.SIGKILL)
        await until(lambda: len(marked(runtime_id)) == 2, "only the grandchildren are left")
        command = [sys.executable, "-m", "carpool_supervisor.spawn.orphans", runtime_id]
        swept = await trio.run_process(command, capture_stderr=True, env=_python_env())
        assert swept.stderr.startswith(b"ended 2 processes")
        assert not marked(runtime_id)


@linux_only
async def test_a_killed_spawner_has_every_instance_reported_once_and_a_new_spawner_serves() -> None:
    async with garage() as one:
        breeder = await one.started(*server_argv("breeder", "--at-start"))
        left = await _bred(one, breeder)
        cat = await one.started("cat")
        os.kill(one.spawner.pid, signal.SIGKILL)
        await until(lambda: one.losses, "the loss is noticed")
        assert one.exits == {breeder: LOST, cat: LOST}
        assert not marked(one.runtime_id)
        assert not any(map(marks.is_running, left))
        with pytest.raises(SpawnRefusedError):
            one.spawner.spawn(InstanceId(99), ["cat"], {}, "/")
        await one.spawner.start()
        again = await one.started("true")
        assert await one.exited(again) == 0


async def test_close_ends_everything_and_reports_the_exits() -> None:
    async with garage() as one:
        children = [await one.started("cat") for _ in range(3)]
        await one.spawner.close()
        assert set(one.exits) == set(children)
        assert not marked(one.runtime_id)


async def test_fifty_spawns_leave_no_descriptor_and_no_zombie_on_either_side() -> None:
    async with garage() as one:
        await one.exited(await one.started("true"))
        spawner_fds = _count_fds(one.spawner.pid)
        ours = set(open_fds())
        children = [one.spawn("true") if at % 2 else one.spawn("no-such-command") for at in range(50)]
        await until(lambda: len(one.exits) + len(one.failures) == 51, "all have ended")
        await until(lambda: not zombies_of(one.spawner.pid), "all are reaped")
        await until(
            lambda: len(os.listdir(f"/proc/{one.spawner.pid}/fd")) == spawner_fds, "its descriptors are back"
        )
        piped = {fd for child in children for fd in _fds(one, child)}
        assert set(open_fds()) - ours == piped


@behaviour("children:outlive-threads")
def test_a_child_lives_on_when_threads_of_the_supervisor_end(held: subprocess.Popen[bytes]) -> None:
    """trio's idle worker threads end after 10 s; a parent-death signal of theirs would fire (rule 2)."""
    assert _line(held) == "after 15 s: alive"


_HELD = """
import trio
from tests.kit.spawner_rig import garage
async def main():
    async with garage() as one:
        await trio.to_thread.run_sync(lambda: None)
        child = await one.started("sleep", "60")
        with trio.move_on_after(15):
            while child not in one.exits:
                await trio.sleep(0.1)
        print("after 15 s:", "dead" if child in one.exits else "alive", flush=True)
        await trio.sleep_forever()  # ended, it would be a zombie of ours while other tests look for theirs
trio.run(main)
"""

_HOLDS = """
import trio
from tests.kit.spawner_rig import garage, server_argv
async def main():
    async with garage() as one:
        await one.started(*server_argv("breeder", "--at-start"))
        await one.started(*server_argv("deaf"))
        print(one.runtime_id, flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


@pytest.fixture(scope="module", autouse=True)
def held() -> Iterator[subprocess.Popen[bytes]]:
    """A supervisor that holds a child for 15 s, while the other tests of this file run."""
    with _supervisor(_HELD) as process:
        yield process


@contextmanager
def _supervisor(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own that plays the supervisor, so that it can be killed."""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=_python_env()) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _ended_after(runtime_id: str) -> Iterator[str]:
    try:
        yield runtime_id
    finally:
        end_everything(runtime_id)


def _python_env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def _variables(pid: int) -> set[str]:
    given = Path(f"/proc/{pid}/environ").read_text().rstrip("\0").split("\0")
    return {entry.partition("=")[0] for entry in given}


def _count_fds(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _fds(one: SpawnerRig, instance: InstanceId) -> tuple[int, int, int]:
    pipes = one.pipes[instance]
    return pipes.stdin_fd, pipes.stdout_fd, pipes.stderr_fd


async def _bred(one: SpawnerRig, instance: InstanceId) -> list[int]:
    """The pids of both grandchildren, once they ignore SIGTERM."""
    text = b""
    while text.count(b"\n") < 2:
        text += await one.read_until(one.pipes[instance].stderr_fd, b"\n")
    pids = [int(line.split()[1]) for line in text.splitlines()]
    await until(lambda: all(_ignores_term(pid) for pid in pids), "the grandchildren are deaf")
    return pids


def _ignores_term(pid: int) -> bool:
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except OSError:
        return False
    return bool(int(status["SigIgn"], 16) >> (signal.SIGTERM - 1) & 1)
