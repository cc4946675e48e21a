"""The supervisor's core: one event in, the whole list of effects out."""

from typing import Any, Literal

import msgspec
import pytest

from carpool_protocol.ids import (
    ABSENT,
    EMPTY_OBJECT,
    CallId,
    InstanceId,
    PoolKey,
    RawJson,
    ServerName,
    SessionId,
    WireId,
)
from carpool_protocol.link.messages import (
    AnswersWritten,
    Call,
    CallAnswered,
    CallFailed,
    CancelCall,
    Catalog,
    DiscoverCatalog,
    Operate,
    OperationEnded,
    Policy,
    PoolChanged,
    PoolSpec,
    SetPools,
)
from carpool_supervisor.core.list_throttle import CALM_S
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.effects import (
    CloseStdin,
    ReleaseInstance,
    RereadLists,
    SignalGroup,
    Spawn,
    WriteCall,
    WriteCancel,
    WriteLogLine,
    WriteProbe,
)
from tests.behaviours import behaviour
from tests.kit.supervisor_rig import SupervisorRig

KEY, OTHER = PoolKey("git:1"), PoolKey("time:1")
ONE, TWO = InstanceId(1), InstanceId(2)
OK = RawJson(b'{"content":[]}')


def spec(key: PoolKey = KEY, after: str = "", **policy: Any) -> PoolSpec:
    server = ServerName(key.partition(":")[0])
    return PoolSpec(
        key=key, server=server, argv=[], env={}, cwd="/", policy=Policy(**policy), start_after=PoolKey(after)
    )


def call(number: int, key: PoolKey = KEY, session: str = "s1") -> Call:
    return Call(
        CallId(number), key, SessionId(session), "tools/call", "t", EMPTY_OBJECT, ABSENT, wants_progress=False
    )


def catalog(key: PoolKey = KEY) -> Catalog:
    return Catalog(key, [], "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25")


def operate(token: int, verb: Literal["start", "stop", "restart"], key: PoolKey = KEY) -> Operate:
    return Operate(token, key, verb)


class CoreRig(SupervisorRig):
    """A core with a clock, and what it wants done less what only tells."""

    hidden: tuple[type, ...] = (PoolChanged, Catalog, WriteLogLine)

    def __init__(self, *specs: PoolSpec, cap: int = 64, greeting: int = 3) -> None:
        super().__init__(*specs, cap=cap, greeting=greeting)

    def serve(self, instance: int = 1, key: PoolKey = KEY) -> list[Any]:
        return self.greet(InstanceId(instance), catalog(key))

    def ended(self, instance: int = 1, unwritten: tuple[WireId, ...] = (), stderr: str = "") -> list[Any]:
        return self.exit(InstanceId(instance), unwritten, why="ended with exit code 3", stderr=stderr)


def serving(**policy: Any) -> CoreRig:
    rig = CoreRig(spec(**policy))
    rig.feed(DiscoverCatalog(KEY))
    rig.serve()
    return rig


def test_the_first_call_starts_an_instance_and_is_written_when_it_has_greeted() -> None:
    rig = CoreRig(spec())
    assert rig.feed(call(1)) == [Spawn(ONE, KEY, ServerName("git"), 1)]
    assert rig.feed(ev.InstanceSpawned(ONE, 99)) == []
    assert rig.feed(ev.InstanceGreeted(ONE, catalog())) == [WriteCall(ONE, WireId(1), call(1))]
    assert rig.feed(ev.ServerAnswered(ONE, WireId(1), is_error=False, body=OK)) == [
        CallAnswered(CallId(1), is_error=False, body=OK)
    ]


def test_a_second_answer_and_one_to_an_unknown_id_are_dropped() -> None:
    rig = serving()
    rig.feed(call(1))
    rig.feed(ev.ServerAnswered(ONE, WireId(1), is_error=False, body=OK))
    assert rig.feed(ev.ServerAnswered(ONE, WireId(1), is_error=False, body=OK)) == []
    assert rig.feed(ev.ServerAnswered(ONE, WireId(77), is_error=False, body=OK)) == []
    assert rig.core.dispatcher.unknown_answers == 2


