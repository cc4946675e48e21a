"""`carpool/counters`, and what `carpool/status` says of the counters."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from carpool_broker.admin.counter_report import CounterReport
from carpool_broker.admin.status_query import SURVEY_TIMEOUT_S
from carpool_broker.core.counters.recent_failures import STEP_S
from carpool_broker.core.model import events as ev
from carpool_broker.core.model.bounds import SessionBounds
from carpool_protocol.counters.snapshot import CountersSnapshot, ServerCounts
from carpool_protocol.ids import CallId, RawJson, ServerName
from carpool_protocol.link.messages import AnyMessage, CallAnswered, CallFailed, Survey, Surveyed
from tests.behaviours import behaviour
from tests.broker.admin.test_control import ME, ControlRig
from tests.broker.core.test_broker import TwoServersRig

BODY = RawJson(b'{"content":[]}')


class CounterRig(TwoServersRig):
    """A broker's core with two servers, and the report of its counters."""

    def __init__(self) -> None:
        super().__init__()
        self.ready()
        self.report = CounterReport(self.core, "r.0", lambda: self.now)
        self.calls = 0

    def ended(self, fault: str = "", delivered: Any = "maybe") -> None:
        """A call to `a` comes and ends."""
        self.calls += 1
        self.call("a__x", str(self.calls))
        call = CallId(self.calls)
        self.feed(CallFailed(call, fault, delivered, "") if fault else CallAnswered(call, False, BODY))

    def failing(self) -> dict[str, tuple[int, int]]:
        facts = self.report.facts(None)
        return {name: (each.failed, each.ended) for name, each in facts.recent.items() if each.mostly_failed}


@behaviour("counters:failing")
def test_after_time_outs_and_refusals_the_calls_of_a_server_are_failing() -> None:
    rig = CounterRig()
    for _ in range(3):
        rig.ended()
    assert rig.failing() == {}
    for _ in range(2):
        rig.ended("timed_out")
    for _ in range(5):
        rig.ended("waiting_line_full", "no")
    assert rig.failing() == {"a": (7, 10)}
    for _ in range(8):
        rig.ended()
    assert rig.failing() == {}, "most of the last calls have ended well"


def test_failures_of_the_past_are_forgotten_without_a_call() -> None:
    rig = CounterRig()
    for _ in range(3):
        rig.ended("timed_out")
    for _ in range(2):
        assert rig.failing() == {"a": (3, 3)}
        rig.now += STEP_S
        rig.report.note_moment()
    assert rig.failing() == {}


def test_the_age_grows_and_the_run_and_the_start_stay() -> None:
    rig = CounterRig()
    first = rig.report.snapshot()
    rig.now += 2.5
    later = rig.report.snapshot()
    assert later.age_s - first.age_s == 2.5
    assert (later.run, later.since) == (first.run, first.since) == ("r.0", first.since)


def test_counters_that_were_switched_off_and_on_have_another_run() -> None:
    rig = CounterRig()
    rig.ended()
    rig.feed(ev.LimitsRead(SessionBounds(), 10.0, counts=False))
    off = rig.report.snapshot()
    assert (off.enabled, off.rows, off.run) == (False, [], "")
    rig.report.note_moment()
    rig.now += 1.0
    rig.feed(ev.LimitsRead(SessionBounds(), 10.0))
    rig.now += 2.0
    again = rig.report.snapshot()
    assert (again.enabled, again.rows, again.age_s) == (True, [], 2.0)
    assert again.run != "r.0"


def test_counters_that_are_switched_off_and_on_again_and_again_never_have_an_earlier_run() -> None:
    rig = CounterRig()
    runs = [rig.report.snapshot().run]
    for _ in range(4):
        rig.now += 0.2
        rig.feed(ev.LimitsRead(SessionBounds(), 10.0, counts=False))
        rig.feed(ev.LimitsRead(SessionBounds(), 10.0))
        runs += [rig.report.snapshot().run, rig.report.snapshot().run]
    assert len(set(runs)) == 5
    assert runs[1::2] == runs[2::2]


@behaviour("counters:servers")
async def test_the_snapshot_has_the_counts_that_the_supervisor_reports(tmp_path: Path) -> None:
    rig = ControlRig(tmp_path)
    counts = {ServerName("git"): ServerCounts(starts=3, restarts=1, deaths=1, asks=4, lease_waits=2)}
    asked: list[Survey] = []

    def answer(message: AnyMessage) -> None:
        assert isinstance(message, Survey)
        asked.append(message)
        rig.inquiries.answer_received("sup1", Surveyed(message.token, [], [], counts=counts))

    rig.answer = answer
    found = msgspec.convert(await rig.ask("carpool/counters"), CountersSnapshot)
    assert asked[0].counts_only, "no process is measured for it"
    assert found.servers_problem == ""
    assert found.servers == {"git": counts[ServerName("git")]}
    status = await rig.ask("carpool/status")
    assert status["counters"]["servers"]["git"]["processes"] == {
        "starts": 3, "restarts": 1, "deaths": 1, "asks": 4, "lease_waits": 2,
    }  # fmt: skip


@behaviour("counters:servers")
@pytest.mark.parametrize(
    ("linked", "waited_s", "problem"),
    [(False, 0.0, "supervisor_away"), (True, SURVEY_TIMEOUT_S, "supervisor_silent")],
)
async def test_without_an_answer_of_a_supervisor_the_snapshot_has_the_calls_and_says_what_is_missing(
    linked: bool,
    waited_s: float,
    problem: str,
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
) -> None:
    rig = ControlRig(tmp_path, linked=linked)
    began = trio.current_time()
    body = await rig.control.answer(ME, "carpool/counters", RawJson(b"{}"))
    assert trio.current_time() - began == pytest.approx(waited_s)
    found = msgspec.json.decode(body, type=CountersSnapshot)
    assert (found.enabled, found.servers, found.servers_run) == (True, {}, "")
    assert found.servers_problem == problem


@behaviour("status:asked-once")
async def test_a_hundred_who_read_the_counters_at_once_share_two_queries_and_two_pages(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = ControlRig(tmp_path)
    made: list[CountersSnapshot] = []
    snapshot = CounterReport.snapshot

    def counted(*args: Any) -> CountersSnapshot:
        made.append(snapshot(*args))
        return made[-1]

    monkeypatch.setattr(CounterReport, "snapshot", counted)
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(rig.ask, "carpool/counters")
        for number in (1, 2):
            await trio.testing.wait_all_tasks_blocked()
            assert len(rig.sent) == number
            survey = rig.sent[-1]
            assert isinstance(survey, Survey)
            rig.inquiries.answer_received("sup1", Surveyed(survey.token, [], []))
    assert len(made) == 2
