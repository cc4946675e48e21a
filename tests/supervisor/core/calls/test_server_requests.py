"""Asks of servers: their agent, their one answer, their end with their call, and the evidence they give."""

import json
from typing import Any

import pytest

from carpool_protocol.ids import (
    ABSENT,
    EMPTY_OBJECT,
    AskId,
    CallId,
    InstanceId,
    PoolKey,
    RawJson,
    ServerName,
    SessionId,
    WireId,
)
from carpool_protocol.link.messages import (
    AnswerAsk,
    AnswersWritten,
    AskOpened,
    AskWithdrawn,
    CallFailed,
    CancelCall,
    Catalog,
    ElicitationFinished,
    ForwardAskProgress,
    Policy,
    PoolSpec,
    SessionEnded,
)
from carpool_supervisor.core.calls import server_requests
from carpool_supervisor.core.calls.server_requests import MAX_OPEN_ASKS, TASKS_KEPT
from carpool_supervisor.core.calls.url_elicitations import MAX_ELICITATIONS
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.attribution import AskFacts, facts_of
from carpool_supervisor.core.model.effects import (
    CloseStdin,
    RecordEvidence,
    Spawn,
    WriteAskAnswer,
    WriteAskProgress,
    WriteCancel,
    WriteLogLine,
)
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.sharing import Evidence
from carpool_supervisor.core.model.trace_context import issued
from tests.behaviours import behaviour
from tests.kit.bytecodes import count_bytecodes
from tests.kit.supervisor_rig import LIFE, SupervisorRig, pool_spec

KEY, PLAIN = PoolKey("s:1"), PoolKey("p:1")
ONE, TWO = InstanceId(1), InstanceId(2)
ELICIT, SAMPLE = "elicitation/create", "sampling/createMessage"
QUESTION, YES = RawJson(b'{"message":"Sure?"}'), RawJson(b'{"action":"accept"}')
PERCENT = RawJson(b'{"progress":1}')


def spec(key: PoolKey, *, asking: bool, **policy: Any) -> PoolSpec:
    return pool_spec(key, Policy(min_instances=1, **policy), asking=asking)


def catalog(key: PoolKey = KEY) -> Catalog:
    return Catalog(key, [], "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25")


class AskingServerRig(SupervisorRig):
    """One server that may ask."""

    def __init__(self, *, asking: bool = True, probe_s: float = 10_000.0, **policy: Any) -> None:
        super().__init__(spec(KEY, asking=asking, probe_s=probe_s, **policy), now=0.0, broker=True)
        self.greet(ONE)

    def call(self, number: int, session: str = "a", key: PoolKey | None = None, **more: Any) -> Any:
        return super().call(number, session, key, **{"wants_progress": True, **more})

    def wire(self, number: int) -> WireId:
        return self.written[number].wire

    def ask(
        self,
        request: bytes = b"1",
        *,
        of: int | None = None,
        task: str | None = None,
        token: bytes = b"",
        method: str = ELICIT,
        elicitation: str = "",
        instance: InstanceId = ONE,
    ) -> list[Any]:
        """The server asks; `of`: it sends back the trace context of that call."""
        facts = facts_of(method, self.written[of].call.meta, LIFE) if of else AskFacts(method, task)
        found = self.feed(
            ev.ServerAsked(instance, RawJson(request), QUESTION, facts, RawJson(token), elicitation)
        )
        return told(found)

    def asked(self, request: bytes = b"1", **more: Any) -> AskId:
        [effect] = self.ask(request, **more)
        assert isinstance(effect, AskOpened)
        return effect.ask

    def answer_ask(self, ask: AskId) -> list[Any]:
        return told(self.feed(AnswerAsk(ask, is_error=False, body=YES)))

    def server_answers(self, number: int) -> list[Any]:
        answer = ev.ServerAnswered(ONE, self.wire(number), is_error=False, body=EMPTY_OBJECT)
        return told(self.feed(answer))

    def cancel(self, number: int) -> list[Any]:
        return told(self.feed(CancelCall(CallId(number), "no longer wanted")))


def told(effects: list[Any]) -> list[Any]:
    """What concerns asks."""
    kinds = (AskOpened, AskWithdrawn, WriteAskAnswer, WriteAskProgress, ElicitationFinished)
    return [each for each in effects if isinstance(each, kinds)]


