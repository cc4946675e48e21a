"""The launcher under storms: deaths, silences and ends of its processes in every order, on virtual time.

Each storm is a seed. `launcher_rig` holds the rules of every moment; here are the scripts, and what must be
so when the launcher has ended.
"""

import os
import signal
import socket
from pathlib import Path
from random import Random

import pytest

from carpool.launcher.http_door import EXIT_CONFIG, EXIT_TAKEN, EXIT_UNWANTED
from carpool.launcher.http_handover import HELD, HOLD, LEFT, LISTENS, LISTENS_NOT, HttpHandover
from carpool.launcher.http_refusal import refuse_handover
from carpool.launcher.launcher import EXIT_OK, EXIT_USAGE, RESTART
from carpool.launcher.node_process import EXIT_LEFT
from carpool_protocol.bootstrap import paths
from carpool_protocol.machine.stop_commands import STOP, STOP_FOR_RESTART
from tests.behaviours import behaviour
from tests.client.launcher.launcher_rig import LauncherWorld, ScriptedProcess
from tests.kit.leaks import open_fds, opened_since

SEEDS = 300
FAULTS = ("dies", "is mute", "dies late", "falls silent", "refuses", "dies when ready")
WANTS = ("{}", '{"http": {}}', '{"cluster": {}}', '{"http": {}, "cluster": {}}')


