"""An instance that has closed its stdin and still runs is replaced, and no call is lost."""

import pytest

from carpool_protocol.ids import CallId, InstanceId, ServerName, WireId
from carpool_protocol.link.messages import Call, CallAnswered, CallFailed
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.effects import ReleaseInstance, SignalGroup, Spawn, WriteCall, WriteProbe
from tests.behaviours import behaviour
from tests.supervisor.core.calls.test_placement import PoolsRig
from tests.supervisor.core.calls.test_placement import spec as spec_of
from tests.supervisor.core.test_supervisor import KEY, OK, ONE, TWO, CoreRig, call, catalog, serving
from tests.supervisor.core.test_supervisor import spec as spec_of_one

TERM = SignalGroup(ONE, "TERM")


def broken(rig: CoreRig, *wires: int) -> list[object]:
    return rig.feed(ev.StdinBroken(ONE, tuple(WireId(wire) for wire in wires)))


@behaviour("failure:broken-stdin", "calls:honest-delivery")
def test_undelivered_calls_run_on_the_next_instance_and_delivered_ones_may_be_answered() -> None:
    rig = serving(max_instances=1)
    for number in (1, 2, 3):
        rig.feed(call(number))
    assert broken(rig, 3) == []
    assert rig.feed(ev.ServerAnswered(ONE, WireId(1), is_error=False, body=OK)) == [
        CallAnswered(CallId(1), is_error=False, body=OK)
    ]
    assert rig.feed(call(4)) == [], "nothing more is written to it"
    assert rig.wait(4.9) == []
    ended = rig.wait(0.1)
    assert ended[0] == TERM
    assert [(e.call, e.fault, e.delivered) for e in ended if isinstance(e, CallFailed)] == [
        (2, "instance_died", "maybe")
    ]
    assert rig.ended() == [ReleaseInstance(ONE)]
    assert rig.core.pools[KEY].last_error == "closed its stdin and went on running"
    assert rig.wait(0.5) == [Spawn(TWO, KEY, ServerName("git"), 2)]
    assert [e.call.call for e in rig.serve(2) if isinstance(e, WriteCall)] == [3, 4]


@behaviour("failure:broken-stdin")
@pytest.mark.parametrize("last_words", [True, False])
def test_an_instance_without_open_calls_that_it_has_read_gets_a_second_to_exit(last_words: bool) -> None:
    rig = serving(max_instances=1)
    rig.feed(call(1))
    broken(rig, *() if last_words else (1,))
    if last_words:
        rig.wait(2.0)
        rig.feed(ev.ServerAnswered(ONE, WireId(1), is_error=False, body=OK))
    assert rig.wait(0.9) == []
    assert rig.wait(0.1) == [TERM]


@behaviour("failure:broken-stdin")
def test_logs_answers_and_the_greeting_do_not_keep_an_instance_in_service() -> None:
    rig = serving()
    broken(rig)
    for _ in range(9):
        rig.feed(ev.StdoutReceived(ONE))
        rig.feed(ev.StdinBlocked(ONE, False))
        assert not [e for e in rig.feed(call(9)) if isinstance(e, (WriteCall, WriteProbe))]
    assert TERM in rig.wait(1.0)


@behaviour("failure:broken-stdin", "silence:breaker")
def test_a_server_that_always_closes_stdin_opens_the_breaker_and_the_call_ends_as_not_delivered() -> None:
    rig = serving(give_up_after=3, first_delay_s=0.1, wait_s=600.0)
    rig.feed(call(1))
    failed: list[CallFailed] = []
    for instance in (1, 2, 3):
        rig.feed(ev.StdinBroken(InstanceId(instance), (WireId(1),)))
        rig.wait(1.0)
        failed += [e for e in rig.ended(instance) if isinstance(e, CallFailed)]
        if instance < 3:
            rig.wait(1.0)
            rig.serve(instance + 1)
    assert [(e.call, e.fault, e.delivered) for e in failed] == [(1, "breaker_open", "no")]


@behaviour("failure:broken-stdin", "lease:never-silently")
@pytest.mark.parametrize("first_reached_it", [True, False])
def test_a_holder_is_told_only_if_a_call_reached_the_instance(first_reached_it: bool) -> None:
    rig = PoolsRig(spec_of(sharing="session"))
    rig.call(1, "a")
    rig.up()
    if first_reached_it:
        rig.answer(1)
        rig.call(2, "a")
    at = rig.written[2 if first_reached_it else 1]
    rig.feed(ev.StdinBroken(at.instance, (at.wire,)))
    rig.wait(1.0)
    rig.killed(at.instance)
    rig.wait(1.0)
    rig.up()
    if first_reached_it:
        assert "it closed its input, and was ended" in rig.failed[2].text
    else:
        assert not rig.failed
        assert rig.written[1].instance != at.instance


@behaviour("failure:broken-stdin", "lease:never-silently")
def test_calls_that_never_reached_it_and_are_told_again_at_its_exit_do_not_make_it_unused() -> None:
    rig = PoolsRig(spec_of(sharing="session"))
    rig.call(1, "a")
    rig.up()
    at = rig.written[1].instance
    rig.answer(1)
    rig.call(2, "a")
    wire = rig.written[2].wire
    rig.feed(ev.StdinBroken(at, (wire,)))
    rig.killed(at, (wire,))
    rig.wait(1.0)
    rig.up()
    assert 2 not in rig.written or rig.written[2].instance == at
    assert rig.failed[2].fault == "state_lost"


def test_a_call_about_a_task_that_never_reached_it_can_run_nowhere_else() -> None:
    rig = serving()
    about = Call(
        CallId(1), KEY, call(1).session, "tasks/get", "t", OK, call(1).meta, False, instance=ONE
    )  # fmt: skip
    rig.feed(about)
    assert [(e.call, e.fault, e.delivered) for e in broken(rig, 1) if isinstance(e, CallFailed)] == [
        (1, "unavailable", "no")
    ]


@behaviour("failure:broken-stdin")
def test_an_instance_that_closes_stdin_before_it_has_greeted_is_replaced_and_gets_no_call() -> None:
    rig = CoreRig(spec_of_one(max_instances=1, first_delay_s=0.1))
    rig.feed(call(1))
    rig.feed(ev.InstanceSpawned(ONE, 99))
    broken(rig)
    assert rig.feed(ev.InstanceGreeted(ONE, catalog())) == []
    assert rig.wait(1.0) == [TERM]
    rig.ended()
    assert rig.wait(0.5) == [Spawn(TWO, KEY, ServerName("git"), 2)]
    assert [e.call.call for e in rig.serve(2) if isinstance(e, WriteCall)] == [1]