def test_a_call_that_is_said_twice_is_written_once_and_answered_once() -> None:
    """A broker that lost the thread must not make one call two."""
    rig = serving()
    rig.feed(call(1))
    assert rig.feed(call(1)) == []
    rig.core.check()


@behaviour("failure:death-ends-calls", "calls:honest-delivery")
def test_calls_in_flight_on_an_instance_that_dies_end_once_as_maybe() -> None:
    rig = serving()
    for number in (1, 2):
        rig.feed(call(number))
    effects = rig.ended()
    assert [(e.call, e.fault, e.delivered) for e in effects if isinstance(e, CallFailed)] == [
        (1, "instance_died", "maybe"),
        (2, "instance_died", "maybe"),
    ]
    assert effects[0] == ReleaseInstance(ONE)


def test_calls_that_end_with_their_instance_are_in_the_log_by_name_and_past_twenty_counted() -> None:
    rig = serving()
    for number in range(1, 23):
        rig.feed(call(number))
    gone = ev.InstanceExited(ONE, "ended with exit code 3", (), "", 0.0)
    texts = [each.text for each in rig.core.handle(gone, rig.now) if isinstance(each, WriteLogLine)]
    names = ", ".join(f"c{number}" for number in range(1, 21))
    assert f"git #1: it is gone, and its calls with it (instance_died): {names} and 2 more" in texts


@behaviour("calls:honest-delivery")
def test_a_call_that_was_never_written_runs_on_the_next_instance() -> None:
    rig = serving()
    for number in (1, 2, 3):
        rig.feed(call(number))
    effects = rig.ended(unwritten=(WireId(2), WireId(3)))
    assert [e.call for e in effects if isinstance(e, CallFailed)] == [1]
    assert rig.wait(0.5) == [Spawn(TWO, KEY, ServerName("git"), 2)]
    assert rig.serve(2) == [WriteCall(TWO, WireId(1), call(2)), WriteCall(TWO, WireId(2), call(3))]


def test_a_call_that_was_never_written_to_a_stopped_server_ends_at_once() -> None:
    rig = serving()
    rig.feed(call(1))
    rig.feed(operate(7, "stop"))
    effects = rig.ended(unwritten=(WireId(1),))
    assert effects == [
        ReleaseInstance(ONE),
        CallFailed(CallId(1), "stopped", "no", ""),
        OperationEnded(7, ok=True, text="stopped"),
    ]


@behaviour("silence:timeouts-kill-nobody")
def test_a_silent_call_is_cancelled_upstream_and_its_instance_stays() -> None:
    rig = serving(timeout_s=10.0, probe_s=100.0)
    rig.feed(call(1))
    assert rig.wait(10.0) == [
        WriteCancel(ONE, WireId(1), "timed out"),
        WriteProbe(ONE, 1),
        CallFailed(CallId(1), "timed_out", "maybe", "The limit is 10 s."),
    ]
    assert rig.feed(ev.ServerAnswered(ONE, WireId(1), is_error=False, body=OK)) == []
    assert rig.core.dispatcher.late_answers == 1
    assert rig.feed(call(2)) == [WriteCall(ONE, WireId(2), call(2))]


@behaviour("numbers:call-limits")
def test_progress_restarts_the_idle_limit_but_not_the_total_one() -> None:
    rig = serving(timeout_s=10.0, max_total_s=25.0, probe_s=100.0)
    rig.feed(call(1))
    for _ in range(3):
        assert rig.wait(8.0) == []
        rig.feed(ev.ServerProgressed(ONE, WireId(1), EMPTY_OBJECT))
    assert [e.fault for e in rig.wait(8.0) if isinstance(e, CallFailed)] == ["ran_too_long"]


