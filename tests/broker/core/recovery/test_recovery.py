"""What becomes of sessions and open requests of a broker that died. Source: rule 4, docs/decisions/0019."""

from typing import Any

import msgspec
import pytest

from carpool_broker.core.model import events as ev
from carpool_broker.core.model.effects import (
    ForgetRecordedCall,
    Reply,
    SendListChanged,
    SetStatefulServers,
    SetSupervisorEpoch,
)
from carpool_broker.core.model.events import SourceId
from carpool_broker.core.recovery.recovery import RESUME_GRACE_S, UNREAD
from carpool_broker.transport.resume import SessionResume
from carpool_protocol.carrier.attach_line import ResumeSession
from carpool_protocol.ids import (
    EMPTY_OBJECT,
    CallId,
    Epoch,
    PoolKey,
    RawJson,
    ServerName,
    SessionId,
    call_of,
)
from carpool_protocol.link.messages import (
    AnswersWritten,
    Call,
    CallFailed,
    CallProgressed,
    CallsRecorded,
    CancelCall,
    Mode,
    OpenSessions,
    PoolChanged,
    RecordedSession,
    ResumeCall,
    SessionEnded,
    SessionNote,
    SessionNotResumable,
    SessionStateLost,
    SetLevel,
    SetPools,
)
from tests.behaviours import behaviour
from tests.broker.recovery_rig import (
    ALL,
    DAEMON,
    EPOCH,
    ONE,
    OTHER,
    RESULT,
    RETURN_S,
    TWO,
    A,
    B,
    RecoveryRig,
    called,
    recorded,
    says,
)
from tests.kit.effects import of_kind

OLD = call_of(0, 7)
SERVER = ServerName(A[0])
THREE = SessionId("s3")


def code(reply: Reply) -> str:
    return str(msgspec.json.decode(reply.body)["_meta"]["carpool/error"]["code"])


# --- open requests --------------------------------------------------------------------------------------


@behaviour("death:broker-pause")
@pytest.mark.parametrize("first", ["session", "record"])
@pytest.mark.parametrize("ended", [False, True])
def test_a_request_that_is_in_the_record_is_resumed_under_its_old_number_and_answered_once(
    first: str, ended: bool
) -> None:
    rig = RecoveryRig()
    effects = []
    if first == "session":
        assert of_kind(rig.resume(called()), ResumeCall) == [], "nothing is known yet"
        effects += rig.link(recorded(7, ended=ended))
    else:
        rig.link(recorded(7, ended=ended))
        effects += rig.resume(called())
    assert of_kind(effects, ResumeCall) == [ResumeCall(OLD)]
    assert of_kind(effects, Call) == []
    assert rig.answer(OLD) == [Reply(ONE, RawJson(b"1"), is_error=False, body=RESULT, call=OLD)]
    assert rig.answer(OLD) == []
    assert of_kind(rig.wait(100.0), CancelCall) == []


def test_progress_of_a_resumed_call_goes_to_its_agent_and_its_cancel_to_its_server() -> None:
    rig = RecoveryRig()
    rig.link(recorded(7))
    rig.resume(msgspec.structs.replace(called(), token=RawJson(b'"p"')))
    (told,) = rig.feed(CallProgressed(OLD, EMPTY_OBJECT))
    assert told.token == b'"p"'
    assert rig.feed(ev.RequestCancelled(ONE, RawJson(b"1"), "why")) == [CancelCall(OLD, "why")]


def test_a_resumed_call_that_the_record_has_lost_meanwhile_is_lost_here_too() -> None:
    rig = RecoveryRig()
    rig.link(recorded(7))
    rig.resume(called())
    (reply,) = rig.feed(CallFailed(OLD, "lost", "maybe", ""))
    assert code(reply) == "lost"


@behaviour("death:broker-pause")
def test_a_request_that_the_same_supervisor_does_not_know_is_a_new_call() -> None:
    rig = RecoveryRig()
    rig.link()
    (call,) = of_kind(rig.resume(called()), Call)
    assert call.call == call_of(1, 2), "of this broker"
    assert call.request == b"1"