def refused(effects: list[Any], request: bytes = b"1", instance: InstanceId = ONE) -> str:
    """The one answer to this request is an error: its text."""
    [effect] = [each for each in effects if isinstance(each, WriteAskAnswer)]
    assert (effect.instance, effect.id, effect.is_error) == (instance, RawJson(request), True)
    error = json.loads(effect.body)
    assert set(error) == {"code", "message"}
    return f"{error['code']} {error['message']}"


# --- whose question ----------------------------------------------------------------------------------------


def test_an_ask_names_the_capabilities_that_its_agent_needs() -> None:
    rig = AskingServerRig()
    rig.call(7)
    asked = ev.ServerAsked(ONE, RawJson(b"1"), QUESTION, AskFacts(ELICIT), ABSENT, needs=("elicitation.url",))
    [effect] = told(rig.feed(asked))
    assert effect.needs == ["elicitation.url"]


def test_a_question_reaches_the_agent_of_the_only_call_and_its_answer_the_server() -> None:
    rig = AskingServerRig()
    rig.call(7)
    [asked] = rig.ask(b'"x"', token=b'"t"')
    assert asked == AskOpened(CallId(7), asked.ask, ELICIT, QUESTION, wants_progress=True, needs=[])
    assert rig.answer_ask(asked.ask) == [WriteAskAnswer(ONE, RawJson(b'"x"'), is_error=False, body=YES)]


@behaviour("asks:answered-back")
def test_an_error_of_the_agent_passes_as_it_is() -> None:
    rig = AskingServerRig()
    rig.call(1)
    ask, error = rig.asked(), RawJson(b'{"code":-1,"message":"no"}')
    assert told(rig.feed(AnswerAsk(ask, is_error=True, body=error))) == [
        WriteAskAnswer(ONE, RawJson(b"1"), is_error=True, body=error)
    ]


def test_a_second_answer_and_one_to_an_unknown_ask_do_nothing() -> None:
    rig = AskingServerRig()
    rig.call(1)
    ask = rig.asked()
    rig.answer_ask(ask)
    assert rig.answer_ask(ask) == []
    assert rig.answer_ask(AskId("never")) == []
    assert told(rig.feed(ForwardAskProgress(ask, PERCENT))) == []


@behaviour("asks:attribution:traceparent")
def test_each_ask_of_twenty_overlapping_calls_reaches_its_own_by_the_trace_context() -> None:
    rig = AskingServerRig(max_in_flight=32)
    for number in range(1, 21):
        rig.call(number, f"s{number}")
    for number in reversed(range(1, 21)):
        [asked] = rig.ask(b"%d" % number, of=number)
        assert asked.call == number


@behaviour("asks:trace:fresh")
def test_each_written_call_has_a_context_of_its_own_also_after_a_lost_link() -> None:
    rig = AskingServerRig()
    rig.call(1)
    before = rig.written[1].call.meta
    rig.feed(ev.BrokerConnected(same=True))
    rig.feed(AnswersWritten([CallId(1)]))
    rig.call(1)
    assert rig.written[1].call.meta != before
    key = facts_of(ELICIT, rig.written[1].call.meta, LIFE).trace
    assert key is not None
    assert issued(LIFE, key)


@pytest.mark.parametrize(("asking", "method"), [(False, "tools/call"), (True, "tools/list")])
def test_a_call_whose_server_has_nothing_to_ask_is_written_as_it_came(asking: bool, method: str) -> None:
    rig = AskingServerRig(asking=asking)
    rig.call(1, method=method)
    assert rig.written[1].call.meta == ABSENT


@behaviour("asks:attribution:task")
def test_a_call_that_runs_as_a_task_is_told_by_the_task() -> None:
    rig = AskingServerRig()
    rig.call(1, "a")
    rig.call(2, "b")
    rig.feed(ev.TaskCreated(ONE, rig.wire(1), "T"))
    [asked] = rig.ask(task="T")
    assert asked.call == 1
    assert "-32603" in refused(rig.ask(b"2", task="U"), b"2")


