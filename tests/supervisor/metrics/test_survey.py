"""What `status` and limits of memory are told of instances, how often is measured, and who is answered."""

import os
import sys

import pytest
import trio
import trio.testing

from carpool_protocol.ids import InstanceId, PoolKey, ServerName
from carpool_protocol.link.messages import InstanceReport, PoolReport, Survey, Surveyed
from carpool_supervisor.core.model.events import MemoryMeasured
from carpool_supervisor.metrics import survey
from carpool_supervisor.metrics.adopted import SpawnedProcesses
from carpool_supervisor.metrics.survey import Surveyor
from tests.behaviours import behaviour
from tests.kit.spawner_rig import garage
from tests.supervisor.metrics.test_adopted import HELPER, HOLD, MIB


class HeldThread:
    """Measures when the test says so, in place of the thread that reads `/proc`."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = trio.Event()

    async def run_sync(self, function: object, *_: object, **__: object) -> object:
        self.begun += 1
        await self.may_end.wait()
        self.may_end = trio.Event()
        assert callable(function)
        return function()

    async def end(self) -> None:
        self.may_end.set()
        await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> HeldThread:
    held = HeldThread()
    monkeypatch.setattr(trio.to_thread, "run_sync", held.run_sync)
    return held


class SurveyRig:
    """A surveyor with its answers; `add` starts what answers, as the shell does."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.surveyor = Surveyor(lambda: SpawnedProcesses(0, {}))
        self.answered: list[Surveyed] = []
        self._nursery = nursery

    def add(self, asked: Survey) -> None:
        if self.surveyor.add(asked):
            self._nursery.start_soon(self.surveyor.answer_surveys, list[PoolReport], self.answered.extend)


@behaviour("status:asked-once")
async def test_all_surveys_that_come_while_processes_are_measured_share_the_next_measurement(
    thread: HeldThread,
) -> None:
    async with trio.open_nursery() as nursery:
        rig = SurveyRig(nursery)
        rig.add(Survey(1, []))
        await trio.testing.wait_all_tasks_blocked()
        for token in range(2, 1002):
            rig.add(Survey(token, []))
        assert (thread.begun, rig.answered) == (1, [])
        await thread.end()
        assert [each.token for each in rig.answered] == [1], (
            "a later one is not answered with what was before"
        )
        await thread.end()
        assert thread.begun == 2
        assert [each.token for each in rig.answered] == [*range(1, 1002)]


async def test_each_survey_has_the_processes_that_it_asked_for(thread: HeldThread) -> None:
    parent = os.getppid()
    async with trio.open_nursery() as nursery:
        rig = SurveyRig(nursery)
        rig.add(Survey(1, []))
        rig.add(Survey(2, [parent]))
        rig.add(Survey(3, [os.getpid()]))
        await trio.testing.wait_all_tasks_blocked()
        await thread.end()
    seen = [[(row.role, row.pid) for row in each.processes] for each in rig.answered]
    own = ("supervisor", os.getpid())
    assert seen == [[own], [own, ("", parent)], [own]]


@behaviour("status:asked-once")
async def test_nothing_is_measured_for_a_broker_that_is_gone(thread: HeldThread) -> None:
    async with trio.open_nursery() as nursery:
        rig = SurveyRig(nursery)
        rig.add(Survey(1, []))
        await trio.testing.wait_all_tasks_blocked()
        rig.add(Survey(2, []))
        rig.surveyor.broker_gone()
        await thread.end()
        assert thread.begun == 1
        rig.add(Survey(3, []))
        await trio.testing.wait_all_tasks_blocked()
        await thread.end()
    assert [each.token for each in rig.answered] == [1, 3]


@behaviour("recycling:helpers")
@pytest.mark.skipif(sys.platform != "linux", reason="nothing is adopted elsewhere")
async def test_status_and_limits_count_a_helper_without_a_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "until_due", lambda _period_s: 0)
    async with garage() as cars:
        one = await cars.started(sys.executable, "-I", "-c", HELPER, "marked", HOLD)
        await cars.read_until(cars.pipes[one].stdout_fd, b"held")
        surveyor = Surveyor(lambda: SpawnedProcesses(cars.spawner.pid, cars.spawner.leaders()))
        found: list[int] = []
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:

                def heard(measured: MemoryMeasured) -> None:
                    found.extend(size_bytes for instance, size_bytes in measured.sizes if instance == one)
                    if found and found[-1] > 60 * MIB:
                        nursery.cancel_scope.cancel()

                nursery.start_soon(surveyor.measure_memory, lambda: {one: cars.pids[one]}, heard)
        surveyor.add(Survey(1, []))
        answered: list[Surveyed] = []
        await surveyor.answer_surveys(lambda: [pool_report(one, cars.pids[one])], answered.extend)
        [told] = answered
        assert told.pools[0].instances[0].rss_bytes > 60 * MIB
        assert {each.role for each in told.processes} == {"supervisor", "spawner"}


def pool_report(instance: InstanceId, pid: int) -> PoolReport:
    one = InstanceReport(
        id=instance,
        pid=pid,
        state="serving",
        generation=1,
        era="handshake",
        in_flight=0,
        calls=0,
        rss_bytes=0,
        pss_bytes=0,
        cpu_percent=0.0,
        uptime_s=0.0,
    )
    return PoolReport(
        key=PoolKey("a:1"),
        server=ServerName("a"),
        state="serving",
        sharing="concurrent",
        waiting=0,
        restarts=0,
        last_error="",
        stderr_tail=[],
        instances=[one],
    )