@behaviour("reattach:used-again", "calls:one-answer")
@pytest.mark.parametrize(
    ("calls", "again", "becomes"),
    [
        ([], True, "new"),
        ([("other", True)], True, "new"),
        ([("other", True)], False, "new"),
        ([("other", False)], True, "new"),
        ([("same", True)], False, 7),
        ([("same", False)], True, 7),
        ([("same", True)], True, "lost"),
        ([("other", True), ("same", True)], False, 8),
        ([("same", True), ("other", True)], False, 7),
        ([("same", True), ("same", True)], True, "lost"),
        ([("same", True), ("same", True)], False, 8),
        ([("same", True), ("same", False)], True, 8),
        ([("", True)], False, 7),
        ([("", True)], True, "lost"),
    ],
)
@pytest.mark.parametrize("first", ["session", "record"])
def test_each_use_of_an_id_is_the_call_that_was_asked_for(
    calls: list[tuple[str, bool]], again: bool, becomes: int | str, first: str
) -> None:
    rig = RecoveryRig()
    told = [recorded(number, digest=digest, ended=ended) for number, (digest, ended) in enumerate(calls, 7)]
    asked = msgspec.structs.replace(called(), digest="same")
    used = frozenset([asked.id] if again else [])
    effects = rig.link(*told) if first == "record" else []
    rig.come(keeps=True)
    effects += rig.feed(ev.SessionResumed(ONE, EPOCH, (asked,), (), (), used))
    effects += rig.link(*told) if first == "session" else []
    rig.core.check()
    resumed = [call_of(0, becomes)] if isinstance(becomes, int) else []
    assert [each.call for each in of_kind(effects, ResumeCall)] == resumed
    sent = [call for call, open_call in rig.core.call_table.calls.items() if open_call.stage == "sent"]
    assert [call for call in sent if call not in resumed] == [call_of(1, 2)] * (becomes == "new")
    assert [code(each) for each in of_kind(effects, Reply) if each.id == asked.id] == ["link_broken"] * (
        becomes == "lost"
    )
    let_go = {each.call for each in of_kind(effects, ForgetRecordedCall)}
    assert let_go == {each.call for each in told} - set(resumed), "nobody waits for the others"


@behaviour("calls:honest-delivery")
@pytest.mark.parametrize("epoch", [OTHER, Epoch("")])
def test_a_request_that_another_supervisor_may_have_had_is_lost_and_not_run_again(epoch: Epoch) -> None:
    rig = RecoveryRig()
    rig.link()
    effects = rig.resume(called(), epoch=epoch)
    assert [code(reply) for reply in of_kind(effects, Reply)] == ["link_broken"]
    assert of_kind(effects, Call) == []


@pytest.mark.parametrize(
    ("name", "is_told", "server", "tool"),
    [
        ("a__x", True, "a", "x"),
        ("a__x", False, "a", "a__x"),
        ("y", True, "b", "y"),
        ("y", False, "", "y"),
        ("nobodys", True, "", "nobodys"),
    ],
)
def test_a_lost_request_is_told_as_lost_with_what_is_known_of_its_name(
    name: str, is_told: bool, server: str, tool: str
) -> None:
    rig = RecoveryRig()
    if is_told:
        rig.link()
        replies = rig.resume(called(name=name), epoch=OTHER)
    else:
        rig.resume(called(name=name), epoch=OTHER)
        replies = rig.wait(RETURN_S + 1.0)
    (reply,) = of_kind(replies, Reply)
    told = msgspec.json.decode(reply.body)
    error = told["_meta"]["carpool/error"]
    assert (error["server"], error["tool"]) == (server, tool)
    where = f"[{server}: {tool}] " if server else f"[{tool}] "
    assert told["content"][0]["text"].startswith(where)


def test_calls_past_what_can_come_back_are_lost_as_results_that_a_model_reads() -> None:
    rig = RecoveryRig()
    rig.link()
    most = (64 + 256) * UNREAD
    replies = of_kind(rig.resume(*(called(str(number)) for number in range(most + 1))), Reply)
    (lost,) = [reply for reply in replies if reply.id == b"%d" % most]
    assert code(lost) == "link_broken"


def test_a_request_does_not_wait_longer_for_a_record_than_a_session_may_take_to_return() -> None:
    rig = RecoveryRig()
    assert of_kind(rig.resume(called()), Reply) == []
    assert rig.wait(RETURN_S - 1.0) == []
    assert [code(reply) for reply in rig.wait(2.0)] == ["link_broken"]
    assert of_kind(rig.link(recorded(7)), CancelCall) == [
        CancelCall(OLD, "the agent does not wait for it", answered=True)
    ]


