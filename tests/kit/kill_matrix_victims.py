"""Who is killed, and what then is owed to whom: the expectations of the matrix of kill -9, as data.

Owns the finding of each victim's pids and the table of outcomes. An outcome is a word of
`tests.kit.mixed_agents` or codes of errors (docs/errors.md); which errors say that nothing was executed is
the error's own claim, which the ledger proves. Knows nothing of how a phase is reached.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from msgspec import Struct

from tests.kit.kill_matrix_phases import MatrixCell
from tests.kit.live import Daemon
from tests.kit.mixed_agents import AGENT, ANSWERED, ENDED, HTTP, SHIM, SOCKET, door_of

Outcomes = str | Mapping[str, str]
"""For all agents, or by their way in."""


_ENDING: Final = {"spawning", "stopping", "terminating", "killed", "gone"}


async def _instances(scene: MatrixCell) -> list[int]:
    found = scene.own(await scene.daemon.status())["instances"]
    draining = [each["pid"] for each in found if each["state"] == "draining"]
    return draining or [each["pid"] for each in found if each["state"] not in _ENDING]


async def _supervisor(scene: MatrixCell) -> list[int]:
    return [each["pid"] for each in (await scene.daemon.status())["supervisors"]]


async def _broker(scene: MatrixCell) -> list[int]:
    return [(await scene.daemon.status())["broker"]["pid"]]


async def _launcher(scene: MatrixCell) -> list[int]:
    return [pid_of(scene.daemon, "carpool.launcher")]


async def _door(scene: MatrixCell) -> list[int]:
    return [door_of(scene.daemon)[1]]


async def _players(scene: MatrixCell) -> list[int]:
    return [each.pid for each in [*scene.players, *(one.who for one in scene.greeters)] if each.pid]


def pid_of(daemon: Daemon, word: str) -> int:
    """The one process of this carpool that has `word` in its command line."""
    [pid] = [pid for pid, line in daemon.running().items() if word in line]
    return pid


STOPPED: Final = "closing|cut_off|link_broken"


class Victim(Struct, frozen=True):
    """One column of the matrix."""

    pids: Callable[[MatrixCell], Awaitable[list[int]]]
    outcomes: Mapping[str, Outcomes]
    """Of the requests that are open, by phase; `*` for phases that are not named."""
    afterwards: Outcomes = ANSWERED
    """Of the next call of each agent."""
    greeters: Outcomes = ANSWERED
    """Of half a greeting, of which the rest is said afterwards."""
    held: Outcomes = ANSWERED
    """Of the next call of each agent that held a lease."""
    cast: tuple[str, ...] = (SOCKET, SHIM, HTTP)
    shares: bool = False
    """The daemon outlives it as it is, so that one daemon does for all phases."""
    ends_all: bool = False
    """No process of this carpool is left."""


VICTIMS: Final = {
    "instance": Victim(
        _instances,
        {"*": "instance_died", "greeting": "backing_off", "waiting": ANSWERED},
        held="state_lost",
        shares=True,
    ),
    "supervisor": Victim(_supervisor, {"*": "link_broken", "greeting": ANSWERED}, held="state_lost"),
    # Who brings its own connection has nobody to come back for it; all others notice a pause.
    "broker": Victim(
        _broker,
        {"*": {SOCKET: ENDED}},
        afterwards={SOCKET: ENDED},
        held={SOCKET: ENDED},
        greeters={SOCKET: ENDED},
    ),
    # A shim that finds nobody starts carpool again. All others end each by itself: the last word of one may
    # still arrive, or not.
    "launcher": Victim(
        _launcher,
        {"*": {SOCKET: ENDED, HTTP: f"{STOPPED}|{ENDED}", SHIM: STOPPED}},
        afterwards={SOCKET: ENDED, HTTP: ENDED},
        held={SOCKET: ENDED, HTTP: ENDED, SHIM: "state_lost"},
        greeters={SOCKET: ENDED, HTTP: ENDED},
        ends_all=True,
    ),
    "agent": Victim(
        _players,
        {"*": {AGENT: ENDED}},
        afterwards={AGENT: ENDED},
        greeters={AGENT: ENDED},
        held={AGENT: ENDED},
        cast=(SOCKET, AGENT, HTTP),
        shares=True,
    ),
    "shim": Victim(
        _players,
        {"*": {SHIM: ENDED}},
        afterwards={SHIM: ENDED},
        held={SHIM: ENDED},
        greeters={SHIM: ENDED},
        shares=True,
    ),
    # The connections are lost and what was to be said on them; the next door goes on with the sessions.
    "door": Victim(_door, {"*": {HTTP: ENDED}}, greeters={HTTP: ENDED}),
}

IMPOSSIBLE: Final[Mapping[tuple[str, str], str]] = {}
"""`(victim, phase)`: why there is no such moment. None so far: a phase is a state of a call, and every victim
has a part in every call, or stands beside it."""


def outcome(of: Outcomes, name: str) -> str:
    """For the agent that came in this way."""
    return of if isinstance(of, str) else of.get(name, ANSWERED)


def expected(victim: Victim, phase: str, name: str, *, whole: bool = True) -> str:
    """What becomes of a request that is open at the kill. Half a request no server has seen: it is lost with
    its way in only."""
    found = outcome(victim.outcomes.get(phase, victim.outcomes["*"]), name)
    return found if whole or ENDED in found else ANSWERED
