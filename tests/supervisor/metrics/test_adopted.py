"""Processes that the spawner has adopted count with the instance whose mark they carry."""

import sys

import pytest

from carpool_protocol.ids import Epoch
from carpool_supervisor import marks
from carpool_supervisor.metrics.adopted import MOST_READ, AdoptedProcesses, ProcessTree, SpawnedProcesses
from carpool_supervisor.metrics.process_stats import ProcessSampler, children_by_parent, memory_of
from tests.behaviours import behaviour
from tests.kit.spawner_rig import garage
from tests.kit.waits import until

MIB = 1024 * 1024
SPAWNER = 9
ONE, TWO = (marks.instance_mark("r", "e", number) for number in (1, 2))
SPAWNED = SpawnedProcesses(SPAWNER, {ONE: 10, TWO: 20})

HELPER = """
import os, sys, time
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    if sys.argv[1] == "bare":
        os.execve(sys.executable, [sys.executable, "-c", sys.argv[2]], {})
    exec(sys.argv[2])
os.wait()
sys.stdin.read()
"""
HOLD = "held = bytearray(b'x' * (60 << 20)); print('held', flush=True); import time; time.sleep(600)"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes whose marks are read: those below 1000 are of the first instance, by environment if they
    are even and by limit if not.
    """
    found: list[int] = []

    def instance_of(pid: int) -> tuple[str, int]:
        found.append(pid)
        if pid >= 1000:
            return "", 0
        return (ONE, 0) if pid % 2 == 0 else ("", marks.limit_of(ONE))

    monkeypatch.setattr(marks, "instance_of", instance_of)
    return found


def returned(
    adopted: AdoptedProcesses, tree: ProcessTree, spawned: SpawnedProcesses = SPAWNED
) -> ProcessTree:
    adopted.return_to_instances(tree, spawned)
    return tree


def test_an_adopted_process_is_returned_by_either_mark_and_a_strange_one_is_not(reads: list[int]) -> None:
    tree = returned(AdoptedProcesses(), {SPAWNER: [10, 20, 30, 31, 1000], 10: [11], 30: [40]})
    assert tree == {SPAWNER: [10, 20, 30, 31, 1000], 10: [11, 30, 31], 30: [40]}
    assert reads == [30, 31, 1000], "no instance is looked at"


def test_the_mark_of_a_process_is_read_once_and_few_for_one_table(reads: list[int]) -> None:
    adopted, many = AdoptedProcesses(), list(range(100, 101 + MOST_READ))
    assert len(returned(adopted, {SPAWNER: list(many)})[10]) == len(reads) == MOST_READ
    assert returned(adopted, {SPAWNER: list(many)})[10] == many
    assert reads == many
    returned(adopted, {SPAWNER: []})
    returned(adopted, {SPAWNER: many[:1]})
    assert reads == [*many, many[0]], "its number may be another process's now"


def test_an_instance_that_has_ended_gets_no_process(reads: list[int]) -> None:
    adopted = AdoptedProcesses()
    returned(adopted, {SPAWNER: [10, 20, 30]})
    left = SpawnedProcesses(SPAWNER, {TWO: 20})
    assert returned(adopted, {SPAWNER: [20, 30]}, left) == {SPAWNER: [20, 30]}
    assert reads == [30, 30]


@behaviour("recycling:helpers")
@pytest.mark.skipif(sys.platform != "linux", reason="nothing is adopted elsewhere")
@pytest.mark.parametrize("how", ["marked", "bare"])
async def test_the_memory_of_a_helper_without_a_parent_is_that_of_its_instance(how: str) -> None:
    """`bare`: the helper has dropped its environment."""
    async with garage() as cars:
        argv = [sys.executable, "-I", "-c"]
        one = await cars.started(*argv, HELPER, how, HOLD)
        other = await cars.started(*argv, "input()")
        await cars.read_until(cars.pipes[one].stdout_fd, b"held")
        assert cars.spawner.leaders() == {
            marks.instance_mark(cars.runtime_id, Epoch("e1"), each): cars.pids[each] for each in (one, other)
        }
        spawned = SpawnedProcesses(cars.spawner.pid, cars.spawner.leaders())
        pids = [cars.pids[one], cars.pids[other]]

        await until(
            lambda: (
                memory_of(pids, returned(AdoptedProcesses(), children_by_parent(), spawned))[pids[0]]
                > 60 * MIB
            ),
            "the helper is adopted",
        )
        assert (
            memory_of(pids, returned(AdoptedProcesses(), children_by_parent(), spawned))[pids[1]] < 60 * MIB
        )
        assert memory_of(pids)[pids[0]] < 60 * MIB, "it is no descendant"
        usage = ProcessSampler().survey(pids, returned(AdoptedProcesses(), children_by_parent(), spawned))
        assert usage[pids[0]].pss_bytes > 60 * MIB
        assert (usage[pids[0]].processes, usage[pids[1]].processes) == (2, 1)