def test_a_request_that_waits_for_the_record_can_be_cancelled_and_is_not_taken_twice() -> None:
    rig = RecoveryRig()
    rig.resume(called())
    (twice,) = rig.feed(called())
    assert twice.is_error
    assert rig.feed(ev.RequestCancelled(ONE, RawJson(b"1"), "why")) == []
    assert of_kind(rig.link(recorded(7)), CancelCall) == [
        CancelCall(OLD, "the agent does not wait for it", answered=True)
    ]


def test_a_record_in_pieces_is_known_with_its_last_one() -> None:
    rig = RecoveryRig()
    rig.resume(called())
    rig.feed(ev.SupervisorConnected(1000, EPOCH))
    assert rig.feed(ev.RecordReceived(CallsRecorded([], [recorded(6, TWO)], last=False))) == []
    assert of_kind(rig.feed(ev.RecordReceived(CallsRecorded([], [recorded(7)]))), ResumeCall) == [
        ResumeCall(OLD)
    ]


def test_the_later_of_two_calls_with_one_id_is_the_open_one() -> None:
    rig = RecoveryRig()
    rig.link(recorded(9), recorded(7, ended=True))
    effects = rig.resume(called())
    assert of_kind(effects, ResumeCall) == [ResumeCall(call_of(0, 9))]
    assert of_kind(effects, ForgetRecordedCall) == [ForgetRecordedCall(ONE, OLD)]


def test_an_unclaimed_call_is_cancelled_and_an_ended_one_forgotten() -> None:
    rig = RecoveryRig()
    rig.link(recorded(7), recorded(8, request="2", ended=True))
    effects = rig.resume()
    assert of_kind(effects, CancelCall) == [CancelCall(OLD, "the agent does not wait for it", answered=True)]
    assert of_kind(effects, ForgetRecordedCall) == [
        ForgetRecordedCall(ONE, OLD),
        ForgetRecordedCall(ONE, call_of(0, 8)),
    ]


@behaviour("calls:isolation")
def test_a_session_finds_its_own_calls_only() -> None:
    rig = RecoveryRig()
    rig.link(recorded(7, TWO))
    (call,) = of_kind(rig.resume(called()), Call)
    assert call.session == ONE
    assert of_kind(rig.resume(called(session=TWO), session=TWO), ResumeCall) == [ResumeCall(OLD)]


def test_more_calls_than_a_session_may_have_open_are_resumed_and_new_ones_wait() -> None:
    rig = RecoveryRig()
    requests = [str(number) for number in range(64)]
    rig.link(*[recorded(number + 1, request=request) for number, request in enumerate(requests)])
    assert len(of_kind(rig.resume(*map(called, requests)), ResumeCall)) == 64
    assert rig.feed(called("new")) == []
    (reply, call) = rig.answer(call_of(0, 1))
    assert (reply.id, call.request) == (b"0", b"new")


def test_requests_past_every_bound_are_refused() -> None:
    rig = RecoveryRig()
    rig.link()
    replies = of_kind(rig.resume(*(called(str(number)) for number in range(64 + 256 + 1))), Reply)
    assert [reply.id for reply in replies] == [b"320"]
    assert b"too_many_calls" in replies[0].body


def test_a_pool_that_is_wanted_again_while_others_may_come_back_is_listed_as_before() -> None:
    """The supervisor tells nothing again of what it has not let go."""
    rig = RecoveryRig()
    rig.link(idle=(TWO,))
    rig.come()
    rig.configure(DAEMON, B)
    rig.configure(DAEMON, A, B)
    assert [tool.qualified for tool in rig.core.view_of(ONE).tools] == ["a__x", "b__y"]


def test_every_recorded_call_is_resumed_however_many_answers_the_agent_had_not_read() -> None:
    rig = RecoveryRig()
    requests = [str(number) for number in range(400)]
    rig.link(*(recorded(number, request=str(number), ended=True) for number in range(400)))
    assert len(of_kind(rig.resume(*map(called, requests)), ResumeCall)) == 400


def test_a_supervisor_that_goes_takes_resumed_calls_with_it() -> None:
    rig = RecoveryRig()
    rig.link(recorded(7))
    rig.resume(called())
    assert [code(reply) for reply in rig.unlink()] == ["link_broken"]