@behaviour("cancel:reaches-server")
def test_a_cancel_in_line_is_silent_and_one_in_flight_goes_upstream() -> None:
    rig = serving(max_in_flight=1)
    rig.feed(call(1))
    assert rig.feed(call(2)) == []
    assert rig.feed(CancelCall(CallId(2), "why")) == []
    assert rig.feed(CancelCall(CallId(1), "why")) == [
        WriteCancel(ONE, WireId(1), "why"),
        WriteProbe(ONE, 1),
    ]
    assert rig.feed(CancelCall(CallId(1), "why")) == []
    assert not rig.core.dispatcher.calls


def test_a_call_to_an_unknown_pool_is_refused_as_not_delivered() -> None:
    rig = CoreRig(spec())
    (failed,) = rig.feed(call(1, OTHER))
    assert (failed.fault, failed.delivered) == ("draining", "no")


def test_a_call_that_was_refused_runs_in_another_pool_once_the_broker_lets_it_be_forgotten() -> None:
    rig = serving()
    rig.feed(call(1, OTHER))
    assert rig.feed(call(1)) == [], "the record has its end"
    rig.feed(AnswersWritten([CallId(1)], CallId(1), CallId(1)))
    assert [type(each) for each in rig.feed(call(1))] == [WriteCall]


@behaviour("silence:breaker")
def test_failures_back_off_then_give_up_and_then_every_call_is_refused_at_once() -> None:
    rig = CoreRig(spec(give_up_after=2, first_delay_s=1.0, open_s=0.0))
    rig.feed(call(1))
    assert rig.ended(stderr="no token") == [ReleaseInstance(ONE)]
    assert rig.core.pools[KEY].state_at(rig.now) == "backing_off"
    assert rig.wait(0.4) == []
    assert rig.wait(0.2) == [Spawn(TWO, KEY, ServerName("git"), 2)]
    effects = rig.ended(2)
    assert [(e.call, e.fault, e.delivered) for e in effects if isinstance(e, CallFailed)] == [
        (1, "given_up", "no")
    ]
    (refused,) = rig.feed(call(2))
    assert (refused.fault, refused.delivered) == ("given_up", "no")
    assert rig.core.next_deadline() is None, "nothing starts by itself any more"
    assert rig.feed(operate(1, "start"))[0] == Spawn(InstanceId(3), KEY, ServerName("git"), 3)


@behaviour("numbers:stop-ladder")
def test_a_stop_closes_stdin_then_sends_term_then_kill_until_the_process_ends() -> None:
    rig = serving()
    assert rig.feed(operate(1, "stop")) == [CloseStdin(ONE)]
    assert rig.wait(5.0) == [SignalGroup(ONE, "TERM")]
    assert rig.wait(2.0) == [SignalGroup(ONE, "KILL")]
    assert rig.wait(5.0) == [SignalGroup(ONE, "KILL")]
    assert rig.ended() == [ReleaseInstance(ONE), OperationEnded(1, ok=True, text="stopped")]


@behaviour("silence:probed-then-replaced")
def test_a_silent_instance_is_probed_then_gets_no_calls_then_ends() -> None:
    rig = serving(probe_s=4.0, timeout_s=8.0)
    assert rig.wait(5.0) == [WriteProbe(ONE, 1)]
    assert rig.wait(5.0) == []
    assert rig.feed(call(1)) == [], "nothing is placed on it any more"
    assert rig.wait(5.0)[0] == SignalGroup(ONE, "TERM")
    rig.ended()
    assert rig.core.pools[KEY].last_error.startswith("was silent")


def test_an_answer_is_a_sign_of_life_like_any_byte() -> None:
    rig = serving(probe_s=4.0, timeout_s=8.0, idle_s=1000.0)
    for number in range(1, 11):
        rig.feed(call(number))
        assert [e for e in rig.wait(3.0) if isinstance(e, SignalGroup)] == []
        rig.feed(ev.ServerAnswered(ONE, WireId(number), is_error=False, body=OK))
    assert not rig.core.pools[KEY].serving[0].suspended


