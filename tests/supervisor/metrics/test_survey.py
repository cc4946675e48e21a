"""Surveys that come while processes are measured: how often is measured, and who is answered."""

import os

import pytest
import trio
import trio.testing

from carpool_protocol.link.messages import PoolReport, Survey, Surveyed
from carpool_supervisor.metrics.survey import Surveyor
from tests.behaviours import behaviour


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
        self.surveyor = Surveyor()
        self.answered: list[Surveyed] = []
        self._nursery = nursery

    def add(self, asked: Survey) -> None:
        if self.surveyor.add(asked):
            self._nursery.start_soon(self.surveyor.answer_surveys, list[PoolReport], 0, self.answered.extend)


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
