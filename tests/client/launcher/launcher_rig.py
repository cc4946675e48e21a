"""A launcher on virtual time, whose processes are scripts.

The launcher's loop, its `DaemonChild`s with their lifelines and logs, the handover, the files of the runtime
directory and the restart policy are the real ones. Everything below them is played here: the clock, `select`
(which lets time pass), signals, the processes, the orphans that a dead supervisor leaves, and the sweep.

Owns the world around one launcher (`LauncherWorld`), what a scripted process does (`ScriptedProcess`), and
the rules that hold at every step whatever happens. Knows nothing of: who dies when (`test_launcher_machine`).
"""

import heapq
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

from carpool.launcher import child, cleanup, http_refusal, launcher
from carpool.launcher.cleanup import CLEAR_S
from carpool.launcher.http_door import EXIT_CONFIG, EXIT_UNWANTED
from carpool.launcher.http_handover import HELD, HttpHandover
from carpool.launcher.launcher import (
    DRAINED_S,
    EXIT_USAGE,
    HOLD_S,
    RESTART,
    START_DEATHS,
    STOP_S,
    Launcher,
)
from carpool.launcher.node_process import EXIT_CONFIG as NODE_CONFIG
from carpool.launcher.node_process import EXIT_LEFT
from carpool.launcher.node_process import EXIT_UNWANTED as NODE_UNWANTED
from carpool.launcher.restart_policy import CHECK_FROM_FRACTION, MAX_DELAY_S, SILENT_S
from carpool_protocol.bootstrap import paths
from carpool_protocol.machine.stop_commands import STOP, STOP_FOR_RESTART

ROLES: Final = {
    "carpool_broker": "broker",
    "carpool_supervisor": "sup",
    "carpool.http": "door",
    "carpool.cluster": "node",
}
_SLACK_S: Final = 0.001
_LOOKS_S: Final = 1.1
"""The launcher looks at everything once in a second."""
_LOOK_S: Final = 0.06
"""So often it looks at what makes no sound."""
_MOST_TURNS: Final = 20_000


