"""kill -9, of everybody, at every moment of a call: what each agent hears is true, and nothing is left.

The moments are `tests/kit/kill_matrix_phases.py`, the victims and what is owed then
`tests/kit/kill_matrix_victims.py`.
"""

import os
import signal
from collections.abc import Iterator

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.kill_matrix_leftovers import journals_replay, nothing_new, orphans, traces
from tests.kit.kill_matrix_phases import PHASES, MatrixCell
from tests.kit.kill_matrix_victims import IMPOSSIBLE, VICTIMS, expected, outcome
from tests.kit.line_agent import WAIT_S
from tests.kit.live import Daemon, gone
from tests.kit.mixed_agents import ANSWERED, ENDED, HTTP, SHIM, SOCKET, MixedAgent, mixed_agent
from tests.kit.open_door import open_door
from tests.kit.ports import free_port
from tests.kit.waits import until

LIMIT_S = 90.0
RETURN_S = 3.0
"""So long what died with its agents is kept for them."""
CELLS = [(victim, phase) for victim in VICTIMS for phase in PHASES if (victim, phase) not in IMPOSSIBLE]


def carpool() -> Iterator[Daemon]:
    """Without servers, with an HTTP door; its journals keep everything."""
    # The next door must be found where the one before was.
    one = Daemon({}, http=open_door(free_port()), session={"return_s": RETURN_S})
    one.environ["CARPOOL_JOURNAL"] = "1000000"
    try:
        one.up()
        yield one
    finally:
        one.close()


@pytest.fixture(scope="module")
def lasting() -> Iterator[Daemon]:
    yield from carpool()


@pytest.fixture
def passing() -> Iterator[Daemon]:
    yield from carpool()


@pytest.fixture
def stage(request: pytest.FixtureRequest, victim: str) -> Daemon:
    """A carpool that the victim may take with it, or the one that outlives it."""
    found: Daemon = request.getfixturevalue("lasting" if VICTIMS[victim].shares else "passing")
    return found


@behaviour("faults:matrix")
@pytest.mark.parametrize(("victim", "phase"), CELLS)
async def test_after_a_kill_every_request_has_one_true_end_and_nothing_is_left(
    stage: Daemon, victim: str, phase: str
) -> None:
    who = VICTIMS[victim]
    scene = MatrixCell(stage, f"{victim}-{phase}".replace(" ", "-"), phase)
    with trio.fail_after(LIMIT_S):
        before = await traces(stage)
        await scene.set()
        async with scene.stack, scene:
            await scene.enter([*who.cast])
            await scene.reach()
            pids = await who.pids(scene)
            everybody = [*stage.daemons(), *orphans(stage)]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            await until(lambda: gone(pids), "the victim is dead")
            if who.ends_all:
                await until(lambda: gone(everybody), "all of it ends", WAIT_S)
            else:
                await scene.missed(pids)
            await scene.go_on()
            await ends(scene, victim, phase)
            if who.ends_all:
                await newcomer(scene, SHIM)  # which starts it
            await scene.full()
            await goes_on(scene, victim, phase)
            for name in (SHIM, SOCKET, HTTP):
                await newcomer(scene, name)
        await nothing_new(stage, before)
        await journals_replay(stage)


async def ends(scene: MatrixCell, victim: str, phase: str) -> None:
    """What was open has the end that the table says."""
    who = VICTIMS[victim]
    for one in scene.opened:
        open_call = expected(who, phase, one.who.name, whole=one.whole)
        await one.who.fares(one.id, one.mark, open_call, scene.ledger)
    for one in scene.greeters:
        if outcome(who.greeters, one.who.name) == ENDED:
            await one.who.lost_its_way()
        else:
            assert "result" in await one.who.agent.answer(one.id)
    if scene.blocker is not None:
        one = scene.blocker
        open_call = expected(who, "in flight", SOCKET)
        await one.who.fares(one.id, one.mark, open_call, scene.ledger)


async def goes_on(scene: MatrixCell, victim: str, phase: str) -> None:
    """So has the next call of each agent; where that is refused, the one after it is served."""
    who = VICTIMS[victim]
    for each in scene.players:
        open_call = outcome(who.held if phase == "leased" else who.afterwards, each.name)
        mark = f"{each.name}-after"
        if open_call == ENDED:
            await hears_no_more(scene, each, mark)
            continue
        held = 2 if phase == "leased" and open_call == ANSWERED else 0
        await each.fares(await each.run(scene.server, mark), mark, open_call, scene.ledger, count=held)
        if open_call != ANSWERED:
            mark = f"{each.name}-fresh"
            await each.fares(await each.run(scene.server, mark), mark, ANSWERED, scene.ledger)


async def hears_no_more(scene: MatrixCell, one: MixedAgent, mark: str) -> None:
    """Its way in has ended, and what it still says is not executed."""
    try:
        id_ = await one.run(scene.server, mark)
    except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
        id_ = b""
    await one.fares(id_, mark, ENDED, scene.ledger)
    assert not scene.ledger.executed(mark)


async def newcomer(scene: MatrixCell, name: str) -> None:
    """An agent that comes in now is served."""
    mark = f"{name}-newcomer-{len(scene.ledger.lines())}"
    async with mixed_agent(scene.daemon, name) as one:
        await one.greet()
        await one.fares(await one.run(scene.server, mark), mark, ANSWERED, scene.ledger)