def test_a_closed_stdout_is_given_a_second_to_become_an_exit() -> None:
    rig = serving()
    rig.feed(call(1))
    assert rig.feed(ev.StdoutClosed(ONE)) == []
    effects = rig.ended(unwritten=(WireId(1),))
    assert effects == [ReleaseInstance(ONE)], "the call was never delivered, so it waits again"
    rig = serving()
    rig.feed(call(1))
    rig.feed(ev.StdoutClosed(ONE))
    assert [type(e) for e in rig.wait(1.0)] == [SignalGroup, CallFailed]


@behaviour("children:cold-starts-staggered")
def test_no_more_servers_greet_at_once_than_allowed_and_a_stuck_one_gives_its_turn_back() -> None:
    specs = [spec(PoolKey(f"s{i}:1"), auto_connect=True) for i in range(5)]
    rig = CoreRig(*specs, greeting=3)
    assert len(rig.core.instances.by_id) == 3
    assert [e.key for e in rig.wait(5.0)] == ["s3:1", "s4:1"]


@behaviour("children:cold-starts-staggered")
def test_a_pool_with_a_waiting_call_starts_before_a_pool_that_is_only_listed() -> None:
    keys = [PoolKey(f"s{i}:1") for i in range(5)]
    rig = CoreRig(*map(spec, keys), greeting=1)
    for key in keys[:4]:
        rig.feed(DiscoverCatalog(key))
    rig.feed(call(1, keys[4]))
    rig.feed(DiscoverCatalog(keys[3], first=True))
    assert [e.key for _ in range(4) for e in rig.wait(5.0)] == ["s4:1", "s3:1", "s1:1", "s2:1"]


def test_an_instance_that_refuses_the_greeting_frees_its_greeting_turn_at_once() -> None:
    rig = CoreRig(spec(auto_connect=True), spec(OTHER, auto_connect=True), greeting=1)
    rig.feed(ev.InstanceSpawned(ONE, 99))
    effects = rig.feed(ev.GreetingFailed(ONE, "speaks no MCP"))
    assert effects == [SignalGroup(ONE, "TERM"), Spawn(TWO, OTHER, ServerName("time"), 1)]


@behaviour("wait:cap")
def test_an_idle_instance_of_another_pool_makes_room_at_the_process_cap_but_not_a_busy_one() -> None:
    rig = CoreRig(spec(), spec(OTHER), cap=1)
    rig.feed(call(1))
    rig.feed(call(2, OTHER))
    assert rig.serve() == [WriteCall(ONE, WireId(1), call(1))], "it serves its own line before it makes room"
    assert rig.wait(1.0) == []
    effects = rig.feed(ev.ServerAnswered(ONE, WireId(1), is_error=False, body=OK)) + rig.wait(5.0)
    assert CloseStdin(ONE) in effects
    assert rig.ended() == [ReleaseInstance(ONE), Spawn(TWO, OTHER, ServerName("time"), 1)]


def test_a_pool_that_replaces_another_starts_only_when_that_one_is_gone() -> None:
    new = PoolKey("git:2")
    rig = serving()
    assert rig.feed(SetPools([spec(new, after=KEY)])) == [CloseStdin(ONE)]
    assert rig.feed(call(1, new)) == []
    assert rig.wait(1.0) == []
    assert rig.ended() == [ReleaseInstance(ONE), Spawn(TWO, new, ServerName("git"), 1)]


def test_a_pool_in_between_that_never_started_still_stands_for_the_one_before_it() -> None:
    rig = serving()
    two, three = PoolKey("git:2"), PoolKey("git:3")
    rig.feed(SetPools([spec(two, after=KEY)]))
    rig.feed(SetPools([spec(three, after=two)]))
    assert rig.feed(call(1, three)) == []
    assert rig.ended() == [ReleaseInstance(ONE), Spawn(TWO, three, ServerName("git"), 1)]