def test_a_task_that_two_calls_claim_belongs_to_no_call() -> None:
    rig = AskingServerRig()
    rig.call(1, "a")
    rig.call(2, "b")
    rig.feed(ev.TaskCreated(ONE, rig.wire(1), "T"))
    rig.feed(ev.TaskCreated(ONE, rig.wire(2), "T"))
    refused(rig.ask(task="T"))


def test_task_ids_of_calls_that_are_over_are_forgotten_in_time() -> None:
    rig = AskingServerRig()
    for number in range(1, 2 * TASKS_KEPT):
        rig.call(number)
        rig.feed(ev.TaskCreated(ONE, rig.wire(number), f"T{number}"))
        rig.server_answers(number)
    assert len(rig.core.instances.by_id[ONE].tasks) <= TASKS_KEPT + 1
    rig.feed(ev.TaskCreated(ONE, WireId(9999), "made up"))
    assert "made up" not in rig.core.instances.by_id[ONE].tasks


def test_many_task_ids_of_one_open_call_cost_no_more_each_and_are_not_all_kept() -> None:
    def cost(tasks: int) -> int:
        rig = AskingServerRig()
        rig.call(1)
        wire = rig.wire(1)

        def create() -> None:
            for number in range(tasks):
                rig.feed(ev.TaskCreated(ONE, wire, f"T{number}"))

        count = count_bytecodes(create)
        kept = rig.core.instances.by_id[ONE].tasks
        assert len(kept) <= TASKS_KEPT + 2
        assert kept[f"T{tasks - 1}"] == wire
        return count

    assert cost(2000) < 5 * cost(500)


# --- refusals ----------------------------------------------------------------------------------------------


@behaviour("asks:attribution:outside-calls")
def test_a_question_outside_any_call_is_refused_and_shows_nothing() -> None:
    rig = AskingServerRig()
    for number in (1, 2):
        effects = rig.feed(ev.ServerAsked(ONE, RawJson(b"1"), QUESTION, AskFacts(ELICIT), ABSENT))
        assert "-32603" in refused(effects)
        assert not [each for each in effects if isinstance(each, (RecordEvidence, WriteLogLine, Catalog))]
        rig.call(number, method="resources/list")


def test_a_server_request_that_no_agent_answers_is_refused_as_an_unknown_method() -> None:
    rig = AskingServerRig()
    rig.call(1)
    assert "-32601" in refused(rig.ask(method="roots/list"))


@behaviour("asks:evidence", "asks:attribution:refused")
def test_an_ambiguous_question_is_refused_and_kept_as_evidence_once() -> None:
    rig = AskingServerRig(max_in_flight=8)
    rig.call(1, "a")
    rig.call(2, "b")
    effects = rig.feed(ev.ServerAsked(ONE, RawJson(b"1"), QUESTION, AskFacts(SAMPLE), ABSENT))
    assert "traceparent" in refused(effects)
    assert RecordEvidence(KEY, "asked_ambiguously", f"{SAMPLE} with calls of 2 sessions open") in effects
    assert [each.level for each in effects if isinstance(each, WriteLogLine)] == ["warning"]
    again = rig.feed(ev.ServerAsked(ONE, RawJson(b"2"), QUESTION, AskFacts(SAMPLE), ABSENT))
    assert not [each for each in again if isinstance(each, (RecordEvidence, WriteLogLine))]
    assert Spawn(TWO, KEY, ServerName("s"), 2) not in effects, "nothing on it is over: it is not tainted"


@behaviour("asks:ids:hostile")
def test_a_request_id_that_is_open_is_refused_and_the_first_goes_on() -> None:
    rig = AskingServerRig()
    rig.call(1)
    ask = rig.asked(b"5")
    assert "-32600" in refused(rig.ask(b"5"), b"5")
    assert len(rig.answer_ask(ask)) == 1
    rig.asked(b"5")


@behaviour("asks:ids:hostile")
def test_equal_request_ids_of_two_instances_are_two_asks() -> None:
    rig = AskingServerRig(sharing="serial", max_instances=2)
    rig.call(1, "a")
    rig.call(2, "b")
    rig.wait(1.0)
    rig.greet(TWO)
    places = {number: rig.written[number].instance for number in (1, 2)}
    assert set(places.values()) == {ONE, TWO}
    asks = {number: rig.ask(b"0", instance=place)[0] for number, place in places.items()}
    assert {number: asked.call for number, asked in asks.items()} == {1: 1, 2: 2}
    [answered] = rig.answer_ask(asks[2].ask)
    assert answered.instance == places[2]


