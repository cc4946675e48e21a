"""The story of `carpool demo`: private copies first, then the same work through carpool, with a kill.

Owns the order of events and what is measured when. Two acts, each with real agent processes; each
act ends its agents itself. All waits are bounded by one deadline for the whole demo (`DemoError`).
Knows nothing of: layout, exit codes, the end (`sandbox`).
"""

import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Any

from carpool.demo import figures
from carpool.demo.crowd import DemoAgents, Report
from carpool.demo.figures import VICTIM, DemoCall, PrivateFigures, SharedFigures
from carpool.demo.questions import MODULES
from carpool.demo.repository import QUIET
from carpool.demo.sandbox import DemoCarpool, DemoError
from carpool.demo.show import ProgressDisplay
from carpool.launcher import sandbox_processes as processes
from carpool.launcher.own_command import carpool_argv
from carpool.terminal import display

MEASURED_AGENTS = 5
"""The number of agents that private copies are started for; the figures of the others are scaled."""
LAP_S = 1.0
WORK_S = 5.0
BEFORE_S, AFTER_S = 1.0, 1.5
"""The seconds that agents work before the kill, and after each has had an answer of the new process."""
_LOOKS = 10
"""The most looks for a call that waits at the process that is to be killed."""
ATTACH_S = 45.0
BACK_S = 30.0