def test_after_a_broken_link_the_same_supervisor_is_told_what_has_ended_here() -> None:
    rig = RecoveryRig()
    rig.link()
    rig.come()
    (call,) = rig.feed(called())
    rig.unlink()
    again = recorded(0)
    effects = rig.link(msgspec.structs.replace(again, call=call.call))
    assert of_kind(effects, CancelCall) == [CancelCall(call.call, "the link was down", answered=True)]
    assert of_kind(effects, ResumeCall) == []


@behaviour("calls:honest-delivery")
@pytest.mark.parametrize("came", ["anew", "back"])
def test_a_call_that_ended_with_the_link_is_remembered_until_its_agent_has_read_the_error(came: str) -> None:
    rig = RecoveryRig()
    rig.link()
    if came == "anew":
        rig.come()
        (call,) = rig.feed(called())
    else:
        (call,) = of_kind(rig.resume(called()), Call)
    assert [code(reply) for reply in rig.unlink()] == ["link_broken"]
    effects = rig.link(msgspec.structs.replace(recorded(0, ended=True), call=call.call))
    assert of_kind(effects, AnswersWritten) == [], "the reply may be unread"
    assert of_kind(effects, ForgetRecordedCall) == [ForgetRecordedCall(ONE, call.call)]


def test_a_call_that_ended_with_the_link_is_forgotten_when_its_agent_is_gone() -> None:
    rig = RecoveryRig()
    rig.link()
    rig.come()
    (call,) = rig.feed(called())
    rig.unlink()
    rig.feed(ev.SessionClosed(ONE))
    effects = rig.link(msgspec.structs.replace(recorded(0, ended=True), call=call.call))
    assert of_kind(effects, SessionEnded) == [SessionEnded(ONE)]
    assert of_kind(effects, ForgetRecordedCall) == []


def test_call_numbers_of_two_brokers_never_meet() -> None:
    numbers = []
    for life in (0, 1):
        rig = RecoveryRig(life=life)
        rig.link()
        rig.come()
        numbers.append(of_kind(rig.feed(called()), Call)[0].call)
    assert numbers == [CallId(1), call_of(1, 1)]


# --- sessions -------------------------------------------------------------------------------------------


def notes(effects: list[Any]) -> list[list[SessionId]]:
    return [[note.session for note in each.live] for each in of_kind(effects, OpenSessions)]


@behaviour("death:broker-pause")
@pytest.mark.parametrize("known", [True, False])
def test_a_resumed_session_with_a_list_hears_of_a_change_also_when_the_catalog_comes_later(
    known: bool,
) -> None:
    """What became of the list between two brokers nobody has told it, and its answer here it does not see."""
    rig = RecoveryRig()
    if known:
        rig.link()
    rig.come(keeps=True)
    listed = rig.feed(ev.ListPageRequested(ONE, RawJson(b'"l"'), None))
    told = rig.feed(ev.SessionResumed(ONE, EPOCH, (), ()))
    if not known:
        assert of_kind([*listed, *told], Reply) == []
        rig.feed(ev.SupervisorConnected(1_000_000, EPOCH))
        rig.feed(ev.RecordReceived(CallsRecorded([], [])))
        told = [*rig.catalog(A, "x"), *rig.catalog(B, "y")]
    assert of_kind([*listed, *told], Reply)
    assert of_kind(told, SendListChanged) == [SendListChanged(ONE)]
    assert of_kind(rig.catalog(B, "z"), SendListChanged) == [], "it has not listed again"


def test_a_first_broker_waits_for_no_session() -> None:
    rig = RecoveryRig(life=0)
    assert [each.complete for each in rig.feed(ev.SupervisorConnected(1000, EPOCH))] == [True]
    effects = rig.feed(ev.RecordReceived(CallsRecorded([], [])))
    assert notes(effects) == [[]]
    assert of_kind(effects, SetPools) == []


@behaviour("death:broker-pause")
def test_remembered_pools_and_sessions_stay_until_all_sessions_are_back() -> None:
    rig = RecoveryRig()
    assert [each.complete for each in rig.feed(ev.SupervisorConnected(1000, EPOCH))] == [False]
    assert notes(rig.feed(ev.RecordReceived(CallsRecorded([], [recorded(7), recorded(8, TWO)])))) == [
        [ONE, TWO]
    ]
    assert of_kind(rig.resume(called()), SetPools) == []
    assert of_kind(rig.wait(RESUME_GRACE_S + 1.0), SetPools) == [], "one may still come"
    effects = rig.resume(called(session=TWO), session=TWO)
    assert [each.complete for each in of_kind(effects, SetPools)] == [True]
    assert notes(effects) == [[ONE, TWO]]
    assert rig.core.recovery.everybody


