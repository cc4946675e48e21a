"""Tasks of stateless servers: whose they are, where they run, who hears of them. Source: SEP-2663."""

import json
from typing import Any

from msgspec.structs import replace

from carpool_broker.core.calls.tasks import MAX_KEPT_S, MAX_TASKS
from carpool_broker.core.limits.memory_budgets import MESSAGE_UNREAD_BYTES
from carpool_broker.core.model import events as ev
from carpool_broker.core.model.capabilities import Capabilities, StatelessAgent
from carpool_broker.core.model.compiled_profile import Rights
from carpool_broker.core.model.effects import (
    AcknowledgeListen,
    AnswerDiscover,
    EndListen,
    ReplyStateless,
    RequireInput,
    SendTaskStatus,
)
from carpool_protocol.config.schema.capability import capability
from carpool_protocol.ids import Epoch, InstanceId, RawJson, SessionId
from carpool_protocol.link.messages import (
    Call,
    CallAnswered,
    CallFailed,
    CancelTask,
    Catalog,
    SetTaskSubscriptions,
    TaskStatusChanged,
)
from tests.behaviours import behaviour
from tests.broker.stateless_rig import ONE, PLAIN, RESULT, TWO, A, StatelessRig
from tests.kit.broker_rig import supervisor_comes
from tests.kit.effects import of_kind

MIB = 1 << 20

KNOWS = StatelessAgent(Capabilities(form=True), tasks=True)
HERE, THERE = InstanceId(7), InstanceId(8)
BODY = RawJson(b'{"taskId":"T","status":"working"}')


def rigged(**more: Any) -> StatelessRig:
    """Server `a` knows of tasks."""
    rig = StatelessRig(**more)
    known = rig.core.registry.told_catalog(A)
    assert isinstance(known, Catalog)
    rig.feed(replace(known, era="stateless", tasks=True))
    return rig


def begin(
    rig: StatelessRig, request: str = "1", *, theirs: str = "T", ttl_ms: int = 60_000, **more: Any
) -> str:
    """A call that became a task; our id of it."""
    call = rig.call(request, **{"by": KNOWS, **more})
    instance = HERE
    told = CallAnswered(call.call, False, BODY, task=theirs, task_ttl_ms=ttl_ms, instance=instance)
    [reply] = [each for each in rig.feed(told) if isinstance(each, ReplyStateless)]
    assert reply.begins_task
    assert reply.body == BODY
    return reply.task


def about(
    rig: StatelessRig, task: str, request: str = "2", method: str = "tasks/get", **more: Any
) -> list[Any]:
    return rig.call_tool(request, task, **{"by": KNOWS, "method": method, "digest": "", **more})


def refused(effects: list[Any]) -> tuple[int, str]:
    [reply] = effects
    assert isinstance(reply, ReplyStateless)
    assert reply.is_error
    error = json.loads(reply.body)
    return error["code"], error["message"]


def discovered(rig: StatelessRig) -> AnswerDiscover:
    [described] = rig.feed(ev.DiscoverRequested(ONE, RawJson(b'"d"'), PLAIN))
    assert isinstance(described, AnswerDiscover)
    return described


def listen(
    rig: StatelessRig, *tasks: str, session: SessionId = ONE, request: str = "9", by: StatelessAgent = KNOWS
) -> list[Any]:
    return rig.feed(ev.ListenRequested(session, RawJson(request.encode()), by, (), (), tasks))


# --- who is told of tasks --------------------------------------------------------------------------------


@behaviour("tasks:undeclared")
def test_tasks_are_announced_where_a_server_knows_of_them_and_only_there() -> None:
    assert not discovered(StatelessRig()).tasks
    assert discovered(rigged()).tasks


@behaviour("tasks:relayed")
def test_a_call_says_whether_its_agent_knows_of_tasks_and_so_does_what_is_about_one() -> None:
    rig = rigged()
    assert rig.call("1", by=KNOWS).tasks
    assert not rig.call("2", by=PLAIN).tasks
    assert not rig.call("3", "file:///a", by=KNOWS, method="resources/read").tasks
    [call] = about(rig, begin(rig, "4"), "5")
    assert call.tasks


