"""The supervisor's end of the spawner: requests processes and reports each start and exit.

Owns the spawner process, its socket, and the pipes of a new instance until they are handed over. Never
blocks: data that the socket does not take waits here, in order. Each instance for which `spawn` returned is
reported exactly once: `on_spawn_failed` (why, and if it was for want of room), or `on_spawned` and later
`on_exited`. If the spawner itself dies its servers die with it (parent-death signal) and the sweep ends what
they left. Each instance is then reported with `LOST`, and at last `on_lost` is called: call `start` before
the next `spawn`.

Knows nothing of: MCP, the times of the stop ladder, pools, data on the pipes.
"""

import contextlib
import marshal
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import trio

import carpool_protocol
import carpool_supervisor
from carpool_protocol.ids import Epoch, InstanceId
from carpool_protocol.runtime import core_dumps
from carpool_protocol.runtime.poller import ReadySet
from carpool_supervisor import marks
from carpool_supervisor.spawn.descriptor_sender import DescriptorSender
from carpool_supervisor.spawn.exit_messages import is_machine_limit, why_not_started
from carpool_supervisor.spawn.orphans import sweep_epoch
from carpool_supervisor.spawn.request import (
    Pipes,
    SpawnRefusedError,
    checked_argv,
    checked_cwd,
    checked_env,
    encode,
    make_pipes,
)

LOST = -int(signal.SIGKILL)
"""The status of an instance whose spawner died: its parent-death signal is KILL."""

START_S = 10.0
CLOSE_S = 15.0
"""More than the spawner's own TERM, 2 s, KILL and its wait for processes that do not end."""