def test_sessions_of_which_nothing_is_remembered_are_waited_for_too() -> None:
    rig = RecoveryRig()
    assert [each.complete for each in of_kind(rig.link(), SetPools)] == []
    rig.resume()
    assert [each.complete for each in of_kind(rig.wait(RESUME_GRACE_S), SetPools)] == [True]


def test_a_session_that_is_not_back_in_time_is_gone_and_its_calls_are_cancelled() -> None:
    rig = RecoveryRig()
    rig.link(recorded(7), recorded(8, request="2", ended=True), recorded(9, request="3", parked=True))
    effects = rig.wait(RETURN_S)
    cancelled = [(each.call, each.reason) for each in of_kind(effects, CancelCall)]
    assert cancelled == [(OLD, "the agent is gone"), (call_of(0, 9), "the agent is gone")]
    assert of_kind(effects, SessionEnded) == [SessionEnded(ONE)]
    assert notes(effects) == [[]]
    assert rig.core.next_deadline() is None


@behaviour("record:nothing-runs-twice")
@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("by", ["time", "itself"])
def test_no_call_of_a_session_is_forgotten_before_the_session_is_known_to_be_gone(
    ended: bool, by: str
) -> None:
    """Else, if the broker dies between the two, a carrier that comes back is told nothing of it, and it runs
    again.
    """
    rig = RecoveryRig()
    rig.link(recorded(7, ended=ended))
    if by == "itself":
        rig.resume(called())
    gone = rig.feed(ev.SessionClosed(ONE)) if by == "itself" else rig.wait(RETURN_S)
    assert of_kind(gone, SessionEnded) == [SessionEnded(ONE)]
    assert of_kind(gone, AnswersWritten) == []
    assert all(each.answered for each in of_kind(gone, CancelCall))


@behaviour("calls:honest-delivery")
def test_a_session_that_comes_too_late_finds_its_calls_lost_and_none_is_run_again() -> None:
    rig = RecoveryRig()
    rig.link(recorded(7))
    rig.wait(RETURN_S)
    effects = rig.resume(called())
    assert [code(reply) for reply in of_kind(effects, Reply)] == ["link_broken"]
    assert of_kind(effects, Call) == []


def test_a_session_without_open_calls_may_resume_after_all_awaited_ones() -> None:
    rig = RecoveryRig()
    rig.wait(100.0)
    found = [rig.core.recovery.may_return]  # no supervisor has told what it remembers
    rig.link()
    rig.wait(RESUME_GRACE_S + 1.0)
    assert rig.core.recovery.everybody
    rig.unlink()
    rig.link(epoch=OTHER)
    found.append(rig.core.recovery.may_return)
    rig.wait(RETURN_S - RESUME_GRACE_S)
    found.append(rig.core.recovery.may_return)
    rig.unlink()
    rig.link()
    found.append(rig.core.recovery.may_return)
    assert found == [True, True, False, False]


def test_an_agent_that_leaves_before_the_record_comes_is_awaited_no_more() -> None:
    rig = RecoveryRig()
    rig.resume(called())
    rig.feed(ev.SessionClosed(ONE))
    effects = rig.link(recorded(7), held={ONE: [SERVER]})
    assert of_kind(effects, CancelCall) == [CancelCall(OLD, "the agent is gone", answered=True)]
    assert of_kind(effects, SessionEnded) == [SessionEnded(ONE)]
    assert notes(effects) == [[]]


def test_an_agent_that_comes_back_and_leaves_takes_all_of_its_record_along() -> None:
    rig = RecoveryRig()
    rig.link(recorded(7, parked=True), recorded(8, request="2"))
    rig.resume(called("2"))
    effects = rig.feed(ev.SessionClosed(ONE))
    assert {each.call for each in of_kind(effects, CancelCall)} == {OLD, call_of(0, 8)}
    assert effects.index(SessionEnded(ONE)) > max(map(effects.index, of_kind(effects, CancelCall)))