@behaviour("tasks:undeclared")
def test_task_methods_are_unknown_if_no_server_has_tasks() -> None:
    for by in (KNOWS, PLAIN):
        assert refused(about(StatelessRig(), "x", by=by))[0] == -32601


@behaviour("tasks:undeclared")
def test_an_agent_that_has_not_declared_tasks_is_told_the_missing_capability() -> None:
    rig = rigged()
    task = begin(rig)
    for effects in (about(rig, task, by=PLAIN), listen(rig, task, by=PLAIN)):
        [reply] = effects
        error = json.loads(reply.body)
        assert error["code"] == -32021
        assert error["data"] == {
            "requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}
        }


def test_a_task_for_a_retry_that_knows_of_none_is_cancelled_and_its_call_is_lost() -> None:
    rig = rigged()
    call, said = rig.park("1", by=replace(KNOWS, capabilities=Capabilities(sampling=True)))
    assert isinstance(said, RequireInput)
    knows_no_more = StatelessAgent(Capabilities(sampling=True))
    rig.call_tool("2", by=knows_no_more, state=said.state, given={said.inputs[0].key: RESULT})
    effects = rig.feed(CallAnswered(call, False, BODY, task="T", instance=HERE))
    assert CancelTask(HERE, "T") in effects
    assert any(isinstance(each, ReplyStateless) and b"bad_answer" in bytes(each.body) for each in effects)


# --- whose they are --------------------------------------------------------------------------------------


@behaviour("tasks:relayed")
def test_a_call_about_a_task_goes_to_its_instance_under_the_servers_id_and_returns_under_carpools() -> None:
    rig = rigged()
    task = begin(rig)
    assert task != "T"
    [call] = about(rig, task)
    assert isinstance(call, Call)
    assert (call.method, call.target, call.key, call.instance) == ("tasks/get", "T", A, HERE)
    [reply] = rig.feed(CallAnswered(call.call, False, BODY))
    assert (reply.task, reply.begins_task, reply.method) == (task, False, "tasks/get")


@behaviour("tasks:own-id")
def test_a_task_of_another_session_is_refused_in_the_words_for_an_unknown_task() -> None:
    rig = rigged()
    rig.come(TWO)
    mine, theirs = begin(rig), begin(rig, session=TWO)
    assert mine != theirs
    nobodys = refused(about(rig, "0" * 32))
    assert nobodys[0] == -32602
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        assert refused(about(rig, theirs, method=method)) == nobodys
        assert refused(about(rig, mine, method=method, session=TWO)) == nobodys
    for guess in ("T", "", "1", theirs[:-1], theirs.upper() + "x"):
        assert refused(about(rig, guess)) == nobodys


@behaviour("tasks:own-id")
def test_ids_tell_nothing_of_each_other_and_another_broker_makes_others() -> None:
    rig = rigged()
    ids = {begin(rig, str(n), theirs=f"T{n}") for n in range(20)}
    assert len(ids) == 20
    assert all(len(each) == 32 for each in ids)


def test_two_tasks_of_one_servers_id_are_two_to_their_agents() -> None:
    rig = rigged()
    rig.come(TWO)
    mine, theirs = begin(rig), begin(rig, session=TWO)
    listen(rig, mine)
    listen(rig, theirs, session=TWO)
    told = rig.feed(TaskStatusChanged(HERE, "T", BODY))
    assert {(each.session, each.task) for each in told} == {(ONE, mine), (TWO, theirs)}


def test_a_task_is_there_as_long_as_its_server_keeps_it_and_a_day_at_most() -> None:
    for ttl_ms, kept_s in ((60_000, 60), (-1, MAX_KEPT_S), (10**14, MAX_KEPT_S)):
        rig = rigged()
        task = begin(rig, ttl_ms=ttl_ms)
        rig.wait(kept_s - 1)
        assert isinstance(about(rig, task)[0], Call)
        rig.wait(2)
        assert refused(about(rig, task, "3"))[0] == -32602