def test_a_server_that_asks_on_and_on_is_refused_past_a_bound() -> None:
    rig = AskingServerRig()
    rig.call(1)
    asks = [rig.asked(b"%d" % number) for number in range(MAX_OPEN_ASKS)]
    assert len(set(asks)) == MAX_OPEN_ASKS
    assert "Wait" in refused(rig.ask(b"-1"), b"-1")
    rig.answer_ask(asks[3])
    rig.asked(b"-1")


def test_the_open_questions_of_a_server_are_bounded_in_bytes_and_each_agent_has_a_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_requests, "MAX_SERVER_BYTES", 1_000_000)
    rig = AskingServerRig()
    rig.call(1)
    quarter = RawJson(b'{"message":"%b"}' % (b"x" * 249_000))

    def ask(request: bytes, params: RawJson, of: int) -> list[Any]:
        facts = facts_of(ELICIT, rig.written[of].call.meta, LIFE)
        return told(rig.feed(ev.ServerAsked(ONE, RawJson(request), params, facts, ABSENT)))

    first, second = [*ask(b"1", quarter, 1), *ask(b"2", quarter, 1)]
    assert {type(first), type(second)} == {AskOpened}
    assert "bytes" in refused(ask(b"3", quarter, 1), b"3"), "the share of this agent is used up"
    assert type(ask(b"4", QUESTION, 1)[0]) is AskOpened, "a short one has room"
    rig.call(2, "other")
    assert type(ask(b"5", quarter, 2)[0]) is AskOpened, "another agent has a share of its own"
    rig.answer_ask(first.ask)
    assert type(ask(b"3", quarter, 1)[0]) is AskOpened


@behaviour("pressure:asks")
def test_a_server_has_a_share_for_the_open_questions_of_all_its_instances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_requests, "MAX_OPEN_BYTES", 1_000_000)
    monkeypatch.setattr(server_requests, "MAX_SERVER_BYTES", 10_000_000)
    rig = AskingServerRig(sharing="session", max_instances=4)
    quarter = RawJson(b'{"message":"%b"}' % (b"x" * 249_000))
    found: list[Any] = []
    for number, instance in enumerate((ONE, TWO, InstanceId(3)), 1):
        rig.call(number, f"agent {number}")
        if instance is not ONE:
            rig.greet(instance)
        facts = facts_of(ELICIT, rig.written[number].call.meta, LIFE)
        found += told(rig.feed(ev.ServerAsked(instance, RawJson(b"1"), quarter, facts, ABSENT)))
    assert [type(each) for each in found[:2]] == [AskOpened, AskOpened]
    assert "bytes" in refused(found[2:], b"1", instance=InstanceId(3))


@behaviour("pressure:asks")
def test_a_long_reason_of_a_server_that_withdraws_a_question_is_cut() -> None:
    rig = AskingServerRig()
    rig.call(1)
    ask = rig.asked()
    (withdrawn,) = told(rig.feed(ev.ServerCancelledAsk(ONE, RawJson(b"1"), "x" * 1_000_000)))
    assert withdrawn == AskWithdrawn(ask, "x" * server_requests.MAX_REASON_CHARS)


# --- what a question shows ---------------------------------------------------------------------------------


def test_the_first_question_of_a_server_is_kept_and_its_catalog_says_so_from_then_on() -> None:
    rig = AskingServerRig()
    rig.call(1)
    effects = rig.feed(ev.ServerAsked(ONE, RawJson(b"1"), QUESTION, AskFacts(SAMPLE), ABSENT))
    assert [each for each in effects if isinstance(each, RecordEvidence)] == [
        RecordEvidence(KEY, "asks", SAMPLE)
    ]
    assert [each.asks for each in effects if isinstance(each, Catalog)] == [True]
    again = rig.feed(ev.ServerAsked(ONE, RawJson(b"2"), QUESTION, AskFacts(SAMPLE), ABSENT))
    reread = rig.feed(ev.CatalogRead(ONE, catalog()))
    assert not [each for each in again + reread if isinstance(each, (RecordEvidence, Catalog))]