def test_a_later_supervisor_hears_which_state_of_a_session_is_lost() -> None:
    rig = RecoveryRig()
    rig.link(held={ONE: [SERVER]})
    rig.resume()
    rig.feed(PoolChanged(A, "serving", "", None, "session"))
    rig.unlink()
    (said,) = of_kind(rig.link(epoch=OTHER), OpenSessions)
    assert said.live == [SessionNote(ONE, [SERVER])]


@behaviour("lease:never-silently")
def test_a_later_supervisor_hears_of_lost_state_before_its_session_resumes() -> None:
    """It would run on a fresh instance there, and nothing would tell it (the simulated world, seed 1)."""
    rig = RecoveryRig()
    rig.link(held={ONE: [SERVER]})
    rig.unlink()
    (said,) = of_kind(rig.link(epoch=OTHER), OpenSessions)
    assert said.live == [SessionNote(ONE, [SERVER])]
    rig.resume()
    rig.unlink()
    (said,) = of_kind(rig.link(epoch=EPOCH), OpenSessions)
    assert said.live == [SessionNote(ONE, [SERVER])], "that one died too, before it had told"


@behaviour("lease:never-silently")
@pytest.mark.parametrize(("mode", "lost"), [("session", [SERVER]), ("concurrent", [])])
def test_state_that_a_call_of_the_record_may_have_left_is_lost_with_the_supervisor_as_well(
    mode: Mode, lost: list[ServerName]
) -> None:
    """The call was placed when the record had been told (the simulated world, an hour of it)."""
    rig = RecoveryRig()
    rig.link(recorded(7))
    rig.feed(PoolChanged(A, "serving", "", None, mode))
    rig.unlink()
    (said,) = of_kind(rig.link(epoch=OTHER), OpenSessions)
    assert [note.bereft for note in said.live] == [lost] * bool(lost)


def test_state_is_lost_also_when_the_supervisor_dies_before_its_session_resumes() -> None:
    rig = RecoveryRig()
    rig.link(held={ONE: [SERVER]})
    rig.unlink()
    rig.resume()
    (said,) = of_kind(rig.link(epoch=OTHER), OpenSessions)
    assert said.live == [SessionNote(ONE, [SERVER])]


@behaviour("death:broker-frees-plain")
def test_an_unresumable_session_is_announced_as_such_before_its_first_call() -> None:
    rig = RecoveryRig()
    rig.link()
    rig.feed(ev.SessionOpened(session=ONE, source=DAEMON, agent="", pid=1, carrier="client", fleeting=True))
    rig.feed(ev.InitializeRequested(ONE, RawJson(b'"i"'), "2025-11-25", "x", ALL))
    assert [type(each) for each in rig.feed(called())] == [SessionNotResumable, Call]
    assert [type(each) for each in rig.feed(called("2"))] == [Call]
    assert [type(each) for each in rig.feed(called("3", "b__y"))] == [Call]
    rig.unlink()
    (said,) = of_kind(rig.link(epoch=OTHER), OpenSessions)
    assert said.live == [SessionNote(ONE, fleeting=True)], "a supervisor that comes hears it with the others"


# --- state that only the carrier knows of ---------------------------------------------------------------


@behaviour("lease:everything-died")
@pytest.mark.parametrize("first", ["session", "record"])
@pytest.mark.parametrize("epoch", [OTHER, Epoch("")])
def test_a_session_that_no_supervisor_knows_is_said_to_have_lost_what_its_carrier_remembers(
    first: str, epoch: Epoch
) -> None:
    rig = RecoveryRig()
    if first == "session":
        effects = rig.resume(stateful=("b", "gone"), epoch=epoch)
        assert of_kind(effects, SessionStateLost) == []
        effects = rig.link()
    else:
        rig.link()
        effects = rig.resume(stateful=("b", "gone"), epoch=epoch)
    assert of_kind(effects, SessionStateLost) == [SessionStateLost(ONE, [ServerName("b")])]


@behaviour("lease:everything-died")
def test_a_session_that_the_supervisor_knows_has_lost_nothing() -> None:
    rig = RecoveryRig()
    rig.link(held={ONE: [SERVER]})
    effects = rig.resume(stateful=("a",))
    assert of_kind(effects, SessionStateLost) == []
    assert of_kind(effects, SetStatefulServers) == [SetStatefulServers(ONE, (ServerName("a"),))], (
        "its carrier goes on"
    )


