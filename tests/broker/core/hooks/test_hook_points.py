"""Hooks in the broker's core: which calls they look at, and what becomes of a call in every state."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from carpool_broker.core.hooks import hook_points
from carpool_broker.core.hooks import runs as hook_runs
from carpool_broker.core.hooks.runs import QUEUE_TIMEOUT_S
from carpool_broker.core.model import events as ev
from carpool_broker.core.model.approval import Approved, PinId
from carpool_broker.core.model.bounds import ProfileLimits, SessionBounds
from carpool_broker.core.model.effects import BeginHook, EndHook, LogLine, Reply, ReplyStateless
from carpool_broker.core.model.scope import DisabledServer, Scope, ScopeEntry
from carpool_protocol.config.schema.capability import capability
from carpool_protocol.hooks.lines import MAX_RUNNING
from carpool_protocol.ids import CallId, PoolKey, RawJson, ServerName
from carpool_protocol.link.messages import (
    AnswersWritten,
    Call,
    CallAnswered,
    CallFailed,
    CallsRecorded,
    CancelCall,
    Catalog,
    Policy,
    PoolSpec,
    RecordedSession,
    ResourceOffer,
    ResumeCall,
    SessionEnded,
)
from tests.behaviours import behaviour
from tests.broker.recovery_rig import DAEMON, EPOCH, ONE, RESULT, TWO, A, RecoveryRig, called, recorded, says
from tests.kit.effects import of_kind

BEFORE = ev.HookRule(name="guard", before=True, after=False)
AFTER = ev.HookRule(name="look", before=False, after=True)
OTHER = RawJson(b'{"content":[],"_meta":{}}')


def hooked(*rules: ev.HookRule, life: int = 0) -> RecoveryRig:
    rig = RecoveryRig(life=life)
    rig.feed(ev.HooksRead(rules))
    rig.link()
    rig.come()
    return rig


def run_of(effects: list[Any]) -> BeginHook:
    (run,) = of_kind(effects, BeginHook)
    assert isinstance(run, BeginHook)
    return run


def say(rig: RecoveryRig, run: BeginHook, verdict: ev.HookVerdict = "allow", **more: Any) -> list[Any]:
    return rig.feed(ev.HookAnswered(run.run, verdict, **more))


def code(effects: list[Any]) -> str:
    (reply,) = [each for each in effects if isinstance(each, Reply | ReplyStateless)]
    body = msgspec.json.decode(reply.body)
    return str((body["data"] if reply.is_error else body["_meta"]["carpool/error"])["code"])


def text(effects: list[Any]) -> str:
    (reply,) = of_kind(effects, Reply)
    return str(msgspec.json.decode(reply.body)["content"][0]["text"])


# --- before -------------------------------------------------------------------------------------------------


@behaviour("hooks:before")
def test_a_call_is_sent_when_the_hook_has_let_it_pass_and_no_sooner() -> None:
    rig = hooked(BEFORE)
    effects = rig.feed(called())
    run = run_of(effects)
    assert (run.hook, run.server, run.target, run.outcome) == ("guard", "a", "x", "")
    assert not of_kind(effects, Call)
    (call,) = of_kind(say(rig, run), Call)
    assert of_kind(rig.answer(call.call), Reply)


@behaviour("hooks:deny")
def test_a_denied_call_is_never_sent_and_its_error_names_the_hook_and_its_reason() -> None:
    rig = hooked(BEFORE)
    effects = say(rig, run_of(rig.feed(called())), "deny", reason="not on Sundays")
    assert not of_kind(effects, Call)
    assert code(effects) == "denied_by_hook"
    assert "The hook guard says: not on Sundays." in text(effects)


@behaviour("hooks:rewrite")
def test_each_hook_sees_what_the_one_before_it_has_made_of_the_arguments() -> None:
    rig = hooked(
        replace(BEFORE, name="first", rewrite=True), replace(BEFORE, name="second", rewrite=True), AFTER
    )
    first = run_of(rig.feed(called()))
    second = run_of(say(rig, first, "rewrite", body=RawJson(b'{"arguments":{"a":1}}')))
    assert (second.hook, second.arguments) == ("second", b'{"arguments":{"a":1}}')
    (call,) = of_kind(say(rig, second, "rewrite", body=RawJson(b'{"arguments":{"a":2}}')), Call)
    assert call.params == b'{"arguments":{"a":2}}'
    assert run_of(rig.answer(call.call)).arguments == b'{"arguments":{"a":2}}', "and after it what was sent"


def test_a_hook_that_may_not_rewrite_and_does_counts_as_failed() -> None:
    rig = hooked(BEFORE)
    assert code(say(rig, run_of(rig.feed(called())), "rewrite", body=OTHER)) == "hook_failed"


@behaviour("hooks:failure")
@pytest.mark.parametrize("closed", [True, False])
def test_a_hooks_own_setting_decides_if_its_failure_stops_the_call(closed: bool) -> None:
    rig = hooked(replace(BEFORE, closed=closed))
    effects = say(rig, run_of(rig.feed(called())), "failed", reason="it broke")
    assert bool(of_kind(effects, Call)) is not closed
    if closed:
        assert code(effects) == "hook_failed"
        assert "it broke" in text(effects)


@behaviour("hooks:failure")
@pytest.mark.parametrize("closed", [True, False])
def test_a_hook_that_hangs_fails_at_its_time_limit_and_is_ended(closed: bool) -> None:
    rig = hooked(replace(BEFORE, closed=closed, timeout_s=2.0))
    run = run_of(rig.feed(called()))
    assert rig.wait(1.9) == []
    effects = rig.wait(0.1)
    assert of_kind(effects, EndHook) == [EndHook(run.run, "guard")]
    assert bool(of_kind(effects, Call)) is not closed
    assert say(rig, run) == [], "what comes of it later is dropped"
    assert rig.core.hooks.tallies["guard"].timeouts == 1


def test_a_hook_that_hangs_holds_up_only_calls_that_it_is_for() -> None:
    rig = hooked(replace(BEFORE, match=(capability("mcp:a:*"),)))
    run_of(rig.feed(called("1")))
    assert of_kind(rig.feed(called("2", "b__y")), Call)


def test_patterns_and_profiles_say_which_calls_a_hook_is_for() -> None:
    rig = hooked(replace(BEFORE, match=(capability("mcp:b:*"), capability("tag:red")), profiles=("reader",)))
    assert of_kind(rig.feed(called("1", "b__y")), Call), "it is for agents with a profile"
    rig.feed(
        ev.SessionOpened(
            session=TWO, source=DAEMON, agent="", pid=1, carrier="shim", profile="reader", keeps=True
        )
    )
    rig.feed(ev.InitializeRequested(TWO, RawJson(b'"i"'), "2025-11-25", "x"))
    assert of_kind(rig.feed(called("1", "a__x", TWO)), Call), "another server's"
    assert run_of(rig.feed(called("2", "b__y", TWO))).hook == "guard"


def test_hooked_calls_are_in_flight_and_the_next_waits_in_line_until_they_are_over() -> None:
    rig = hooked(replace(BEFORE, match=(capability("mcp:a:*"),)))
    rig.feed(ev.LimitsRead(SessionBounds(max_open_calls=1), 10.0))
    run = run_of(rig.feed(called("1")))
    assert rig.feed(called("2", "b__y")) == []
    effects = say(rig, run, "deny")
    assert code(effects) == "denied_by_hook"
    assert of_kind(effects, Call), "its place is free"


def test_hooked_and_told_calls_count_for_the_profile_that_bounds_what_is_in_flight() -> None:
    of_a = replace(BEFORE, match=(capability("mcp:a:*"),), after=True)
    rig = hooked(of_a)
    rig.feed(ev.LimitsRead(SessionBounds(profiles={"reader": ProfileLimits(max_in_flight=1)}), 10.0))
    rig.feed(ev.SessionOpened(session=TWO, source=DAEMON, agent="", pid=1, carrier="shim", profile="reader"))
    rig.feed(ev.InitializeRequested(TWO, RawJson(b'"i"'), "2025-11-25", "x"))
    before = run_of(rig.feed(called("1", session=TWO)))
    assert rig.feed(called("2", "b__y", TWO)) == []
    (call,) = of_kind(say(rig, before), Call)
    after = run_of(rig.answer(call.call))
    assert [call.request for call in of_kind(say(rig, after), Call)] == [b"2"]


def test_a_call_that_has_passed_and_cannot_leave_is_the_first_of_its_line_and_not_looked_at_again() -> None:
    rig = hooked(BEFORE)
    run = run_of(rig.feed(called("1")))
    rig.unlink()
    assert say(rig, run) == []
    rig.core.check()
    effects = [
        *rig.feed(ev.SupervisorConnected(1_000_000, EPOCH)),
        *rig.feed(ev.RecordReceived(CallsRecorded([], []))),
    ]
    assert [call.request for call in of_kind(effects, Call)] == [b"1"]
    assert not of_kind(effects, BeginHook)


def test_a_cancelled_call_ends_the_run_of_its_hook_and_gets_no_answer() -> None:
    rig = hooked(BEFORE)
    run = run_of(rig.feed(called()))
    assert rig.feed(ev.RequestCancelled(ONE, RawJson(b"1"), "")) == [EndHook(run.run, "guard")]
    rig.core.check()
    assert say(rig, run, "failed") == []
    assert rig.core.hooks.tallies["guard"].verdicts["failed"] == 0, "that says nothing of the hook"


def test_an_agent_that_leaves_takes_its_hooked_calls_along() -> None:
    rig = hooked(BEFORE, AFTER)
    before = run_of(rig.feed(called("1")))
    (call,) = of_kind(say(rig, run_of(rig.feed(called("2")))), Call)
    after = run_of(rig.answer(call.call))
    effects = rig.feed(ev.SessionClosed(ONE))
    assert of_kind(effects, EndHook) == [EndHook(before.run, "guard")]
    assert of_kind(effects, SessionEnded) == [SessionEnded(ONE)], "the record need not keep its answer"
    assert not of_kind(effects, CancelCall) + of_kind(effects, AnswersWritten)
    rig.core.check()
    for run in (before, after):
        assert of_kind(say(rig, run), Reply) == []


def test_a_session_that_moves_takes_hooked_calls_to_its_new_pool() -> None:
    rig = hooked(BEFORE)
    run = run_of(rig.feed(called()))
    elsewhere, key = ev.SourceId("elsewhere"), PoolKey("a:2")
    rig.configure(elsewhere, key)
    rig.feed(ev.SessionSourceChanged(ONE, elsewhere))
    (call,) = of_kind(say(rig, run), Call)
    assert call.key == key


def test_a_call_whose_server_is_disabled_while_hooks_look_is_refused_when_they_have_let_it_pass() -> None:
    rig = hooked(BEFORE)
    run = run_of(rig.feed(called()))
    elsewhere = ev.SourceId("elsewhere")
    off = {ServerName("a"): DisabledServer("somebody said so")}
    rig.feed(
        ev.SourceRead(
            source=elsewhere, scope=Scope(()), specs=(), misconfigured={}, stop_first=frozenset(),
            max_processes=8, max_greeting=3, disabled=off,
        )
    )  # fmt: skip
    assert not of_kind(rig.feed(ev.SessionSourceChanged(ONE, elsewhere)), Reply)
    assert code(say(rig, run)) == "disabled"


def test_a_tool_that_is_held_while_hooks_look_is_refused_when_they_have_let_it_pass() -> None:
    rig = hooked(BEFORE)
    run = run_of(rig.feed(called()))
    elsewhere, key = ev.SourceId("elsewhere"), PoolKey("a:2")
    rig.feed(
        ev.SourceRead(
            source=elsewhere, scope=Scope((ScopeEntry(server=ServerName("a"), key=key, pin=PinId("p")),)),
            specs=(PoolSpec(key=key, server=ServerName("a"), argv=[], env={}, cwd="/", policy=Policy()),),
            misconfigured={}, stop_first=frozenset(), max_processes=8, max_greeting=3,
            pins={PinId("p"): Approved({})},
        )
    )  # fmt: skip
    rig.feed(ev.SessionSourceChanged(ONE, elsewhere))
    rig.catalog(key, "x")
    assert code(say(rig, run)) == "quarantined"


# --- after --------------------------------------------------------------------------------------------------


def told(rig: RecoveryRig, request: str = "1", body: RawJson = RESULT) -> tuple[CallId, BeginHook]:
    (call,) = of_kind(rig.feed(called(request)), Call)
    return call.call, run_of(rig.feed(CallAnswered(call.call, is_error=False, body=body)))


@behaviour("hooks:after")
def test_an_answer_is_said_when_the_hook_has_let_it_pass_and_no_sooner() -> None:
    rig = hooked(AFTER)
    call, run = told(rig)
    assert (run.outcome, run.body) == ("answered", RESULT)
    assert say(rig, run) == [Reply(ONE, RawJson(b"1"), False, RESULT, call)]


@behaviour("hooks:rewrite")
def test_a_rewritten_result_is_what_the_next_hook_and_the_agent_get() -> None:
    rig = hooked(replace(AFTER, rewrite=True), replace(AFTER, name="last"))
    call, run = told(rig)
    last = run_of(say(rig, run, "rewrite", body=OTHER))
    assert (last.hook, last.body) == ("last", OTHER)
    assert say(rig, last) == [Reply(ONE, RawJson(b"1"), False, OTHER, call)]


@behaviour("hooks:deny")
def test_an_answer_that_is_kept_back_is_an_error_that_says_that_the_call_has_run() -> None:
    rig = hooked(AFTER)
    call, run = told(rig)
    effects = say(rig, run, "deny", reason="it holds names")
    assert code(effects) == "answer_denied"
    (reply,) = of_kind(effects, Reply)
    assert reply.call == call, "the record forgets the answer when this is written"
    assert msgspec.json.decode(reply.body)["_meta"]["carpool/error"]["delivered"] == "maybe"


@behaviour("hooks:failure")
@pytest.mark.parametrize("closed", [True, False])
def test_a_failure_after_the_call_lets_the_answer_pass_or_keeps_it_back(closed: bool) -> None:
    rig = hooked(replace(AFTER, closed=closed, timeout_s=1.0))
    told(rig)
    effects = rig.wait(1.0)
    if closed:
        assert code(effects) == "answer_hook_failed"
    else:
        assert of_kind(effects, Reply)[0].body == RESULT


@behaviour("hooks:refused")
def test_hooks_hear_of_refused_and_lost_calls_and_change_nothing_about_them() -> None:
    rig = hooked(BEFORE, replace(AFTER, rewrite=True))
    effects = say(rig, run_of(rig.feed(called("1"))), "deny")
    assert code(effects) == "denied_by_hook"
    run = run_of(effects)
    assert (run.hook, run.outcome, run.code) == ("look", "refused", "denied_by_hook")
    assert say(rig, run, "rewrite", body=OTHER) == []
    (call,) = of_kind(say(rig, run_of(rig.feed(called("2")))), Call)
    lost = rig.feed(CallFailed(call.call, "instance_died", "maybe", ""))
    assert code(lost) == "instance_died"
    assert (run_of(lost).outcome, run_of(lost).code) == ("lost", "instance_died")


def test_a_hook_with_too_much_to_do_hears_of_no_more_ends_and_that_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hook_runs, "MAX_OUTCOMES", 5)
    rig = hooked(BEFORE, AFTER)
    rig.feed(ev.LimitsRead(SessionBounds(max_open_calls=4000), 10.0))
    for number in range(MAX_RUNNING + 5 + 3):
        say(rig, run_of(rig.feed(called(str(number)))), "deny")
    assert rig.core.hooks.tallies["look"].untold == 3
    rig.core.check()


def test_ends_of_large_calls_are_not_kept_for_a_hook_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_runs, "MAX_OUTCOME_BYTES", 4000)
    rig = hooked(BEFORE, AFTER)
    rig.feed(ev.LimitsRead(SessionBounds(max_open_calls=4000), 10.0))
    large = replace(called(), rest=RawJson(b"{%b}" % (b" " * 1200)))
    for number in range(MAX_RUNNING + 6):
        say(rig, run_of(rig.feed(replace(large, id=RawJson(b"%d" % number)))), "deny")
    assert rig.core.hooks.tallies["look"].untold == 3


def test_a_server_that_dies_while_hooks_look_at_its_answer_takes_nothing_back() -> None:
    rig = hooked(AFTER)
    call, run = told(rig)
    assert not of_kind(rig.unlink(), Reply)
    assert say(rig, run) == [Reply(ONE, RawJson(b"1"), False, RESULT, call)]


def test_a_link_that_was_down_does_not_let_go_of_an_answer_that_hooks_look_at() -> None:
    rig = hooked(AFTER)
    call, run = told(rig)
    rig.unlink()
    effects = rig.link(recorded(int(call), ended=True))
    assert [type(each) for each in effects if getattr(each, "call", None) == call] == []
    assert say(rig, run) == [Reply(ONE, RawJson(b"1"), False, RESULT, call)]


def test_answers_over_the_bound_count_as_failures_of_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_points, "MAX_HELD_BYTES", 4000)
    big = RawJson(b'{"content":[],"x":"%b"}' % (b"x" * 1000))
    rig = hooked(AFTER)
    runs = [told(rig, str(number), big)[1] for number in range(3)]
    (call,) = of_kind(rig.feed(called("last")), Call)
    effects = rig.feed(CallAnswered(call.call, is_error=False, body=big))
    assert code(effects) == "answer_hook_failed"
    assert of_kind(effects, LogLine)
    for run in runs:
        assert of_kind(say(rig, run), Reply)
    assert rig.core.hooks.held_bytes == 0


def test_an_answer_that_sends_the_agent_to_a_page_first_is_no_end_of_the_call() -> None:
    rig = hooked(AFTER)
    (call,) = of_kind(rig.feed(says()), Call)
    url = RawJson(b'{"mode":"url","url":"https://x.example","message":"m","elicitationId":"e"}')
    effects = rig.feed(
        CallAnswered(call.call, is_error=True, body=RawJson(b"{}"), urls_first=True, urls=(url,))
    )
    assert not of_kind(effects, BeginHook)


def test_a_call_whose_answer_hooks_see_is_not_offered_to_its_server_as_a_task() -> None:
    for rules, may in (((), True), ((AFTER,), False)):
        rig = hooked(*rules)
        asked = says()
        assert asked.by is not None
        (call,) = of_kind(rig.feed(replace(asked, by=replace(asked.by, tasks=True))), Call)
        assert call.tasks is may


# --- rounds, deaths, ends -----------------------------------------------------------------------------------


def test_a_call_in_rounds_is_looked_at_once_before_it_and_once_after_its_last_round() -> None:
    rig = hooked(BEFORE, AFTER)
    (call,) = of_kind(say(rig, run_of(rig.feed(says()))), Call)
    rig.ask(call.call, "q1", "key")
    (round_,) = [each for each in rig.wait(0.01) if hasattr(each, "inputs")]
    effects = rig.feed(says("2", state=round_.state, given={"key": RawJson(b"{}")}))
    assert not of_kind(effects, BeginHook)
    assert not of_kind(effects, Call)
    run = run_of(rig.answer(call.call))
    assert of_kind(say(rig, run), ReplyStateless)[0].id == b"2"


def test_an_answer_that_comes_while_the_agent_is_asked_is_looked_at_before_the_retry_gets_it() -> None:
    rig = hooked(AFTER)
    (call,) = of_kind(rig.feed(says()), Call)
    rig.ask(call.call, "q1", "key")
    (round_,) = [each for each in rig.wait(0.01) if hasattr(each, "inputs")]
    run = run_of(rig.answer(call.call))
    rig.core.check()
    assert say(rig, run) == []
    effects = rig.feed(says("2", state=round_.state, given={"key": RawJson(b"{}")}))
    assert of_kind(effects, ReplyStateless)[0].id == b"2"


@behaviour("hooks:broker-death")
def test_a_call_that_a_dead_brokers_hook_looked_at_is_new_and_an_answer_is_looked_at_again() -> None:
    rig = RecoveryRig()
    rig.feed(ev.HooksRead((BEFORE, AFTER)))
    effects = rig.resume(called("1"), called("2"))
    effects += rig.feed(ev.SupervisorConnected(1_000_000, EPOCH))
    remembered = ev.RecordReceived(
        CallsRecorded([RecordedSession(ONE, [])], [recorded(1, request="1", ended=True)])
    )
    effects += [*rig.feed(remembered), *rig.catalog(A, "x")]
    assert of_kind(effects, ResumeCall) == [ResumeCall(recorded(1).call)]
    before = run_of(effects)
    assert before.outcome == "", "the call that is in no record was never sent"
    after = run_of(rig.answer(recorded(1).call))
    assert after.outcome == "answered"
    assert of_kind(say(rig, after), Reply)[0].id == b"1"
    assert of_kind(say(rig, before), Call)


def test_an_end_that_is_meant_answers_what_hooks_look_at_as_what_it_is() -> None:
    rig = hooked(
        replace(BEFORE, match=(capability("mcp:b:*"),)), replace(AFTER, match=(capability("mcp:a:*"),))
    )
    rig.feed(called("1", "b__y"))
    told(rig, "2")
    effects = rig.feed(ev.EndRequested())
    assert {each.id: code([each]) for each in of_kind(effects, Reply)} == {b"1": "closing", b"2": "cut_off"}
    rig.core.check()


def test_a_carpool_that_drains_waits_for_answers_that_hooks_look_at() -> None:
    rig = hooked(AFTER)
    _, run = told(rig)
    assert rig.feed(ev.DrainRequested()) == []
    assert [type(each).__name__ for each in say(rig, run)] == ["Reply", "EndBroker"]


@behaviour("hooks:reload")
def test_a_hook_that_goes_while_it_has_calls_decides_these_and_the_next_has_none() -> None:
    rig = hooked(BEFORE, replace(BEFORE, name="second"))
    run = run_of(rig.feed(called("1")))
    rig.feed(ev.HooksRead(()))
    effects = say(rig, run)
    assert of_kind(effects, Call), "the second one is no more"
    assert of_kind(rig.feed(called("2")), Call)
    rig.core.check()


# --- many runs ----------------------------------------------------------------------------------------------


def test_runs_of_a_hook_beyond_its_bound_follow_in_order() -> None:
    rig = hooked(BEFORE)
    runs = [of_kind(rig.feed(called(str(number))), BeginHook) for number in range(MAX_RUNNING + 2)]
    assert [len(each) for each in runs] == [1] * MAX_RUNNING + [0, 0]
    assert rig.core.next_deadline() is not None
    assert run_of(say(rig, runs[0][0])).call == MAX_RUNNING + 1
    rig.core.check()


def test_a_run_that_does_not_begin_in_time_is_a_failure() -> None:
    rig = hooked(replace(BEFORE, timeout_s=QUEUE_TIMEOUT_S * 2))
    for number in range(MAX_RUNNING + 1):
        rig.feed(called(str(number)))
    assert code(rig.wait(QUEUE_TIMEOUT_S)) == "hook_failed"


def test_a_run_that_has_waited_too_long_does_not_begin_in_the_moment_in_which_others_end() -> None:
    rig = hooked(replace(BEFORE, timeout_s=QUEUE_TIMEOUT_S))
    for number in range(MAX_RUNNING + 1):
        rig.feed(called(str(number)))
    effects = rig.wait(QUEUE_TIMEOUT_S)
    assert not of_kind(effects, BeginHook)
    told = [msgspec.json.decode(each.body)["content"][0]["text"] for each in of_kind(effects, Reply)]
    assert len(told) == MAX_RUNNING + 1
    assert sum("too much to look at" in each for each in told) == 1


def test_counts_and_the_median_say_what_a_hook_does() -> None:
    rig = hooked(replace(BEFORE, rewrite=True, closed=False))
    for number, verdict in enumerate(["allow", "allow", "rewrite", "deny", "failed"]):
        run = run_of(rig.feed(called(str(number))))
        rig.now += 0.2
        say(rig, run, verdict, body=RawJson(b"{}"))  # type: ignore[arg-type]
    tally = rig.core.hooks.tallies["guard"]
    assert tally.verdicts == {"allow": 2, "deny": 1, "rewrite": 1, "failed": 1}
    assert tally.median_s == pytest.approx(0.2)


@behaviour("hooks:named")
def test_denials_in_a_row_are_counted_until_another_verdict() -> None:
    rig = hooked(BEFORE)
    counts = []
    for number, verdict in enumerate(["deny", "deny", "deny", "allow", "deny", "failed"]):
        say(rig, run_of(rig.feed(called(str(number)))), verdict, reason="why")  # type: ignore[arg-type]
        counts.append(rig.core.hooks.tallies["guard"].denied_in_a_row)
    assert counts == [1, 2, 3, 0, 1, 0]


def test_the_log_says_once_that_a_hook_fails_and_once_that_it_works_again_and_no_denials_reason() -> None:
    rig = hooked(BEFORE)
    notes: list[str] = []
    for number, verdict in enumerate(["failed", "failed", "deny", "allow"]):
        effects = say(rig, run_of(rig.feed(called(str(number)))), verdict, reason="why")  # type: ignore[arg-type]
        notes += [each.text for each in of_kind(effects, LogLine)]
    assert notes == [
        "the hook guard fails, so we refuse calls: why (c1)",
        "the hook guard works again",
    ]


def test_a_resource_that_hooks_look_at_is_never_given_from_what_was_read_before() -> None:
    rig = hooked()
    resources = [ResourceOffer("res://x", RawJson(b'{"uri":"res://x","name":"x"}'))]
    empty = RawJson(b"{}")
    rig.feed(Catalog(A, [], "", empty, empty, "2025-11-25", resources=resources, features=["resources"]))

    def read(request: str) -> list[Any]:
        return rig.feed(replace(called(request, "res://x"), method="resources/read"))

    (call,) = of_kind(read("1"), Call)
    contents = RawJson(b'{"contents":[]}')
    rig.feed(CallAnswered(call.call, is_error=False, body=contents, ttl_ms=60_000, public=True))
    assert not of_kind(read("2"), Call), "it is current still"
    rig.feed(ev.HooksRead((BEFORE,)))
    assert run_of(read("3")).method == "resources/read"


@behaviour("hooks:before")
@pytest.mark.parametrize(
    "uri",
    [
        "res://secret/x",
        "RES://secret/x",
        "res://%73ecret/x",
        "res://Secret/x",
        "res://open/../secret/x",
        "res://x/secret/x",
        "res:///secret/x",
        "res://me@secret/x",
        "res://secret:1/x",
        "res://secret/x?y",
        "res:secret/x",
    ],
)
def test_a_hook_for_resources_sees_reads_of_them_however_their_uri_is_spelled(uri: str) -> None:
    rig = hooked(replace(BEFORE, match=(capability("resource:a:res://secret/*"),)))
    offers = [ResourceOffer("res://open", RawJson(b'{"uri":"res://open","name":"x"}'))]
    empty = RawJson(b"{}")
    rig.feed(Catalog(A, [], "", empty, empty, "2025-11-25", resources=offers, features=["resources"]))
    effects = rig.feed(replace(called("1", uri), method="resources/read"))
    assert run_of(effects).target == uri
    assert not of_kind(effects, Call)
    assert of_kind(rig.feed(replace(called("2", "res://open"), method="resources/read")), Call)