@pytest.mark.parametrize("kind", ["asks", "asked_ambiguously"])
def test_a_server_known_to_ask_from_an_earlier_life_is_said_to(kind: Any) -> None:
    rig = AskingServerRig()
    evidence = Evidence(kind=kind, first="2026-01-01T00:00:00Z", last="2026-01-01T00:00:00Z")
    effects = rig.feed(ev.KnowledgeChanged((ev.PoolKnowledge(KEY, None, (evidence,)),)))
    assert [each.asks for each in effects if isinstance(each, Catalog)] == [True]
    rig.call(1)
    effects = rig.feed(ev.ServerAsked(ONE, RawJson(b"1"), QUESTION, AskFacts(SAMPLE), ABSENT))
    assert not [each for each in effects if isinstance(each, (RecordEvidence, Catalog))]


# --- calls that are over -----------------------------------------------------------------------------------


@behaviour("asks:in-flight:after-cancel", "asks:in-flight:tainted-replaced")
def test_after_a_cancel_an_unsigned_question_is_refused_and_the_instance_replaced() -> None:
    rig = AskingServerRig(sharing="concurrent")
    rig.call(1, "a")
    rig.cancel(1)
    rig.call(2, "a")
    effects = rig.feed(ev.ServerAsked(ONE, RawJson(b"1"), QUESTION, AskFacts(ELICIT), ABSENT))
    assert "cancelled" in refused(effects)
    assert Spawn(TWO, KEY, ServerName("s"), 2) in effects
    assert rig.core.instances.by_id[ONE].state is InstanceState.DRAINING
    rig.call(3, "a")
    rig.greet(TWO)
    [asked] = rig.ask(instance=TWO)
    assert asked.call == 3, "the next call works"


def test_a_tainted_instance_on_which_nothing_is_open_is_told_why_before_it_ends() -> None:
    rig = AskingServerRig(sharing="concurrent")
    rig.call(1, "a")
    rig.cancel(1)
    effects = rig.feed(ev.ServerAsked(ONE, RawJson(b"1"), QUESTION, AskFacts(ELICIT), ABSENT))
    kinds = [type(each) for each in effects if isinstance(each, (WriteAskAnswer, CloseStdin))]
    assert kinds == [WriteAskAnswer, CloseStdin]
    assert rig.ask(b"2") == [], "nobody can tell it anything now"


def test_a_server_that_signs_its_questions_is_not_replaced_for_one_of_a_cancelled_call() -> None:
    rig = AskingServerRig(sharing="concurrent")
    rig.call(1, "a")
    rig.cancel(1)
    rig.call(2, "b")
    refused(rig.ask(of=1))
    assert rig.core.instances.by_id[ONE].state is InstanceState.SERVING
    [asked] = rig.ask(of=2)
    assert asked.call == 2


def test_a_held_instance_goes_on_asking_its_holder_after_a_cancel() -> None:
    rig = AskingServerRig(sharing="session")
    rig.call(1, "a")
    rig.cancel(1)
    rig.call(2, "a")
    [asked] = rig.ask()
    assert asked.call == 2
    assert rig.core.instances.by_id[ONE].state is InstanceState.SERVING


def test_a_call_from_before_the_link_was_lost_is_not_taken_for_one_of_its_namesake() -> None:
    rig = AskingServerRig(sharing="concurrent", max_in_flight=8)
    rig.call(1, "s1")
    rig.feed(ev.TaskCreated(ONE, rig.wire(1), "T"))
    rig.feed(ev.BrokerConnected(same=True))
    rig.feed(AnswersWritten([CallId(1)]))
    rig.call(1, "s1")
    assert rig.wire(1) == 2
    refused(rig.ask(task="T"))
    assert isinstance(rig.ask(b"2", of=1)[0], AskOpened)


def test_an_ask_of_an_answered_call_reaches_no_agent() -> None:
    rig = AskingServerRig()
    rig.call(1, "a")
    rig.server_answers(1)
    rig.call(2, "b")
    refused(rig.ask(of=1))


# --- how asks end ------------------------------------------------------------------------------------------


