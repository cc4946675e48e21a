"""The spawner: the process that forks servers, reaps them, and outlives the supervisor to end them.

Single-threaded and small, because a fork in a process with threads is unsafe and a parent-death signal fires
when the *thread* that forked ends (rule 2; decision 0002). Started by `spawner_client.py`, which talks to it
over one Unix stream socket. Both ways: 4 bytes little-endian length, then one `marshal` tuple (both ends are
the same interpreter); a `spawn` carries the server's stdin, stdout and stderr as SCM_RIGHTS.

    -> ("spawn", token, argv, env, cwd, mark)   -> ("signal", token, signal number)
    <- ("ready", pid)   <- ("spawned", token, pid)   <- ("failed", token, stage, errno)
    <- ("exited", token, exit code, or minus the signal)

Invariants: a leader is reaped only after its whole group is gone, so its pid, which is the group's id, cannot
be reused while we may signal it. Processes that an instance leaves behind (its group, and descendants that
left the group, which we adopt as sub-reaper) are ended after it: TERM, `GRACE_S`, KILL. An instance is
forgotten when a look has found none of them, and a look counts only if nothing was adopted while it lasted.
At end of file of the socket (the supervisor has died, in whatever way) or on SIGTERM all processes are ended
so; then we exit.

Standard library only and few modules, because it lives as long as carpool. Knows nothing of: MCP, pools, why
a server is wanted.
"""

import _signal  # type: ignore[import-not-found]  # no stub; `signal` drags in enum, 0.7 MB
import _socket
import errno
import marshal
import os
import select
import sys
import time

from carpool_supervisor import marks
from carpool_supervisor.spawn.exec_child import (
    LINUX,
    PR_SET_CHILD_SUBREAPER,
    exec_server,
    limit_core_dumps,
    prctl,
)

GRACE_S = 2.0
"""From TERM to KILL for processes that an instance leaves behind, and for all once the supervisor is gone."""

GIVE_UP_S = 10.0
"""After end of file: the wait for processes that even KILL does not end at once (disk sleep)."""

_BAD_REQUEST = "the supervisor sent something else than a request"


class SpawnedProcess:
    """One process that was started here, from fork until its whole group is gone."""

    __slots__ = ("exec_fd", "forced", "gone", "kill_at", "mark", "pid", "termed", "token")

    def __init__(self, token: int, mark: str, pid: int, exec_fd: int) -> None:
        self.token = token
        self.mark = mark
        self.pid = pid
        """The id of its process group and its session too."""
        self.exec_fd = exec_fd
        """Reports the outcome of exec; -1 afterwards."""
        self.gone = False
        """The leader has ended, and is kept as a zombie while its group is being ended."""
        self.forced = False
        """It was ended with KILL; processes that it leaves behind are killed at once too."""
        self.kill_at = 0.0
        self.termed: set[int] = set()


