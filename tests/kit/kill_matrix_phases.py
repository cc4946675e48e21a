"""What a call, its agent and its server's instance are doing when somebody is killed: eight phases.

Owns how each phase is set up and reached (by what can be seen from outside: the ledger of the `tally` server,
`status`, what an agent was asked), and how it goes on afterwards. The same agents, one through each way
in, are in the same phase at once. Knows nothing of who is killed.
"""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Final

from msgspec import Struct

from carpool.control.control_client import ControlClientError
from tests.kit.line_agent import WAIT_S, Json, settled
from tests.kit.live import Daemon, kit
from tests.kit.mixed_agents import SOCKET, ExecutionLedger, MixedAgent, door_of, ignoring_loss, mixed_agent
from tests.kit.waits import until

SOON: Final[Json] = {"first_delay_s": 0.05, "max_delay_s": 0.05, "give_up_after": 100}
"""The pool is to be full again after this back-off."""


class Open(Struct):
    """A request that is open at the kill."""

    who: MixedAgent
    id: bytes
    mark: str
    whole: bool = True
    """Of a half one the rest is sent afterwards."""


class MatrixCell:
    """One cell of the matrix on its stage: one server, some agents, their requests."""

    def __init__(self, daemon: Daemon, name: str, phase: str) -> None:
        self.daemon = daemon
        self.server = name
        self.others = {name: value for name, value in daemon.configured().items() if name != "mcpServers"}
        self.phase = PHASES[phase]
        self.ledger = ExecutionLedger(daemon.base / f"{name}.ledger")
        self.gate = daemon.base / f"{name}.gate"
        self.door = daemon.base / f"{name}.door"
        self.players: list[MixedAgent] = []
        self.opened: list[Open] = []
        self.blocker: Open | None = None
        """The call that the others wait for; of nobody's way in that is killed."""
        self.greeters: list[Open] = []
        """Agents that have said half of their greeting."""
        self.stack = AsyncExitStack()

    # --- the stage -------------------------------------------------------------------------------------

    async def set(self, *more: str) -> None:
        """Configure the daemon for this scene. `more`: arguments that make its server another one."""
        server = kit("tally", str(self.ledger.path), *more, **{"restart": SOON, **self.phase.settings})
        if self.phase.greets_late:
            server["args"] += ["--greet-when", str(self.door)]
        self.daemon.configure({self.server: server}, **self.others)
        assert (await self.daemon.reload())["ok"]

    async def enter(self, names: list[str]) -> None:
        """The agents come in."""
        for name in names:
            self.players.append(await self.stack.enter_async_context(mixed_agent(self.daemon, name)))

    async def __aenter__(self) -> "MatrixCell":
        return self

    async def __aexit__(self, *_: object) -> None:
        """However it ended, it holds nobody up, and its server is no longer wanted."""
        self.gate.touch()
        self.door.touch()
        self.daemon.configure({}, **self.others)
        with suppress(ControlClientError, OSError):  # no broker: nothing to tell
            await self.daemon.reload()

    async def reach(self) -> None:
        """Bring all of them into the phase."""
        if not self.phase.greets_late:
            for each in self.players:
                await each.greet()
        await self.phase.reach(self)

    async def go_on(self) -> None:
        """Nothing is held any longer, and who is asked answers."""
        self.gate.touch()
        self.door.touch()
        for each in [*self.players, *(one.who for one in self.greeters)]:
            await ignoring_loss(each.said())
            await ignoring_loss(each.finish())

    # --- for phases ------------------------------------------------------------------------------------

    async def open(self, how: str) -> None:
        """One call of each."""
        for each in self.players:
            mark = f"{each.name}-{how}"
            self.opened.append(Open(each, await each.run(self.server, mark, how, self.gate), mark))

    async def inside(self) -> None:
        await self.ledger.until(*[each.mark for each in self.opened])

    def own(self, facts: Json) -> Json:
        """Of a status, what concerns the server of this scene."""
        found: Json = facts["servers"][self.server]
        return found

    async def missed(self, pids: list[int]) -> None:
        """Wait until carpool has noticed that these are dead, and has replaced those that it needs."""

        def named(value: object) -> bool:
            if isinstance(value, dict):
                return value.get("pid") in pids or any(map(named, value.values()))
            return isinstance(value, list) and any(map(named, value))

        def noticed(facts: Json) -> bool:
            # Sessions of a dead door linger under its name until another one asks for them.
            sessions = [each for each in facts.get("sessions", []) if each["carrier"] != "http"]
            return bool(facts["supervisors"]) and not named({**facts, "sessions": sessions})

        await settled(self.look, noticed, f"the death of {pids} is noticed")
        await until(lambda: door_of(self.daemon)[1] not in {0, *pids}, "another door listens", WAIT_S)

    async def look(self) -> Json:
        """The status; without a broker, one that knows of nothing."""
        try:
            return await self.daemon.status()
        except (ControlClientError, OSError):
            return {"servers": {}, "supervisors": []}

    async def until(self, condition: Callable[[Json], object], what: str) -> Json:
        """Wait until `condition(the server in the status)`; that. A broker that is away is waited for."""

        def holds(facts: Json) -> object:
            return self.server in facts["servers"] and condition(self.own(facts))

        return self.own(await settled(self.look, holds, what))

    async def full(self) -> None:
        """Wait until its pool is what it was."""
        if self.phase.settings["sharing"] != "session":  # there each agent has its own when it calls
            await self.until(lambda server: server["state"] == "serving", "the pool is full again")


