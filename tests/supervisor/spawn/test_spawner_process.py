"""The spawner's own process at moments that a test cannot wait for: what ends while it looks.

The real code of `carpool_supervisor.spawn.spawner_process` runs, in some tests with one function replaced in
its process that brings the moment about.
"""

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from carpool_protocol.ids import InstanceId
from carpool_supervisor import marks
from carpool_supervisor.spawn import spawner_client
from tests.behaviours import behaviour
from tests.kit.spawner_rig import SpawnerRig, garage
from tests.kit.waits import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="descendants are adopted on Linux only")

ENDS_WHEN_JUDGED = """
import os
from carpool_supervisor import marks
from carpool_supervisor.spawn import spawner_process

def ended_now(pid):
    if b"ends-when-judged" in marks.read_process_file(pid, "cmdline"):
        os.kill(pid, 9)
        while state_and_group(pid)[0] != "Z":
            pass
    return state_and_group(pid)

state_and_group, marks.state_and_group = marks.state_and_group, ended_now
"""
"""A process of this name is listed alive, and has ended when the spawner judges it."""


def run_before(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the next spawner run this code before its own."""
    path, own = spawner_client._CODE.split("; from ")
    monkeypatch.setattr(spawner_client, "_CODE", f"{path}; exec({code!r}); from {own}")


HELPER = (
    "{env} setsid sh -c '{env} setsid sh -c \"echo \\$\\$; exec sleep 1000\" & wait' ends-when-judged & "
    "exec cat >/dev/null"
)
"""An instance with a helper in a session of its own, whose child is in another one and says its pid."""


@behaviour("children:escaped")
@pytest.mark.parametrize("env", ["", "env -i"])
async def test_the_child_of_a_helper_that_ends_while_it_is_judged_ends_with_the_instance(
    monkeypatch: pytest.MonkeyPatch, env: str
) -> None:
    run_before(monkeypatch, ENDS_WHEN_JUDGED)
    async with garage() as one:
        bystander, instance = [await one.started("sh", "-c", HELPER.format(env=env)) for _ in range(2)]
        kept, left = [
            int(await one.read_until(one.pipes[each].stdout_fd, b"\n")) for each in (bystander, instance)
        ]
        one.spawner.signal(instance, "TERM")
        await one.exited(instance)
        await until(lambda: not marks.is_running(left), "it has ended with its instance")
        assert marks.is_running(kept)
        assert bystander not in one.exits


@behaviour("children:end-with-us")
async def test_a_spawner_that_is_told_to_end_tells_its_servers_to_end_first() -> None:
    async with garage() as one:
        instance = await one.started("sh", "-c", HELPER.format(env=""))
        left = int(await one.read_until(one.pipes[instance].stdout_fd, b"\n"))
        os.kill(one.spawner.pid, signal.SIGTERM)
        assert await one.exited(instance) == -signal.SIGTERM
        await until(lambda: one.losses, "the loss is noticed")
        await until(lambda: not marks.is_running(left), "its helper has ended, too")
        await one.spawner.start()


@contextmanager
def descriptors_left(pid: int, count: int) -> Iterator[None]:
    """This process can open as many descriptors more, and no others."""
    used = {int(each) for each in os.listdir(f"/proc/{pid}/fd")}
    free = (at for at in range(4096) if at not in used)
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    limit = next(at for found, at in enumerate(free) if found == count)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("free", range(5))
async def test_a_spawn_for_which_the_spawner_has_too_few_descriptors_fails_alone(free: int) -> None:
    """Three are those of the request, two more are a pipe: none, some or all of them are to be had."""
    async with garage() as one:
        await one.exited(await one.started("true"))
        before = os.listdir(f"/proc/{one.spawner.pid}/fd")
        with descriptors_left(one.spawner.pid, free):
            failed = one.spawn("cat")
            await until(lambda: one.failures, "it failed")
            assert "Too many open files" in one.failures[failed]
            assert os.listdir(f"/proc/{one.spawner.pid}/fd") == before
        for at in range(3):  # each gets the descriptors of its own request
            next_one = await one.started("echo", str(at))
            assert await one.read_until(one.pipes[next_one].stdout_fd, b"\n") == f"{at}\n".encode()
            assert await one.exited(next_one) == 0
        assert list(one.failures) == [failed]


@behaviour("children:escaped")
async def test_what_an_instance_has_left_is_not_forgotten_while_the_spawner_has_no_descriptor_free() -> None:
    async with garage() as one:
        instance = await one.started("sh", "-c", HELPER.format(env=""))
        left = int(await one.read_until(one.pipes[instance].stdout_fd, b"\n"))
        with descriptors_left(one.spawner.pid, 0):
            os.kill(one.pids[instance], signal.SIGKILL)
            assert await one.exited(instance) == -signal.SIGKILL
            await refused(one)  # the spawner has looked since then
        await until(lambda: not marks.is_running(left), "it has ended with its instance")


async def refused(one: SpawnerRig) -> InstanceId:
    """An instance that could not be started, because the spawner has no descriptor free."""
    instance = one.spawn("cat")
    await until(lambda: instance in one.failures, "it failed")
    return instance