_CODE = (
    "import sys; sys.path += sys.argv[3:]; "
    "from carpool_supervisor.spawn.spawner_process import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)
_ROOTS = [
    str(Path(folder).resolve().parent)
    for package in (carpool_supervisor, carpool_protocol)
    for folder in package.__path__
]
"""Where the spawner's modules are: without `site` it finds nothing else."""


class Spawner:
    """Starts and signals processes through the spawner. Callbacks run in the `ReadySet`'s task."""

    def __init__(
        self,
        ready: ReadySet,
        runtime_id: str,
        epoch: Epoch,
        *,
        on_spawned: Callable[[InstanceId, int], None],
        on_spawn_failed: Callable[[InstanceId, str, bool], None],
        on_exited: Callable[[InstanceId, int], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._ready = ready
        self._runtime_id = runtime_id
        self._epoch = epoch
        self._on_spawned = on_spawned
        self._on_spawn_failed = on_spawn_failed
        self._on_exited = on_exited
        self._on_lost = on_lost
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._is_closing = False
        self._inbox = bytearray()
        self._sender: DescriptorSender | None = None
        """None while there is no spawner."""
        self._pids: dict[InstanceId, int] = {}
        self._asked: dict[InstanceId, tuple[str, str]] = {}
        """Requests without a report yet: command and directory, for the sentence on a failure."""

    @property
    def pid(self) -> int:
        """The spawner's own pid; 0 if there is none."""
        return self._process.pid if self._process is not None else 0

    @property
    def pids(self) -> dict[InstanceId, int]:
        """The processes that run now."""
        return dict(self._pids)

    def leaders(self) -> dict[str, int]:
        """The same by their marks."""
        return {self._mark_of(instance): pid for instance, pid in self._pids.items()}

    def _mark_of(self, instance: InstanceId) -> str:
        return marks.instance_mark(self._runtime_id, self._epoch, instance)

    async def start(self) -> None:
        """Start the spawner and wait until it is ready. Call from the task that runs in the main thread.

        Raises `trio.TooSlowError` if it is not ready in time, `OSError` if it cannot be started.
        """
        assert self._sock is None, "it runs already"
        self._sock = self._launch()
        self._sender = DescriptorSender(self._ready, self._sock)
        try:
            with trio.fail_after(START_S):
                await trio.lowlevel.wait_readable(self._sock)
        except BaseException:
            self._abandon()
            raise
        self._ready.add(self._sock.fileno(), self._readable)

    def spawn(self, instance: InstanceId, argv: list[str], env: dict[str, str], cwd: str) -> Pipes:
        """Request a process with exactly this environment plus the mark.

        The command is looked up in the PATH of `env`, from `cwd`. Raises `SpawnRefusedError`; this instance
        is then never reported.
        """
        if self._sender is None or self._is_closing:
            raise SpawnRefusedError("the spawner is not running; the supervisor starts it or is ending")
        mark = self._mark_of(instance)
        ours = {marks.RUNTIME: self._runtime_id, marks.INSTANCE: mark}
        full = ours | env | ours  # first, where each search finds them
        body = encode(("spawn", instance, checked_argv(argv), checked_env(full), checked_cwd(cwd), mark))
        theirs, pipes = make_pipes()
        self._asked[instance] = (argv[0], cwd)
        self._sender.send(body, theirs)
        return pipes

    def signal(self, instance: InstanceId, name: Literal["TERM", "KILL"]) -> None:
        """Signal the instance's process group. A group that has ended is safely left alone: the spawner keeps
        a leader's pid from reuse until its group is gone.
        """
        if self._sender is None or self._is_closing:
            return
        if instance in self._pids or instance in self._asked:
            self._sender.send(encode(("signal", instance, int(signal.Signals[f"SIG{name}"]))))

    async def close(self, within_s: float = CLOSE_S) -> None:
        """End every process: TERM, 2 s, KILL; then the spawner. The exits are still reported.

        Runs to its end even if cancelled, within `within_s`: a slower spawner is killed, and its servers die
        with it.
        """
        sock, sender = self._sock, self._sender
        if sock is None or sender is None:
            return
        self._is_closing = True
        self._ready.remove(sock.fileno())
        sender.discard()
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        with trio.move_on_after(within_s, shield=True):
            while self._receive():
                await trio.lowlevel.wait_readable(sock)
        self._abandon()  # after end of file only its exit is left

    # --- the socket ---------------------------------------------------------------------------------------

    def _launch(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        mark = marks.instance_mark(self._runtime_id, self._epoch, "spawner")
        core_bytes = str(core_dumps.limit_before())
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _CODE, str(theirs.fileno()), core_bytes, *_ROOTS],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    cwd="/",
                    env={marks.RUNTIME: self._runtime_id, marks.INSTANCE: mark},
                    start_new_session=True,  # a Ctrl-C in our terminal must not reach it
                )
            except OSError:
                ours.close()
                raise
        return ours

    def _readable(self) -> None:
        if not self._receive():
            self._spawner_lost()

    def _receive(self) -> bool:
        """Read what is there. False at end of file."""
        assert self._sock is not None
        try:
            data = self._sock.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        self._inbox += data
        while len(self._inbox) >= 4:
            end = 4 + int.from_bytes(self._inbox[:4], "little")
            if len(self._inbox) < end:
                break
            message = marshal.loads(bytes(self._inbox[4:end]))  # noqa: S302  # our own spawner's, private socket
            del self._inbox[:end]
            self._message_received(message)
        return bool(data)

    def _message_received(self, message: tuple[object, ...]) -> None:
        match message:
            case ("spawned", int(token), int(pid)):
                instance = InstanceId(token)
                self._asked.pop(instance, None)
                self._pids[instance] = pid
                self._on_spawned(instance, pid)
            case ("failed", int(token), str(stage), int(number)):
                instance = InstanceId(token)
                text = why_not_started(stage, number, *self._asked.pop(instance, ("", "")))
                self._on_spawn_failed(instance, text, is_machine_limit(stage, number))
            case ("exited", int(token), int(status)):
                instance = InstanceId(token)
                self._pids.pop(instance, None)
                self._on_exited(instance, status)
            case _:  # "ready"
                pass

    def _spawner_lost(self) -> None:
        assert self._sock is not None
        assert self._sender is not None
        self._ready.remove(self._sock.fileno())
        self._sender.discard()
        self._abandon()
        groups = list(self._pids.values())
        if sys.platform == "linux":  # the leaders are dead; the sweep finds what they started
            sweep_epoch(self._runtime_id, self._epoch, 0.0, 0.2)
        else:
            for pid in groups:
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
        asked, running = list(self._asked), list(self._pids)
        self._asked.clear()
        self._pids.clear()
        self._on_lost()  # first: handling the exits must not use this spawner
        for instance in asked:
            self._on_spawn_failed(instance, "the spawner died before it could start the process", True)
        for instance in running:
            self._on_exited(instance, LOST)

    def _abandon(self) -> None:
        """Close the socket and forget the spawner process, whatever it is doing."""
        if self._sock is not None:
            self._sock.close()
            self._sock = self._sender = None
        self._inbox.clear()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