def test_two_pools_that_replaced_each_other_back_and_forth_are_both_gone_in_the_end() -> None:
    rig = serving()
    two, three = PoolKey("git:2"), PoolKey("git:3")
    rig.feed(SetPools([spec(two, after=KEY)]))
    rig.feed(SetPools([spec(KEY, after=two)]))
    rig.feed(SetPools([spec(three, after=KEY)]))
    rig.ended()
    assert list(rig.core.pools) == [three]


def test_a_pool_that_is_wanted_again_while_it_ends_says_everything_again() -> None:
    rig = serving()
    rig.feed(SetPools([]))
    said = rig.core.handle(SetPools([spec()]), rig.now)
    assert [type(e) for e in said] == [PoolChanged]
    assert rig.feed(DiscoverCatalog(KEY)) == [Spawn(TWO, KEY, ServerName("git"), 2)], (
        "its catalog is news to the broker"
    )


def test_a_lost_link_ends_all_open_calls_without_an_answer() -> None:
    rig = serving(max_in_flight=1)
    rig.feed(call(1))
    rig.feed(call(2))
    rig.feed(operate(5, "restart"))
    told = rig.core.handle(ev.BrokerConnected(same=True), rig.now)
    assert WriteCancel(ONE, WireId(1), "the agent is gone") in told
    assert not [e for e in told if isinstance(e, (CallFailed, CallAnswered, OperationEnded))]
    assert [type(e) for e in told if isinstance(e, (PoolChanged, Catalog))] == [Catalog, PoolChanged]
    assert not rig.core.dispatcher.calls


@behaviour("silence:clock-jump")
def test_lists_that_are_old_again_and_again_are_read_once_a_second() -> None:
    rig = serving()
    assert rig.feed(ev.ListsChanged(ONE)) == []
    assert rig.feed(ev.ListsChanged(ONE)) == []
    assert rig.wait(3.0) == [RereadLists(ONE)]
    rig.feed(ev.ListsChanged(ONE))
    rig.ended()
    assert not [each for each in rig.wait(3.0) if isinstance(each, RereadLists)]


@behaviour("lists:changes-without-end")
def test_a_server_is_calm_again_when_no_timer_has_read_its_lists_for_some_time() -> None:
    rig = serving()
    rig.wait(CALM_S)
    read: list[object] = []
    for pause_s in (1.0, 1.0, CALM_S - 1.0, 1.0, CALM_S, 1.0):
        rig.feed(ev.ListsChanged(ONE))
        read += [each.is_calm for each in rig.wait(pause_s) if isinstance(each, RereadLists)]
    assert read == [True, False, False, False, False, True]


def test_every_serving_instance_is_probed_after_the_clock_jumped() -> None:
    rig = serving()
    assert rig.feed(ev.ClockJumped()) == [WriteProbe(ONE, 1)]
    assert rig.feed(ev.ClockJumped()) == [], "a probe is on its way"


def test_operators_that_contradict_each_other_are_each_answered_once() -> None:
    rig = serving()
    assert rig.feed(operate(1, "restart"))[0] == CloseStdin(ONE)
    assert rig.feed(operate(2, "stop")) == [
        CloseStdin(TWO),
        OperationEnded(1, ok=False, text="was stopped meanwhile"),
    ]
    effects = rig.feed(operate(3, "start"))
    assert OperationEnded(2, ok=False, text="was started again meanwhile") in effects
    rig.ended(1)
    rig.ended(2)
    rig.feed(ev.InstanceSpawned(InstanceId(3), 9))
    assert rig.feed(ev.InstanceGreeted(InstanceId(3), catalog())) == [
        OperationEnded(3, ok=True, text="serving")
    ]


