"""The launcher (`carpool up`): starts the broker and the supervisor, and keeps them up until told to stop.

And the HTTP door and the node's process where they are wanted, without which the others do as well. Owns the
lock of the runtime directory and all these processes' lives. Invariants: one launcher per runtime
directory; no new supervisor before what the old one left is gone (rule 2); nothing of ours runs when it ends.

Standard library only, no event loop: it sleeps in `select` until a lifeline speaks, a
signal comes or a second has passed. Refuses to know sessions, servers and the link.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import time

from carpool.launcher import processes
from carpool.launcher.child import DaemonChild
from carpool.launcher.cleanup import CLEAR_S, Leftovers
from carpool.launcher.http_door import (
    EXIT_CONFIG,
    EXIT_TAKEN,
    EXIT_UNWANTED,
    HttpDoorWatch,
    remove_door_file,
    write_door_problem,
)
from carpool.launcher.http_handover import HELD, HOLD, LEFT, LISTENS, LISTENS_NOT, HttpHandover
from carpool.launcher.http_refusal import refuse_connections, refuse_handover
from carpool.launcher.log import exit_status_text, log_line
from carpool.launcher.node_process import EXIT_CONFIG as NODE_EXIT_CONFIG
from carpool.launcher.node_process import NodeProcessWatch
from carpool.launcher.restart_policy import SILENT_S, RestartPolicy
from carpool.launcher.runtime_dir import RuntimeDirWatch
from carpool.launcher.service_manager import RESTART_STATUS, ServiceManager
from carpool_protocol.bootstrap import paths
from carpool_protocol.files.log_rotation import rotate_in_use
from carpool_protocol.ids import supervisor_name
from carpool_protocol.machine.stop_commands import DRAIN_S, STOP, STOP_FOR_RESTART
from carpool_protocol.runtime.pace import IDLE_S, LATE_S, until_due

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
RESTART = signal.SIGUSR1
"""The signal to stop: first the broker, which waits for open calls (`stop_commands.DRAIN_S`). The sender
starts carpool again at once, and agents wait for that.
"""
DRAINED_S = DRAIN_S + 5.0
"""From `stop again` until the others are told to stop: the broker's own limit, and time for its
last lines.
"""
HOLD_S = 3.0
"""From `hold` until the broker is told to drain, if the HTTP door does not say that it holds requests."""
LISTENER, CONNECTIONS = "http", "http-connections"
"""The names of the handover's descriptors at the service manager."""
STOP_S = 15.0
"""From `stop` to SIGKILL."""
DOOR_S = 10.0
"""A starter of carpool waits this long for a door that is wanted."""
START_DEATHS = 3
"""The number of deaths before anything was ready, after which starting is given up. After as many deaths of
the HTTP door in a row, requests that wait for it are refused.
"""
_NO_START = "carpool does not start without the HTTP door that it was told to open"
_TICK_S = 1.0
"""The least time between two looks at files."""
_AFTER_S = 0.2
"""Signs of life come at the beginning of each `IDLE_S`. Where none comes the launcher wakes so much later."""
_LONGEST_TURN_S = 5.0
"""A turn ends after this time at the latest, by `IDLE_S` and `_AFTER_S`, if the launcher runs."""
_LOOK_S = 0.05
"""How often to check for what cannot be waited for."""


class ChildSpec:
    """One process with its restart policy and the time at which it starts again."""

    def __init__(self, child: DaemonChild, vigil: RestartPolicy) -> None:
        self.child = child
        self.restart_policy = vigil
        self.start_at: float | None = 0.0
        """The time of the next start; `None` while it runs."""
        self.clear_by: float | None = None
        """After a supervisor's death: until then its instances may end by themselves."""
        self.epoch = ""
        """The epoch of a supervisor; empty until it has announced one."""


