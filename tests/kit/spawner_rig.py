"""A live spawner with a memory: what was spawned, what failed, what ended. For tests of real children."""

import os
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from carpool_protocol.ids import Epoch, InstanceId
from carpool_protocol.runtime.poller import ReadySet
from carpool_supervisor import marks
from carpool_supervisor.spawn.orphans import end_marked
from carpool_supervisor.spawn.request import Pipes
from carpool_supervisor.spawn.spawner_client import Spawner
from tests.kit.leaks import no_leaks
from tests.kit.waits import until

SERVERS = Path(__file__).parent / "servers"


def server_argv(name: str, *args: str) -> list[str]:
    """How to run one of `tests/kit/servers`."""
    return [sys.executable, str(SERVERS / f"{name}.py"), *args]


class SpawnerRig:
    """Spawns on demand and remembers. Instances are numbered from 1."""

    def __init__(self) -> None:
        self.runtime_id = f"test-{uuid.uuid4().hex[:12]}"
        self.ready = ReadySet()
        self.pids: dict[int, int] = {}
        self.failures: dict[int, str] = {}
        self.exits: dict[int, int] = {}
        self.heard: list[tuple[str, int]] = []
        self.losses = 0
        self.pipes: dict[int, Pipes] = {}
        self.spawner = Spawner(
            self.ready,
            self.runtime_id,
            Epoch("e1"),
            on_spawned=self._spawned,
            on_spawn_failed=self._failed,
            on_exited=self._exited,
            on_lost=self._lost,
        )

    def spawn(self, *argv: str, env: dict[str, str] | None = None, cwd: str = "/") -> InstanceId:
        instance = InstanceId(len(self.pipes) + 1)
        environment = {"PATH": os.environ["PATH"]} if env is None else env
        self.pipes[instance] = self.spawner.spawn(instance, list(argv), environment, cwd)
        return instance

    async def started(self, *argv: str, env: dict[str, str] | None = None, cwd: str = "/") -> InstanceId:
        instance = self.spawn(*argv, env=env, cwd=cwd)
        await until(lambda: instance in self.pids, f"{argv[0]} runs ({self.failures})")
        return instance

    async def exited(self, instance: InstanceId) -> int:
        await until(lambda: instance in self.exits, f"instance {instance} has ended")
        return self.exits[instance]

    async def read_until(self, fd: int, wanted: bytes) -> bytes:
        """What comes on `fd` up to and including `wanted`, or to the end of file."""
        data = b""
        with trio.fail_after(10):
            while wanted not in data:
                await trio.lowlevel.wait_readable(fd)
                part = os.read(fd, 65536)
                if not part:
                    break
                data += part
        return data

    def _spawned(self, instance: InstanceId, pid: int) -> None:
        self.pids[instance] = pid
        self.heard.append(("spawned", instance))

    def _failed(self, instance: InstanceId, text: str, _passing: bool) -> None:
        self.failures[instance] = text
        self.heard.append(("failed", instance))

    def _exited(self, instance: InstanceId, status: int) -> None:
        self.exits[instance] = status
        self.heard.append(("exited", instance))

    def _lost(self) -> None:
        self.losses += 1

    def close_pipes(self) -> None:
        for pipes in self.pipes.values():
            for fd in (pipes.stdin_fd, pipes.stdout_fd, pipes.stderr_fd):
                os.close(fd)


@asynccontextmanager
async def garage() -> AsyncIterator[SpawnerRig]:
    """A running spawner. At the end: it is closed, nothing runs, no descriptor is left open."""
    with no_leaks():
        one = SpawnerRig()
        try:
            with no_leaks(one.runtime_id):
                await one.spawner.start()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(one.ready.run, _settle)
                    try:
                        yield one
                    finally:
                        await one.spawner.close()
                        nursery.cancel_scope.cancel()
                one.close_pipes()
        finally:
            one.ready.close()
            end_everything(one.runtime_id)


def end_everything(runtime_id: str) -> None:
    """After a test, failed or not: KILL what still runs."""
    end_marked(marks.RUNTIME, lambda value: value == runtime_id, grace_s=0.0)


def _settle() -> None:
    pass
