"""Instances held for tasks that agents poll: for how long, and the messages about the tasks."""

from typing import Any

import pytest
from msgspec.structs import replace

from carpool_protocol.ids import (
    ABSENT,
    EMPTY_OBJECT,
    CallId,
    InstanceId,
    RawJson,
    ServerName,
    SessionId,
    WireId,
)
from carpool_protocol.link.messages import (
    Call,
    CallAnswered,
    CallFailed,
    CancelCall,
    CancelTask,
    Catalog,
    Policy,
    PoolSpec,
    SessionEnded,
    SetPools,
    SetTaskSubscriptions,
    TaskStatusChanged,
)
from carpool_supervisor.core.calls import task_holds
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.effects import (
    CloseStdin,
    WriteCall,
    WriteTaskCancel,
    WriteTaskSubscriptions,
)
from tests.behaviours import behaviour
from tests.kit.effects import of_kind
from tests.supervisor.core.test_stateless_servers import KEY, ME, StatelessServerRig

BODY = RawJson(b"{}")
SPEC = PoolSpec(
    key=KEY,
    server=ServerName("s"),
    argv=["s"],
    env={},
    cwd="/",
    policy=Policy(),
    asking=True,
    era="stateless",
)


def rig(**policy: Any) -> StatelessServerRig:
    """A pool that ends its only instance when it is idle for 10 s."""
    one = StatelessServerRig()
    settled = Policy(**{"idle_s": 10.0, "probe_s": 10**6, "spares": 0, **policy})
    one.feed(SetPools([replace(SPEC, policy=settled)]))
    return one


def begin(
    one: StatelessServerRig, task: str = "T", *, ttl_ms: int = 60_000, number: int = 1, session: str = "s1"
) -> CallAnswered:
    wire = one.call(number, session).wire
    answer = ev.ServerAnswered(ME, wire, False, BODY, task=task, task_ttl_ms=ttl_ms)
    [told] = of_kind(one.feed(answer), CallAnswered)
    assert isinstance(told, CallAnswered)
    return told


def about(number: int, session: str = "s1", instance: InstanceId = ME, method: str = "tasks/get") -> Call:
    return Call(
        CallId(number),
        KEY,
        SessionId(session),
        method,
        "T",
        BODY,
        ABSENT,
        False,
        tasks=True,
        instance=instance,
    )


def unwanted(one: StatelessServerRig) -> list[Any]:
    """Nobody wants the pool any more: its idle instance ends."""
    return one.feed(SetPools([]))


def look(one: StatelessServerRig, number: int = 2, **more: Any) -> list[Any]:
    """An agent asks how far its task is, and hears that."""
    [written] = of_kind(one.feed(about(number)), WriteCall)
    return one.feed(ev.ServerAnswered(ME, written.wire, False, BODY, **more))


def test_a_task_is_told_with_where_it_runs() -> None:
    told = begin(rig())
    assert (told.task, told.task_ttl_ms, told.instance) == ("T", 60_000, ME)


@behaviour("tasks:held")
def test_an_instance_with_a_task_is_not_idle_until_its_end_was_told() -> None:
    one = rig()
    begin(one, ttl_ms=3_600_000)
    assert not of_kind(one.wait(1000), CloseStdin)
    assert look(one, task_over=False)
    assert not of_kind(one.wait(1000), CloseStdin)
    look(one, 3, task_over=True)
    assert of_kind(one.wait(20), CloseStdin)


@behaviour("tasks:held")
def test_an_instance_is_kept_while_its_server_keeps_the_task_and_a_day_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert task_holds.MAX_HELD_S == 24 * 3600
    monkeypatch.setattr(
        task_holds, "MAX_HELD_S", 600.0
    )  # a day takes a core that looks every few seconds long
    for ttl_ms, kept_s in ((60_000, 60), (-1, 600), (10**14, 600)):
        one = rig()
        begin(one, ttl_ms=ttl_ms)
        assert not of_kind(one.wait(kept_s - 1), CloseStdin)
        assert of_kind(one.wait(30), CloseStdin)


@behaviour("tasks:relayed")
def test_a_call_about_a_task_goes_to_its_instance_also_while_that_drains() -> None:
    one = rig()
    begin(one)
    assert not of_kind(unwanted(one), CloseStdin)
    [written] = of_kind(one.feed(about(2)), WriteCall)
    assert (written.instance, written.call.target) == (ME, "T")
    assert of_kind(one.feed(ev.ServerAnswered(ME, written.wire, False, BODY, task_over=True)), CloseStdin)


def test_draining_waits_for_tasks_as_long_as_for_calls() -> None:
    one = rig(drain_s=60.0)
    begin(one)
    assert not of_kind(unwanted(one) + one.wait(59), CloseStdin)
    assert of_kind(one.wait(2), CloseStdin)