def test_a_session_that_comes_too_late_has_lost_its_state() -> None:
    rig = RecoveryRig()
    rig.feed(ev.SupervisorConnected(1000, EPOCH))
    rig.feed(ev.RecordReceived(CallsRecorded([RecordedSession(ONE, gone=True)], [])))
    assert of_kind(rig.resume(stateful=("a",)), SessionStateLost) == [
        SessionStateLost(ONE, [ServerName("a")])
    ]


def test_the_loss_is_said_before_any_call_of_the_session() -> None:
    rig = RecoveryRig()
    rig.link()
    rig.resume(stateful=("a",), epoch=OTHER)
    (call,) = of_kind(rig.feed(called()), Call)
    assert call.key == A
    rig = RecoveryRig()
    rig.resume(stateful=("a",), epoch=OTHER)
    rig.feed(called("2"))
    rig.catalog(A, "x")
    effects = rig.link()
    kinds = [type(each) for each in effects if isinstance(each, SessionStateLost | Call)]
    assert kinds == [SessionStateLost, Call]


def test_a_carrier_hears_of_a_server_in_mode_session_when_the_first_call_goes_there_and_only_then() -> None:
    rig = RecoveryRig()
    rig.link()
    rig.come(keeps=True)
    rig.feed(PoolChanged(A, "serving", "", None, "session"))
    rig.feed(PoolChanged(B, "serving", "", None, "concurrent"))
    assert of_kind(rig.feed(called("1", "b__y")), SetStatefulServers) == []
    effects = rig.feed(called("2"))
    assert [type(each) for each in effects] == [SetStatefulServers, Call]
    assert effects[0].servers == ("a",)
    assert of_kind(rig.feed(called("3")), SetStatefulServers) == []


def test_a_carrier_hears_of_a_server_that_turns_out_to_keep_state_after_it_was_called() -> None:
    rig = RecoveryRig()
    rig.link()
    rig.come()
    rig.come(TWO, keeps=True)
    rig.come(THREE, fleeting=True)
    rig.feed(called())
    rig.feed(called(session=THREE))
    told = of_kind(rig.feed(PoolChanged(A, "serving", "", None, "session")), SetStatefulServers)
    assert told == [SetStatefulServers(ONE, (ServerName("a"),))], (
        "not who has not called, or does not come back"
    )


# --- what is told ---------------------------------------------------------------------------------------


def test_carriers_may_say_the_new_supervisor_only_when_what_they_had_sent_under_another_is_answered() -> None:
    rig = RecoveryRig()
    rig.resume(called(), epoch=OTHER)
    rig.come(TWO)
    rig.feed(ev.SupervisorConnected(1000, EPOCH))
    effects = rig.feed(ev.RecordReceived(CallsRecorded([], [])))
    assert set(of_kind(effects, SetSupervisorEpoch)) == {
        SetSupervisorEpoch(ONE, EPOCH),
        SetSupervisorEpoch(TWO, EPOCH),
    }
    (lost,) = of_kind(effects, Reply)
    assert effects.index(lost) < effects.index(SetSupervisorEpoch(ONE, EPOCH))


def test_a_supervisor_gets_no_call_before_its_record_has_come() -> None:
    rig = RecoveryRig()
    rig.come()
    assert [type(each) for each in rig.feed(ev.SupervisorConnected(1000, EPOCH))] == [SetPools]
    assert of_kind(rig.feed(called()), Call) == []
    effects = rig.feed(ev.RecordReceived(CallsRecorded([], [])))
    assert of_kind(effects, Call) == [], "no catalog has come"
    (call,) = of_kind(rig.catalog(A, "x"), Call)
    assert call.request == b"1"


def test_a_catalog_that_comes_before_the_session_which_wants_its_pool_is_kept() -> None:
    rig = RecoveryRig()
    project, key = SourceId("project"), PoolKey("p:1")
    rig.link(recorded(7))
    rig.catalog(key, "z")
    rig.feed(PoolChanged(key, "serving", "", None, "session"))
    rig.configure(project, key)
    rig.come(source=project)
    rig.feed(ev.SessionResumed(ONE, EPOCH, (), ()))
    assert [tool.qualified for tool in rig.core.view_of(ONE).tools] == ["p__z"]
    assert rig.core.states[key].mode == "session"


