"""The idle and total timeouts of a call: which of the two ends it."""

from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, CallId, PoolKey, SessionId
from carpool_protocol.link.messages import Call
from carpool_supervisor.core.calls.call_timeouts import CallTimeouts
from carpool_supervisor.core.model.pool import PoolCall
from carpool_supervisor.core.model.timer_kinds import supervisor_timers

ONE = CallId(1)


def begin(limits: CallTimeouts, timeout_s: float, max_total_s: float) -> PoolCall:
    call = Call(ONE, PoolKey("a:1"), SessionId("s"), "tools/call", "x", EMPTY_OBJECT, ABSENT, False)
    opened = PoolCall(call, timeout_s)
    limits.call_started(opened, max_total_s, 0.0)
    return opened


def test_silence_counts_from_the_last_message_until_the_total_limit_comes_first() -> None:
    timers = supervisor_timers()
    limits = CallTimeouts(timers)
    opened = begin(limits, 60.0, 100.0)
    assert timers.next_deadline() == 60.0
    limits.restart_idle(opened, 30.0)
    assert timers.next_deadline() == 90.0
    limits.restart_idle(opened, 50.0)
    assert timers.next_deadline() == 100.0
    assert list(timers.due(99.0)) == []
    assert list(timers.due(100.0)) == [("running_call", [ONE])]
    assert len(limits) == 0


def test_a_call_that_may_be_silent_for_longer_than_it_may_run_has_the_total_limit() -> None:
    timers = supervisor_timers()
    limits = CallTimeouts(timers)
    begin(limits, 60.0, 20.0)
    assert list(timers.due(20.0)) == [("running_call", [ONE])]


def test_while_silence_stands_still_only_the_total_limit_counts() -> None:
    timers = supervisor_timers()
    limits = CallTimeouts(timers)
    opened = begin(limits, 10.0, 100.0)
    limits.pause_idle(opened, 5.0)
    assert timers.next_deadline() == 100.0
    limits.restart_idle(opened, 50.0)
    assert list(timers.due(60.0)) == [("idle_call", [ONE])]


def test_a_call_that_is_over_has_no_limit() -> None:
    timers = supervisor_timers()
    limits = CallTimeouts(timers)
    begin(limits, 10.0, 100.0)
    limits.call_ended(ONE)
    assert timers.next_deadline() is None
    assert len(limits) == 0