class DemoRun:
    """One demo, in its private carpool."""

    def __init__(self, private: DemoCarpool, show: ProgressDisplay, agents: int, deadline_s: float) -> None:
        self._carpool, self._show, self._agents, self._deadline_s = private, show, agents, deadline_s
        self.memory_kind = processes.memory_kind()
        self.repo = str(private.base / "repo")
        self.commits: list[str] = []

    def run_private(self) -> PrivateFigures:
        """Act one: up to five agents, each with its own copy of both servers."""
        measured: list[int] = []
        said: list[Report] = []
        lap: list[DemoCall] = []
        count = min(MEASURED_AGENTS, self._agents)
        wires = [
            {"argv": self._carpool.server_argv(name), "env": QUIET, "prefixes": {name: ""}, "hurry": True}
            for name in MODULES
        ]
        with self._crowd() as crowd:
            for number in range(count):
                crowd.start(self._plan(number, wires))
                said = crowd.attached(ATTACH_S, lambda: self._show.show_live("   its servers start ..."))
                if number == 0:
                    lap = self._measure_one(crowd)
                pids = [pid for each in said for pid in each["pids"]]
                measured.append(processes.memory_bytes(pids, self.memory_kind))
                size = display.size(measured[-1])
                self._show.print_step(
                    f"   {_count(number + 1, 'agent')}: {len(pids)} server processes, {size}"
                )
            firsts_s = [max(each["first_s"].values()) for each in said]
        return PrivateFigures(figures.private(measured, self._agents), firsts_s, lap)

    def run_shared(self) -> SharedFigures:
        """Act two: carpool, all agents, and the kill in the middle of their work."""
        self._carpool.up()
        self._show.print_step("   carpool is up; no server runs before an agent needs it")
        shim = {
            "argv": [*carpool_argv(), "connect"],
            "env": {},
            "prefixes": {name: f"{name}__" for name in MODULES},
            "hurry": False,
        }
        with self._crowd() as crowd:
            crowd.start(self._plan(0, [shim]))
            first = crowd.attached(ATTACH_S, lambda: self._show.show_live("   the first agent attaches ..."))[
                0
            ]
            first_s = max(first["first_s"].values())
            self._show.print_step("   1 agent is attached; carpool started the servers for it")
            lap = self._measure_one(crowd)
            for number in range(1, self._agents):
                crowd.start(self._plan(number, [shim]))
            said = crowd.attached(ATTACH_S, lambda: self._show.show_live("   the other agents attach ..."))
            if self._agents > 1:
                self._show.print_step(
                    f"   {self._agents} agents are attached, each through its own `carpool connect`"
                )
            from_s = time.monotonic()
            crowd.order(do="work")
            self._work(crowd, WORK_S)
            to_s = time.monotonic()
            steady = self._stop(crowd)
            self._show.print_step(
                f"   {len(steady):,} calls are answered, in {WORK_S:g} s of work without a pause"
            )
            seen = self._memory(said)
            crowd.order(do="work")
            self._work(crowd, BEFORE_S)
            pid, killed_s = self._kill()
            crowd.wait_for_answers(VICTIM, killed_s, BACK_S, lambda: self._order_work(crowd))
            new_pid, sessions = self._replacement(pid)
            self._work(crowd, AFTER_S)
            struck = self._stop(crowd)
            self._show.print_step(f"   {len(struck):,} more calls are answered")
        return SharedFigures(
            **seen,
            first_s=first_s,
            later_s=[max(each["first_s"].values()) for each in said[1:]],
            lap=lap,
            steady=steady,
            from_s=from_s,
            to_s=to_s,
            struck=struck,
            killed_s=killed_s,
            pid=pid,
            new_pid=new_pid,
            sessions=sessions,
        )

    # --- parts ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _crowd(self) -> Iterator[DemoAgents]:
        crowd = DemoAgents(self._carpool.environ, self._carpool.base, self._deadline_s)
        try:
            yield crowd
        finally:
            crowd.close()

    def _plan(self, number: int, wires: list[dict[str, Any]]) -> Report:
        return {"number": number, "repo": self.repo, "commits": self.commits, "wires": wires}

    def _measure_one(self, agents: DemoAgents) -> list[DemoCall]:
        """One agent alone, one call at a time."""
        agents.order(do="lap", seconds=LAP_S)
        return figures.calls_of(agents.results("lap", LAP_S + ATTACH_S)[0])

    def _work(self, agents: DemoAgents, seconds: float) -> None:
        agents.listen_for(seconds, lambda: self._order_work(agents))

    def _stop(self, agents: DemoAgents) -> list[DemoCall]:
        """Let the agents finish what is open; all they did since they were told to work."""
        agents.order(do="stop")
        return [call for said in agents.results("work", BACK_S) for call in figures.calls_of(said)]

    def _order_work(self, agents: DemoAgents) -> None:
        good = agents.good()
        counts = ", ".join(f"{name} {sum(each.get(name, 0) for each in good):,}" for name in MODULES)
        self._show.show_live(f"   {_count(self._agents, 'agent')} at work; right answers so far: {counts}")

    def _memory(self, said: list[Report]) -> dict[str, Any]:
        """Every process of carpool. While the agents rest: a `git` that the git server is just starting
        would be counted as a second copy of it.
        """
        status = self._carpool.status()
        instances = {name: [each["pid"] for each in status["servers"][name]["instances"]] for name in MODULES}

        def weigh(pid: int) -> int:
            return processes.memory_bytes([pid], self.memory_kind)

        shims = [pid for each in said for pid in each["pids"]]
        own: dict[str, int] = {}
        for each in status["processes"]:
            if each["pid"] not in shims:
                # Without families: carpool's own processes are each other's parents, and the servers' too.
                size_bytes = processes.memory_bytes([each["pid"]], self.memory_kind, families=False)
                own[f"{each['role']} {each['pid']}"] = size_bytes
        return {
            "shim_bytes": sum(weigh(pid) for pid in shims),
            "own": own,
            "instances": {name: sum(weigh(pid) for pid in pids) for name, pids in instances.items()},
            "instance_count": sum(len(pids) for pids in instances.values()),
        }

    def _kill(self) -> tuple[int, float]:
        """kill -9 of the one instance of the victim: its pid, and when it was dead.

        It is frozen first, until a call waits at it: else, with few agents, the kill may meet none.
        """
        instances = self._carpool.status()["servers"][VICTIM]["instances"]
        serving = [each for each in instances if each["state"] == "serving"]
        if not serving:
            raise DemoError(f"the server {VICTIM} does not serve; there is nothing to kill")
        pid = int(serving[0]["pid"])
        if processes.kill_marked(pid, self._carpool.directory, signal.SIGSTOP) is not None:
            for _ in range(_LOOKS):
                if any(each["in_flight"] for each in self._carpool.status()["servers"][VICTIM]["instances"]):
                    break
        killed_s = processes.kill_marked(pid, self._carpool.directory)
        if killed_s is None:
            raise DemoError(f"process {pid} of the server {VICTIM} could not be killed")
        self._show.print_step(f"   kill -9 of process {pid}, the {VICTIM} server, while the agents call it")
        return pid, killed_s

    def _replacement(self, old_pid: int) -> tuple[int, int]:
        """The process that took over, and how many agents are attached."""
        status = self._carpool.status()
        pids = [int(each["pid"]) for each in status["servers"][VICTIM]["instances"]]
        if len(pids) != 1 or old_pid in pids:
            raise DemoError(f"the server {VICTIM} has processes {pids} after the kill of {old_pid}")
        self._show.print_step(
            f"   carpool has started the {VICTIM} server again (process {pids[0]}); every agent uses it"
        )
        return pids[0], len(status["sessions"])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