def test_log_levels_and_subscriptions_are_sent_once_resumed_sessions_have_set_them() -> None:
    rig = RecoveryRig()
    rig.link(recorded(7), idle=(TWO,))
    rig.come()
    effects = rig.feed(ev.LogLevelRequested(ONE, RawJson(b"5"), "info"))
    effects += rig.feed(ev.SessionResumed(ONE, EPOCH, (called(),), ()))
    assert of_kind(effects, SetLevel) == [], "what the broker before had said is still in force"
    later = rig.wait(RESUME_GRACE_S)
    assert of_kind(later, SetLevel) == [SetLevel(A, "info"), SetLevel(B, "info")]
    assert of_kind(rig.wait(RETURN_S), SetLevel) == []


@pytest.mark.parametrize("first", ["session", "record"])
def test_a_new_call_of_a_stateless_agent_that_can_be_asked_goes_where_it_can_be(first: str) -> None:
    rig = RecoveryRig()
    asking = PoolKey("a:1?")
    rig.configure(DAEMON, A, B, twins={A: asking})
    effects = []
    if first == "session":
        rig.resume(says(), greets=False)
        effects += rig.link()
    else:
        rig.link()
        effects += rig.resume(says(), greets=False)
    effects += rig.catalog(asking, "x")
    effects += rig.feed(PoolChanged(asking, "serving", "", None, "concurrent"))
    assert [call.key for call in of_kind(effects, Call)] == [asking]


def test_a_greeting_that_was_not_answered_is_heard_before_the_requests_that_came_after_it() -> None:
    back = SessionResume(ONE, EPOCH, ResumeSession(session=ONE, secret="", open=3))
    greeting = ev.InitializeRequested(ONE, RawJson(b"0"), "2025-11-25", "x", ALL)
    for meaning in (greeting, ev.InitializedReceived(ONE), called()):
        back.is_replayed(b"")
        back.add(meaning)
    resumed, rest = back.finish()
    assert back.greetings == [greeting, ev.InitializedReceived(ONE)]
    assert [call.id for call in resumed.calls] == [b"1"]
    assert rest == []


def test_a_request_whose_id_was_open_already_is_refused_by_the_next_broker_as_well() -> None:
    back = SessionResume(ONE, EPOCH, ResumeSession(session=ONE, secret="", open=2))
    for name in ("a__x", "b__y"):
        back.is_replayed(b"")
        back.add(called(name=name))
    resumed, rest = back.finish()
    assert [call.name for call in resumed.calls] == ["a__x"]
    assert [again.name for again in rest if isinstance(again, ev.CallRequested)] == ["b__y"]


def test_a_failure_names_the_call_as_people_see_it() -> None:
    rig = RecoveryRig()
    rig.link(recorded(7))
    rig.come()
    [call] = of_kind(rig.feed(called()), Call)
    [reply] = of_kind(rig.feed(CallFailed(call.call, "unheard_of", "maybe", "It is gone.")), Reply)
    assert b"c1.1" in reply.body


@behaviour("death:broker-pause")
def test_a_session_that_the_broker_before_had_dropped_does_not_have_its_calls_run_anew() -> None:
    rig = RecoveryRig()
    rig.feed(ev.SupervisorConnected(1_000_000, EPOCH))
    rig.feed(ev.RecordReceived(CallsRecorded([RecordedSession(ONE, gone=True)], [])))
    rig.catalog(A, "x")
    effects = rig.resume(called())
    assert of_kind(effects, Call) == []
    assert [code(reply) for reply in of_kind(effects, Reply) if reply.id == b"1"] == ["link_broken"]


def test_a_stopped_pool_that_is_wanted_again_causes_no_passing_list_change() -> None:
    rig = RecoveryRig()
    rig.configure(DAEMON)
    rig.feed(ev.SupervisorConnected(1_000_000, EPOCH))
    rig.feed(ev.RecordReceived(CallsRecorded([RecordedSession(TWO)], [])))
    rig.catalog(A, "x")
    rig.feed(PoolChanged(A, "stopped", "", None, "session"))
    rig.come(ONE)
    rig.feed(ev.ListPageRequested(ONE, RawJson(b"1"), None))
    assert of_kind(rig.configure(DAEMON, A), SendListChanged) == []
    assert of_kind(rig.feed(PoolChanged(A, "serving", "", None, "session")), SendListChanged) == [
        SendListChanged(ONE, "tools")
    ]
