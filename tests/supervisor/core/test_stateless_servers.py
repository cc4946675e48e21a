"""The core with servers of the stateless era: whose a question is without a doubt, and pauses."""

from typing import Any, Final

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
    part_of,
)
from carpool_protocol.link.messages import (
    AnswerAsk,
    Asked,
    AskWithdrawn,
    Call,
    CancelCall,
    Catalog,
    Failed,
    Policy,
    PoolSpec,
    SetLevel,
    Wanted,
)
from carpool_supervisor.core.calls import dispatcher, placement
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.attribution import AskFacts
from carpool_supervisor.core.model.effects import (
    Observe,
    Spawn,
    WriteAgain,
    WriteAskAnswer,
    WriteCall,
    WriteCancel,
    WriteLevel,
)
from tests.behaviours import behaviour
from tests.kit.supervisor_rig import supervisor_core

KEY: Final = PoolKey("s:1")
ME: Final = InstanceId(1)
ELICIT, SAMPLE = "elicitation/create", "sampling/createMessage"


class House:
    """A supervisor core with one server of the stateless era that may ask."""

    def __init__(self, **policy: Any) -> None:
        self.core = supervisor_core()
        self.now = 0.0
        self.do(ev.BrokerCame())
        policies = Policy(min_instances=1, probe_s=10_000.0, **policy)
        spec = PoolSpec(
            key=KEY, server=ServerName("s"), argv=["s"], env={}, cwd="/", policy=policies,
            asking=True, era="stateless",
        )  # fmt: skip
        self.do(Wanted([spec]))
        self.do(ev.InstanceSpawned(ME, 100))
        features: Any = ["tools", "logging"]
        told = Catalog(KEY, [], "", EMPTY_OBJECT, EMPTY_OBJECT, "2026-07-28", features=features)
        self.do(ev.InstanceGreeted(ME, told))

    def do(self, event: ev.AnyEvent) -> list[Any]:
        effects = self.core.handle(event, self.now)
        self.core.check()
        return effects

    def wait(self, duration_s: float) -> list[Any]:
        until, done = self.now + duration_s, []
        while (due := self.core.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            done += self.core.tick(self.now)
            self.core.check()
        self.now = until
        return done

    def call(self, number: int, session: str) -> WriteCall:
        word = Call(
            CallId(number), KEY, SessionId(session), "tools/call", "t", RawJson(b"{}"), ABSENT,
            wants_progress=False,
        )  # fmt: skip
        [written] = [each for each in self.do(word) if isinstance(each, WriteCall)]
        return written

    def wants(self, wire: int, number: int = 0, method: str = ELICIT) -> list[Any]:
        ask = RawJson(b"%d/1/%d" % (wire, number))
        facts = AskFacts(method, wire=WireId(wire))
        return self.do(ev.ServerAsked(ME, ask, RawJson(b"{}"), facts, ABSENT))


def only(effects: list[Any], *kinds: type) -> list[Any]:
    return [each for each in effects if isinstance(each, kinds)]


@behaviour("eras:rounds", "asks:own-agent")
def test_among_calls_of_many_agents_each_question_is_its_own_calls_and_no_evidence() -> None:
    house = House()
    for number in (1, 2, 3):
        house.call(number, f"s{number}")
    for number in (3, 1, 2):
        effects = house.wants(number)
        [asked] = only(effects, Asked)
        assert asked.call == number
        assert [each.kind for each in only(effects, Observe)] in (["asks"], [])


def test_a_call_is_written_as_its_agent_made_it() -> None:
    assert House().call(1, "a").call.meta == ABSENT, "no trace context is needed to know whose a question is"


def test_a_question_for_a_call_that_is_over_reaches_nobody_and_the_instance_stays() -> None:
    house = House()
    house.call(1, "a")
    house.call(2, "b")
    house.do(CancelCall(CallId(1), "enough"))
    for wire in (1, 9):
        effects = house.wants(wire)
        assert not only(effects, Asked, Spawn)
        assert [each.is_error for each in only(effects, WriteAskAnswer)] == [True]


@behaviour("eras:rounds")
def test_a_cancel_between_rounds_withdraws_the_questions_and_answers_none_of_them() -> None:
    house = House()
    house.call(1, "a")
    house.wants(1, 0)
    house.wants(1, 1, SAMPLE)
    effects = house.do(CancelCall(CallId(1), "enough"))
    assert len(only(effects, AskWithdrawn)) == 2
    assert len(only(effects, WriteCancel)) == 1
    assert not only(effects, WriteAskAnswer), "an answer would have the server go on"


def test_a_lost_link_ends_questions_with_their_calls_and_answers_none_of_them() -> None:
    house = House()
    house.call(1, "a")
    house.wants(1)
    effects = house.do(ev.BrokerCame(same=True))
    assert only(effects, WriteCancel)
    assert not only(effects, WriteAskAnswer)


def test_a_question_that_nobody_answers_in_time_is_answered_so_that_the_call_can_go_on() -> None:
    house = House(ask_timeout_s=5.0)
    house.call(1, "a")
    house.wants(1)
    [answer] = only(house.wait(6.0), WriteAskAnswer)
    assert answer.is_error


def test_an_answer_goes_back_to_the_round_that_it_belongs_to() -> None:
    house = House()
    house.call(1, "a")
    [asked] = only(house.wants(1), Asked)
    body = RawJson(b'{"action":"accept"}')
    effects = house.do(AnswerAsk(asked.ask, is_error=False, body=body))
    assert only(effects, WriteAskAnswer) == [WriteAskAnswer(ME, RawJson(b"1/1/0"), is_error=False, body=body)]


def test_after_a_pause_the_call_is_said_again_unless_it_has_ended() -> None:
    house = House()
    house.call(1, "a")
    house.call(2, "b")
    for wire in (1, 2, 3):
        house.do(ev.ServerNotReady(ME, WireId(wire), 0.05))
    house.do(CancelCall(CallId(2), "enough"))
    assert only(house.wait(0.04), WriteAgain) == []
    assert only(house.wait(0.02), WriteAgain) == [WriteAgain(ME, WireId(1))]
    assert only(house.wait(1.0), WriteAgain) == []


def test_pauses_do_not_make_a_call_last_longer_than_its_limit() -> None:
    house = House(timeout_s=1.0)
    house.call(1, "a")
    failed: list[Any] = []
    for _ in range(20):
        house.do(ev.ServerNotReady(ME, WireId(1), 0.25))
        failed += only(house.wait(0.25), Failed)
    assert [each.fault for each in failed] == ["timed_out"]


def test_nobody_wanting_logs_any_more_is_told_to_a_server_that_can_be_told() -> None:
    house = House()
    assert WriteLevel(ME, "info") in house.do(SetLevel(KEY, "info"))
    assert WriteLevel(ME, "") in house.do(SetLevel(KEY, ""))


def test_its_era_is_shown() -> None:
    [pool] = House().core.report()
    assert [each.era for each in pool.instances] == ["stateless"]


def test_where_one_finds_no_lane_all_others_in_line_need_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(sharing="serial", max_instances=1)
    first = house.call(1, "s1.1")
    for number in range(2, 30):
        waits = Call(
            CallId(number), KEY, part_of(SessionId("s1"), number), "tools/call", "t", RawJson(b"{}"), ABSENT,
            wants_progress=False,
        )  # fmt: skip
        assert not any(isinstance(each, WriteCall) for each in house.do(waits))
    looked: list[Call] = []

    def counted(call: Call, *rest: Any) -> Any:
        looked.append(call)
        return placement.find(call, *rest)

    monkeypatch.setattr(dispatcher, "find", counted)
    effects = house.do(ev.ServerAnswered(ME, first.wire, is_error=False, body=RawJson(b"{}")))
    [written] = [each for each in effects if isinstance(each, WriteCall)]
    assert written.call.call == 2
    assert len(looked) <= 4
