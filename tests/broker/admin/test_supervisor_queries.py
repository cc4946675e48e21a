"""Queries of operators that several supervisors answer, late or never."""

from collections.abc import Callable

import pytest
import trio

from carpool_broker.admin.status_query import merge_surveys
from carpool_broker.admin.supervisor_queries import NoAnswer, QueryAnswer, SupervisorQueries
from carpool_protocol.counters.snapshot import ServerCounts
from carpool_protocol.ids import PoolKey, ServerName
from carpool_protocol.link.messages import (
    AnyMessage,
    CallsLocated,
    LocateCalls,
    Operate,
    OperationEnded,
    ProcessReport,
    Surveyed,
)


class TwoSupervisors:
    """Two supervisors; `answer` is what happens when a message is sent."""

    def __init__(self, answer: Callable[["TwoSupervisors", int], None]) -> None:
        self.linked = {"a": 1, "b": 2}
        self._answer = answer
        self.queries = SupervisorQueries(self._send, lambda: self.linked, self._recipients)

    def _send(self, message: AnyMessage) -> None:
        assert isinstance(message, Operate | LocateCalls)
        self._answer(self, message.token)

    def _recipients(self, message: AnyMessage) -> list[str]:
        return ["b"] if isinstance(message, Operate) else ["a", "b"]

    async def operate(self) -> QueryAnswer | NoAnswer:
        return await self.queries.query(lambda token: Operate(token, PoolKey("x:1"), "stop"), 5.0)

    async def locate(self) -> dict[str, QueryAnswer | NoAnswer]:
        return await self.queries.query_all(lambda token: LocateCalls(token, []), 5.0)


def done(token: int) -> OperationEnded:
    return OperationEnded(token, ok=True, text="")


async def test_only_the_supervisor_that_was_asked_answers_or_is_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def others_first(rig: TwoSupervisors, token: int) -> None:
        rig.queries.answer_received("a", OperationEnded(token, ok=False, text="not mine"))
        rig.queries.supervisor_lost("a")
        rig.queries.answer_received("b", done(token))

    found = await TwoSupervisors(others_first).operate()
    assert isinstance(found, OperationEnded)
    assert found.ok
    assert await TwoSupervisors(lambda rig, _: rig.queries.supervisor_lost("b")).operate() == "lost"
    assert await TwoSupervisors(lambda rig, _: rig.queries.supervisor_lost("a")).operate() == "late"


async def test_a_query_for_a_supervisor_that_is_away_ends_at_once() -> None:
    rig = TwoSupervisors(lambda _rig, _token: pytest.fail("nothing is sent"))
    del rig.linked["b"]
    assert await rig.operate() == "away"
    rig.linked.clear()
    assert await rig.locate() == {}


async def test_a_query_to_all_ends_with_the_last_answer_and_names_who_gave_none(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def both(rig: TwoSupervisors, token: int) -> None:
        for name in ("b", "a", "a"):
            rig.queries.answer_received(name, CallsLocated(token, []))

    began = trio.current_time()
    assert {*map(type, (await TwoSupervisors(both).locate()).values())} == {CallsLocated}
    assert trio.current_time() == began
    found = await TwoSupervisors(
        lambda rig, token: rig.queries.answer_received("a", CallsLocated(token, []))
    ).locate()
    assert (type(found["a"]), found["b"]) == (CallsLocated, "late")


def test_surveys_are_merged_and_each_process_counts_once() -> None:
    def process(pid: int) -> ProcessReport:
        return ProcessReport(role="", pid=pid, rss_bytes=1, pss_bytes=1, cpu_s=0.0)

    one = Surveyed(1, [], [process(1), process(7)], ["/bin"], "off", {ServerName("x"): ServerCounts()})
    two = Surveyed(1, [], [process(2), process(7)], ["/sbin"], "off", {ServerName("y"): ServerCounts()})
    merged = merge_surveys([one, two])
    assert sorted(each.pid for each in merged.processes) == [1, 2, 7]
    assert merged.counts.keys() == {"x", "y"}
    assert merged.search_path == ["/bin"]
    assert merge_surveys([one]) is one
