"""The core with servers of the stateless era: asks with a certain agent, and pauses."""

from typing import Any, Final

import pytest

from carpool_protocol.ids import (
    ABSENT,
    CallId,
    InstanceId,
    PoolKey,
    RawJson,
    SessionId,
    WireId,
    part_of,
)
from carpool_protocol.link.messages import (
    AnswerAsk,
    AskOpened,
    AskWithdrawn,
    Call,
    CallFailed,
    CancelCall,
    Policy,
    SetLevel,
)
from carpool_supervisor.core.calls import dispatcher, placement
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.effects import (
    RecordEvidence,
    Spawn,
    WriteAskAnswer,
    WriteCall,
    WriteCancel,
    WriteLevel,
    WriteRetry,
)
from tests.behaviours import behaviour
from tests.kit.effects import of_kind
from tests.kit.supervisor_rig import SupervisorRig, catalog_of, pool_spec

KEY: Final = PoolKey("s:1")
ME: Final = InstanceId(1)
ELICIT, SAMPLE = "elicitation/create", "sampling/createMessage"


class StatelessServerRig(SupervisorRig):
    """One server of the stateless era that may ask."""

    def __init__(self, **policy: Any) -> None:
        policies = Policy(min_instances=1, probe_s=10_000.0, **policy)
        super().__init__(pool_spec(KEY, policies, asking=True, era="stateless"), now=0.0, broker=True)
        self.greet(ME, catalog_of(KEY, features=["tools", "logging"]))

    def call(self, number: int, session: str = "a", key: PoolKey | None = None, **more: Any) -> Any:
        """What is written for it."""
        [written] = of_kind(super().call(number, session, key, **more), WriteCall)
        return written

    def wants(self, wire: int, number: int = 0, method: str = ELICIT) -> list[Any]:
        return self.ask_in_round(ME, wire, number, method)


@behaviour("eras:rounds", "asks:own-agent")
def test_among_calls_of_many_agents_each_question_is_its_own_calls_and_no_evidence() -> None:
    rig = StatelessServerRig()
    for number in (1, 2, 3):
        rig.call(number, f"s{number}")
    for number in (3, 1, 2):
        effects = rig.wants(number)
        [asked] = of_kind(effects, AskOpened)
        assert asked.call == number
        assert [each.kind for each in of_kind(effects, RecordEvidence)] in (["asks"], [])


def test_a_call_is_written_as_its_agent_made_it() -> None:
    assert StatelessServerRig().call(1, "a").call.meta == ABSENT, (
        "no trace context is needed to know whose a question is"
    )


def test_an_ask_of_an_ended_call_reaches_no_agent_and_the_instance_stays() -> None:
    rig = StatelessServerRig()
    rig.call(1, "a")
    rig.call(2, "b")
    rig.feed(CancelCall(CallId(1), "enough"))
    for wire in (1, 9):
        effects = rig.wants(wire)
        assert not of_kind(effects, AskOpened, Spawn)
        assert [each.is_error for each in of_kind(effects, WriteAskAnswer)] == [True]


@behaviour("eras:rounds")
def test_a_cancel_between_rounds_withdraws_the_questions_and_answers_none_of_them() -> None:
    rig = StatelessServerRig()
    rig.call(1, "a")
    rig.wants(1, 0)
    rig.wants(1, 1, SAMPLE)
    effects = rig.feed(CancelCall(CallId(1), "enough"))
    assert len(of_kind(effects, AskWithdrawn)) == 2
    assert len(of_kind(effects, WriteCancel)) == 1
    assert not of_kind(effects, WriteAskAnswer), "an answer would have the server go on"


def test_a_lost_link_ends_questions_with_their_calls_and_answers_none_of_them() -> None:
    rig = StatelessServerRig()
    rig.call(1, "a")
    rig.wants(1)
    effects = rig.feed(ev.BrokerConnected(same=True))
    assert of_kind(effects, WriteCancel)
    assert not of_kind(effects, WriteAskAnswer)


def test_an_ask_without_an_answer_in_time_is_answered_so_that_the_call_can_continue() -> None:
    rig = StatelessServerRig(ask_timeout_s=5.0)
    rig.call(1, "a")
    rig.wants(1)
    [answer] = of_kind(rig.wait(6.0), WriteAskAnswer)
    assert answer.is_error


def test_an_answer_goes_back_to_the_round_that_it_belongs_to() -> None:
    rig = StatelessServerRig()
    rig.call(1, "a")
    [asked] = of_kind(rig.wants(1), AskOpened)
    body = RawJson(b'{"action":"accept"}')
    effects = rig.feed(AnswerAsk(asked.ask, is_error=False, body=body))
    assert of_kind(effects, WriteAskAnswer) == [
        WriteAskAnswer(ME, RawJson(b"1/1/0"), is_error=False, body=body)
    ]


def test_a_paused_call_is_sent_again_unless_it_has_ended() -> None:
    rig = StatelessServerRig()
    rig.call(1, "a")
    rig.call(2, "b")
    for wire in (1, 2, 3):
        rig.feed(ev.ServerNotReady(ME, WireId(wire), 0.05))
    rig.feed(CancelCall(CallId(2), "enough"))
    assert of_kind(rig.wait(0.04), WriteRetry) == []
    assert of_kind(rig.wait(0.02), WriteRetry) == [WriteRetry(ME, WireId(1))]
    assert of_kind(rig.wait(1.0), WriteRetry) == []


def test_pauses_do_not_make_a_call_last_longer_than_its_limit() -> None:
    rig = StatelessServerRig(timeout_s=1.0)
    rig.call(1, "a")
    failed: list[Any] = []
    for _ in range(20):
        rig.feed(ev.ServerNotReady(ME, WireId(1), 0.25))
        failed += of_kind(rig.wait(0.25), CallFailed)
    assert [each.fault for each in failed] == ["timed_out"]


def test_an_unwanted_log_level_is_withdrawn_at_a_stateless_server() -> None:
    rig = StatelessServerRig()
    assert WriteLevel(ME, "info") in rig.feed(SetLevel(KEY, "info"))
    assert WriteLevel(ME, "") in rig.feed(SetLevel(KEY, ""))


def test_the_status_shows_the_era_of_a_stateless_server() -> None:
    [pool] = StatelessServerRig().core.pool_reports()
    assert [each.era for each in pool.instances] == ["stateless"]


def test_placement_stops_at_the_first_waiting_call_without_a_free_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = StatelessServerRig(sharing="serial", max_instances=1)
    first = rig.call(1, "s1.1")
    for number in range(2, 30):
        waits = Call(
            CallId(number), KEY, part_of(SessionId("s1"), number), "tools/call", "t", RawJson(b"{}"), ABSENT,
            wants_progress=False,
        )  # fmt: skip
        assert not any(isinstance(each, WriteCall) for each in rig.feed(waits))
    looked: list[Call] = []

    def counted(call: Call, *rest: Any) -> Any:
        looked.append(call)
        return placement.find_instance(call, *rest)

    monkeypatch.setattr(dispatcher, "find_instance", counted)
    effects = rig.feed(ev.ServerAnswered(ME, first.wire, is_error=False, body=RawJson(b"{}")))
    [written] = [each for each in effects if isinstance(each, WriteCall)]
    assert written.call.call == 2
    assert len(looked) <= 4