def test_a_task_of_an_ended_instance_is_unknown_from_then_on() -> None:
    rig = rigged()
    task = begin(rig)
    [call] = about(rig, task)
    code, text = refused(rig.feed(CallFailed(call.call, "unknown_task", "no", "")))
    assert code == -32602
    assert "a: T" not in text
    assert refused(about(rig, task)) == refused(about(rig, "never"))


def test_with_the_supervisor_all_tasks_are_gone_and_what_waited_to_be_said_of_them_is_answered() -> None:
    rig = rigged(max_open_calls=1)
    task = begin(rig)
    rig.call("1", by=KNOWS)
    assert about(rig, task, "2") == []
    effects = rig.feed(ev.SupervisorLost())
    assert {bytes(each.id) for each in effects if isinstance(each, ReplyStateless)} == {b"1", b"2"}
    supervisor_comes(rig.feed)
    assert refused(about(rig, task, "3"))[0] == -32602


@behaviour("tasks:listened")
def test_a_listen_for_a_task_that_is_gone_with_the_supervisor_ends() -> None:
    rig = rigged()
    task = begin(rig)
    listen(rig, task, request="8")
    rig.feed(ev.ListenRequested(ONE, RawJson(b"9"), KNOWS, ("tools",), ()))
    effects = rig.feed(ev.SupervisorLost())
    assert [each for each in effects if isinstance(each, EndListen)] == [EndListen(ONE, RawJson(b"8"))]
    assert not [each for each in rig.feed(ev.SupervisorLost()) if isinstance(each, EndListen)]


@behaviour("tasks:listened", "reattach:listens")
def test_a_listen_for_a_task_of_a_dead_broker_ends_and_its_agent_can_listen_anew() -> None:
    rig = rigged()
    for request, tasks in ((b"8", ("t",)), (b"9", ())):
        rig.feed(ev.ListenResumed(ONE, RawJson(request), ("tools",), (), tasks))
        said = rig.feed(ev.ListenRequested(ONE, RawJson(request), KNOWS, ("tools",), (), ("t", "u")))
        assert AcknowledgeListen(ONE, RawJson(request), ("tools",), ()) in said, "the line that is swallowed"
        assert EndListen(ONE, RawJson(request)) not in said, "not before all is said"
    effects = rig.feed(ev.SessionResumed(ONE, Epoch(""), (), ()))
    assert [each for each in effects if isinstance(each, EndListen)] == [EndListen(ONE, RawJson(b"8"))]
    assert AcknowledgeListen(ONE, RawJson(b"8"), (), ()) in listen(rig, "t", request="8")


@behaviour("tasks:end-with-agent")
def test_the_tasks_of_an_agent_that_leaves_are_cancelled() -> None:
    rig = rigged()
    begin(rig)
    begin(rig, theirs="S")
    left = rig.feed(ev.SessionClosed(ONE))
    assert [each for each in left if isinstance(each, CancelTask)] == [
        CancelTask(HERE, "T"),
        CancelTask(HERE, "S"),
    ]


@behaviour("tasks:end-with-agent")
def test_a_task_for_a_call_that_its_agent_has_cancelled_is_cancelled() -> None:
    rig = rigged()
    call = rig.call("1", by=KNOWS)
    rig.feed(ev.RequestCancelled(ONE, RawJson(b"1"), "enough"))
    assert rig.feed(CallAnswered(call.call, False, BODY, task="T", instance=HERE)) == [CancelTask(HERE, "T")]


def test_past_the_bound_no_server_is_told_that_its_agent_knows_of_tasks() -> None:
    rig = rigged()
    ids = [begin(rig, theirs=f"T{n}") for n in range(MAX_TASKS)]
    call = rig.call("1", by=KNOWS)
    assert not call.tasks
    rig.feed(CallAnswered(call.call, False, RESULT))
    [asked] = about(rig, ids[0])
    assert asked.tasks