def test_the_end_of_the_supervisor_stops_everything_and_starts_nothing() -> None:
    rig = serving()
    rig.feed(call(1))
    assert rig.feed(ev.StopRequested()) == [CloseStdin(ONE)]
    assert not rig.core.has_no_process
    effects = rig.ended()
    assert [type(e) for e in effects] == [ReleaseInstance, CallFailed]
    assert rig.core.has_no_process


def ended_while_open(rig: CoreRig, *, instance: int = 1) -> str:
    """What the agent of the one open call is told when its instance ends as it was asked to."""
    effects = rig.feed(ev.InstanceExited(InstanceId(instance), "ended with exit code 0", (), "", 0.0))
    (failed,) = [e for e in effects if isinstance(e, CallFailed)]
    assert (failed.fault, failed.delivered) == ("instance_died", "maybe")
    return failed.text


@pytest.mark.parametrize(
    ("word", "why"),
    [
        (SetPools([spec(PoolKey("git:2"))]), "its configuration was changed or removed"),
        (SetPools([]), "its configuration was changed or removed"),
        (operate(1, "stop"), "an operator stopped it"),
        (operate(1, "restart"), "an operator restarted it"),
    ],
)
def test_a_call_on_an_instance_that_we_end_is_told_so_why_and_how_long_it_had(
    word: SetPools | Operate, why: str
) -> None:
    rig = serving(drain_s=20.0)
    rig.feed(call(1))
    rig.feed(word)
    assert CloseStdin(ONE) in rig.wait(20.0)
    told = f"It was ended by carpool, because {why}; it was given 20 s (drain_s) to finish its open calls."
    assert ended_while_open(rig) == told


@behaviour("logs:why-ended")
@pytest.mark.parametrize(
    ("word", "why"),
    [
        (SetPools([]), "its configuration was changed or removed"),
        (operate(1, "stop"), "an operator stopped it"),
        (operate(1, "restart"), "an operator restarted it"),
        (ev.StopRequested(), "carpool itself was stopped"),
    ],
)
def test_the_log_says_why_carpool_has_ended_an_instance(word: Any, why: str) -> None:
    rig = serving()
    rig.feed(word)
    gone = ev.InstanceExited(ONE, "ended with exit code 0", (), "", 0.0)
    texts = [each.text for each in rig.core.handle(gone, rig.now) if isinstance(each, WriteLogLine)]
    assert f"git #1 ended with exit code 0, as carpool asked it to: {why}" in texts


@behaviour("logs:why-ended")
def test_the_log_says_that_an_instance_was_not_used() -> None:
    rig = serving(idle_s=50.0)
    rig.wait(100.0)
    gone = ev.InstanceExited(ONE, "ended with exit code 0", (), "", 0.0)
    texts = [each.text for each in rig.core.handle(gone, rig.now) if isinstance(each, WriteLogLine)]
    assert any(text.endswith("it was not used for a while (pool.idle_s)") for text in texts)


def test_a_call_open_when_carpool_itself_stops_is_told_so() -> None:
    rig = serving()
    rig.feed(call(1))
    rig.feed(ev.StopRequested())
    assert ended_while_open(rig) == "It was ended by carpool, because carpool itself was stopped."


def test_an_instance_that_dies_by_itself_while_it_drains_is_not_said_to_be_ended_by_us() -> None:
    rig = serving(drain_s=20.0)
    rig.feed(call(1))
    rig.feed(SetPools([]))
    assert ended_while_open(rig).startswith("It ended with exit code 0;")


def test_a_call_that_waited_too_long_at_the_process_cap_is_told_of_the_cap() -> None:
    rig = CoreRig(spec(wait_s=4.0), spec(OTHER), cap=1)
    rig.feed(call(1, OTHER))
    rig.serve(key=OTHER)
    rig.feed(call(2))
    (failed,) = [e for e in rig.wait(4.0) if isinstance(e, CallFailed)]
    assert failed.fault == "waited_too_long"
    assert "max_instances" in failed.text