class ScriptedProcess:
    """One process as its launcher sees it (`subprocess.Popen`) and as it acts: `obeys` gets each line."""

    def __init__(self, world: "LauncherWorld", command: list[str], pass_fds: list[int]) -> None:
        self.world = world
        self.pid = next(world.pids)
        self.role = ROLES[command[2]]
        if self.role == "sup":
            self.role = command[command.index("--name") + 1]
        self.given = {
            name: os.dup(int(command[command.index(name) + 1]))
            for name in ("--listener", "--other-listener", "--connections")
            if name in command
        }
        lifeline = int(command[command.index("--lifeline") + 1])
        assert set(pass_fds) >= {lifeline}, "a process gets its lifeline"
        self._lifeline = socket.socket(fileno=os.dup(lifeline))
        self._lifeline.setblocking(False)
        self._unread = b""
        self._unheard: list[str] = []
        self.status: int | None = None
        self.began = self.heard_at = self.resumed_at = world.now
        """`heard_at`: it said something last; `resumed_at`: it went on after a stop last."""
        self.ended_at = float("inf")
        self.is_stopped = False
        self.is_ready = False
        self.said: list[tuple[float, str]] = []
        self.epoch = ""
        self._unsent: list[tuple[bytes, tuple[int, ...]]] = []
        self.lines: list[tuple[float, str]] = []
        """What the launcher has said, and when."""
        self.obeys: Callable[[str], None] = lambda _: None
        self.orphan_s = -1.0
        """Its instances outlive it for so long; negative: they end with it."""

    # --- as its launcher knows it ---

    def poll(self) -> int | None:
        return self.status

    def send_signal(self, number: int) -> None:
        assert number == signal.SIGKILL
        self.world.check_kill(self)
        self.exit(-number)

    # --- as it acts ---

    @property
    def lives(self) -> bool:
        return self.status is None

    def say(self, line: str, *fds: int) -> None:
        """Write one line on the lifeline, in two parts."""
        if self.lives and not self.is_stopped:
            data = f"{line}\n".encode()
            self.heard_at = self.world.now
            self.is_ready |= line == "ready"
            self.said.append((self.world.now, line))
            self.epoch = line[6:] if line.startswith("epoch ") else self.epoch
            self._unsent += [(data[:2], ()), (data[2:], tuple(map(os.dup, fds)))]
            self.later(0.0, self._send_part)
            self.later(0.0, self._send_part)

    def _send_part(self) -> None:
        """Send a part of a line; the launcher may read before the next one comes."""
        data, fds = self._unsent.pop(0)
        with suppress(OSError):
            socket.send_fds(self._lifeline, [data], fds)
        for fd in fds:
            os.close(fd)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do this after a time, if it lives then."""
        self.world.at(self.world.now + seconds, lambda: act() if self.lives else None)

    def live(self) -> None:
        """Say every second that it lives."""
        self.say("alive")
        self.later(1.0, self.live)

    def read(self) -> None:
        """Note what the launcher has said, and obey as far as it is not stopped."""
        data = b""
        with suppress(BlockingIOError):
            data = self._lifeline.recv(65536)
        *lines, self._unread = (self._unread + data).split(b"\n")
        self.lines += [(self.world.now, line.decode()) for line in lines]
        self._unheard += map(bytes.decode, lines)
        while self._unheard and self.lives and not self.is_stopped:
            self.obeys(self._unheard.pop(0))

    def exit(self, status: int) -> None:
        """End, by itself or by a signal."""
        if self.lives:
            while self._unsent:
                self._send_part()
            self.status, self.ended_at = status, self.world.now
            self._lifeline.close()
            for fd in self.given.values():
                os.close(fd)
            self.given.clear()
            self.world.exited(self)

    def told(self, *words: str) -> float:
        """Return when the launcher has said one of these first; infinite: it has not."""
        return min((at for at, line in self.lines if line in words), default=float("inf"))


class LauncherWorld:
    """What is around one launcher. `script` is called with each process that the launcher starts."""

    def __init__(
        self, directory: Path, script: Callable[[ScriptedProcess], None], *, now: float = 1000.0
    ) -> None:
        self.now = now
        self.script = script
        self.directory = directory
        self.config = directory / "carpool.json"
        self.pids = count(100)
        self.processes: list[ScriptedProcess] = []
        self.orphans: dict[int, tuple[ScriptedProcess, float]] = {}
        """The pids of what dead supervisors have left, whose it was, and when they end by themselves."""
        self.listeners: set[int] = set()
        """The numbers (inodes) of the sockets at which a door has listened."""
        self.log: list[str] = []
        self.outcomes: list[str] = []
        self.signals: list[tuple[float, int]] = []
        self.changed_at = now
        """The last change of the configuration file."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._bell = -1
        self._turns = 0
        self._delays: dict[str, float] = {}
        self._deaths: dict[str, int] = {}
        self._due: dict[str, tuple[float, float]] = {}
        """The role: from when, and until when, its next process starts."""
        self._waits_for_change: set[str] = set()
        """The roles whose next process starts only after a change of the configuration file."""
        self._last: dict[str, ScriptedProcess] = {}
        self._gives_up_at = float("inf")

    # --- what happens ---

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), act))

    def signal(self, number: int) -> None:
        """Send the launcher a signal."""
        self.signals.append((self.now, number))
        os.write(self._bell, bytes([number]))

    def write_config(self, text: str) -> None:
        """Replace the configuration file."""
        fresh = self.directory / "fresh.json"
        fresh.write_text(text)
        fresh.replace(self.config)
        self.changed_at = self.now

    def living(self, role: str = "") -> list[ScriptedProcess]:
        return [each for each in self.processes if each.lives and role in ("", each.role)]

    def lived(self, role: str, when: float) -> bool:
        """True if a process of this role ran then."""
        return any(each.role == role and each.began <= when <= each.ended_at for each in self.processes)

    def next_launcher(self) -> None:
        """Another launcher follows: nothing is known of its processes."""
        self.now += 1.0
        self.changed_at = self.now
        for each in (self.processes, self.log, self.outcomes, self.signals, self._events):
            each.clear()
        for known in (self._delays, self._deaths, self._due, self._waits_for_change, self._last):
            known.clear()

    @property
    def stop_began_at(self) -> float:
        """The time at which the launcher has begun to stop everything; infinite: it has not."""
        found = (
            float(line.split()[0]) for line in self.log if " stopping: " in line or " draining: " in line
        )
        return min(*found, *(at for at, _ in self.signals), float("inf"), float("inf"))

    @property
    def was_ready(self) -> bool:
        """True if the launcher has said that sessions are accepted."""
        return any(" ready in " in line for line in self.log)

    @property
    def has_given_up(self) -> bool:
        """True if the launcher has given up the start."""
        return any("giving up" in line for line in self.log)

    def open_listener(self) -> socket.socket:
        """Return a new listening socket of a door."""
        sock = socket.create_server(("127.0.0.1", 0))
        self.listeners.add(os.fstat(sock.fileno()).st_ino)
        return sock

    def listens(self) -> bool:
        """True if somebody has a listening socket of a door."""
        found = set()
        for entry in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # the listing's own
                found.add(os.fstat(int(entry)).st_ino)
        return not found.isdisjoint(self.listeners)

    # --- what the launcher does, and the rules ---

    def popen(self, command: list[str], *, pass_fds: list[int], **_: Any) -> ScriptedProcess:
        made = ScriptedProcess(self, command[1:], pass_fds)
        role, last = made.role, self._last.get(made.role)
        assert not self.living(role), f"a second {role} is started beside the first"
        assert self.now <= self.stop_began_at, f"{role} is started after the command to stop"
        from_, until = self._due.pop(role, (self.now, self.now))
        if last is not None and role in ("door", "node") and self.changed_at >= last.began:
            from_ = self.now  # it may be wanted now
        else:
            assert role not in self._waits_for_change, f"{role} is started, and nothing has changed"
        self._waits_for_change.discard(role)
        assert from_ - _SLACK_S <= self.now <= until + _SLACK_S or from_ == self.now, (
            f"{role} is started at {self.now}, not from {from_} until {until}"
        )
        assert not [pid for pid, (whose, _) in self.orphans.items() if whose is last], (
            f"{role} is started while what the last one left still runs"
        )
        self._last[role] = made
        self.processes.append(made)
        self.script(made)
        return made

    def exited(self, process: ScriptedProcess) -> None:
        """A process has ended: note when the next one is to start."""
        if process.orphan_s >= 0.0:
            self.orphans[next(self.pids)] = process, self.now + process.orphan_s
        os.write(self._bell, bytes([signal.SIGCHLD]))
        role = process.role
        settled_s, first_s = (2.0, 0.05) if role == "broker" else (5.0, 0.2)
        if self.now - process.began >= settled_s:
            self._delays.pop(role, None)
            self._deaths.pop(role, None)
        self._deaths[role] = self._deaths.get(role, 0) + 1
        is_start = not self.was_ready and self.now <= self.stop_began_at and role not in ("door", "node")
        if is_start and (process.status == EXIT_USAGE or self._deaths[role] >= START_DEATHS):
            self._gives_up_at = min(self._gives_up_at, self.now)
        before = self._delays.get(role)
        delay = self._delays[role] = min(before * 2, MAX_DELAY_S) if before else first_s
        due = self.now + delay
        self._due[role] = due, max(due, self._clear_by(process) + _LOOK_S)
        waits = {"door": {EXIT_CONFIG, EXIT_UNWANTED}, "node": {NODE_CONFIG, NODE_UNWANTED, EXIT_LEFT}}
        if process.status in waits.get(role, ()):
            self._waits_for_change.add(role)

    def _clear_by(self, process: ScriptedProcess) -> float:
        """Return when the next supervisor stops waiting for what this one, or another one, has left."""
        if not process.role.startswith("sup") or not self.orphans:
            return self.now
        return min(self.now + CLEAR_S, max(ends for _, ends in self.orphans.values()))

    def check_kill(self, process: ScriptedProcess) -> None:
        """The launcher kills: only what is silent, and what is late at its end."""
        quiet_s, resumed_s = self.now - process.heard_at, self.now - process.resumed_at
        is_silent = not process.is_stopped and quiet_s >= SILENT_S - _SLACK_S
        # A stop is noticed from a part of the allowed silence on: after it there is the rest of that time.
        is_silent &= resumed_s >= SILENT_S * (1 - CHECK_FROM_FRACTION) - _SLACK_S
        plain_s = self.now - process.told(STOP)
        again_s = self.now - process.told(STOP_FOR_RESTART)
        if process.role == "broker":
            again_s -= DRAINED_S
        is_late = max(plain_s, again_s) >= STOP_S - _SLACK_S
        is_hurried = len(self.signals) + self.has_given_up > 1
        assert is_silent or is_late or is_hurried, f"{process.role} is killed without a reason"

    def check(self) -> None:
        """Check what holds at every moment."""
        assert self.now <= self._gives_up_at or self.has_given_up, "it does not give up the start"
        last = self._last.get("door")
        if "door" in self._waits_for_change and last is not None and last.ended_at < self.now:
            assert not self.listens(), "something listens, and no door is wanted"
        for each in self.living():
            quiet_s = self.now - max(each.heard_at, each.resumed_at)
            assert each.is_stopped or quiet_s <= SILENT_S + _LOOKS_S, (
                f"{each.role} is silent and not replaced"
            )
        for broker in self.living("broker"):
            for each in self.processes:
                if each.role.startswith("sup") and broker.began < each.ended_at < self.now:
                    told = [at for at, line in broker.lines if line == f"gone {each.role}"]
                    assert any(at >= each.ended_at for at in told), "the broker is not told of a death"
        if self.now <= self.stop_began_at:
            for role in self._due.keys() - self._waits_for_change:
                assert self.now <= self._due[role][1] + _SLACK_S, f"{role} is not started again"
        else:
            self._check_end()

    def _check_end(self) -> None:
        """Check the way to the end."""
        doors = [each for each in self.processes if each.role == "door"]
        drains = not self.has_given_up and (
            RESTART in [which for _, which in self.signals] or not self.signals
        )
        ends_s = STOP_S + (HOLD_S + DRAINED_S if drains else 0.0) + _LOOKS_S
        assert self.now - self.stop_began_at <= ends_s or not self.living(), f"not ended within {ends_s} s"
        if not drains and all(self.now > each.ended_at for each in doors):
            assert not self.listens(), "something listens after `down`, and the door has gone"
        if not drains and len(self.signals) > 1 and not self.has_given_up and self.now > self.signals[1][0]:
            assert not self.living(), "asked twice, it still waits"
        broker = self.living("broker")
        drain_at = self.stop_began_at
        if self.signals and drains:
            drain_at = max(drain_at, *(self._hold_ends_at(each) for each in doors), drain_at)
        if broker and self.now > drain_at + _SLACK_S:
            told_at = broker[0].told(STOP, STOP_FOR_RESTART)
            assert told_at <= drain_at + _SLACK_S, "the drain waits, and for no door"
        if broker and drains and len(self.signals) < 2 and self.now < self.stop_began_at + HOLD_S + DRAINED_S:
            told_at = min(
                each.told(STOP, STOP_FOR_RESTART) for each in self.processes if each is not broker[0]
            )
            assert told_at > self.now, "others are stopped while the broker drains"

    def _hold_ends_at(self, door: ScriptedProcess) -> float:
        """Return until when a restart may wait for this door to hold requests."""
        held_at = min((at for at, line in door.said if line == HELD), default=float("inf"))
        ready_at = min((at for at, line in door.said if line == "ready"), default=float("inf"))
        if ready_at > self.stop_began_at:
            return self.stop_began_at
        return min(held_at, door.ended_at, self.stop_began_at + HOLD_S)

    # --- the launcher's own view ---

    def select(
        self, fds: list[int], _writes: object, _errors: object, wait_s: float
    ) -> tuple[list[int], list[int], list[int]]:
        """Let time pass until one of these can be read, or the wait is over."""
        deadline = self.now + wait_s
        self._turns += 1
        assert self._turns < _MOST_TURNS, "the launcher goes round and round"
        self.check()
        while True:
            for each in self.living():
                each.read()
            ready = select.select(fds, [], [], 0)[0]
            if ready or self.now >= deadline:
                return ready, [], []
            if self._events and self._events[0][0] <= deadline:
                when, _, act = heapq.heappop(self._events)
                self.now = max(self.now, when)
                act()
            else:
                self.now = deadline
            for pid in [pid for pid, (_, ends) in self.orphans.items() if ends <= self.now]:
                del self.orphans[pid]

    def sleep(self, seconds: float) -> None:
        """Sleep, as the search for leftovers does."""
        self.select([], None, None, seconds)

    def run_command(self, command: list[str], **_: Any) -> SimpleNamespace:
        """The sweep ends all that is left; the refusal of requests answers nobody."""
        if "carpool_supervisor.spawn.orphans" in command:
            epochs = command[5:]
            for pid, (whose, _ends) in [*self.orphans.items()]:
                if not epochs or whose.epoch in epochs:
                    had_s = self.now - whose.ended_at
                    assert had_s >= CLEAR_S - _SLACK_S, "what a supervisor left has no time to end by itself"
                    del self.orphans[pid]
        return SimpleNamespace(stderr=b"", returncode=0)

    def adopted(self, known: set[int]) -> list[int]:
        assert known >= {each.pid for each in self.living()}
        return [*self.orphans]

    @contextmanager
    def around(self) -> Iterator[None]:
        """What a launcher sees within is this world."""

        def no_handler(*_: object) -> None:
            """Handle a signal: the launcher hears of it by its descriptor."""

        names = {
            name: getattr(signal, name) for name in ("SIGCHLD", "SIGTERM", "SIGINT", "SIGHUP", "SIG_IGN")
        }
        signals = SimpleNamespace(
            **names, Signals=signal.Signals, signal=no_handler, getsignal=no_handler, set_wakeup_fd=self._ring
        )
        seen = SimpleNamespace(
            become_subreaper=lambda: None,
            adopted=self.adopted,
            marked=lambda _: [],
            is_stopped=lambda pid: any(each.pid == pid and each.is_stopped for each in self.processes),
        )
        commands = SimpleNamespace(
            run=self.run_command, Popen=self.popen, DEVNULL=-3, PIPE=-1, TimeoutExpired=TimeoutError
        )
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        faked: Mapping[Any, dict[str, Any]] = {
            launcher: {
                "time": clock,
                "select": SimpleNamespace(select=self.select),
                "signal": signals,
                "processes": seen,
                "accepts": lambda _: any(each.is_ready for each in self.living("broker")),
                "log_line": self._note,
            },
            cleanup: {"time": clock, "subprocess": commands, "processes": seen, "log_line": self._note},
            child: {"subprocess": commands},
            http_refusal: {"subprocess": commands},
        }
        with ExitStack() as stack:
            for module, values in faked.items():
                for name, value in values.items():
                    stack.enter_context(mock.patch.object(module, name, value))
            yield

    def _ring(self, fd: int, **_: object) -> None:
        self._bell = fd

    def _note(self, text: str, _level: str = "info") -> None:
        self.log.append(f"{self.now!r} {text}")
        if text.startswith("ready in "):
            several = [role for role in self._last if role.startswith("sup")]
            for role in ["broker", *(several if len(several) > 1 else [])]:
                assert any(each.is_ready for each in self.living(role)), f"{role} is not ready"

    def run(self, handover: HttpHandover | None = None, **options: Any) -> tuple[int, HttpHandover]:
        """Run one launcher to its end. Returns its exit code and what it has left for the next one."""
        state = {paths.STATE_VARIABLE: str(self.directory / "state"), "HOME": str(self.directory)}
        outcome, tells = os.pipe()
        with self.around():
            one = Launcher(
                str(self.directory), str(self.config), state, ready_fd=tells, handover=handover, **options
            )
            try:
                code = one.run()
            finally:
                one._wake.close()
                one._bell.close()
        with open(outcome, "rb") as told:
            self.outcomes.append(told.read().decode())
        assert not self.living(), f"still running: {[each.role for each in self.living()]}"
        assert not self.orphans, "what supervisors left still runs"
        return code, one.handover