class Launcher:
    """The launcher's loop. `environ` is the environment of the processes; `ready_fd` gets the outcome of the
    start once (-1: none).
    """

    def __init__(
        self,
        directory: str,
        config: str,
        environ: dict[str, str],
        *,
        ready_fd: int = -1,
        http: str = "",
        silent_s: float = SILENT_S,
        place: RuntimeDirWatch | None = None,
        variables: bytes = b"",
        needs_door: bool = False,
        ends_idle: bool = False,
        service_manager: ServiceManager | None = None,
        handover: HttpHandover | None = None,
    ) -> None:
        """`variables` are the operator's, which every broker gets and no other process. `needs_door`:
        without the door the start has failed. `ends_idle`: it ends when the broker says that nobody has used
        carpool for a while. `handover`: what the HTTP door of an earlier launcher has left.
        """
        self.handover = handover or HttpHandover()
        """The sockets for the next HTTP door. Closed after `run`, unless another launcher follows."""
        self._needs_door = needs_door
        self._ends_idle = ends_idle
        self._service_manager = service_manager or ServiceManager({})
        self._runtime_dir = place
        self._place_said = ""
        """The reason why the directory cannot be restored, as it was told last."""
        self._directory = directory
        self._environ = environ
        self._ready_fd = ready_fd
        self._leftovers = Leftovers(directory, environ, place)
        logs = paths.log_dir(environ, directory)
        os.makedirs(logs, mode=0o700, exist_ok=True)
        self._log = paths.daemon_log(logs, "launcher")
        at = ["--runtime-dir", directory]
        broker = DaemonChild(
            "broker",
            "carpool_broker",
            [*at, *(["--config", config] if config else [])],
            paths.daemon_log(logs, "broker"),
            handed=variables,
        )
        # All agents wait for the next one: only one that does not live at all is waited for.
        self._broker = ChildSpec(broker, RestartPolicy(silent_s, settled_after_s=2.0, first_delay_s=0.05))
        self._silent_s = silent_s
        self._supervisors = [self._new_supervisor(0)]
        door = DaemonChild(
            "http",
            "carpool.http",
            [*at, *(["--config", config] if config else []), *(["--listen", http] if http else [])],
            paths.daemon_log(logs, "http"),
        )
        self._door = ChildSpec(door, RestartPolicy(silent_s))
        self._door.start_at = None
        self._door_watch = HttpDoorWatch(http, config, environ, paths.last_good_file(directory))
        node = DaemonChild(
            "node",
            "carpool.cluster",
            [*at, *(["--config", config] if config else [])],
            paths.daemon_log(logs, "node"),
        )
        self._node = ChildSpec(node, RestartPolicy(silent_s))
        self._node.start_at = None
        self._node_watch = NodeProcessWatch(directory, config, environ)
        self._heritage = os.urandom(32).hex()
        self._life, self._since = -1, 0
        """The number of the last broker, and of the first one whose sessions may still come back."""
        self._door_by = 0.0
        self._door_note = self._broker_note = ""
        self._was_ready = False
        self._stop_by: float | None = None
        """Set while it stops: the time at which it kills what still runs."""
        self._others_by: float | None = None
        """Set while the broker drains: the time at which the others are told to stop in any case."""
        self._drain_by: float | None = None
        """Set until the HTTP door holds requests: the time at which the broker drains in any case."""
        self._is_restart = False
        """True once it was told to stop so that the next launcher goes on."""
        self._has_supervisors = False
        """True once a broker has said how many supervisors there are."""
        self._again = False
        """True if the last command was to stop for a restart."""
        self._unclean = False
        self._exit = EXIT_OK
        self._wake, self._bell = socket.socketpair()
        self._wake.setblocking(False)
        self._bell.setblocking(False)

    @property
    def _all(self) -> list[ChildSpec]:
        return [self._broker, *self._supervisors, self._door, self._node]

    def _new_supervisor(self, number: int) -> ChildSpec:
        """Return the supervisor of this number, counted from 0."""
        name = supervisor_name(number)
        log = paths.daemon_log(paths.log_dir(self._environ, self._directory), f"supervisor-{name}")
        arguments = ["--runtime-dir", self._directory, "--name", name]
        return ChildSpec(
            DaemonChild(name, "carpool_supervisor", arguments, log), RestartPolicy(self._silent_s)
        )

    def _set_supervisors(self, wanted: int) -> None:
        """The first broker says how many supervisors the configuration has. Later ones are told that number:
        what it says changes with a restart of carpool.
        """
        if self._has_supervisors:
            return
        self._has_supervisors = True
        for number in range(1, wanted):
            self._supervisors.append(self._new_supervisor(number))
        names = [keep.child.name for keep in self._supervisors]
        self._broker.child.add_arguments("--supervisors", ",".join(names))

    def run(self) -> int:
        """Start, keep up, stop. Returns the exit code: 0, 1 if it does not start, 2 if the configuration is
        refused, `RESTART_STATUS` if its service manager is to start it again.
        """
        self._catch_signals()
        processes.become_subreaper()
        self._leftovers.end_earlier_processes()
        self._leftovers.sweep_instances()
        self._leftovers.remove_sockets()
        self._leftovers.remove_down_file()
        then = time.monotonic()
        looked = then
        while True:
            now = time.monotonic()
            if now - looked >= _TICK_S:
                looked = now
                self._service_manager.alive()
                self._check_runtime_dir()
                rotate_in_use(self._log)
            if now - then > _LONGEST_TURN_S + LATE_S:  # we slept, or were stopped: nobody could be heard
                for keep in self._all:
                    keep.restart_policy.alive_received(now)
            then = now
            if not self._door.child.pid and self._stop_by is None:
                self._check_door_wanted(now)
                if self._door.start_at is None:
                    self._drop_handover()
            if not self._node.child.pid and self._stop_by is None and self._node_watch.is_start_due():
                self._node.start_at = now
            for keep in self._all:
                self._check_child(keep, now)
            if self._stop_by is not None and not any(keep.child.pid for keep in self._all):
                break
            self._announce()
            self._begin_drain(now)
            self._stop_others(now)
            self._enforce_stop(now)
            self._sleep(now)
        self._leftovers.clean_up(unclean=self._unclean)
        self._take_signals()  # one to stop counts more than the restart
        if not self._again:
            self._leftovers.remove_until_down_files()
        self._report_to_starter(f"failed {EXIT_FAILED}\ncarpool was stopped while it started")
        log_line("stopped")
        return self._hand_over()

    def _hand_over(self) -> int:
        """Leave the handover for the next launcher, if one is to follow. Returns the exit code."""
        if not self._again or self._exit != EXIT_OK or not self._is_restart:
            self._drop_handover()
        if not self._again or self._exit != EXIT_OK or not self._service_manager.is_there:
            return self._exit
        if self.handover.connections >= 0:
            self._service_manager.store(CONNECTIONS, self.handover.connections)
        if self.handover.descriptors:
            self._service_manager.wait_until_read()
            self.handover.close()  # the service manager has its own
        return RESTART_STATUS

    def _drop_handover(self) -> None:
        """No HTTP door follows: requests that wait are refused, and nothing listens any more."""
        if self.handover.descriptors:
            manager = self._service_manager
            refuse_handover(self.handover, self._environ, is_service_managers=manager.is_there)
            manager.forget(LISTENER)
            manager.forget(CONNECTIONS)

    def _refuse_connections(self) -> None:
        """No HTTP door takes the connections of the last one soon: answer the requests that wait on them."""
        if self.handover.connections >= 0:
            refuse_connections(self.handover.connections, self._environ)
            self.handover.set_connections(-1)
            self._service_manager.forget(CONNECTIONS)

    def _check_runtime_dir(self) -> None:
        if self._runtime_dir is None:
            return
        match self._runtime_dir.recheck():
            case "kept":
                return
            case "put back":
                log_line(f"{self._directory} had vanished, or a part of it; it is there again")
                self._place_said = ""
            case "taken":
                if self._stop_by is None:
                    self._stop("another carpool has taken the runtime directory")
            case "gone":
                if self._runtime_dir.why != self._place_said:
                    self._place_said = self._runtime_dir.why
                    why = self._runtime_dir.why
                    log_line(f"{self._directory} has vanished and cannot be put back: {why}", "warning")

    # --- one process ---

    def _check_child(self, keep: ChildSpec, now: float) -> None:
        child = keep.child
        lines = child.read_lines()
        status = child.exit_status()
        if status is not None:
            lines += child.read_lines()
        for line in lines:
            keep.restart_policy.alive_received(now)
            if not (keep is self._door and self._handover_line(line, now)):
                self._line_received(keep, line, has_exited=status is not None)
        if status is not None:
            self._child_exited(keep, status, now)
        elif child.pid and keep.restart_policy.is_silent(now, lambda: processes.is_stopped(child.pid)):
            log_line(f"{child.name} (pid {child.pid}) is silent and not stopped: replacing it", "warning")
            child.kill()
        elif not child.pid and self._stop_by is None:
            self._start_again(keep, now)

    def _line_received(self, keep: ChildSpec, line: str, *, has_exited: bool) -> None:
        """Handle a line of a process on its lifeline."""
        if line == "ready":
            keep.child.ready = not has_exited
            if keep is self._door and self.handover.connections >= 0:
                # It has them. One that dies between reading the socket and this line takes them along.
                self.handover.set_connections(-1)
                self._service_manager.forget(CONNECTIONS)
        elif line == "alone":
            self._since = self._life
        elif line == "idle" and self._ends_idle and not self._door_watch.listen and self._stop_by is None:
            # As for a restart: agents that come now, and the next one, start carpool again.
            self._stop("nobody has used carpool for `idle_exit_s`", STOP_FOR_RESTART)
        elif line.startswith("note "):
            self._broker_note = line[5:]
        elif line.startswith("epoch "):
            keep.epoch = line[6:]
        elif line.startswith("supervisors ") and keep is self._broker:
            self._set_supervisors(int(line[12:]))

    def _handover_line(self, line: str, now: float) -> bool:
        """Handle a line of the HTTP door about the handover. Returns False if it is about something else."""
        if line == LISTENS:
            self.handover.set_listener(self._door.child.take_fd())
            self._service_manager.store(LISTENER, self.handover.listener)
        elif line == LISTENS_NOT:
            self.handover.set_listener(-1)
            self._service_manager.forget(LISTENER)
        elif line == LEFT:
            self.handover.set_connections(self._door.child.take_fd())
        elif line == HELD and self._drain_by is not None:
            self._drain_by = now
        return line in {LISTENS, LISTENS_NOT, LEFT, HELD}

    def _child_exited(self, keep: ChildSpec, status: int, now: float) -> None:
        child = keep.child
        if self._stop_by is not None:
            self._unclean |= status != 0
            if keep in self._supervisors:
                self._broker.child.send_line(f"gone {child.name}")  # it may be waiting for calls there
            if keep is self._door and not self._again:
                self._drop_handover()  # at once: the others may take seconds to end
            return
        delay_s = keep.restart_policy.exited(now)
        if keep is self._door:
            self._door_exited(status, now + delay_s)
            return
        if keep is self._node:
            self._node_exited(status, now + delay_s)
            return
        keep.start_at = now + delay_s
        log_line(
            f"{child.name} ended with {exit_status_text(status)}; starting it again in {delay_s:.1f} s",
            "warning",
        )
        if keep is not self._broker:
            keep.clear_by = now + CLEAR_S
            self._broker.child.send_line(f"gone {child.name}")
        if self._was_ready:
            return
        if status == EXIT_USAGE:
            self._give_up(EXIT_USAGE, child.log_tail() or f"{child.name} refuses to start")
        elif keep.restart_policy.deaths >= START_DEATHS:
            self._give_up(EXIT_FAILED, f"{child.name} does not start:\n{child.log_tail()}")

    def _check_door_wanted(self, now: float) -> None:
        """Check whether a changed configuration wants a door, or none any more."""
        if self._door_watch.is_start_due():
            self._door.start_at = now
        elif self._door_watch.is_no_longer_wanted():
            self._remove_door_file()

    def _remove_door_file(self) -> None:
        if self._runtime_dir is None or self._runtime_dir.is_ours():
            remove_door_file(self._directory)

    def _door_exited(self, status: int, start_at: float) -> None:
        """The door has exited. The others go on; where a restart would not help, a changed configuration
        may.
        """
        again = self._door_watch.should_restart(status)
        self._door.start_at = start_at if again else None
        words = self._door.child.log_tail()
        if status == EXIT_UNWANTED:
            self._remove_door_file()
        elif self._runtime_dir is None or self._runtime_dir.is_ours():
            write_door_problem(self._directory, status, words, retried=again)
        if self._door.restart_policy.deaths >= START_DEATHS:
            self._refuse_connections()
        expected = status in {0, EXIT_CONFIG, EXIT_UNWANTED, EXIT_TAKEN}
        if not expected:
            log_line(f"http ended with {exit_status_text(status)}; starting it again", "warning")
        if status in {EXIT_CONFIG, EXIT_TAKEN}:
            note = self._door_watch.new_problem(words)
            if note:
                self._door_note = note
                log_line(note, "warning")
            if self._needs_door and not self._was_ready:
                self._give_up(EXIT_USAGE if status == EXIT_CONFIG else EXIT_FAILED, _NO_START)

    def _node_exited(self, status: int, start_at: float) -> None:
        """The node's process has exited. The others go on; where a restart would not help, a changed
        configuration may.
        """
        again = self._node_watch.should_restart(status)
        self._node.start_at = start_at if again else None
        if status == NODE_EXIT_CONFIG:
            log_line(self._node.child.log_tail().rpartition("\n")[2], "warning")
        elif again and status:
            log_line(f"node ended with {exit_status_text(status)}; starting it again", "warning")

    def _start_again(self, keep: ChildSpec, now: float) -> None:
        if keep.clear_by is not None:
            if now < keep.clear_by and processes.adopted({other.child.pid for other in self._all}):
                return
            if len(self._supervisors) == 1:
                self._leftovers.sweep_instances()
            elif keep.epoch:  # before it told one, it had started nothing
                self._leftovers.sweep_instances(keep.epoch)
            keep.clear_by, keep.epoch = None, ""
        if keep.start_at is None or now < keep.start_at:
            return
        try:
            given = self.handover.arguments if keep is self._door else {}
            keep.child.start(sys.executable, self._environ, given)
        except OSError as error:
            keep.start_at = now + keep.restart_policy.exited(now)
            log_line(f"cannot start {keep.child.name}: {error.strerror}; trying again", "warning")
            return
        if keep.child.log_trouble:
            log_line(f"{keep.child.name} runs without a log: {keep.child.log_trouble}", "warning")
        keep.start_at = None
        keep.restart_policy.started(now)
        if keep is self._broker:
            self._life += 1
            keep.child.send_line(f"heir {self._life} {self._since} {self._heritage}")

    # --- the whole ---

    def _announce(self) -> None:
        """Tell once that sessions are accepted: the broker is ready and its socket accepts."""
        if self._was_ready or not self._broker.child.ready:
            return
        if not accepts(self._directory):
            return
        if len(self._supervisors) > 1 and not all(keep.child.ready for keep in self._supervisors):
            return  # a server that is started now could lack its supervisor
        door = self._door
        now = time.monotonic()
        self._door_by = self._door_by or now + DOOR_S
        opening = (door.child.pid or door.start_at is not None) and not door.child.ready
        if opening and not self._door_note and now < self._door_by:
            return
        self._was_ready = True
        self._service_manager.ready()
        log_line(f"ready in {self._directory}")
        self._report_to_starter("\n".join(["ready", *filter(None, (self._broker_note, self._door_note))]))

    def _give_up(self, code: int, text: str) -> None:
        log_line(text, "error")
        self._report_to_starter(f"failed {code}\n{text}")
        self._exit = code
        self._stop("giving up")

    def _stop(self, why: str, word: str = STOP) -> None:
        now = time.monotonic()
        if word == STOP_FOR_RESTART and self._stop_by is not None:
            log_line(f"it stops already: {why}")  # another restart, or `carpool down`, which counts more
            return
        self._service_manager.stopping()
        self._again = word == STOP_FOR_RESTART
        if word == STOP and not self._broker.child.pid:
            self._leftovers.write_down_file()
        if self._others_by is not None:
            log_line(f"draining no longer: {why}")
            self._drain_by = None
            self._broker.child.send_line(word)
            self._others_by = now
        elif self._stop_by is not None:
            self._stop_by = now  # asked twice: no more patience
        elif word == STOP_FOR_RESTART and self._broker.child.pid:
            log_line(f"draining: {why}")
            holds = self._is_restart and self._door.child.ready
            if holds:
                self._door.child.send_line(HOLD)
            self._drain_by = now + HOLD_S if holds else now
            self._others_by = now + HOLD_S + DRAINED_S
            self._stop_by = self._others_by + STOP_S
        else:
            log_line(f"stopping: {why}")
            self._stop_by = now + STOP_S
            for keep in self._all:
                keep.child.send_line(word)

    def _begin_drain(self, now: float) -> None:
        """Tell the broker to drain, once it has every request that the HTTP door has sent."""
        if self._drain_by is not None and (now >= self._drain_by or not self._door.child.pid):
            self._drain_by = None
            self._broker.child.send_line(STOP_FOR_RESTART)

    def _stop_others(self, now: float) -> None:
        """Stop the other processes once the broker has ended or is late: they serve the calls for which it
        waits.
        """
        if self._others_by is not None and (not self._broker.child.pid or now >= self._others_by):
            self._others_by = None
            self._stop_by = now + STOP_S
            for keep in self._all:
                if keep is not self._broker:
                    leaves = keep is self._door and self._again and self._is_restart
                    keep.child.send_line(STOP_FOR_RESTART if leaves else STOP)

    def _enforce_stop(self, now: float) -> None:
        if self._stop_by is not None and now >= self._stop_by:
            self._unclean = True
            for keep in self._all:
                keep.child.kill()

    def _sleep(self, now: float) -> None:
        waits = [until_due(IDLE_S) + _AFTER_S]
        for keep in self._all:
            if keep.clear_by is not None:  # what it waits for makes no sound
                waits.append(_LOOK_S)
            elif keep.start_at is not None and self._stop_by is None:
                waits.append(keep.start_at - now)
        if self._broker.child.ready and not self._was_ready:
            waits.append(_LOOK_S)
        if self._drain_by is not None:
            waits.append(self._drain_by - now)
        fds = [self._wake.fileno(), *(keep.child.fd for keep in self._all if keep.child.fd >= 0)]
        ready, _, _ = select.select(fds, [], [], max(0.0, min(waits)))
        if self._wake.fileno() in ready:
            self._take_signals()

    def _take_signals(self) -> None:
        """Handle the signals that have come."""
        try:
            numbers = set(self._wake.recv(4096))
        except BlockingIOError:
            return
        for number in numbers:
            if number == RESTART:
                self._is_restart = True
                self._stop("to be started again", STOP_FOR_RESTART)
            elif number != signal.SIGCHLD:
                self._stop(f"got {signal.Signals(number).name}")

    def _catch_signals(self) -> None:
        signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, RESTART):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, lambda _number, _frame: None)

    def _report_to_starter(self, text: str) -> None:
        if self._ready_fd >= 0:
            with contextlib.suppress(OSError):  # whoever started us has not waited
                os.write(self._ready_fd, text.encode())
            os.close(self._ready_fd)
            self._ready_fd = -1


def accepts(directory: str) -> bool:
    """True if a broker accepts sessions here now."""
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(2.0)
            sock.connect(paths.agents_socket(directory))
    except OSError:  # of our own descriptors running out, too
        return False
    return True