def test_a_call_that_waited_too_long_for_another_cause_is_not_told_of_the_process_cap() -> None:
    full = CoreRig(spec(wait_s=4.0, max_in_flight=1, max_instances=1), cap=1)
    for number in (1, 2):
        full.feed(call(number))
    full.serve()
    backing_off = CoreRig(spec(wait_s=4.0, first_delay_s=60.0))
    backing_off.feed(call(1))
    backing_off.ended()
    for rig in (full, backing_off):
        (failed,) = [e for e in rig.wait(4.0) if isinstance(e, CallFailed)]
        assert failed.fault == "waited_too_long"
        assert "max_instances" not in failed.text


@behaviour("stderr:not-for-everybody")
def test_stderr_is_quoted_only_to_agents_of_an_instance_that_never_served() -> None:
    rig = serving()
    rig.feed(call(1))
    (_, failed) = rig.ended(stderr="another agent's secret")
    assert "secret" not in failed.text


@behaviour("looking:starts-nothing")
def test_a_pool_starts_when_its_policy_begins_to_keep_an_instance() -> None:
    policies: tuple[dict[str, Any], ...] = ({"auto_connect": True}, {"min_instances": 1})
    for kept in policies:
        rig = CoreRig(spec())
        assert rig.feed(SetPools([spec(**kept)])) == [Spawn(ONE, KEY, ServerName("git"), 1)]
        rig.serve()
        assert rig.feed(SetPools([spec()])) == [], "nothing ends at once"


@behaviour("pools:outlive-sessions")
def test_an_instance_that_its_policy_keeps_no_more_stays_for_the_idle_time_from_then_on() -> None:
    quiet: dict[str, Any] = {"idle_s": 50.0, "probe_s": 10_000.0}
    rig = CoreRig(spec(min_instances=1, **quiet))
    rig.serve()
    rig.wait(500.0)
    assert rig.feed(SetPools([spec(**quiet)])) == []
    assert CloseStdin(ONE) not in rig.wait(45.0)
    assert CloseStdin(ONE) in rig.wait(10.0)


@behaviour("pools:outlive-sessions")
@pytest.mark.parametrize("why", ["", "no agent has used it"])
def test_the_log_says_why_an_instance_of_a_pool_that_is_not_wanted_ends(why: str) -> None:
    rig = CoreRig(spec(), spec(OTHER))
    rig.feed(DiscoverCatalog(KEY))
    rig.serve()
    rig.feed(SetPools([spec(OTHER)], why_missing=why))
    rig.feed(SetPools([spec(OTHER)], max_processes=9, why_missing="another pool was dropped"))
    rig.hidden = ()
    texts = [each.text for each in rig.ended() if isinstance(each, WriteLogLine)]
    expected = why or "its configuration was changed or removed"
    assert texts == [f"git #1 ended with exit code 3, as carpool asked it to: {expected}"]


@behaviour("lists:start-reads-again")
def test_a_start_of_a_running_server_has_its_lists_read_again_and_ends_when_they_are() -> None:
    rig = serving()
    assert rig.feed(operate(1, "start")) == [RereadLists(ONE)]
    assert rig.feed(ev.CatalogRead(ONE, catalog())) == [OperationEnded(1, ok=True, text="serving")]
    rig.feed(operate(2, "start"))
    assert OperationEnded(2, ok=True, text="serving") in rig.feed(ev.ListAnswerLost(ONE, 1, "late"))
    rig.feed(operate(3, "start"))
    assert rig.ended()[0] == ReleaseInstance(ONE)
    rig.wait(5.0)
    assert rig.serve(2) == [OperationEnded(3, ok=True, text="serving")]