class LauncherStorm:
    """What the processes of one launcher do, from a seed."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.random = Random(seed)
        self.supervisors = self.random.choice([1, 1, 2, 3])
        self.rate = self.random.choice([0.0, 0.02, 0.1, 0.4])
        """How likely it is that a process does something wrong, at each of its steps."""
        self.world = LauncherWorld(directory, self.begin)
        self.world.config.write_text(self.random.choice(WANTS))

    def bad(self) -> bool:
        return self.random.random() < self.rate

    def begin(self, process: ScriptedProcess) -> None:
        """Script a process that has just started."""
        process.obeys = lambda line: self.obey(process, line)
        fault = self.random.choice(FAULTS) if self.bad() else ""
        start_s = self.random.uniform(0.001, 1.5)
        if fault == "is mute":
            return
        if fault == "dies":
            process.later(start_s, lambda: process.exit(self.random.choice([1, -9])))
            return
        if fault == "refuses":
            process.later(start_s, lambda: process.exit(EXIT_USAGE))
            return
        process.later(start_s, lambda: self.serve(process))
        if fault == "dies when ready":
            process.later(start_s, lambda: process.exit(1))
        process.later(0.5, process.live if fault != "falls silent" else lambda: None)
        if fault == "dies late":
            process.later(self.random.uniform(1.5, 12.0), lambda: process.exit(-11))

    def serve(self, process: ScriptedProcess) -> None:
        if process.role == "broker":
            process.say(f"supervisors {self.supervisors}")
        elif process.role == "door":
            self.open_door(process)
        elif process.role == "node" and '"cluster"' not in self.world.config.read_text():
            process.exit(3)
        elif process.role == "node" and self.bad():
            process.exit(self.random.choice([2, EXIT_LEFT]))
        elif process.role.startswith("sup"):
            process.say(f"epoch e{process.pid}")
            process.orphan_s = self.random.choice([-1.0, 0.5, 4.0, 60.0]) if self.rate else -1.0
        process.say("ready")

    def open_door(self, process: ScriptedProcess) -> None:
        if '"http"' not in self.world.config.read_text():
            process.exit(EXIT_UNWANTED)
        elif self.bad():
            process.exit(self.random.choice([EXIT_CONFIG, EXIT_TAKEN, 1]))
        elif "--listener" in process.given and not self.bad():
            pass  # it goes on with that
        else:
            if "--listener" in process.given:
                process.say(LISTENS_NOT)
                os.close(process.given.pop("--listener"))
            with self.world.open_listener() as sock:
                process.given["--listener"] = sock.detach()
            process.say(LISTENS, process.given["--listener"])

    def obey(self, process: ScriptedProcess, line: str) -> None:
        """Do what the launcher says, in time or not."""
        late_s = self.random.choice([0.0, 0.1, 2.0])
        if self.bad():
            return
        if line == HOLD:
            process.later(late_s, lambda: process.say(HELD))
        elif line == STOP_FOR_RESTART and process.role == "broker":
            process.later(self.random.choice([0.0, 1.0, 29.0]), lambda: process.exit(EXIT_OK))
        elif line == STOP_FOR_RESTART and process.role == "door":
            process.later(late_s, lambda: self.leave(process))
        elif line == STOP:
            process.later(late_s, lambda: process.exit(1 if self.bad() else EXIT_OK))

    def leave(self, process: ScriptedProcess) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process.say(LEFT, ours.fileno())
        process.exit(EXIT_OK)

    # --- what happens from outside ---

    def disturb(self) -> None:
        """From time to time a process is killed or stopped, or the configuration changes."""
        if living := self.world.living():
            victim = self.random.choice(living)
            match self.random.choice(["kill", "stop", "configure", ""]):
                case "kill":
                    victim.exit(-9)
                case "stop":
                    victim.is_stopped = True
                    self.world.at(self.world.now + self.random.uniform(1.0, 30.0), lambda: self.go_on(victim))
                case "configure":
                    self.world.write_config(self.random.choice(WANTS))
                case _:
                    pass
        self.world.at(self.world.now + self.random.expovariate(0.2), self.disturb)

    def go_on(self, victim: ScriptedProcess) -> None:
        if victim.is_stopped:
            victim.is_stopped = False
            victim.resumed_at = self.world.now

    def end(self) -> None:
        """Let everything end, some time from now: by signals one after the other, or because it is idle."""
        when = self.world.now + self.random.choice([0.0, 0.5, 3.0, self.random.uniform(5.0, 60.0)])
        for number in self.random.choice(ENDS):
            self.world.at(when, lambda number=number: self.world.signal(number))  # type: ignore[misc]  # bound
            when += self.random.choice([0.0, 0.3, 5.0, 20.0])
        self.world.at(when + 60.0, self.say_idle)

    def say_idle(self) -> None:
        """The broker says that nobody has used carpool, until it is stopped for that."""
        for broker in self.world.living("broker"):
            broker.say("idle")
        self.world.at(self.world.now + 5.0, self.say_idle)


ENDS = (
    (),
    (signal.SIGTERM,),
    (signal.SIGINT, signal.SIGTERM),
    (RESTART,),
    (RESTART, RESTART),
    (RESTART, signal.SIGTERM),
    (RESTART, signal.SIGTERM, signal.SIGHUP),
    (signal.SIGTERM, RESTART),
)
"""The signals of an end. Without one, it ends idle."""


@behaviour("handover:ends")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_its_processes_do_the_launcher_keeps_its_rules(seed: int, tmp_path: Path) -> None:
    before = open_fds(with_garbage=True)
    storm = LauncherStorm(seed, tmp_path)
    world = storm.world
    node = paths.node_file(str(tmp_path))  # it goes also where no node is wanted
    held = [Path(path) for path in paths.held_until_down(str(tmp_path)) if path != node]
    for path in held:
        path.touch()
    if storm.rate:
        world.at(world.now + 2.0, storm.disturb)
    storm.end()
    code, left = world.run(ends_idle=True)
    plain = [at for at, number in world.signals if number != RESTART]
    has_given_up = world.has_given_up
    is_restart = bool(world.signals) and not plain and not has_given_up
    if not is_restart:
        assert not left.descriptors, "no other launcher follows"
        assert not world.listens()
    (outcome,) = world.outcomes
    assert outcome.startswith(("ready", "failed "))
    assert code == (EXIT_OK if not has_given_up else int(outcome[7]))
    is_down = Path(paths.down_file(str(tmp_path))).exists()
    if plain and not has_given_up:
        assert is_down or world.lived("broker", plain[0]), "agents do not hear that it ended on purpose"
    assert not is_down or plain or has_given_up
    assert [path.exists() for path in held] == [not plain and not has_given_up] * len(held)
    if is_restart and storm.random.random() < 0.5:
        follow(storm, left)
    with world.around():
        refuse_handover(left, {})
    assert not world.listens()
    assert opened_since(before).keys() <= before.keys(), "descriptors are left open"


def follow(storm: LauncherStorm, left: HttpHandover) -> None:
    """Run the next launcher, which takes what the first one has left."""
    storm.world.next_launcher()
    storm.end()
    storm.world.run(left, ends_idle=True)


@behaviour("handover:ends")
def test_a_stop_that_comes_while_a_restart_waits_for_leftovers_ends_carpool(tmp_path: Path) -> None:
    """All processes of carpool have ended by then, and what a supervisor left has not."""
    storm = LauncherStorm(0, tmp_path)
    storm.rate, storm.supervisors, world = 0.0, 1, storm.world
    world.config.write_text(WANTS[1])

    def restart() -> None:
        (supervisor,) = world.living("sup1")
        supervisor.orphan_s = 8.0
        world.signal(RESTART)
        stop_when_alone()

    def stop_when_alone() -> None:
        if world.living():
            world.at(world.now + 0.05, stop_when_alone)
        else:
            world.signal(signal.SIGTERM)

    world.at(world.now + 5.0, restart)
    _, left = world.run()
    assert len(world.signals) == 2
    assert Path(paths.down_file(str(tmp_path))).exists()
    assert not left.descriptors
    assert not world.listens()


@behaviour("start:idle")
@pytest.mark.parametrize(("http", "ends_at"), [("", 1010.0), ("127.0.0.1:0", 1100.0)])
def test_a_carpool_with_a_door_of_the_command_line_does_not_end_idle(
    tmp_path: Path, http: str, ends_at: float
) -> None:
    """Its broker reads the configuration, which has no door. Agents over HTTP could not start it again."""
    storm = LauncherStorm(0, tmp_path)
    storm.rate, world = 0.0, storm.world
    world.config.write_text(WANTS[0])
    world.at(1010.0, storm.say_idle)
    world.at(1100.0, lambda: world.signal(signal.SIGTERM) if world.living() else None)
    world.run(ends_idle=True, http=http)
    assert world.stop_began_at == ends_at