@behaviour("asks:withdrawn:call-over")
def test_an_ask_ends_at_both_ends_when_its_call_is_answered() -> None:
    rig = AskingServerRig()
    rig.call(1)
    ask = rig.asked()
    effects = rig.server_answers(1)
    assert "over" in refused(effects)
    assert [each.ask for each in effects if isinstance(each, AskWithdrawn)] == [ask]
    assert rig.answer_ask(ask) == []


@behaviour("asks:withdrawn:call-over")
def test_an_ask_ends_at_both_ends_when_its_call_is_cancelled() -> None:
    rig = AskingServerRig()
    rig.call(1)
    ask = rig.asked()
    effects = rig.cancel(1)
    refused(effects)
    assert [each.ask for each in effects if isinstance(each, AskWithdrawn)] == [ask]


def test_an_ask_ends_at_both_ends_when_the_answer_of_its_call_is_unreadable() -> None:
    rig = AskingServerRig()
    rig.call(1)
    ask = rig.asked()
    effects = rig.feed(ev.AnswerUnreadable(ONE, rig.wire(1), "bad_answer", "It was nonsense."))
    refused(effects)
    assert AskWithdrawn(ask, "the call that it was asked for is over") in effects


@behaviour("asks:withdrawn:call-over")
def test_an_ask_ends_at_both_ends_when_its_call_has_run_too_long() -> None:
    rig = AskingServerRig(max_total_s=100.0, timeout_s=10.0, ask_timeout_s=600.0)
    rig.call(1)
    ask = rig.asked()
    assert not told(rig.wait(99.0))
    effects = rig.wait(2.0)
    refused(told(effects))
    assert [each.fault for each in effects if isinstance(each, CallFailed)] == ["ran_too_long"]
    assert [each.ask for each in effects if isinstance(each, AskWithdrawn)] == [ask]


@behaviour("asks:withdrawn:instance-gone")
@pytest.mark.parametrize("how", ["exits", "is condemned"])
def test_an_ask_is_withdrawn_and_nothing_written_when_its_instance_is_lost(how: str) -> None:
    rig = AskingServerRig(probe_s=2.0, timeout_s=10.0, max_total_s=1000.0)
    rig.call(1)
    ask = rig.asked()
    if how == "exits":
        effects = rig.feed(ev.InstanceExited(ONE, "was killed by SIGKILL", (), "", 0.5))
    else:
        effects = rig.feed(ev.StdoutClosed(ONE)) + rig.wait(1.5)
    assert told(effects) == [AskWithdrawn(ask, "the server has ended")]
    assert rig.answer_ask(ask) == []


def test_a_call_that_was_never_written_may_ask_again_on_the_next_instance() -> None:
    rig = AskingServerRig(first_delay_s=0.1)
    rig.call(1)
    wire = rig.wire(1)
    rig.asked()
    rig.feed(ev.InstanceExited(ONE, "was killed by SIGKILL", (wire,), "", 0.5))
    rig.wait(1.0)
    first = rig.written[1].call.meta
    rig.greet(TWO)
    assert rig.written[1].call.meta != first, "a context of its own per time that it is written"
    [asked] = rig.ask(of=1, instance=TWO)
    assert asked.call == 1


@behaviour("asks:withdrawn:by-server")
def test_an_ask_that_the_server_withdraws_ends_at_the_agent_and_gets_no_answer() -> None:
    rig = AskingServerRig()
    rig.call(1)
    ask = rig.asked(b"5")
    assert told(rig.feed(ev.ServerCancelledAsk(ONE, RawJson(b"5"), "changed my mind"))) == [
        AskWithdrawn(ask, "changed my mind")
    ]
    assert rig.answer_ask(ask) == []
    assert told(rig.feed(ev.ServerCancelledAsk(ONE, RawJson(b"5"), ""))) == []


@behaviour("wait:ask-timeout")
def test_an_ask_that_no_agent_answers_ends_at_both_ends() -> None:
    rig = AskingServerRig(ask_timeout_s=30.0, timeout_s=10.0)
    rig.call(1)
    ask = rig.asked()
    assert not told(rig.wait(29.0))
    effects = told(rig.wait(2.0))
    assert "30 s" in refused(effects)
    assert [each.ask for each in effects if isinstance(each, AskWithdrawn)] == [ask]
    assert CallId(1) in rig.core.dispatcher.calls, "its call goes on"