def test_agents_that_share_a_session_share_its_tasks_and_none_of_them_is_cancelled_while_it_lasts() -> None:
    rig = rigged()
    rig.come(TWO, shared=True)
    task = begin(rig, "@1 1", session=TWO)
    [call] = about(rig, task, "@2 1", session=TWO)
    assert call.instance == HERE
    assert call.session != TWO, "agents of one principal are not one to lanes and attribution"


# --- listens ---------------------------------------------------------------------------------------------


@behaviour("tasks:listened")
def test_a_listen_hears_of_its_own_tasks_until_it_ends() -> None:
    rig = rigged()
    rig.come(TWO)
    mine, theirs = begin(rig), begin(rig, session=TWO, theirs="S")
    [said, watch] = listen(rig, theirs, mine, "never")
    assert isinstance(said, AcknowledgeListen)
    assert said.tasks == (mine,)
    assert watch == SetTaskSubscriptions(HERE, ["T"])
    assert rig.feed(TaskStatusChanged(HERE, "T", BODY)) == [SendTaskStatus(ONE, mine, BODY, RawJson(b"9"))]
    assert rig.feed(TaskStatusChanged(HERE, "S", BODY)) == []
    assert rig.feed(TaskStatusChanged(THERE, "T", BODY)) == []
    assert listen(rig, theirs, session=TWO)[1] == SetTaskSubscriptions(HERE, ["S", "T"])
    assert rig.feed(ev.RequestCancelled(ONE, RawJson(b"9"), "")) == [SetTaskSubscriptions(HERE, ["S"])]
    assert rig.feed(TaskStatusChanged(HERE, "T", BODY)) == []


@behaviour("pressure:asks")
def test_statuses_for_an_agent_that_does_not_read_are_left_out_once_its_share_is_used() -> None:
    rig = rigged()
    listen(rig, begin(rig))
    rig.feed(ev.UnreadChanged(ONE, 1))
    body = RawJson(b'{"a":"%b"}' % (b"x" * MIB))
    told = [len(of_kind(rig.feed(TaskStatusChanged(HERE, "T", body)), SendTaskStatus)) for _ in range(100)]
    assert sum(told) == told.index(0) <= MESSAGE_UNREAD_BYTES // MIB
    rig.feed(ev.UnreadChanged(ONE, 0))
    assert of_kind(rig.feed(TaskStatusChanged(HERE, "T", body)), SendTaskStatus)


def test_a_task_that_is_over_is_watched_no_more() -> None:
    rig = rigged()
    listen(rig, begin(rig, ttl_ms=1000))
    assert rig.wait(2) == [SetTaskSubscriptions(HERE, [])]


def test_a_listen_for_tasks_where_there_are_none_hears_of_none() -> None:
    for by in (KNOWS, PLAIN):
        [said] = listen(StatelessRig(), "x", by=by)
        assert isinstance(said, AcknowledgeListen)
        assert said.tasks == ()


@behaviour("profiles:reload")
def test_a_task_whose_tool_is_kept_back_now_can_be_ended_and_nothing_else() -> None:
    rig = rigged()
    task = begin(rig)
    listen(rig, task)
    told = TaskStatusChanged(HERE, "T", BODY)
    assert [each for each in rig.feed(told) if isinstance(each, SendTaskStatus)]
    source = rig.core.sessions[ONE].source
    goal = rig.core.sources.sources[source].goal
    rights = Rights(deny=(capability("mcp:a:x"),))
    rig.feed(replace(goal, scope=replace(goal.scope, profile="p", rights=rights)))
    code, text = refused(about(rig, task))
    assert code == -32602
    assert "The profile p keeps it back." in text
    assert rig.feed(told) == []
    [call] = about(rig, task, "3", method="tasks/cancel")
    assert isinstance(call, Call)