@behaviour("tasks:held", "recycling:costs-no-call")
def test_an_instance_that_has_done_its_time_is_kept_for_its_tasks() -> None:
    one, other = rig(limit_calls=1, drain_s=60.0, max_instances=1), InstanceId(2)
    begin(one, ttl_ms=900_000)
    one.feed(ev.InstanceSpawned(other, 101))
    features: Any = ["tools", "logging"]
    told = Catalog(KEY, [], "", EMPTY_OBJECT, EMPTY_OBJECT, "2026-07-28", features=features)
    one.feed(ev.InstanceGreeted(other, told))
    assert one.call(2, "s2").instance == other
    assert not [each for each in of_kind(one.wait(800), CloseStdin) if each.instance == ME]
    [written] = of_kind(one.feed(about(3)), WriteCall)
    assert written.instance == ME
    assert CloseStdin(ME) in one.feed(ev.ServerAnswered(ME, written.wire, False, BODY, task_over=True))


def test_a_call_about_a_task_of_an_ended_instance_is_refused_and_not_delivered() -> None:
    one = rig()
    begin(one)
    one.feed(ev.InstanceExited(ME, "ended", (), "", 0.5))
    assert one.feed(about(2)) == [CallFailed(CallId(2), "unknown_task", "no", "")]
    assert one.feed(about(3, instance=InstanceId(77))) == [CallFailed(CallId(3), "unknown_task", "no", "")]


def test_an_undelivered_call_about_a_task_does_not_wait_for_another_instance() -> None:
    one = rig()
    begin(one)
    [written] = of_kind(one.feed(about(2)), WriteCall)
    ended = one.feed(ev.InstanceExited(ME, "ended", (written.wire,), "", 0.5))
    assert [each.call for each in of_kind(ended, CallFailed)] == [CallId(2)]


def test_a_call_about_a_task_never_takes_the_instance_of_another_agent() -> None:
    one = rig(sharing="session")
    begin(one, session="s1")
    assert one.feed(about(2, "s2")) == [CallFailed(CallId(2), "unknown_task", "no", "")]
    assert of_kind(one.feed(about(3, "s1")), WriteCall)


@behaviour("tasks:held")
def test_a_lease_lives_while_its_holder_has_a_task_there() -> None:
    one = rig(sharing="session", lease_idle_s=30.0)
    begin(one, ttl_ms=600_000)
    assert not of_kind(one.wait(500), CloseStdin)
    assert of_kind(one.wait(200), CloseStdin)


def test_an_instance_and_its_task_end_with_their_holder() -> None:
    one = rig(sharing="session")
    begin(one)
    one.feed(CancelTask(ME, "T"))
    assert of_kind(one.feed(SessionEnded(SessionId("s1"))), CloseStdin)


@behaviour("tasks:end-with-agent")
def test_a_task_that_nobody_can_ask_for_is_cancelled_once() -> None:
    one = rig()
    begin(one)
    assert one.feed(CancelTask(ME, "T")) == [WriteTaskCancel(ME, "T")]
    assert one.feed(CancelTask(ME, "T")) == []
    assert one.feed(CancelTask(InstanceId(9), "T")) == []


def test_a_task_whose_end_was_told_has_nothing_to_cancel() -> None:
    one = rig()
    begin(one)
    look(one, task_over=True)
    assert one.feed(CancelTask(ME, "T")) == []


@behaviour("tasks:end-with-agent")
def test_a_task_that_was_begun_for_a_call_nobody_waits_for_is_cancelled_at_once() -> None:
    one = rig()
    wire = one.call(1, "s1").wire
    one.feed(CancelCall(CallId(1), "enough"))
    late = one.feed(ev.ServerAnswered(ME, wire, False, BODY, task="T", task_ttl_ms=1))
    assert late == [WriteTaskCancel(ME, "T")]


def test_a_cancel_of_a_task_is_not_written_to_a_closed_stdin() -> None:
    one = rig()
    wire = one.call(1, "s1").wire
    one.feed(CancelCall(CallId(1), "enough"))
    assert of_kind(unwanted(one), CloseStdin)
    assert one.feed(ev.ServerAnswered(ME, wire, False, BODY, task="T", task_ttl_ms=1)) == []


def test_a_new_broker_knows_no_task() -> None:
    one = rig()
    begin(one, "T")
    begin(one, "S", number=2)
    assert of_kind(one.feed(ev.BrokerConnected()), WriteTaskCancel) == [
        WriteTaskCancel(ME, "S"),
        WriteTaskCancel(ME, "T"),
    ]


@behaviour("tasks:listened")
def test_tasks_are_watched_where_they_run_and_what_is_told_of_them_is_passed_on() -> None:
    one = rig()
    begin(one)
    assert one.feed(SetTaskSubscriptions(ME, ["T"])) == [WriteTaskSubscriptions(ME, ("T",))]
    assert one.feed(SetTaskSubscriptions(InstanceId(9), ["T"])) == []
    assert one.feed(ev.TaskChanged(ME, "T", False, BODY)) == [TaskStatusChanged(ME, "T", BODY)]
    one.feed(ev.TaskChanged(ME, "T", True, BODY))
    assert one.feed(CancelTask(ME, "T")) == []


def test_an_answer_about_an_unknown_task_changes_no_hold() -> None:
    one = rig()
    assert look(one, 1, task_over=True)
    assert one.feed(ev.TaskChanged(ME, "never", True, BODY)) == [TaskStatusChanged(ME, "never", BODY)]
    assert one.feed(ev.ServerAnswered(ME, WireId(99), False, BODY, task_over=True)) == []