@behaviour("asks:lost-link")
def test_a_broker_that_lost_touch_hears_of_no_ask_and_every_server_gets_an_answer() -> None:
    rig = AskingServerRig()
    rig.call(1)
    ask = rig.asked()
    effects = rig.feed(ev.BrokerConnected(same=True))
    refused(effects)
    assert not [each for each in effects if isinstance(each, AskWithdrawn)]
    assert [type(each) for each in effects if isinstance(each, (WriteAskAnswer, WriteCancel))] == [
        WriteAskAnswer,
        WriteCancel,
    ]
    assert rig.answer_ask(ask) == []


@behaviour("asks:agent-gone")
def test_asks_of_a_session_that_is_gone_are_answered_for_it() -> None:
    rig = AskingServerRig()
    rig.call(1, "a")
    ask = rig.asked()
    refused(rig.feed(SessionEnded(SessionId("b"))) or rig.feed(SessionEnded(SessionId("a"))))
    assert rig.answer_ask(ask) == []


def test_a_question_of_one_of_several_calls_of_a_session_stays_open_until_the_last_of_them_ends() -> None:
    rig = AskingServerRig()
    rig.call(1, "a")
    rig.call(2, "a")
    [asked] = rig.ask()
    assert asked.call == 2
    assert rig.server_answers(2) == [], "the other call may have asked it"
    effects = rig.server_answers(1)
    refused(effects)
    assert AskWithdrawn(asked.ask, "the call that it was asked for is over") in effects


@behaviour("asks:progress")
def test_the_agents_progress_reaches_a_server_that_wants_it_under_its_own_token() -> None:
    rig = AskingServerRig()
    rig.call(1)
    wanted, unwanted = rig.asked(b"1", token=b'"7"'), rig.asked(b"2")
    assert told(rig.feed(ForwardAskProgress(wanted, PERCENT))) == [
        WriteAskProgress(ONE, RawJson(b'"7"'), PERCENT)
    ]
    assert told(rig.feed(ForwardAskProgress(unwanted, PERCENT))) == []


# --- deadlines of calls (rule 14) --------------------------------------------------------------------------


def failures(effects: list[Any]) -> list[str]:
    return [each.fault for each in effects if isinstance(each, CallFailed)]


@behaviour("wait:ask-stops-idle")
def test_while_an_ask_is_open_the_idle_deadline_of_its_call_stands_still() -> None:
    rig = AskingServerRig(timeout_s=10.0, ask_timeout_s=600.0)
    rig.call(1)
    rig.wait(9.0)
    ask = rig.asked()
    assert not failures(rig.wait(500.0))
    rig.feed(ev.ServerProgressed(ONE, rig.wire(1), PERCENT))
    rig.answer_ask(ask)
    assert not failures(rig.wait(9.0)), "after the answer the server has its whole time again"
    assert failures(rig.wait(2.0)) == ["timed_out"]


def test_the_idle_deadline_runs_again_only_after_the_last_ask() -> None:
    rig = AskingServerRig(timeout_s=10.0)
    rig.call(1)
    first, second = rig.asked(b"1"), rig.asked(b"2")
    rig.answer_ask(first)
    assert not failures(rig.wait(50.0))
    rig.answer_ask(second)
    assert failures(rig.wait(11.0)) == ["timed_out"]


def test_the_idle_deadlines_of_all_calls_that_may_have_asked_stand_still() -> None:
    rig = AskingServerRig(timeout_s=10.0)
    rig.call(1, "a")
    rig.call(2, "a")
    ask = rig.asked()
    assert not failures(rig.wait(50.0))
    rig.answer_ask(ask)
    assert failures(rig.wait(11.0)) == ["timed_out", "timed_out"]


def test_the_total_deadline_of_a_call_runs_on_while_its_agent_is_asked() -> None:
    rig = AskingServerRig(timeout_s=10.0, max_total_s=40.0)
    rig.call(1)
    rig.asked()
    assert failures(rig.wait(41.0)) == ["ran_too_long"]


def test_an_ask_answered_shortly_before_the_total_deadline_leaves_that_in_force() -> None:
    rig = AskingServerRig(timeout_s=10.0, max_total_s=40.0)
    rig.call(1)
    ask = rig.asked()
    rig.wait(35.0)
    rig.answer_ask(ask)
    assert failures(rig.wait(6.0)) == ["ran_too_long"]