@behaviour("silence:greeting-told")
def test_a_server_that_writes_nothing_to_its_greeting_is_told_until_it_writes() -> None:
    rig = CoreRig(spec(), greeting=3)
    rig.hidden = ()
    rig.feed(DiscoverCatalog(KEY))
    rig.feed(ev.InstanceSpawned(ONE, 99))
    told = rig.wait(9.5)
    text = "has answered nothing to initialize for 9 s"
    assert [(e.level, e.text) for e in told if isinstance(e, WriteLogLine)] == [("warning", f"git #1 {text}")]
    assert [e.reason for e in told if isinstance(e, PoolChanged)] == [f"It {text}."]
    rig.wait(2.5)
    rig.feed(DiscoverCatalog(KEY))
    (report,) = rig.core.pool_reports()
    assert report.last_error == report.instances[0].why == "has answered nothing to initialize for 12 s"
    effects = rig.feed(ev.InstanceGreeted(ONE, catalog()))
    assert [e.reason for e in effects if isinstance(e, PoolChanged)] == [""]
    assert rig.core.pool_reports()[0].last_error == ""


@behaviour("silence:greeting-told")
def test_a_server_that_answers_its_greeting_and_no_request_for_its_tools_is_told() -> None:
    rig = CoreRig(spec())
    rig.hidden = ()
    rig.feed(DiscoverCatalog(KEY))
    rig.feed(ev.InstanceSpawned(ONE, 99))
    rig.wait(8.0)
    rig.feed(ev.ListRequestChanged(ONE, "tools/list"))
    assert not any(isinstance(each, WriteLogLine) for each in rig.wait(8.0))
    text = "has not answered tools/list for 9 s"
    assert [e.text for e in rig.wait(1.5) if isinstance(e, WriteLogLine)] == [f"git #1 {text}"]
    assert rig.core.pool_reports()[0].last_error.startswith("has not answered tools/list")
    rig.feed(ev.ListRequestChanged(ONE, ""))
    rig.feed(ev.InstanceGreeted(ONE, catalog()))
    assert rig.core.pool_reports()[0].last_error == ""


def test_a_server_that_writes_while_it_is_greeted_is_not_told_as_silent() -> None:
    rig = CoreRig(spec())
    rig.feed(DiscoverCatalog(KEY))
    rig.feed(ev.InstanceSpawned(ONE, 99))
    rig.wait(1.0)
    rig.feed(ev.ServerLineRejected(ONE, "wrote what is no message"))
    rig.wait(20.0)
    assert "answered nothing" not in rig.core.pool_reports()[0].last_error


@behaviour("start:told")
@pytest.mark.parametrize("is_early", [False, True], ids=["it is greeted", "its start is not known yet"])
def test_what_a_server_writes_after_its_greeting_has_failed_does_not_replace_the_reason(
    is_early: bool,
) -> None:
    rig = CoreRig(spec())
    rig.feed(DiscoverCatalog(KEY))
    if not is_early:
        rig.feed(ev.InstanceSpawned(ONE, 99))
    rig.feed(ev.GreetingFailed(ONE, "does not speak MCP over stdio"))
    rig.feed(ev.ServerLineRejected(ONE, "wrote what is no message"))
    if is_early:
        rig.feed(ev.InstanceSpawned(ONE, 99))
    assert "does not speak MCP over stdio" in rig.core.pool_reports()[0].last_error


@behaviour("lists:offline")
def test_a_pool_with_nothing_to_run_starts_nothing_and_refuses_calls_at_once() -> None:
    nothing = msgspec.structs.replace(spec(min_instances=1), offline=True)
    rig = CoreRig(nothing)
    rig.feed(DiscoverCatalog(KEY))
    assert [each.fault for each in rig.feed(call(1))] == ["offline"]
    for token, verb in enumerate(("start", "stop", "restart")):
        assert rig.feed(operate(token, verb)) == [  # type: ignore[arg-type]
            OperationEnded(token, ok=True, text="has nothing to run: its tools are listed")
        ]
    assert rig.wait(100.0) == []
    assert rig.core.pool_reports()[0].state == "offline"