class SpawnerProcess:
    """The whole process: its instances, and one loop over the socket, SIGCHLD and exec results."""

    def __init__(self, sock: _socket.socket, core_bytes: int) -> None:
        self._sock = sock
        self._core_bytes = core_bytes
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        self._wake_fd, wake_end = os.pipe()
        for fd in (self._wake_fd, wake_end):
            os.set_blocking(fd, False)
        self._poll.register(self._wake_fd, select.POLLIN)
        _signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        _signal.signal(_signal.SIGTERM, self._end_wanted)
        for number in (_signal.SIGINT, _signal.SIGHUP):  # from a terminal: the supervisor decides
            _signal.signal(number, _signal.SIG_IGN)
        self._inbox = bytearray()
        self._passed: list[list[int]] = []
        self._by_pid: dict[int, SpawnedProcess] = {}
        self._by_exec_fd: dict[int, SpawnedProcess] = {}
        self._ending_since: float | None = None
        self._children_fd = marks.open_children()

    def run(self) -> None:
        self._send_reports("ready", os.getpid())
        while not (self._ending_since is not None and self._is_finished()):
            for fd, _ in self._poll.poll(self._timeout_ms()):
                if fd == self._sock.fileno():
                    self._receive()
                elif fd == self._wake_fd:
                    os.read(fd, 4096)
                elif fd in self._by_exec_fd:
                    self._exec_done(self._by_exec_fd[fd])
            self._reap()
            self._end_leftovers()

    # --- the socket ---------------------------------------------------------------------------------------

    def _send_reports(self, *message: object) -> None:
        body = marshal.dumps(message)  # type: ignore[arg-type]  # ints and strings only
        try:
            self._sock.sendall(len(body).to_bytes(4, "little") + body)
        except OSError:  # the supervisor is gone: the end of file shows it too
            self._end_wanted()

    def _receive(self) -> None:
        flags = getattr(_socket, "MSG_CMSG_CLOEXEC", 0)
        try:
            data, ancillary, got_flags, _ = self._sock.recvmsg(1 << 16, _socket.CMSG_SPACE(64), flags)
        except OSError:
            data, ancillary, got_flags = b"", [], 0
        for level, kind, raw in ancillary:
            if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
                fds = [
                    int.from_bytes(raw[at : at + 4], sys.byteorder) for at in range(0, len(raw) // 4 * 4, 4)
                ]
                for fd in fds:
                    os.set_inheritable(fd, False)
                self._passed.append(fds)
        if got_flags & _socket.MSG_CTRUNC and not ancillary:
            self._passed.append([])  # no descriptor is free: this one spawn fails, the order holds
        if not data:
            self._poll.unregister(self._sock.fileno())
            self._end_wanted()
            return
        self._inbox += data
        while len(self._inbox) >= 4:
            end = 4 + int.from_bytes(self._inbox[:4], "little")
            if len(self._inbox) < end:
                return
            request = marshal.loads(bytes(self._inbox[4:end]))  # noqa: S302  # our own supervisor's, on a private socket
            del self._inbox[:end]
            if request[0] == "spawn":
                self._spawn(*request[1:])
            elif request[0] == "signal":
                self._signal(*request[1:])
            else:
                raise ValueError(_BAD_REQUEST)

    # --- starting -----------------------------------------------------------------------------------------

    def _spawn(self, token: int, argv: list[bytes], env: dict[bytes, bytes], cwd: bytes, mark: str) -> None:
        fds = self._passed.pop(0)
        try:
            if len(fds) != 3:
                raise OSError(errno.EMFILE, "")  # noqa: TRY301  # one place says "failed"
            exec_fd, report_fd = os.pipe()
            parent = os.getpid()
            # Between fork and exec no signal may run our handlers in the copy.
            before = _signal.pthread_sigmask(_signal.SIG_SETMASK, _signal.valid_signals())
            try:
                pid = os.fork()
            except OSError:
                os.close(exec_fd)
                os.close(report_fd)
                raise
            finally:
                if os.getpid() == parent:
                    _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
        except OSError as error:
            self._send_reports("failed", token, "fork", error.errno)
            return
        else:
            if pid == 0:
                exec_server(
                    argv,
                    env,
                    cwd,
                    fds=fds,
                    report_fd=report_fd,
                    parent=parent,
                    limit=marks.limit_of(mark),
                    core_bytes=self._core_bytes,
                )
            os.close(report_fd)
        finally:
            for fd in fds:
                os.close(fd)
        instance = SpawnedProcess(token, mark, pid, exec_fd)
        self._by_pid[pid] = self._by_exec_fd[exec_fd] = instance
        self._poll.register(exec_fd, select.POLLIN)
        if self._ending_since is not None:
            self._kill(instance, _signal.SIGKILL)

    def _exec_done(self, instance: SpawnedProcess) -> None:
        """Read the exec result; end of file is success."""
        fd, instance.exec_fd = instance.exec_fd, -1
        self._poll.unregister(fd)
        del self._by_exec_fd[fd]
        report = os.read(fd, 4096)
        os.close(fd)
        if not report:
            self._send_reports("spawned", instance.token, instance.pid)
            return
        stage, number = marshal.loads(report)  # noqa: S302  # our own child's, written before its exec
        del self._by_pid[instance.pid]
        try:
            os.waitpid(instance.pid, 0)  # on its way out: once its failure is reported nothing of it is left
        except OSError:
            assert not LINUX  # on other systems `_exit_status` reaps it
        self._send_reports("failed", instance.token, stage, number)

    # --- ending -------------------------------------------------------------------------------------------

    def _signal(self, token: int, number: int) -> None:
        for instance in self._by_pid.values():
            if instance.token == token and not instance.gone:
                instance.forced |= number == _signal.SIGKILL
                self._kill(instance, number)

    def _kill(self, instance: SpawnedProcess, number: int) -> None:
        """Signal the group; only the process itself before it has made its group."""
        try:
            os.killpg(instance.pid, number)
        except OSError:
            if instance.exec_fd >= 0:
                _send(instance.pid, number)

    def _reap(self) -> None:
        now = time.monotonic()
        for instance in list(self._by_pid.values()):
            if instance.gone or (code := _exit_status(instance.pid)) is None:
                continue
            if instance.exec_fd >= 0:
                self._exec_done(instance)
                if instance.pid not in self._by_pid:
                    continue
            instance.gone = True
            instance.kill_at = now if instance.forced else now + GRACE_S
            self._send_reports("exited", instance.token, code)
        for pid in self._adopted_orphans():
            try:
                os.waitpid(pid, os.WNOHANG)
            except OSError:
                continue

    def _adopted_orphans(self) -> list[int]:
        """Descendants whose parents have died. Only we can reap them, so their pids are safe to signal."""
        return [pid for pid in marks.children_of_this_thread(self._children_fd) if pid not in self._by_pid]

    def _end_leftovers(self) -> None:
        gone = [instance for instance in self._by_pid.values() if instance.gone]
        adopted = self._adopted_orphans() if gone or self._ending_since is not None else []
        leftovers, is_whole = self._judge(adopted) if LINUX and gone else ({}, True)
        now = time.monotonic()
        for instance in gone:
            left = leftovers.get(instance.pid, []) if LINUX else _group(instance.pid)
            late = now >= instance.kill_at
            if LINUX and (late or (is_whole and not left)):
                self._kill(instance, _signal.SIGKILL)  # all that are left in the group
            if not left:
                if is_whole:
                    self._forget(instance)
                continue
            for pid in left:
                if late or pid not in instance.termed:
                    instance.termed.add(pid)
                    _send(pid, _signal.SIGKILL if late else _signal.SIGTERM)
            if not late and instance.pid not in instance.termed:
                instance.termed.add(instance.pid)
                self._kill(instance, _signal.SIGTERM)
        if self._ending_since is not None and now >= self._ending_since + GRACE_S:
            for instance in self._by_pid.values():
                instance.forced = True
                self._kill(instance, _signal.SIGKILL)
            for pid in adopted:
                _send(pid, _signal.SIGKILL)

    def _judge(self, adopted: list[int]) -> tuple[dict[int, list[int]], bool]:
        """Return which of these processes are left of which instance (by its pid), and whether that is all.

        It is not all if one could not be read, or if another was adopted meanwhile: a process that ends
        after it was listed, and before it is judged, hands its children to us at that moment.
        """
        by_mark = {instance.mark: pid for pid, instance in self._by_pid.items()}
        by_limit = {marks.limit_of(mark): pid for mark, pid in by_mark.items()}
        leftovers: dict[int, list[int]] = {}
        is_readable = True
        for pid in adopted:
            state, group = marks.state_and_group(pid)
            is_readable &= bool(state)  # only we reap it, so it is there: no descriptor is free
            if state in {"", "Z", "X"}:
                continue
            mark, limit = marks.instance_of(pid)
            owner = group if group in self._by_pid else by_mark.get(mark, by_limit.get(limit, 0))
            leftovers.setdefault(owner, []).append(pid)
        return leftovers, is_readable and set(self._adopted_orphans()) <= set(adopted)

    def _forget(self, instance: SpawnedProcess) -> None:
        """Reap the leader, which frees its pid."""
        if LINUX:
            os.waitpid(instance.pid, 0)
        del self._by_pid[instance.pid]

    def _end_wanted(self, *_: object) -> None:
        if self._ending_since is None:
            self._ending_since = time.monotonic()
            for instance in self._by_pid.values():
                self._kill(instance, _signal.SIGTERM)
            for pid in self._adopted_orphans():
                _send(pid, _signal.SIGTERM)

    def _is_finished(self) -> bool:
        if not self._by_pid and not self._adopted_orphans():
            return True
        assert self._ending_since is not None
        return time.monotonic() > self._ending_since + GRACE_S + GIVE_UP_S

    def _timeout_ms(self) -> int | None:
        """If nothing is pending, sleep until something happens. Else poll, for some seconds at most."""
        pending = self._ending_since is not None or any(each.gone for each in self._by_pid.values())
        return 20 if pending else None


def _exit_status(pid: int) -> int | None:
    """Exit code, or minus the signal; None while it runs. On Linux the zombie stays and holds the pid."""
    if hasattr(os, "waitid") and LINUX:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
    reaped, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if reaped else None


def _group(pid: int) -> list[int]:
    """On systems without adoption (macOS): the group itself while it has members, which keep its id from
    reuse.
    """
    try:
        os.killpg(pid, 0)
    except OSError:
        return []
    return [-pid]


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return


def main(fd: int, core_bytes: int) -> None:
    """Serve the supervisor on this inherited socket until it closes it; then end all processes.

    `core_bytes`: the limit of core dumps that servers get. The spawner's own are off, because environments of
    servers are in its memory.
    """
    limit_core_dumps(1)  # as in `carpool_protocol.runtime.core_dumps`
    while (low := os.open(os.devnull, os.O_RDWR)) <= 2:  # descriptors that we receive must be above 2
        os.set_inheritable(low, True)
    os.close(low)
    os.set_inheritable(fd, False)
    if LINUX:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
    SpawnerProcess(_socket.socket(fileno=fd), core_bytes).run()
