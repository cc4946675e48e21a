"""One process of the daemon as the launcher sees it: command, log file, lifeline.

Owns the process's descriptor of its lifeline, its exit status and the opening of its log.
Invariants: one incarnation at a time; its log says when it started and how it ended, where there is room;
a launcher that dies leaves end of file on the lifeline, which ends the process; no module is taken from the
directory that it runs in (`-P`), which is that of whoever said `carpool up`.
Refuses to decide when to start again (`restart_policy`) and what its words mean (`launcher`).
"""

import contextlib
import errno
import os
import signal
import socket
import subprocess
from collections.abc import Mapping

from carpool_protocol.files import private_files
from carpool_protocol.files.log_format import message_of
from carpool_protocol.files.log_rotation import rotate
from carpool_protocol.runtime.variables_pipe import pipe_with

_LONGEST_LINE_BYTES = 4096
_MOST_READS = 1024
"""At most this many reads at a time: more than the lifeline of a process that has exited holds."""
_MOST_FDS = 4
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
"""Errors after which the process runs without a log. Any other error means that somebody has tampered with
the file.
"""


class DaemonChild:
    """A broker, supervisor or door, over all its incarnations."""

    def __init__(
        self, name: str, module: str, arguments: list[str], log: str, *, handed: bytes = b""
    ) -> None:
        """`handed`: each incarnation gets these bytes in a pipe (`--variables`)."""
        self._handed = handed
        self.name = name
        self.log = log
        self.ready = False
        """True once this incarnation serves."""
        self.log_trouble = ""
        """The reason why this incarnation has no log."""
        self._command = [module, *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: socket.socket | None = None
        self._unread = b""
        self._last_lines: list[str] = []
        """The lines of an incarnation that has exited, until they are read."""
        self._fds: list[int] = []
        """The descriptors that came with its lines and are not taken, the oldest first."""
        self._log_start = 0

    def add_arguments(self, *arguments: str) -> None:
        """Give these arguments to later incarnations."""
        self._command += arguments

    @property
    def pid(self) -> int:
        """The process id; 0 while it does not run."""
        return self._process.pid if self._process else 0

    @property
    def fd(self) -> int:
        """The descriptor of its lifeline, to wait on; -1 if there is none."""
        return self._lifeline.fileno() if self._lifeline else -1

    def start(self, python: str, environ: dict[str, str], given: Mapping[str, int] | None = None) -> None:
        """Start the next incarnation. `given`: descriptors for it alone, by the options that take them.
        Raises `OSError` if the machine refuses.
        """
        given = given or {}
        ours, its = socket.socketpair()
        handed = -1
        try:
            handed = pipe_with(self._handed) if self._handed else -1
            variables = ["--variables", str(handed)] if handed >= 0 else []
            variables += [word for name, fd in given.items() for word in (name, str(fd))]
            with open(self._opened_log(), "ab") as log:
                self._log_start = log.seek(0, os.SEEK_END) if self.log_trouble == "" else 0
                self._process = subprocess.Popen(
                    [python, "-P", "-m", *self._command, "--lifeline", str(its.fileno()), *variables],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environ,
                    pass_fds=[fd for fd in (its.fileno(), handed, *given.values()) if fd >= 0],
                    # Ctrl-C is for the launcher: it ends the others in order.
                    process_group=0,
                )
        except BaseException:
            ours.close()
            raise
        finally:
            its.close()
            if handed >= 0:
                os.close(handed)
        ours.setblocking(False)
        self._lifeline = ours
        self._unread = b""
        self.ready = False

    def exit_status(self) -> int | None:
        """Return `None` while it runs; then, once, its exit code (negative: the signal), and forget it."""
        if self._process is None:
            return None
        code = self._process.poll()
        if code is None:
            return None
        self._process = None
        self._last_lines = self.read_lines()
        self._close_lifeline()
        self.ready = False
        return code

    def read_lines(self) -> list[str]:
        """Return the whole lines that it has written on the lifeline since the last call, also those of an
        incarnation that has exited. One that writes faster than this reads does not hold up the others.
        """
        said, self._last_lines = self._last_lines, []
        for _ in range(_MOST_READS):
            if not self._lifeline:
                break
            try:
                data, fds, _, _ = socket.recv_fds(self._lifeline, 65536, _MOST_FDS)
            except BlockingIOError:
                break
            except OSError:
                data, fds = b"", []
            for fd in fds:
                os.set_inheritable(fd, False)
            self._fds += fds
            if not data:
                self._close_lifeline()
                break
            *lines, rest = (self._unread + data).split(b"\n")
            self._unread = rest[-_LONGEST_LINE_BYTES:]
            said += [line.decode("utf-8", "replace") for line in lines]
        return said

    def take_fd(self) -> int:
        """Return the oldest descriptor that came with a line; -1 if none came."""
        return self._fds.pop(0) if self._fds else -1

    def send_line(self, text: str) -> None:
        """Send one line on the lifeline. A line that does not fit is dropped: a process that does not read
        for so long is replaced.
        """
        if self._lifeline:
            with contextlib.suppress(OSError):  # dead or deaf, and the loop will find out which
                self._lifeline.send(text.encode() + b"\n")

    def kill(self) -> None:
        """SIGKILL this incarnation; `exit_status` tells when it is gone."""
        if self._process:
            self._process.send_signal(signal.SIGKILL)

    def log_tail(self, size_bytes: int = 4000) -> str:
        """Return the messages at the end of this incarnation's log."""
        return messages_at_end(self.log, self._log_start, size_bytes)

    def _opened_log(self) -> int:
        rotate(self.log)
        self.log_trouble = ""
        try:
            os.makedirs(os.path.dirname(self.log), mode=0o700, exist_ok=True)
            return private_files.open_to_append(self.log)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            self.log_trouble = os.strerror(error.errno or 0)
            return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    def _close_lifeline(self) -> None:
        if self._lifeline:
            self._lifeline.close()
            self._lifeline = None


def messages_at_end(log: str, start: int, size_bytes: int) -> str:
    """Return the messages of the last lines of a log, none of them from before `start`."""
    try:
        with open(log, "rb") as file:
            length = file.seek(0, os.SEEK_END)
            start = start if start <= length else 0  # the process has begun a new file
            begin = max(start, length - size_bytes)
            file.seek(begin)
            text = file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""
    whole = text.partition("\n")[2] or text if begin > start else text
    return "\n".join(map(message_of, whole.split("\n")))