def states(server: Json) -> list[str]:
    """Of its instances, in order of the alphabet."""
    return sorted(each["state"] for each in server["instances"])


async def _idle(scene: MatrixCell) -> None:
    for each in scene.players:
        mark = f"{each.name}-before"
        await each.fares(await each.run(scene.server, mark), mark, "answered", scene.ledger)


async def _greeting(scene: MatrixCell) -> None:
    for each in scene.players:
        mark = f"{each.name}-early"
        scene.opened.append(Open(each, await each.greet_and_run(scene.server, mark), mark))
    await scene.until(lambda server: set(states(server)) == {"greeting"}, "it greets")
    count = len(scene.players)
    await scene.daemon.until(lambda facts: facts["totals"]["in_flight"] == count, "calls wait")
    for each in scene.players:
        other = await scene.stack.enter_async_context(mixed_agent(scene.daemon, each.name))
        scene.greeters.append(Open(other, await other.half_greet(), "", whole=False))
    lines = 2 * sum(each.http is None for each in scene.players)
    await until(lambda: scene.daemon.open_connections() == lines, "all have come", WAIT_S)


async def _waiting(scene: MatrixCell) -> None:
    blocker = await scene.stack.enter_async_context(mixed_agent(scene.daemon, SOCKET))
    await blocker.greet()
    scene.blocker = Open(blocker, await blocker.run(scene.server, "blocker", "hold", scene.gate), "blocker")
    await scene.ledger.until("blocker")
    await scene.open("at once")
    await scene.until(lambda server: server["waiting"] == len(scene.players), "the others wait")


async def _in_flight(scene: MatrixCell) -> None:
    await scene.open("hold")
    await scene.inside()


async def _mid_line(scene: MatrixCell) -> None:
    """Of the server: half an answer to the last, and the others' behind it. Of each agent: half a call."""
    await scene.open("hold")
    await scene.inside()
    last = scene.players[-1]
    mark = f"{last.name}-half"
    scene.opened.append(Open(last, await last.run(scene.server, mark, "half", scene.gate), mark))
    await scene.ledger.until(f"{mark} half")
    for each in scene.players:
        mark = f"{each.name}-rest"
        scene.opened.append(Open(each, await each.half(scene.server, mark), mark, whole=False))


async def _asking_back(scene: MatrixCell) -> None:
    await scene.open("ask")
    for each in scene.players:
        await each.agent.until(lambda each=each: each.agent.asks, "it is asked")


async def _leased(scene: MatrixCell) -> None:
    await _idle(scene)


async def _draining(scene: MatrixCell) -> None:
    await _in_flight(scene)
    await scene.set("--another")
    await scene.until(lambda server: states(server) == ["draining", "serving"], "it drains beside another")


class Phase(Struct, frozen=True):
    """One row of the matrix."""

    reach: Callable[[MatrixCell], Awaitable[None]]
    settings: Json = {}
    greets_late: bool = False
    """Its server greets only once the scene's door is there."""


PHASES: Final = {
    "idle": Phase(_idle, {"sharing": "concurrent", "pool": {"min": 1}}),
    "greeting": Phase(_greeting, {"sharing": "concurrent", "pool": {"min": 1}}, greets_late=True),
    "waiting": Phase(_waiting, {"sharing": "concurrent", "pool": {"min": 1}, "max_in_flight": 1}),
    "in flight": Phase(_in_flight, {"sharing": "concurrent", "pool": {"min": 1}}),
    "mid-line": Phase(_mid_line, {"sharing": "concurrent", "pool": {"min": 1}}),
    "asking back": Phase(_asking_back, {"sharing": "serial", "pool": {"min": 1, "max": 3}}),
    "leased": Phase(_leased, {"sharing": "session", "pool": {"spares": 0, "max": 8}}),
    "draining": Phase(_draining, {"sharing": "concurrent", "pool": {"min": 1}}),
}
