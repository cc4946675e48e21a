"""The spawner's real process under random events, with real children that escape, fork on, are deaf or die.

Drawn from a seed are what each child does and what happens to it; several end at once. Whatever the order:
each instance is reported as started and ended once, or as failed once; nothing of one that has ended runs on;
no descriptor and no zombie is left in the spawner.

`CARPOOL_SPAWNER_SEEDS=50 pytest tests/supervisor/spawn/test_spawner_machine.py` tries more seeds.
"""

import os
import random
import sys

import pytest
import trio

from carpool_protocol.ids import InstanceId
from carpool_supervisor import marks
from carpool_supervisor.spawn import orphans
from tests.behaviours import behaviour
from tests.kit.leaks import zombies_of
from tests.kit.spawner_rig import SpawnerRig, garage
from tests.kit.waits import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="descendants are adopted on Linux only")

SEEDS = int(os.environ.get("CARPOOL_SPAWNER_SEEDS", "4"))
EVENTS = 60
MOST_RUNNING = 20

_SLEEPS = "exec sleep 1000"
_HELPER = f"{{env}} setsid sh -c '{{env}} setsid {_SLEEPS[5:]} & sleep 1000' &"
CHILDREN = {
    "plain": "exec cat >/dev/null",
    "answers at once": "exit 3",
    "dies soon": "sleep 0.0{digit}; exit 4",
    "kills itself": "sleep 0.0{digit}; kill -9 $$",
    "deaf": f"trap '' TERM; {_SLEEPS}",
    "with a child": f"sleep 1000 & {_SLEEPS}",
    "with a deaf child": f"(trap '' TERM; {_SLEEPS}) & {_SLEEPS}",
    "with an escaped helper": f"{_HELPER} {_SLEEPS}",
    "leaves an escaped helper": f"{_HELPER} sleep 0.0{{digit}}",
    "forks twice and ends": f"(setsid sh -c '({{env}} setsid {_SLEEPS[5:]} &)' &)",
    "with a helper that starts others": (
        f"{{env}} setsid sh -c 'while :; do setsid sleep 0.0{{digit}} & sleep 0.01; done' & {_SLEEPS}"
    ),
    "with a helper of many programs": (
        f"{{env}} setsid sh -c 'exec env A=1 sh -c \"exec env B=1 {_SLEEPS[5:]}\"' & {_SLEEPS}"
    ),
}


class SpawnerStorm:
    """One seed."""

    def __init__(self, one: SpawnerRig, seed: int) -> None:
        self._one = one
        self._random = random.Random(seed)
        self._asked: list[InstanceId] = []

    async def run(self) -> None:
        for _ in range(EVENTS):
            self._random.choice([self._start, self._start, self._end, self._end_many, self._close_stdin])()
            if self._random.random() < 0.5:
                await trio.sleep(self._random.random() * 0.05)  # not a wait: the moments differ
        await self._check()
        for instance in self._running():
            self._one.spawner.signal(instance, "TERM")
        await until(lambda: self._one.heard and not self._unreported(), "each is reported")
        for instance in self._running():
            self._one.spawner.signal(instance, "KILL")
        await until(lambda: not self._running(), "all have ended")
        await self._check()

    def _start(self) -> None:
        if len(self._running()) < MOST_RUNNING:
            names = [*sorted(CHILDREN), *["with an escaped helper"] * len(CHILDREN)]
            code = CHILDREN[self._random.choice(names)]
            env = self._random.choice(["env", "env -i"])
            line = code.format(env=env, digit=self._random.randrange(10))
            words = ("no-such-command",) if self._random.random() < 0.1 else ("sh", "-c", line)
            self._asked.append(self._one.spawn(*words))

    def _end(self) -> None:
        if running := self._running():
            name = "TERM" if self._random.random() < 0.6 else "KILL"
            self._one.spawner.signal(self._random.choice(running), name)  # type: ignore[arg-type]

    def _end_many(self) -> None:
        for instance in self._running():
            if self._random.random() < 0.7:
                self._one.spawner.signal(instance, "TERM")

    def _close_stdin(self) -> None:
        """As the supervisor does first: what reads it ends."""
        if running := self._running():
            pipes = self._one.pipes[self._random.choice(running)]
            with open(os.devnull) as nothing:
                os.dup2(nothing.fileno(), pipes.stdin_fd, inheritable=False)

    def _running(self) -> list[InstanceId]:
        """Those of which no end has been reported."""
        return [
            each for each in self._asked if each not in self._one.exits and each not in self._one.failures
        ]

    def _unreported(self) -> list[InstanceId]:
        one = self._one
        return [each for each in self._asked if each not in one.pids and each not in one.failures]

    async def _check(self) -> None:
        one = self._one
        await until(lambda: not self._unreported(), "each is started or has failed")
        for instance in self._asked:
            told = [what for what, which in one.heard if which == instance]
            assert told in (["spawned"], ["spawned", "exited"], ["failed"]), (instance, told)
        ended = {each for each in self._asked if each in one.exits}
        await until(lambda: not (ended & self._with_processes()), "nothing of those that have ended runs")
        await until(lambda: not zombies_of(one.spawner.pid) or self._running(), "no zombie is left")

    def _with_processes(self) -> set[InstanceId]:
        """Instances of which something runs, by either mark."""
        found = set()
        for instance in self._asked:
            mark = marks.instance_mark(self._one.runtime_id, "e1", instance)
            limit = marks.limit_of(mark)
            if orphans.find(marks.INSTANCE, mark.__eq__, range(limit, limit + 1)):
                found.add(instance)
        return found


@behaviour("children:escaped")
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_each_instance_is_reported_once_and_leaves_nothing_whatever_its_children_do(seed: int) -> None:
    async with garage() as one:
        await one.exited(await one.started("true"))
        before = len(os.listdir(f"/proc/{one.spawner.pid}/fd"))
        await SpawnerStorm(one, seed).run()
        await until(lambda: len(os.listdir(f"/proc/{one.spawner.pid}/fd")) == before, "no descriptor is left")
        await until(lambda: not zombies_of(one.spawner.pid), "no zombie is left")
