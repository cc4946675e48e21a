"""What processes of a daemon leave behind when they end: other processes, and sockets.

Owns finding and ending it, at the launcher's start, after a supervisor's death and at the end. Invariant:
only processes that carry this runtime directory's mark, or that the launcher has adopted, are touched, and no
socket of a directory that is somebody else's by now.

Standard library only. Refuses to know when a process is to be started or ended (`launcher`).
"""

import contextlib
import os
import signal
import subprocess
import sys
import time

from carpool.launcher import processes
from carpool.launcher.log import exit_status_text, log_line
from carpool.launcher.restart_lock import write_down_file
from carpool.launcher.runtime_dir import RuntimeDirWatch
from carpool_protocol.bootstrap import paths

CLEAR_S = 10.0
"""The longest wait for what a dead supervisor left, before the sweep ends it."""
KILLED_S = 2.0
"""The longest wait until killed processes have ended."""
_SWEEP_S = 30.0


class Leftovers:
    """The leftovers of one runtime directory. `environ` is the environment of the sweep."""

    def __init__(self, directory: str, environ: dict[str, str], place: RuntimeDirWatch | None) -> None:
        self._directory = directory
        self._environ = environ
        self._place = place
        self._runtime = paths.runtime_id(directory)

    def end_earlier_processes(self) -> None:
        """End the processes of a killed launcher: wait until they end by themselves, then kill them and those
        that they start meanwhile.
        """
        kill_at = time.monotonic() + CLEAR_S
        told = False
        while left := [pid for pid, _ in processes.marked(self._runtime)]:
            now = time.monotonic()
            if now >= kill_at:
                if not told:
                    log_line(f"ending what an earlier carpool left here: {', '.join(map(str, left))}")
                told = True
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            if now >= kill_at + KILLED_S:
                return
            time.sleep(0.05)

    def clean_up(self, *, unclean: bool) -> None:
        """Remove what the processes left, and the sockets, after all have ended. `unclean`: one did not end
        well.
        """
        deadline = time.monotonic() + CLEAR_S
        while processes.adopted(set()) and time.monotonic() < deadline:
            time.sleep(0.02)
        if unclean or processes.adopted(set()) or processes.marked(self._runtime):
            self.sweep_instances()
            self._kill_adopted()
        self.remove_sockets()

    def _kill_adopted(self) -> None:
        """Kill what the sweep does not find: processes of ours that are no instance's (a hook's, say)."""
        give_up_at = time.monotonic() + KILLED_S
        while left := set(processes.adopted(set())).intersection(
            pid for pid, _ in processes.marked(self._runtime)
        ):
            if time.monotonic() >= give_up_at:
                return
            for pid in left:
                os.kill(pid, signal.SIGKILL)  # only we reap it, so it is there
            time.sleep(0.05)

    def write_down_file(self) -> None:
        """Write the file that tells carriers of a stop on purpose, because no broker can."""
        write_down_file(self._directory)

    def remove_down_file(self) -> None:
        """Remove that file, because carpool starts."""
        with contextlib.suppress(OSError):
            os.unlink(paths.down_file(self._directory))

    def remove_until_down_files(self) -> None:
        """Remove what holds until carpool stops: switches of `enable` and `disable`, and the last good
        configuration.
        """
        if self._place is None or self._place.is_ours():
            for path in paths.held_until_down(self._directory):
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def sweep_instances(self, epoch: str = "") -> None:
        """Let the supervisor's own tool find and end instances that carry our mark. `epoch`: only those of
        this life of a supervisor.
        """
        only = [epoch] if epoch else []
        command = [sys.executable, "-P", "-m", "carpool_supervisor.spawn.orphans", self._runtime, *only]
        try:
            done = subprocess.run(
                command,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=_SWEEP_S,
                check=False,
            )
            for line in done.stderr.decode("utf-8", "replace").splitlines():
                log_line(line)
            if done.returncode:
                log_line(f"the sweep ended with {exit_status_text(done.returncode)}", "warning")
        except (OSError, subprocess.TimeoutExpired) as error:
            log_line(f"the sweep did not finish ({type(error).__name__})", "warning")

    def remove_sockets(self) -> None:
        """Remove the sockets, so that no client waits at one that nobody serves."""
        if self._place is not None and not self._place.is_ours():
            return
        for path in (
            paths.agents_socket(self._directory),
            paths.link_socket(self._directory),
            paths.node_socket(self._directory),
            paths.door_file(self._directory),
        ):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