# --- URLs --------------------------------------------------------------------------------------------------

DONE = RawJson(b'{"elicitationId":"E"}')


@behaviour("pressure:asks")
def test_of_a_long_notification_that_a_url_is_done_only_the_id_is_passed_on() -> None:
    rig = AskingServerRig()
    rig.call(1)
    rig.asked(elicitation="E")
    params = RawJson(b'{"elicitationId":"E","more":"%b"}' % (b"x" * ev.MAX_NOTICE_BYTES))
    (finished,) = told(rig.feed(ev.ElicitationCompleted(ONE, "E", params)))
    assert finished == ElicitationFinished(SessionId("a"), DONE)


def ended(rig: AskingServerRig, elicitation: str = "E") -> list[Any]:
    return told(rig.feed(ev.ElicitationCompleted(ONE, elicitation, DONE)))


@behaviour("asks:elicitation:completion")
def test_an_agent_that_was_sent_to_a_url_hears_once_that_it_is_complete() -> None:
    rig = AskingServerRig()
    rig.call(1, "a")
    rig.answer_ask(rig.asked(elicitation="E"))
    rig.server_answers(1)
    assert ended(rig) == [ElicitationFinished(SessionId("a"), DONE)]
    assert ended(rig) == []


@behaviour("asks:elicitation:32042")
def test_urls_in_an_error_are_those_of_the_agent_whose_call_it_answers() -> None:
    rig = AskingServerRig()
    rig.call(1, "a")
    rig.call(2, "b")
    rig.feed(ev.UrlElicitationRequired(ONE, rig.wire(2), ("E", "F")))
    rig.feed(ev.UrlElicitationRequired(ONE, WireId(99), ("G",)))
    assert ended(rig, "F") == [ElicitationFinished(SessionId("b"), DONE)]
    assert ended(rig, "G") == []


def test_an_elicitation_id_that_two_sessions_were_given_reaches_neither() -> None:
    rig = AskingServerRig()
    rig.call(1, "a")
    rig.call(2, "b")
    rig.feed(ev.UrlElicitationRequired(ONE, rig.wire(1), ("E",)))
    rig.feed(ev.UrlElicitationRequired(ONE, rig.wire(1), ("E",)))
    rig.feed(ev.UrlElicitationRequired(ONE, rig.wire(2), ("E",)))
    assert ended(rig) == []


@behaviour("asks:elicitation:completion")
def test_a_session_that_is_gone_hears_nothing_and_no_later_one_hears_it_instead() -> None:
    rig = AskingServerRig()
    rig.call(1, "a")
    rig.feed(ev.UrlElicitationRequired(ONE, rig.wire(1), ("E",)))
    rig.cancel(1)
    rig.feed(SessionEnded(SessionId("a")))
    rig.call(2, "b")
    rig.feed(ev.UrlElicitationRequired(ONE, rig.wire(2), ("E",)))
    assert ended(rig) == []


def test_no_session_hears_of_old_urls_after_a_lost_link() -> None:
    rig = AskingServerRig()
    rig.call(1, "a")
    rig.feed(ev.UrlElicitationRequired(ONE, rig.wire(1), ("E",)))
    rig.feed(ev.BrokerConnected(same=True))
    assert ended(rig) == []


def test_the_oldest_elicitations_are_forgotten_past_a_bound() -> None:
    rig = AskingServerRig()
    rig.call(1, "a")
    names = tuple(f"E{number}" for number in range(MAX_ELICITATIONS + 1))
    rig.feed(ev.UrlElicitationRequired(ONE, rig.wire(1), names))
    assert ended(rig, "E0") == []
    assert len(ended(rig, "E1")) == 1


def test_urls_of_an_ended_instance_are_forgotten() -> None:
    rig = AskingServerRig(first_delay_s=0.1)
    rig.call(1, "a")
    rig.feed(ev.UrlElicitationRequired(ONE, rig.wire(1), ("E",)))
    rig.feed(ev.InstanceExited(ONE, "ended", (), "", 0.5))
    rig.wait(1.0)
    rig.greet(TWO)
    assert told(rig.feed(ev.ElicitationCompleted(TWO, "E", DONE))) == []
