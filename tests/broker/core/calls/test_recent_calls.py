"""Calls that have ended lately: which are kept while somebody watches, and the times of their parts."""

from typing import Any

import pytest

from carpool_broker.core.calls import recent_calls
from carpool_broker.core.calls.recent_calls import (
    FAILED_PER_S,
    MAX_KEPT,
    TIMED_PER_S,
    WATCH_S,
    RecentCall,
    WatchedCalls,
)
from carpool_broker.core.model import events as ev
from carpool_protocol.ids import ABSENT, CallId, InstanceId, RawJson
from carpool_protocol.link.messages import Call, CallAnswered, CallFailed, CallTimed
from tests.behaviours import behaviour
from tests.broker.core.hooks.test_hook_points import AFTER, BEFORE, hooked, run_of, say
from tests.broker.core.test_broker import ONE, TwoServersRig
from tests.broker.recovery_rig import called
from tests.kit.effects import of_kind

BODY = RawJson(b'{"content":[]}')
FAILED = RawJson(b'{"content":[],"isError":true}')


class WatchedCallsRig(TwoServersRig):
    """Servers `a` and `b`, and somebody watches the calls that end."""

    def __init__(self, *, watched: bool = True) -> None:
        self.sent: list[Call] = []
        super().__init__()
        self.ready()
        if watched:
            self.feed(ev.RecentCallsWatched())

    def observe(self, effects: list[Any], event: ev.AnyEvent | None) -> None:
        self.sent += [each for each in effects if isinstance(each, Call)]

    def ask(self, name: str = "a__x") -> Call:
        request = RawJson(b"%d" % (len(self.sent) + 1))
        self.feed(ev.CallRequested(ONE, request, name, RawJson(b"{}"), ABSENT, ABSENT, "tools/call", ""))
        return self.sent[-1]

    def end(self, call: CallId, body: RawJson = BODY, *, timed: bool = False) -> None:
        if timed:
            self.feed(CallTimed(call, "", 2.0, InstanceId(7), 1.0))
        self.feed(CallAnswered(call, False, body))

    @property
    def watching(self) -> WatchedCalls:
        found = self.core.call_table.recent
        assert found is not None
        return found

    @property
    def rows(self) -> list[RecentCall]:
        return [*self.watching.rows]


@behaviour("web:waterfall")
def test_a_watched_call_is_told_with_the_times_of_its_parts() -> None:
    rig = WatchedCallsRig()
    sent = rig.ask()
    assert sent.timed
    assert not sent.traced, "its server gets it as it came"
    rig.now += 4
    rig.feed(ev.RecentCallsWatched())
    rig.end(sent.call, timed=True)
    (row,) = rig.rows
    assert (row.call, row.server, row.tool, row.outcome, row.instance) == ("c1", "a", "x", "ok", 7)
    assert (row.waiting_s, row.hooks_s, row.queue_s, row.server_s, row.back_s) == (0.0, 0.0, 1.0, 2.0, 1.0)
    assert row.total_s == 4.0
    assert row.bytes_out == len(BODY)


@behaviour("web:frozen")
def test_no_call_is_timed_or_kept_while_nobody_watches() -> None:
    rig = WatchedCallsRig(watched=False)
    sent = rig.ask()
    assert not sent.timed
    rig.end(sent.call)
    assert rig.core.call_table.recent is None


@behaviour("web:frozen")
def test_the_record_ends_some_seconds_after_the_last_watcher_has_asked() -> None:
    rig = WatchedCallsRig()
    first = rig.ask()
    rig.now += WATCH_S - 1
    rig.feed(ev.RecentCallsWatched())
    rig.end(first.call)
    assert len(rig.rows) == 1
    second = rig.ask()
    rig.now += WATCH_S
    rig.end(second.call)
    assert rig.core.call_table.recent is None
    assert not rig.ask().timed


def test_a_watcher_that_comes_after_the_record_has_expired_gets_no_old_call() -> None:
    rig = WatchedCallsRig()
    rig.end(rig.ask().call)
    rig.now += WATCH_S
    rig.feed(ev.RecentCallsWatched())
    assert rig.rows == []


def test_a_call_that_came_before_anybody_watched_counts_as_no_call_too_many() -> None:
    rig = WatchedCallsRig(watched=False)
    before = rig.ask()
    rig.now += 1
    rig.feed(ev.RecentCallsWatched())
    rig.end(before.call)
    assert (rig.rows, rig.watching.left_out) == ([], 0)


def test_numbers_of_rows_grow_also_after_the_record_has_ended() -> None:
    rig = WatchedCallsRig()
    rig.end(rig.ask().call)
    newest = rig.watching.newest
    rig.now += WATCH_S
    rig.end(rig.ask().call)
    rig.feed(ev.RecentCallsWatched())
    rig.end(rig.ask().call)
    assert [row.number > newest for row in rig.rows] == [True]
    assert rig.watching.rows_after(newest) == rig.rows
    assert rig.watching.rows_after(rig.watching.newest) == []


@behaviour("web:frozen")
def test_only_some_calls_of_a_second_are_timed_and_the_others_are_counted() -> None:
    rig = WatchedCallsRig()
    for _ in range(TIMED_PER_S + 5):
        rig.end(rig.ask().call)
    assert len([each for each in rig.sent if each.timed]) == TIMED_PER_S
    assert (len(rig.rows), rig.watching.left_out) == (TIMED_PER_S, 5)
    rig.now += 1
    assert rig.ask().timed


@behaviour("web:frozen")
def test_a_bounded_number_of_open_calls_is_timed_and_each_end_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recent_calls, "MAX_TIMED", 3)
    rig = WatchedCallsRig()
    assert [rig.ask().timed for _ in range(5)] == [True, True, True, False, False]
    rig.end(rig.sent[0].call)
    assert [rig.ask().timed for _ in range(2)] == [True, False]


@behaviour("web:waterfall")
def test_failures_are_kept_also_where_no_further_call_is_timed() -> None:
    rig = WatchedCallsRig()
    for _ in range(TIMED_PER_S):
        rig.end(rig.ask().call)
    rig.end(rig.ask().call, FAILED)
    lost = rig.ask()
    assert not lost.timed
    rig.feed(CallFailed(lost.call, "link_broken", "maybe", ""))
    assert [row.outcome for row in rig.rows[-2:]] == ["tool_error", "link_broken"]
    assert (rig.rows[-1].waiting_s, rig.rows[-1].server_s) == (None, None)
    for _ in range(FAILED_PER_S + 3):
        rig.end(rig.ask().call, FAILED)
    assert rig.watching.left_out == 5


def test_a_bounded_number_of_calls_is_kept() -> None:
    rig = WatchedCallsRig()
    for _ in range(MAX_KEPT // TIMED_PER_S + 2):
        rig.feed(ev.RecentCallsWatched())
        for _ in range(TIMED_PER_S):
            rig.end(rig.ask().call)
        rig.now += 1
    assert len(rig.rows) == MAX_KEPT
    numbers = [row.number for row in rig.rows]
    assert numbers == sorted(numbers)


def test_a_call_that_was_never_sent_has_no_time_at_a_server() -> None:
    rig = WatchedCallsRig()
    request = RawJson(b"99")
    rig.feed(ev.CallRequested(ONE, request, "none__x", RawJson(b"{}"), ABSENT, ABSENT, "tools/call", ""))
    (row,) = rig.rows
    assert (row.outcome, row.server_s, row.back_s) == ("unknown_tool", None, None)


@behaviour("web:waterfall")
def test_the_time_with_hooks_before_and_after_is_told() -> None:
    rig = hooked(BEFORE, AFTER)
    rig.feed(ev.RecentCallsWatched())
    before = run_of(rig.feed(called()))
    rig.now += 2
    (call,) = of_kind(say(rig, before), Call)
    rig.now += 0.5
    rig.feed(CallTimed(call.call, "", 0.5, InstanceId(1), 0.0))
    after = run_of(rig.answer(call.call))
    rig.now += 1
    say(rig, after)
    found = rig.core.call_table.recent
    assert found is not None
    (row,) = found.rows
    assert (row.waiting_s, row.hooks_s, row.server_s, row.back_s) == (0.0, 2.0, 0.5, 1.0)
    assert row.total_s == 3.5


@behaviour("web:waterfall")
def test_a_call_that_hooks_hold_when_the_first_watcher_comes_is_not_timed() -> None:
    rig = hooked(BEFORE)
    before = run_of(rig.feed(called()))
    rig.now += 2
    rig.feed(ev.RecentCallsWatched())
    (call,) = of_kind(say(rig, before), Call)
    assert not call.timed, "the time with its hook would be shown as waiting"


@behaviour("web:waterfall")
def test_a_call_is_not_timed_after_its_hook_if_it_was_one_too_many_before() -> None:
    rig = hooked(BEFORE)
    rig.feed(ev.RecentCallsWatched())
    for number in range(TIMED_PER_S):
        (call,) = of_kind(say(rig, run_of(rig.feed(called(str(number))))), Call)
        assert call.timed
        rig.answer(call.call)
    one_too_many = run_of(rig.feed(called()))
    rig.now += 2
    (call,) = of_kind(say(rig, one_too_many), Call)
    assert not call.timed
